//! From `req->next->len` to loads: the place and type of a field of what an argument points to.
//!
//! In: DWARF, a function's address, a path. Out: a [`Field`], or why there is none, and which part of the
//! path is wrong.
//! Does not: load.

use std::ops::Range;

use trapline_record::Svma;

use crate::debuginfo::DebugInfo;
use crate::entries::{At, Entry};
use crate::nearest::nearest_of;
use crate::operands::NoPlace;
use crate::prototype::{Declared, ParameterPlace, Prototype, ValueType};

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

/// A field of what an argument points to, or of a variable of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Field {
    /// Where it is found from.
    pub base: FieldBase,
    /// Added to that, and then to each word that was loaded, before the next load.
    pub offsets: Vec<i32>,
    /// Type of the value that the last load yields; for [`ValueType::Text`] the load yields the bytes
    /// themselves.
    pub of: ValueType,
    /// Length of the last load in bytes, at most 64.
    pub bytes: u8,
}

/// Why there is no such field.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoField {
    /// It is not a valid path.
    #[error("this is no path; write for example req->next->len or req->table[2]")]
    Syntax,
    /// Nothing is known about the function.
    #[error(
        "nothing that can be read is noted of the function: it has no debug information, or it is of a language other than C, C++, Rust and Go, or \
         split off into a file (.dwo, .dwp, .dwz) that is not found"
    )]
    NothingNoted,
    /// No argument has this name, and no variable of the file.
    #[error("there is no argument or variable `{name}`{}", near(.nearest))]
    NoArgument {
        /// The name.
        name: String,
        /// Similar names, or all.
        nearest: Vec<String>,
    },
    /// Several variables of the file have this name, and none is of the function's own file.
    #[error(
        "several variables are called `{0}`; write more of its name, or probe a function of its source file"
    )]
    Several(String),
    /// No variable that can be named there has this name.
    #[error("there is no variable `{name}`{}", near(.nearest))]
    NoVariable {
        /// The name.
        name: String,
        /// Similar names, or all.
        nearest: Vec<String>,
    },
    /// Nothing says where the variable is there.
    #[error("`{name}` has no known place there: {why}")]
    NoPlace {
        /// The name.
        name: String,
        /// Why.
        why: NoPlace,
    },
    /// Inside a function, only what the probe names is read.
    #[error(
        "inside a function only variables that the probe names are read; name it in the brackets too, as in PROBE({0})"
    )]
    NotNamed(String),
    /// The argument is passed in memory, or in several registers.
    #[error("`{0}` is in no register of its own when the function is entered")]
    Elsewhere(String),
    /// There is no such field.
    #[error("`{of}` has no field `{field}`{}", near(.nearest))]
    None {
        /// The path up to here.
        of: String,
        /// The field.
        field: String,
        /// Similar fields.
        nearest: Vec<String>,
    },
    /// The value is not a structure, and does not point to one.
    #[error("`{0}` is no structure and points to none")]
    NotAStructure(String),
    /// The value has no elements.
    #[error("`{0}` is no array and no pointer to elements")]
    NotIndexed(String),
    /// It has fewer elements.
    #[error("`{of}` has {len} elements; {index} is none of them")]
    Index {
        /// The path up to here.
        of: String,
        /// Number of elements.
        len: u64,
        /// The index in the path.
        index: u64,
    },
    /// It is not a single value.
    #[error("`{of}` is {what}; name one of its fields")]
    NotAValue {
        /// The path up to here.
        of: String,
        /// What it is.
        what: String,
    },
    /// It is a bit-field, which does not begin and end at byte boundaries.
    #[error("`{0}` is a bit-field, which cannot be read")]
    Bits(String),
    /// Too many loads, or an offset that is too large.
    #[error("this is too far away")]
    Far,
}

impl NoField {
    /// Why a path leads to no variable, for one that does not begin with an argument either: what is wrong is said of
    /// both where nothing has that name.
    #[must_use]
    pub fn beside_argument(self, argument: Self) -> Self {
        match (self, argument) {
            (Self::NoVariable { nearest, .. }, Self::NoArgument { name, nearest: mut all }) => {
                let others: Vec<String> = nearest.into_iter().filter(|one| !all.contains(one)).collect();
                all.extend(others);
                Self::NoArgument { name, nearest: all }
            }
            (Self::NoVariable { .. }, argument) => argument,
            (other, _) => other,
        }
    }
}

fn near(nearest: &[String]) -> String {
    if nearest.is_empty() { String::new() } else { format!("; did you mean {}?", nearest.join(", ")) }
}

/// What is wrong, and in which bytes of the path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Misplaced {
    /// Range of bytes of the path.
    pub at: Range<usize>,
    /// What is wrong there.
    pub why: NoField,
}

/// A step of a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum PathPart<'a> {
    Field(&'a str),
    Index(u64),
}

