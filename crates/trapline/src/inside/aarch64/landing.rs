//! The code that calls come back to whose return address was replaced: which, and where there is none.
//!
//! In: our own process, and who keeps what slots hold. Out: slots that are mapped. Does not: tell unwinders.
#![allow(unsafe_code, reason = "asks the system one question")]

use trapline_patch::own::{Own, OwnSlots};
use trapline_plan::aarch64::stub::{landing, landing_code};
use trapline_record::slots::Slots;
use trapline_runtime::aarch64::gate::Jump;
use trapline_runtime::slots::Table;

use crate::inside::slots::SLOTS;

/// `prctl`'s question for a guarded control stack, and its answer's first bit (Linux 6.13, include/uapi/linux/prctl.h).
const PR_GET_SHADOW_STACK_STATUS: libc::c_int = 74;
const PR_SHADOW_STACK_ENABLE: u64 = 1;

/// Whether this process can have any: `ret` with a guarded control stack goes where that says, or not at all.
pub(in crate::inside) fn possible() -> Result<(), String> {
    let mut status = 0_u64;
    // SAFETY: it writes a word, or knows no such question.
    let answered = unsafe { libc::prctl(PR_GET_SHADOW_STACK_STATUS, &raw mut status, 0_u64, 0_u64, 0_u64) };
    match answered == 0 && status & PR_SHADOW_STACK_ENABLE != 0 {
        true => {
            Err("this program runs with a guarded control stack; its exits can be patched instead".into())
        }
        false => Ok(()),
    }
}

/// Slots; `table` is told where, before they are mapped.
pub(in crate::inside) fn make(
    own: &mut Own,
    table: impl FnOnce(&Slots) -> Option<&'static Table>,
) -> Result<OwnSlots, String> {
    let made = own.slots(SLOTS, |slots, gate| {
        // For good, as the code is that names it.
        let jump = table(slots).map(|table| Box::leak(Box::new(Jump::landing(landing(slots), table))));
        let argument = jump.map_or(0, |jump| std::ptr::from_ref(jump) as u64);
        landing_code(slots, (gate, argument)).unwrap_or_default()
    });
    made.map_err(|error| error.to_string())
}
