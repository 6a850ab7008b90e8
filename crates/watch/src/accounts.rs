//! The debug registers that this process holds, according to [`constraints`](crate::constraints). This
//! account is consulted before the kernel is.
//!
//! There is one account for the process, since all its watches use the same registers. An armed thread is a
//! target on every CPU: its events, one for each CPU, pin a debug register on each. A thread that inherited
//! events is entered when the record of its birth is read, and removed when that of its end is. Invariants:
//! CON-1…3. Does not: know what other processes hold.

use std::sync::OnceLock;

use trapline_tracee::perf::{Access, Breakpoint, possible_cpus};

use crate::constraints::{
    Accounting as _, BreakpointKind, Claim, Constraints, Cpu, Machine, Refusal, Reservation, Target, TaskId,
};
use crate::native::DEBUG_REGISTERS;

/// The debug registers of one thread; given back when dropped.
#[derive(Debug, Default)]
pub(crate) struct Reserved {
    reservations: Vec<Reservation>,
}

fn books() -> Option<&'static Constraints> {
    static BOOKS: OnceLock<Option<Constraints>> = OnceLock::new();
    let machine = || Machine::new(possible_cpus(), DEBUG_REGISTERS).ok();
    BOOKS.get_or_init(|| machine().map(Constraints::new)).as_ref()
}

const fn claim(point: Breakpoint) -> Claim {
    Claim::one(kind(point))
}

const fn kind(point: Breakpoint) -> BreakpointKind {
    match point.access {
        Access::Write | Access::ReadWrite => BreakpointKind::Data,
        Access::Execute => BreakpointKind::Instruction,
    }
}

/// The number of debug registers of each CPU for breakpoints of this kind.
pub(crate) fn registers(point: Breakpoint) -> u32 {
    Machine::new(1, DEBUG_REGISTERS).map_or(0, |machine| machine.registers_for(kind(point)).into())
}

/// The number of debug registers that this process holds for a thread, on the CPU where it holds most.
pub(crate) fn held_for(tid: u32) -> u32 {
    let held = books().map(Constraints::held).unwrap_or_default();
    let of = |on: Option<Cpu>| {
        let lines = held.iter().filter(|line| line.task.number() == tid && line.cpu == on);
        lines.map(|line| line.data + line.instruction).sum::<u32>()
    };
    let bound = held.iter().filter_map(|line| line.cpu).map(|cpu| of(Some(cpu))).max();
    of(None) + bound.unwrap_or(0)
}

impl Reserved {
    /// Takes one debug register for each breakpoint, or none at all.
    pub(crate) fn take(tid: u32, points: &[Breakpoint]) -> Result<Self, Refusal> {
        let mut reserved = Self::default();
        if let (Some(books), Some(task)) = (books(), TaskId::new(tid)) {
            for &point in points {
                reserved.reservations.push(books.reserve(Target::Task(task).wants(claim(point)))?);
            }
        }
        Ok(reserved)
    }
    /// Gives the debug register of one breakpoint to another breakpoint.
    pub(crate) fn change(&mut self, which: usize, to: Breakpoint) -> Result<(), Refusal> {
        match (books(), self.reservations.get_mut(which)) {
            (Some(books), Some(reservation)) => books.modify(reservation, claim(to)),
            _ => Ok(()),
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(books) = books() {
            self.reservations.drain(..).for_each(|reservation| books.release(reservation));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Access, Breakpoint, Reserved, held_for, registers};
    use crate::constraints::Refusal;
    use trapline_record::RemoteAddr;

    #[test]
    fn registers_are_taken_all_or_none_and_come_back() {
        const NO_TASK: u32 = 4_194_000;
        let point = |access| Breakpoint { addr: RemoteAddr(8), len: 1, access };
        let some = Reserved::take(NO_TASK, &[point(Access::Write); 3]);
        assert_eq!(held_for(NO_TASK), 3);
        let refused = Reserved::take(NO_TASK, &[point(Access::ReadWrite); 2]);
        let registers = registers(point(Access::Write));
        assert!(
            matches!(refused, Err(Refusal::NoRegister { registers: of, by_task, .. }) if (of, by_task) == (registers, registers)),
            "{refused:?}"
        );
        assert_eq!(held_for(NO_TASK), 3, "what was refused holds nothing");
        let mut some = some.expect("they were free");
        assert_eq!(some.change(2, point(Access::Execute)), Ok(()));
        drop(some);
        assert_eq!(held_for(NO_TASK), 0);
    }
}
