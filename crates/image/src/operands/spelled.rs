//! Places in an assembler's words, for whoever reads a list: `rdi`, `[rbp-24]`, `[rax+rcx*8]`.
//!
//! In: places of arguments, and the processor. Out: text. Does not: read that text again.

use super::{MarkIndex, MarkPlace, aarch64, x86_64};
use crate::locals::general_x86_64;
use crate::prototype::{GENERAL, GO_GENERAL, ParameterPlace, Whereabouts};
use crate::{Convention, Machine};

impl Machine {
    /// The name of a general register by its hardware number.
    fn register(self, number: u8) -> String {
        match self {
            Self::X86_64 => x86_64::name(number),
            Self::Aarch64 => aarch64::name(number),
        }
    }
    fn vector(self, number: u8) -> String {
        match self {
            Self::X86_64 => format!("xmm{number}"),
            Self::Aarch64 => format!("v{number}"),
        }
    }
    /// The name of the register that holds the argument of this number.
    fn argument(self, nth: u8, convention: Convention) -> String {
        let order: &[u16] = if convention == Convention::Go { &GO_GENERAL } else { &GENERAL };
        match self {
            Self::X86_64 => {
                let hardware = order.get(usize::from(nth)).and_then(|&dwarf| general_x86_64(dwarf));
                hardware.map_or_else(String::new, x86_64::name)
            }
            Self::Aarch64 => aarch64::name(nth),
        }
    }
}

impl MarkPlace {
    /// The place, or the constant; `None` if it is unknown.
    #[must_use]
    pub fn spelled(&self, machine: Machine) -> Option<String> {
        let behind = |first: String, offsets: &[i32]| {
            offsets.iter().fold(first, |inner, offset| format!("[{inner}{}]", distance(i64::from(*offset))))
        };
        Some(match self {
            Self::Register(number) => machine.register(*number),
            Self::Vector(number) => machine.vector(*number),
            Self::Constant(value) => value.to_string(),
            Self::Memory { base, index, offset } => {
                let index = index.as_ref().map_or_else(String::new, |index| scaled(*index, machine));
                format!("[{}{index}{}]", machine.register(*base), distance(i64::from(*offset)))
            }
            Self::Symbol { name, offset } => format!("[{name}{}]", distance(*offset)),
            Self::Address { name, offset } => format!("{name}{}", distance(*offset)),
            Self::Loads { base, offsets } => behind(machine.register(*base), offsets),
            Self::StaticLoads { at, offsets } => behind(format!("{:#x}", at.0), offsets),
            Self::Unknown(_) => return None,
        })
    }
}

impl ParameterPlace {
    /// The place at the function's entry; `None` if it is unknown.
    #[must_use]
    pub fn spelled(&self, machine: Machine, convention: Convention) -> Option<String> {
        Some(match self {
            Self::General(nth) => machine.argument(*nth, convention),
            Self::Vector(nth) => machine.vector(*nth),
            Self::Stack(offset) => stack(*offset, machine),
            Self::Elsewhere => return None,
        })
    }
}

impl Whereabouts {
    /// The places at the function's entry; `None` if they are unknown.
    #[must_use]
    pub fn spelled(&self, machine: Machine, convention: Convention) -> Option<String> {
        Some(match self {
            Self::Registers(pieces) => {
                let places: Option<Vec<String>> =
                    pieces.iter().map(|one| one.place.spelled(machine, convention)).collect();
                places?.join(":")
            }
            Self::Stack(offset) => stack(*offset, machine),
            Self::Behind(nth) => format!("[{}]", machine.argument(*nth, convention)),
            Self::Unknown => return None,
        })
    }
}

fn stack(offset: i32, machine: Machine) -> String {
    let pointer = match machine {
        Machine::X86_64 => "rsp",
        Machine::Aarch64 => "sp",
    };
    format!("[{pointer}{}]", distance(i64::from(offset)))
}

fn scaled(index: MarkIndex, machine: Machine) -> String {
    format!("+{}*{}", machine.register(index.register), 1u32 << index.scale.min(3))
}

fn distance(offset: i64) -> String {
    if offset == 0 { String::new() } else { format!("{offset:+}") }
}

#[cfg(test)]
mod tests {
    use super::{Convention, Machine, MarkIndex, MarkPlace, ParameterPlace, Whereabouts};
    use crate::operands::{Extend, mark_arguments};
    use crate::prototype::Piece;

    #[test]
    fn an_operand_is_spelled_as_it_was_meant() {
        let spelled = |text: &str, machine| -> Vec<String> {
            let all = mark_arguments(text, machine);
            all.iter().map(|one| one.place.spelled(machine).unwrap_or_else(|| "unknown".to_owned())).collect()
        };
        let x86 = "-4@%edi 8@%r10 8@-24(%rbp) 8@(%rax,%rcx,8) 8@$5 4@sym+8(%rip) 8f@%xmm3 8@%ah";
        let expected = ["rdi", "r10", "[rbp-24]", "[rax+rcx*8]", "5", "[sym+8]", "xmm3", "unknown"];
        assert_eq!(spelled(x86, Machine::X86_64), expected);
        assert_eq!(spelled("4@w0 8@[sp, 24] -4@5 8f@d0", Machine::Aarch64), ["x0", "[sp+24]", "5", "v0"]);
    }

    #[test]
    fn arguments_have_the_registers_of_the_calling_convention() {
        let by = |machine, convention| -> Vec<Option<String>> {
            (0..6).map(|nth| ParameterPlace::General(nth).spelled(machine, convention)).collect()
        };
        let names = |machine| by(machine, Convention::C);
        assert_eq!(
            names(Machine::X86_64),
            ["rdi", "rsi", "rdx", "rcx", "r8", "r9"].map(|name| Some(name.to_owned()))
        );
        assert_eq!(
            by(Machine::X86_64, Convention::Go),
            ["rax", "rbx", "rcx", "rdi", "rsi", "r8"].map(|name| Some(name.to_owned()))
        );
        assert_eq!(names(Machine::Aarch64)[5].as_deref(), Some("x5"));
        assert_eq!(
            ParameterPlace::Stack(8).spelled(Machine::X86_64, Convention::C).as_deref(),
            Some("[rsp+8]")
        );
        assert_eq!(ParameterPlace::Elsewhere.spelled(Machine::X86_64, Convention::C), None);
    }

    #[test]
    fn values_in_several_registers_name_them_all_or_are_unknown() {
        let piece = |place| Piece { place, offset: 0, bytes: 8 };
        let pair = |second| Whereabouts::Registers(vec![piece(ParameterPlace::General(0)), piece(second)]);
        assert_eq!(
            pair(ParameterPlace::Vector(0)).spelled(Machine::X86_64, Convention::C).as_deref(),
            Some("rdi:xmm0")
        );
        assert_eq!(pair(ParameterPlace::Elsewhere).spelled(Machine::X86_64, Convention::C), None);
        assert_eq!(Whereabouts::Behind(1).spelled(Machine::X86_64, Convention::C).as_deref(), Some("[rsi]"));
        let index = Some(MarkIndex { register: 1, scale: 0, extend: Extend::Whole });
        let place = MarkPlace::Memory { base: 0, index, offset: -8 };
        assert_eq!(place.spelled(Machine::X86_64).as_deref(), Some("[rax+rcx*1-8]"));
        let loads = MarkPlace::Loads { base: 7, offsets: vec![8, 0] };
        assert_eq!(loads.spelled(Machine::X86_64).as_deref(), Some("[[rdi+8]]"));
    }
}
