//! The rule itself, on values: what a task pins, whether an exchange fits, which counts move.
//!
//! In: an account and the counts of the CPUs. Out: an answer, and the moves that the histograms have to make.
//! Does not: lock, or know how many operations run at once.

use std::collections::HashMap;

use super::words::{Claim, Cpu, DebugRegisters, Held, Machine, Refusal, Target, TaskId};

/// Number of pools of debug registers. Pool 0 alone is used where the kinds share registers; otherwise there
/// is one for data and one for instructions.
pub(super) const POOLS: usize = 2;
/// A count for each pool.
pub(super) type Counts = [u8; POOLS];

/// A number of debug registers in a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Share {
    pub(super) pool: usize,
    pub(super) weight: u8,
}

/// The registers that an operation gives back and takes in one step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exchange {
    gives: Option<Share>,
    takes: Option<Share>,
}

/// The task or CPU of which an operation changes the count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CountOwner {
    /// A task's, for any CPU or for one.
    Task(TaskId, Option<Cpu>),
    /// A CPU's.
    Cpu(Cpu),
}

/// The counts of the CPUs, as an operation on a task sees them.
pub(super) trait Picture {
    /// Number of registers that CPU targets pin on one CPU.
    fn pinned(&self, cpu: Cpu, pool: usize) -> u32;
    /// The largest `pinned`, and the CPU that has it.
    fn most(&self, pool: usize) -> (u32, impl FnOnce() -> Cpu);
}

/// The registers that one task pins.
#[derive(Debug, Default)]
pub(super) struct Account {
    any: Counts,
    /// By CPU; every entry has a count above 0. Few tasks have an entry.
    #[allow(clippy::box_collection, reason = "a word in the accounts of the many that have none")]
    bound: Option<Box<HashMap<Cpu, Counts>>>,
}

/// The step of a task from one count to another in one histogram; 0 means that it is not in the histogram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Move {
    /// The CPU that the histogram belongs to; `None` for the histogram of all CPUs.
    pub(super) cpu: Option<Cpu>,
    pub(super) pool: usize,
    pub(super) from: u8,
    pub(super) to: u8,
}

impl Machine {
    fn share(&self, claim: Claim) -> Share {
        let pool = match self.registers() {
            DebugRegisters::Shared(_) => 0,
            DebugRegisters::Apart { .. } => claim.kind() as usize,
        };
        Share { pool, weight: claim.weight() }
    }
    pub(super) fn exchange(&self, gives: Option<Claim>, takes: Option<Claim>) -> Exchange {
        Exchange { gives: gives.map(|claim| self.share(claim)), takes: takes.map(|claim| self.share(claim)) }
    }
    pub(super) fn registers_in(&self, pool: usize) -> u32 {
        u32::from(match (self.registers(), pool) {
            (DebugRegisters::Shared(n), 0) => n,
            (DebugRegisters::Apart { data, .. }, 0) => data,
            (DebugRegisters::Apart { instruction, .. }, 1) => instruction,
            _ => 0,
        })
    }
    pub(super) fn place(&self, target: Target) -> Result<CountOwner, Refusal> {
        let known = |cpu: Cpu| match cpu.0 < self.cpus() {
            true => Ok(cpu),
            false => Err(Refusal::NoCpu { cpu, cpus: self.cpus() }),
        };
        Ok(match target {
            Target::Task(task) => CountOwner::Task(task, None),
            Target::TaskOnCpu(task, cpu) => CountOwner::Task(task, Some(known(cpu)?)),
            Target::Cpu(cpu) => CountOwner::Cpu(known(cpu)?),
        })
    }
}

