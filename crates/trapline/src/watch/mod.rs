//! Watchpoints: which code wrote a variable, when, and what value.
//!
//! In: variables as users name them, processes. Out: [`Accessed`]s with functions and lines, and at the end
//! what was not seen. Invariants: WCH-1…5 of `trapline-watch`; SES-2. Does not: print, wait, handle signals.
//!
//! If the address is already known, there is a shorter way, without names and lines:
//!
//! ```
//! use std::sync::atomic::{AtomicU64, Ordering};
//! use trapline::watch::{WatchError, Watchpoint};
//!
//! static COUNTER: AtomicU64 = AtomicU64::new(0);
//! # fn main() -> Result<(), WatchError> {
//! let addr = COUNTER.as_ptr().expose_provenance() as u64;
//! let here = Watchpoint::on(std::process::id());
//! let mut writes = match here.write(addr, 8).count() {
//!     Ok(writes) => writes,
//!     // A virtual machine without debug registers, no right to use them, none free: each says so.
//!     Err(error @ (WatchError::NoHardware { .. } | WatchError::Denied { .. } | WatchError::NoRegisters(_))) => {
//!         println!("SKIP: {error}");
//!         return Ok(());
//!     }
//!     Err(error) => return Err(error),
//! };
//! COUNTER.store(7, Ordering::Relaxed);
//! assert_eq!(writes.value(), 1);
//!
//! let mut events = here.write(addr, 8).events()?;
//! COUNTER.store(42, Ordering::Relaxed);
//! let event = events.next().expect("it was written");
//! assert_eq!(event.change.after, Some(42));
//! # Ok(())
//! # }
//! ```

mod exec;
mod locate;
mod watched_places;

pub use exec::NewProgram;

pub use trapline_image::{Encoding, Line};
pub use trapline_watch::expr::{Expr, ExprError, Facts};
pub use trapline_watch::spec::{WatchPlace, WatchSpec, WatchSpecError};
pub use trapline_watch::value::{Change, ValueSource};
pub use trapline_watch::{
    Access, AccessKind, Armable, Counter, Event, Events, NoRegisters, Progress, Tally, WatchError, Watchpoint,
};

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

pub use trapline_record::RemoteAddr;
use trapline_tracee::{Launched, Parked, Process};
use trapline_watch::{Breakpoint, Cost, Exec, Options, Point, Watching, cost};

use crate::error::Error;
use crate::session::{KillOnDrop, Running};
use crate::target::{Several, Target, gone_notice, resolve};
use crate::traced::cpu_time;

use locate::{Locator, SharedLocator};

/// Description of a watch session.
#[derive(Clone, Debug, Default)]
pub struct WatchBuilder {
    target: Target,
    specs: Vec<WatchSpec>,
    options: Options,
}

/// A place that is watched in a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Watched {
    /// Process id.
    pub pid: u32,
    /// Name of the process.
    pub process: String,
    /// Name that the user gave.
    pub label: String,
    /// Address of the first byte.
    pub addr: RemoteAddr,
    /// Length in bytes.
    pub len: u8,
    /// Kind of accesses.
    pub access: Access,
    /// How its bytes are interpreted.
    pub encoding: Encoding,
}

/// A place in code.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Where {
    /// `function+0x12`, with the library before it; an address if nothing is known.
    pub function: String,
    /// Source file and line.
    pub line: Option<(String, u32)>,
}

/// One access.
#[derive(Clone, Debug)]
pub struct Accessed {
    /// The access itself.
    pub event: Event,
    /// Index into [`WatchSession::watched`].
    pub watched: usize,
    /// Code that made it.
    pub by: Rc<Where>,
    /// Callers of that code, innermost first, if requested.
    pub stack: Vec<Rc<Where>>,
}

/// A running watch session.
#[derive(Debug)]
pub struct WatchSession {
    watching: Watching,
    locator: SharedLocator,
    watched: Vec<Watched>,
    /// Index in `watched` of each target's first place.
    first: Vec<usize>,
    cost: Option<Cost>,
    cpu_began: Vec<Duration>,
    cpu: Duration,
    launched: Option<Launched>,
    notices: Vec<String>,
    specs: Vec<WatchSpec>,
    forks: bool,
    /// Execs in which nothing was found yet.
    unsettled: Vec<Exec>,
    programs: Vec<NewProgram>,
    /// The notice that the program could not go on was given.
    reported_stuck: bool,
}

/// What a watch session returns at its end.
#[derive(Debug)]
pub struct WatchEnd {
    /// Accesses that were not handed out before.
    pub rest: Vec<Accessed>,
    /// What was not seen, and what arming took.
    pub tally: Tally,
    /// Nanoseconds by which one access was slowed down, measured at the start in the tracer itself.
    pub ns_per_trap: Option<f64>,
    /// CPU time of the processes while they were watched.
    pub cpu: Duration,
    /// The launched command, if there was one.
    pub command: Option<Running>,
}

