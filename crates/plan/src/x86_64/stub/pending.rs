//! The stubs that end with displaced code: how each begins, and how all of them end.
//!
//! In: the action, with everything that it depends on. Out: the part of a stub that comes before the displaced
//! code, appended to a vector; a [`UnfinishedStub`], which appends the rest when the displaced code is there.
//! Does not: know the code of any action; it only names them all.

use trapline_code::NoCode;
use trapline_record::ring::RecordKind;

use super::asm::Asm;
use super::deferred::{self, defer};
use super::filter::ARGUMENTS;
use super::latency::{self, Latency, SharedTimed, Timed};
use super::machine::{Liveness, Machine};
use super::tally::TableLocation;
use super::threads::{self, Threads};
use super::traced::Traced;
use super::{aggregate_at_return, filtered_count};
use crate::filter::Tally;
use crate::hit::{HitProgram, MapsAt};

/// A stub that waits for its displaced code. The caller relocates it to [`UnfinishedStub::displaced_at`], appends it
/// to the same vector, and calls [`UnfinishedStub::finish`].
#[derive(Debug)]
#[must_use]
pub struct UnfinishedStub<'a> {
    origin: u64,
    displaced: u64,
    lacks: Option<NoCode>,
    kind: Kind<'a>,
}

#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "one at a time, on the stack: a box would cost more than the copy"
)]
enum Kind<'a> {
    Count(super::count::CountTail),
    FilteredCount(filtered_count::FilteredCountTail),
    Threads(threads::ThreadCountTail),
    Traced(super::trace::TraceTail<'a>),
    Deferred(deferred::DeferredTail),
    Aggregated(aggregate_at_return::AggregationTail),
    Tallied(super::tally::TallyTail),
    Run(super::run::RunTail),
    Latency(Machine, Latency, u32, Liveness, latency::LatencyTail),
}

impl Kind<'_> {
    fn timed(timed: &Timed<'_>, tail: latency::LatencyTail) -> Self {
        Self::Latency(*timed.machine, *timed.latency, timed.function, timed.site, tail)
    }
}

impl<'a> UnfinishedStub<'a> {
    /// Appends the code that `emit` emits, which starts at `at`.
    fn begin(out: &mut Vec<u8>, at: u64, emit: impl FnOnce(&mut Asm<'_>) -> Kind<'a>) -> Self {
        let mut asm = Asm::new(out, at);
        let kind = emit(&mut asm);
        Self { origin: asm.origin(), displaced: asm.here(), lacks: asm.lacks(), kind }
    }
    /// Address where the displaced code will lie.
    #[must_use]
    pub const fn displaced_at(&self) -> u64 {
        self.displaced
    }
    /// Appends what follows the displaced code: a jump to `resume` (none if that code never runs on), the
    /// paths that are rarely taken, and the rseq descriptors. Returns pairs of addresses: an instruction that
    /// may fault, and where its thread goes on then.
    ///
    /// # Errors
    /// The stub lacks code.
    pub fn finish(self, out: &mut Vec<u8>, resume: Option<u64>) -> Result<Vec<(u64, u64)>, NoCode> {
        let mut asm = Asm::resume(out, self.origin);
        if let Some(resume) = resume {
            asm.unbroken(|asm| asm.jmp(resume));
        }
        self.rest(asm)
    }
    /// The same for a part that lies apart from what runs at each hit: what `out` holds from `split` on lies at
    /// `at`.
    ///
    /// # Errors
    /// As [`Self::finish`].
    pub fn finish_apart(self, out: &mut Vec<u8>, split: usize, at: u64) -> Result<Vec<(u64, u64)>, NoCode> {
        let origin = self.origin;
        self.rest(Asm::resume_apart(out, origin, split, at))
    }
    fn rest(self, mut asm: Asm<'_>) -> Result<Vec<(u64, u64)>, NoCode> {
        let mut fixups = Vec::new();
        match self.kind {
            Kind::Count(tail) => tail.finish(&mut asm),
            Kind::FilteredCount(tail) => tail.finish(&mut asm),
            Kind::Threads(tail) => tail.finish(&mut asm),
            Kind::Traced(tail) => fixups = tail.finish(&mut asm),
            Kind::Deferred(tail) => fixups = tail.finish(&mut asm),
            Kind::Aggregated(tail) => tail.finish(&mut asm),
            Kind::Tallied(tail) => fixups = tail.finish(&mut asm),
            Kind::Run(tail) => tail.finish(&mut asm),
            Kind::Latency(machine, latency, function, site, tail) => {
                Timed { machine: &machine, latency: &latency, function, site }.finish(&mut asm, tail);
            }
        }
        self.lacks.or(asm.lacks()).map_or(Ok(fixups), Err)
    }
}

/// Begins a stub that adds one to a counter. It starts at `at`; `word` is the counter on line 0, within
/// ±2 GiB.
pub fn count(
    out: &mut Vec<u8>,
    at: u64,
    machine: &Machine,
    word: u64,
    site: &Liveness,
) -> UnfinishedStub<'static> {
    UnfinishedStub::begin(out, at, |asm| Kind::Count(super::count::count(asm, machine, word, site)))
}

