//! What a processor requires of a program that changes code (Arm ARM B2.7.4.2, "Instruction cache
//! maintenance").
//!
//! In: a range of addresses through which code was written. Out: every processor that shares the memory and
//! fetches there later fetches what was written.
//!
//! ```text
//!   data line        = 4 << CTR_EL0[19:16] bytes
//!   instruction line = 4 << CTR_EL0[3:0] bytes
//!
//!   dsb ishst    the stores are done
//!   dc cvau      for each data line from start & -line on
//!   dsb ish      the lines are cleaned
//!   ic ivau      for each instruction line from start & -line on
//!   dsb ish, isb they are invalidated, and this processor fetches anew
//! ```
//!
//! No register but the operands is used, and no stack.
//!
//! Does not: make other processors fetch again what they have fetched:
//! [`synchronise_cores`](crate::kernel::synchronise_cores) does.

use core::arch::asm;

/// Line sizes of both caches, from CTR_EL0: bytes of the smallest data line and of the smallest instruction
/// line.
fn lines() -> (u64, u64) {
    let ctr: u64;
    // SAFETY: reads a register that Linux lets user space read, or emulates.
    unsafe { asm!("mrs {}, ctr_el0", out(reg) ctr, options(nostack, preserves_flags, nomem)) };
    (4 << (ctr >> 16 & 15), 4 << (ctr & 15))
}

/// Makes processors fetch the present content of the `len` bytes at `start`.
///
/// # Safety
/// The bytes are mapped and readable.
pub unsafe fn clean(start: u64, len: u64) {
    let (data, instructions) = lines();
    let each = |line: u64| (start & !(line - 1)..start.saturating_add(len)).step_by(line as usize);
    // SAFETY: cleans and invalidates cache lines, which changes no memory. The barriers order stores,
    // cleaning and invalidation for all processors that share memory.
    unsafe {
        asm!("dsb ishst", options(nostack, preserves_flags));
        for line in each(data) {
            asm!("dc cvau, {}", in(reg) line, options(nostack, preserves_flags));
        }
        asm!("dsb ish", options(nostack, preserves_flags));
        for line in each(instructions) {
            asm!("ic ivau, {}", in(reg) line, options(nostack, preserves_flags));
        }
        asm!("dsb ish", "isb", options(nostack, preserves_flags));
    }
}
