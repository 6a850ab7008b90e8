//! From `req->next->len` to loads: the place and type of a field of what an argument points to.
//!
//! In: DWARF, a function's address, a path. Out: a [`Field`], or why there is none, and which part of the
//! path is wrong. A star in front means what the path's pointer leads to: `*req`.
//! Does not: load.

use trapline_record::Svma;

use crate::counted::{Counted, Elements};
use crate::debuginfo::DebugInfo;
use crate::entries::{At, Entry};
use crate::nearest::nearest_of;
use crate::no_field::{Misplaced, NoField};
use crate::path::{PathPart, Placed, name_in, steps};
use crate::prototype::{Declared, Layout, ParameterPlace, Parts, Prototype, ValueType, Whereabouts};

/// Maximum number of consecutive loads.
const MAX_LOADS: usize = 6;
/// Members that are looked at for one field, with those of anonymous members and base classes; more are forged.
const MAX_MEMBERS: u32 = 10_000;
/// Number of bytes of a text that are read.
const TEXT: u64 = 64;

/// Where a field is found from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FieldBase {
    /// The argument in this general register, counted from 0.
    Argument(u8),
    /// Where the file is mapped: the first offset is the address in the file of one of its variables.
    File,
}

/// What the last load of a field yields.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FieldContent {
    /// One value; for [`ValueType::Text`] the bytes themselves.
    One(ValueType),
    /// A structure, an array, or bits of an integer.
    Whole(Layout),
}

/// A field of what an argument points to, or of a variable of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Field {
    /// Where it is found from.
    pub base: FieldBase,
    /// Added to that, and then to each word that was loaded, before the next load.
    pub offsets: Vec<i32>,
    /// What the last load yields.
    pub of: FieldContent,
    /// Length of the last load in bytes, at most [`MOST_READ`](crate::MOST_READ).
    pub bytes: u16,
}

/// A string, slice or vector, to which a path leads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CountedField {
    /// Where both words are found from.
    pub base: FieldBase,
    /// Loads that end at the word with the address of the elements.
    pub address: Vec<i32>,
    /// Loads that end at the word with their number, or with the address of their end.
    pub number: Vec<i32>,
    /// What they are.
    pub of: Elements,
}

/// Offsets, what is there, and how many bytes of it are read.
pub(crate) type FieldAccess = (Vec<i32>, FieldContent, u16);
/// The offsets of the address of elements, and of their number, and what they are.
pub(crate) type CountedAccess = (Vec<i32>, Vec<i32>, Elements);

/// What is read at the end of a walk.
pub(crate) type EndOf<'a, T> =
    &'a dyn for<'u> Fn(&'u DebugInfo, Walk<'u>, &str) -> gimli::Result<Result<T, NoField>>;

/// State of a walk along a path.
#[derive(Clone, Debug)]
pub(crate) struct Walk<'u> {
    of: At<'u>,
    offsets: Vec<i32>,
    /// The bit-field that it is.
    bits: Option<(u32, u32)>,
}

impl<'u> Walk<'u> {
    /// At a value of this type in a register.
    pub(crate) const fn new(of: At<'u>) -> Self {
        Self { of, offsets: Vec::new(), bits: None }
    }
    /// At a value in memory, so far from a register.
    pub(crate) fn begin(&mut self, offset: i32) {
        self.offsets.push(offset);
    }
    /// At a variable of the file.
    pub(crate) fn begin_in_file(&mut self, at: Svma) -> Result<(), NoField> {
        self.offsets.push(i32::try_from(at.0).map_err(|_| NoField::Far)?);
        Ok(())
    }
    /// Goes through the pointer at which the walk is.
    fn load(&mut self, to: At<'u>) -> Result<(), NoField> {
        if self.offsets.len() == MAX_LOADS {
            return Err(NoField::Far);
        }
        self.offsets.push(0);
        self.of = to;
        Ok(())
    }
    fn add(&mut self, by: u64, to: At<'u>) -> Result<(), NoField> {
        let last = self.offsets.last_mut().ok_or(NoField::Far)?;
        let sum = i64::try_from(by).ok().and_then(|by| i64::from(*last).checked_add(by));
        *last = sum.and_then(|sum| i32::try_from(sum).ok()).ok_or(NoField::Far)?;
        self.of = to;
        Ok(())
    }
    /// The offsets of a word behind the walk's end.
    fn word_at(&self, distance: u64) -> Result<Vec<i32>, NoField> {
        let mut there = self.clone();
        there.add(distance, self.of).map(|()| there.offsets)
    }
}

