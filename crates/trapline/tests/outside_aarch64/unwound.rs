//! Functions of the victim with calls that exceptions leave, or that wait until they may go on; with return
//! addresses that are signed by either key, or not signed.
//!
//! In: a name, how often. Out: how many calls returned with the right value, or the wrong one. Does not:
//! choose when, or probe anything.

use std::arch::global_asm;
use std::panic::{catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;

use crate::victim::STOP;

/// A function that calls one that throws each second time, through another, and catches the exception.
pub(crate) const UNWOUND: &str = "unwound_catches";
/// Prefix for the name of a function that waits: what it calls ends by an exception.
pub(crate) const THROWS: &str = "throws-";

// Each calls what waits; the unwind tables describe the frame, and the key. The last one's table is a plain
// one, as an unwinder of copies takes the next one below for code without any (key B is not known to it).
global_asm!(
    ".text",
    ".macro waits name, sign, undo",
    ".globl \\name",
    ".type \\name, %function",
    ".p2align 4",
    "\\name:",
    ".cfi_startproc",
    ".if \\sign == 27",
    ".cfi_b_key_frame",
    ".endif",
    "hint #\\sign",
    ".if \\sign",
    ".cfi_negate_ra_state",
    ".endif",
    "stp x29, x30, [sp, #-16]!",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset 29, -16",
    ".cfi_offset 30, -8",
    "mov x29, sp",
    "bl waits_reported",
    "ldp x29, x30, [sp], #16",
    "hint #\\undo",
    "ret",
    ".cfi_endproc",
    ".size \\name, . - \\name",
    ".endm",
    "waits waits_signed_b, 27, 31",
    "waits waits_signed, 25, 29",
    "waits waits_plain, 0, 0",
);

unsafe extern "C-unwind" {
    fn waits_plain(value: u64) -> u64;
    fn waits_signed(value: u64) -> u64;
    fn waits_signed_b(value: u64) -> u64;
}

/// Name and function, which returns its argument + 1, or throws that if it is odd.
pub(crate) const WAITS: [(&str, unsafe extern "C-unwind" fn(u64) -> u64); 3] =
    [("waits_plain", waits_plain), ("waits_signed", waits_signed), ("waits_signed_b", waits_signed_b)];

#[unsafe(no_mangle)]
extern "C-unwind" fn waits_reported(value: u64) -> u64 {
    while !STOP.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    if value % 2 == 1 {
        resume_unwind(Box::new(value + 1));
    }
    value + 1
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C-unwind" fn unwound_throws(value: u64) -> u64 {
    if value.is_multiple_of(2) {
        resume_unwind(Box::new(value + 1));
    }
    value + 1
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C-unwind" fn unwound_through(value: u64) -> u64 {
    std::hint::black_box(unwound_throws(value))
}

/// One more than the value, either way.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn unwound_catches(value: u64) -> u64 {
    std::hint::black_box(caught(|| unwound_through(value)))
}

/// What a function returns or throws.
fn caught(function: impl FnOnce() -> u64 + std::panic::UnwindSafe) -> u64 {
    catch_unwind(function).unwrap_or_else(|thrown| thrown.downcast_ref().copied().unwrap_or(0))
}

/// Number of calls of that name with the right value.
pub(crate) fn right(name: &str, times: u64) -> u64 {
    (0..times).filter(|&value| name == UNWOUND && unwound_catches(value) == value + 1).count() as u64
}

/// One call of that name, which waits; returns 1 if its value is wrong.
#[allow(ffi_unwind_calls, reason = "what they throw is caught")]
pub(crate) fn wrong(name: &str) -> u64 {
    let value = if name.starts_with(THROWS) { 7 } else { 8 };
    let named = WAITS.iter().find(|one| one.0 == name.trim_start_matches(THROWS));
    // SAFETY: functions of a number, which touch nothing else, and may throw.
    named.map_or(0, |(_, function)| u64::from(caught(|| unsafe { function(value) }) != value + 1))
}
