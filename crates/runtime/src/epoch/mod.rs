//! When data that a hit may still look at can be freed, and when a consumer can no longer run.
//!
//! In: threads that enter and leave ([`Line::enter`]), things that were unlinked. Out: for each, whether every thread that
//! could have seen it has gone on ([`Grace`]). Invariants: EPO-1 what is reachable when a thread enters stays until it leaves;
//! EPO-2 entering and leaving are one store each, to the thread's own line; EPO-3 nobody inside waits for a writer; EPO-4 a hit
//! that is left by `longjmp` or by the end of its thread holds nothing for good.
//! Does not: free code (docs/design/memory.md), choose what is garbage, wait (whoever polls decides how).
//!
//! # The words
//!
//! A table of [`Line`]s, each alone on its cache lines, found by thread pointer and claimed once by compare-and-swap. A line
//! belongs to its thread for good, and to whoever has the same thread pointer after it. Only that thread, its signal handlers
//! included, writes `active`, and the writer where it has proof that the hit there was left (below):
//!
//! > `active` = (address of the hit's [`Seal`] on the stack, or 0 outside) and a turn, 12 bits
//!
//! # A hit (reader)
//!
//! | step | what |
//! |---|---|
//! | R1 | load `active`; if it names a frame that has not been left (below), the hit is *nested* and the rest is the outer hit's |
//! | R2 | store `active` := own frame, next turn (release) |
//! | R3 | barrier of the compiler |
//! | R4 | load pointers, read what they lead to, call consumers |
//! | R5 | store `active` := no frame, same turn (release) |
//!
//! # Reclaiming (writer, one at a time)
//!
//! | step | what |
//! |---|---|
//! | W1 | unlink: no pointer leads there any more |
//! | W2 | `membarrier`: every running thread executes a full barrier; those that do not run have passed one |
//! | W3 | note each line whose `active` names a frame |
//! | W4 | wait until each noted line's `active` has another value (acquire) |
//! | W5 | free, or return from unregistering |
//!
//! A batch unlinks everything at W1 and pays W2 to W4 once.
//!
//! ## Interleavings
//!
//! Each running thread's barrier in W2 falls somewhere between its steps.
//! - *before R2*: R4 follows the barrier, which follows W1: it cannot reach what was unlinked. W3 may or may not see R2.
//! - *between R2 and R5*: W3, after the barrier, sees R2's value, or a later one. The same: noted, and W4 waits. Another: the thread
//!   has passed R5, so it reads nothing that it loaded before.
//! - *R2 done, its store not yet visible, and R4's loads done early* (store buffer): that is the case above; the barrier
//!   drains the buffer before W3 looks. Without W2 it would be the fatal one, and is the model's first twin.
//! - *after R5*: R4's reads are before it (release), and W3's or W4's load is an acquire: freed memory is not read any more. What is loaded
//!   may be the R2 of a later hit instead: a plain store there would not say that the earlier hit's reads are over (C++20 has no
//!   release sequence of a thread's own plain stores), so R2 is a release too. Relaxed at either is a twin.
//! - *a hit ends and another begins between two polls of W4*: another turn, so another value. Turns repeat after 4096 hits at the same
//!   frame; if all those fall between two polls, W4 waits once more. It never ends early: a value stays for as long as its hit lasts.
//! - *a signal between R1 and R2*: its hits enter and leave; R2 then overwrites their turn by an equal one. As above.
//! - *a signal between R2 and R5*: its hits find a frame that has not been left, and are nested. They may read (R4) under the outer
//!   hit's word, which does not change before R5; they call no consumer, so nothing of them outlives it.
//! - *a thread claims its line between W2 and W3, or behind W3's look*: its R4 follows W2: first case.
//! - *writers* are called one at a time; their lock is their caller's, and no hit takes it. A hit must not wait for it either, as the
//!   interrupted thread may hold it: so unregistering inside a handler is refused ([`Lines::inside`]) rather than waited for:
//!   it would wait for its own frame.
//!
//! ## Hits that are left
//!
//! A handler may leave by `longjmp`, or end its thread; `active` then names a frame that is gone. Nothing can tell at once, but:
//! - *the thread hits again, its stack pointer above that frame*: on one stack, what lies below the stack pointer is gone. On two stacks only a signal
//!   on the alternate stack can be above a hit that goes on, and `sigaltstack` tells whether we are there.
//! - *the thread hits again, below it*: nested, unless the frame's [`Seal`] is overwritten, or it lies on the alternate stack and
//!   we do not. That is looked at by system calls (the memory may be gone), at the first nested hit, the second, the fourth and
//!   so on; until it tells, hits count as missed (nested).
//! - *the thread never hits again, or is gone*: W4 would wait for ever. Whoever waits learns of it ([`Grace::stragglers`]: thread
//!   pointer and frame), may prove from outside that no thread stands in that frame (it has ended, or is blocked in a
//!   call above it, or the frame's word is no longer its [seal](Straggler::seal)), and says so ([`Grace::excuse`]). That frees what was unlinked before W2: hits that begin later, even
//!   "nested" under the stale word, cannot reach it. The stale word itself is exchanged for "outside", by compare-and-swap: else hits of whoever
//!   has the thread's place count as nested for as long as nothing overwrites the seal (below a signal's frame nothing may for long). A thread
//!   that is between R1 and R2 then has its R2 before (the exchange fails) or behind (it overwrites); one that found itself nested at R1 stores nothing.
//! - *another thread gets its place*: C libraries give stack and thread pointer of a thread that has ended to the next one. What that writes
//!   to its stack overwrites the seal. If it is about to wait for a writer itself, it says first that the old hit is over
//!   ([`Lines::inside`]): the writer may be waiting for it.
//! - *the thread itself is about to wait for a writer, below the frame that it left, whose seal nothing has overwritten* (it lies in a hole of a
//!   large frame of the present calls): the caller of [`Lines::inside`] walks the thread's own frames and tells.
//! - *a consumer that switches to another stack and comes back*: not allowed, as blocking is not. The stack pointer would look as above.
//!
//! ## Fork and shared thread pointers
//!
//! The table should be wiped on fork (`MADV_WIPEONFORK`): then no line of a thread that the child does not have is there.
//! Otherwise such a line is a straggler of no thread. Tasks that share a thread pointer (see
//! [`thread_pointer`](crate::native::thread::thread_pointer)) share a line: while one is inside, the other's hits are nested.
//! Two that hit at the same moment could each take the line; such tasks share their C library's state as well, and must not
//! run at once.

mod grace;
mod line;

pub use grace::{Barrier, Grace, Straggler, Writer};
pub(crate) use line::{FRAME_ALIGN, SPREAD, SPREAD_SHIFT, TURN_BITS};
pub use line::{Inside, Line, Lines, Seal, ThreadPointer};
