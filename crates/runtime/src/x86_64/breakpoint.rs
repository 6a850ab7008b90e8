//! Recognizes an int3, in a signal and in memory.
//!
//! In: a signal; an address. Out: whether an int3 was executed, and where; what is at the address now.
//! Does not: know whether it is ours.
//!
//! ```text
//!   executed    rip - 1, if si_code = SI_KERNEL
//!   stands      Trap if [trap] = CC;  Theirs if [trap - 1] = CD 03;  else None
//! ```

use core::mem::MaybeUninit;

use trapline_insn::x86_64::simulate::{Memory, Size};

use super::access::Own;
use super::context::{Context, SI_KERNEL};
use crate::trap::Info;
use crate::trap::Stands;

/// `int3`.
const INT3: u64 = 0xCC;
/// The second byte of `int 3` in two bytes.
const THREE: u64 = 3;

/// A patched window may contain several instructions, so threads may be inside it.
pub(crate) const GUARDS: bool = true;

/// The address of the int3 that was executed, if the signal is about one: the byte before the instruction
/// pointer. The signal's code decides this, not the exception's number. In a process that has or had kernel
/// uprobes, their handler sees each int3 first, and raises the signal for others' without storing a number.
#[inline]
pub(crate) fn executed(info: &Info, context: &Context) -> Option<u64> {
    (info.code == SI_KERNEL).then(|| context.pc().wrapping_sub(1))
}

/// What is at that address now. `CD 03`, the long form, ends in a byte that is not int3, and we do not write
/// it.
pub(crate) fn stands(trap: u64) -> Stands {
    let byte = |addr: u64| Own::new(&mut MaybeUninit::uninit()).load(addr, Size::Byte).ok();
    match byte(trap) {
        Some(INT3) => Stands::Trap,
        Some(THREE) if byte(trap.wrapping_sub(1)) == Some(0xCD) => Stands::Theirs,
        _ => Stands::None,
    }
}
