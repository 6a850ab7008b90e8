//! Many threads at one accounting, on the real locks. Whenever all stand still, what they hold keeps the rule
//! and is what the accounting reports; at the end nothing is left. There are more threads than lanes, so some
//! share. A second test is a duel for one debug register, which tasks and a CPU must never both have: closing
//! the lanes ensures that. It fails within a second when a lane is left open, which the first test does not
//! notice.
#![cfg(not(loom))]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Barrier, Mutex};

use trapline_watch::constraints::laws::BruteForce;
use trapline_watch::constraints::{
    Accounting, BreakpointKind, Claim, Constraints, Cpu, DebugRegisters, Held, Machine, Request, Reservation,
    Target, TaskId,
};

const THREADS: usize = 12;
const ROUNDS: usize = 300;
const OPS: usize = 40;

/// Marsaglia's xorshift: the same sequences at every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
    fn request(&mut self, cpus: u32) -> Request {
        let task = TaskId::new(1 + self.below(6) as u32).expect("a task");
        let cpu = Cpu(self.below(cpus.into()) as u32);
        let target = match self.below(8) {
            0..4 => Target::Task(task),
            4..7 => Target::TaskOnCpu(task, cpu),
            _ => Target::Cpu(cpu),
        };
        target.one(if self.below(3) == 0 { BreakpointKind::Instruction } else { BreakpointKind::Data })
    }
}

/// Operations of one thread until it stands still.
fn work(accounting: &Constraints, random: &mut Random, held: &mut Vec<Reservation>, cpus: u32) {
    for _ in 0..OPS {
        let some = (!held.is_empty()).then(|| random.below(held.len().max(1) as u64) as usize);
        match (random.below(10), some) {
            (0..3, Some(at)) => accounting.release(held.swap_remove(at)),
            (3, Some(at)) => {
                let kind =
                    if random.below(2) == 0 { BreakpointKind::Data } else { BreakpointKind::Instruction };
                // Whether it is refused is up to the accounting; the rule is checked below.
                let _answer = accounting.modify(&mut held[at], Claim::one(kind));
            }
            (4, Some(at)) => {
                let gone = held.swap_remove(at);
                held.extend(accounting.try_release(gone).err());
            }
            (5, _) => held.extend(accounting.try_reserve(random.request(cpus))),
            _ => held.extend(accounting.reserve(random.request(cpus))),
        }
    }
}

fn registers_of(held: &[Held]) -> u32 {
    held.iter().map(|line| line.data + line.instruction).sum()
}

#[test]
fn whenever_all_stand_still_the_rule_holds() {
    for (cpus, registers) in [
        (2, DebugRegisters::Shared(4)),
        (1, DebugRegisters::Shared(4)),
        (3, DebugRegisters::Apart { data: 4, instruction: 6 }),
    ] {
        let machine = Machine::new(cpus, registers).expect("a machine");
        let accounting = Constraints::new(machine);
        let (barrier, all) = (Barrier::new(THREADS), Mutex::new(vec![Vec::<Request>::new(); THREADS]));
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (accounting, barrier, all) = (&accounting, &barrier, &all);
                scope.spawn(move || {
                    let (mut random, mut held) = (Random(0x9E37_79B9 + thread as u64), Vec::new());
                    for _ in 0..ROUNDS {
                        work(accounting, &mut random, &mut held, cpus);
                        let mine = held.iter().map(|r: &Reservation| r.target().wants(r.claim())).collect();
                        all.lock().expect("no thread failed")[thread] = mine;
                        if barrier.wait().is_leader() {
                            check(&machine, accounting, &all.lock().expect("no thread failed").concat());
                        }
                        barrier.wait();
                    }
                    held.into_iter().for_each(|reservation| accounting.release(reservation));
                });
            }
        });
        assert_eq!(accounting.held(), []);
    }
}

fn check(machine: &Machine, accounting: &Constraints, all: &[Request]) {
    assert_eq!(BruteForce::holds(machine, all), Ok(()), "{all:?}");
    let of_tasks = all.iter().filter(|request| !matches!(request.target(), Target::Cpu(_)));
    assert_eq!(registers_of(&accounting.held()), of_tasks.count() as u32, "weights are 1");
    // The histograms are right if a CPU can get what the rule leaves, and no more.
    for cpu in (0..machine.cpus()).map(|cpu| Target::Cpu(Cpu(cpu))) {
        for kind in [BreakpointKind::Data, BreakpointKind::Instruction] {
            let more = accounting.reserve(cpu.one(kind));
            let rule = BruteForce::holds(machine, &[all, &[cpu.one(kind)]].concat());
            assert_eq!(more.is_ok(), rule.is_ok(), "{cpu:?} {kind:?} beside {all:?}");
            more.into_iter().for_each(|reservation| accounting.release(reservation));
        }
    }
}

/// Counts the holders of the register: each claim of a task counts 1, the CPU's counts this much.
const CPU_HAS_IT: u64 = 1 << 32;
/// How often the CPU gets it.
const WINS: u64 = 3000;

#[test]
fn tasks_in_any_lane_and_a_cpu_never_have_one_register_together() {
    let machine = Machine::new(2, DebugRegisters::Shared(1)).expect("a machine");
    let accounting = Constraints::new(machine);
    let (has_it, over) = (AtomicU64::new(0), AtomicBool::new(false));
    // There are two lanes, which threads take in turn, so of four threads each lane has two.
    let task = |number: u32| {
        let (accounting, has_it, over) = (&accounting, &has_it, &over);
        move || {
            let target = Target::Task(TaskId::new(number).expect("a task"));
            let mut won = 0u64;
            while !over.load(SeqCst) {
                let Ok(reservation) = accounting.reserve(target.one(BreakpointKind::Data)) else { continue };
                let others = has_it.fetch_add(1, SeqCst);
                assert!(others < CPU_HAS_IT, "a task and the CPU have the slot");
                won += 1;
                has_it.fetch_sub(1, SeqCst);
                accounting.release(reservation);
            }
            won
        }
    };
    std::thread::scope(|scope| {
        let tasks: Vec<_> = (1..=4).map(|number| scope.spawn(task(number))).collect();
        let mut won = 0;
        while won < WINS && !tasks.iter().any(std::thread::ScopedJoinHandle::is_finished) {
            let Ok(reservation) =
                accounting.reserve(Target::Cpu(Cpu(won as u32 % 2)).one(BreakpointKind::Data))
            else {
                continue;
            };
            let others = has_it.fetch_add(CPU_HAS_IT, SeqCst);
            has_it.fetch_sub(CPU_HAS_IT, SeqCst);
            accounting.release(reservation);
            won += 1;
            if others != 0 {
                over.store(true, SeqCst);
                panic!("the CPU and {others} tasks have the slot");
            }
        }
        over.store(true, SeqCst);
        let wins: Vec<u64> = tasks.into_iter().map(|task| task.join().expect("it never shared")).collect();
        println!("the CPU had it {won} times, tasks {wins:?}");
    });
    assert_eq!(accounting.held(), []);
}
