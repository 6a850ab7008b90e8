//! Where the compiler says that parameters are when a function is entered.
//!
//! In: the entry of a function in DWARF. Out: for each parameter, its location at the first instruction
//! ([`AtEntry`]); and whether the compiler may have changed what a caller passes and gets. The ABI is valid
//! for functions that unknown code calls. If clang knows all callers of a function, it removes parameters and
//! return values, and later parameters move up. So do copies of functions that gcc makes for some callers: of these,
//! only locations count. Where the ABI's rules end (PRO-1), locations say more. Invariant: PRO-3 if a parameter's
//! location contradicts the ABI, or it has no location at the entry, its place is that of its location, or none. PRO-4
//! a compiled parameter is matched to the source's by the entry to which it refers, not by its position.
//! Does not: know other processors' registers: there only the ABI decides.

use std::collections::HashMap;

use gimli::{AttributeValue, Operation};

use super::parts::{Parts, Piece, Whereabouts};
use super::passing::Passed;
use super::{Declared, ParameterPlace, Prototype, ValueType};
use crate::debuginfo::DebugInfo;
use crate::entries::Entry;
use crate::sections::EntryId;
use crate::sections::{Slice, UnitOf};

/// The argument registers by DWARF's numbers: rdi, rsi, rdx, rcx, r8, r9.
pub(crate) const GENERAL: [u16; 6] = [5, 4, 1, 2, 8, 9];
/// Go's: rax, rbx, rcx, rdi, rsi, r8, r9, r10, r11.
pub(crate) const GO_GENERAL: [u16; 9] = [0, 3, 2, 5, 4, 8, 9, 10, 11];
/// xmm0 to xmm14.
pub(super) const GO_VECTORS: u16 = 15;
/// xmm0, and how many vector registers hold arguments.
const VECTOR: u16 = 17;
const VECTORS: u16 = 8;
/// The first clang version that marks each function of which it changed the callers (`DW_CC_nocall`).
const MARKS: u32 = 17;

/// A parameter's location at the function's first instruction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum AtEntry {
    /// In this register, or in this word of the stack.
    In(ParameterPlace),
    /// Where this register points to.
    Behind(ParameterPlace),
    /// In these registers, so many bytes in each, the first bytes first. A part of which nothing is said is elsewhere.
    Pieces(Vec<(ParameterPlace, u8)>),
    /// In memory, or in parts: the ABI determines where.
    Apart,
    /// None: the compiler removed the parameter, or does not know where it is.
    Nowhere,
}

/// The rules by which a compiler passes parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rules {
    /// The ABI's, for C and C++.
    Abi,
    /// None that hold from one compiler to the next (Rust): only locations count.
    Locations,
    /// Go's, with registers of its own ([`super::go`]).
    Go,
}

impl Rules {
    /// The place that a register of this DWARF number is.
    fn named(self, register: u16) -> Option<ParameterPlace> {
        let general: &[u16] = if self == Self::Go { &GO_GENERAL } else { &GENERAL };
        let vectors = if self == Self::Go { GO_VECTORS } else { VECTORS };
        let nth = general.iter().position(|one| *one == register);
        let vector = register.checked_sub(VECTOR).filter(|nth| *nth < vectors);
        nth.map(|nth| ParameterPlace::General(nth as u8))
            .or_else(|| vector.map(|nth| ParameterPlace::Vector(nth as u8)))
    }
}

/// What is recorded about a function as it was compiled.
#[derive(Clone, Debug, Default)]
pub(super) struct Compiled {
    /// One for each of the source's parameters, in their order.
    pub(super) parameters: Vec<AtEntry>,
    /// The compiler says that the function is not called as the ABI specifies.
    pub(super) is_changed: bool,
    /// The return value may have been removed without a mark.
    pub(super) may_lose_value: bool,
    /// No rules say where parameters are, only their locations.
    pub(super) only_locations: bool,
}

