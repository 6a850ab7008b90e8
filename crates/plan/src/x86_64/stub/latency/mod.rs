//! Time from entry to return: a stamp at the entry, a histogram at every exit.
//!
//! A stub saves what it uses below the stack pointer (`saves` has the picture), and finds the stamp cell of
//! (function, stack pointer at entry).
//!
//! ```text
//!   step            rsi                  rdi         rax                 others
//!   entry, lookup   cell                 -           used                rdx used; r8 = S if `keeps_s`
//!   free            [rsi + 8] = 0, else `occupied`
//!   stamp           [rsi + 8] = function + 1, or r8 with `outermost`;  [rsi] = rax = time
//!   exit, clock     -                    time        used                rdx used
//!   lookup          cell                 time        used                rdx used; r8 = S if `keeps_s`
//!   own             [rsi + 8] = function + 1, or r8;  else unpaired, or a deeper call with `outermost`
//!   duration        cell                 time - [rsi], or 0 if that is below 0
//!   record          block of line 0      duration    used                rcx, rdx used (`record`)
//! ```
//!
//! Stamp cells are private memory, a block of 512 to each stack page; see `record::latency`. The clock is
//! read as the last thing before the stamp and as the first thing at an exit. What an exit finds is written
//! word by word, each by an rseq commit of its own; rare words always by `lock add` on the last line.
//! An entry's common path is in line. What is rare there, and all of an exit, is code that the functions of a module
//! share (`shared`): a jump to it costs less than the caches that a copy for each exit would take.
//! With `outermost` a cell belongs to (thread, function) and holds {tsc, S of the outermost call}. Deeper
//! calls are ignored, and a call at a shallower place proves that the remembered one is gone. In Go, the
//! goroutine takes the place of the thread, and S is the distance from the stack's end, because stacks move.
//! A thread without a goroutine is treated as elsewhere.

mod area;
mod armed;
mod mark;
mod record;
mod saves;
mod shared;
mod stamp_cell;
mod timed;

pub use area::Latency;
pub use armed::{leading_trampoline_code, trampoline_code, trampoline_code_len};
pub(super) use mark::{Mark, MarkLookup, Marks};
pub use shared::{SharedTimed, shared_timed};
pub(super) use stamp_cell::{Claim, Lookup, StampCell};
pub(super) use timed::LatencyTail;
pub use timed::Timed;
