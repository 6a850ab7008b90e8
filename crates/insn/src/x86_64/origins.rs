//! Where the general registers' values at the end of a stretch of code come from.
//!
//! In: the bytes of a stretch that runs from its first instruction to its last. Out: an [`Origin`] for each
//! register. Invariant: ORG-1 an origin that is not [`Origin::Unknown`] has the low 32 bits of the
//! register's value.
//! Does not: follow calls and jumps. The caller knows that nothing jumps into the stretch.

use super::decode::{Flow, sweep};
use super::gpr::Gpr;
use super::lead::Lead;
use crate::origin::Origin;
use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register};

/// Bytes below the stack pointer that a function may use (psABI). What lies lower holds nothing.
const RED_ZONE: i32 = 128;

/// The origins of all general registers.
#[derive(Clone, Debug)]
pub struct Origins {
    of: [Origin; 16],
    /// Bytes by which the stack pointer is lower than at the beginning.
    lowered: i32,
    /// Memory was written, maybe where a later load reads.
    wrote: bool,
}

impl Origins {
    /// Follows a stretch. `None` if it has a call or a jump that is always taken, or if the stack pointer is
    /// not known. A conditional jump in it is not taken.
    #[must_use]
    pub fn over(bytes: &[u8], addr: u64) -> Option<Self> {
        let of = core::array::from_fn(|number| Origin::Register(number as u8));
        let mut origins = Self { of, lowered: 0, wrote: false };
        let mut factory = InstructionInfoFactory::new();
        let mut sweep = sweep(bytes, addr);
        while let Some(insn) = sweep.next() {
            if !matches!(insn.flow(), Flow::Next | Flow::Branch(_)) {
                return None;
            }
            origins.step(&mut factory, sweep.raw())?;
        }
        Some(origins)
    }
    /// The origin of a register's value. That of the stack pointer is not known.
    #[must_use]
    pub const fn of(&self, register: Gpr) -> Origin {
        if matches!(register, Gpr::Rsp) { Origin::Unknown } else { self.of[register as usize] }
    }
    fn step(&mut self, factory: &mut InstructionInfoFactory, raw: &Instruction) -> Option<()> {
        let lead = Lead::of(factory, raw)?;
        let copied = self.copied(raw);
        for gpr in Gpr::ALL.into_iter().filter(|gpr| lead.gprs & gpr.bit() != 0) {
            self.of[gpr as usize] = Origin::Unknown;
        }
        if let Some((to, origin)) = copied {
            self.of[to as usize] = origin;
        }
        self.lowered = self.lowered.checked_add(i32::try_from(lead.lowered).ok()?)?;
        self.wrote |= lead.pushed || writes_memory(raw);
        Some(())
    }
    /// A register that gets a copy of what has a known origin.
    fn copied(&self, raw: &Instruction) -> Option<(Gpr, Origin)> {
        if raw.op_count() < 2 || raw.op0_kind() != OpKind::Register || raw.op0_register().size() < 4 {
            return None;
        }
        let origin = match (raw.mnemonic(), raw.op1_kind()) {
            (Mnemonic::Mov | Mnemonic::Movsxd, OpKind::Register) => {
                let wide = raw.op1_register().size() >= 4;
                Gpr::of(raw.op1_register()).filter(|_| wide).map_or(Origin::Unknown, |from| self.of(from))
            }
            (Mnemonic::Mov, OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64) => {
                constant(raw.immediate(1))
            }
            (Mnemonic::Xor | Mnemonic::Sub, OpKind::Register) if raw.op0_register() == raw.op1_register() => {
                Origin::Constant(0)
            }
            (Mnemonic::Mov | Mnemonic::Movsxd, OpKind::Memory) => self.loaded(raw),
            _ => return None,
        };
        Some((Gpr::of(raw.op0_register())?, origin))
    }
    /// The origin of what is loaded from the stack, or from a frame.
    fn loaded(&self, raw: &Instruction) -> Origin {
        let plain = raw.memory_index() == Register::None && raw.segment_prefix() == Register::None;
        let Ok(offset) = i32::try_from(raw.memory_displacement64().cast_signed()) else {
            return Origin::Unknown;
        };
        let is_frame = self.of[Gpr::Rbp as usize] == Origin::Register(Gpr::Rbp as u8);
        match raw.memory_base() {
            _ if self.wrote || !plain => Origin::Unknown,
            Register::RSP => match offset.checked_sub(self.lowered) {
                Some(offset) if offset >= -RED_ZONE => Origin::Memory { base: Gpr::Rsp as u8, offset },
                _ => Origin::Unknown,
            },
            Register::RBP if is_frame => Origin::Memory { base: Gpr::Rbp as u8, offset },
            _ => Origin::Unknown,
        }
    }
}