impl DebugInfo {
    /// What a function's own entry records, rather than that of its source.
    pub(super) fn compiled(
        &self,
        function: &Entry<'_>,
        declared: &[Declared<'_>],
        (at, is_copy, rules): (u64, bool, Rules),
    ) -> gimli::Result<Compiled> {
        let convention = function.value(gimli::DW_AT_calling_convention)?;
        let nocall = AttributeValue::CallingConvention(gimli::DW_CC_nocall);
        let is_external = self.has_flag(function, gimli::DW_AT_external)?;
        let is_optimized =
            function.has(gimli::DW_AT_call_all_calls)? || function.has(gimli::DW_AT_GNU_all_call_sites)?;
        let old_clang = clang(function)?.is_some_and(|version| version < MARKS);
        let frame = frame_base(function)?;
        let mut noted = HashMap::new();
        for child in function.children()? {
            if child.tag() == gimli::DW_TAG_formal_parameter {
                noted.insert(self.source(&child)?.at().id(), at_entry(&child, (at, frame, rules))?);
            }
        }
        let (parameters, has_others) = paired(declared.iter().map(|one| one.at), noted);
        Ok(Compiled {
            only_locations: rules == Rules::Locations,
            parameters,
            is_changed: is_copy || has_others || convention == Some(nocall),
            may_lose_value: old_clang && is_optimized && !is_external,
        })
    }
}

/// Distance from the stack pointer of the entry to the frame base that offsets of variables are relative to. The call has
/// pushed a return address below the frame's own address (CFA), and `push rbp` lowers it once more.
fn frame_base(function: &Entry<'_>) -> gimli::Result<Option<i64>> {
    const RBP: u16 = 6;
    let Some(AttributeValue::Exprloc(base)) = function.value(gimli::DW_AT_frame_base)? else {
        return Ok(None);
    };
    let mut operations = base.operations(function.unit().encoding());
    Ok(match (operations.next()?, operations.next()?) {
        (Some(Operation::CallFrameCFA), None) => Some(8),
        (Some(Operation::Register { register }), None) if register.0 == RBP => Some(-8),
        _ => None,
    })
}

fn at_entry(parameter: &Entry<'_>, (at, frame, rules): (u64, Option<i64>, Rules)) -> gimli::Result<AtEntry> {
    let unit = parameter.unit();
    let Some(location) = parameter.value(gimli::DW_AT_location)? else {
        return Ok(AtEntry::Nowhere);
    };
    if let AttributeValue::Exprloc(expression) = location {
        return place(unit, expression, (frame, false), rules);
    }
    let Some(mut list) = unit.attr_locations(location)? else { return Ok(AtEntry::Nowhere) };
    while let Some(entry) = list.next()? {
        if (entry.range.begin..entry.range.end).contains(&at) {
            return place(unit, entry.data, (frame, true), rules);
        }
    }
    Ok(AtEntry::Nowhere)
}

/// The major version of the clang that compiled a function.
fn clang(function: &Entry<'_>) -> gimli::Result<Option<u32>> {
    Ok(function
        .root()?
        .and_then(|root| root.text(gimli::DW_AT_producer).ok()?)
        .as_deref()
        .and_then(clang_version))
}

/// The location of each of the source's parameters (PRO-4), and whether there are locations of parameters
/// that the source does not have.
fn paired(
    declared: impl Iterator<Item = EntryId>,
    mut noted: HashMap<EntryId, AtEntry>,
) -> (Vec<AtEntry>, bool) {
    let parameters = declared.map(|one| noted.remove(&one).unwrap_or(AtEntry::Nowhere)).collect();
    (parameters, !noted.is_empty())
}

/// `Debian clang version 14.0.6`.
fn clang_version(producer: &str) -> Option<u32> {
    let version = producer.split_once("clang version ")?.1;
    let end = version.find(|c: char| !c.is_ascii_digit()).unwrap_or(version.len());
    // A version that cannot be read may be an old one, so it is 0.
    Some(version[..end].parse().unwrap_or(0))
}

/// A location; `frame` is the distance from the stack pointer of the entry to the frame base. If it is `exact`, it was
/// stated for the entry, and not for the whole function, of which compilers do not count the first instructions.
fn place(
    unit: UnitOf<'_>,
    expression: gimli::Expression<Slice>,
    (frame, exact): (Option<i64>, bool),
    rules: Rules,
) -> gimli::Result<AtEntry> {
    const RSP: u16 = 7;
    if let Some(pieces) = pieces(unit, &expression, rules)? {
        return Ok(AtEntry::Pieces(pieces));
    }
    let mut operations = expression.operations(unit.encoding());
    let (first, second) = (operations.next()?, operations.next()?);
    Ok(match (first, second) {
        (None, _) => AtEntry::Nowhere,
        (Some(Operation::Register { register }), None) => {
            rules.named(register.0).map_or(AtEntry::Apart, AtEntry::In)
        }
        // A value that is passed by its address is where the register points.
        (Some(Operation::RegisterOffset { register, offset: 0, .. }), None) => {
            rules.named(register.0).map_or(AtEntry::Apart, AtEntry::Behind)
        }
        (Some(Operation::FrameOffset { offset }), None) => {
            on_stack(frame.and_then(|base| base.checked_add(offset)))
        }
        (Some(Operation::RegisterOffset { register, offset, .. }), None) if register.0 == RSP => {
            on_stack(Some(offset).filter(|_| exact))
        }
        // The frame's own address (CFA) lies behind the return address.
        (Some(Operation::CallFrameCFA), None) if rules == Rules::Go => on_stack(Some(8)),
        (Some(Operation::RegisterOffset { .. }), None)
        | (Some(Operation::Register { .. } | Operation::Piece { .. }), Some(Operation::Piece { .. }))
        | (Some(Operation::CallFrameCFA), _) => AtEntry::Apart,
        // A constant, or computed from other parameters' earlier values.
        _ => AtEntry::Nowhere,
    })
}

/// Argument registers that hold a value together; in C two. Go leaves the parts out that nothing uses.
fn pieces(
    unit: UnitOf<'_>,
    expression: &gimli::Expression<Slice>,
    rules: Rules,
) -> gimli::Result<Option<Vec<(ParameterPlace, u8)>>> {
    let mut operations = expression.clone().operations(unit.encoding());
    let mut all = Vec::new();
    let mut register = None;
    while let Some(operation) = operations.next()? {
        match operation {
            Operation::Register { register: one } if register.is_none() => register = Some(one),
            Operation::Piece { size_in_bits, bit_offset: None | Some(0) } => {
                let place = match register.take() {
                    Some(register) => rules.named(register.0),
                    None if rules == Rules::Go => Some(ParameterPlace::Elsewhere),
                    None => None,
                };
                let (Some(place), Ok(bytes)) = (place, u8::try_from(size_in_bits / 8)) else {
                    return Ok(None);
                };
                all.push((place, bytes));
            }
            _ => return Ok(None),
        }
    }
    let is_whole = register.is_none() && if rules == Rules::Go { !all.is_empty() } else { all.len() == 2 };
    Ok(is_whole.then_some(all))
}

/// The word of the stack at a distance from the stack pointer of the entry. The caller's words are above the return
/// address; below it are the function's own, which hold nothing yet.
fn on_stack(offset: Option<i64>) -> AtEntry {
    let offset = offset.and_then(|offset| i32::try_from(offset).ok()).filter(|offset| *offset >= 8);
    offset.map_or(AtEntry::Apart, |offset| AtEntry::In(ParameterPlace::Stack(offset)))
}

/// A prototype according to the ABI, corrected by what the compiler recorded (PRO-3).
pub(super) fn corrected(mut prototype: Prototype, passed: &[Passed], compiled: &Compiled) -> Prototype {
    let noted = &compiled.parameters;
    let takes_any =
        |nth: usize| !matches!(passed.get(nth), Some(Passed::Registers(pieces)) if pieces.is_none());
    let agrees = |nth: usize, place: ParameterPlace| match noted.get(nth) {
        Some(AtEntry::In(there) | AtEntry::Behind(there)) => {
            place == *there || place == ParameterPlace::Elsewhere
        }
        Some(AtEntry::Apart | AtEntry::Pieces(_)) => true,
        Some(AtEntry::Nowhere) | None => !takes_any(nth),
    };
    let places: Vec<ParameterPlace> = prototype.parameters.iter().map(|one| one.place).collect();
    let is_moved = |(nth, place): (usize, &ParameterPlace)| matches!(noted.get(nth), Some(AtEntry::In(there) | AtEntry::Behind(there)) if *place != ParameterPlace::Elsewhere && place != there);
    let is_moved = places.iter().enumerate().any(is_moved);
    let changed = compiled.is_changed || compiled.only_locations || is_moved;
    for (nth, parameter) in prototype.parameters.iter_mut().enumerate() {
        let is_record = matches!(parameter.of, ValueType::Other(_));
        let is_one = match passed.get(nth) {
            Some(Passed::Registers(pieces)) => pieces.is_one(),
            other => other == Some(&Passed::Reference),
        };
        parameter.place = match (noted.get(nth), changed) {
            (Some(AtEntry::In(there) | AtEntry::Behind(there)), true) if !is_record => *there,
            // No register was left for it, or the ABI does not say so of all before it.
            (Some(AtEntry::In(there)), false)
                if is_one && !is_record && parameter.place == ParameterPlace::Elsewhere =>
            {
                *there
            }
            (_, true) => ParameterPlace::Elsewhere,
            (_, false) if agrees(nth, parameter.place) => parameter.place,
            (_, false) => ParameterPlace::Elsewhere,
        };
        if let Some(parts) = &mut parameter.parts {
            parts.at = whereabouts(parts, noted.get(nth), changed);
        }
    }
    // Every language returns a number as C does, unless the compiler changed the function.
    let as_in_c = !matches!(prototype.value, ValueType::Other(_)) || prototype.value_parts.is_some();
    let keeps_value = if compiled.only_locations { as_in_c } else { !is_moved };
    if compiled.is_changed || compiled.may_lose_value || !keeps_value {
        prototype.value_parts = None;
        prototype.value = match prototype.value {
            ValueType::Void => ValueType::Void,
            _ => ValueType::Unknown,
        };
    }
    prototype
}

/// Where a value of several parts is: where the compiler says, else where the ABI says. What lies on the stack is found
/// by its location alone, since it may be aligned in any way.
fn whereabouts(parts: &Parts, noted: Option<&AtEntry>, changed: bool) -> Whereabouts {
    let by_abi = || parts.at.clone();
    let bytes = parts.layout.bytes();
    match noted {
        Some(AtEntry::In(ParameterPlace::Stack(offset))) => Whereabouts::Stack(*offset),
        Some(AtEntry::Behind(ParameterPlace::General(nth))) => Whereabouts::Behind(*nth),
        Some(AtEntry::In(place)) if bytes <= 8 => {
            Whereabouts::Registers(vec![Piece { place: *place, offset: 0, bytes: bytes as u8 }])
        }
        Some(AtEntry::Pieces(noted)) => match noted[..] {
            [first, second] if u64::from(first.1) + u64::from(second.1) >= bytes => {
                let piece = |(place, bytes): (ParameterPlace, u8), offset| Piece { place, offset, bytes };
                Whereabouts::Registers(vec![piece(first, 0), piece(second, first.1)])
            }
            _ => Whereabouts::Unknown,
        },
        Some(AtEntry::Apart) if !changed => by_abi(),
        _ => Whereabouts::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use crate::sections::EntryId;

    use super::{AtEntry, clang_version, paired};
    use crate::prototype::ParameterPlace;

    #[test]
    fn a_removed_parameter_shifts_no_other() {
        let id = EntryId::made_up;
        let at = |nth| AtEntry::In(ParameterPlace::General(nth));
        // Of three parameters the compiler kept the last two, and recorded them in another order.
        let kept = HashMap::from([(id(30), at(1)), (id(20), at(0))]);
        let source = [10, 20, 30].map(id);
        assert_eq!(paired(source.into_iter(), kept), (vec![AtEntry::Nowhere, at(0), at(1)], false));
        let other = HashMap::from([(id(10), at(0)), (id(99), at(1))]);
        assert_eq!(paired([id(10)].into_iter(), other), (vec![at(0)], true));
    }

    #[test]
    fn versions_are_read() {
        for (producer, version) in [
            ("Debian clang version 14.0.6", Some(14)),
            ("clang version 19.1.0 (https://x)", Some(19)),
            ("clang version git", Some(0)),
            ("GNU C17 12.2.0 -O2", None),
        ] {
            assert_eq!(clang_version(producer), version, "{producer}");
        }
    }
}
