//! Baseline: a readers-writer lock over the CPUs' counts, and mutexes for shards of the tasks. This is the
//! first version of the scalable design, as posted in June 2022 (patch 6 of 8). A task's breakpoints are
//! found by hash. Its mutex is chosen by pid, from as many mutexes as there are CPUs. Every CPU's histogram
//! changes for a breakpoint on any CPU.
//!
//! Tuned: a task's breakpoints are summed once for all CPUs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use trapline_watch::constraints::{
    Accounting, BreakpointKind, Claim, Cpu, DebugRegisters, Machine, Refusal, Request, Reservation, Target,
    TaskId,
};

/// A task's breakpoints: the CPU, if bound to one, and the claim.
type Tasks = HashMap<TaskId, Vec<(Option<Cpu>, Claim)>>;

#[derive(Debug)]
pub(crate) struct Sharded {
    machine: Machine,
    cpus: RwLock<Box<[PerCpu]>>,
    shards: Box<[Shard]>,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Shard(Mutex<Tasks>);

/// Counts of one CPU, by pool.
#[derive(Debug, Default)]
#[repr(align(64))]
struct PerCpu {
    /// Written under the write lock.
    pinned: [AtomicU32; 2],
    /// Number of tasks by what they pin on this CPU. Changed under the read lock, used under the write lock.
    tasks: [[AtomicU32; 16]; 2],
}

impl PerCpu {
    fn step(&self, pool: usize, from: u32, to: u32) {
        let at = |count: u32| self.tasks[pool].get((count as usize).wrapping_sub(1));
        if let Some(n) = at(from) {
            n.fetch_sub(1, Relaxed);
        }
        if let Some(n) = at(to) {
            n.fetch_add(1, Relaxed);
        }
    }
}

impl Sharded {
    pub(crate) fn new(machine: Machine) -> Self {
        let cpus: Box<[PerCpu]> = (0..machine.cpus()).map(|_| PerCpu::default()).collect();
        let shards = (0..machine.cpus()).map(|_| Shard::default()).collect();
        Self { machine, cpus: RwLock::new(cpus), shards }
    }
    fn pool(&self, kind: BreakpointKind) -> usize {
        match self.machine.registers() {
            DebugRegisters::Shared(_) => 0,
            DebugRegisters::Apart { .. } => kind as usize,
        }
    }
    fn shard(&self, task: TaskId) -> MutexGuard<'_, Tasks> {
        let shard = &self.shards[task.number() as usize % self.shards.len()];
        shard.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn known(&self, cpu: Cpu) -> Result<usize, Refusal> {
        let cpus = self.machine.cpus();
        if cpu.0 < cpus { Ok(cpu.0 as usize) } else { Err(Refusal::NoCpu { cpu, cpus }) }
    }
    /// What a task pins in a pool on one CPU, breakpoints that are bound to no CPU included.
    fn pinned(&self, list: &[(Option<Cpu>, Claim)], pool: usize, cpu: Cpu) -> u32 {
        let here = list
            .iter()
            .filter(|(on, claim)| self.pool(claim.kind()) == pool && on.is_none_or(|on| on == cpu));
        here.map(|(_, claim)| u32::from(claim.weight())).sum()
    }
    /// Releases and takes in one step.
    fn exchange(&self, target: Target, gives: Option<Claim>, takes: Option<Claim>) -> Result<(), Refusal> {
        match target {
            Target::Task(task) => self.on_task(task, None, gives, takes),
            Target::TaskOnCpu(task, cpu) => {
                self.known(cpu)?;
                self.on_task(task, Some(cpu), gives, takes)
            }
            Target::Cpu(cpu) => self.on_cpu(self.known(cpu)?, gives, takes),
        }
    }
    fn fits(&self, cpu: usize, by_cpu: u32, by_task: u32, takes: Claim) -> Result<(), Refusal> {
        let (registers, weight) =
            (u32::from(self.machine.registers_for(takes.kind())), u32::from(takes.weight()));
        match by_cpu + by_task + weight <= registers {
            true => Ok(()),
            false => Err(Refusal::NoRegister { cpu: Cpu(cpu as u32), registers, by_cpu, by_task, weight }),
        }
    }
    fn on_task(
        &self,
        task: TaskId,
        on: Option<Cpu>,
        gives: Option<Claim>,
        takes: Option<Claim>,
    ) -> Result<(), Refusal> {
        let mut tasks = self.shard(task);
        let cpus = self.cpus.read().unwrap_or_else(PoisonError::into_inner);
        let list = tasks.entry(task).or_default();
        let bound = list.iter().any(|(on, _)| on.is_some());
        let given = gives.and_then(|claim| list.iter().position(|&entry| entry == (on, claim)));
        let given = given.map(|at| list.swap_remove(at));
        let relevant = on.map_or(0..cpus.len(), |cpu| cpu.0 as usize..cpu.0 as usize + 1);
        let unbound = Cpu(u32::MAX);
        // A task without bound breakpoints pins the same number on every CPU.
        let count = |list: &[_], pool, cpu: usize, same: u32| match bound {
            true => self.pinned(list, pool, Cpu(cpu as u32)),
            false => same,
        };
        if let Some(takes) = takes {
            let pool = self.pool(takes.kind());
            let same = self.pinned(list, pool, unbound);
            let check = |cpu: usize| {
                self.fits(cpu, cpus[cpu].pinned[pool].load(Relaxed), count(list, pool, cpu, same), takes)
            };
            if let Err(refusal) = relevant.clone().try_for_each(check) {
                list.extend(given);
                return Err(refusal);
            }
        }
        for pool in 0..2 {
            let weight = |claim: Option<Claim>| {
                claim
                    .filter(|claim| self.pool(claim.kind()) == pool)
                    .map_or(0, |claim| u32::from(claim.weight()))
            };
            let (less, more) = (weight(given.map(|(_, claim)| claim)), weight(takes));
            if less != more {
                let same = self.pinned(list, pool, unbound);
                for cpu in relevant.clone() {
                    let rest = count(list, pool, cpu, same);
                    cpus[cpu].step(pool, rest + less, rest + more);
                }
            }
        }
        list.extend(takes.map(|claim| (on, claim)));
        if list.is_empty() {
            tasks.remove(&task);
        }
        Ok(())
    }
    fn on_cpu(&self, cpu: usize, gives: Option<Claim>, takes: Option<Claim>) -> Result<(), Refusal> {
        let cpus = self.cpus.write().unwrap_or_else(PoisonError::into_inner);
        let here = &cpus[cpu];
        let give = |claim: Claim, by: u32| {
            let pinned = &here.pinned[self.pool(claim.kind())];
            pinned.store(pinned.load(Relaxed).wrapping_add(by), Relaxed);
        };
        if let Some(gives) = gives {
            give(gives, 0u32.wrapping_sub(gives.weight().into()));
        }
        if let Some(takes) = takes {
            let pool = self.pool(takes.kind());
            let top =
                here.tasks[pool].iter().rposition(|n| n.load(Relaxed) > 0).map_or(0, |at| at as u32 + 1);
            if let Err(refusal) = self.fits(cpu, here.pinned[pool].load(Relaxed), top, takes) {
                gives.into_iter().for_each(|claim| give(claim, claim.weight().into()));
                return Err(refusal);
            }
            give(takes, takes.weight().into());
        }
        Ok(())
    }
}

impl Accounting for Sharded {
    fn reserve(&self, request: Request) -> Result<Reservation, Refusal> {
        self.exchange(request.target(), None, Some(request.claim()))?;
        Ok(Reservation::granted(request))
    }
    fn release(&self, reservation: Reservation) {
        let released = self.exchange(reservation.target(), Some(reservation.claim()), None);
        debug_assert!(released.is_ok());
    }
    fn modify(&self, reservation: &mut Reservation, to: Claim) -> Result<(), Refusal> {
        self.exchange(reservation.target(), Some(reservation.claim()), Some(to))?;
        *reservation = Reservation::granted(reservation.target().wants(to));
        Ok(())
    }
}
