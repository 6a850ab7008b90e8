//! Registers from which a copied stack is unwound. The link register is the copy's first word
//! (`plan::aarch64::stub::stack`).

use framehop::aarch64::PtrAuthMask;
pub(in crate::stacks) use framehop::aarch64::{
    CacheAarch64 as Cache, UnwindRegsAarch64 as Registers, UnwinderAarch64 as Unwinder,
};

use super::super::frame::StackCopy;

/// Highest address of code that a program gets unless it asks for more bits; the bits above hold signatures.
const HIGHEST: u64 = (1 << 48) - 1;

/// Registers at the hit, and the words of the stack.
pub(in crate::stacks) fn registers<'a>(copy: &StackCopy<'a>) -> (Registers, &'a [u64]) {
    let (link, stack) = copy.words.split_first().map_or((0, copy.words), |(link, stack)| (*link, stack));
    let mask = PtrAuthMask::from_max_known_address(HIGHEST);
    (Registers::new_with_ptr_auth_mask(mask, link, copy.sp, copy.frame), stack)
}
