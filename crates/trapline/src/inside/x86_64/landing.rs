//! The code to which a call returns whose return address was replaced: which functions it calls, and where it
//! is not possible.
//!
//! In: the own process, and the table that holds the trampolines' state. Out: mapped return trampolines. Does
//! not: tell unwinders.

use trapline_patch::own::{Own, OwnSlots};
use trapline_plan::x86_64::stub::landing_code;
use trapline_plan::{CallFunctions, ExtendedState};
use trapline_record::slots::Slots;
use trapline_runtime::dispatch;
use trapline_runtime::slots::Table;
use trapline_runtime::x86_64::general::inlined::InlinedPath;

use super::place::inlined;
use crate::inside::Error;
use crate::inside::slots::SLOTS;

/// Whether this process can have return trampolines. (In one with a shadow stack, the planner refuses
/// functions.)
pub(in crate::inside) const fn possible() -> Result<(), String> {
    Ok(())
}

/// Makes return trampolines. `table` is called with their addresses before they are mapped.
pub(in crate::inside) fn make(
    own: &mut Own,
    table: impl FnOnce(&Slots) -> Option<&'static Table>,
) -> Result<OwnSlots, String> {
    let state = trapline_tracee::ExtendedState::here().ok_or_else(|| Error::NoExtendedState.to_string())?;
    let landed = dispatch::landed as *const () as u64;
    let functions = CallFunctions {
        entry: landed,
        general: landed,
        begin: landed,
        exit: landed,
        general_exit: landed,
        begins: None,
        arms: None,
        ends: Some(inlined(InlinedPath::land())),
        state: ExtendedState { mask: state.mask, len: state.len, tells_use: state.tells_use },
    };
    let made = own.slots(SLOTS, |slots| {
        let argument = table(slots).map_or(0, |table| std::ptr::from_ref(table) as u64);
        landing_code(slots, &functions, argument)
    });
    made.map_err(|error| error.to_string())
}
