//! The registers that a copy of a stack is unwound from. Records hold no link register: nothing here records stacks yet.

pub(in crate::stacks) use framehop::aarch64::{
    CacheAarch64 as Cache, UnwindRegsAarch64 as Registers, UnwinderAarch64 as Unwinder,
};

/// Instruction, stack pointer, frame pointer.
pub(in crate::stacks) fn registers(_: u64, sp: u64, frame: u64) -> Registers {
    Registers::new(0, sp, frame)
}