impl WatchBuilder {
    /// Sets the processes.
    #[must_use]
    pub fn target(mut self, target: Target) -> Self {
        self.target = target;
        self
    }
    /// Adds variables.
    #[must_use]
    pub fn places(mut self, specs: impl IntoIterator<Item = WatchSpec>) -> Self {
        self.specs.extend(specs);
        self
    }
    /// Watches forked children too, and programs that they or the processes run by exec; the variables are
    /// looked up again there.
    #[must_use]
    pub const fn forks(mut self, forks: bool) -> Self {
        self.options.forks = forks;
        self
    }
    /// Records the callers of each access, by frame pointers.
    #[must_use]
    pub const fn stack(mut self, stack: bool) -> Self {
        self.options.stack = stack;
        self
    }
    /// Whether threads may inherit the breakpoints of the thread that makes them, where the kernel supports
    /// that. Otherwise each thread is armed by itself some time after its birth.
    #[must_use]
    pub const fn inherit(mut self, inherit: bool) -> Self {
        self.options.inherit = inherit;
        self
    }
    /// Whether a BPF program may read values at the trap.
    #[must_use]
    pub const fn bpf(mut self, bpf: bool) -> Self {
        self.options.bpf = bpf;
        self
    }
    /// Takes turns of this length if there are not enough debug registers.
    #[must_use]
    pub const fn rotate(mut self, slice: Option<Duration>) -> Self {
        self.options.rotate = slice;
        self
    }
    /// Arms everything, in all threads of all processes, or nothing.
    ///
    /// # Errors
    /// If a process cannot be traced, a variable is not found, or a thread cannot be armed.
    pub fn start(self, progress: &mut dyn FnMut(Progress)) -> Result<WatchSession, Error> {
        if let Target::Launch(words) = self.target.clone() {
            let (launched, parked) = launch(&words)?;
            let mut launched = KillOnDrop(Some(launched));
            let process = Process::open(parked.pid())?;
            let mut session = self.arm(vec![process], Vec::new(), progress)?;
            let failed = |source| Error::Launch { command: words[0].to_string_lossy().into_owned(), source };
            parked.release().map_err(failed)?;
            session.launched = launched.0.take();
            return Ok(session);
        }
        let mut notices = Vec::new();
        let processes = resolve(&self.target, &[], &mut notices)?;
        self.arm(processes, notices, progress)
    }
    fn arm(
        self,
        processes: Vec<Process>,
        mut notices: Vec<String>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<WatchSession, Error> {
        let cost = match cost(self.options) {
            Ok(cost) => Some(cost),
            Err(error @ WatchError::NoHardware { .. }) => return Err(error.into()),
            // The tracer's own debug registers are in use, or it may not use them; arming reports the reason.
            Err(_) => None,
        };
        let mut locator = Locator::default();
        let (mut targets, mut watched, mut first, mut misses) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut several = Several::new(processes.len());
        for process in processes {
            let pid = process.pid();
            let looked = several.one(pid, watched_places::find(&process, &mut locator, &self.specs))?;
            let Some((found, missed)) = looked else {
                notices.push(gone_notice(pid));
                continue;
            };
            misses.extend(missed);
            if found.is_empty() {
                continue;
            }
            first.push(watched.len());
            targets.push(target_of(process, &found));
            watched.extend(found);
        }
        misses.sort();
        misses.dedup();
        if targets.is_empty() {
            several.end(0)?;
            return Err(Error::NoPlace { misses });
        }
        notices.extend(misses);
        let cpu_began = targets.iter().map(|one| cpu_time(one.process.pid()).unwrap_or_default()).collect();
        let locator = Rc::new(RefCell::new(locator));
        let watching =
            Watching::start(targets, self.options, Box::new(locate::Map(locator.clone())), progress)?;
        notices.extend(watching.ended_unarmed().map(gone_notice));
        notices.extend(blind_spots(&watching));
        notices.extend(neighbours(&watched));
        Ok(WatchSession {
            watching,
            locator,
            watched,
            first,
            cost,
            cpu_began,
            cpu: Duration::ZERO,
            launched: None,
            notices,
            specs: self.specs,
            forks: self.options.forks,
            unsettled: Vec::new(),
            programs: Vec::new(),
            reported_stuck: false,
        })
    }
}

fn target_of(process: Process, found: &[Watched]) -> trapline_watch::Target {
    let point = |one: &Watched| Point {
        at: Breakpoint { addr: one.addr, len: one.len, access: one.access },
        label: one.label.clone(),
    };
    trapline_watch::Target { points: found.iter().map(point).collect(), process }
}

/// Notices about what cannot be seen here.
fn blind_spots(watching: &Watching) -> Vec<String> {
    let mut notices = Vec::new();
    if let Some(why) = watching.no_bpf() {
        notices.push(format!(
            "values that neither registers nor the value before tell are read late: no BPF program may read them at the trap ({why})"
        ));
    }
    if !watching.inherits() {
        notices.push(
            "threads cannot inherit here: each is armed by itself some time after its birth, and what it did before is not seen"
                .into(),
        );
    }
    if !watching.sees_kernel() {
        let why = if cfg!(target_arch = "aarch64") { "on arm64" } else { "without CAP_PERFMON" };
        notices.push(format!("writes by the kernel, such as read(2) into a buffer, are not seen {why}"));
    }
    notices
}

/// Notice about places that one store may touch together, of which arm64's kernel reports only one.
fn neighbours(watched: &[Watched]) -> Option<String> {
    /// Length of the longest stores in bytes, which are of whole vectors.
    const REACH: u64 = 64;
    let data: Vec<&Watched> = watched.iter().filter(|one| one.access != Access::Execute).collect();
    let close = |(index, one): (usize, &&Watched)| {
        let near = |other: &&&Watched| other.pid == one.pid && other.addr.0.abs_diff(one.addr.0) < REACH;
        data[..index].iter().find(near).map(|other| (other.label.clone(), one.label.clone()))
    };
    let (a, b) = data.iter().enumerate().find_map(close).filter(|_| cfg!(target_arch = "aarch64"))?;
    Some(format!(
        "{a} and {b} lie close together: of an instruction that touches both, such as stp, arm64's kernel tells one"
    ))
}

fn launch(words: &[OsString]) -> Result<(Launched, Parked), Error> {
    let (program, args) = words
        .split_first()
        .map_or((OsStr::new(""), &words[..0]), |(program, args)| (program.as_os_str(), args));
    let mut command = Command::new(program);
    command.args(args);
    let failed = |source| Error::Launch { command: program.to_string_lossy().into_owned(), source };
    let (launched, parked) = Launched::start(command).map_err(failed)?;
    let parked =
        parked.ok_or_else(|| failed(std::io::Error::other("it ended before its first instruction")))?;
    Ok((launched, parked))
}

impl WatchSession {
    /// Starts the description of a session.
    #[must_use]
    pub fn builder() -> WatchBuilder {
        WatchBuilder::default()
    }
    /// All watched places, process by process.
    #[must_use]
    pub fn watched(&self) -> &[Watched] {
        &self.watched
    }
    /// Start time, on the clock of accesses.
    #[must_use]
    pub const fn start_ns(&self) -> u64 {
        self.watching.start_ns()
    }
    /// Takes notices that a user should see now; each is returned once.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }
    /// Waits for accesses, for at most `at_most`.
    pub fn poll(&mut self, at_most: Duration) -> Vec<Accessed> {
        let events = self.watching.poll(at_most);
        let accesses = events.into_iter().map(|event| self.accessed(event)).collect();
        self.follow_execs();
        self.report_stuck();
        accesses
    }
    /// Adds a notice if watching has ended because the program could not go on.
    fn report_stuck(&mut self) {
        let Some((target, ip)) = self.watching.stuck().filter(|_| !self.reported_stuck) else { return };
        self.reported_stuck = true;
        let at = self.locator.borrow_mut().place(target, ip, false);
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
        let targets = self.watching.targets().iter().zip(&self.cpu_began);
        let spent = targets
            .filter_map(|(target, began)| Some(cpu_time(target.process.pid())?.saturating_sub(*began)));
        self.cpu = self.cpu.max(spent.sum());
    }
    /// Disarms everything.
    #[must_use]
    pub fn finish(mut self) -> WatchEnd {
        self.account();
        let Self { watching, locator, first, cost, cpu, launched, .. } = self;
        let (events, tally) = watching.finish();
        let rest = events.into_iter().map(|event| accessed(&locator, &first, event)).collect();
        WatchEnd {
            rest,
            tally,
            ns_per_trap: cost.map(|cost| cost.ns_per_trap),
            cpu,
            command: launched.map(Running::new),
        }
    }
    fn accessed(&self, event: Event) -> Accessed {
        accessed(&self.locator, &self.first, event)
    }
}

fn accessed(locator: &SharedLocator, first: &[usize], event: Event) -> Accessed {
    let mut locator = locator.borrow_mut();
    let target = event.target;
    // A return address is after its call; the instruction itself is at the address.
    let by = locator.place(target, event.ip, false);
    // Code without frame pointers leaves anything in rbp, so the chain ends at the first address that is not
    // code.
    let known =
        event.stack.iter().map_while(|&ip| locator.is_code(target, ip).then_some(ip)).collect::<Vec<_>>();
    let stack = known.into_iter().map(|ip| locator.place(target, ip, true)).collect();
    Accessed { watched: first.get(target).copied().unwrap_or(0) + event.point, by, stack, event }
}
