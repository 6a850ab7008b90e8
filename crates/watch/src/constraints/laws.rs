//! The rules for every accounting, as code: a brute-force model, the nine cases with which the kernel tests
//! itself, and a player for any sequence of operations. The proofs here and those of the baselines use the
//! same rules.
//!
//! The cases restate what `kernel/events/hw_breakpoint_test.c` (Linux 6.1) asserts.

use std::sync::{Mutex, PoisonError};

use super::words::{
    Accounting, BreakpointKind, Claim, Cpu, DebugRegisters, Machine, Refusal, Request, Reservation, Target,
    TaskId,
};

/// One operation. Indexes of older operations are taken modulo their number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Reserve.
    Reserve(Request),
    /// Release what an older reservation holds, if any is left.
    Release(usize),
    /// Modify an older reservation, if any is left.
    Modify(usize, Claim),
}

/// Plays a sequence; returns for each operation whether it was accepted. What is left at the end is released.
pub fn play(accounting: &(impl Accounting + ?Sized), steps: &[Operation]) -> Vec<bool> {
    let mut held: Vec<Reservation> = Vec::new();
    let accepted = steps.iter().map(|&step| play_one(accounting, &mut held, step)).collect();
    held.into_iter().for_each(|reservation| accounting.release(reservation));
    accepted
}

/// Plays one operation.
pub fn play_one(
    accounting: &(impl Accounting + ?Sized),
    held: &mut Vec<Reservation>,
    step: Operation,
) -> bool {
    match step {
        Operation::Reserve(request) => {
            let reservation = accounting.reserve(request);
            let accepted = reservation.is_ok();
            held.extend(reservation);
            accepted
        }
        Operation::Release(_) | Operation::Modify(..) if held.is_empty() => false,
        Operation::Release(which) => {
            accounting.release(held.swap_remove(which % held.len()));
            true
        }
        Operation::Modify(which, to) => {
            let which = which % held.len();
            accounting.modify(&mut held[which], to).is_ok()
        }
    }
}

/// The rule as it is written, without optimization: a list of all breakpoints, searched for every CPU and
/// task.
#[derive(Debug)]
pub struct BruteForce {
    machine: Machine,
    all: Mutex<Vec<Request>>,
}

impl BruteForce {
    /// Makes a model with nothing reserved.
    #[must_use]
    pub const fn new(machine: Machine) -> Self {
        Self { machine, all: Mutex::new(Vec::new()) }
    }
    /// Checks that the rule holds for a set of breakpoints.
    ///
    /// # Errors
    /// The first CPU and kind for which it does not hold.
    pub fn holds(machine: &Machine, all: &[Request]) -> Result<(), Refusal> {
        (0..machine.cpus()).map(Cpu).try_for_each(|cpu| {
            [BreakpointKind::Data, BreakpointKind::Instruction]
                .into_iter()
                .try_for_each(|kind| Self::holds_on(machine, all, cpu, kind))
        })
    }
    fn holds_on(machine: &Machine, all: &[Request], cpu: Cpu, kind: BreakpointKind) -> Result<(), Refusal> {
        let counts =
            |claim: Claim| matches!(machine.registers(), DebugRegisters::Shared(_)) || claim.kind() == kind;
        let here = || all.iter().filter(|request| counts(request.claim()));
        let weight = |request: &Request| u32::from(request.claim().weight());
        let task_of = |request: &Request| match request.target() {
            Target::Task(task) => Some(task),
            Target::TaskOnCpu(task, on) => (on == cpu).then_some(task),
            Target::Cpu(_) => None,
        };
        let by_cpu: u32 = here().filter(|request| request.target() == Target::Cpu(cpu)).map(weight).sum();
        let pins = |task: TaskId| here().filter(|request| task_of(request) == Some(task)).map(weight).sum();
        let by_task: u32 = here().filter_map(task_of).map(pins).max().unwrap_or(0);
        let registers = u32::from(machine.registers_for(kind));
        match by_cpu + by_task <= registers {
            true => Ok(()),
            false => Err(Refusal::NoRegister { cpu, registers, by_cpu, by_task, weight: 0 }),
        }
    }
    fn check(&self, target: Target) -> Result<(), Refusal> {
        let (Target::Cpu(cpu) | Target::TaskOnCpu(_, cpu)) = target else { return Ok(()) };
        let cpus = self.machine.cpus();
        if cpu.0 < cpus { Ok(()) } else { Err(Refusal::NoCpu { cpu, cpus }) }
    }
    fn change(&self, gives: Option<Request>, takes: Option<Request>) -> Result<(), Refusal> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let mut after = all.clone();
        if let Some(at) = gives.and_then(|gives| after.iter().position(|request| *request == gives)) {
            after.swap_remove(at);
        }
        after.extend(takes);
        Self::holds(&self.machine, &after)?;
        *all = after;
        Ok(())
    }
}

