//! Which registers hold which parameters: the System V ABI's rules (AMD64 supplement, 3.2.3).
//!
//! In: the components of types, from DWARF or BTF. Out: how each type is passed, and the place of each
//! parameter. Integers and floats are numbered separately. A structure of up to 16 bytes takes registers
//! according to the components of its halves, if enough of both kinds are free. Others are on the stack. For
//! a value that is returned in memory, the address takes the first integer register. Invariant: PRO-1.
//! Does not: read types, know other processors (`passing_aarch64`).

use super::parts::{Layout, Parts, Piece, Whereabouts};
use super::{DeclaredParameter, ParameterPlace, Prototype, ValueType};
use crate::entries::MAX_CHAIN;

/// Number of registers for integers.
const GENERAL: u8 = 6;
/// Number of registers for floats.
const VECTOR: u8 = 8;
/// Registers that one value takes at most, on any processor.
const MOST_PIECES: usize = 4;

/// A value that is passed or returned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Passage {
    pub(super) of: ValueType,
    pub(super) passed: Passed,
    /// Of what it consists, if it is no single value.
    pub(super) layout: Option<Layout>,
    /// Whether it begins at a multiple of 16 bytes or more, as far as anything in it says so.
    pub(super) aligned: bool,
    /// Its size; 0 if that is not known.
    pub(super) bytes: u64,
}

impl Passage {
    /// Nothing.
    pub(super) const VOID: Self = Self {
        of: ValueType::Void,
        passed: Passed::Registers(Pieces::NONE),
        layout: None,
        aligned: false,
        bytes: 0,
    };
}

/// The registers that a value takes, in their order: which kind, and how many bytes of the value are in each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pieces([Option<(Class, u8)>; MOST_PIECES]);

impl Pieces {
    pub(super) const NONE: Self = Self([None; MOST_PIECES]);
    /// One register.
    pub(super) const fn one(class: Class) -> Self {
        Self([Some((class, 8)), None, None, None])
    }
    /// The first registers of a list.
    pub(super) fn of(all: impl Iterator<Item = (Class, u8)>) -> Self {
        let mut pieces = Self::NONE;
        pieces.0.iter_mut().zip(all).for_each(|(piece, one)| *piece = Some(one));
        pieces
    }
    /// How many there are of a kind.
    pub(super) fn count(&self, class: Class) -> u8 {
        self.0.iter().flatten().filter(|(other, _)| *other == class).count() as u8
    }
    /// Whether it is a single one.
    pub(super) fn is_one(&self) -> bool {
        self.0.iter().flatten().count() == 1
    }
    pub(super) fn is_none(&self) -> bool {
        *self == Self::NONE
    }
    /// Each with its register; `general` and `vector` are the first that are free.
    pub(super) fn places(&self, mut general: u8, mut vector: u8) -> Vec<Piece> {
        let mut offset = 0;
        let mut piece = |(class, bytes): (Class, u8)| {
            let (next, place): (&mut u8, fn(u8) -> ParameterPlace) = match class {
                Class::Vector => (&mut vector, ParameterPlace::Vector),
                Class::General | Class::Nothing => (&mut general, ParameterPlace::General),
            };
            let piece = Piece { place: place(*next), offset, bytes };
            *next += 1;
            offset += bytes;
            piece
        };
        self.0.iter().flatten().map(|one| piece(*one)).collect()
    }
}

