//! The running kernel as reference: perf_event_open and our accounting accept and refuse the same sequences
//! of breakpoints.
//!
//! The kernel's debug registers belong to the whole machine. A sequence with a different result is played
//! again. It counts as a difference only if it differs every time while no other process is seen to hold
//! registers.
#![cfg(not(loom))]

use std::cell::Cell;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use trapline_tracee::perf::breakpoint::{Access, Breakpoint, BreakpointError, Scope, Spec};
use trapline_watch::constraints::laws::{Operation, nine_cases, play, run_case};
use trapline_watch::constraints::{
    Accounting, BreakpointKind, Claim, Constraints, Cpu, DebugRegisters, Machine, Refusal, Request,
    Reservation, Target, TaskId,
};

/// The tests of this file use the same debug registers.
static ALONE: Mutex<()> = Mutex::new(());
/// x86-64 has four, for either kind.
const REGISTERS: u8 = 4;

/// The kernel's own accounting.
struct Kernel {
    machine: Machine,
    open: Mutex<Vec<(Request, Breakpoint)>>,
}

fn access(kind: BreakpointKind) -> Access {
    match kind {
        BreakpointKind::Data => Access::ReadWrite,
        BreakpointKind::Instruction => Access::Execute,
    }
}

impl Kernel {
    fn open(&self, request: Request) -> Result<Breakpoint, BreakpointError> {
        let tid = |task: TaskId| Some(task.number());
        let scope = match request.target() {
            Target::Task(task) => Scope::Thread { tid: tid(task), cpu: None },
            Target::TaskOnCpu(task, cpu) => Scope::Thread { tid: tid(task), cpu: Some(cpu.0) },
            Target::Cpu(cpu) => Scope::Cpu(cpu.0),
        };
        // The address is in the null page, which nothing touches.
        let addr = trapline_record::RemoteAddr(8);
        let spec = Spec { addr, len: 1, access: access(request.claim().kind()), scope, inherit: false };
        Breakpoint::open(spec, false)
    }
    fn refusal(&self) -> Refusal {
        Refusal::NoRegister { cpu: Cpu(0), registers: REGISTERS.into(), by_cpu: 0, by_task: 0, weight: 1 }
    }
    fn all(&self) -> std::sync::MutexGuard<'_, Vec<(Request, Breakpoint)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Whether another process holds debug registers: then they cannot all be opened.
    fn disturbed(&self) -> bool {
        let every = (0..self.machine.cpus()).flat_map(|cpu| [Target::Cpu(Cpu(cpu)); REGISTERS as usize]);
        let all: Result<Vec<_>, _> =
            every.map(|target| self.open(target.one(BreakpointKind::Data))).collect();
        all.is_err()
    }
}

impl Accounting for Kernel {
    fn reserve(&self, request: Request) -> Result<Reservation, Refusal> {
        match self.open(request) {
            Ok(breakpoint) => {
                self.all().push((request, breakpoint));
                Ok(Reservation::granted(request))
            }
            Err(BreakpointError::NoRegister { .. }) => Err(self.refusal()),
            Err(error) => panic!("{request:?}: {error}"),
        }
    }
    fn release(&self, reservation: Reservation) {
        let request = reservation.target().wants(reservation.claim());
        let mut all = self.all();
        let at = all.iter().position(|(open, _)| *open == request).expect("it is open");
        drop(all.swap_remove(at));
    }
    fn modify(&self, reservation: &mut Reservation, to: Claim) -> Result<(), Refusal> {
        let request = reservation.target().wants(reservation.claim());
        let mut all = self.all();
        let (open, breakpoint) = all.iter_mut().find(|(open, _)| *open == request).expect("it is open");
        let addr = breakpoint.spec().addr;
        match breakpoint.modify(addr, 1, access(to.kind())) {
            Ok(()) => {
                *open = reservation.target().wants(to);
                *reservation = Reservation::granted(*open);
                Ok(())
            }
            Err(BreakpointError::NoRegister { .. }) => Err(self.refusal()),
            Err(error) => panic!("{request:?} to {to:?}: {error}"),
        }
    }
}

/// Three tasks that wait for their end: two processes, and a thread of ours.
struct Tasks {
    children: Vec<Child>,
    ids: Vec<TaskId>,
    _end: std::sync::mpsc::Sender<()>,
}

