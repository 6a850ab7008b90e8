//! Variables at a place inside a function: from a name, or a path that begins with one, to where its value is.
//!
//! In: DWARF, the address of an instruction, a path such as `at->next->id`. Out: a [`Local`], or why there is none, and
//! which part of the path is wrong. Invariant: VAL-1: a variable's place is what its location says for this very
//! instruction; where it says nothing, or computes, the value is unknown.
//!
//! ```text
//!   function  ranges contain the instruction
//!     block   its variables, and the parameters of the function
//!       block        a name is looked for in the innermost block first
//!   inlined function in between: only what is in it counts, since the source's line is in it
//! ```
//!
//! | location | place |
//! |---|---|
//! | a register | the register |
//! | memory at a distance from a register, or from the frame base | a load from there |
//! | memory at an address | the same, in the file's data |
//! | a constant | the constant |
//! | parts, entry values, anything that computes | unknown |
//!
//! Does not: load; know variables of other threads.

use gimli::{AttributeValue, Operation};
use trapline_record::Svma;

use crate::debuginfo::DebugInfo;
use crate::entries::Entry;
use crate::field::{Misplaced, NoField, Walk, steps};
use crate::nearest::nearest_of;
use crate::operands::{MarkArgument, MarkClass, MarkPlace};
use crate::prototype::ValueType;
use crate::sections::{Slice, UnitOf};

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

/// Where the canonical frame address is at an instruction: so many bytes from a register with this hardware number.
pub type Cfa = (u8, i32);

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
    pub fn local(&self, at: Svma, path: &str, cfa: Option<Cfa>) -> Result<Local, Misplaced> {
        let whole = |why| Misplaced { at: 0..path.len(), why };
        let (name, steps) = steps(path)?;
        let (function, variables) =
            self.scopes(at).ok().flatten().ok_or_else(|| whole(NoField::NothingNoted))?;
        let variable = self
            .variable_named(name, &function, &variables)
            .map_err(|why| Misplaced { at: 0..name.len(), why })?;
        let of = self.inherited(&variable, |entry| self.type_of(entry)).ok().flatten();
        let mut walk = Walk::new(of.ok_or_else(|| whole(NoField::NothingNoted))?);
        let nothing = || Misplaced { at: 0..name.len(), why: NoField::NoPlace(name.to_owned()) };
        let begins = self.begins(&variable, &function, (at, cfa)).unwrap_or(None).ok_or_else(nothing)?;
        match begins {
            Begins::Memory { offset, .. } => walk.begin(offset),
            Begins::Static(_) => walk.begin(0),
            Begins::Register(_) | Begins::Vector(_) | Begins::Constant(_) => {}
        }
        let (offsets, of, bytes) = self.walked(walk, path, (name, &steps))?;
        // A text is shown by its pointer; the characters of an array have none.
        let (offsets, bytes) = match (of == ValueType::Text, offsets.split_last()) {
            (true, Some((0, pointer))) => (pointer.to_vec(), 8),
            (true, _) => return Err(whole(NoField::Characters(path.to_owned()))),
            (false, _) => (offsets, bytes),
        };
        let class = class(&of);
        let place = place(&begins, offsets, class == MarkClass::Float).ok_or_else(nothing)?;
        if !matches!(bytes, 1 | 2 | 4 | 8) {
            return Err(nothing());
        }
        Ok(Local { of, argument: MarkArgument { bytes, class, place } })
    }
    /// A variable by its name. The innermost blocks come last; variables of the file are behind all blocks.
    fn variable_named<'u>(
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
        (at, cfa): (Svma, Option<Cfa>),
    ) -> gimli::Result<Option<Begins>> {
        if let Some(value) = variable.value(gimli::DW_AT_const_value)? {
            let value = value.sdata_value().or_else(|| value.udata_value().map(u64::cast_signed));
            return Ok(value.map(Begins::Constant));
        }
        let Some(expression) = expression(variable, gimli::DW_AT_location, at)? else {
            return self.defined_elsewhere(variable);
        };
        let mut operations = expression.operations(variable.unit().encoding());
        let (first, second, third) = (operations.next()?, operations.next()?, operations.next()?);
        let memory = |(base, from): Cfa, offset: i64| {
            let offset = i32::try_from(i64::from(from).checked_add(offset)?).ok()?;
            Some(Begins::Memory { base, offset })
        };
        Ok(match (first, second, third) {
            (Some(Operation::Register { register }), None, _) => self
                .general(register.0)
                .map(Begins::Register)
                .or_else(|| self.vector(register.0).map(Begins::Vector)),
            (Some(Operation::RegisterOffset { register, offset, .. }), None, _) => {
                self.general(register.0).and_then(|base| memory((base, 0), offset))
            }
            (Some(Operation::FrameOffset { offset }), None, _) => {
                self.frame(function, (at, cfa))?.and_then(|frame| memory(frame, offset))
            }
            (Some(Operation::Address { address }), None, _) => Some(Begins::Static(Svma(address))),
            (Some(Operation::AddressIndex { index }), None, _) => {
                Some(Begins::Static(Svma(variable.unit().address(index)?)))
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
    /// The address of a variable that its unit declares alone; `None` if no unit defines it, or several do.
    fn defined_elsewhere(&self, variable: &Entry<'_>) -> gimli::Result<Option<Begins>> {
        let (Some(name), true) = (variable.name()?, variable.has(gimli::DW_AT_declaration)?) else {
            return Ok(None);
        };
        let found = self.variables(&name).unwrap_or_default();
        Ok(if let [one] = &found[..] { Some(Begins::Static(one.at)) } else { None })
    }
    /// The frame base of a function at an instruction.
    fn frame(&self, function: &Entry<'_>, (at, cfa): (Svma, Option<Cfa>)) -> gimli::Result<Option<Cfa>> {
        let Some(base) = expression(function, gimli::DW_AT_frame_base, at)? else { return Ok(None) };
        let mut operations = base.operations(function.unit().encoding());
        Ok(match (operations.next()?, operations.next()?) {
            (Some(Operation::CallFrameCFA), None) => cfa,
            (Some(Operation::Register { register }), None) => self.general(register.0).map(|base| (base, 0)),
            (Some(Operation::RegisterOffset { register, offset, .. }), None) => {
                self.general(register.0).zip(i32::try_from(offset).ok())
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
