//! Determines for each access the instruction that made it, and the value that it left.
//!
//! In: samples in the order of time. Out: kind, instruction, [`Change`]. Invariant: WCH-3: a value is derived
//! from what was known before only while nothing can have been missed. Does not: read rings.
//!
//! **The first value.** When all threads are armed, the bytes are read. Then the tracer waits until every CPU
//! has left the trap handler that it may be in. A write before the reading has a sample with a time before
//! the end of this wait. A write after the reading has one with a time after the reading began. So if no
//! sample has a time between these two, the next access finds the value that was read ([`First`]).
//!
//! **Dispute.** If two CPUs accessed the bytes at about the same time, only what the store's own registers
//! show belongs to this access. What was read at the trap may be the other's, and the order of the two is not
//! known.
//!
//! **In flight.** Where a trap comes before the access (arm64), a thread may be kept waiting between its
//! sample and its store for any time. Its store is known to be made when the thread is sampled again, or has
//! ended. While a store of another thread may be outstanding, the present value is not known: then only
//! registers show values, and nothing is derived. A signal that comes between is handled first. After that
//! the access is made, and reported again.
//!
//! **No way out.** If a program can never get past an instruction while that traps, its address is left in
//! [`Accesses::take_stuck`]. The program goes on only when the watch ends.
//!
//! **Doubt.** When a ring may have been full, records may have been dropped from the time of its last record
//! to the time at which it had space again. For that time nothing is derived, and afterwards nothing is
//! derived from what was known then.

use std::collections::HashMap;
use std::rc::Rc;

use trapline_insn::effect::Effect;
use trapline_record::RemoteAddr;
use trapline_tracee::Process;
use trapline_tracee::perf::{Access, Breakpoint};

use super::words::{AccessKind, CodeMap, Event, First, Target, Trap, Where};
use crate::native::{self, Accessor};
use crate::record::Sample;
use crate::site::{self, AHEAD, BACK, Code};
use crate::value::{Chain, Change, Range, ValueSource};

/// Longest function that is decoded from its start, in bytes.
const LONGEST_FUNCTION: u64 = 1 << 20;
/// The kernel's addresses begin here.
const KERNEL: u64 = 1 << 63;

#[derive(Clone, Debug, Default)]
struct Link {
    chain: Chain,
    /// Time of the latest sample, or of a possible loss.
    last_ns: u64,
    /// Threads that may still have their latest access outstanding.
    in_flight: Vec<u32>,
}

impl Link {
    /// Notes that a thread is about to access, so its previous access is done.
    fn arrive(&mut self, tid: u32) {
        self.in_flight.retain(|&other| other != tid);
        if !self.in_flight.is_empty() {
            self.chain.doubt();
        }
        self.in_flight.push(tid);
    }
}

/// The knowledge that is kept from access to access.
pub(super) struct Accesses {
    values: bool,
    links: HashMap<Where, Link>,
    sites: HashMap<(usize, u64), Rc<[Accessor]>>,
    map: Box<dyn CodeMap>,
    /// Number of rings that may be dropping records now.
    doubts: u32,
    /// Target, and an instruction that its program cannot get past.
    stuck: Option<(usize, u64)>,
}

