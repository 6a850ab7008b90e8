//! Which registers hold which parameters: the rules of the Procedure Call Standard for the Arm 64-bit Architecture
//! (6.8.2).
//!
//! In: the components of types, from DWARF or BTF. Out: how each type is passed, and the place of each parameter. Up to
//! four floats of one width take a vector register each. Any other structure of up to 16 bytes takes general registers;
//! a larger one is passed by its address. Once a kind of register has too few left, no later parameter takes one of
//! that kind. The address of a returned value takes no register for parameters. Invariant: PRO-1. Does not: know where
//! on the stack a parameter is.

use super::parts::{Parts, Whereabouts};
use super::passing::{Class, Components, Passage, Passed, Pieces, Shapes, returned};
use super::{DeclaredParameter, ParameterPlace, Prototype, ValueType};
use crate::entries::MAX_CHAIN;

/// Number of registers of each kind.
const REGISTERS: u8 = 8;
/// Floats of one structure that take registers at most.
const MOST_FLOATS: u64 = 4;

/// What the floats of a structure are.
enum Floats {
    /// So many, of so many bytes each.
    Alike(u64, u64),
    /// There is something else.
    No,
    Unknown,
}

/// How a value of that type is passed.
pub(super) fn passed<Id: Copy, E>(of: Id, shapes: Shapes<'_, Id, E>) -> Result<Passed, E> {
    let bytes = match shapes(of)? {
        Components::General(_) => return Ok(Passed::Registers(Pieces::one(Class::General))),
        // A `long double` fills a vector register.
        Components::Vector(_) | Components::X87 => return Ok(Passed::Registers(Pieces::one(Class::Vector))),
        Components::Wide => return Ok(Passed::Registers(Pieces::of([(Class::General, 8); 2].into_iter()))),
        // C++ and C differ in what nothing takes.
        Components::Unknown | Components::Members(0, _) => return Ok(Passed::Unknown),
        Components::Members(bytes, _) => bytes,
        Components::Array { bytes, count, .. } => bytes.saturating_mul(count),
    };
    Ok(match floats(of, 0, shapes)? {
        Floats::Unknown => Passed::Unknown,
        Floats::Alike(count @ 1..=MOST_FLOATS, each) if count * each == bytes => {
            Passed::Registers(Pieces::of((0..count).map(|_| (Class::Vector, each as u8))))
        }
        _ if bytes > 16 => Passed::Reference,
        _ => Passed::Registers(Pieces::of((0..bytes.div_ceil(8)).map(|_| (Class::General, 8)))),
    })
}

/// The floats of a type, if it consists of nothing else.
fn floats<Id: Copy, E>(of: Id, depth: u32, shapes: Shapes<'_, Id, E>) -> Result<Floats, E> {
    if depth > MAX_CHAIN {
        return Ok(Floats::Unknown);
    }
    let parts: Vec<(u64, Id)> = match shapes(of)? {
        Components::Vector(bytes) => return Ok(Floats::Alike(1, bytes)),
        Components::General(_) | Components::Wide => return Ok(Floats::No),
        // One of four `long double` has more bytes than records hold of a register.
        Components::X87 | Components::Unknown => return Ok(Floats::Unknown),
        Components::Array { count: 17.., .. } => return Ok(Floats::No),
        Components::Array { of, count, .. } => (0..count).map(|_| (0, of)).collect(),
        Components::Members(_, members) => members,
    };
    let (mut all, mut width) = (0_u64, 0);
    for (_, of) in parts {
        match floats(of, depth + 1, shapes)? {
            Floats::Alike(count, bytes) if width == 0 || width == bytes => {
                (all, width) = (all.saturating_add(count), bytes);
            }
            Floats::Alike(0, _) => {}
            Floats::Alike(..) | Floats::No => return Ok(Floats::No),
            Floats::Unknown => return Ok(Floats::Unknown),
        }
    }
    Ok(if all == 0 { Floats::No } else { Floats::Alike(all, width) })
}

