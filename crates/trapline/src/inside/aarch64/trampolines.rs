//! The code to which a call returns whose return address was replaced: which functions it calls, and where it
//! is not possible.
//!
//! In: the own process, and the table that holds the trampolines' state. Out: mapped return trampolines. Does
//! not: tell unwinders.
#![allow(unsafe_code, reason = "asks the system one question")]

use trapline_patch::own::{Own, OwnTrampolines};
use trapline_plan::aarch64::stub::{common_return, own_trampoline_code};
use trapline_record::trampolines::Trampolines;
use trapline_runtime::aarch64::gate::Jump;
use trapline_runtime::trampolines::TrampolineTable;

/// `prctl` option that asks for a guarded control stack, and the first bit of its answer (Linux 6.13,
/// include/uapi/linux/prctl.h).
const PR_GET_SHADOW_STACK_STATUS: libc::c_int = 74;
const PR_SHADOW_STACK_ENABLE: u64 = 1;

/// Whether this process can have return trampolines: with a guarded control stack, `ret` goes where that
/// stack says, or faults.
pub(in crate::inside) fn possible() -> Result<(), String> {
    let mut status = 0_u64;
    // SAFETY: it writes one word, or fails as an unknown option.
    let answered = unsafe { libc::prctl(PR_GET_SHADOW_STACK_STATUS, &raw mut status, 0_u64, 0_u64, 0_u64) };
    match answered == 0 && status & PR_SHADOW_STACK_ENABLE != 0 {
        true => {
            Err("this program runs with a guarded control stack; its exits can be patched instead".into())
        }
        false => Ok(()),
    }
}

/// Makes `count` return trampolines. `table` is called with their addresses before they are mapped.
pub(in crate::inside) fn make(
    own: &mut Own,
    count: u32,
    table: impl FnOnce(&Trampolines) -> Option<&'static TrampolineTable>,
) -> Result<OwnTrampolines, String> {
    let made = own.trampolines(count, |trampolines, gate| {
        // For good, as is the code that refers to it.
        let jump = table(trampolines)
            .map(|table| Box::leak(Box::new(Jump::for_trampolines(common_return(trampolines), table))));
        let argument = jump.map_or(0, |jump| std::ptr::from_ref(jump) as u64);
        own_trampoline_code(trampolines, (gate, argument)).unwrap_or_default()
    });
    made.map_err(|error| error.to_string())
}