/// A step, and the range of bytes of the path that contain it.
pub(crate) type Placed<'a> = (PathPart<'a>, Range<usize>);
/// Offsets, type of the value, and how many bytes of it are read.
pub(crate) type FieldAccess = (Vec<i32>, ValueType, u8);

/// What is read at the end of a walk.
pub(crate) type EndOf<'a> =
    &'a dyn Fn(&DebugInfo, Walk<'_>, &str) -> gimli::Result<Result<FieldAccess, NoField>>;

/// State of a walk along a path.
#[derive(Clone, Debug)]
pub(crate) struct Walk<'u> {
    of: At<'u>,
    offsets: Vec<i32>,
    is_bits: bool,
}

impl<'u> Walk<'u> {
    /// At a value of this type in a register.
    pub(crate) const fn new(of: At<'u>) -> Self {
        Self { of, offsets: Vec::new(), is_bits: false }
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
}

/// Splits `req->next[2].len` into the name, and each step with its range.
pub(crate) fn steps(path: &str) -> Result<(&str, Vec<Placed<'_>>), Misplaced> {
    let wrong = |at: usize| Misplaced { at: at..path.len().max(at + 1), why: NoField::Syntax };
    let word = |at: usize| {
        let len = path[at..].find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(path.len() - at);
        if len == 0 { Err(wrong(at)) } else { Ok(at..at + len) }
    };
    let mut name = word(0)?;
    // Of C++ and Rust: `Server::count`.
    while path[name.end..].starts_with("::") {
        name.end = word(name.end + 2)?.end;
    }
    let (mut at, mut steps) = (name.end, Vec::new());
    while at < path.len() {
        let rest = &path[at..];
        if rest.starts_with("->") || rest.starts_with('.') {
            let field = word(at + if rest.starts_with('.') { 1 } else { 2 })?;
            at = field.end;
            steps.push((PathPart::Field(&path[field.clone()]), field));
        } else if rest.starts_with('[') {
            let end = at + rest.find(']').ok_or_else(|| wrong(at))?;
            let index = path[at + 1..end].trim().parse().map_err(|_| wrong(at + 1))?;
            steps.push((PathPart::Index(index), at..end + 1));
            at = end + 1;
        } else {
            return Err(wrong(at));
        }
    }
    Ok((&path[name], steps))
}

impl DebugInfo {
    /// The field that a path refers to, in the function that begins at an address. `arg0` and so on are its
    /// arguments by number.
    ///
    /// # Errors
    /// What is wrong with the path, and where.
    pub fn field(&self, function: Svma, path: &str) -> Result<Field, Misplaced> {
        self.field_by(function, path, &Self::value_at)
    }
    /// The same of a string of Go's, or a slice of bytes: where the address of the bytes is. Their number is in the word
    /// behind it. `None` if the path leads to nothing of that kind.
    #[must_use]
    pub fn counted_field(&self, function: Svma, path: &str) -> Option<Field> {
        self.field_by(function, path, &Self::counted_at).ok()
    }
    fn field_by(&self, function: Svma, path: &str, end: EndOf<'_>) -> Result<Field, Misplaced> {
        let whole = |why| Misplaced { at: 0..path.len(), why };
        let prototype = self.prototype(function).ok_or_else(|| whole(NoField::NothingNoted))?;
        let (name, steps) = steps(path)?;
        let entry = self.function(function).ok().flatten();
        let declared = entry.as_ref().and_then(|entry| self.parameters(entry).ok());
        let parameters = declared.ok_or_else(|| whole(NoField::NothingNoted))?;
        self.walk(&parameters, &prototype, path, (name, &steps), end)
    }
    fn walk(
        &self,
        parameters: &[Declared<'_>],
        prototype: &Prototype,
        path: &str,
        (name, steps): (&str, &[Placed<'_>]),
        end: EndOf<'_>,
    ) -> Result<Field, Misplaced> {
        let at_name = |why| Misplaced { at: 0..name.len(), why };
        let numbered =
            || name.strip_prefix("arg").and_then(|n| n.parse().ok()).filter(|n| *n < parameters.len());
        let nth = parameters.iter().position(|one| one.name == name).or_else(numbered).ok_or_else(|| {
            let known: Vec<String> = parameters.iter().map(|one| one.name.clone()).collect();
            let nearest = nearest_of(name, known.into_iter());
            at_name(NoField::NoArgument { name: name.to_owned(), nearest })
        })?;
        let ParameterPlace::General(register) = prototype.parameters[nth].place else {
            return Err(at_name(NoField::Elsewhere(name.to_owned())));
        };
        let (offsets, of, bytes) = self.ended(Walk::new(parameters[nth].of), path, (name, steps), end)?;
        Ok(Field { base: FieldBase::Argument(register), offsets, of, bytes })
    }
    /// The value at the end of a path, of which the walk is at the beginning.
    pub(crate) fn walked<'u>(
        &'u self,
        walk: Walk<'u>,
        path: &str,
        named: (&str, &[Placed<'_>]),
    ) -> Result<FieldAccess, Misplaced> {
        self.ended(walk, path, named, &Self::value_at)
    }
    pub(crate) fn ended<'u>(
        &'u self,
        mut walk: Walk<'u>,
        path: &str,
        (name, steps): (&str, &[Placed<'_>]),
        end: EndOf<'_>,
    ) -> Result<FieldAccess, Misplaced> {
        let mut reached = name.len();
        for (step, at) in steps {
            let stepped = self.step_into(&mut walk, step, &path[..reached]);
            let stepped = stepped.unwrap_or(Err(NoField::NothingNoted));
            stepped.map_err(|why| Misplaced { at: at.clone(), why })?;
            reached = at.end;
        }
        let last = steps.last().map_or(0..name.len(), |(_, at)| at.clone());
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
        let is_pointer = matches!(entry.tag(), gimli::DW_TAG_pointer_type | gimli::DW_TAG_reference_type);
        let no = |step: &PathPart<'_>| match step {
            PathPart::Field(_) => NoField::NotAStructure(reached.to_owned()),
            PathPart::Index(_) => NoField::NotIndexed(reached.to_owned()),
        };
        if is_pointer {
            let Some(to) = self.type_of(&entry)? else { return Ok(Err(no(step))) };
            if let Err(why) = walk.load(to) {
                return Ok(Err(why));
            }
            entry = self.bare(to)?;
        }
        match step {
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
        let Some((offset, of, is_bits)) = found else {
            let nearest = nearest_of(field, known.into_iter());
            return Ok(Err(NoField::None { of: reached.to_owned(), field: field.to_owned(), nearest }));
        };
        walk.is_bits = is_bits;
        Ok(walk.add(offset, of))
    }
    /// The address of bytes at the end of the walk, if their number stands behind it.
    pub(crate) fn counted_at(
        &self,
        walk: Walk<'_>,
        path: &str,
    ) -> gimli::Result<Result<FieldAccess, NoField>> {
        let called = self.bare(walk.of)?.called_by_go()?.unwrap_or_default();
        let is_counted = ["string", "[]uint8"].contains(&&*called) && !walk.offsets.is_empty();
        let other = || NoField::NotAValue { of: path.to_owned(), what: called.clone() };
        Ok(is_counted.then(|| (walk.offsets.clone(), ValueType::Pointer, 8)).ok_or_else(other))
    }
    /// The value at the end of the walk, and how many bytes of it are read.
    pub(crate) fn value_at(
        &self,
        mut walk: Walk<'_>,
        path: &str,
    ) -> gimli::Result<Result<FieldAccess, NoField>> {
        if walk.is_bits {
            return Ok(Err(NoField::Bits(path.to_owned())));
        }
        let entry = self.bare(walk.of)?;
        let (of, size) = (self.value_type(walk.of)?, self.size(walk.of)?);
        if entry.tag() == gimli::DW_TAG_array_type
            && let Some(element) = self.type_of(&entry)?
            && self.value_type(element)? == ValueType::Char
        {
            return Ok(Ok((walk.offsets, ValueType::Text, size.clamp(1, TEXT) as u8)));
        }
        let what = match of {
            ValueType::Text => {
                let to = walk.of;
                return Ok(walk.load(to).map(|()| (walk.offsets, ValueType::Text, TEXT as u8)));
            }
            ValueType::Other(what) => what,
            ValueType::Void | ValueType::Unknown => "nothing".to_owned(),
            of => return Ok(Ok((walk.offsets, of, size.clamp(1, 8) as u8))),
        };
        Ok(Err(NoField::NotAValue { of: path.to_owned(), what }))
    }
}

#[cfg(test)]
mod tests {
    use super::{NoField, PathPart, steps};

    #[test]
    fn paths_are_taken_apart() {
        let (name, all) = steps("req->next[12].len_2").expect("a path");
        let all: Vec<_> = all.into_iter().map(|(step, at)| (step, at.start)).collect();
        assert_eq!(
            (name, all),
            (
                "req",
                vec![(PathPart::Field("next"), 5), (PathPart::Index(12), 9), (PathPart::Field("len_2"), 14),]
            )
        );
        assert_eq!(
            steps("ns::Server::count.of").map(|(name, all)| (name, all.len())),
            Ok(("ns::Server::count", 1))
        );
        for (wrong, at) in [
            ("", 0),
            ("a::", 3),
            ("a:b", 1),
            ("a->", 3),
            ("a.", 2),
            ("a[", 1),
            ("a[x]", 2),
            ("a b", 1),
            ("a-b", 1),
            ("->a", 0),
        ] {
            let error = steps(wrong).expect_err(wrong);
            assert_eq!((error.at.start, error.why), (at, NoField::Syntax), "{wrong}");
        }
    }
}
