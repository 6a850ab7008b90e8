//! The accounting against the rule as it is written (`laws::BruteForce`): the same answers to any sequence,
//! and correct numbers. CI plays some thousands of random sequences; `PROPTEST_CASES=3000000` plays more.
#![cfg(not(loom))]

use std::num::NonZeroU8;

use proptest::prelude::*;
use trapline_watch::constraints::laws::{BruteForce, Operation, nine_cases, play_one, run_case};
use trapline_watch::constraints::{
    Accounting, BreakpointKind, Claim, Constraints, Cpu, DebugRegisters, Held, Machine, Refusal, Reservation,
    Target, TaskId, TryError,
};

fn kind() -> impl Strategy<Value = BreakpointKind> {
    prop_oneof![3 => Just(BreakpointKind::Data), 1 => Just(BreakpointKind::Instruction)]
}

fn claim() -> impl Strategy<Value = Claim> {
    let weight = prop_oneof![6 => Just(1u8), 2 => 2u8..4, 1 => 4u8..=255];
    (kind(), weight.prop_map(|n| NonZeroU8::new(n).unwrap_or(NonZeroU8::MIN)))
        .prop_map(|(kind, weight)| Claim::weighing(kind, weight))
}

/// CPUs up to one that the machine lacks; tasks in one page and in different ones.
fn target(cpus: u32) -> impl Strategy<Value = Target> {
    let cpu = move || (0..=cpus).prop_map(Cpu);
    let task = || prop::sample::select(vec![1u32, 2, 65, 4_000_000]).prop_filter_map("a task", TaskId::new);
    prop_oneof![
        3 => task().prop_map(Target::Task),
        3 => (task(), cpu()).prop_map(|(task, cpu)| Target::TaskOnCpu(task, cpu)),
        2 => cpu().prop_map(Target::Cpu),
    ]
}

fn machine() -> impl Strategy<Value = Machine> {
    let registers = prop_oneof![
        3 => (0u8..=6).prop_map(DebugRegisters::Shared),
        1 => (0u8..=6, 0u8..=6).prop_map(|(data, instruction)| DebugRegisters::Apart { data, instruction }),
        1 => Just(DebugRegisters::Shared(16)),
    ];
    (1u32..6, registers).prop_filter_map("a machine", |(cpus, registers)| Machine::new(cpus, registers).ok())
}

fn sequence() -> impl Strategy<Value = (Machine, Vec<Operation>)> {
    machine().prop_flat_map(|machine| {
        let step = prop_oneof![
            5 => (target(machine.cpus()), claim()).prop_map(|(target, claim)| Operation::Reserve(target.wants(claim))),
            3 => any::<usize>().prop_map(Operation::Release),
            1 => (any::<usize>(), claim()).prop_map(|(which, claim)| Operation::Modify(which, claim)),
        ];
        (Just(machine), prop::collection::vec(step, 1..40))
    })
}

fn cases(default: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(default)
}

