//! Every interleaving of a few operations on few debug registers, in loom's memory model: `RUSTFLAGS="--cfg
//! loom" cargo test -p trapline-watch --release --test constraints_loom`.
//!
//! Each model gives every thread a short program. The answers must be those that some serial order of the
//! same operations gives on the rule itself (`laws::BruteForce`). What is held at the end must keep the rule.
#![cfg(loom)]

use std::collections::HashSet;
use std::num::NonZeroU8;

use loom::sync::Arc;
use trapline_watch::constraints::laws::{BruteForce, Operation, play_one};
use trapline_watch::constraints::{
    Accounting, BreakpointKind, Claim, Constraints, Cpu, DebugRegisters, Machine, Request, Reservation,
    Target, TaskId, TryError, set_lane,
};

/// Answers of each thread's operations.
type Answers = Vec<Vec<bool>>;

fn task(number: u32) -> Target {
    Target::Task(id(number))
}

fn id(number: u32) -> TaskId {
    TaskId::new(number).expect("a task")
}

fn on(number: u32, cpu: u32) -> Target {
    Target::TaskOnCpu(id(number), Cpu(cpu))
}

fn cpu(number: u32) -> Target {
    Target::Cpu(Cpu(number))
}

fn reserve(target: Target) -> Operation {
    Operation::Reserve(target.one(BreakpointKind::Data))
}

fn machine(cpus: u32, registers: u8) -> Machine {
    Machine::new(cpus, DebugRegisters::Shared(registers)).expect("a machine")
}

/// The answers of all serial orders that keep each thread's own order.
fn serial(machine: Machine, programs: &[Vec<Operation>]) -> HashSet<Answers> {
    fn orders(left: &[usize], order: &mut Vec<usize>, all: &mut Vec<Vec<usize>>) {
        if left.iter().all(|&n| n == 0) {
            all.push(order.clone());
        }
        for thread in (0..left.len()).filter(|&thread| left[thread] > 0) {
            let mut left = left.to_vec();
            left[thread] -= 1;
            order.push(thread);
            orders(&left, order, all);
            order.pop();
        }
    }
    let mut all = Vec::new();
    orders(&programs.iter().map(Vec::len).collect::<Vec<_>>(), &mut Vec::new(), &mut all);
    all.into_iter()
        .map(|order| {
            let rule = BruteForce::new(machine);
            let mut held: Vec<Vec<Reservation>> = programs.iter().map(|_| Vec::new()).collect();
            let mut answers: Answers = programs.iter().map(|_| Vec::new()).collect();
            for thread in order {
                let step = programs[thread][answers[thread].len()];
                answers[thread].push(play_one(&rule, &mut held[thread], step));
            }
            answers
        })
        .collect()
}

fn model(bound: Option<usize>, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = bound;
    builder.check(run);
}

fn keeps_the_rule(machine: &Machine, held: &[Reservation]) {
    let held: Vec<Request> = held.iter().map(|r| r.target().wants(r.claim())).collect();
    assert_eq!(BruteForce::holds(machine, &held), Ok(()), "{held:?}");
}

fn check(machine: Machine, bound: Option<usize>, programs: Vec<Vec<Operation>>) {
    check_as(machine, bound, |thread| thread, programs);
}

/// Checks with a lane for each thread. Two CPUs have two lanes, and numbers of the same parity share one.
fn check_as(machine: Machine, bound: Option<usize>, lane: fn(usize) -> usize, programs: Vec<Vec<Operation>>) {
    let allowed = std::sync::Arc::new(serial(machine, &programs));
    assert!(!allowed.is_empty());
    model(bound, move || {
        let accounting = Arc::new(Constraints::new(machine));
        let threads: Vec<_> = programs
            .iter()
            .cloned()
            .enumerate()
            .map(|(thread, program)| {
                let accounting = accounting.clone();
                loom::thread::spawn(move || {
                    set_lane(lane(thread));
                    let mut held = Vec::new();
                    let answers: Vec<bool> =
                        program.iter().map(|&step| play_one(&*accounting, &mut held, step)).collect();
                    (answers, held)
                })
            })
            .collect();
        let ends: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("it ends")).collect();
        let (answers, held): (Answers, Vec<Vec<Reservation>>) = ends.into_iter().unzip();
        assert!(allowed.contains(&answers), "{answers:?} is no serial order's: {allowed:?}");
        let held: Vec<Reservation> = held.into_iter().flatten().collect();
        keeps_the_rule(&machine, &held);
        held.into_iter().for_each(|reservation| accounting.release(reservation));
        assert_eq!(accounting.held(), []);
        let all = NonZeroU8::new(machine.registers_for(BreakpointKind::Data)).expect("slots");
        let all = accounting.reserve(cpu(0).wants(Claim::weighing(BreakpointKind::Data, all)));
        assert!(all.is_ok(), "every count is back at 0");
    });
}

