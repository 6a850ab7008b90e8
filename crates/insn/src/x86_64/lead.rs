//! What one instruction has changed when the next one runs, for a probe that begins behind it.
//!
//! In: a decoded instruction. Out: a [`Lead`], or none if the stack pointer afterwards is not known from the
//! one before.
//! Does not: say what the instruction reads, or whether it may fault.

use super::gpr::Gpr;
use iced_x86::{
    Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess, OpKind, Register,
};

/// The changes of one instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lead {
    /// Number of bytes by which the stack pointer is lower.
    pub lowered: u32,
    /// The bytes by which it was lowered are written: a push.
    pub pushed: bool,
    /// Bit `n`: general register `n` in hardware order is written, in whole or in part; `lowered` describes
    /// `rsp`.
    pub gprs: u16,
    /// Another register than a general one is written, for example a vector register.
    pub others: bool,
    /// It may write below the stack pointer, into the red zone, where the function reads it later.
    pub red_zone: bool,
}

impl Lead {
    /// What an instruction changes; `None` unless the stack pointer is unchanged or lowered by a known number
    /// of bytes.
    pub(super) fn of(factory: &mut InstructionInfoFactory, raw: &Instruction) -> Option<Self> {
        let mut lead = Self::default();
        let used = factory.info_options(raw, InstructionInfoOptions::NO_MEMORY_USAGE).used_registers();
        let mut moves_stack = false;
        for used in used {
            if matches!(
                used.access(),
                OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
            ) {
                match Gpr::of(used.register()) {
                    Some(Gpr::Rsp) => moves_stack = true,
                    Some(gpr) => lead.gprs |= gpr.bit(),
                    None => lead.others = true,
                }
            }
        }
        let is_stack = |register| matches!(register, Register::RSP | Register::ESP);
        let operands = (0..raw.op_count()).any(|n| raw.op_kind(n) == OpKind::Memory);
        lead.red_zone = operands
            && (is_stack(raw.memory_index())
                || is_stack(raw.memory_base())
                    && (raw.memory_index() != Register::None
                        || raw.memory_displacement64().cast_signed() < 0));
        if moves_stack {
            lead.lowered = lowered(raw)?;
            lead.pushed = raw.mnemonic() != Mnemonic::Sub;
        }
        Some(lead)
    }
}

/// Number of bytes by which a push or a `sub` lowers the stack pointer.
fn lowered(raw: &Instruction) -> Option<u32> {
    let by = match raw.mnemonic() {
        Mnemonic::Push | Mnemonic::Pushfq => -i64::from(raw.stack_pointer_increment()),
        Mnemonic::Sub if raw.op0_kind() == OpKind::Register && raw.op0_register() == Register::RSP => {
            let immediate = matches!(raw.op1_kind(), OpKind::Immediate8to64 | OpKind::Immediate32to64);
            immediate.then(|| raw.immediate(1).cast_signed())?
        }
        _ => return None,
    };
    u32::try_from(by).ok().filter(|&by| by > 0 && i32::try_from(by).is_ok())
}

#[cfg(test)]
mod tests {
    use super::Lead;
    use crate::x86_64::{Gpr, Look};

    fn lead(code: &[u8]) -> Option<Lead> {
        let mut insns = Vec::new();
        Look::default().behind(&mut insns, (code, 0x1000), (6, 9), |_| true).map(|found| found.0)
    }

    #[test]
    fn what_prologues_change_is_known() {
        let none = Lead::default();
        let pushed = Lead { lowered: 8, pushed: true, ..none };
        assert_eq!(lead(&[0x55, 0x90]), Some(pushed), "push rbp");
        assert_eq!(lead(&[0x41, 0x57, 0x90]), Some(pushed), "push r15");
        assert_eq!(lead(&[0x48, 0x83, 0xEC, 0x18]), Some(Lead { lowered: 24, ..none }), "sub rsp, 24");
        assert_eq!(
            lead(&[0x48, 0x81, 0xEC, 0, 1, 0, 0]),
            Some(Lead { lowered: 256, ..none }),
            "sub rsp, 256"
        );
        assert_eq!(lead(&[0x89, 0xF8]), Some(Lead { gprs: Gpr::Rax.bit(), ..none }), "mov eax, edi");
        assert_eq!(lead(&[0x31, 0xC0]), Some(Lead { gprs: Gpr::Rax.bit(), ..none }), "xor eax, eax");
        assert_eq!(lead(&[0x83, 0xFF, 5]), Some(none), "cmp edi, 5");
        assert_eq!(
            lead(&[0x40, 0x0F, 0xB6, 0xC7]),
            Some(Lead { gprs: Gpr::Rax.bit(), ..none }),
            "movzx eax, dil"
        );
        assert_eq!(lead(&[0x66, 0x0F, 0xEF, 0xC0]), Some(Lead { others: true, ..none }), "pxor xmm0, xmm0");
        assert_eq!(lead(&[0x49, 0x3B, 0x66, 0x10]), Some(none), "cmp rsp, [r14+16]");
    }

    #[test]
    fn a_store_below_the_stack_pointer_is_known() {
        let red_zone = Some(Lead { red_zone: true, ..Lead::default() });
        assert_eq!(lead(&[0x89, 0x74, 0x24, 0xFC, 0x90]), red_zone, "mov [rsp-4], esi");
        assert_eq!(
            lead(&[0x48, 0x89, 0xBC, 0x24, 0x78, 0xFF, 0xFF, 0xFF, 0x90]),
            red_zone,
            "mov [rsp-136], rdi"
        );
        assert_eq!(lead(&[0x89, 0x34, 0xBC, 0x90]), red_zone, "mov [rsp+rdi*4], esi");
        assert_eq!(lead(&[0xF2, 0x0F, 0x11, 0x44, 0x24, 0xF8, 0x90]), red_zone, "movsd [rsp-8], xmm0");
        assert_eq!(lead(&[0x89, 0x74, 0x24, 0x08, 0x90]), Some(Lead::default()), "mov [rsp+8], esi");
    }

    #[test]
    fn a_stack_pointer_that_is_raised_or_taken_from_elsewhere_is_not_known() {
        let all: [&[u8]; 7] = [
            &[0x5F],                   // pop rdi
            &[0x48, 0x83, 0xC4, 8],    // add rsp, 8
            &[0x48, 0x83, 0xEC, 0x80], // sub rsp, -128
            &[0x48, 0x29, 0xC4],       // sub rsp, rax
            &[0x48, 0x83, 0xE4, 0xF0], // and rsp, -16
            &[0x48, 0x8B, 0x27],       // mov rsp, [rdi]
            &[0xC3],                   // ret: nothing is behind it
        ];
        for code in all {
            assert_eq!(lead(code), None, "{code:x?}");
        }
    }
}