impl Accesses {
    pub(super) fn new(values: bool, map: Box<dyn CodeMap>) -> Self {
        Self { values, links: HashMap::new(), sites: HashMap::new(), map, doubts: 0, stuck: None }
    }
    /// Begins a point, with the value that was read a moment before.
    pub(super) fn begin(&mut self, at: Where, value: Option<u64>) {
        self.links.insert(at, Link { chain: Chain::starting_with(value), ..Link::default() });
    }
    /// Processes the first value, at a time at which no CPU is in a trap handler any more.
    pub(super) fn first(&mut self, first: First) {
        if let Some(link) = self.links.get_mut(&first.at)
            && link.last_ns < first.from_ns
            && link.in_flight.is_empty()
            && self.doubts == 0
        {
            link.chain.is_now(first.value);
        }
    }
    /// Notes that records may be dropped from here on.
    pub(super) const fn doubt(&mut self) {
        self.doubts += 1;
    }
    /// Notes that no records are dropped from here on, although some may have been.
    pub(super) fn trust(&mut self, now_ns: u64) {
        self.doubts = self.doubts.saturating_sub(1);
        for link in self.links.values_mut() {
            link.chain.doubt();
            link.last_ns = now_ns;
        }
    }
    /// Notes that a point was not covered for a time.
    pub(super) fn uncovered(&mut self, target: usize, point: usize) {
        let of = self.links.iter_mut().filter(|(at, _)| (at.1, at.2) == (target, point));
        of.for_each(|(_, link)| link.chain.doubt());
    }
    /// Notes that a thread has ended, so that no access of it is outstanding.
    pub(super) fn ended(&mut self, tid: u32) {
        self.links.values_mut().for_each(|link| link.in_flight.retain(|&other| other != tid));
    }
    /// Target, and an instruction that its program cannot get past while it traps.
    pub(super) const fn take_stuck(&mut self) -> Option<(usize, u64)> {
        self.stuck.take()
    }
    /// The kind of an access, the address of the instruction that made it (of a call: its return address),
    /// and the change.
    pub(super) fn access(
        &mut self,
        of: (usize, &Target),
        point: usize,
        trap: &Trap,
    ) -> (AccessKind, u64, Change) {
        let (target, Target { process, points }) = of;
        let Trap { sample, word, disputed } = trap;
        let at = points[point].at;
        let range = Range { addr: at.addr.0, len: at.len };
        let nothing = Change { before: None, before_exact: false, after: None, how: ValueSource::Unknown };
        if at.access == Access::Execute {
            return (AccessKind::Execute, sample.ip, nothing);
        }
        let regs = sample.regs;
        let in_kernel = sample.ip >= KERNEL;
        let accessed = regs.filter(|_| !in_kernel).and_then(|regs| {
            let sites = self.site(target, process, sample.ip);
            let effects = sites.iter().map(|one| (one, native::effect(one, &regs, range)));
            effects
                .into_iter()
                .find(|(_, effect)| range.touched_by(effect))
                .map(|(one, effect)| (*one, effect))
        });
        if native::TRAPS_BEFORE {
            let whole = accessed.zip(regs).map(|((one, _), regs)| native::whole(&one, &regs));
            self.touch_others(sample.pid, sample.tid, of, point, whole.as_ref());
        }
        let effect = accessed.map(|(_, effect)| effect);
        let link = self.links.entry((sample.pid, target, point)).or_default();
        link.last_ns = sample.time_ns;
        if native::TRAPS_BEFORE {
            link.arrive(sample.tid);
        }
        if self.doubts > 0 {
            link.chain.doubt();
        }
        if accessed.is_some_and(|(one, _)| native::never_ends(&one)) {
            self.stuck = Some((target, sample.ip));
        }
        let change = match (self.values, disputed) {
            (false, _) => nothing,
            (true, false) => link.chain.step(range, effect.as_ref(), *word),
            (true, true) => link.chain.disputed(range, effect.as_ref(), *word),
        };
        let called = || {
            let pushed = native::has_pushed(&regs?, range);
            change.after.filter(|_| pushed && !in_kernel)
        };
        match accessed {
            Some((accessor, _)) if accessor.writes() => (AccessKind::Write, accessor.addr(), change),
            Some((accessor, _)) => (AccessKind::Read, accessor.addr(), change),
            None if in_kernel => (AccessKind::Kernel, regs.map_or(sample.ip, |regs| regs.ip), change),
            None => match called() {
                Some(returns_to) => (AccessKind::Write, returns_to, change),
                // The value that it stores is unknown, but it is a store.
                None if native::TRAPS_BEFORE && at.access == Access::Write => {
                    (AccessKind::Write, sample.ip, change)
                }
                None => (AccessKind::Unknown, sample.ip, change),
            },
        }
    }
    /// Doubts what is known of other points that the instruction touches, since only one of several is
    /// reported.
    fn touch_others(
        &mut self,
        pid: u32,
        tid: u32,
        of: (usize, &Target),
        reported: usize,
        whole: Option<&Effect>,
    ) {
        let (target, Target { points, .. }) = of;
        for (point, other) in points.iter().enumerate().filter(|(point, _)| *point != reported) {
            let range = Range { addr: other.at.addr.0, len: other.at.len };
            let link = self.links.get_mut(&(pid, target, point));
            if let Some(link) = link.filter(|_| whole.is_none_or(|whole| range.touched_by(whole))) {
                link.arrive(tid);
                link.chain.doubt();
            }
        }
    }
    /// The points that the instruction before a trap touched.
    pub(super) fn touched(&mut self, target: usize, of: &Target, sample: &Sample) -> Vec<usize> {
        let Some(regs) = sample.regs else { return Vec::new() };
        let sites = self.site(target, &of.process, sample.ip);
        let is_touched = |at: Breakpoint| {
            let range = Range { addr: at.addr.0, len: at.len };
            let touches = |one| range.touched_by(&native::effect(one, &regs, range));
            match at.access {
                Access::Execute => false,
                Access::Write => {
                    sites.iter().any(|one| one.writes() && touches(one)) || native::has_pushed(&regs, range)
                }
                Access::ReadWrite => sites.iter().any(touches) || native::has_pushed(&regs, range),
            }
        };
        (0..of.points.len()).filter(|&point| is_touched(of.points[point].at)).collect()
    }
    /// Reads values for events that have none. These come late: other accesses may have come between.
    pub(super) fn complete(&mut self, targets: &[Target], events: &mut [Event]) {
        let mut read: HashMap<Where, Option<u64>> = HashMap::new();
        let unreported = |event: &&mut Event| {
            event.change.how == ValueSource::Unknown && event.kind != AccessKind::Execute
        };
        for event in events.iter_mut().filter(unreported) {
            let key = (event.pid, event.target, event.point);
            let target = &targets[event.target];
            let value = *read.entry(key).or_insert_with(|| {
                let same = event.pid == target.process.pid();
                same.then(|| read_bytes(&target.process, target.points[event.point].at)).flatten()
            });
            if let Some(link) = self.links.get_mut(&key) {
                let mut apart = link.chain;
                apart.late(&mut event.change, value);
                link.chain.doubt();
            }
        }
    }
    /// The candidates for an address, decoded once.
    fn site(&mut self, target: usize, process: &Process, ip: u64) -> Rc<[Accessor]> {
        let Self { map, sites, .. } = self;
        sites.entry((target, ip)).or_insert_with(|| decode(target, process, map.as_mut(), ip).into()).clone()
    }
}

