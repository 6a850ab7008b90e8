//! Go programs: which of their code is known to run on a goroutine, and what stubs must not touch there.
//!
//! In: a function of a module, its words. Out: whether g is certain to be in x28 whenever it runs; a stub
//! that leaves alone what Go keeps below the stack pointer.
//! Invariants: GO-1 a stub reads through x28 only where g is certain to be there; GO-2 no stub writes to the
//! word below the stack pointer. Does not: read g (`stub::latency`, `stub::put`).
//! x86-64 has no such file: g is in thread-local memory there, and Go keeps nothing below the stack pointer.
//!
//! # Where g is
//!
//! Go's compiler keeps the goroutine in x28 (`cmd/compile/abi-internal.md`, arm64), and never anything else.
//! But other code runs in such programs too. C, which cgo linked in, may keep there what it likes. What C calls
//! (`crosscall2`) finds that, and so do the beginnings of signal handlers, which interrupt all of it. So a
//! function is taken to have g there in two cases:
//!
//! | proof | |
//! |---|---|
//! | it begins by reading through x28 itself | nearly all functions do: they check whether their stack suffices. |
//! | | If it were not g, the function would have failed without us |
//! | Go's table has it, under a name outside the runtime | leaf functions of some package, which only Go's code calls. |
//! | | The runtime's own may run before a handler has found its g |
//!
//! # What lies below the stack pointer
//!
//! A frame is {x29 of the caller, x30}. Go keeps x29 in the word *below* its stack pointer (`-8(RSP)`), where
//! a callee's frame has left room for it. So at every instruction, also at an entry and a return, that word
//! is in use, and a stub begins 16 bytes lower. AAPCS64 has nothing there.
//!
//! ```text
//!   s -  16   not touched                          <- S, sp when the stub's own code begins and ends
//!   s -   8   x29 of the function's caller, in use
//!   s         the frame's lowest word              <- s, the program's sp before DOWN and after UP
//!
//!   DOWN      sp = sp - BELOW = s - 16             flags and all other registers stay
//!   UP        sp = sp + BELOW = s
//! ```
//!
//! # Room
//!
//! A goroutine's stack ends where the heap goes on. A function that has not yet checked for room has some 790
//! bytes (`stackGuard` less what leaves and frames up to `stackSmall` take). A stub that neither makes a
//! system call nor copies texts takes less than 300. One that copies texts or fields checks for room first
//! (`stub::text`).

use trapline_image::{FunctionIndex, Image};
use trapline_record::Svma;

use super::stub::{Code, NoWords};
use crate::filter::{Tally, TargetFilter};
use crate::refusal::Refusal;
use crate::request::{Action, ActionRequest, Unwind};

/// By how many bytes lower a stub begins.
pub(super) const BELOW: u32 = 16;
/// `sub sp, sp, #16`, `add sp, sp, #16`.
const DOWN: u32 = 0xD100_03FF | BELOW << 10;
const UP: u32 = 0x9100_03FF | BELOW << 10;
/// Packages with functions that may run without g; their names go on with `.` or `/`.
const RUNTIME: [&str; 3] = ["runtime", "internal/runtime", "internal/abi"];

/// Whether a word reads through x28: `ldr xN, [x28, #n]`.
pub(super) const fn reads_g(word: u32) -> bool {
    word & 0xFFC0_03E0 == 0xF940_0380
}

/// Whether the function is Go's, and its frames too; no other conventions hold for it.
pub(super) fn is_go(image: &Image, function: Option<FunctionIndex>) -> bool {
    function.is_some_and(|function| image.is_go_at(image.function(function).start))
}

/// Whether g is in x28 whenever the function runs.
fn has_g(image: &Image, function: Option<FunctionIndex>, words: &[u32]) -> bool {
    let of_a_package = |function: FunctionIndex| {
        let mut names = image.names(image.function(function)).map(|name| name.raw);
        names.all(|name| name.contains('.') && !is_runtimes(name))
    };
    is_go(image, function)
        && (words.first().is_some_and(|&word| reads_g(word)) || function.is_some_and(of_a_package))
}

fn is_runtimes(name: &str) -> bool {
    RUNTIME.iter().any(|package| {
        name.strip_prefix(package).is_some_and(|rest| rest.starts_with('.') || rest.starts_with('/'))
    })
}

