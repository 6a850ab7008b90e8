//! Variables at a place inside a function: from a name, or a path that begins with one, to where its value is.
//!
//! In: DWARF, the address of an instruction, a path such as `at->next->id`. Out: a [`Local`], or why there is none, and
//! which part of the path is wrong. Invariant: VAL-1: a variable's place is what its location says for this very
//! instruction; where it says nothing, or computes, the value is unknown.
//!
//! A name is looked for in the innermost block around the instruction first, then in the blocks around it, among the
//! function's parameters, and at last among the variables of the file. In an inlined function, only its own blocks count.
//!
//! ```text
//! location                                      place
//! a register                                    the register
//! memory near a register, or the frame base     a load from there
//! memory at an address                          a load from the file's data
//! a constant                                    the constant
//! parts, entry values, anything that computes   unknown
//! ```
//!
//! A library's variable that other files can replace may not be the one that counts: its value is unknown. The loader
//! uses the first file that exports the name, and a program may hold a copy. At a function's first instruction parameters are
//! where the caller puts them; in its first row of lines, what has one location for the whole function is not there yet. Does not: load; know variables of threads.

use gimli::{AttributeValue, Operation};
use trapline_record::Svma;

use crate::debuginfo::DebugInfo;
use crate::entries::{At, Entry};
use crate::field::{CountedField, EndOf, Field, FieldBase, FieldContent, Walk};
use crate::nearest::nearest_of;
use crate::no_field::{Misplaced, NoField};
use crate::operands::{MarkArgument, MarkClass, MarkPlace, NoPlace};
use crate::path::{PathPart, Placed, name_in, steps};
use crate::prototype::{GENERAL, GO_GENERAL, ParameterPlace, ValueType};
use crate::sections::{Slice, UnitOf};

/// rsp.
const STACK_POINTER: u8 = 4;
/// Blocks within each other at most; more are forged.
const DEEPEST: u32 = 256;

/// A variable's value at a place inside a function, or a field of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Local {
    /// Type of the value. What is text is shown by what its pointer leads to.
    pub of: ValueType,
    /// Where the value is, and its bits.
    pub argument: MarkArgument,
}

/// Where a frame is at an instruction: so many bytes from what a register holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    /// The register's hardware number.
    pub base: u8,
    /// The distance in bytes.
    pub offset: i32,
}

/// An instruction, and what its file says of it besides debug information ([`Image::code_place`](crate::Image::code_place)).
#[derive(Clone, Debug)]
pub struct CodePlace {
    pub(crate) at: Svma,
    /// Where the canonical frame address is, if unwind tables say so.
    pub(crate) frame: Option<Frame>,
    /// Variables of which another file of the process may have the one that counts: addresses and sizes.
    pub(crate) replaceable: Vec<(Svma, u64)>,
}

impl CodePlace {
    /// Whether another file of the process may have the variable that counts.
    #[must_use]
    pub fn may_be_replaced(&self, variable: Svma) -> bool {
        let holds =
            |(at, size): &(Svma, u64)| variable.0.checked_sub(at.0).is_some_and(|into| into < (*size).max(1));
        self.replaceable.iter().any(holds)
    }
}

/// Where a variable begins.
enum Begins {
    Register(u8),
    Vector(u8),
    Constant(i64),
    Memory { base: u8, offset: i32 },
    Static(Svma),
}

