//! The registers that a copy of a stack is unwound from.

pub(in crate::stacks) use framehop::x86_64::{
    CacheX86_64 as Cache, UnwindRegsX86_64 as Registers, UnwinderX86_64 as Unwinder,
};

/// Instruction, stack pointer, frame pointer.
pub(in crate::stacks) fn registers(pc: u64, sp: u64, frame: u64) -> Registers {
    Registers::new(pc, sp, frame)
}