#[test]
fn two_tasks_come_and_go_in_one_lane() {
    let program = |number| vec![reserve(task(number)), Operation::Release(0)];
    check_as(machine(2, 2), Some(3), |thread| 2 * thread, vec![program(1), program(2)]);
}

#[test]
fn a_task_and_a_cpu_want_the_last_register() {
    check(machine(2, 1), None, vec![vec![reserve(task(1))], vec![reserve(cpu(0))]]);
}

#[test]
fn a_bound_task_and_a_cpu_want_the_last_register() {
    check(machine(2, 1), None, vec![vec![reserve(on(1, 1))], vec![reserve(cpu(1))]]);
}

#[test]
fn one_task_wants_the_last_register_twice() {
    check(machine(2, 1), None, vec![vec![reserve(task(1))], vec![reserve(on(1, 0))]]);
}

#[test]
fn a_register_is_given_back_while_a_cpu_wants_it() {
    check(machine(2, 1), None, vec![vec![reserve(task(1)), Operation::Release(0)], vec![reserve(cpu(1))]]);
}

/// The task goes up in one lane and down in another.
#[test]
fn two_tasks_a_cpu_and_a_release() {
    let programs =
        vec![vec![reserve(task(1)), Operation::Release(0)], vec![reserve(task(2))], vec![reserve(cpu(0))]];
    check(machine(2, 1), Some(3), programs);
}

#[test]
fn two_bound_tasks_and_their_cpu() {
    check(
        machine(2, 2),
        Some(2),
        vec![vec![reserve(on(1, 0))], vec![reserve(on(2, 0))], vec![reserve(cpu(0))]],
    );
}

#[test]
fn two_cpus_and_a_task() {
    check(machine(2, 1), Some(3), vec![vec![reserve(cpu(0))], vec![reserve(cpu(1))], vec![reserve(task(1))]]);
}

#[test]
fn a_modified_breakpoint_keeps_its_register_until_it_has_the_other() {
    let machine = Machine::new(2, DebugRegisters::Apart { data: 1, instruction: 1 }).expect("a machine");
    let to_code = Operation::Modify(0, Claim::one(BreakpointKind::Instruction));
    let code = Operation::Reserve(cpu(0).one(BreakpointKind::Instruction));
    check(machine, Some(3), vec![vec![reserve(task(1)), to_code], vec![code, reserve(cpu(0))]]);
}

#[test]
fn a_heavier_breakpoint_and_a_cpu() {
    let heavier =
        Operation::Modify(0, Claim::weighing(BreakpointKind::Data, NonZeroU8::MIN.saturating_add(1)));
    check(machine(2, 2), Some(3), vec![vec![reserve(task(1)), heavier], vec![reserve(cpu(1))]]);
}

#[test]
fn one_mutex_on_one_cpu() {
    check(machine(1, 1), None, vec![vec![reserve(task(1)), Operation::Release(0)], vec![reserve(cpu(0))]]);
}

/// An operation that may not wait is accepted, refused or busy. If it was busy, it has changed nothing.
#[test]
fn try_forms_change_nothing_when_busy() {
    let machine = machine(2, 1);
    model(Some(3), move || {
        let accounting = Arc::new(Constraints::new(machine));
        let attempt = |target: Target, lane: usize| {
            let accounting = accounting.clone();
            loom::thread::spawn(move || {
                set_lane(lane);
                accounting.try_reserve(target.one(BreakpointKind::Data))
            })
        };
        let threads = [attempt(task(1), 0), attempt(cpu(1), 1)];
        let mut held: Vec<Reservation> = Vec::new();
        let mine = accounting.reserve(task(2).one(BreakpointKind::Data));
        let mut busy = 0;
        for thread in threads {
            match thread.join().expect("it ends") {
                Ok(reservation) => held.push(reservation),
                Err(TryError::Busy) => busy += 1,
                Err(TryError::Refused(_)) => {}
            }
        }
        held.extend(mine);
        keeps_the_rule(&machine, &held);
        // Tasks do not exclude each other. So if the CPU was not accepted, both tasks were, or one of them
        // met the CPU's operation.
        assert!(!held.is_empty() || busy > 0);
        for reservation in held {
            let released = accounting.try_release(reservation);
            assert!(released.is_ok(), "nothing is in the way");
        }
        assert_eq!(accounting.held(), []);
        let register = accounting.try_reserve(cpu(0).one(BreakpointKind::Data));
        assert!(register.is_ok(), "a busy or refused operation left nothing behind");
    });
}