/// The lines that [`Constraints::held`] should return for these reservations.
fn held(machine: &Machine, reservations: &[Reservation]) -> Vec<Held> {
    let mut lines: Vec<Held> = Vec::new();
    for reservation in reservations {
        let (task, cpu) = match reservation.target() {
            Target::Task(task) => (task, None),
            Target::TaskOnCpu(task, cpu) => (task, Some(cpu)),
            Target::Cpu(_) => continue,
        };
        let shared = matches!(machine.registers(), DebugRegisters::Shared(_));
        let weight = u32::from(reservation.claim().weight());
        let data = shared || reservation.claim().kind() == BreakpointKind::Data;
        let (data, instruction) = if data { (weight, 0) } else { (0, weight) };
        match lines.iter_mut().find(|line| line.task == task && line.cpu == cpu) {
            Some(line) => (line.data, line.instruction) = (line.data + data, line.instruction + instruction),
            None => lines.push(Held { task, cpu, data, instruction }),
        }
    }
    lines.sort();
    lines
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(4000), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_is_answered_as_the_rule_says((machine, steps) in sequence()) {
        let (ours, rule) = (Constraints::new(machine), BruteForce::new(machine));
        let (mut our_held, mut rule_held) = (Vec::new(), Vec::new());
        for (at, &step) in steps.iter().enumerate() {
            let (our, rule) = (play_one(&ours, &mut our_held, step), play_one(&rule, &mut rule_held, step));
            prop_assert_eq!(our, rule, "step {} {:?}", at, step);
            prop_assert_eq!(&our_held, &rule_held);
        }
        prop_assert_eq!(ours.held(), held(&machine, &our_held));
        our_held.into_iter().for_each(|reservation| ours.release(reservation));
        prop_assert_eq!(ours.held(), []);
        // Nothing is left anywhere: every CPU can be filled.
        let registers = machine.registers_for(BreakpointKind::Data);
        for cpu in (0..machine.cpus()).map(Cpu) {
            let all = NonZeroU8::new(registers).map(|registers| Target::Cpu(cpu).wants(Claim::weighing(BreakpointKind::Data, registers)));
            if let Some(all) = all {
                prop_assert!(ours.reserve(all).is_ok());
            }
        }
    }

    #[test]
    fn try_forms_answer_alike_when_no_thread_is_in_the_way((machine, steps) in sequence()) {
        let (ours, rule) = (Constraints::new(machine), BruteForce::new(machine));
        let (mut our_held, mut rule_held): (Vec<Reservation>, _) = (Vec::new(), Vec::new());
        for &step in &steps {
            let our = match step {
                Operation::Release(_) | Operation::Modify(..) if our_held.is_empty() => false,
                Operation::Reserve(request) => {
                    let reservation = ours.try_reserve(request);
                    prop_assert_ne!(reservation.as_ref().err(), Some(&TryError::Busy));
                    let accepted = reservation.is_ok();
                    our_held.extend(reservation);
                    accepted
                }
                Operation::Release(which) => {
                    let gone = our_held.swap_remove(which % our_held.len());
                    ours.try_release(gone).is_ok()
                }
                Operation::Modify(which, to) => {
                    let which = which % our_held.len();
                    ours.try_modify(&mut our_held[which], to).is_ok()
                }
            };
            prop_assert_eq!(our, play_one(&rule, &mut rule_held, step));
        }
    }

    #[test]
    fn a_refusal_tells_true_numbers((machine, steps) in sequence()) {
        let ours = Constraints::new(machine);
        let mut all: Vec<Reservation> = Vec::new();
        for &step in &steps {
            let Operation::Reserve(request) = step else {
                play_one(&ours, &mut all, step);
                continue;
            };
            match ours.reserve(request) {
                Ok(reservation) => all.push(reservation),
                Err(Refusal::NoCpu { cpu, cpus }) => prop_assert!(cpu.0 >= cpus),
                Err(Refusal::NoRegister { cpu, registers, by_cpu, by_task, weight }) => {
                    prop_assert!(by_cpu + by_task + weight > registers);
                    let pool = |kind: BreakpointKind| matches!(machine.registers(), DebugRegisters::Shared(_)) || kind == request.claim().kind();
                    let pinned: u32 = all
                        .iter()
                        .filter(|r| r.target() == Target::Cpu(cpu) && pool(r.claim().kind()))
                        .map(|r| u32::from(r.claim().weight()))
                        .sum();
                    prop_assert_eq!(by_cpu, pinned);
                }
            }
        }
    }
}

#[test]
fn the_nine_cases() {
    let (Some(t), Some(u)) = (TaskId::new(77), TaskId::new(78)) else { unreachable!("both are numbers") };
    for (cpus, registers) in [(2, 3), (2, 4), (2, 6), (7, 4), (64, 16)] {
        for registers in
            [DebugRegisters::Shared(registers), DebugRegisters::Apart { data: registers, instruction: 1 }]
        {
            let machine = Machine::new(cpus, registers).expect("a machine");
            let (ours, rule) = (Constraints::new(machine), BruteForce::new(machine));
            for (name, case) in nine_cases(&machine, t, u) {
                assert_eq!(run_case(&rule, &case), Ok(()), "the rule itself, {name} on {machine:?}");
                assert_eq!(run_case(&ours, &case), Ok(()), "{name} on {machine:?}");
                assert_eq!(ours.held(), []);
            }
        }
    }
}

#[test]
fn what_is_no_machine_or_task_is_refused() {
    assert!(Machine::new(0, DebugRegisters::Shared(4)).is_err());
    assert!(Machine::new(1, DebugRegisters::Apart { data: 4, instruction: 17 }).is_err());
    assert_eq!((TaskId::new(0), TaskId::new(TaskId::LIMIT)), (None, None));
    let machine = Machine::new(2, DebugRegisters::Shared(4)).expect("a machine");
    let refused = Constraints::new(machine).reserve(Target::Cpu(Cpu(2)).one(BreakpointKind::Data));
    assert_eq!(refused.err(), Some(Refusal::NoCpu { cpu: Cpu(2), cpus: 2 }));
}

/// A modification that does not fit leaves the reservation and the debug registers as they were.
#[test]
fn a_refused_modification_changes_nothing() {
    let machine = Machine::new(2, DebugRegisters::Apart { data: 2, instruction: 1 }).expect("a machine");
    let ours = Constraints::new(machine);
    let task = Target::Task(TaskId::new(5).expect("a task"));
    let mut data = ours.reserve(task.one(BreakpointKind::Data)).expect("it fits");
    let code = ours.reserve(task.one(BreakpointKind::Instruction)).expect("it fits");
    assert!(ours.modify(&mut data, Claim::one(BreakpointKind::Instruction)).is_err());
    assert_eq!(data.claim(), Claim::one(BreakpointKind::Data));
    ours.release(code);
    assert_eq!(ours.modify(&mut data, Claim::one(BreakpointKind::Instruction)), Ok(()));
    assert_eq!(data.claim().kind(), BreakpointKind::Instruction);
    let two =
        ours.reserve(task.wants(Claim::weighing(BreakpointKind::Data, NonZeroU8::MIN.saturating_add(1))));
    assert!(two.is_ok(), "both data slots are free again");
}
