//! Functions where the end of a call cannot be put together with its beginning.
//!
//! In: a request for a function. Out: a refusal, if the request needs both ends and the function is one of these. Does not:
//! decide how an end is seen.

use super::Planner;
use crate::refusal::Refusal;
use crate::request::{Action, ActionRequest};

impl Planner<'_> {
    /// Refuses a request that needs the goroutine where there is none yet, or where it is not known how Go does it. A
    /// program that begins has none: `rt0_go` sets the thread pointer by `settls`, which threads of older versions also
    /// call first. All that `rt0_go` calls later has a goroutine. What makes another goroutine the thread's own ends on
    /// that one, so its calls have no known end.
    pub(super) fn has_goroutine(&self, request: &ActionRequest) -> Result<(), Refusal> {
        let counts = matches!(request.action, Action::CountEntry | Action::CountExits | Action::CountAt(_))
            || request.action.is_for_us();
        let (Some(function), true) = (request.function, self.env.traits.go && !counts) else { return Ok(()) };
        let image = self.env.image;
        let f = image.function(function);
        if image.is_unknown_go() {
            return Err(Refusal::UnknownGo { at: f.start });
        }
        let is = |what: fn(&str) -> bool| {
            image.names(f).any(|name| what(name.raw.strip_suffix(".abi0").unwrap_or(name.raw)))
        };
        if is(|name| matches!(name, "runtime.rt0_go" | "runtime.settls") || name.starts_with("_rt0_")) {
            return Err(Refusal::BeforeGoroutine { at: f.start });
        }
        let changes = |name: &str| matches!(name, "runtime.gogo" | "gogo" | "runtime.setg" | "setg_gcc");
        match request.action.pairs() && is(changes) {
            true => Err(Refusal::ChangesGoroutine { at: f.start }),
            false => Ok(()),
        }
    }

    /// Refuses a request that needs both ends of a call, where unwind tables say that the return address lies deeper in the
    /// stack at the beginning. Both ends are known by its place. An example is the loader's code that finds a function at
    /// its first call: it is jumped to, with two more words on the stack.
    pub(super) fn begins_as_called(&self, request: &ActionRequest) -> Result<(), Refusal> {
        let start = request.function.map(|function| self.env.image.function(function).start);
        match start.filter(|start| request.action.pairs() && self.env.image.begins_within_frame(*start)) {
            Some(at) => Err(Refusal::NotCalled { at }),
            None => Ok(()),
        }
    }
}
