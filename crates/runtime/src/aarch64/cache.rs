//! What a processor asks of whoever changes code (Arm ARM B2.7.4.2, "Instruction cache maintenance").
//!
//! In: a range of addresses through which code was written. Out: every processor of the process' memory that fetches there later fetches
//! what was written. Does not: make others fetch again what they have fetched: see
//! [`synchronise_cores`](super::thread::synchronise_cores).

use core::arch::asm;

/// Lines of both caches, from CTR_EL0: bytes of the smallest data line and of the smallest instruction line.
fn lines() -> (u64, u64) {
    let ctr: u64;
    // SAFETY: reads a register that Linux lets user space read, or reads for it.
    unsafe { asm!("mrs {}, ctr_el0", out(reg) ctr, options(nostack, preserves_flags, nomem)) };
    (4 << (ctr >> 16 & 15), 4 << (ctr & 15))
}

/// Makes `len` bytes at `start` what processors fetch.
///
/// # Safety
/// They are mapped, and readable.
pub unsafe fn clean(start: u64, len: u64) {
    let (data, instructions) = lines();
    let each = |line: u64| (start & !(line - 1)..start.saturating_add(len)).step_by(line as usize);
    // SAFETY: cleans and forgets lines of caches, which changes no memory. The barriers put stores, cleaning and forgetting in order,
    // for all processors that share memory.
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