impl Accounting for BruteForce {
    fn reserve(&self, request: Request) -> Result<Reservation, Refusal> {
        self.check(request.target())?;
        self.change(None, Some(request))?;
        Ok(Reservation::granted(request))
    }
    fn release(&self, reservation: Reservation) {
        let released = self.change(Some(reservation.target().wants(reservation.claim())), None);
        debug_assert!(released.is_ok(), "less always fits");
    }
    fn modify(&self, reservation: &mut Reservation, to: Claim) -> Result<(), Refusal> {
        let target = reservation.target();
        self.change(Some(target.wants(reservation.claim())), Some(target.wants(to)))?;
        *reservation = Reservation::granted(target.wants(to));
        Ok(())
    }
}

/// One line of a case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Check {
    /// A breakpoint of weight 1 fits, and stays.
    Fits(Target),
    /// One more does not fit.
    Full(Target),
    /// The breakpoint that was the `n`th to fit in this case is closed.
    Close(usize),
}

/// The nine cases, by name, for two tasks on a machine of at least two CPUs with at least three debug
/// registers for data. Nothing is reserved before each.
#[must_use]
pub fn nine_cases(machine: &Machine, t: TaskId, u: TaskId) -> Vec<(&'static str, Vec<Check>)> {
    use Check::{Close, Fits, Full};
    let registers = usize::from(machine.registers_for(BreakpointKind::Data));
    let fill = |target, but: usize| vec![Fits(target); registers.saturating_sub(but)];
    let (ta, ua) = (Target::Task(t), Target::Task(u));
    let (t0, u0) = (Target::TaskOnCpu(t, Cpu(0)), Target::TaskOnCpu(u, Cpu(0)));
    let (c0, c1) = (Target::Cpu(Cpu(0)), Target::Cpu(Cpu(1)));
    let every_cpu = (0..machine.cpus()).map(|cpu| Target::Cpu(Cpu(cpu)));
    let both_full = [ta, ua, t0, u0, c0].map(Full).to_vec();
    let full = |targets: &[Target]| targets.iter().copied().map(Full).collect::<Vec<_>>();
    vec![
        ("one_cpu", [fill(c0, 0), full(&[ta, c0])].concat()),
        ("many_cpus", every_cpu.flat_map(|cpu| [fill(cpu, 0), full(&[cpu])].concat()).collect()),
        ("one_task_on_all_cpus", [fill(ta, 0), full(&[ta, t0, c0]), vec![Close(0), Fits(c0)]].concat()),
        (
            "two_tasks_on_all_cpus",
            [fill(ta, 0), fill(ua, 0), both_full.clone(), vec![Close(0), Full(c0)]].concat(),
        ),
        ("one_task_on_one_cpu", [fill(t0, 0), full(&[ta, t0, c0]), vec![Close(0), Fits(c0)]].concat()),
        (
            "one_task_mixed",
            [
                vec![Fits(t0)],
                fill(ta, 1),
                full(&[ta, t0, c0]),
                vec![Close(0), Close(1), Fits(c0), Fits(c0), Full(c0)],
            ]
            .concat(),
        ),
        ("two_tasks_on_one_cpu", [fill(t0, 0), fill(u0, 0), both_full.clone(), fill(c1, 0)].concat()),
        ("two_tasks_on_one_all_cpus", [fill(t0, 0), fill(ua, 0), both_full, full(&[c1])].concat()),
        (
            "task_on_all_and_one_cpu",
            [
                fill(ta, 2),
                vec![Fits(t0), Fits(ta)],
                full(&[ta, t0, c0]),
                vec![Fits(c1), Full(c1), Close(registers - 2), Full(ta), Close(registers), Fits(ta)],
                full(&[ta, t0, c0, c1]),
            ]
            .concat(),
        ),
    ]
}

/// Runs a case, and releases everything afterwards.
///
/// # Errors
/// The number and the content of the first line with another result.
pub fn run_case(accounting: &(impl Accounting + ?Sized), case: &[Check]) -> Result<(), (usize, Check)> {
    let mut fitted: Vec<Option<Reservation>> = Vec::new();
    let wrong = case.iter().enumerate().find(|&(_, &check)| match check {
        Check::Fits(target) => {
            fitted.push(accounting.reserve(target.one(BreakpointKind::Data)).ok());
            fitted.last().is_some_and(Option::is_none)
        }
        Check::Full(target) => {
            let extra = accounting.reserve(target.one(BreakpointKind::Data));
            let wrong = extra.is_ok();
            fitted.extend(extra.ok().map(Some));
            wrong
        }
        Check::Close(n) => {
            let gone = fitted.get_mut(n).and_then(Option::take);
            let missing = gone.is_none();
            gone.into_iter().for_each(|reservation| accounting.release(reservation));
            missing
        }
    });
    fitted.into_iter().flatten().for_each(|reservation| accounting.release(reservation));
    wrong.map_or(Ok(()), |(line, &check)| Err((line, check)))
}
