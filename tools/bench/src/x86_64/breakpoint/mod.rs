//! `breakpoint`: the cost of accounting for hardware breakpoints, with the options and the output of `perf
//! bench breakpoint`.
//!
//! Cases:
//! - `thread` creates and joins threads, each with breakpoints of its own. They are perf events that the
//!   kernel lets new threads inherit, or (`events` false) the accounting alone.
//! - `enable` switches one event off and on under many threads.
//! - `accounting` makes no system call. It measures reserve and release alone: by one thread and more, on
//!   machines of one CPU and more, beside few tasks and many.
//!
//! `how` is one of: `none` (no breakpoints at all), `off` (breakpoints without accounting), `ours`, and the
//! baselines `rwlock` and `mutex`, which pass the same tests as ours. `control` is ours with an accounting
//! for each thread, so nothing is shared. Over perf events, every row but `none` contains the kernel's own
//! accounting.

mod accounting;
mod enable;
mod mutex;
mod row;
mod rwlock;
mod thread;

use anyhow::Result;
use clap::{Args, ValueEnum};
use trapline_watch::constraints::{
    Accounting, Claim, Constraints, DebugRegisters, Machine, Refusal, Request, Reservation,
};

use crate::x86_64::hits::Effort;
use row::BreakpointRow;

/// What `breakpoint` takes beside.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Which case of `breakpoint`; without one, all of them, as large as in the seed.
    case: Option<Case>,
    /// Breakpoints of each thread [default: 1].
    #[arg(short, long)]
    breakpoints: Option<usize>,
    /// Threads that create threads (thread), or that sleep meanwhile (enable) [default: 1].
    #[arg(short, long, visible_alias = "passive")]
    parallelism: Option<usize>,
    /// Threads that each of them creates at a time [default: 1].
    #[arg(short = 't', long = "nthreads")]
    created: Option<usize>,
    /// Threads that run meanwhile (enable) [default: 0].
    #[arg(short, long)]
    active: Option<usize>,
    /// How often [default: 10].
    #[arg(short, long)]
    repeat: Option<usize>,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Case {
    /// Creates and joins threads.
    Thread,
    /// Disables and enables one breakpoint.
    Enable,
    /// Reserves and releases, without system calls.
    Accounting,
}

/// The numbers of one benchmark, under the names that perf uses.
#[derive(Clone, Copy, Debug)]
struct Load {
    breakpoints: usize,
    parallelism: usize,
    threads: usize,
    active: usize,
    repeat: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
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
    const ALL: [Self; 5] = [Self::None, Self::Off, Self::Ours, Self::Rwlock, Self::Mutex];
    const ALONE: [Self; 6] = [Self::None, Self::Off, Self::Control, Self::Ours, Self::Rwlock, Self::Mutex];
    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Off => "off",
            Self::Control => "control",
            Self::Ours => "ours",
            Self::Rwlock => "rwlock",
            Self::Mutex => "mutex",
        }
    }
    fn books(self, machine: Machine) -> Box<dyn Accounting> {
        match self {
            Self::None | Self::Off => Box::new(Off),
            Self::Ours | Self::Control => Box::new(Constraints::new(machine)),
            Self::Rwlock => Box::new(rwlock::Sharded::new(machine)),
            Self::Mutex => Box::new(mutex::OneMutex::new(machine)),
        }
    }
}

/// A machine with this many CPUs, each with four debug registers as on x86.
fn machine(cpus: u32) -> Result<Machine> {
    Ok(Machine::new(cpus, DebugRegisters::Shared(4))?)
}

fn cpus() -> u32 {
    std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32)
}

impl Options {
    /// Sizes: perf's own defaults where a case was named, those of the reference run where none was.
    fn load(self, breakpoints: usize, parallelism: usize, threads: usize, repeat: usize) -> Load {
        let or =
            |given: Option<usize>, perf, seed| given.unwrap_or(if self.case.is_some() { perf } else { seed });
        Load {
            breakpoints: or(self.breakpoints, 1, breakpoints),
            parallelism: or(self.parallelism, 1, parallelism),
            threads: or(self.created, 1, threads),
            active: or(self.active, 0, 2),
            repeat: or(self.repeat, 10, repeat),
        }
    }
}

/// All rows of the cases asked for.
pub(crate) fn run(
    options: Options,
    effort: Effort,
    mut emit: impl FnMut(&BreakpointRow) -> Result<()>,
) -> Result<()> {
    let wanted = |case| options.case.is_none_or(|only| only == case);
    if wanted(Case::Thread) {
        thread::run(options.load(4, 64, 64, 30), effort, &mut emit)?;
    }
    if wanted(Case::Enable) {
        enable::run(options.load(1, 64, 0, 1000), effort, &mut emit)?;
    }
    if wanted(Case::Accounting) {
        let breakpoints = options.breakpoints.unwrap_or(4);
        accounting::run(breakpoints, effort, &mut emit)?;
    }
    Ok(())
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