/// How a type is passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Passed {
    /// In these registers, if all of them are free.
    Registers(Pieces),
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
    /// An integer of 16 bytes.
    Wide,
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
pub(super) enum Class {
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
pub(super) type Shapes<'a, Id, E> = &'a mut dyn FnMut(Id) -> Result<Components<Id>, E>;

/// How a value of that type is passed.
pub(super) fn passed<Id: Copy, E>(of: Id, shapes: Shapes<'_, Id, E>) -> Result<Passed, E> {
    match shapes(of)? {
        Components::Members(17.., _) => return Ok(Passed::Memory),
        Components::Members(0, _) => return Ok(Passed::Registers(Pieces::NONE)),
        _ => {}
    }
    let mut halves = [Class::Nothing; 2];
    Ok(match classify(of, 0, &mut halves, 0, shapes)? {
        Err(Not::InRegisters) => Passed::Memory,
        Err(Not::Known) => Passed::Unknown,
        Ok(()) if halves == [Class::Nothing; 2] => Passed::Unknown,
        // A half that holds nothing is padding.
        Ok(()) if halves[0] == Class::Nothing => Passed::Unknown,
        Ok(()) => {
            let taken = halves.into_iter().filter(|half| *half != Class::Nothing);
            Passed::Registers(Pieces::of(taken.map(|class| (class, 8))))
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
        Components::Wide if offset == 0 => {
            *halves = [Class::General; 2];
            return Ok(Ok(()));
        }
        Components::Wide => return Ok(Err(Not::InRegisters)),
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
/// distance from the stack pointer; none of them is looked for there without it. Behind what may be aligned there in
/// another way than to a word, or has no known size, all is elsewhere.
pub(super) fn places(
    value: Passage,
    parameters: Vec<(String, Passage)>,
    mut stack: Option<i32>,
) -> Prototype {
    let (mut general, mut vector) = (0, 0);
    let mut known = value.passed != Passed::Unknown;
    if matches!(value.passed, Passed::Memory | Passed::Reference) && !is_x87(&value.of) {
        general = 1;
    }
    let place = |(name, Passage { of: meaning, passed, layout, aligned, bytes }): (String, Passage)| {
        known &= passed != Passed::Unknown;
        let taken = match passed {
            Passed::Registers(pieces) => pieces,
            Passed::Reference => Pieces::one(Class::General),
            Passed::Memory | Passed::Unknown => Pieces::NONE,
        };
        let (more_general, more_vector) = (taken.count(Class::General), taken.count(Class::Vector));
        let fits = known && general + more_general <= GENERAL && vector + more_vector <= VECTOR;
        let place = match (passed, &meaning) {
            (Passed::Registers(..), ValueType::Other(_)) | (Passed::Memory | Passed::Unknown, _) => {
                ParameterPlace::Elsewhere
            }
            (Passed::Registers(_) | Passed::Reference, _) if fits && taken.is_one() => {
                taken.places(general, vector)[0].place
            }
            (Passed::Registers(_) | Passed::Reference, _) if known && taken.is_one() => {
                stack.map_or(ParameterPlace::Elsewhere, ParameterPlace::Stack)
            }
            _ => ParameterPlace::Elsewhere,
        };
        let in_memory = !fits || passed == Passed::Memory;
        let at = match (passed, stack) {
            (Passed::Registers(pieces), _) if fits => Whereabouts::Registers(pieces.places(general, vector)),
            (Passed::Reference, _) if fits => Whereabouts::Behind(general),
            (Passed::Registers(_) | Passed::Memory, Some(at)) if known && !aligned => Whereabouts::Stack(at),
            _ => Whereabouts::Unknown,
        };
        let words = i32::try_from(bytes.div_ceil(8)).ok().filter(|words| *words > 0);
        stack = match (in_memory, place) {
            (false, _) => stack,
            (true, ParameterPlace::Stack(at)) => at.checked_add(8),
            (true, _) if known && !aligned => {
                stack.zip(words).and_then(|(at, words)| at.checked_add(words.checked_mul(8)?))
            }
            (true, _) => None,
        };
        if fits {
            general += more_general;
            vector += more_vector;
        }
        let parts = layout.map(|layout| Parts { layout, at });
        let of = if passed == Passed::Reference { ValueType::Pointer } else { meaning };
        DeclaredParameter { name, of, place, parts }
    };
    let parameters = parameters.into_iter().map(place).collect();
    Prototype { parameters, value_parts: returned(&value), value: value.of }
}

/// A value that is no single one, in the registers in which it is returned; in no other place is it looked for.
pub(super) fn returned(value: &Passage) -> Option<Parts> {
    let Passed::Registers(pieces) = value.passed else { return None };
    let layout = value.layout.clone()?;
    Some(Parts { layout, at: Whereabouts::Registers(pieces.places(0, 0)) })
}

/// Whether it is returned on the stack of the floating-point unit, not in memory.
fn is_x87(value: &ValueType) -> bool {
    matches!(value, ValueType::Other(name) if name == "long double")
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::{Class, Components, Passed, Pieces, passed};

    fn of(all: &[Components<usize>]) -> Passed {
        let shapes = &mut |of: usize| Ok::<_, Infallible>(all[of].clone());
        let Ok(passed) = passed(0, shapes);
        passed
    }

    #[test]
    fn halves_take_registers_by_what_they_hold() {
        use Class::{General, Vector};
        let (int, long, float, double) =
            (Components::General(4), Components::General(8), Components::Vector(4), Components::Vector(8));
        let cases = [
            (8, vec![(0, int.clone()), (4, int.clone())], vec![General]),
            (8, vec![(0, float.clone()), (4, float.clone())], vec![Vector]),
            (8, vec![(0, float.clone()), (4, int.clone())], vec![General]),
            (16, vec![(0, double.clone()), (8, long.clone())], vec![Vector, General]),
            (16, vec![(0, long.clone()), (8, double.clone())], vec![General, Vector]),
            (12, vec![(0, float.clone()), (4, float.clone()), (8, float)], vec![Vector, Vector]),
            (16, vec![(0, Components::Wide)], vec![General, General]),
        ];
        for (bytes, members, registers) in cases {
            let mut all = vec![Components::Members(
                bytes,
                (1..).zip(&members).map(|(nth, (at, _))| (*at, nth)).collect(),
            )];
            all.extend(members.iter().map(|(_, of)| of.clone()));
            let expected = Pieces::of(registers.into_iter().map(|class| (class, 8)));
            assert_eq!(of(&all), Passed::Registers(expected), "{members:?}");
        }
        let (late, wide) = (Components::Members(24, vec![]), Components::Members(17, vec![]));
        assert_eq!([of(&[late]), of(&[wide])], [Passed::Memory; 2]);
        let packed = [Components::Members(12, vec![(0, 1), (4, 2)]), int, long];
        assert_eq!(of(&packed), Passed::Memory, "a member that is not at a multiple of its size");
        assert_eq!(
            of(&[Components::<usize>::Wide]),
            Passed::Registers(Pieces::of([(General, 8); 2].into_iter()))
        );
        assert_eq!(of(&[Components::<usize>::X87]), Passed::Memory);
    }
}
