//! A watch session: accesses, with the code that made them, and programs that are executed meanwhile.
//!
//! In: armed places; accesses and execs as the kernel reports them. Out: [`Accessed`]s, [`NewProgram`]s,
//! [`WatchEnd`]. The variables are looked up again in a program that is executed. No thread is stopped, so
//! the new program runs for a moment before it is armed; that time is reported. Libraries are not mapped
//! yet when a program begins. So what is not found is looked for again until [`PATIENCE_NS`] have passed.
//! Does not: find variables (`watched_places`).

use std::time::Duration;

use trapline_tracee::{Launched, Process};
use trapline_watch::spec::WatchSpec;
use trapline_watch::{Breakpoint, Cost, Event, Exec, Point, Tally, Watching};

use super::accesses::{Accessed, NewProgram, WatchEnd, Watched};
use super::locate::SharedLocator;
use super::watched_places;
use crate::error::Error;
use crate::procfs::cpu_time;
use crate::session::Running;

/// Time limit since the exec; longer than a program takes to map its libraries.
const PATIENCE_NS: u64 = 500_000_000;

/// A running watch session.
#[derive(Debug)]
pub struct WatchSession {
    watching: Watching,
    places: Places,
    cost: Option<Cost>,
    /// CPU time of the processes while they were watched.
    cpu: Duration,
    launched: Option<Launched>,
    notices: Vec<String>,
    /// Variables, which are looked up again in programs that are executed, if `forks` is set.
    specs: Vec<WatchSpec>,
    forks: bool,
    /// Execs in which nothing was found yet.
    unsettled: Vec<Exec>,
    programs: Vec<NewProgram>,
    /// The notice that the program could not go on was given.
    reported_stuck: bool,
}

impl WatchSession {
    pub(super) fn new(
        watching: Watching,
        places: Places,
        cost: Option<Cost>,
        notices: Vec<String>,
        specs: Vec<WatchSpec>,
        forks: bool,
    ) -> Self {
        Self {
            watching,
            places,
            cost,
            cpu: Duration::ZERO,
            launched: None,
            notices,
            specs,
            forks,
            unsettled: Vec::new(),
            programs: Vec::new(),
            reported_stuck: false,
        }
    }
    /// Shields a command that runs now.
    pub(super) fn shield(&mut self) {
        self.watching.shield();
    }
    /// Holds the command that was launched.
    pub(super) fn hold(&mut self, launched: Option<Launched>) {
        self.launched = launched;
    }
    /// All watched places, process by process.
    #[must_use]
    pub fn watched(&self) -> &[Watched] {
        &self.places.watched
    }
    /// Start time, on the clock of accesses.
    #[must_use]
    pub const fn start_ns(&self) -> u64 {
        self.watching.start_ns()
    }
    /// Takes notices that a user should see now; each is returned once.
    pub fn take_notices(&mut self) -> Vec<String> {
        let unshielded = self.watching.take_unshielded().into_iter().map(|(pid, why)| {
            format!(
                "a trap of which this machine loses the reason would end {pid}, as it cannot be traced: {why}"
            )
        });
        self.notices.extend(unshielded);
        std::mem::take(&mut self.notices)
    }
    /// Waits for accesses, for at most `at_most`.
    pub fn poll(&mut self, at_most: Duration) -> Vec<Accessed> {
        let events = self.watching.poll(at_most);
        let accesses = events.into_iter().map(|event| self.places.accessed(event)).collect();
        self.follow_execs();
        self.report_stuck();
        accesses
    }
    /// Adds a notice if watching has ended because the program could not go on.
    fn report_stuck(&mut self) {
        let Some((target, ip)) = self.watching.stuck().filter(|_| !self.reported_stuck) else { return };
        self.reported_stuck = true;
        let at = self.places.locator.borrow_mut().place(target, ip, false);
        self.notices.push(format!(
            "watching has ended: {} stores by an exclusive pair (ldxr, stxr), which a breakpoint lets fail each time, so the program could \
             not go on; what was counted there are its attempts. Built for FEAT_LSE (-march=armv8.1-a) it can be watched",
            at.function
        ));
    }
    /// Counts so far.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.watching.tally()
    }
    /// Whether a process is left to watch.
    #[must_use]
    pub fn is_alive(&mut self) -> bool {
        self.account();
        self.watching.is_alive()
    }
    /// Sums CPU time. A process that ended takes its time with it, so the largest sum seen counts.
    fn account(&mut self) {
        let targets = self.watching.targets().iter().zip(&self.places.cpu_began);
        let spent = targets
            .filter_map(|(target, began)| Some(cpu_time(target.process.pid())?.saturating_sub(*began)));
        self.cpu = self.cpu.max(spent.sum());
    }
    /// Disarms everything.
    #[must_use]
    pub fn finish(mut self) -> WatchEnd {
        self.account();
        let Self { watching, places, cost, cpu, launched, .. } = self;
        let (events, tally) = watching.finish();
        let rest = events.into_iter().map(|event| places.accessed(event)).collect();
        WatchEnd {
            rest,
            tally,
            ns_per_trap: cost.map(|cost| cost.ns_per_trap),
            cpu,
            command: launched.map(Running::new),
        }
    }
    /// Processes that have run another program since the last call, and what is watched there.
    pub fn take_programs(&mut self) -> Vec<NewProgram> {
        std::mem::take(&mut self.programs)
    }
    fn follow_execs(&mut self) {
        let mut execs = std::mem::take(&mut self.unsettled);
        let new = self.watching.take_execs();
        // A later exec of the same process replaces an earlier one.
        execs.retain(|one| !new.iter().any(|later| later.pid == one.pid));
        for exec in execs.into_iter().chain(new) {
            let looked = if self.forks { self.look_again(&exec) } else { Ok(Vec::new()) };
            let waited = trapline_tracee::perf::monotonic_ns().saturating_sub(exec.time_ns);
            let last = self.places.watched.len();
            let (found, misses) = match looked {
                Ok(misses) if self.forks => (self.places.found_last(), misses),
                Ok(_) => (0, vec!["it is not watched any more; -f follows it".to_owned()]),
                Err(Error::NoPlace { .. }) if waited < PATIENCE_NS => {
                    self.unsettled.push(exec);
                    continue;
                }
                Err(Error::NoPlace { misses }) => (0, misses),
                Err(error) => (0, vec![error.to_string()]),
            };
            self.programs.push(NewProgram {
                pid: exec.pid,
                comm: exec.comm,
                time_ns: exec.time_ns,
                watched: last - found..last,
                unwatched: Duration::from_nanos(waited),
                misses,
            });
        }
    }
    /// Finds the places in the new program, and arms them. Returns what was not found.
    fn look_again(&mut self, exec: &Exec) -> Result<Vec<String>, Error> {
        let process = Process::open(exec.pid)?;
        let known = self.watching.targets().len();
        let armed = self.arm_again(process);
        if armed.is_err() {
            self.places.locator.borrow_mut().keep_first(known);
        }
        armed
    }
    fn arm_again(&mut self, process: Process) -> Result<Vec<String>, Error> {
        let pid = process.pid();
        let (found, misses) =
            watched_places::find(&process, &mut self.places.locator.borrow_mut(), &self.specs, false)?;
        if found.is_empty() {
            return Err(Error::NoPlace { misses });
        }
        self.watching.add(target_of(process, &found), &mut |_| {})?;
        // What the process used before counts with its former program.
        let known = self.places.watched.iter().any(|one: &Watched| one.pid == pid);
        let cpu_began = if known { Duration::MAX } else { cpu_time(pid).unwrap_or_default() };
        self.places.add(found, cpu_began);
        Ok(misses)
    }
}

