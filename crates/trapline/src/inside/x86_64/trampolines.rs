//! The code to which a call with a replaced return address returns: which functions it calls, and where it is
//! not possible.
//!
//! In: the own process, and the table that holds the trampolines' state. Out: mapped return trampolines. Does
//! not: inform unwinders.

use trapline_patch::own::{Own, OwnTrampolines};
use trapline_plan::CallFunctions;
use trapline_plan::x86_64::stub::own_trampoline_code;
use trapline_record::trampolines::Trampolines;
use trapline_runtime::dispatch;
use trapline_runtime::trampolines::TrampolineTable;
use trapline_runtime::x86_64::general::inlined::InlinedPath;

use super::setting::{extended_state, inlined};

/// Whether this process can have return trampolines. (In one with a shadow stack, the planner refuses
/// functions.)
pub(in crate::inside) const fn possible() -> Result<(), String> {
    Ok(())
}

/// Makes `count` return trampolines. `table` is called with their addresses before they are mapped.
pub(in crate::inside) fn make(
    own: &mut Own,
    count: u32,
    table: impl FnOnce(&Trampolines) -> Option<&'static TrampolineTable>,
) -> Result<OwnTrampolines, String> {
    let state = extended_state().map_err(|error| error.to_string())?;
    let returned = dispatch::returned_to_trampoline as *const () as u64;
    let functions = CallFunctions {
        entry: returned,
        general: returned,
        begin: returned,
        exit: returned,
        general_exit: returned,
        begins: None,
        arms: None,
        ends: Some(inlined(InlinedPath::on_return())),
        state,
    };
    let made = own.trampolines(count, |trampolines| {
        let argument = table(trampolines).map_or(0, |table| std::ptr::from_ref(table) as u64);
        own_trampoline_code(trampolines, &functions, argument)
    });
    made.map_err(|error| error.to_string())
}