impl DebugInfo {
    /// What a name or path stands for at an instruction.
    ///
    /// # Errors
    /// What is wrong with the path, and where.
    pub fn local(&self, here: &CodePlace, path: &str) -> Result<Local, Misplaced> {
        let whole = |why| Misplaced { at: 0..path.len(), why };
        let (name, steps) = steps(path)?;
        let (function, variable) =
            self.variable_named(name, here).map_err(|why| Misplaced { at: name_in(path, name), why })?;
        let of = self.inherited(&variable, |entry| self.type_of(entry)).ok().flatten();
        let mut walk = Walk::new(of.ok_or_else(|| whole(NoField::NothingNoted))?);
        let no_place =
            |why| Misplaced { at: name_in(path, name), why: NoField::NoPlace { name: name.to_owned(), why } };
        let nothing = || no_place(NoPlace::NotNoted);
        let begins = self.begins(&variable, &function, here).unwrap_or(None).ok_or_else(nothing)?;
        match begins {
            Begins::Static(at) if here.may_be_replaced(at) => return Err(no_place(NoPlace::Replaceable)),
            Begins::Memory { offset, .. } => walk.begin(offset),
            Begins::Static(_) => walk.begin(0),
            Begins::Register(_) | Begins::Vector(_) | Begins::Constant(_) => {}
        }
        let (offsets, content, bytes) = self.ended(walk, path, (name, &steps), &Self::value_at)?;
        let FieldContent::One(of) = content else { return Err(nothing()) };
        // A text is shown by its pointer; the characters of an array have none.
        let (offsets, bytes) = match (of == ValueType::Text, offsets.split_last()) {
            (true, Some((0, pointer))) => (pointer.to_vec(), 8),
            (true, _) => return Err(no_place(NoPlace::Characters)),
            (false, _) => (offsets, bytes),
        };
        let class = class(&of);
        let place = place(&begins, offsets, class == MarkClass::Float).ok_or_else(nothing)?;
        if !matches!(bytes, 1 | 2 | 4 | 8) {
            return Err(nothing());
        }
        Ok(Local { of, argument: MarkArgument { bytes: bytes as u8, class, place } })
    }
    /// What a name or path stands for that begins with a variable of the file: a static one of the function around the
    /// instruction, one of that function's source file, or the only one of that name.
    ///
    /// # Errors
    /// What is wrong with the path, and where.
    pub fn file_field(&self, here: &CodePlace, path: &str) -> Result<Field, Misplaced> {
        let (offsets, of, bytes) = self.file_field_by(here, path, &Self::value_at)?;
        Ok(Field { base: FieldBase::File, offsets, of, bytes })
    }
    /// As [`Self::counted_field`].
    #[must_use]
    pub fn counted_file_field(&self, here: &CodePlace, path: &str) -> Option<CountedField> {
        let (address, number, of) = self.file_field_by(here, path, &Self::counted_at).ok()?;
        Some(CountedField { base: FieldBase::File, address, number, of })
    }
    fn file_field_by<T>(&self, here: &CodePlace, path: &str, end: EndOf<'_, T>) -> Result<T, Misplaced> {
        let (name, mut rest) = steps(path)?;
        let found = self.file_variable(here, path, (name, &rest), end);
        // Go's names have dots: `main.count`.
        let is_unknown = matches!(&found, Err(Misplaced { why: NoField::NoVariable { .. }, .. }));
        let Some((PathPart::Field(_), second)) = rest.first().filter(|_| is_unknown) else { return found };
        let with_dot = &path[name_in(path, name).start..second.end];
        rest.remove(0);
        match self.file_variable(here, path, (with_dot, &rest), end) {
            Err(Misplaced { why: NoField::NoVariable { .. }, .. }) => found,
            other => other,
        }
    }
    fn file_variable<T>(
        &self,
        here: &CodePlace,
        path: &str,
        (name, steps): (&str, &[Placed<'_>]),
        end: EndOf<'_, T>,
    ) -> Result<T, Misplaced> {
        let at_name = |why| Misplaced { at: name_in(path, name), why };
        let no_place = |why| at_name(NoField::NoPlace { name: name.to_owned(), why });
        let read = |at: Svma, of: Option<At<'_>>| {
            if here.may_be_replaced(at) {
                return Err(no_place(NoPlace::Replaceable));
            }
            let mut walk = Walk::new(of.ok_or_else(|| no_place(NoPlace::NotNoted))?);
            walk.begin_in_file(at).map_err(at_name)?;
            self.ended(walk, path, (name, steps), end)
        };
        let unknown = match self.variable_named(name, here) {
            Ok((function, variable)) => match self.begins(&variable, &function, here) {
                Ok(Some(Begins::Static(at))) => {
                    return read(at, self.inherited(&variable, |entry| self.type_of(entry)).ok().flatten());
                }
                // A local variable hides the file's, and has no value yet; a declaration hides nothing.
                _ if !variable.has(gimli::DW_AT_declaration).unwrap_or(false) => {
                    return Err(no_place(NoPlace::NotNoted));
                }
                _ => no_place(NoPlace::NotNoted),
            },
            Err(why) => at_name(why),
        };
        let mut found: Vec<(Svma, Result<T, Misplaced>)> = Vec::new();
        let (others, _) = self.each_variable_named(name, &mut |at, of| {
            if found.iter().all(|one| one.0 != at) {
                found.push((at, read(at, of)));
            }
        });
        match found.pop() {
            None => Err(match unknown.why {
                NoField::NoVariable { name, nearest } => {
                    let nearest = nearest_of(&name, others.into_iter().chain(nearest));
                    Misplaced { why: NoField::NoVariable { name, nearest }, ..unknown }
                }
                why => Misplaced { why, ..unknown },
            }),
            Some((_, one)) if found.is_empty() => one,
            Some(_) => Err(at_name(NoField::Several(name.to_owned()))),
        }
    }
    /// The function around an instruction, and a variable by its name. The innermost blocks come last; variables of the file
    /// are behind all blocks.
    fn variable_named(&self, name: &str, here: &CodePlace) -> Result<(Entry<'_>, Entry<'_>), NoField> {
        let (function, variables) = self.scopes(here.at).ok().flatten().ok_or(NoField::NothingNoted)?;
        let found = self.among(name, &function, &variables)?;
        Ok((function, found))
    }
    fn among<'u>(
        &'u self,
        name: &str,
        function: &Entry<'u>,
        variables: &[Entry<'u>],
    ) -> Result<Entry<'u>, NoField> {
        let name_of = |entry: &Entry<'u>| self.source(entry).and_then(|source| source.name()).ok().flatten();
        let named = |entry: &&Entry<'u>| name_of(entry).as_deref() == Some(name);
        let files = || self.of_file(function).unwrap_or_default().into_iter().find(|entry| named(&entry));
        variables.iter().rfind(named).cloned().or_else(files).ok_or_else(|| {
            let nearest = nearest_of(name, variables.iter().filter_map(name_of));
            NoField::NoVariable { name: name.to_owned(), nearest }
        })
    }
    /// The function around an instruction, and the variables that its source can name there, the innermost last.
    fn scopes(&self, at: Svma) -> gimli::Result<Option<(Entry<'_>, Vec<Entry<'_>>)>> {
        let Some(unit) = self.unit_at(at) else { return Ok(None) };
        let Some(function) = around(unit, at)? else { return Ok(None) };
        let (mut found, mut within) = (Vec::new(), function.clone());
        for _ in 0..DEEPEST {
            let mut inner = None;
            for child in within.children()? {
                match child.tag() {
                    gimli::DW_TAG_variable | gimli::DW_TAG_formal_parameter => found.push(child),
                    gimli::DW_TAG_lexical_block | gimli::DW_TAG_inlined_subroutine
                        if child.contains(at)? =>
                    {
                        inner = Some(child);
                    }
                    _ => {}
                }
            }
            let Some(inner) = inner else { break };
            if inner.tag() == gimli::DW_TAG_inlined_subroutine {
                found.clear();
            }
            within = inner;
        }
        Ok(Some((function, found)))
    }
    /// Variables of the file of a function: those with a place first.
    fn of_file<'u>(&'u self, function: &Entry<'u>) -> gimli::Result<Vec<Entry<'u>>> {
        let mut all = Vec::new();
        for entry in [function.clone(), self.source(function)?] {
            let Some(root) = entry.root()? else { continue };
            all.extend(root.children()?.into_iter().filter(|child| child.tag() == gimli::DW_TAG_variable));
        }
        all.sort_by_key(|entry| !entry.has(gimli::DW_AT_location).unwrap_or(false));
        Ok(all)
    }
    /// Where a variable is at an instruction; `None`: nowhere, or that is not known.
    fn begins(
        &self,
        variable: &Entry<'_>,
        function: &Entry<'_>,
        here: &CodePlace,
    ) -> gimli::Result<Option<Begins>> {
        if let Some(value) = variable.value(gimli::DW_AT_const_value)? {
            let value = value.sdata_value().or_else(|| value.udata_value().map(u64::cast_signed));
            return Ok(value.map(Begins::Constant));
        }
        if let Some(at) = variable.address()? {
            return Ok(Some(Begins::Static(at)));
        }
        let start = function.begins()?.map(Svma);
        if start == Some(here.at) && variable.tag() == gimli::DW_TAG_formal_parameter {
            return self.passed_at(here.at, variable);
        }
        if start.is_some_and(|start| self.is_in_prologue(start, here.at)) && variable.has_one_location()? {
            return Ok(None);
        }
        let Some(expression) = expression(variable, gimli::DW_AT_location, here.at)? else {
            return self.defined_elsewhere(variable);
        };
        let mut operations = expression.operations(variable.unit().encoding());
        let (first, second, third) = (operations.next()?, operations.next()?, operations.next()?);
        let memory = |from: Frame, offset: i64| {
            let offset = i32::try_from(i64::from(from.offset).checked_add(offset)?).ok()?;
            Some(Begins::Memory { base: from.base, offset })
        };
        Ok(match (first, second, third) {
            (Some(Operation::Register { register }), None, _) => self
                .general(register.0)
                .map(Begins::Register)
                .or_else(|| self.vector(register.0).map(Begins::Vector)),
            (Some(Operation::RegisterOffset { register, offset, .. }), None, _) => {
                self.general(register.0).and_then(|base| memory(Frame { base, offset: 0 }, offset))
            }
            (Some(Operation::FrameOffset { offset }), None, _) => {
                self.frame(function, here)?.and_then(|frame| memory(frame, offset))
            }
            (Some(Operation::UnsignedConstant { value }), Some(Operation::StackValue), None) => {
                Some(Begins::Constant(value.cast_signed()))
            }
            (Some(Operation::SignedConstant { value }), Some(Operation::StackValue), None) => {
                Some(Begins::Constant(value))
            }
            (
                Some(Operation::RegisterOffset { register, offset: 0, .. }),
                Some(Operation::StackValue),
                None,
            ) => self.general(register.0).map(Begins::Register),
            _ => None,
        })
    }
    /// Where a parameter is at its function's first instruction: where the caller puts it.
    fn passed_at(&self, start: Svma, parameter: &Entry<'_>) -> gimli::Result<Option<Begins>> {
        let (Some(name), Some(prototype)) = (self.source(parameter)?.name()?, self.prototype(start)) else {
            return Ok(None);
        };
        let place = prototype.parameters.iter().find(|one| one.name == name).map(|one| one.place);
        let is_go = self.language(parameter)? == Some(gimli::DW_LANG_Go);
        let order: &[u16] = if is_go { &GO_GENERAL } else { &GENERAL };
        let nth = |nth: u8| match self.is_x86_64 {
            true => order.get(usize::from(nth)).and_then(|register| general_x86_64(*register)),
            false => Some(nth),
        };
        Ok(match place {
            Some(ParameterPlace::General(general)) => nth(general).map(Begins::Register),
            Some(ParameterPlace::Vector(nth)) => Some(Begins::Vector(nth)),
            Some(ParameterPlace::Stack(offset)) if self.is_x86_64 => {
                Some(Begins::Memory { base: STACK_POINTER, offset })
            }
            _ => None,
        })
    }
    /// Whether an instruction stands before the function's second row of lines. What has one location for all of a function
    /// is put there by the instructions before.
    fn is_in_prologue(&self, start: Svma, at: Svma) -> bool {
        /// Longer than any.
        const LONGEST: u64 = 4096;
        let rows = self.lines.as_ref().map(|lines| lines.find_location_range(start.0, start.0 + LONGEST));
        let second = rows.and_then(Result::ok).and_then(|mut rows| rows.find(|row| row.0 > start.0));
        second.is_none_or(|(second, ..)| at.0 < second) && at.0 - start.0 < LONGEST
    }
    /// The address of a variable that its unit declares alone: where another unit of the file defines it for all. `None` if none
    /// does. A static variable of that name is another one.
    fn defined_elsewhere(&self, variable: &Entry<'_>) -> gimli::Result<Option<Begins>> {
        let is_declared = variable.has(gimli::DW_AT_declaration)? && variable.has(gimli::DW_AT_external)?;
        let linked = self.inherited(variable, |entry| entry.text(gimli::DW_AT_linkage_name))?;
        let (Some(name), true) = (variable.name()?, is_declared && linked.is_none()) else { return Ok(None) };
        let found = self.each_unit(|unit| {
            let Some(root) = Entry::of_unit(unit)? else { return Ok(None) };
            for entry in root.children()? {
                let address = if entry.tag() == gimli::DW_TAG_variable { entry.address()? } else { None };
                let Some(address) = address else { continue };
                let source = self.source(&entry)?;
                if source.has(gimli::DW_AT_external)? && source.name()?.is_some_and(|own| own == name) {
                    return Ok(Some(address));
                }
            }
            Ok(None)
        })?;
        Ok(found.map(Begins::Static))
    }
    /// The frame base of a function at an instruction.
    fn frame(&self, function: &Entry<'_>, here: &CodePlace) -> gimli::Result<Option<Frame>> {
        let Some(base) = expression(function, gimli::DW_AT_frame_base, here.at)? else { return Ok(None) };
        let mut operations = base.operations(function.unit().encoding());
        Ok(match (operations.next()?, operations.next()?) {
            (Some(Operation::CallFrameCFA), None) => here.frame,
            (Some(Operation::Register { register }), None) => {
                self.general(register.0).map(|base| Frame { base, offset: 0 })
            }
            (Some(Operation::RegisterOffset { register, offset, .. }), None) => {
                let frame = self.general(register.0).zip(i32::try_from(offset).ok());
                frame.map(|(base, offset)| Frame { base, offset })
            }
            _ => None,
        })
    }
    /// The hardware's number of a general register.
    fn general(&self, register: u16) -> Option<u8> {
        if self.is_x86_64 {
            general_x86_64(register)
        } else {
            u8::try_from(register).ok().filter(|nth| *nth < 32)
        }
    }
    fn vector(&self, register: u16) -> Option<u8> {
        let first = if self.is_x86_64 { 17 } else { 64 };
        let end = if self.is_x86_64 { 16 } else { 32 };
        register.checked_sub(first).and_then(|nth| u8::try_from(nth).ok()).filter(|nth| *nth < end)
    }
}

