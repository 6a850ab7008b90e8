//! Baseline: one mutex for the machine, and a list of all breakpoints that is searched linearly. The kernel
//! did so until tasks got a hash table (up to 6.0).
//!
//! Tuned: one pass over a dense list collects what the task pins on all CPUs at once.

use std::sync::{Mutex, PoisonError};

use trapline_watch::constraints::{
    Accounting, BreakpointKind, Claim, Cpu, DebugRegisters, Machine, Refusal, Request, Reservation, Target,
    TaskId,
};

#[derive(Debug)]
pub(crate) struct OneMutex {
    machine: Machine,
    books: Mutex<Books>,
}

#[derive(Debug)]
struct Books {
    all: Vec<Request>,
    cpus: Vec<PerCpu>,
    /// Scratch space: what one task pins on each CPU.
    task: Vec<u32>,
}

/// Counts of one CPU, by pool.
#[derive(Clone, Debug, Default)]
struct PerCpu {
    pinned: [u32; 2],
    /// Number of tasks by how many debug registers they pin on this CPU, from 1 up.
    tasks: [[u32; 16]; 2],
}

impl OneMutex {
    pub(crate) fn new(machine: Machine) -> Self {
        let cpus = vec![PerCpu::default(); machine.cpus() as usize];
        let task = vec![0; machine.cpus() as usize];
        Self { machine, books: Mutex::new(Books { all: Vec::new(), cpus, task }) }
    }
    fn pool(&self, kind: BreakpointKind) -> usize {
        match self.machine.registers() {
            DebugRegisters::Shared(_) => 0,
            DebugRegisters::Apart { .. } => kind as usize,
        }
    }
    fn check(&self, target: Target) -> Result<(), Refusal> {
        match target {
            Target::Cpu(cpu) | Target::TaskOnCpu(_, cpu) if cpu.0 >= self.machine.cpus() => {
                Err(Refusal::NoCpu { cpu, cpus: self.machine.cpus() })
            }
            _ => Ok(()),
        }
    }
    fn reserve_in(&self, books: &mut Books, request: Request) -> Result<(), Refusal> {
        let claim = request.claim();
        let (pool, weight) = (self.pool(claim.kind()), u32::from(claim.weight()));
        let registers = u32::from(self.machine.registers_for(claim.kind()));
        let fits = |cpu: usize, by_cpu: u32, by_task: u32| match by_cpu + by_task + weight <= registers {
            true => Ok(()),
            false => Err(Refusal::NoRegister { cpu: Cpu(cpu as u32), registers, by_cpu, by_task, weight }),
        };
        let Books { all, cpus, task } = books;
        match place(request.target()) {
            (None, on) => {
                let here = &mut cpus[on.start];
                let by_task = here.tasks[pool].iter().rposition(|&n| n > 0).map_or(0, |at| at as u32 + 1);
                fits(on.start, here.pinned[pool], by_task)?;
                here.pinned[pool] += weight;
            }
            (Some(id), on) => {
                let on = on.start..on.end.min(cpus.len());
                self.count(all, id, pool, task);
                for cpu in on.clone() {
                    fits(cpu, cpus[cpu].pinned[pool], task[cpu])?;
                }
                for cpu in on {
                    cpus[cpu].step(pool, task[cpu], task[cpu] + weight);
                }
            }
        }
        all.push(request);
        Ok(())
    }
    fn release_in(&self, books: &mut Books, request: Request) {
        let claim = request.claim();
        let (pool, weight) = (self.pool(claim.kind()), u32::from(claim.weight()));
        let Books { all, cpus, task } = books;
        let Some(at) = all.iter().position(|other| *other == request) else { return };
        match place(request.target()) {
            (None, on) => cpus[on.start].pinned[pool] -= weight,
            (Some(id), on) => {
                self.count(all, id, pool, task);
                for cpu in on.start..on.end.min(cpus.len()) {
                    cpus[cpu].step(pool, task[cpu], task[cpu] - weight);
                }
            }
        }
        all.swap_remove(at);
    }
    /// What a task pins on each CPU, by a linear scan.
    fn count(&self, all: &[Request], id: TaskId, pool: usize, task: &mut [u32]) {
        task.fill(0);
        for request in all {
            let (owner, on) = place(request.target());
            if owner == Some(id) && self.pool(request.claim().kind()) == pool {
                let end = on.end.min(task.len());
                task[on.start..end].iter_mut().for_each(|n| *n += u32::from(request.claim().weight()));
            }
        }
    }
    fn books(&self) -> std::sync::MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task, and the CPUs on which the request counts. Their end may lie past the machine's last CPU.
fn place(target: Target) -> (Option<TaskId>, std::ops::Range<usize>) {
    let one = |cpu: Cpu| cpu.0 as usize..cpu.0 as usize + 1;
    match target {
        Target::Task(task) => (Some(task), 0..usize::MAX),
        Target::TaskOnCpu(task, cpu) => (Some(task), one(cpu)),
        Target::Cpu(cpu) => (None, one(cpu)),
    }
}

impl PerCpu {
    fn step(&mut self, pool: usize, from: u32, to: u32) {
        let mut at = |count: u32, by: u32| {
            if let Some(n) = self.tasks[pool].get_mut((count as usize).wrapping_sub(1)) {
                *n = n.wrapping_add(by);
            }
        };
        at(from, u32::MAX);
        at(to, 1);
    }
}

impl Accounting for OneMutex {
    fn reserve(&self, request: Request) -> Result<Reservation, Refusal> {
        self.check(request.target())?;
        self.reserve_in(&mut self.books(), request)?;
        Ok(Reservation::granted(request))
    }
    fn release(&self, reservation: Reservation) {
        self.release_in(&mut self.books(), reservation.target().wants(reservation.claim()));
    }
    fn modify(&self, reservation: &mut Reservation, to: Claim) -> Result<(), Refusal> {
        let (old, new) = (reservation.target().wants(reservation.claim()), reservation.target().wants(to));
        let mut books = self.books();
        self.release_in(&mut books, old);
        match self.reserve_in(&mut books, new) {
            Ok(()) => {
                *reservation = Reservation::granted(new);
                Ok(())
            }
            Err(refusal) => {
                // The roll-back cannot fail: the request was granted a moment ago, and the mutex is still
                // locked.
                let back = self.reserve_in(&mut books, old);
                debug_assert!(back.is_ok());
                Err(refusal)
            }
        }
    }
}