impl Exchange {
    /// Whether what is taken fits beside `by_cpu` and `by_task`, which still include what is given back.
    pub(super) fn fits(
        self,
        machine: &Machine,
        by_cpu: u32,
        by_task: u32,
        cpu: impl FnOnce() -> Cpu,
    ) -> Result<(), Refusal> {
        let Some(Share { pool, weight }) = self.takes else { return Ok(()) };
        let given = self.gives.filter(|share| share.pool == pool).map_or(0, |share| u32::from(share.weight));
        let (registers, weight) = (machine.registers_in(pool), u32::from(weight));
        if by_cpu + by_task + weight <= registers + given {
            return Ok(());
        }
        Err(Refusal::NoRegister { cpu: cpu(), registers, by_cpu, by_task, weight })
    }
    /// The pool from which registers are taken, if any are.
    pub(super) fn pool(self) -> Option<usize> {
        self.takes.map(|share| share.pool)
    }
    /// The old and the new count in each pool that changes. Counts stay in range: what is taken was decided
    /// to fit, and what is given back was there.
    pub(super) fn moves(self, counts: &mut Counts) -> impl Iterator<Item = (usize, u8, u8)> + use<> {
        let old = *counts;
        if let Some(Share { pool, weight }) = self.gives {
            counts[pool] = counts[pool].saturating_sub(weight);
        }
        if let Some(Share { pool, weight }) = self.takes {
            counts[pool] = counts[pool].saturating_add(weight);
        }
        let new = *counts;
        (0..POOLS).map(move |pool| (pool, old[pool], new[pool])).filter(|(_, old, new)| old != new)
    }
}

impl Account {
    fn bound(&self, cpu: Cpu) -> Counts {
        self.bound.as_ref().and_then(|bound| bound.get(&cpu)).copied().unwrap_or_default()
    }
    /// Whether an exchange fits, for any CPU or for one.
    pub(super) fn fits(
        &self,
        cpu: Option<Cpu>,
        exchange: Exchange,
        machine: &Machine,
        picture: &impl Picture,
    ) -> Result<(), Refusal> {
        let Some(pool) = exchange.pool() else { return Ok(()) };
        let any = u32::from(self.any[pool]);
        let on = |cpu, bound: &Counts| {
            exchange.fits(machine, picture.pinned(cpu, pool), any + u32::from(bound[pool]), || cpu)
        };
        if let Some(cpu) = cpu {
            return on(cpu, &self.bound(cpu));
        }
        let (most, busiest) = picture.most(pool);
        exchange.fits(machine, most, any, busiest)?;
        self.bound.iter().flat_map(|bound| bound.iter()).try_for_each(|(&cpu, bound)| on(cpu, bound))
    }
    /// Makes an exchange that fits. `make` is called for the moves of the histograms.
    pub(super) fn apply(&mut self, cpu: Option<Cpu>, exchange: Exchange, mut make: impl FnMut(Move)) {
        let Some(cpu) = cpu else {
            for (pool, from, to) in exchange.moves(&mut self.any) {
                make(Move { cpu: None, pool, from, to });
                for (&cpu, bound) in self.bound.iter().flat_map(|bound| bound.iter()) {
                    let bound = bound[pool];
                    if bound > 0 {
                        make(Move { cpu: Some(cpu), pool, from: from + bound, to: to + bound });
                    }
                }
            }
            return;
        };
        let bound = self.bound.get_or_insert_default();
        let counts = bound.entry(cpu).or_default();
        for (pool, from, to) in exchange.moves(counts) {
            let whole = |count| if count > 0 { self.any[pool] + count } else { 0 };
            make(Move { cpu: Some(cpu), pool, from: whole(from), to: whole(to) });
        }
        if *counts == Counts::default() {
            bound.remove(&cpu);
            if bound.is_empty() {
                self.bound = None;
            }
        }
    }
    /// The registers that it holds: for any CPU, and for single CPUs.
    pub(super) fn held(&self, task: TaskId) -> impl Iterator<Item = Held> {
        let line = move |cpu, [data, instruction]: Counts| Held {
            task,
            cpu,
            data: data.into(),
            instruction: instruction.into(),
        };
        let any = (self.any != Counts::default()).then(|| line(None, self.any));
        let bound = self.bound.iter().flat_map(|bound| bound.iter());
        any.into_iter().chain(bound.map(move |(&cpu, &counts)| line(Some(cpu), counts)))
    }
}
