//! The beginning of a session: its processes that run already, or the command that is launched.
//!
//! In: a target. Out: processes under trace; the command, which runs on. Invariants: SES-1, SES-2. Does not: look again,
//! or follow.

use std::ffi::OsString;
use std::process::Command;

use trapline_patch::PatchError;
use trapline_tracee::perf::allow_files;
use trapline_tracee::{Interrupt, Launched, Parked, TargetError, why_not_held};

use super::command::{KillOnDrop, Running};
use super::processes::Processes;
use crate::error::Error;
use crate::everyone::Everyone;
use crate::listing::list;
use crate::maps::MapTable;
use crate::progress::Step;
use crate::report::Unprobed;
use crate::target::{Several, Target, gone_notice, resolve};

impl Processes {
    /// Adds the processes of a target. Without following, at least one place must be probed then.
    pub(super) fn start(&mut self, target: &Target) -> Result<(), Error> {
        self.notices.extend(self.following.start());
        if let Target::Launch(words) = target {
            return self.launch(words);
        }
        if let Target::All(among) = target {
            self.watch_everyone();
            self.wait_for_later(among);
        }
        self.attach(target)?;
        if self.arriving.is_some() && self.check().is_err() {
            // A mistyped name would be waited for without end.
            return list(target, &self.requested, None).map(drop);
        }
        if self.requested.waits {
            return Ok(());
        }
        self.check().map_err(|error| self.ended_meanwhile().unwrap_or(error).with_follow(false))
    }
    /// Reads names of all threads of the machine together, if names matter: each process would take descriptors of its
    /// own.
    fn watch_everyone(&mut self) {
        let names = self.requested.maps.iter().any(MapTable::names_threads);
        if names || std::mem::take(&mut self.requested.follows_threads) {
            self.requested.everyone = Everyone::start().ok();
        }
    }
    /// Starts a command, probes it at its entry point, and lets it run. If probing fails, the command runs
    /// unprobed. A probe that matches nothing, such as a mistyped name, is an error before the command runs;
    /// not where programs are followed, since a later one may match.
    fn launch(&mut self, words: &[OsString]) -> Result<(), Error> {
        let Some((program, args)) = words.split_first() else { return Ok(()) };
        let command = || {
            let mut command = Command::new(program);
            command.args(args);
            command
        };
        let failed = |source| Error::Launch { command: program.to_string_lossy().into_owned(), source };
        let (launched, parked) = match Launched::start(command()) {
            Ok(started) => started,
            Err(error) => {
                let Some(why) = why_not_held(&error) else { return Err(failed(error)) };
                let launched = Launched::unheld(command()).map_err(failed)?;
                self.is_unprobed(launched.pid(), &why);
                self.command = Some(Running::new(launched));
                return Ok(());
            }
        };
        let pid = launched.pid();
        let mut launched = KillOnDrop(Some(launched));
        let Some(parked) = parked else {
            self.unprobed.push(Unprobed::new(
                pid,
                format!("{} ended before its first instruction", program.display()),
            ));
            self.command = launched.0.take().map(Running::new);
            return Ok(());
        };
        self.probe_launched(parked, failed)?;
        self.command = launched.0.take().map(Running::new);
        Ok(())
    }
    /// Probes a launched command that waits at its entry point, and lets it run.
    fn probe_launched(
        &mut self,
        parked: Parked,
        failed: impl Fn(std::io::Error) -> Error,
    ) -> Result<(), Error> {
        let pid = parked.pid();
        allow_many();
        self.requested.progress.say(Step::Attaching { done: 0, of: 1 });
        match parked.process() {
            Ok(process) => self.add(process, false)?,
            Err(error) => self.is_unprobed(pid, &error),
        }
        if let Err(error @ (Error::NoMatch { .. } | Error::LeftOut { .. })) = self.check()
            && !self.requested.waits
            && self.unprobed.is_empty()
        {
            return Err(error.with_follow(true));
        }
        let may = self.may_follow(pid);
        self.requested.progress.say(Step::Released);
        self.let_go(parked, may).map_err(failed)?;
        self.notices.extend(self.following.take_strayed());
        Ok(())
    }
    /// What became of a process that was named explains more than what was refused in it.
    fn ended_meanwhile(&self) -> Option<Error> {
        let ended = self.traced.iter().find(|one| one.is_asked_for && one.has_ended())?;
        let how = "it ended while it was being probed".to_owned();
        Some(TargetError::Gone { pid: ended.pid(), how }.into())
    }
    /// Adds the processes of a target that run already.
    fn attach(&mut self, target: &Target) -> Result<(), Error> {
        let named = matches!(target, Target::Running { pids, .. } if !pids.is_empty());
        let processes = match resolve(target, &self.requested.specs, &mut self.notices) {
            Err(Error::NotMapped { .. }) if self.arriving.is_some() => Vec::new(),
            resolved => resolved?,
        };
        self.want_files_of(&processes);
        allow_many();
        let mut several = Several::new(processes.len());
        let of = processes.len();
        self.requested.options.obeys_signals = true;
        for (done, process) in processes.into_iter().enumerate() {
            self.requested.progress.say(Step::Attaching { done, of });
            let pid = process.pid();
            if Interrupt::is_pending() {
                return Err(PatchError::Interrupted { pid }.into());
            }
            if self.may_follow(pid) {
                self.notices.extend(self.following.add(pid));
            }
            let added = self.add(process, named);
            if several.one(pid, added)?.is_none() {
                self.notices.push(gone_notice(pid));
            }
        }
        self.requested.options.obeys_signals = false;
        let asked_for = matches!(target, Target::Running { .. });
        self.traced.iter_mut().for_each(|traced| traced.is_asked_for = asked_for);
        several.end(self.traced.len())
    }
}

/// Raises our limit of descriptors: each process takes some, and one more for each CPU. After a command is launched,
/// which would inherit the limit. Where it may not be raised, processes that find none left are reported.
fn allow_many() {
    const DESCRIPTORS: u64 = 1 << 16;
    drop(allow_files(DESCRIPTORS));
}
