//! Aggregates a value that is known only when a call returns, from what its entry kept and from what it
//! returned: arguments, value, duration.
//!
//! In: as for `tally`, with a filter that has a late part ([`Late`](crate::filter::Late)). Out: the code of
//! the entry, and of the exits. The entry's code is that of `defer` (E1 to E4). At the exit, X1 and X4 are
//! those of `defer`, and between them:
//!
//! G2 The clock is read if anything depends on the duration. The late condition decides. A call that does
//!    not pass is counted, and goes on at X4.
//! G3 The value's cell or row is found as in `tally`, and one is added there by one commit. The key of a text
//!    is that of the entry's copy. A tail call has returned nothing: a value that depends on the returned
//!    value is unseen then, as is one that depends on a field which the entry could not read.
//!
//! So begun = cells + overflow + unseen + dropped + rejected late + calls that have not ended, each by one
//! commit. Everything that G2 and G3 read belongs to the call: its stamp cell and its registers, which stay
//! as they are. So a thread that is moved or interrupted there repeats only G3's section.
//! The thread counted is the entry's. Other interleavings are those of `defer`.
//!
//! ```text
//!   rsi            the cell, from X1 on; rsi = [SAVED_RSI] behind X4
//!   rsi + 0 …      the entry's record (`deferred::call`);  rsi + 8 · FIRST_TEXT: its text, if it has one
//!   rsp - 128      TOOK: nanoseconds since the entry
//!   rsp - 120      TIME, until G2 has decided; then OWNED, the group-by key (`tally`)
//!   rsp - 112      SAVED_RSI
//!   rsp - 32 …     intermediate values, then the row's KEY, END, KEY_AT, SPARE (`adding`)
//!   rax, rdx, r10, r11    as in `tally`, from the value to the commit
//!   X4             [rsi + 16] = 0
//! ```

use trapline_record::ring::{FIRST_TEXT, RecordKind};

use super::adding::{Copied, Into};
use super::asm::{Asm, Fix, RSI};
use super::counted::count;
use super::deferred::{CallCell, Deferred, MARK, SAVED_RSI, Words, asks_for_duration};
use super::filter::ARGUMENTS;
use super::latency::{Claim, Lookup};
use super::rseq::{self, Section};
use super::tally::{TableLocation, add_shared, one_more, unseen, value};
use super::traced::Traced;
use crate::filter::Tally;

/// A text in a call's stamp cell.
const LEFT: Copied = Copied { at: RSI, answer: FIRST_TEXT as i32 * 8 };

/// What is left to append behind an exit's displaced code.
#[derive(Clone, Debug)]
pub(super) struct AggregationTail {
    cell: CallCell,
    words: Words,
    table: TableLocation,
    /// With rseq: the section, and the jump of threads without an area.
    owned: Option<(Section, Fix)>,
    pointer: Fix,
    shared: Into,
    /// The jumps of hits with a value that depends on something that could not be read.
    unread: Vec<Fix>,
    rejected: Vec<Fix>,
    lookup: Lookup,
    unmarked: [Fix; 2],
    /// Step X4, and what comes behind it.
    done: u64,
    leave: u64,
}

/// Appends the part of an exit's stub that comes before the displaced code; `None` if the value is known at
/// the hit itself. (The entry's stub is that of [`defer`](super::deferred::defer), with all [`ARGUMENTS`].)
pub(super) fn aggregate_call(
    asm: &mut Asm<'_>,
    traced: &Traced<'_>,
    (tally, table): (&Tally, TableLocation),
    kind: RecordKind,
) -> Option<AggregationTail> {
    Deferred::of(traced, ARGUMENTS)
        .map(|deferred| AggregationTail::emit(asm, &deferred, (tally, table), kind))
}

impl AggregationTail {
    fn emit(
        asm: &mut Asm<'_>,
        deferred: &Deferred<'_>,
        (tally, table): (&Tally, TableLocation),
        kind: RecordKind,
    ) -> Self {
        let Deferred { traced, cell, words, .. } = *deferred;
        let saves = traced.saves(kind);
        let machine = cell.machine;
        saves.enter(asm);
        let lookup = cell.look(asm);
        let unmarked = deferred.look(asm);
        let condition = deferred.condition(kind);
        let seen = kind == RecordKind::Return || !tally.asks_for_end();
        if [&condition].into_iter().chain(tally.trees()).any(asks_for_duration) {
            deferred.time(asm, true);
        }
        let rejected = deferred.known().branch(asm, &condition, false);
        let into = Into::of(table.area.shape, tally, LEFT, seen);
        let mut unread = Vec::new();
        if seen {
            unread = value(asm, tally, (deferred.known(), LEFT), into);
        }
        let (owned, pointer) = one_more(asm, (machine, table), into);
        let done = asm.here();
        asm.store_imm(MARK, 0);
        asm.load(RSI, SAVED_RSI);
        let leave = asm.here();
        if let Some(rseq) = machine.rseq {
            rseq::clear(asm, rseq);
        }
        saves.leave(asm);
        let shared = into.without_area();
        Self { cell, words, table, owned, pointer, shared, unread, rejected, lookup, unmarked, done, leave }
    }

    /// Appends the paths of threads without an area, and of calls that do not pass or have no mark, the
    /// descriptors and the addresses.
    pub(super) fn finish(self, asm: &mut Asm<'_>) {
        let Self { cell, words, table, done, .. } = self;
        if let Some((_, unregistered)) = self.owned {
            asm.bind(unregistered);
            add_shared(asm, (cell.machine, table), self.shared);
            asm.jmp(done);
        }
        let unseen = unseen(asm, (cell.machine, table), &self.unread, done);
        self.rejected.iter().for_each(|&fix| asm.bind(fix));
        let rejected = count(asm, &cell.machine);
        asm.jmp(done);
        cell.unregistered(asm, rejected, words.rejected_late, done);
        cell.search(asm, self.lookup, Claim::No);
        self.unmarked.into_iter().for_each(|fix| asm.bind(fix));
        asm.load(RSI, SAVED_RSI);
        asm.jmp(self.leave);
        let own = self.owned.map(|(section, _)| section);
        cell.descriptors(asm, &[own, unseen.and_then(|(section, _)| section), rejected.section()]);
        asm.align(8);
        asm.bind(self.pointer);
        unseen.into_iter().for_each(|(_, pointer)| asm.bind(pointer));
        asm.u64(table.base);
        asm.bind(rejected.line);
        asm.u64(words.rejected_late);
    }
}
