//! Which registers hold which parameters: the System V ABI's rules (AMD64 supplement, 3.2.3).
//!
//! In: the components of types, from DWARF or BTF. Out: how each type is passed, and the place of each
//! parameter. Integers and floats are numbered separately. A structure of up to 16 bytes takes registers
//! according to the components of its halves, if enough of both kinds are free. Others are on the stack. For
//! a value that is returned in memory, the address takes the first integer register. Invariant: PRO-1.
//! Does not: read types.

use super::{DeclaredParameter, ParameterPlace, Prototype, ValueType};
use crate::types::MAX_CHAIN;

/// Number of registers for integers.
const GENERAL: u8 = 6;
/// Number of registers for floats.
const VECTOR: u8 = 8;

/// How a type is passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Passed {
    /// In so many general and vector registers, if all of them are free.
    Registers(u8, u8),
    /// By its address.
    Reference,
    /// On the stack.
    Memory,
    /// Unknown.
    Unknown,
}

/// The components of a type. Numbers without a comment are its size in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Components<Id> {
    /// A value that a general register can hold.
    General(u64),
    /// A float.
    Vector(u64),
    /// A structure or union: the offset of each member, and its type.
    Members(u64, Vec<(u64, Id)>),
    /// Consecutive elements.
    Array {
        /// The type of an element.
        of: Id,
        /// Size of an element in bytes.
        bytes: u64,
        /// Number of elements.
        count: u64,
    },
    /// A value that the floating-point unit's stack holds.
    X87,
    /// Unknown.
    Unknown,
}

/// Kind of the components in one half of a structure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    Nothing,
    Vector,
    General,
}

/// Why a structure is not passed in registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Not {
    InRegisters,
    Known,
}

/// Returns the components of a type.
type Shapes<'a, Id, E> = &'a mut dyn FnMut(Id) -> Result<Components<Id>, E>;

/// How a value of that type is passed.
pub(super) fn passed<Id: Copy, E>(of: Id, shapes: Shapes<'_, Id, E>) -> Result<Passed, E> {
    match shapes(of)? {
        Components::Members(17.., _) => return Ok(Passed::Memory),
        Components::Members(0, _) => return Ok(Passed::Registers(0, 0)),
        _ => {}
    }
    let mut halves = [Class::Nothing; 2];
    Ok(match classify(of, 0, &mut halves, 0, shapes)? {
        Err(Not::InRegisters) => Passed::Memory,
        Err(Not::Known) => Passed::Unknown,
        Ok(()) if halves == [Class::Nothing; 2] => Passed::Unknown,
        Ok(()) => {
            let count = |class| halves.iter().filter(|half| **half == class).count() as u8;
            Passed::Registers(count(Class::General), count(Class::Vector))
        }
    })
}

/// Determines the kinds of the halves that a value of this type covers; it is `offset` bytes into them.
fn classify<Id: Copy, E>(
    of: Id,
    offset: u64,
    halves: &mut [Class; 2],
    depth: u32,
    shapes: Shapes<'_, Id, E>,
) -> Result<Result<(), Not>, E> {
    if depth > MAX_CHAIN {
        return Ok(Err(Not::Known));
    }
    let (class, bytes) = match shapes(of)? {
        Components::General(bytes) => (Class::General, bytes),
        Components::Vector(bytes) => (Class::Vector, bytes),
        Components::X87 => return Ok(Err(Not::InRegisters)),
        Components::Unknown => return Ok(Err(Not::Known)),
        Components::Array { count: 17.., .. } => return Ok(Err(Not::InRegisters)),
        Components::Array { bytes: 0, .. } => return Ok(Err(Not::Known)),
        Components::Array { of, bytes, count } => {
            let elements = (0..count).map(|n| (n.saturating_mul(bytes), of));
            return all(elements, offset, halves, depth, shapes);
        }
        Components::Members(_, members) => return all(members.into_iter(), offset, halves, depth, shapes),
    };
    if !offset.is_multiple_of(bytes.max(1)) {
        return Ok(Err(Not::InRegisters));
    }
    let Some(half) = halves.get_mut((offset / 8) as usize) else { return Ok(Err(Not::InRegisters)) };
    if *half != Class::General {
        *half = class;
    }
    Ok(Ok(()))
}

fn all<Id: Copy, E>(
    parts: impl Iterator<Item = (u64, Id)>,
    offset: u64,
    halves: &mut [Class; 2],
    depth: u32,
    shapes: Shapes<'_, Id, E>,
) -> Result<Result<(), Not>, E> {
    for (at, of) in parts {
        let one = classify(of, offset.saturating_add(at), halves, depth + 1, shapes)?;
        if one.is_err() {
            return Ok(one);
        }
    }
    Ok(Ok(()))
}

/// The place of each parameter at the function's entry. `stack`: where the first word is that registers do not hold, as
/// distance from the stack pointer; none of them is looked for there without it. What takes more than a word there may
/// be aligned in any way, so what is behind it is elsewhere.
pub(super) fn places(
    value: (ValueType, Passed),
    parameters: Vec<(String, ValueType, Passed)>,
    mut stack: Option<i32>,
) -> Prototype {
    let (mut general, mut vector) = (0, 0);
    let mut known = value.1 != Passed::Unknown;
    if matches!(value.1, Passed::Memory | Passed::Reference) && !is_x87(&value.0) {
        general = 1;
    }
    let place = |(name, meaning, passed): (String, ValueType, Passed)| {
        known &= passed != Passed::Unknown;
        let (more_general, more_vector) = match passed {
            Passed::Registers(general, vector) => (general, vector),
            Passed::Reference => (1, 0),
            Passed::Memory | Passed::Unknown => (0, 0),
        };
        let fits = known && general + more_general <= GENERAL && vector + more_vector <= VECTOR;
        let place = match (passed, &meaning) {
            (Passed::Registers(..), ValueType::Other(_)) | (Passed::Memory | Passed::Unknown, _) => {
                ParameterPlace::Elsewhere
            }
            (Passed::Registers(1, 0) | Passed::Reference, _) if fits => ParameterPlace::General(general),
            (Passed::Registers(0, 1), _) if fits => ParameterPlace::Vector(vector),
            (Passed::Registers(1, 0) | Passed::Registers(0, 1) | Passed::Reference, _) if known => {
                stack.map_or(ParameterPlace::Elsewhere, ParameterPlace::Stack)
            }
            _ => ParameterPlace::Elsewhere,
        };
        stack = match place {
            ParameterPlace::Stack(at) => at.checked_add(8),
            _ if fits && passed != Passed::Memory => stack,
            _ => None,
        };
        if fits {
            general += more_general;
            vector += more_vector;
        }
        let of = if passed == Passed::Reference { ValueType::Pointer } else { meaning };
        DeclaredParameter { name, of, place }
    };
    Prototype { parameters: parameters.into_iter().map(place).collect(), value: value.0 }
}

/// Whether it is returned on the stack of the floating-point unit, not in memory.
fn is_x87(value: &ValueType) -> bool {
    matches!(value, ValueType::Other(name) if name == "long double")
}
