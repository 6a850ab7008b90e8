//! Trapline itself, attached through its library as an embedder would.

use std::time::Duration;

use anyhow::{Context as _, Result};
use trapline::{Session, Tactic};

/// Bytes of a CPU's ring of records: a millisecond of the shortest.
const RING: u32 = 16 << 20;

/// Probes in place.
#[derive(Debug)]
pub(crate) struct Ours {
    session: Session,
    /// The least preferred tactic in use.
    tactic: Tactic,
    sites: u64,
}

/// What a session told at its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) hits: u64,
    pub(crate) missed: u64,
    pub(crate) attach: Duration,
    pub(crate) detach: Duration,
    pub(crate) stopped: Duration,
}

/// A probe that means the first `limit` functions of a case; for `walk`, `limit` is a power of ten.
fn probe(case: &str, limit: usize) -> Result<String> {
    let path = std::env::current_exe()?;
    let path = path.to_str().context("this program's path is not UTF-8")?;
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
    /// Times from entry to exit.
    pub(crate) fn time(pid: u32, case: &str, limit: usize) -> Result<Self> {
        let session = Session::builder().pid(pid).probe(&probe(case, limit)?)?.latency()?;
        Self::look(session, |process| {
            process.times.iter().filter_map(|times| Some(times.site.as_ref()?.tactic)).collect()
        })
    }
    /// Records entries, and with `returns` exits, with so many arguments.
    pub(crate) fn record(pid: u32, case: &str, limit: usize, arguments: u8, returns: bool) -> Result<Self> {
        let builder = Session::builder().pid(pid).probe(&probe(case, limit)?)?.ring(RING);
        let session = builder.record(arguments, returns)?;
        Self::look(session, |process| process.counts.iter().map(|count| count.site.tactic).collect())
    }
    /// Takes what was recorded.
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
    /// How the sites are reached.
    pub(crate) fn tactic(&self) -> &'static str {
        self.tactic.name()
    }
    /// How many sites there are.
    pub(crate) fn sites(&self) -> u64 {
        self.sites
    }
    /// Detaches.
    pub(crate) fn finish(self) -> Result<End> {
        let summary = self.session.detach().summary;
        Ok(End {
            hits: summary.hits,
            missed: summary.missed,
            attach: summary.attach_time,
            detach: summary.detach_time,
            stopped: summary.longest_stop,
        })
    }
}
