//! Whether this thread is in a handler, where nothing may be registered; its own frames show it.
//!
//! In: the engine's lines, and the frames as the C++ unwinder finds them. Out: yes or no. Does not: look at
//! other threads ([`grace`](super::grace)).
//!
//! A handler may leave by `longjmp`. Its seal then stays on the stack until something overwrites it. It may
//! even outlive a call that is as deep, inside of a buffer that is not written to yet. So a seal above the
//! current frame proves nothing, but the frames do. Where a handler was called, they look like this:
//!
//! ```text
//! by a jump:  this function … handler, dispatch [seal], stub      the walk ends: a stub has no unwind tables
//! by a trap:  this function … handler, dispatch [seal], on_trap, the program …
//! left:       this function … some function [old seal], its caller, its caller …
//! ```
//!
//! If the walk ends early, since code on the way has no tables, the answer is yes, as the seal suggests.

use trapline_runtime::epoch::ThreadPointer;

use super::memory::made;
use super::system::walk;

/// Number of frames above the one that holds the seal after which the answer is certain: a stub and `on_trap`
/// are among the first few.
const ENOUGH: u32 = 16;

/// A stub is at most the third frame above the seal, since `dispatch` is two functions on arm64. A walk that
/// goes on behind that has met none.
const BEHIND_STUB: u32 = 4;

/// Whether this thread is in a handler, where nothing may be registered or unregistered.
#[must_use]
pub fn is_inside_handler() -> bool {
    made().is_some_and(|engine| engine.lines().inside(ThreadPointer::own(), is_live))
}

/// Whether the hit with its seal at this address still goes on, above the current frame on the same stack.
fn is_live(seal: u64) -> bool {
    let mut search = Search::new(seal, trapline_runtime::trap::handler_address());
    walk(|frame| search.frame(frame.low, frame.function));
    search.is_live()
}

/// What a walk has seen of the frame that holds a seal, and of those above.
#[derive(Debug)]
struct Search {
    seal: u64,
    trap_handler: u64,
    /// Lowest address of the last frame.
    last: u64,
    /// Number of frames above the one that holds the seal, once that was found.
    above: Option<u32>,
    in_trap_handler: bool,
}

impl Search {
    const fn new(seal: u64, trap_handler: u64) -> Self {
        Self { seal, trap_handler, last: u64::MAX, above: None, in_trap_handler: false }
    }
    /// Takes the next frame: its lowest address, and the address of its function. Returns false when enough
    /// was seen.
    fn frame(&mut self, low: u64, function: u64) -> bool {
        self.in_trap_handler |= function == self.trap_handler;
        self.above = match self.above {
            Some(above) => Some(above + 1),
            None => (self.last..low).contains(&self.seal).then_some(1),
        };
        self.last = low;
        self.above.is_none_or(|above| above < ENOUGH)
    }
    /// Only frames beyond the place where a stub would be prove that there is none.
    fn is_live(&self) -> bool {
        self.in_trap_handler || self.above.is_none_or(|above| above < BEHIND_STUB)
    }
}

#[cfg(test)]
mod tests {
    use super::{ENOUGH, Search};

    const TRAPS: u64 = 7;

    fn live(frames: &[(u64, u64)]) -> bool {
        let mut search = Search::new(0x150, TRAPS);
        for &(low, function) in frames {
            if !search.frame(low, function) {
                break;
            }
        }
        search.is_live()
    }

    #[test]
    fn a_stub_ends_the_walk_and_a_trap_is_known_by_its_handler() {
        assert!(live(&[(0x100, 1), (0x140, 2), (0x180, 0)]), "a stub behind the frame that holds it");
        assert!(live(&[(0x100, 1), (0x140, 2), (0x180, 3), (0x1c0, 0)]), "one behind the second function");
        assert!(live(&[(0x100, 1), (0x140, 2), (0x180, TRAPS), (0x200, 3), (0x300, 4)]));
        assert!(live(&[(0x100, 1), (0x140, TRAPS), (0x180, 3), (0x200, 4), (0x300, 5)]), "inlined into it");
    }

    #[test]
    fn frames_behind_it_say_that_it_was_left() {
        assert!(!live(&[(0x100, 1), (0x180, 2), (0x200, 3), (0x280, 4), (0x300, 5)]));
        let many: Vec<_> = (0..u64::from(2 * ENOUGH)).map(|n| (0x100 + n * 0x40, 100)).collect();
        assert!(!live(&many));
    }

    #[test]
    fn what_the_walk_does_not_reach_is_taken_to_be_live() {
        assert!(live(&[]) && live(&[(0x100, 1)]));
        assert!(live(&[(0x1000, 1), (0x1100, 2), (0x1200, 3)]), "another stack");
    }
}
