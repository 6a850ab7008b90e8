//! The code to which a call with a replaced return address returns: which functions it calls, and where it is
//! not possible.
//!
//! In: the own process, and the table that holds the trampolines' state. Out: mapped return trampolines. Does
//! not: inform unwinders.

use trapline_patch::own::{Own, OwnTrampolines};
use trapline_plan::aarch64::stub::{common_return, own_trampoline_code};
use trapline_record::trampolines::Trampolines;
use trapline_runtime::aarch64::gate::Jump;
use trapline_runtime::trampolines::TrampolineTable;

use super::thread::has_guarded_stack;

/// Whether this process can have return trampolines: with a guarded control stack, `ret` goes where that
/// stack says, or faults.
pub(in crate::inside) fn possible() -> Result<(), String> {
    match has_guarded_stack() {
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
