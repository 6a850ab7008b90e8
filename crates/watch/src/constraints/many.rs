//! Accounting on a machine of several CPUs. [`constraints`](super) describes the protocol; T1 to C4 name its
//! steps.

use std::sync::atomic::Ordering::Relaxed;

use trapline_order::Order as _;

use super::lanes::{Histogram, Lanes};
use super::rule::{Account, CountOwner, Exchange, POOLS, Picture};
use super::sync::{AtomicU32, Mutex, Patience};
use super::table::TaskTable;
use super::words::{Cpu, Held, Machine, Refusal, TaskId};

#[derive(Debug)]
pub(super) struct Many {
    machine: Machine,
    accounts: TaskTable<Mutex<Account>>,
    lanes: Lanes,
    cpus: Cpus,
}

/// The counts of each CPU.
#[derive(Debug)]
struct Cpus {
    each: Box<[OneCpu]>,
    most: [AtomicU32; POOLS],
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct OneCpu {
    /// Debug registers that CPU targets pin.
    pinned: [AtomicU32; POOLS],
    /// Number of tasks with a breakpoint bound to this CPU, by all that they pin here.
    bound: [Histogram; POOLS],
}

impl Cpus {
    fn at(&self, cpu: Cpu) -> &OneCpu {
        &self.each[cpu.0 as usize]
    }
    /// The CPU on which CPU targets pin most, and how many they pin.
    fn busiest(&self, pool: usize) -> (Cpu, u32) {
        let pinned = |cpu: &OneCpu| cpu.pinned[pool].load(Relaxed);
        let busiest = self.each.iter().map(pinned).enumerate().max_by_key(|&(_, pinned)| pinned);
        busiest.map_or((Cpu(0), 0), |(cpu, pinned)| (Cpu(cpu as u32), pinned))
    }
}

impl Picture for Cpus {
    fn pinned(&self, cpu: Cpu, pool: usize) -> u32 {
        self.at(cpu).pinned[pool].load(Relaxed)
    }
    fn most(&self, pool: usize) -> (u32, impl FnOnce() -> Cpu) {
        (self.most[pool].load(Relaxed), move || self.busiest(pool).0)
    }
}

impl Many {
    pub(super) fn new(machine: Machine) -> Self {
        let each = (0..machine.cpus()).map(|_| OneCpu::default()).collect();
        Self {
            machine,
            accounts: TaskTable::new(),
            lanes: Lanes::new(machine.cpus()),
            cpus: Cpus { each, most: Default::default() },
        }
    }
    pub(super) fn prepare(&self, task: TaskId) {
        self.accounts.get(task);
    }
    pub(super) fn exchange(
        &self,
        place: CountOwner,
        exchange: Exchange,
        patience: Patience,
    ) -> Option<Result<(), Refusal>> {
        match place {
            CountOwner::Task(task, cpu) => self.on_task(task, cpu, exchange, patience),
            CountOwner::Cpu(cpu) => self.on_cpu(cpu, exchange, patience),
        }
    }
    fn on_task(
        &self,
        task: TaskId,
        cpu: Option<Cpu>,
        exchange: Exchange,
        patience: Patience,
    ) -> Option<Result<(), Refusal>> {
        let account = self.accounts.get(task); // T1
        let lane = self.lanes.enter(patience)?; // T2
        let mut account = patience.lock(account)?; // T3
        // T4
        if let Err(refusal) = account.fits(cpu, exchange, &self.machine, &self.cpus) {
            return Some(Err(refusal));
        }
        // T5
        account.apply(cpu, exchange, |step| match step.cpu {
            None => lane.spread(step),
            Some(cpu) => self.cpus.at(cpu).bound[step.pool].make(step),
        });
        Some(Ok(()))
    }
    fn on_cpu(&self, cpu: Cpu, exchange: Exchange, patience: Patience) -> Option<Result<(), Refusal>> {
        let closed = self.lanes.close(patience)?; // C1
        let here = self.cpus.at(cpu);
        // C2
        if let Some(pool) = exchange.pool() {
            let bound = Histogram::top(std::iter::once(&here.bound[pool]));
            let by_task = bound.max(closed.top_spread(pool));
            if let Err(refusal) = exchange.fits(&self.machine, self.cpus.pinned(cpu, pool), by_task, || cpu) {
                return Some(Err(refusal));
            }
        }
        // C3
        let mut counts = [0, 1].map(|pool: usize| here.pinned[pool].load(Relaxed) as u8);
        for (pool, _, pinned) in exchange.moves(&mut counts) {
            here.pinned[pool].store(pinned.into(), Relaxed);
            self.cpus.most[pool].store(self.cpus.busiest(pool).1, Relaxed);
        }
        Some(Ok(()))
    }
    pub(super) fn held(&self) -> Vec<Held> {
        let _closed = self.lanes.close(Patience::Wait);
        let mut held: Vec<Held> = Vec::new();
        for (task, account) in self.accounts.iter() {
            held.extend(Patience::Wait.lock(account).iter().flat_map(|account| account.held(task)));
        }
        held.order();
        held
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::{BreakpointKind, DebugRegisters, Target};
    use super::{Cpu, Many, Patience, TaskId};
    use crate::constraints::Machine;

    /// Whether an operation gets through without waiting while another stands still in its middle.
    #[test]
    fn waits_for() {
        let machine = Machine::new(4, DebugRegisters::Shared(4)).expect("a machine");
        let books = Many::new(machine);
        let (t, u) = (TaskId::new(1).expect("a task"), TaskId::new(2).expect("a task"));
        let passes = |target: Target| {
            let exchange = machine.exchange(Some(target.one(BreakpointKind::Data).claim()), None);
            let place = machine.place(target).expect("a place");
            // Giving back what was not taken changes nothing.
            books.exchange(place, exchange, Patience::Never).is_some()
        };
        let all = [Target::Task(t), Target::TaskOnCpu(t, Cpu(1)), Target::Task(u), Target::Cpu(Cpu(3))];
        assert_eq!(all.map(passes), [true; 4]);

        // An operation on task t, preempted after T3; the others use the same lane.
        let lane = books.lanes.enter(Patience::Never);
        let account = Patience::Never.lock(books.accounts.get(t));
        assert_eq!(all.map(passes), [false, false, true, false]);
        drop((account, lane));

        // An operation on a CPU, preempted after C1.
        let closed = books.lanes.close(Patience::Never);
        assert_eq!(all.map(passes), [false; 4]);
        drop(closed);
        assert_eq!(all.map(passes), [true; 4]);
    }
}
