//! Trapline itself, attached through its library as an embedder would do it.

use std::time::Duration;

use anyhow::{Context as _, Result};
use trapline::beyond::stack_argument;
use trapline::calls::KeptText;
use trapline::filter::{Filter, GroupBy, Int, Known, Sort, Symbol, Tally, Tree, parse};
use trapline::report::Tactic;
use trapline::{Call, Returns, Session, Unwinding};

use trapline_bench::functions::DEPTH;

use crate::x86_64::victim;

/// Bytes of one CPU's ring: enough for a millisecond of the shortest records.
pub(crate) const RING: u32 = 16 << 20;
/// The same for the deepest stacks.
const STACKS: u32 = 32 << 20;

/// A session with its probes in place.
#[derive(Debug)]
pub(crate) struct Ours {
    session: Session,
    /// The least preferred tactic in use.
    tactic: Tactic,
    sites: u64,
}

/// What a session reported at its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) hits: u64,
    pub(crate) missed: u64,
    /// Hits that the filter rejected in the target.
    pub(crate) filtered: u64,
    /// Frames of the deepest stack.
    pub(crate) deepest: usize,
    pub(crate) attach: Duration,
    pub(crate) detach: Duration,
    pub(crate) stopped: Duration,
}

/// A probe that names the first `limit` functions of a case; for `walk`, `limit` is a power of ten.
fn probe(case: &str, limit: usize) -> Result<String> {
    let path = victim::program()?;
    let path = path.to_str().context("the victim's path is not UTF-8")?;
    Ok(match limit {
        1 => format!("uprobe:{path}:bench_{case}_0"),
        _ => {
            format!("uprobe:{path}:/^bench_{case}_[0-9]{{1,{}}}$/", limit.saturating_sub(1).to_string().len())
        }
    })
}