/// The place of each parameter at the function's entry.
pub(super) fn places(value: Passage, parameters: Vec<(String, Passage)>) -> Prototype {
    let (mut general, mut vector) = (0, 0);
    let mut known = true;
    let place = |(name, Passage { of: meaning, passed, layout, aligned, .. }): (String, Passage)| {
        known &= passed != Passed::Unknown;
        let taken = match passed {
            Passed::Registers(pieces) => pieces,
            Passed::Reference => Pieces::one(Class::General),
            Passed::Memory | Passed::Unknown => Pieces::NONE,
        };
        let (more_general, more_vector) = (taken.count(Class::General), taken.count(Class::Vector));
        if aligned && more_general == 2 {
            general += general % 2;
        }
        let fits = known && general + more_general <= REGISTERS && vector + more_vector <= REGISTERS;
        let registers = if fits { taken.places(general, vector) } else { Vec::new() };
        (general, vector) = match fits {
            true => (general + more_general, vector + more_vector),
            // What lies on the stack leaves no register to later ones of its kind.
            false => (
                if more_general > 0 { REGISTERS } else { general },
                if more_vector > 0 { REGISTERS } else { vector },
            ),
        };
        let is_scalar = !matches!(meaning, ValueType::Other(_)) || passed == Passed::Reference;
        let place = match &registers[..] {
            [one] if is_scalar => one.place,
            _ => ParameterPlace::Elsewhere,
        };
        let at = match (&registers[..], passed) {
            ([], _) => Whereabouts::Unknown,
            ([one], Passed::Reference) => match one.place {
                ParameterPlace::General(nth) => Whereabouts::Behind(nth),
                _ => Whereabouts::Unknown,
            },
            _ => Whereabouts::Registers(registers),
        };
        let parts = layout.map(|layout| Parts { layout, at });
        let of = if passed == Passed::Reference { ValueType::Pointer } else { meaning };
        DeclaredParameter { name, of, place, parts }
    };
    let parameters = parameters.into_iter().map(place).collect();
    Prototype { parameters, value_parts: returned(&value), value: value.of }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::super::passing::{Class, Components, Passage, Passed, Pieces};
    use super::super::{ParameterPlace, ValueType};
    use super::{passed, places};

    fn of(all: &[Components<usize>]) -> Passed {
        let shapes = &mut |of: usize| Ok::<_, Infallible>(all[of].clone());
        let Ok(passed) = passed(0, shapes);
        passed
    }

    fn record(bytes: u64, members: &[Components<usize>]) -> Passed {
        let mut all = vec![Components::Members(bytes, (1..=members.len()).map(|nth| (0, nth)).collect())];
        all.extend(members.iter().cloned());
        of(&all)
    }

    fn pieces(all: &[(Class, u8)]) -> Passed {
        Passed::Registers(Pieces::of(all.iter().copied()))
    }

    #[test]
    fn floats_of_one_width_take_a_register_each_and_others_general_ones() {
        use Class::{General, Vector};
        let (long, float, double) = (Components::General(8), Components::Vector(4), Components::Vector(8));
        assert_eq!(record(8, &[float.clone(), float.clone()]), pieces(&[(Vector, 4); 2]));
        assert_eq!(
            record(32, &[double.clone(), double.clone(), double.clone(), double.clone()]),
            pieces(&[(Vector, 8); 4])
        );
        assert_eq!(record(40, &vec![double.clone(); 5]), Passed::Reference);
        assert_eq!(record(16, &[double.clone(), long.clone()]), pieces(&[(General, 8); 2]));
        assert_eq!(
            record(12, &[Components::General(4), float, Components::General(4)]),
            pieces(&[(General, 8); 2])
        );
        assert_eq!(record(24, &[long.clone(), long.clone(), long]), Passed::Reference);
        assert_eq!(record(16, &[Components::Wide]), pieces(&[(General, 8); 2]));
    }

    #[test]
    fn registers_are_given_out_in_order_and_not_again_after_the_stack() {
        let int = |name: &str| {
            let of = ValueType::Integer { bytes: 8, signed: true };
            let one = Passed::Registers(Pieces::one(Class::General));
            (name.to_owned(), Passage { of, passed: one, layout: None, aligned: false, bytes: 8 })
        };
        let two = |name: &str, aligned| {
            let passed = pieces(&[(Class::General, 8); 2]);
            (
                name.to_owned(),
                Passage { of: ValueType::Other(String::new()), passed, layout: None, aligned, bytes: 16 },
            )
        };
        let big = (
            String::new(),
            Passage {
                of: ValueType::Other(String::new()),
                passed: Passed::Reference,
                layout: None,
                aligned: false,
                bytes: 24,
            },
        );
        let value = Passage { passed: Passed::Reference, ..Passage::VOID };
        let all = vec![
            int("a"),
            two("wide", true),
            int("c"),
            big,
            two("e", false),
            int("f"),
            two("g", false),
            int("h"),
        ];
        let found: Vec<ParameterPlace> = places(value, all).parameters.iter().map(|one| one.place).collect();
        use ParameterPlace::{Elsewhere, General};
        // x0, x2:x3, x4, x5, x6:x7, then the stack.
        assert_eq!(
            found,
            [General(0), Elsewhere, General(4), General(5), Elsewhere, Elsewhere, Elsewhere, Elsewhere]
        );
    }
}
