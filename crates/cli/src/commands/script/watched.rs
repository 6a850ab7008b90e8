//! Watchpoints of a script: `watchpoint:0x10000000:8:w`, or the name of a variable in place of the address.
//!
//! In: a program's attach points. Out: accesses as hits with their blocks. The engine is that of `watch`: a debug register
//! in every thread, and no thread is stopped. Does not: run blocks.

use std::collections::HashMap;
use std::time::Duration;

use trapline::Among;
use trapline::watch::{Accessed, WatchSession, WatchSpec};
use trapline_script::{Hit, Probe, Program};

use super::own;
use super::places::Event;
use super::probing::target;
use super::stop::{Stop, said};

/// What blocks have instead of a function or a record.
const SORT: &str = "watchpoint";

/// Armed watchpoints.
#[derive(Debug)]
pub(super) struct Watched {
    session: WatchSession,
    /// The blocks of a place, by its text.
    blocks: HashMap<String, Vec<usize>>,
    /// Nanoseconds by which the boot clock is ahead of that of accesses.
    ahead: u64,
    /// How many attach points there are.
    pub(super) count: usize,
}

impl Watched {
    /// Arms a program's watchpoints; `None` if it has none. `ahead`: see [`Watched::ahead`].
    pub(super) fn start(
        program: &Program,
        (pid, command): (Option<u32>, Option<&[String]>),
        ahead: u64,
    ) -> Result<Option<Self>, Stop> {
        let mut blocks: HashMap<String, Vec<usize>> = HashMap::new();
        let mut count = 0;
        for (nth, block) in program.blocks.iter().enumerate() {
            for place in block.probes.iter().filter_map(place) {
                blocks.entry(place.to_owned()).or_default().push(nth);
                count += 1;
            }
        }
        if blocks.is_empty() {
            return Ok(None);
        }
        if pid.is_none() && command.is_none() {
            return Err(said("watchpoint: name the process with -p, or its command with -c"));
        }
        let mut others = program.blocks.iter().flat_map(|block| &block.probes);
        let is_mixed = others.any(|probe| probe.is_of_program() && place(probe).is_none());
        if command.is_some() && is_mixed {
            return Err(said("watchpoint: beside other probes it needs a process that runs, given with -p"));
        }
        let specs = blocks.keys().map(|text| text.parse::<WatchSpec>());
        let specs: Result<Vec<WatchSpec>, _> = specs.collect();
        let specs = specs.map_err(|error| said(format!("watchpoint: {error}")))?;
        let builder = WatchSession::builder().target(target(pid, command, &Among::default())).places(specs);
        // Other probes are put in and taken out by tracing, which only one tracer can do.
        let builder = builder.shield(!is_mixed);
        let session = builder.start(&mut |_| {}).map_err(|error| said(error.without_advice().to_string()))?;
        Ok(Some(Self { session, blocks, ahead, count }))
    }
    /// What the session has to say.
    pub(super) fn notices(&mut self) -> Vec<String> {
        self.session.take_notices()
    }
    /// The process that is watched.
    pub(super) fn pid(&self) -> u32 {
        self.session.watched().first().map_or(0, |watched| watched.pid)
    }
    /// Whether a process is left to watch.
    pub(super) fn is_alive(&mut self) -> bool {
        self.session.is_alive()
    }
    /// The accesses since the last time; waits for the first of them.
    pub(super) fn events(&mut self, at_most: Duration) -> Vec<Event> {
        let accesses = self.session.poll(at_most);
        let labels = labels(&self.session);
        events(&accesses, &labels, &self.blocks, self.ahead)
    }
    /// Disarms all, and ends the command that was launched. Returns the accesses that were left, and how many were lost.
    pub(super) fn end(self) -> (Vec<Event>, u64) {
        let (labels, pid) = (labels(&self.session), self.pid());
        let Self { session, blocks, ahead, .. } = self;
        let mut end = session.finish();
        if end.command.as_mut().is_some_and(|command| command.status().is_none()) {
            own::terminate(pid);
        }
        (events(&end.rest, &labels, &blocks, ahead), end.tally.lost)
    }
}

/// The place of a watchpoint.
fn place(probe: &Probe) -> Option<&str> {
    match probe {
        Probe::Watchpoint(place) => Some(place),
        _ => None,
    }
}

fn labels(session: &WatchSession) -> Vec<String> {
    session.watched().iter().map(|watched| watched.label.clone()).collect()
}

/// What accesses are to blocks.
fn events(
    accesses: &[Accessed],
    labels: &[String],
    blocks: &HashMap<String, Vec<usize>>,
    ahead: u64,
) -> Vec<Event> {
    let mut all = Vec::new();
    for Accessed { event, watched, .. } in accesses {
        let Some(label) = labels.get(*watched) else { continue };
        let hit = Hit {
            probe: format!("{SORT}:{label}"),
            sort: SORT,
            pid: event.pid,
            tid: event.tid,
            comm: event.comm.as_bytes().to_vec(),
            nsecs: Some(event.time_ns + ahead),
            ..Hit::default()
        };
        let here = blocks.get(label).into_iter().flatten();
        all.extend(here.map(|block| (*block, hit.clone())));
    }
    all
}
