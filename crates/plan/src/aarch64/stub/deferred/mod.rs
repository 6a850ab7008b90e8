//! Deferred records: a call about which its return decides. Nothing is recorded before the return, and all of
//! it then; the same as x86-64's twin.
//!
//! In: as for `trace`, with a filter that has a late part ([`Late`](crate::filter::Late)): a condition on the returned
//! value, on the duration, and on the entry's arguments together with these. Out: the code of the entry, and of the
//! exits.
//!
//! The entry's record is written into a stamp cell of the call's own (its *place*) in private memory
//! (`record::latency`). The cell is found by the stack pointer at the entry, which an exit has again. A cell
//! is *marked* while the record's third word is the cell's own address, and its first word names the probe;
//! both records are paired by that address.
//!
//! | step | what | a signal or a move to another CPU there |
//! |---|---|---|
//! | E1 | the early condition and the sample decide. | its handler's calls have lower cells |
//! | | For a call that does not pass, a mark that an abandoned call left in | |
//! | | its cell is taken away; the call is counted as rejected, and goes on | |
//! | E2 | the call is counted as begun | back to E2's beginning: once |
//! | E3 | its cell is found; without one the call is counted as dropped, and its exit finds no mark | as E1 |
//! | E4 | the mark is taken away; texts and fields are copied onto the stack; | as E1 |
//! | | the counter is read; the record is written into the cell, and with it the mark | |
//! | X1 | an exit looks for the mark: without one, it is the exit of a call that E1 or E3 ended, | as E1 |
//! | | or that began before the patch came. It goes on | |
//! | X2 | in one section: the counter is read; the late condition decides; | back to X2, |
//! | | this CPU's ring must have room for two records, or the call is dropped; | with the present time: |
//! | | both records are written behind the head, the entry's first and then the exit's; | what is written is |
//! | | the head is stored with release, two slots further | what was decided about |
//! | X3 | a call that X2 rejected or dropped is counted | once |
//! | X4 | the mark is taken away | a call is recorded once |
//!
//! So begun = written + dropped + rejected late + calls that have not ended (STG-1), each by one commit, and
//! hits = rejected early + begun. Without rseq X2 reads the counter and decides before it locks a ring. What
//! else may come in between is described in the twin. Cells are the thread's own memory, so none of it
//! depends on the order in which others see stores. A goroutine's cell is its own, wherever its stack is, and
//! in whichever thread it returns (`latency::stamp_cell`). It goes to another thread by what the runtime does
//! to hand it over, which orders stores. A function that begins anew on a larger stack is begun twice, in one
//! cell. A thread without an area has neither sample nor ring: its call is dropped, at the entry or at the
//! return.

mod call;
mod entry;
mod exit;
mod kept;

use trapline_record::ring::RecordKind;

use super::asm::{Asm, NoWords};
use super::pending::Code;
use super::traced::Traced;
pub(super) use call::{Deferred, Looked, PLACE, asks_for_duration, enter};
use entry::EntryTail;
use exit::ExitTail;

/// Upper bound of the code bytes, without trees and texts.
pub const DEFERRED_BYTES: u64 = 1536;

/// A stub that waits for its displaced code.
#[derive(Debug)]
#[must_use]
pub struct UnfinishedDeferred<'a> {
    asm: Asm,
    deferred: Deferred<'a>,
    tail: Tail,
}

#[derive(Debug)]
enum Tail {
    Entry(EntryTail),
    Exit(ExitTail),
}

/// The part of a stub that comes before the displaced code, for the address `at`; `None` if no return decides
/// about the probe's calls.
pub fn defer<'a>(
    at: u64,
    traced: Traced<'a>,
    kind: RecordKind,
    values: usize,
) -> Option<UnfinishedDeferred<'a>> {
    let deferred = Deferred::of(traced, values)?;
    let mut asm = Asm::new(at);
    let tail = match kind {
        RecordKind::Entry => Tail::Entry(EntryTail::emit(&mut asm, &deferred)?),
        _ => Tail::Exit(ExitTail::emit(&mut asm, &deferred, kind)),
    };
    Some(UnfinishedDeferred { asm, deferred, tail })
}

impl Code for UnfinishedDeferred<'_> {
    fn displaced_at(&self) -> u64 {
        self.asm.here()
    }
    fn finish(self, displaced: &[u32], back: Option<u64>) -> Result<Vec<u32>, NoWords> {
        let Self { mut asm, deferred, tail } = self;
        displaced.iter().for_each(|word| asm.word(*word));
        if let Some(back) = back {
            asm.b(back);
        }
        match tail {
            Tail::Entry(tail) => tail.finish(&mut asm, &deferred),
            Tail::Exit(tail) => tail.finish(&mut asm, &deferred),
        }
        asm.pool();
        asm.words()
    }
}