impl Ours {
    /// Counts entries.
    pub(crate) fn count(pid: u32, case: &str, limit: usize) -> Result<Self> {
        let session = Session::builder().pid(pid).probe(&probe(case, limit)?)?.count()?;
        Self::look(session, |process| process.counts.iter().map(|count| count.site.tactic).collect())
    }
    /// Times from entry to exit, or to a return trampoline.
    pub(crate) fn time(pid: u32, case: &str, limit: usize, returns: Returns) -> Result<Self> {
        let session = Session::builder().pid(pid).probe(&probe(case, limit)?)?.returns(returns).latency()?;
        Self::look(session, |process| {
            process.times.iter().filter_map(|times| Some(times.site.as_ref()?.tactic)).collect()
        })
    }
    /// Records entries with this many arguments, and exits if `returns`, into rings of this many bytes. With
    /// `filter`, only calls that pass.
    pub(crate) fn record(
        pid: u32,
        case: &str,
        limit: usize,
        arguments: u8,
        (returns, filter, ring): (bool, Option<&str>, u32),
    ) -> Result<Self> {
        let mut builder = Session::builder().pid(pid).probe(&probe(case, limit)?)?.ring(ring);
        if let Some(condition) = filter {
            let names = [
                ("arg0", Known::Argument(0, Int::U64)),
                ("ret", Known::Returned(Int::U64)),
                ("dur", Known::Took),
            ];
            let names = names.map(|(name, known)| (name.to_owned(), Symbol::Known(known)));
            builder = builder.filters(vec![Filter::default().condition(condition, &names)?]);
        }
        let session = builder.record(arguments, returns)?;
        Self::look(session, |process| process.counts.iter().map(|count| count.site.tactic).collect())
    }
    /// Records entries, and exits if `returns`, with the text that the first argument points to.
    pub(crate) fn texts(pid: u32, case: &str, limit: usize, returns: bool) -> Result<Self> {
        // A record takes 256 bytes, and a millisecond of calls can fill more than half of a ring of the usual
        // size.
        let builder = Session::builder().pid(pid).probe(&probe(case, limit)?)?.ring(2 * RING).texts(vec![1]);
        let session = builder.record(1, returns)?;
        Self::look(session, |process| process.counts.iter().map(|count| count.site.tactic).collect())
    }
    /// Records calls with a text that they keep for their return.
    pub(crate) fn kept(pid: u32, case: &str, limit: usize, text: KeptText) -> Result<Self> {
        let filter = Filter::default().keeps(vec![text]);
        let builder = Session::builder().pid(pid).probe(&probe(case, limit)?)?.ring(2 * RING);
        let session = builder.filters(vec![filter]).record(1, true)?;
        Self::look(session, |process| process.counts.iter().map(|count| count.site.tactic).collect())
    }
    /// Records entries with the first argument on the stack.
    pub(crate) fn on_stack(pid: u32, case: &str, limit: usize) -> Result<Self> {
        let filter = Filter::default().reads(vec![stack_argument(0, 8)]);
        let builder = Session::builder().pid(pid).probe(&probe(case, limit)?)?.ring(RING);
        let session = builder.filters(vec![filter]).record(0, false)?;
        Self::look(session, |process| process.counts.iter().map(|count| count.site.tactic).collect())
    }
    /// Records hits of USDT probes with three operands.
    pub(crate) fn marks(pid: u32) -> Result<Self> {
        let path = victim::program()?;
        let path = path.to_str().context("the victim's path is not UTF-8")?;
        let builder = Session::builder().pid(pid).probe(&format!("usdt:{path}:bench:mark_*"))?.ring(RING);
        let session = builder.record(3, false)?;
        Self::look(session, |process| process.counts.iter().map(|count| count.site.tactic).collect())
    }
    /// Whether all reported calls have this much of the text that they kept; and how many there are.
    pub(crate) fn reported_kept(&mut self, long: usize) -> (u64, u64) {
        let calls = self.session.calls();
        let is_whole = |call: &&Call| call.kept.first().is_some_and(|text| text.bytes.len() == long);
        (calls.iter().filter(is_whole).count() as u64, calls.len() as u64)
    }
    /// Aggregates a value by powers of two in the target, and groups it by `key` if there is one.
    pub(crate) fn log2(
        pid: u32,
        case: &str,
        limit: usize,
        (value, key): (&str, Option<&str>),
    ) -> Result<Self> {
        let names = [("arg0", Known::Argument(0, Int::U64)), ("dur", Known::Took)];
        let names = names.map(|(name, known)| (name.to_owned(), Symbol::Known(known)));
        let group_by =
            key.map(|key| parse(key, &names)).transpose()?.map_or(GroupBy::Nothing, GroupBy::Number);
        let tally = Tally { value: parse(value, &names)?, sort: Sort::Log2, group_by };
        let calls = !tally.trees().all(Tree::is_known_at_entry);
        let filter = Filter::default();
        let filter = if calls { filter.tally_calls(tally) } else { filter.tally(tally, false) };
        let filter = filter.context("it is known in the target")?;
        let builder = Session::builder().pid(pid).probe(&probe(case, limit)?)?.filters(vec![filter]);
        Self::look(builder.tally(calls)?, |process| {
            process.counts.iter().map(|count| count.site.tactic).collect()
        })
    }
    /// Reported calls with a text of `long` bytes, and all reported calls.
    pub(crate) fn reported(&mut self, long: usize) -> (u64, u64) {
        let (mut reported, mut all) = (0, 0);
        for call in self.session.calls() {
            let len = call.texts.first().map(|text| text.bytes.iter().take_while(|&&b| b != 0).count());
            reported += u64::from(len == Some(long));
            all += 1;
        }
        (reported, all)
    }
    /// Hits that were aggregated, and the number of rows that have any.
    pub(crate) fn tallied(&mut self) -> (u64, usize) {
        let tallies = self.session.tallies();
        let cells = tallies.iter().flat_map(|one| &one.parts).map(|part| part.hits.len()).sum();
        (tallies.iter().map(trapline::aggregation::Tallied::hits).sum(), cells)
    }
    /// Records stacks by frame pointers with at most this many frames, and with `time` also the calls'
    /// returns.
    pub(crate) fn stacks(pid: u32, case: &str, limit: usize, (frames, time): (u8, bool)) -> Result<Self> {
        let builder = Session::builder()
            .pid(pid)
            .probe(&probe(case, limit)?)?
            .ring(if frames == Unwinding::DEEPEST { STACKS } else { RING });
        let session = builder.stacks(Unwinding::FramePointers(frames), time)?;
        Self::look(session, |process| process.counts.iter().map(|count| count.site.tactic).collect())
    }
    /// Number of stacks, with at most this many frames, that fill the rings of two CPUs.
    pub(crate) fn fresh(frames: u8) -> u64 {
        // Words of a record before its stack, and bytes of a ring slot.
        const FIRST: u64 = 6;
        const SLOT: u64 = 64;
        let ring = if frames == Unwinding::DEEPEST { STACKS } else { RING };
        2 * u64::from(ring) / ((FIRST + DEPTH + 1) * 8).next_multiple_of(SLOT)
    }
    /// Reads and discards the records so far.
    pub(crate) fn drain(&mut self) -> Result<()> {
        drop(self.session.calls());
        Ok(())
    }
    fn look(mut session: Session, tactics: fn(&trapline::ProcessReport) -> Vec<Tactic>) -> Result<Self> {
        let reports = session.report();
        let all: Vec<Tactic> = reports.iter().flat_map(tactics).collect();
        let why = || reports.iter().flat_map(|p| p.refused.iter()).map(|r| r.reason.clone()).next();
        let tactic = all.iter().copied().max_by_key(|tactic| *tactic as usize);
        let tactic = tactic.with_context(|| why().unwrap_or_else(|| "nothing was probed".into()))?;
        Ok(Self { session, tactic, sites: all.len() as u64 })
    }
    /// The tactic by which the sites are reached.
    pub(crate) fn tactic(&self) -> &'static str {
        self.tactic.name()
    }
    /// Number of sites.
    pub(crate) fn sites(&self) -> u64 {
        self.sites
    }
    /// Detaches.
    pub(crate) fn finish(self) -> Result<End> {
        let finished = self.session.detach();
        let deepest = finished.stacks.iter().map(|stack| stack.frames.len()).max().unwrap_or(0);
        let summary = finished.summary;
        Ok(End {
            hits: summary.hits,
            missed: summary.missed,
            deepest,
            filtered: summary.filtered.map_or(0, |filtered| filtered.in_target),
            attach: summary.attach_time,
            detach: summary.detach_time,
            stopped: summary.longest_stop,
        })
    }
}
