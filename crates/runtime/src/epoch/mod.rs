//! When data that a hit may still look at can be freed, and when a consumer can no longer run.
//!
//! In: threads that enter and leave ([`Line::enter`]), things that were unlinked. Out: for each of these,
//! whether all hits that could have seen it are over ([`Grace`]). Invariants: EPO-1 what is reachable when a
//! thread enters stays until it leaves. EPO-2 entering and leaving are one store each, to the thread's own
//! line. EPO-3 a thread inside never waits for a writer. EPO-4 a hit that is left by `longjmp` or by the end
//! of its thread holds nothing for good.
//! Does not: free code (docs/design/memory.md), choose what is garbage, wait (the code that polls decides how).
//!
//! # The words
//!
//! A table of [`Line`]s, each alone on its cache lines. A thread finds its line by its thread pointer and
//! claims it once by compare-and-swap. A line belongs to its thread for good, and after it to the next thread
//! with the same thread pointer. Only that thread, with its signal handlers, writes `active`; the writer does
//! so only where it has proof that the hit there was left (below):
//!
//! > `active` = (address of the hit's [`Seal`] on the stack, or 0 outside) and a turn, 12 bits
//!
//! # A hit (reader)
//!
//! | step | what |
//! |---|---|
//! | R1 | load `active`; if it names a frame that has not been left (below), the hit is *nested*, |
//! | | and the outer hit covers the rest |
//! | R2 | store `active` := own frame, next turn (release) |
//! | R3 | compiler barrier |
//! | R4 | load pointers, read what they lead to, call consumers |
//! | R5 | store `active` := no frame, same turn (release) |
//!
//! # Reclaiming (writer, one at a time)
//!
//! | step | what |
//! |---|---|
//! | W1 | unlink: no pointer leads there any more |
//! | W2 | `membarrier`: every running thread executes a full barrier; threads that do not run have passed one |
//! | W3 | note each line with a frame in its `active` |
//! | W4 | wait until each noted line's `active` has another value (acquire) |
//! | W5 | free, or return from unregistering |
//!
//! A batch unlinks everything at W1 and pays W2 to W4 once.
//!
//! ## Interleavings
//!
//! The barrier that W2 causes in a running thread falls somewhere between its steps.
//! - *before R2*: R4 follows the barrier, which follows W1, so R4 cannot reach what was unlinked. W3 may or
//!   may not see R2.
//! - *between R2 and R5*: W3 comes after the barrier, so it sees R2's value or a later one. If it is R2's, it
//!   is noted, and W4 waits. If it is a later one, the thread has passed R5, so it reads nothing that it
//!   loaded before.
//! - *R2 done, its store not yet visible, and R4's loads done early* (store buffer): this is the case above,
//!   since the barrier drains the buffer before W3 looks. Without W2 it would be the fatal case; it is the
//!   model's first twin.
//! - *after R5*: R4's reads are before it (release), and the load of W3 or W4 is an acquire, so freed memory
//!   is not read any more. The value loaded may be the R2 of a later hit instead. A plain store there would
//!   not say that the earlier hit's reads are over (C++20 has no release sequence of a thread's own plain
//!   stores), so R2 is a release too. Relaxed at either is a twin.
//! - *a hit ends and another begins between two polls of W4*: the turn differs, so the value does. Turns
//!   repeat after 4096 hits at the same frame; if all of those fall between two polls, W4 waits once more. It
//!   never ends early: a value stays for as long as its hit lasts.
//! - *a signal between R1 and R2*: its hits enter and leave; R2 then overwrites their turn by an equal one.
//!   As above.
//! - *a signal between R2 and R5*: its hits find a frame that has not been left, so they are nested. They may
//!   read (R4) under the outer hit's word, which does not change before R5. They call no consumer, so nothing
//!   of them outlives the outer hit.
//! - *a thread claims its line between W2 and W3, or after W3 has looked*: its R4 follows W2, as in the first
//!   case.
//! - *writers* run one at a time. Their caller holds the lock, and no hit takes it. A hit must not wait for
//!   that lock either, as the interrupted thread may hold it. So unregistering inside a handler is refused
//!   ([`Lines::inside`]): it would wait for its own frame.
//!
//! ## Hits that are left
//!
//! A handler may leave by `longjmp`, or end its thread; `active` then names a frame that is gone. No check
//! can detect that at once, but there are these cases:
//! - *the thread hits again, with its stack pointer above that frame*: on one stack, what lies below the
//!   stack pointer is gone. On two stacks, only a signal on the alternate stack can be above a hit that goes
//!   on, and `sigaltstack` says whether we are on that stack.
//! - *the thread hits again, below the frame*: nested, unless the frame's [`Seal`] is overwritten, or the
//!   frame lies on the alternate stack and we do not. That is looked up by system calls (the memory may be
//!   gone), at the first nested hit, the second, the fourth and so on. Until the answer is yes, hits count as
//!   missed (nested).
//! - *the thread never hits again, or is gone*: W4 would wait for ever. The waiting code gets the thread
//!   pointer and the frame ([`Grace::stragglers`]). It may prove from outside that no thread is in that
//!   frame: the thread has ended, or is blocked in a call above it, or the frame's word is no longer its
//!   [seal](Straggler::seal). Then it calls [`Grace::excuse`]. That frees what was unlinked before W2: hits
//!   that begin later, even if "nested" under the stale word, cannot reach it. The stale word itself is
//!   exchanged for "outside", by compare-and-swap. Otherwise hits of the next thread with that thread pointer
//!   would count as nested until something overwrites the seal (below a signal's frame nothing may for long).
//!   If a thread is between R1 and R2 then, its R2 comes before (the exchange fails) or after (it
//!   overwrites). A thread that found itself nested at R1 stores nothing.
//! - *another thread gets its thread pointer*: C libraries give the stack and thread pointer of a thread that
//!   has ended to the next one. What the new thread writes to its stack overwrites the seal. If it is about
//!   to wait for a writer itself, it first marks the old hit as over ([`Lines::inside`]), since the writer
//!   may be waiting for that hit.
//! - *the thread itself is about to wait for a writer, below the frame that it left, and nothing has
//!   overwritten the seal*. The seal is then in a hole of a large frame of the present calls. The caller of
//!   [`Lines::inside`] walks the thread's own frames and decides.
//! - *a consumer that switches to another stack and comes back*: not allowed, as blocking is not. The stack
//!   pointer would look as above.
//!
//! ## Fork and shared thread pointers
//!
//! The table should be wiped on fork (`MADV_WIPEONFORK`); then it contains no line of a thread that the child
//! does not have. Otherwise such a line is a straggler without a thread. Tasks that share a thread pointer
//! (see [`thread_pointer`](crate::native::thread::thread_pointer)) share a line: while one is inside, the
//! other's hits are nested. If two hit at the same moment, each could take the line. Such tasks share their C
//! library's state as well, and must not run at once.

mod grace;
mod line;

pub(crate) use grace::{AlwaysPublished, Published};
pub use grace::{Barrier, Grace, Straggler, Writer};
pub(crate) use line::{FRAME_ALIGN, SPREAD, SPREAD_SHIFT, TURN_BITS};
pub use line::{Inside, Line, Lines, Seal, ThreadPointer};