impl DebugInfo {
    /// The field that a path refers to, in the function that begins at an address. `arg0` and so on are its
    /// arguments by number.
    ///
    /// # Errors
    /// What is wrong with the path, and where.
    pub fn field(&self, function: Svma, path: &str) -> Result<Field, Misplaced> {
        let (base, (offsets, of, bytes)) = self.field_by(function, path, &Self::value_at)?;
        Ok(Field { base, offsets, of, bytes })
    }
    /// The same of a string, slice or vector. `None` if the path leads to nothing of that kind.
    #[must_use]
    pub fn counted_field(&self, function: Svma, path: &str) -> Option<CountedField> {
        let (base, (address, number, of)) = self.field_by(function, path, &Self::counted_at).ok()?;
        Some(CountedField { base, address, number, of })
    }
    fn field_by<T>(
        &self,
        function: Svma,
        path: &str,
        end: EndOf<'_, T>,
    ) -> Result<(FieldBase, T), Misplaced> {
        let whole = |why| Misplaced { at: 0..path.len(), why };
        let prototype = self.prototype(function).ok_or_else(|| whole(NoField::NothingNoted))?;
        let (name, steps) = steps(path)?;
        let entry = self.function(function).ok().flatten();
        let declared = entry.as_ref().and_then(|entry| self.parameters(entry).ok());
        let parameters = declared.ok_or_else(|| whole(NoField::NothingNoted))?;
        self.walk(&parameters, &prototype, path, (name, &steps), end)
    }
    fn walk<T>(
        &self,
        parameters: &[Declared<'_>],
        prototype: &Prototype,
        path: &str,
        (name, steps): (&str, &[Placed<'_>]),
        end: EndOf<'_, T>,
    ) -> Result<(FieldBase, T), Misplaced> {
        let at_name = |why| Misplaced { at: name_in(path, name), why };
        let numbered =
            || name.strip_prefix("arg").and_then(|n| n.parse().ok()).filter(|n| *n < parameters.len());
        let nth = parameters.iter().position(|one| one.name == name).or_else(numbered).ok_or_else(|| {
            let known: Vec<String> = parameters.iter().map(|one| one.name.clone()).collect();
            let nearest = nearest_of(name, known.into_iter());
            at_name(NoField::NoArgument { name: name.to_owned(), nearest })
        })?;
        let mut walk = Walk::new(parameters[nth].of);
        let parameter = &prototype.parameters[nth];
        let register = match (parameter.place, &parameter.parts) {
            (ParameterPlace::General(register), _) => register,
            (_, Some(Parts { at: Whereabouts::Behind(register), .. })) => {
                walk.begin(0);
                *register
            }
            _ => return Err(at_name(NoField::Elsewhere(name.to_owned()))),
        };
        let found = self.ended(walk, path, (name, steps), end)?;
        Ok((FieldBase::Argument(register), found))
    }
    /// What is at the end of a path, of which the walk is at the beginning.
    pub(crate) fn ended<'u, T>(
        &'u self,
        mut walk: Walk<'u>,
        path: &str,
        (name, steps): (&str, &[Placed<'_>]),
        end: EndOf<'_, T>,
    ) -> Result<T, Misplaced> {
        let mut reached = name_in(path, name);
        for (step, at) in steps {
            let stepped = self.step_into(&mut walk, step, &path[reached.clone()]);
            let stepped = stepped.unwrap_or(Err(NoField::NothingNoted));
            stepped.map_err(|why| Misplaced { at: at.clone(), why })?;
            reached = reached.start.min(at.start)..reached.end.max(at.end);
        }
        let last = steps.last().map_or(name_in(path, name), |(_, at)| at.clone());
        let done = end(self, walk, path).unwrap_or(Err(NoField::NothingNoted));
        done.map_err(|why| Misplaced { at: last, why })
    }
    fn step_into<'u>(
        &'u self,
        walk: &mut Walk<'u>,
        step: &PathPart<'_>,
        reached: &str,
    ) -> gimli::Result<Result<(), NoField>> {
        let mut entry = self.bare(walk.of)?;
        let is_pointer = matches!(
            entry.tag(),
            gimli::DW_TAG_pointer_type | gimli::DW_TAG_reference_type | gimli::DW_TAG_rvalue_reference_type
        );
        let no = |step: &PathPart<'_>| match step {
            PathPart::Field(_) => NoField::NotAStructure(reached.to_owned()),
            PathPart::Index(_) => NoField::NotIndexed(reached.to_owned()),
            PathPart::Target => NoField::NotAPointer(reached.to_owned()),
        };
        walk.bits = None;
        if is_pointer {
            let Some(to) = self.type_of(&entry)? else { return Ok(Err(no(step))) };
            if let Err(why) = walk.load(to) {
                return Ok(Err(why));
            }
            entry = self.bare(to)?;
        }
        match step {
            PathPart::Target if is_pointer => Ok(Ok(())),
            PathPart::Field(field) if entry.is_record() => self.member(walk, &entry, field, reached),
            PathPart::Index(index) if is_pointer => {
                let size = self.size(walk.of)?;
                let of = walk.of;
                Ok(if size == 0 { Err(no(step)) } else { walk.add(index.saturating_mul(size), of) })
            }
            PathPart::Index(index) if entry.tag() == gimli::DW_TAG_array_type => {
                let lens = self.dimensions(&entry)?;
                let Some(of) = self.type_of(&entry)? else { return Ok(Err(no(step))) };
                let size = self.size(of)?;
                Ok(match lens[..] {
                    // An array at a structure's end has no length of its own.
                    [len] if len == 0 || *index < len => walk.add(index.saturating_mul(size), of),
                    [len] => Err(NoField::Index { of: reached.to_owned(), len, index: *index }),
                    _ => Err(no(step)),
                })
            }
            _ => Ok(Err(no(step))),
        }
    }
    fn member<'u>(
        &'u self,
        walk: &mut Walk<'u>,
        of: &Entry<'u>,
        field: &str,
        reached: &str,
    ) -> gimli::Result<Result<(), NoField>> {
        let mut known = Vec::new();
        let mut budget = MAX_MEMBERS;
        let found = self.find_field(of, field, &mut known, (0, &mut budget))?;
        let Some((offset, of, bits)) = found else {
            let nearest = nearest_of(field, known.into_iter());
            return Ok(Err(NoField::None { of: reached.to_owned(), field: field.to_owned(), nearest }));
        };
        walk.bits = bits;
        Ok(walk.add(offset, of))
    }
    /// Where the address of elements and their number are, at the end of the walk.
    pub(crate) fn counted_at<'u>(
        &'u self,
        mut walk: Walk<'u>,
        path: &str,
    ) -> gimli::Result<Result<CountedAccess, NoField>> {
        if let Some(to) = self.referred(walk.of)?
            && let Err(why) = walk.load(to)
        {
            return Ok(Err(why));
        }
        let other = NoField::NotAValue { of: path.to_owned(), what: String::new() };
        if walk.offsets.is_empty() {
            return Ok(Err(other));
        }
        Ok(match self.counted(walk.of)? {
            Some(Counted { address, number, of }) => {
                walk.word_at(address).and_then(|address| Ok((address, walk.word_at(number)?, of)))
            }
            None => Err(other),
        })
    }
    /// The value at the end of the walk, and how many bytes of it are read.
    pub(crate) fn value_at<'u>(
        &'u self,
        mut walk: Walk<'u>,
        path: &str,
    ) -> gimli::Result<Result<FieldAccess, NoField>> {
        let entry = self.bare(walk.of)?;
        let (of, size) = (self.value_type(walk.of)?, self.size(walk.of)?);
        if let Some((from, count)) = walk.bits {
            if count == 0 {
                let what = "a bit-field".to_owned();
                return Ok(Err(NoField::NotAValue { of: path.to_owned(), what }));
            }
            let (bytes, whole) =
                (size.clamp(1, 8) as u8, Layout::Bits { of, bytes: size as u8, from, count });
            return Ok(Ok((walk.offsets, FieldContent::Whole(whole), bytes.into())));
        }
        if entry.tag() == gimli::DW_TAG_array_type
            && let Some(element) = self.type_of(&entry)?
            && self.value_type(element)? == ValueType::Char
        {
            let text = FieldContent::One(ValueType::Text);
            return Ok(Ok((walk.offsets, text, size.clamp(1, TEXT) as u16)));
        }
        let what = match of {
            ValueType::Text => {
                let to = walk.of;
                let text = FieldContent::One(ValueType::Text);
                return Ok(walk.load(to).map(|()| (walk.offsets, text, TEXT as u16)));
            }
            ValueType::Other(what) => what,
            ValueType::Void | ValueType::Unknown => "nothing".to_owned(),
            of => return Ok(Ok((walk.offsets, FieldContent::One(of), size.clamp(1, 8) as u16))),
        };
        Ok(match self.layout_in_memory(walk.of)?.filter(|_| !walk.offsets.is_empty()) {
            Some(whole) => Ok((walk.offsets, FieldContent::Whole(whole), size as u16)),
            None => Err(NoField::NotAValue { of: path.to_owned(), what }),
        })
    }
}
