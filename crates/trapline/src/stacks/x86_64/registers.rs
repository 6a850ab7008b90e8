//! Registers from which a copied stack is unwound.

pub(in crate::stacks) use framehop::x86_64::{
    CacheX86_64 as Cache, UnwindRegsX86_64 as Registers, UnwinderX86_64 as Unwinder,
};

use super::super::frame::StackCopy;

/// Registers at the hit, and the words of the stack.
pub(in crate::stacks) fn registers<'a>(copy: &StackCopy<'a>) -> (Registers, &'a [u64]) {
    (Registers::new(copy.pc, copy.sp, copy.frame), copy.words)
}
