//! The ways to account for breakpoints, and how large a benchmark is.
//!
//! In: a `how`, a machine. Out: the accounting to be measured. Does not: measure.

use anyhow::Result;
use trapline_watch::constraints::{
    Accounting, Claim, Constraints, DebugRegisters, Machine, Refusal, Request, Reservation,
};

use super::{mutex, rwlock};

/// The numbers of one benchmark, under the names that perf uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) breakpoints: usize,
    pub(super) parallelism: usize,
    pub(super) threads: usize,
    pub(super) active: usize,
    pub(super) repeat: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum How {
    None,
    Off,
    Control,
    Ours,
    Rwlock,
    Mutex,
}

/// Grants every breakpoint: the lower bound.
#[derive(Debug)]
struct Off;

impl Accounting for Off {
    fn reserve(&self, request: Request) -> Result<Reservation, Refusal> {
        Ok(Reservation::granted(request))
    }
    fn release(&self, _: Reservation) {}
    fn modify(&self, reservation: &mut Reservation, to: Claim) -> Result<(), Refusal> {
        *reservation = Reservation::granted(reservation.target().wants(to));
        Ok(())
    }
}

impl How {
    pub(super) const ALL: [Self; 5] = [Self::None, Self::Off, Self::Ours, Self::Rwlock, Self::Mutex];
    pub(super) const ALONE: [Self; 6] =
        [Self::None, Self::Off, Self::Control, Self::Ours, Self::Rwlock, Self::Mutex];
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Off => "off",
            Self::Control => "control",
            Self::Ours => "ours",
            Self::Rwlock => "rwlock",
            Self::Mutex => "mutex",
        }
    }
    pub(super) fn books(self, machine: Machine) -> Box<dyn Accounting> {
        match self {
            Self::None | Self::Off => Box::new(Off),
            Self::Ours | Self::Control => Box::new(Constraints::new(machine)),
            Self::Rwlock => Box::new(rwlock::Sharded::new(machine)),
            Self::Mutex => Box::new(mutex::OneMutex::new(machine)),
        }
    }
}

/// A machine with this many CPUs, each with four debug registers as on x86.
pub(super) fn machine(cpus: u32) -> Result<Machine> {
    Ok(Machine::new(cpus, DebugRegisters::Shared(4))?)
}

pub(super) fn cpus() -> u32 {
    std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32)
}

#[cfg(test)]
mod tests {
    use super::{How, machine};
    use proptest::prelude::*;
    use trapline_watch::constraints::laws::{BruteForce, Operation, nine_cases, play, run_case};
    use trapline_watch::constraints::{BreakpointKind, Claim, Cpu, DebugRegisters, Machine, Target, TaskId};

    fn task(number: u32) -> TaskId {
        TaskId::new(number).expect("a task")
    }

    #[test]
    fn the_baselines_pass_the_nine_cases() {
        for how in [How::Ours, How::Rwlock, How::Mutex] {
            for cpus in [2, 5] {
                let machine = machine(cpus).expect("a machine");
                let books = how.books(machine);
                for (name, case) in nine_cases(&machine, task(1), task(2)) {
                    assert_eq!(run_case(&*books, &case), Ok(()), "{} {name}", how.name());
                }
            }
        }
    }

    fn steps() -> impl Strategy<Value = (Machine, Vec<Operation>)> {
        let kind = || prop_oneof![3 => Just(BreakpointKind::Data), 1 => Just(BreakpointKind::Instruction)];
        let claim = (kind(), 1u8..4).prop_map(|(kind, weight)| {
            Claim::weighing(kind, std::num::NonZeroU8::new(weight).unwrap_or(std::num::NonZeroU8::MIN))
        });
        let cpu = || (0u32..4).prop_map(Cpu);
        let one = || (1u32..5).prop_map(task);
        let target = prop_oneof![
            one().prop_map(Target::Task),
            (one(), cpu()).prop_map(|(task, cpu)| Target::TaskOnCpu(task, cpu)),
            cpu().prop_map(Target::Cpu),
        ];
        let step = prop_oneof![
            5 => (target, claim.clone()).prop_map(|(target, claim)| Operation::Reserve(target.wants(claim))),
            3 => any::<usize>().prop_map(Operation::Release),
            1 => (any::<usize>(), claim).prop_map(|(which, claim)| Operation::Modify(which, claim)),
        ];
        let registers = prop_oneof![
            Just(DebugRegisters::Shared(4)),
            (0u8..5, 0u8..5).prop_map(|(data, instruction)| DebugRegisters::Apart { data, instruction })
        ];
        let machine = (1u32..4, registers)
            .prop_filter_map("a machine", |(cpus, registers)| Machine::new(cpus, registers).ok());
        (machine, prop::collection::vec(step, 1..40))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_baselines_answer_as_the_rule_says((machine, steps) in steps()) {
            let rule = play(&BruteForce::new(machine), &steps);
            for how in [How::Ours, How::Rwlock, How::Mutex] {
                prop_assert_eq!(play(&*how.books(machine), &steps), rule.clone(), "{}", how.name());
            }
        }
    }
}
