//! Describes a watch session, and arms it.
//!
//! In: targets, variables as users name them, options. Out: a running [`WatchSession`], with notices about
//! what cannot be seen here. Invariant: SES-2. Does not: wait for accesses.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use trapline_order::Order as _;
use trapline_tracee::{Launched, Parked, Process};
use trapline_watch::spec::WatchSpec;
use trapline_watch::{Access, Options, Progress, WatchError, Watching, cost};

use super::accesses::Watched;
use super::locate::{Locator, Map};
use super::session::{Places, WatchSession, target_of};
use super::watched_places;
use crate::arch::{KERNEL_UNSEEN, REPORTS_ONE_PLACE};
use crate::error::Error;
use crate::procfs::cpu_time;
use crate::session::KillOnDrop;
use crate::target::{Several, Target, gone_notice, resolve};

/// Description of a watch session.
#[derive(Clone, Debug, Default)]
pub struct WatchBuilder {
    target: Target,
    specs: Vec<WatchSpec>,
    options: Options,
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
    /// Whether threads are traced where the machine may lose a trap's reason ([`Shield`](trapline_tracee::Shield)): such a
    /// trap would end the program. Default: yes.
    #[must_use]
    pub const fn shield(mut self, shield: bool) -> Self {
        self.options.shield = shield;
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
            // A parked command is traced to be released, so it is shielded after that.
            let parked_options = trapline_watch::Options { shield: false, ..self.options };
            let mut session =
                Self { options: parked_options, ..self.clone() }.arm(vec![process], Vec::new(), progress)?;
            let failed = |source| Error::Launch { command: words[0].to_string_lossy().into_owned(), source };
            parked.release().map_err(failed)?;
            if self.options.shield {
                session.shield();
            }
            session.hold(launched.0.take());
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
        let (targets, places) = self.find(processes, &mut notices)?;
        let map = Box::new(Map(places.locator.clone()));
        let watching = Watching::start(targets, self.options, map, progress)?;
        notices.extend(watching.ended_unarmed().map(gone_notice));
        notices.extend(blind_spots(&watching));
        notices.extend(neighbours(&places.watched));
        Ok(WatchSession::new(watching, places, cost, notices, self.specs, self.options.forks))
    }
    /// Finds the variables in all processes.
    fn find(
        &self,
        processes: Vec<Process>,
        notices: &mut Vec<String>,
    ) -> Result<(Vec<trapline_watch::Target>, Places), Error> {
        let mut locator = Locator::default();
        let (mut targets, mut watched, mut first, mut misses) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut several = Several::new(processes.len());
        let begins = matches!(self.target, Target::Launch(_));
        for process in processes {
            let pid = process.pid();
            let looked =
                several.one(pid, watched_places::find(&process, &mut locator, &self.specs, begins))?;
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
        misses.order();
        misses.dedup();
        if targets.is_empty() {
            several.end(0)?;
            return Err(Error::NoPlace { misses });
        }
        notices.extend(misses);
        let cpu_began = targets.iter().map(|one| cpu_time(one.process.pid()).unwrap_or_default()).collect();
        let locator = Rc::new(RefCell::new(locator));
        Ok((targets, Places { locator, watched, first, cpu_began }))
    }
}

/// Notices about what cannot be seen here.
fn blind_spots(watching: &Watching) -> Vec<String> {
    let mut notices = Vec::new();
    if let Some(why) = watching.no_bpf() {
        notices.push(format!(
            "values that neither registers nor the value before show are read late: no BPF program may read them at the trap ({why})"
        ));
    }
    if !watching.inherits() {
        notices.push(
            "threads cannot inherit here: each is armed by itself some time after its birth, and what it did before is not seen"
                .into(),
        );
    }
    if !watching.sees_kernel() {
        notices.push(format!(
            "writes by the kernel, such as read(2) into a buffer, are not seen {KERNEL_UNSEEN}"
        ));
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
    let (a, b) = data.iter().enumerate().find_map(close).filter(|_| REPORTS_ONE_PLACE)?;
    Some(format!(
        "{a} and {b} lie close together: of an instruction that touches both, such as stp, arm64's kernel reports one"
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
}
