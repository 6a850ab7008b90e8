//! Accounting on a machine of one CPU: one mutex, plain numbers, the same rule.

use trapline_order::Order as _;

use super::rule::{Account, CountOwner, Counts, Exchange, Move, POOLS, Picture};
use super::sync::{Mutex, Patience};
use super::table::TaskTable;
use super::words::{Cpu, Held, MAX_REGISTERS, Machine, Refusal};

#[derive(Debug)]
pub(super) struct One {
    machine: Machine,
    books: Mutex<Books>,
}

#[derive(Debug)]
struct Books {
    accounts: TaskTable<Account>,
    pinned: Counts,
    /// Number of tasks by what they pin: on any CPU, and (for those that have a bound breakpoint) in total.
    tasks: [[[u32; MAX_REGISTERS as usize]; 2]; POOLS],
}

struct Pinned(Counts);

impl Picture for Pinned {
    fn pinned(&self, _: Cpu, pool: usize) -> u32 {
        self.0[pool].into()
    }
    fn most(&self, pool: usize) -> (u32, impl FnOnce() -> Cpu) {
        (self.0[pool].into(), || Cpu(0))
    }
}

impl One {
    pub(super) fn new(machine: Machine) -> Self {
        let books =
            Books { accounts: TaskTable::new(), pinned: Counts::default(), tasks: Default::default() };
        Self { machine, books: Mutex::new(books) }
    }
    pub(super) fn exchange(
        &self,
        place: CountOwner,
        exchange: Exchange,
        patience: Patience,
    ) -> Option<Result<(), Refusal>> {
        let mut books = patience.lock(&self.books)?;
        let Books { accounts, pinned, tasks } = &mut *books;
        match place {
            CountOwner::Task(task, cpu) => {
                let account = accounts.get_mut(task);
                if let Err(refusal) = account.fits(cpu, exchange, &self.machine, &Pinned(*pinned)) {
                    return Some(Err(refusal));
                }
                account.apply(cpu, exchange, |step| make(tasks, step));
            }
            CountOwner::Cpu(cpu) => {
                if let Some(pool) = exchange.pool() {
                    let top =
                        |tasks: &[u32]| tasks.iter().rposition(|&n| n > 0).map_or(0, |at| at as u32 + 1);
                    let by_task = tasks[pool].iter().map(|tasks| top(tasks)).max().unwrap_or(0);
                    let by_cpu = pinned[pool].into();
                    if let Err(refusal) = exchange.fits(&self.machine, by_cpu, by_task, || cpu) {
                        return Some(Err(refusal));
                    }
                }
                exchange.moves(pinned).for_each(drop);
            }
        }
        Some(Ok(()))
    }
    pub(super) fn held(&self) -> Vec<Held> {
        let books = Patience::Wait.lock(&self.books);
        let accounts = books.iter().flat_map(|books| books.accounts.iter());
        let mut held: Vec<Held> = accounts.flat_map(|(task, account)| account.held(task)).collect();
        held.order();
        held
    }
}

fn make(tasks: &mut [[[u32; MAX_REGISTERS as usize]; 2]; POOLS], step: Move) {
    let tasks = &mut tasks[step.pool][usize::from(step.cpu.is_some())];
    let at = |count: u8| usize::from(count).wrapping_sub(1);
    if let Some(old) = tasks.get_mut(at(step.from)) {
        *old = old.wrapping_sub(1);
    }
    if let Some(new) = tasks.get_mut(at(step.to)) {
        *new = new.wrapping_add(1);
    }
}