/// What the bits of a value of a type mean.
const fn class(of: &ValueType) -> MarkClass {
    match of {
        ValueType::Float(_) => MarkClass::Float,
        ValueType::Integer { signed: true, .. } | ValueType::Enumeration { signed: true, .. } => {
            MarkClass::Signed
        }
        _ => MarkClass::Unsigned,
    }
}

/// Where a value is that is found from the beginning of a variable by these loads; `None` if nothing can read it there.
fn place(begins: &Begins, offsets: Vec<i32>, is_float: bool) -> Option<MarkPlace> {
    Some(match (begins, offsets.is_empty()) {
        (Begins::Vector(nth), true) if is_float => MarkPlace::Vector(*nth),
        (Begins::Register(base), true) if !is_float => MarkPlace::Register(*base),
        (Begins::Constant(value), true) if !is_float => MarkPlace::Constant(*value),
        (Begins::Register(base) | Begins::Memory { base, .. }, false) => {
            MarkPlace::Loads { base: *base, offsets }
        }
        (Begins::Static(at), false) => MarkPlace::StaticLoads { at: *at, offsets },
        _ => return None,
    })
}

/// rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 to r15 in DWARF's order, by their hardware numbers.
pub(crate) fn general_x86_64(register: u16) -> Option<u8> {
    const ORDER: [u8; 16] = [0, 2, 1, 3, 6, 7, 5, 4, 8, 9, 10, 11, 12, 13, 14, 15];
    ORDER.get(usize::from(register)).copied()
}

/// The function of a unit that contains an instruction.
fn around(unit: UnitOf<'_>, at: Svma) -> gimli::Result<Option<Entry<'_>>> {
    let mut entries = unit.unit.entries();
    while let Some((_, entry)) = entries.next_dfs()? {
        if entry.tag() == gimli::DW_TAG_subprogram {
            let entry = Entry::new(unit, entry.clone());
            if entry.contains(at)? {
                return Ok(Some(entry));
            }
        }
    }
    Ok(None)
}

/// The expression of an attribute that counts at an instruction.
fn expression(
    entry: &Entry<'_>,
    which: gimli::DwAt,
    at: Svma,
) -> gimli::Result<Option<gimli::Expression<Slice>>> {
    let Some(value) = entry.value(which)? else { return Ok(None) };
    if let AttributeValue::Exprloc(expression) = value {
        return Ok(Some(expression));
    }
    let Some(mut list) = entry.unit().attr_locations(value)? else { return Ok(None) };
    while let Some(entry) = list.next()? {
        if (entry.range.begin..entry.range.end).contains(&at.0) {
            return Ok(Some(entry.data));
        }
    }
    Ok(None)
}