fn decode(target: usize, process: &Process, map: &mut dyn CodeMap, ip: u64) -> Vec<Accessor> {
    // Look up the byte before. It belongs to the function even if the access was the function's last
    // instruction.
    let start = map
        .start_of(target, process, RemoteAddr(ip.wrapping_sub(1)))
        .filter(|start| ip.checked_sub(start.0).is_some_and(|len| len <= LONGEST_FUNCTION));
    let addr = start.map_or(ip.saturating_sub(BACK), |start| start.0);
    // Close to the end of a mapping there are fewer bytes behind.
    for ahead in [AHEAD, 0] {
        let mut bytes = vec![0; (ip - addr + ahead) as usize];
        let live = process.read(RemoteAddr(addr), &mut bytes).is_ok();
        let filed = if live { None } else { map.code(target, RemoteAddr(addr), bytes.len() as u64) };
        if let Some(bytes) = filed.or_else(|| live.then_some(bytes)) {
            return site::accessors(Code { bytes: &bytes, addr, in_step: start.is_some() }, ip);
        }
    }
    Vec::new()
}

pub(super) fn read_bytes(process: &Process, at: Breakpoint) -> Option<u64> {
    let mut bytes = [0; 8];
    process.read(at.addr, &mut bytes[..usize::from(at.len.min(8))]).ok()?;
    Some(u64::from_le_bytes(bytes))
}