/// A constant that its low 32 bits stand for, sign-extended or not.
fn constant(value: u64) -> Origin {
    let short = u32::try_from(value).is_ok() || i32::try_from(value.cast_signed()).is_ok();
    if short { Origin::Constant(value as u32) } else { Origin::Unknown }
}

/// Whether an instruction may write memory through an operand.
fn writes_memory(raw: &Instruction) -> bool {
    let reads_only = matches!(raw.mnemonic(), Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Nop);
    let to_memory = |kind| {
        matches!(kind, OpKind::Memory | OpKind::MemoryESDI | OpKind::MemoryESEDI | OpKind::MemoryESRDI)
    };
    !reads_only && raw.op_count() > 0 && to_memory(raw.op0_kind())
}

#[cfg(test)]
mod tests {
    use super::Origins;
    use crate::origin::Origin::{self, Constant, Memory, Register, Unknown};
    use crate::x86_64::Gpr;

    /// Origins of rax, rdi and rsi.
    fn origins(code: &[u8]) -> Option<[Origin; 3]> {
        let origins = Origins::over(code, 0x1000)?;
        Some([Gpr::Rax, Gpr::Rdi, Gpr::Rsi].map(|register| origins.of(register)))
    }

    #[test]
    fn copies_constants_and_words_of_the_stack_are_followed() {
        let unchanged = [Register(0), Register(7), Register(6)];
        assert_eq!(origins(&[]), Some(unchanged));
        let cases: [(&[u8], [Origin; 3]); 8] = [
            // movsxd rsi, edi; mov eax, 157; mov edi, 26
            (
                &[0x48, 0x63, 0xF7, 0xB8, 157, 0, 0, 0, 0xBF, 26, 0, 0, 0],
                [Constant(157), Constant(26), Register(7)],
            ),
            // Go: mov rsi, rcx; mov rdi, rbx
            (&[0x48, 0x89, 0xCE, 0x48, 0x89, 0xDF], [Register(0), Register(3), Register(1)]),
            // mov rax, [rsp+8]; mov rdi, [rsp+16]; xor esi, esi
            (
                &[0x48, 0x8B, 0x44, 0x24, 8, 0x48, 0x8B, 0x7C, 0x24, 16, 0x31, 0xF6],
                [Memory { base: 4, offset: 8 }, Memory { base: 4, offset: 16 }, Constant(0)],
            ),
            // sub rsp, 24; mov eax, [rsp+32]: 8 bytes above where rsp was
            (
                &[0x48, 0x83, 0xEC, 24, 0x8B, 0x44, 0x24, 32],
                [Memory { base: 4, offset: 8 }, Register(7), Register(6)],
            ),
            // mov rdi, [rbp-8]; a load after a store is not known: mov [rbp-8], rax; mov rsi, [rbp-8]
            (
                &[0x48, 0x8B, 0x7D, 0xF8, 0x48, 0x89, 0x45, 0xF8, 0x48, 0x8B, 0x75, 0xF8],
                [Register(0), Memory { base: 5, offset: -8 }, Unknown],
            ),
            // add edi, 1; lea rsi, [rsp+8]; mov al, 1
            (&[0x83, 0xC7, 1, 0x48, 0x8D, 0x74, 0x24, 8, 0xB0, 1], [Unknown; 3]),
            // mov rax, -1; mov rsi, 0x100000000
            (
                &[0x48, 0xC7, 0xC0, 0xFF, 0xFF, 0xFF, 0xFF, 0x48, 0xBE, 0, 0, 0, 0, 1, 0, 0, 0],
                [Constant(u32::MAX), Register(7), Unknown],
            ),
            // mov rsi, [rdi]: nothing that may fault
            (&[0x48, 0x8B, 0x37], [Register(0), Register(7), Unknown]),
        ];
        for (code, expected) in cases {
            assert_eq!(origins(code), Some(expected), "{code:x?}");
        }
    }

    #[test]
    fn calls_jumps_and_an_unknown_stack_pointer_end_a_stretch() {
        let all: [&[u8]; 4] = [&[0xE8, 0, 0, 0, 0], &[0xEB, 0], &[0x5F], &[0x48, 0x83, 0xE4, 0xF0]];
        for code in all {
            assert_eq!(origins(code), None, "{code:x?}");
        }
        assert!(origins(&[0x74, 0]).is_some(), "a branch that is not taken");
    }
}