/// Begins a stub that counts hits which pass a filter. It starts at `at`. The counter is the one of `traced`'s
/// dropped records. Of its rings only the way to read a thread's number is used.
pub fn count_filtered(
    out: &mut Vec<u8>,
    at: u64,
    traced: &Traced<'_>,
    kind: RecordKind,
) -> UnfinishedStub<'static> {
    UnfinishedStub::begin(out, at, |asm| {
        Kind::FilteredCount(filtered_count::count_filtered(asm, traced, kind))
    })
}

/// Begins a stub that counts hits by thread. It starts at `at`.
pub fn count_by_thread(
    out: &mut Vec<u8>,
    at: u64,
    threads: &Threads,
    counter: u32,
    site: &Liveness,
) -> UnfinishedStub<'static> {
    UnfinishedStub::begin(out, at, |asm| Kind::Threads(threads::count_by_thread(asm, threads, counter, site)))
}

/// Begins a stub that writes a record. It starts at `at`. At an entry it records the first `values` of the
/// arguments; at a return it records the returned value, and `values` are those of the entry.
pub fn trace<'a>(
    out: &mut Vec<u8>,
    at: u64,
    traced: &Traced<'a>,
    kind: RecordKind,
    values: usize,
) -> UnfinishedStub<'a> {
    UnfinishedStub::begin(out, at, |asm| match defer(asm, traced, kind, values) {
        Some(deferred) => Kind::Deferred(deferred),
        None => Kind::Traced(super::trace::trace(asm, traced, kind, values)),
    })
}

/// Begins a stub that aggregates a value. It starts at `at`. Of the rings and texts in `traced` only the way to
/// read a thread's number is used.
pub fn tally(
    out: &mut Vec<u8>,
    at: u64,
    traced: &Traced<'_>,
    (tally, table): (&Tally, TableLocation),
    kind: RecordKind,
) -> UnfinishedStub<'static> {
    UnfinishedStub::begin(out, at, |asm| {
        let known_later = match kind {
            RecordKind::Entry => defer(asm, traced, kind, ARGUMENTS).map(Kind::Deferred),
            _ => aggregate_at_return::aggregate_call(asm, traced, (tally, table), kind).map(Kind::Aggregated),
        };
        known_later.unwrap_or_else(|| Kind::Tallied(super::tally::tally(asm, traced, (tally, table), kind)))
    })
}

/// Begins a stub that runs a program. It starts at `at`. Of the rings in `traced` only the way to read a thread's number is
/// used.
pub fn run(
    out: &mut Vec<u8>,
    at: u64,
    traced: &Traced<'_>,
    what: (&HitProgram, MapsAt),
    kind: RecordKind,
) -> UnfinishedStub<'static> {
    UnfinishedStub::begin(out, at, |asm| Kind::Run(super::run::run(asm, traced, what, kind)))
}

/// Begins the stub of a timed entry. The code of its [`SharedTimed::Entry`] lies at `rare`.
pub fn latency_enter(out: &mut Vec<u8>, at: u64, timed: &Timed<'_>, rare: u64) -> UnfinishedStub<'static> {
    UnfinishedStub::begin(out, at, |asm| Kind::timed(timed, timed.enter(asm, rare)))
}

/// The whole stub of a timed exit, for right before the `ret` or jump that leaves. `which`: a [`SharedTimed::Exit`], and
/// where its code lies.
pub fn latency_exit(out: &mut Vec<u8>, at: u64, timed: &Timed<'_>, which: (SharedTimed, u64)) {
    timed.exit(&mut Asm::new(out, at), which);
}

/// Begins the stub of an entry that puts a return trampoline into its stack word. `None` without trampolines.
pub fn latency_arm(out: &mut Vec<u8>, at: u64, timed: &Timed<'_>) -> Option<UnfinishedStub<'static>> {
    arm(out, at, timed, false)
}

/// The same, but the trampoline runs more code right before the call returns, with all registers and the
/// stack as its `ret` finds them. The code behind the displaced instructions ends in a word, which the caller
/// fills with that code's address.
pub fn return_arm(out: &mut Vec<u8>, at: u64, timed: &Timed<'_>) -> Option<UnfinishedStub<'static>> {
    arm(out, at, timed, true)
}

fn arm(out: &mut Vec<u8>, at: u64, timed: &Timed<'_>, ahead: bool) -> Option<UnfinishedStub<'static>> {
    let mut asm = Asm::new(out, at);
    let tail = timed.arm(&mut asm, ahead)?;
    Some(UnfinishedStub {
        origin: asm.origin(),
        displaced: asm.here(),
        lacks: asm.lacks(),
        kind: Kind::timed(timed, tail),
    })
}

#[cfg(test)]
mod tests {
    use super::{Kind, UnfinishedStub};
    use crate::x86_64::stub::{Liveness, Machine};
    use trapline_code::{NoCode, Unsound};

    #[test]
    fn a_stub_that_lacks_code_is_not_finished() {
        let machine = Machine { rseq: None, rdpid: true, lines: 3 };
        let why = NoCode::Unsound(Unsound::Commit);
        for lacks in [false, true] {
            let mut out = Vec::new();
            let stub = UnfinishedStub::begin(&mut out, 0x1000, |asm| {
                if lacks {
                    asm.lack(why);
                }
                Kind::Count(super::super::count::count(asm, &machine, 0x2000, &Liveness::default()))
            });
            let expected = if lacks { Err(why) } else { Ok(Vec::new()) };
            assert_eq!(stub.finish(&mut out, None), expected);
        }
    }
}