/// Checks that g is in x28 whenever the requested action of the function runs. `asks`: something waits for
/// its return, or copies onto its stack.
///
/// # Errors
/// If it is not certain, and the action would use g to find the end of a call, or the end of a stack.
pub(super) fn is_goroutines(
    image: &Image,
    request: &ActionRequest,
    asks: bool,
    (words, at): (&[u32], Svma),
) -> Result<bool, Refusal> {
    let found = has_g(image, request.function, words);
    match !found && is_go(image, request.function) && (asks || request.action.pairs()) {
        true => Err(Refusal::Unsupported {
            at,
            what: "no code knows where this function of Go's runtime finds its goroutine",
        }),
        false => Ok(found),
    }
}

/// Whether memory is copied onto the stack.
pub(super) fn copies(role: Action, filter: Option<&TargetFilter>) -> bool {
    let of_filter = |filter: &TargetFilter| {
        filter.fields.is_some()
            || !filter.reads.is_empty()
            || filter.tally.as_ref().is_some_and(|tally| tally.texts() != 0)
    };
    matches!(role, Action::Record { texts: 1.., .. } | Action::Record { fields: 1.., .. })
        || filter.is_some_and(of_filter)
}

/// What no code can do where stacks are a goroutine's.
pub(super) fn not_in_go(role: Action, filter: Option<&TargetFilter>) -> Option<&'static str> {
    let whole = filter.filter(|filter| filter.late.is_some());
    match role {
        Action::LatencyByTrampoline => Some("no code replaces return addresses of goroutines"),
        Action::Record { stack: Unwind::Copy(_), .. } | Action::RecordAt(_, Unwind::Copy(_)) => {
            Some("no code unwinds a copy of a goroutine's stack")
        }
        _ if whole.is_some_and(asks_late_for_thread) => {
            Some("no code knows at a goroutine's return in which thread it began")
        }
        _ => None,
    }
}

/// Whether what is decided or aggregated at returns depends on the thread.
fn asks_late_for_thread(filter: &TargetFilter) -> bool {
    filter.late.as_ref().is_some_and(|late| late.condition.asks_for_thread())
        || filter.tally.as_ref().is_some_and(Tally::asks_for_thread)
}

/// A stub, 16 bytes lower on the stack if requested (GO-2).
#[derive(Debug)]
pub(super) struct Lowered<C> {
    stub: C,
    lowered: bool,
}

/// Address at which the code of a stub begins, if it is lowered or not.
pub(super) const fn begins(at: u64, lowered: bool) -> u64 {
    at + if lowered { 4 } else { 0 }
}

impl<C> Lowered<C> {
    /// `stub` was begun at the address that [`begins`] returns.
    pub(super) const fn new(stub: C, lowered: bool) -> Self {
        Self { stub, lowered }
    }
}

impl<C: Code> Code for Lowered<C> {
    fn displaced_at(&self) -> u64 {
        begins(self.stub.displaced_at(), self.lowered)
    }
    fn finish(self, displaced: &[u32], back: Option<u64>) -> Result<Vec<u32>, NoWords> {
        if !self.lowered {
            return self.stub.finish(displaced, back);
        }
        let stub = self.stub.finish(&[&[UP], displaced].concat(), back)?;
        Ok([vec![DOWN], stub].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::{is_runtimes, reads_g};

    #[test]
    fn the_runtimes_functions_are_recognized_by_their_package() {
        for name in [
            "runtime.sigtrampgo",
            "runtime/cgo.crosscall1",
            "internal/runtime/atomic.Load",
            "runtime.(*mheap).alloc",
        ] {
            assert!(is_runtimes(name), "{name}");
        }
        for name in ["main.leaf", "runtimes.x", "internal/bytealg.Count", "net/http.(*conn).serve"] {
            assert!(!is_runtimes(name), "{name}");
        }
    }

    #[test]
    fn a_look_at_the_stacks_end_reads_g() {
        // ldr x16, [x28, #16]; ldr x1, [x28]; ldr x16, [x27, #16]; str x16, [x28, #16]; ldr w16, [x28].
        assert!(reads_g(0xF940_0B90) && reads_g(0xF940_0381));
        assert!(![0xF940_0B70, 0xF900_0B90, 0xB940_0390].into_iter().any(reads_g));
    }
}
