//! Deferred records: a call about which its return decides. Nothing is recorded before the return, and all of
//! it then.
//!
//! In: as for `trace`, with a filter that has a late part ([`Late`](crate::filter::Late)): a condition on the
//! returned value, on the duration, and on the entry's arguments together with these. Out: the code of the
//! entry (`entry`), and of the exits (`exit`), with pictures of their states. General registers only. No
//! system call except those that texts and threads' numbers take at any entry.
//!
//! # Protocol
//!
//! The entry's record is written as usual, but into a stamp cell of the call's own (its *place*) in private
//! memory. The cell is as large as a ring slot, and lies in the block of its stack page (`record::latency`).
//! It is found by the stack pointer at the entry, which the exit has again. For a goroutine it is found by
//! the goroutine and the distance to its stack's end, which stays the same when the stack moves. A cell is
//! *marked* while the record's third word is the cell's own address, and its first word names the probe. Both
//! records are paired by that address.
//!
//! E1 The early condition and the sample decide. For a call that does not pass, a mark that an abandoned call
//!    left in its cell is taken away. The call is counted as rejected, and goes on.
//! E2 The call is counted as begun.
//! E3 Its cell is found. There is none if all blocks that its page may have belong to other pages. Then the
//!    call is counted as dropped, and its exit finds no mark.
//! E4 The mark is taken away; texts are copied onto the stack; the clock is read; the record is written into
//!    the cell, and with it the mark. Texts that the call keeps are copied into the cell (`kept`).
//! X1 The exit looks for the mark. Without one, it is the exit of a call that E1 or E3 ended, or that began
//!    before the patch came. It goes on. With one, the texts of the return are copied into the cell.
//! X2 In one restartable sequence: the clock is read; the late condition decides, by the record and by the
//!    returned value. This CPU's ring must have room for two records, or the call is dropped. Both records
//!    are written behind the head, the entry's first and then the exit's. The head is stored, two slots
//!    further.
//! X3 A call that X2 rejected or dropped is counted.
//! X4 The mark is taken away.
//!
//! Invariant: STG-1 begun = written + dropped + rejected late + calls that have not ended, each by one
//! commit. And hits = rejected early + begun. A reader sees both records of a call or none, beside each
//! other. It puts them in the order of the clock with all others, as it does with those of several rings.
//!
//! # Interleavings
//!
//! - *The thread is moved or interrupted in X2*: it starts again, with the present time: what is written is
//!   what was decided about. In a process without rseq, X2 reads the clock and decides before it locks a
//!   ring. The record has that time, however long locking took.
//! - *A signal handler anywhere*: the functions that it calls have lower cells on this stack, or others on
//!   its own. After E4 it may leave by longjmp: as below.
//! - *Recursion*: each depth has its own stack pointer, and so its own cell.
//! - *A call is left by longjmp, an exception, or the end of its thread*: its mark stays, and it counts as
//!   not ended. The next call with this stack pointer, in any thread, takes the mark away in E1 or E4, before
//!   any exit of its own. The exit of another probe's call there finds a
//!   different name in it.
//! - *A tail call*: the exit of the first function comes before the entry of the second one, which may have
//!   the same cell. What the first one returned is not known: a comparison with it decides neither way
//!   ([`Tree::at_tail`](crate::filter::Tree::at_tail)).
//! - *Fork between entry and exit*: the child has the cells too, as its own copy. It comes back from the call
//!   as its parent does, and each writes what passes: two calls ended for one that began.
//! - *vfork*: the child runs on its parent's stack and in its memory, below it. It does not return from where
//!   it was called.
//! - *The thread is killed*: before X2's store nothing was written; behind it all was. Between X2 and X3 the
//!   call is one that has not ended.
//! - *Detaching* does not wait for calls: a call has not ended if its exit is no longer patched.
//! - *Cells of several segments* do not meet: each segment has memory of its own.
//! - *A goroutine's stack moves*: the cell stays where it was. If a function checks whether its stack
//!   suffices and begins anew on a larger one, its entry is met twice with one cell: the first is a call that
//!   has not ended.
//! - *A goroutine goes on in another thread*: the thread that hands it over and the thread that takes it are
//!   in order (Go's scheduler), so plain loads see what the entry stored. The exit's record names the entry's
//!   thread, as the reader pairs by it.
//! - *A goroutine ends between entry and exit* (a panic, Goexit), and another one gets its g: as a call that
//!   is left by longjmp.
//! - *A thread of a Go program without a goroutine* has cells as threads elsewhere have them.

mod call;
mod entry;
mod exit;
mod kept;

use trapline_record::ring::RecordKind;

use super::asm::Asm;
use super::traced::Traced;
pub(super) use call::{CallCell, Deferred, MARK, SAVED_RSI, Words, asks_for_duration};
use entry::EntryTail;
use exit::ExitTail;

/// What is left to append behind the displaced code.
#[derive(Clone, Debug)]
pub(super) enum DeferredTail {
    Entry(EntryTail),
    Exit(ExitTail),
}

/// Appends the part of a stub that comes before the displaced code; `None` if no return decides about the
/// probe's calls.
pub(super) fn defer(
    asm: &mut Asm<'_>,
    traced: &Traced<'_>,
    kind: RecordKind,
    values: usize,
) -> Option<DeferredTail> {
    let deferred = Deferred::of(traced, values)?;
    match kind {
        RecordKind::Entry => EntryTail::emit(asm, &deferred).map(DeferredTail::Entry),
        _ => Some(DeferredTail::Exit(ExitTail::emit(asm, &deferred, kind))),
    }
}

impl DeferredTail {
    /// Appends what comes behind the displaced code. Returns the instructions that may fault, and where a thread
    /// goes on then.
    pub(super) fn finish(self, asm: &mut Asm<'_>) -> Vec<(u64, u64)> {
        match self {
            Self::Entry(tail) => tail.finish(asm),
            Self::Exit(tail) => {
                tail.finish(asm);
                Vec::new()
            }
        }
    }
}
