//! Follows watched threads: births, ends, execs, in the order of time.
//!
//! In: the kernel's records. Out: which thread is watched under which target, and the debug registers that
//! each holds in our account. A thread that is born whole has its breakpoints already. One of which that
//! is not known is armed here, late, and counted as late: where the kernel does not let threads inherit, and where its
//! maker was creating it while that was armed ([`crate::settle`]).

use std::time::Duration;

use trapline_tracee::perf::{NotArmed, monotonic_ns};

use super::Watching;
use super::words::{Exec, Member, name_of};
use crate::accounts::Reserved;
use crate::arm::{Armory, NotNow};
use crate::record::{Task, TaskRecord};

impl Watching {
    pub(super) fn became(&mut self, record: TaskRecord) {
        let TaskRecord { what, pid, tid, time_ns, whole, .. } = record;
        match what {
            Task::Fork { parent, parent_pid } => {
                let name = self.names.entry(parent).or_insert_with(|| name_of(parent)).clone();
                self.names.insert(tid, name);
                if pid == parent_pid || self.options.forks {
                    self.born(parent, (pid, tid), (time_ns, whole));
                }
            }
            Task::Exit => {
                self.members.remove(&tid);
                self.accesses.ended(tid);
            }
            Task::Comm(name) => drop(self.names.insert(tid, name.into())),
            Task::Exec(comm) => {
                self.names.insert(tid, comm.as_str().into());
                self.disarm(pid);
                self.execed.insert(pid, time_ns);
                if self.options.forks || self.targets.iter().any(|target| target.process.pid() == pid) {
                    self.execs.push(Exec { pid, comm, time_ns });
                }
            }
        }
    }
    /// Drops a process that executed another program. Inherited events are gone by then. Those of a thread
    /// that could not inherit are closed here.
    fn disarm(&mut self, pid: u32) {
        let Self { members, groups, inherit, .. } = self;
        if !*inherit {
            let is_its = |tid: u32| members.get(&tid).is_some_and(|member| member.pid == pid);
            groups.iter_mut().for_each(|group| group.threads.retain(|one| !is_its(one.tid)));
        }
        members.retain(|_, member| member.pid != pid);
    }
    fn born(&mut self, parent: u32, (pid, tid): (u32, u32), (time_ns, whole): (u64, bool)) {
        let Some(target) = self.members.get(&parent).map(|member| member.target) else { return };
        // It was born while all were being armed, and was armed itself.
        if self.members.get(&tid).is_some_and(|member| member.own) {
            return;
        }
        self.tally.born += 1;
        if !(self.inherit && whole) {
            self.arm_birth(target, (pid, tid), Some(time_ns));
            // What it created meanwhile may lack events as well, and no record may show it.
            if self.inherit {
                self.births.read();
                self.find_births();
            }
            return;
        }
        // An older thread with this number has ended.
        self.members.remove(&tid);
        let points = self.groups[target].points_now(&self.targets[target]);
        // The kernel has given the registers already. The account may only be behind, if our other threads
        // have not given theirs back yet.
        let reserved = Reserved::take(tid, &points).unwrap_or_default();
        self.members.insert(tid, Member { pid, target, own: false, reserved });
    }
    /// Arms a new thread that may have inherited too little.
    fn arm_birth(&mut self, target: usize, (pid, tid): (u32, u32), born_ns: Option<u64>) {
        self.members.remove(&tid);
        let points = self.groups[target].points_now(&self.targets[target]);
        let mut armory = Armory { rings: &self.rings, births: &mut self.births, inherit: false };
        let enabled = armory.arm_thread(tid, &points).and_then(|mut thread| {
            let failed = |source| NotNow::from(NotArmed { tid, cpu: 0, source });
            for armed in &thread.armed {
                for id in armed.ids().map_err(failed)? {
                    self.ids.insert(id, (target, tid));
                }
            }
            let reserved = std::mem::take(&mut thread.reserved);
            self.members.insert(tid, Member { pid, target, own: true, reserved });
            self.groups[target].threads.push(thread);
            Ok(())
        });
        match enabled {
            Ok(()) => {
                self.tally.late += 1;
                let gap = born_ns.map_or(0, |born_ns| monotonic_ns().saturating_sub(born_ns));
                self.tally.latest = self.tally.latest.max(Duration::from_nanos(gap));
            }
            Err(_) => self.tally.unwatched += 1,
        }
    }
    /// Finds new threads by listing, where records of births may be missing.
    pub(super) fn find_births(&mut self) {
        for target in 0..self.targets.len() {
            let process = &self.targets[target].process;
            let pid = process.pid();
            let gone = self.execed.get(&pid).is_some_and(|&when| self.since_ns[target] < when);
            let listed = if gone { Vec::new() } else { process.threads().unwrap_or_default() };
            for tid in listed {
                let is_whole = self.inherit && self.births.is_whole(tid);
                if !(is_whole || self.members.contains_key(&tid)) {
                    self.tally.born += 1;
                    self.arm_birth(target, (pid, tid), None);
                }
            }
        }
    }
}
