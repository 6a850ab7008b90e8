//! Traps of which the machine lost the reason: whose they were is worked out from registers and code.
//!
//! In: the [`Shield`]'s traps. Out: events like all others, of uncertain order. Invariants: WCH-5; WCH-6 a trap without a
//! reason is an event, or is counted as unexplained. Does not: trace.
//!
//! The point is known if the instruction before the trap is the only candidate whose effect touches watched bytes. Another
//! thread may have written them since, so the value is believed only where registers show it.

use trapline_tracee::perf::Access;
use trapline_tracee::{Forks, LostTrap, Shield};

use super::stream::Entry;
use super::words::{Event, Target, Trap};
use super::{Options, Watching};
use crate::native;
use crate::record::Sample;

/// A shield over all targets if this machine needs one; and the processes that it cannot cover, with the reasons.
pub(super) fn over(targets: &[Target], options: Options) -> (Option<Shield>, Vec<(u32, String)>) {
    let alive = targets.iter().filter(|target| target.process.alive());
    let pids = alive.map(|target| target.process.pid());
    if !options.shield || !Shield::is_needed() {
        return (None, Vec::new());
    }
    match Shield::start(if options.forks { Forks::Covered } else { Forks::Left }) {
        Ok(shield) => {
            let refused = pids.filter_map(|pid| Some((pid, shield.cover(pid).err()?.to_string()))).collect();
            (Some(shield), refused)
        }
        Err(error) => (None, pids.map(|pid| (pid, error.to_string())).collect()),
    }
}

impl Watching {
    /// Traces all targets from now on, if this machine may lose a trap's reason. For programs that could not be traced
    /// when watching began ([`Options::shield`] was false).
    pub fn shield(&mut self) {
        self.options.shield = true;
        (self.shield, self.unshielded) = over(&self.targets, self.options);
    }
    /// Processes that a trap without its reason would end, and why they cannot be covered. Each is returned once.
    pub fn take_unshielded(&mut self) -> Vec<(u32, String)> {
        std::mem::take(&mut self.unshielded)
    }
    /// Covers a process that has executed another program.
    pub(super) fn cover_again(&mut self, pid: u32) {
        let failed = self.shield.as_ref().and_then(|shield| shield.cover(pid).err());
        self.unshielded.extend(failed.map(|error| (pid, error.to_string())));
    }
    /// Takes the lost traps since the last call.
    pub(super) fn take_lost(&mut self) {
        let lost = self.shield.as_ref().map(Shield::lost).unwrap_or_default();
        self.push_lost(lost);
    }
    /// Detaches from all threads, behind the last trap.
    pub(super) fn end_shield(&mut self) {
        let lost = self.shield.take().map(|mut shield| shield.stop()).unwrap_or_default();
        self.push_lost(lost);
    }
    fn push_lost(&mut self, lost: Vec<LostTrap>) {
        for LostTrap { pid, tid, time_ns, regs } in lost {
            self.tally.lost_traps += 1;
            let regs = regs.first_chunk().map(native::user_regs);
            let ip = regs.map_or(0, |regs| regs.ip);
            self.stream
                .push(time_ns, Entry::Lost(Sample { pid, tid, time_ns, regs, ip, ..Sample::default() }));
        }
    }
    /// Reports a lost trap, if its registers show what was accessed.
    pub(super) fn explain(&mut self, sample: Sample, events: &mut Vec<Event>) {
        let Some(target) = self.members.get(&sample.tid).map(|member| member.target) else {
            self.tally.unexplained += 1;
            return;
        };
        // A breakpoint on an instruction traps before that, and does so again when the thread goes on.
        let Target { points, .. } = &self.targets[target];
        if points.iter().any(|point| point.at.access == Access::Execute && point.at.addr.0 == sample.ip) {
            return;
        }
        let touched = self.accesses.touched(target, &self.targets[target], &sample);
        self.tally.unexplained += u64::from(touched.is_empty());
        let mut trap = Trap { sample, word: None, disputed: true };
        for point in touched {
            trap.sample.addr = self.targets[target].points[point].at.addr.0;
            events.push(self.reported(target, point, &trap));
        }
    }
}
