//! Aggregates a value that is known only when a call returns: from what its entry kept, and what it returned.
//! These are arguments, value and duration. The same as x86-64's twin.
//!
//! In: as for `tally`, with a filter that has a late part ([`Late`](crate::filter::Late)). Out: the code of
//! the exits; the entry's code is that of `defer` (E1 to E4). At the exit, X1 and X4 are those of `defer`,
//! and between them:
//!
//! | step | what | a signal or a move to another CPU there |
//! |---|---|---|
//! | G2 | the counter is read if anything depends on the duration; | what is read belongs to the call, |
//! | | the late condition decides. | and stays as it is |
//! | | A call that does not pass is counted, and goes on at X4 | |
//! | G3 | the value's cell or row is found as in `tally`, and one is added there | back to the section's beginning |
//! | | by one commit. A text's key is that of the entry's copy. A tail call has | |
//! | | returned nothing: a value that depends on the returned value is unseen then, | |
//! | | as is one that depends on a field which the entry could not read | |
//!
//! ```text
//!   X1   [sp + PLACE] = the call's cell                       sp = S - DEPTH to the end (`deferred::call`)
//!   G2   [sp + STAMP] = the time, [sp + TOOK] = nanoseconds    only if something depends on the duration
//!   G3   VALUE = cell or key, [sp + waiting(0)] = group-by key (`tally`, `adding`)
//!   X4   A = [sp + PLACE], [A + MARK] = 0
//! ```
//!
//! So begun = cells + overflow + unseen + dropped + rejected late + calls that have not ended.

use trapline_record::ring::RecordKind;

use super::adding::{Copied, Into};
use super::asm::{Asm, Fix, NoWords};
use super::deferred::{self, Deferred, Looked, PLACE, asks_for_duration};
use super::filter::ARGUMENTS;
use super::filtering::Rare;
use super::pending::Code;
use super::tally::{TableLocation, Tallied, one_more, unseen, value};
use super::threads;
use super::traced::Traced;

/// A stub that waits for its displaced code.
#[derive(Debug)]
#[must_use]
pub struct UnfinishedAggregation<'a> {
    asm: Asm,
    deferred: Deferred<'a>,
    looked: Looked,
    table: TableLocation,
    rejected: Vec<Fix>,
    unread: Vec<Fix>,
    rare: Rare,
    /// Step X4, and what comes behind it.
    done: u64,
    leave: u64,
}

/// The part of an exit's stub that comes before the displaced code, for the address `at`; `None` if the value
/// is known at the hit itself.
pub fn aggregate_call<'a>(
    at: u64,
    traced: Traced<'a>,
    what: Tallied<'_>,
    kind: RecordKind,
) -> Option<UnfinishedAggregation<'a>> {
    let deferred = Deferred::of(traced, ARGUMENTS)?;
    let (machine, id) = (traced.machine, traced.rings.id);
    let Tallied { tally, table, .. } = what;
    let mut asm = Asm::new(at);
    let condition = deferred.condition(kind);
    let seen = kind == RecordKind::Return || !tally.asks_for_end();
    deferred::enter(&mut asm);
    if condition.asks_for_thread() || seen && tally.asks_for_thread() {
        threads::ask(id, &mut asm);
    }
    let looked = deferred.look(&mut asm);
    if [&condition].into_iter().chain(tally.trees()).any(asks_for_duration) {
        deferred.time(&mut asm, true);
    }
    let rejected = deferred.known().branch(&mut asm, &condition, false);
    let copied = Copied::Left(PLACE);
    let into = Into::of(table.area.shape, tally, (copied, 0), seen);
    let unread = if seen { value(&mut asm, what, (deferred.known(), copied), into) } else { Vec::new() };
    let mut rare = Rare::default();
    one_more(&mut asm, machine, table, into, &mut rare);
    let done = asm.here();
    deferred.unmark(&mut asm);
    let leave = asm.here();
    deferred.leave(&mut asm);
    Some(UnfinishedAggregation { asm, deferred, looked, table, rejected, unread, rare, done, leave })
}

impl Code for UnfinishedAggregation<'_> {
    fn displaced_at(&self) -> u64 {
        self.asm.here()
    }
    fn finish(self, displaced: &[u32], back: Option<u64>) -> Result<Vec<u32>, NoWords> {
        let Self { mut asm, deferred, looked, table, rejected, unread, mut rare, done, leave } = self;
        displaced.iter().for_each(|word| asm.word(*word));
        if let Some(back) = back {
            asm.b(back);
        }
        unseen(&mut asm, deferred.traced.machine, table, unread, done, &mut rare);
        rejected.into_iter().for_each(|fix| asm.bind(fix));
        deferred.counted(&mut asm, deferred.words.rejected_late, done, &mut rare.sections);
        deferred.unmarked(&mut asm, looked, leave);
        rare.finish(&mut asm, deferred.traced.machine, done);
        asm.pool();
        asm.words()
    }
}
