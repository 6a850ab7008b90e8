//! Processes of later in a session: waited for, probed when they arrive, let go.
//!
//! In: arrivals (`crate::arriving`). Out: processes under trace; notices, and processes that are not probed.
//! Invariants: SES-2. Does not: choose the files to wait for.

use trapline_tracee::{Among, Arrival, Process, TargetError};

use super::processes::{Processes, has_ours};
use crate::arriving::Arriving;
use crate::target::mapping_processes;

impl Processes {
    /// Waits for processes of later, or notes why that is not possible. Before those that are there are looked for,
    /// so that none comes in between.
    pub(super) fn wait_for_later(&mut self, among: &Among) {
        match Arriving::start(&self.requested.specs, among) {
            Ok(arriving) => self.arriving = Some(arriving),
            Err(why) => self.notices.push(why),
        }
    }
    /// Waits for the files of these processes that probes name.
    pub(super) fn want_files_of(&mut self, processes: &[Process]) {
        let Some(arriving) = &self.arriving else { return };
        let wanted =
            processes.iter().flat_map(|process| arriving.want_mapped(process, &self.requested.specs));
        self.notices.extend(wanted.collect::<Vec<_>>());
    }
    /// Probes processes of later that have arrived.
    pub(super) fn probe_arrived(&mut self) {
        let Some(arriving) = &mut self.arriving else { return };
        let (arrivals, again) = (arriving.take(), arriving.looks_again());
        for arrival in arrivals {
            match arrival {
                Arrival::Parked(parked) => self.probe_parked(parked),
                Arrival::Running { pid, late } => {
                    self.add_running(Process::open(pid));
                    self.notices.extend(late.then(|| late_notice(pid)));
                }
                Arrival::Ended => self.notices.push(
                    "programs that start from now on are not traced, as no descriptors are left (ulimit -n)"
                        .to_owned(),
                ),
                Arrival::Missed { pid, why } => self.is_unprobed(pid, &why),
            }
        }
        if again {
            let among = self.arriving.as_ref().map(|arriving| arriving.among().clone()).unwrap_or_default();
            let found = mapping_processes(&self.requested.specs, &among).unwrap_or_default();
            found.into_iter().for_each(|process| self.add_running(Ok(process)));
        }
        self.notices.extend(self.following.take_strayed());
    }
    /// Adds a process that runs, if it is not traced already.
    fn add_running(&mut self, process: Result<Process, TargetError>) {
        let Ok(process) = process else { return };
        let pid = process.pid();
        // A forked child has its parent's patches.
        if has_ours(&process)
            || self.traced.iter().any(|traced| traced.ended.is_none() && traced.pid() == pid)
        {
            return;
        }
        if let Err(error) = self.add(process, false)
            && !error.is_gone()
        {
            self.is_unprobed(pid, &error);
        }
    }
}

/// Notice about a process that was not held at its start.
fn late_notice(pid: u32) -> String {
    let name = trapline_tracee::comm(pid);
    format!("{name} ({pid}) was not held before it ran: its calls until it was probed were not seen")
}
