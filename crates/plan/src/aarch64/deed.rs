//! What happens at a patched word, and the code that does it.
//!
//! In: a deed, where its counter or area lies. Out: the stub before what is displaced. Does not: choose words or places.

use trapline_insn::aarch64::{Op, Verdict, decode};
use trapline_record::ring::Kind;
use trapline_record::{RemoteAddr, control};

use super::stub::text::BYTES;
use super::stub::{self, Code, ExitKind, Latency, Machine, Rings, Timed, Traced};
use crate::layout::DataLayout;
use crate::request::{Floats, LatencyInput, Unwind};

/// What happens there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Deed {
    /// The probe's counter grows.
    Count { probe: u32 },
    /// A stamp is made in a latency area; `looped`: the word is reached by branches of the function, too.
    Enter { latency: u32, looped: bool },
    /// The stamp is found, and the time since then recorded.
    Exit { latency: u32, kind: ExitKind },
    /// A record is written, of an entry or an exit. Its probe's counter counts what was dropped.
    Record(Record),
}

/// What a record tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Record {
    pub(super) probe: u32,
    pub(super) kind: Kind,
    /// Arguments at an entry.
    pub(super) values: u8,
    /// Those of them that point to text.
    pub(super) texts: u8,
    pub(super) floats: Floats,
    pub(super) unwind: Unwind,
    /// The word is a function's entry.
    pub(super) at_entry: bool,
}

impl Deed {
    /// Where there are several at one word, the order in which they happen: a function of one word is entered, then left.
    pub(super) const fn rank(self) -> u8 {
        match self {
            Self::Count { .. } => 0,
            Self::Enter { .. } | Self::Record(Record { kind: Kind::Entry, .. }) => 1,
            Self::Exit { .. } | Self::Record(_) => 2,
        }
    }
    /// Bytes that its stub takes at most, with what it displaces.
    pub(super) const fn room(self) -> u64 {
        match self {
            Self::Count { .. } => 512,
            Self::Enter { .. } | Self::Exit { .. } => 2048,
            Self::Record(record) => 1024 + BYTES * record.texts.count_ones() as u64,
        }
    }
}

/// What all stubs of a segment share.
pub(super) struct Setting<'a> {
    pub(super) machine: Machine,
    pub(super) layout: &'a DataLayout,
    pub(super) data: RemoteAddr,
    pub(super) latency: Option<Latency>,
    /// Where records go, if something is recorded.
    pub(super) rings: Option<Rings>,
}

impl<'a> Setting<'a> {
    pub(super) fn new(
        machine: Machine,
        layout: &'a DataLayout,
        data: RemoteAddr,
        input: Option<LatencyInput>,
    ) -> Self {
        let latency = input.map(|input| Latency {
            area: data.0 + layout.latency_off,
            functions: layout.latency_count,
            stamps: input.stamps.0,
            missed: data.0 + control::at::MISSED,
            min_ticks: input.min_ticks,
            buckets: input.buckets,
        });
        Self { machine, layout, data, latency, rings: None }
    }
    /// The stub at `at`, up to what is displaced. `None` where durations or records are asked for and there is no place for them.
    pub(super) fn begin(&self, at: RemoteAddr, deed: Deed) -> Option<Begun<'_>> {
        let timed = |function| {
            let latency = self.latency.as_ref()?;
            Some(Timed { machine: &self.machine, latency, function })
        };
        Some(match deed {
            Deed::Count { probe } => {
                let word = self.data.0 + self.layout.counters.word(probe);
                Begun::Count(stub::count(at.0, &self.machine, word, false))
            }
            Deed::Enter { latency, looped } => {
                Begun::Latency(stub::latency_enter(at.0, timed(latency)?, looped))
            }
            Deed::Exit { latency, kind } => Begun::Latency(stub::latency_exit(at.0, timed(latency)?, kind)),
            Deed::Record(Record { probe, kind, values, texts, floats, unwind, at_entry }) => {
                let dropped = self.data.0 + self.layout.counters.word(probe);
                let (machine, rings) = (&self.machine, self.rings.as_ref()?);
                let traced = Traced { machine, rings, probe, dropped, texts, floats, unwind, at_entry };
                Begun::Traced(stub::trace(at.0, traced, kind, values.into()))
            }
        })
    }
}

/// A stub that waits for its displaced code.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "one at a time, on the stack: a box would cost more than the copy"
)]
pub(super) enum Begun<'a> {
    Count(stub::Pending),
    Latency(stub::latency::Pending<'a>),
    Traced(stub::trace::Pending<'a>),
}

impl Code for Begun<'_> {
    fn displaced_at(&self) -> u64 {
        match self {
            Self::Count(pending) => pending.displaced_at(),
            Self::Latency(pending) => pending.displaced_at(),
            Self::Traced(pending) => pending.displaced_at(),
        }
    }
    fn finish(self, displaced: &[u32], back: Option<u64>) -> Option<Vec<u32>> {
        match self {
            Self::Count(pending) => pending.finish(displaced, back),
            Self::Latency(pending) => pending.finish(displaced, back),
            Self::Traced(pending) => pending.finish(displaced, back),
        }
    }
}

/// Whether a branch of the function leads to its beginning, or to the word at `entry`.
pub(super) fn is_looped(words: &[u32], entry: usize) -> bool {
    (0..).zip(words).any(|(index, &word): (isize, _)| match decode(word) {
        Verdict::Simulate(Op::Branch { offset, link: false } | Op::BranchIf { offset, .. }) => {
            let to = index + offset as isize / 4;
            to == 0 || usize::try_from(to) == Ok(entry)
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::is_looped;
    use trapline_insn::aarch64::encode;

    #[test]
    fn loops_lead_to_the_entry() {
        const RET: u32 = 0xD65F_03C0;
        let b = |from, to| encode::b(from, to).expect("near");
        assert!(!is_looped(&[encode::NOP, RET], 0));
        assert!(!is_looped(&[encode::NOP, encode::NOP, b(8, 4), RET], 0));
        assert!(is_looped(&[encode::NOP, encode::NOP, b(8, 0), RET], 0));
        // Behind a landing pad, or at it.
        assert!(is_looped(&[encode::NOP, encode::NOP, b(8, 4), RET], 1));
        assert!(is_looped(&[encode::NOP, encode::NOP, b(8, 0), RET], 1));
    }
}