/// Watched places, target by target.
#[derive(Debug)]
pub(super) struct Places {
    pub(super) locator: SharedLocator,
    pub(super) watched: Vec<Watched>,
    /// Index in `watched` of each target's first place.
    pub(super) first: Vec<usize>,
    /// CPU time that each target had used before.
    pub(super) cpu_began: Vec<Duration>,
}

impl Places {
    /// Adds the places of one more target.
    fn add(&mut self, found: Vec<Watched>, cpu_began: Duration) {
        self.cpu_began.push(cpu_began);
        self.first.push(self.watched.len());
        self.watched.extend(found);
    }
    /// Number of places of the target that was added last.
    fn found_last(&self) -> usize {
        self.watched.len() - self.first.last().copied().unwrap_or(0)
    }
    /// An access, with the code that made it.
    fn accessed(&self, event: Event) -> Accessed {
        let mut locator = self.locator.borrow_mut();
        let target = event.target;
        // A return address is after its call; the instruction itself is at the address.
        let by = locator.place(target, event.ip, false);
        // Code without frame pointers leaves anything in rbp, so the chain ends at the first address that is not
        // code.
        let known =
            event.stack.iter().map_while(|&ip| locator.is_code(target, ip).then_some(ip)).collect::<Vec<_>>();
        let stack = known.into_iter().map(|ip| locator.place(target, ip, true)).collect();
        Accessed { watched: self.first.get(target).copied().unwrap_or(0) + event.point, by, stack, event }
    }
}

/// A process and its places, as `trapline_watch` takes them.
pub(super) fn target_of(process: Process, found: &[Watched]) -> trapline_watch::Target {
    let point = |one: &Watched| Point {
        at: Breakpoint { addr: one.addr, len: one.len, access: one.access },
        label: one.label.clone(),
    };
    trapline_watch::Target { points: found.iter().map(point).collect(), process }
}