impl Tasks {
    fn start() -> Self {
        let sleeper = || Command::new("sleep").arg("1000").stdout(Stdio::null()).spawn().expect("sleep");
        let children = vec![sleeper(), sleeper()];
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let (sender, receiver) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let me = std::fs::read_link("/proc/thread-self").expect("procfs");
            let tid = me.file_name().and_then(|tid| tid.to_str()?.parse().ok());
            sender.send(tid.expect("a number")).expect("it is awaited");
            // Ends when the other side is dropped.
            ended.recv().expect_err("nothing is sent");
        });
        let pids = children.iter().map(Child::id).chain(receiver.recv());
        let ids = pids.map(|pid| TaskId::new(pid).expect("a task")).collect();
        Self { children, ids, _end: end }
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        for child in &mut self.children {
            let ended = child.kill().and_then(|()| child.wait());
            assert!(ended.is_ok(), "{ended:?}");
        }
    }
}

/// The kernel, and a machine like this one; or why the test cannot run here.
fn kernel() -> Result<Kernel, String> {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let possible = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let cpus =
        online.trim().strip_prefix("0-").and_then(|last| last.parse::<u32>().ok()).map_or(1, |last| last + 1);
    if online != possible || std::env::consts::ARCH != "x86_64" {
        return Err(format!("CPUs on line are {}, possible {}", online.trim(), possible.trim()));
    }
    let machine = Machine::new(cpus, DebugRegisters::Shared(REGISTERS)).map_err(|e| e.to_string())?;
    let kernel = Kernel { machine, open: Mutex::default() };
    kernel.open(Target::Cpu(Cpu(0)).one(BreakpointKind::Data)).map_err(|e| e.to_string())?;
    match (0..50).any(|_| !kernel.disturbed()) {
        true => Ok(kernel),
        false => Err("another program holds debug registers".into()),
    }
}

/// Fails with what differs every time although no other process is seen.
fn agree(kernel: &Kernel, mut difference: impl FnMut() -> Option<String>) -> Result<(), String> {
    let mut last = None;
    for _ in 0..20 {
        match difference() {
            None => return Ok(()),
            Some(_) if kernel.disturbed() => thread::yield_now(),
            found => last = found,
        }
    }
    last.map_or(Ok(()), Err)
}

#[test]
fn the_nine_cases_come_out_alike() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let kernel = match kernel() {
        Ok(kernel) if kernel.machine.cpus() > 1 => kernel,
        Ok(_) => return println!("SKIP: the cases need two CPUs"),
        Err(why) => return println!("SKIP: {why}"),
    };
    let tasks = Tasks::start();
    let ours = Constraints::new(kernel.machine);
    for (name, case) in nine_cases(&kernel.machine, tasks.ids[0], tasks.ids[1]) {
        assert_eq!(run_case(&ours, &case), Ok(()), "{name}");
        let found = agree(&kernel, || run_case(&kernel, &case).err().map(|at| format!("{at:?}")));
        assert_eq!(found, Ok(()), "{name}, by the kernel");
    }
}

fn steps(cpus: u32, tasks: Vec<TaskId>) -> impl Strategy<Value = Vec<Operation>> {
    let kind = || prop_oneof![3 => Just(BreakpointKind::Data), 1 => Just(BreakpointKind::Instruction)];
    let cpu = move || (0..cpus).prop_map(Cpu);
    let task = move || prop::sample::select(tasks.clone());
    let target = prop_oneof![
        3 => task().prop_map(Target::Task),
        3 => (task(), cpu()).prop_map(|(task, cpu)| Target::TaskOnCpu(task, cpu)),
        2 => cpu().prop_map(Target::Cpu),
    ];
    let step = prop_oneof![
        5 => (target, kind()).prop_map(|(target, kind)| Operation::Reserve(target.one(kind))),
        3 => any::<usize>().prop_map(Operation::Release),
        1 => (any::<usize>(), kind()).prop_map(|(which, kind)| Operation::Modify(which, Claim::one(kind))),
    ];
    prop::collection::vec(step, 1..40)
}

#[test]
fn random_sequences_come_out_alike() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let kernel = match kernel() {
        Ok(kernel) => kernel,
        Err(why) => return println!("SKIP: {why}"),
    };
    let tasks = Tasks::start();
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(300u32);
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let (asked, refused) = (Cell::new(0), Cell::new(0));
    let ran = TestRunner::new(config).run(&steps(kernel.machine.cpus(), tasks.ids.clone()), |steps| {
        let ours = play(&Constraints::new(kernel.machine), &steps);
        let same = agree(&kernel, || {
            let theirs = play(&kernel, &steps);
            (theirs != ours).then(|| format!("kernel {theirs:?}\nours   {ours:?}"))
        });
        asked.update(|n| n + ours.len());
        refused.update(|n| n + ours.iter().filter(|&&accepted| !accepted).count());
        same.map_err(TestCaseError::fail)
    });
    println!("{} operations, of which {} refused, alike by the kernel and by us", asked.get(), refused.get());
    assert!(ran.is_ok(), "{}", ran.err().map(|e| e.to_string()).unwrap_or_default());
}
