//! Finds the holders of debug registers when there are too few.
//!
//! What this process holds for each thread is in its own account ([`crate::accounts`]). What others hold for
//! the thread, or for whole CPUs, is found by trying: a register that is neither free nor ours belongs to
//! another process. The kernel does not show to which. It does show which process traces another (a debugger
//! sets breakpoints by ptrace), and which processes have perf events open at all.

use std::fmt;
use std::fs;

use trapline_tracee::perf::{Breakpoint, SampleRings, this_thread};
use trapline_tracee::{ThreadStatus, comm};

use crate::accounts::{held_for, registers};

/// Limits for the threads that are looked at, and for those that are shown.
const LOOKED_AT: usize = 64;
const SHOWN: usize = 8;

/// The holders of a thread's debug registers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoRegisters {
    /// The thread that could not be armed.
    pub tid: u32,
    /// Its name.
    pub comm: String,
    /// Number of debug registers of a CPU.
    pub registers: u32,
    /// Number of free ones for that thread, found by trying.
    pub free: u32,
    /// Number of those that were requested.
    pub wanted: u32,
    /// Number of those that others hold for whole CPUs, whatever runs there; found by trying.
    pub cpus: u32,
    /// Threads of the process for which debug registers are held.
    pub tasks: Vec<TaskRegisters>,
    /// Other processes that have breakpoints, as far as that can be seen.
    pub holders: Vec<Holder>,
}

/// The debug registers held for one thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskRegisters {
    /// The thread.
    pub tid: u32,
    /// Its name.
    pub comm: String,
    /// Number held by this process, according to its account.
    pub ours: u32,
    /// Number held by others, found by trying.
    pub others: u32,
}

/// A process that may hold debug registers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Its pid.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// In which way it may hold them.
    pub how: HolderKind,
}

/// In which way a process may hold debug registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HolderKind {
    /// It traces the process.
    Debugger,
    /// It has this many perf events open, of any kind.
    PerfEvents(u32),
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, comm, how } = self;
        match how {
            HolderKind::Debugger => write!(f, "{comm} ({pid}) debugs it"),
            HolderKind::PerfEvents(1) => write!(f, "{comm} ({pid}) has a perf event open"),
            HolderKind::PerfEvents(events) => write!(f, "{comm} ({pid}) has {events} perf events open"),
        }
    }
}

impl fmt::Display for TaskRegisters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tid, comm, ours, others } = self;
        write!(f, "of thread {tid} ({comm}) ")?;
        match (ours, others) {
            (_, 0) => write!(f, "{ours} by this process"),
            (0, _) => write!(f, "{others} by others"),
            _ => write!(f, "{ours} by this process, {others} by others"),
        }
    }
}

impl fmt::Display for NoRegisters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tid, comm, registers, free, wanted, cpus, tasks, holders } = self;
        write!(f, "{wanted} wanted, {registers} in each CPU, {free} free for thread {tid} ({comm})")?;
        let mut held: Vec<String> = tasks.iter().take(SHOWN).map(TaskRegisters::to_string).collect();
        if tasks.len() > SHOWN {
            held.push(format!("of {} more threads some", tasks.len() - SHOWN));
        }
        if *cpus > 0 {
            held.push(format!("of whole CPUs {cpus} by others"));
        }
        if !held.is_empty() {
            write!(f, "; held: {}", held.join(", "))?;
        }
        if *cpus > 0 || tasks.iter().any(|task| task.others > 0) {
            let names: Vec<String> = holders.iter().map(Holder::to_string).collect();
            let names = if names.is_empty() { "no visible process".to_owned() } else { names.join(", ") };
            write!(f, "; the others may be: {names}")?;
        }
        if *free > 0 { write!(f, "; watch fewer, or take turns with --rotate") } else { Ok(()) }
    }
}

/// Finds the holders for a thread that could not be armed, and for the others of its process.
pub(crate) fn no_registers(
    rings: &SampleRings,
    tid: u32,
    threads: &[u32],
    points: &[Breakpoint],
) -> NoRegisters {
    let registers = points.first().map_or(0, |&point| registers(point));
    let free = |tid| points.first().and_then(|&point| rings.free_registers(tid, point).ok());
    let held = |tid| registers.saturating_sub(free(tid).unwrap_or(registers));
    let me = this_thread();
    let cpus = held(me).saturating_sub(held_for(me));
    let of = |tid: u32| {
        let ours = held_for(tid);
        TaskRegisters { tid, comm: comm(tid), ours, others: held(tid).saturating_sub(ours + cpus) }
    };
    let others = threads.iter().copied().filter(|&other| other != tid).take(LOOKED_AT);
    let tasks = std::iter::once(tid).chain(others).map(of).filter(|task| task.ours + task.others > 0);
    NoRegisters {
        tid,
        comm: comm(tid),
        registers,
        free: free(tid).unwrap_or(0),
        wanted: points.len() as u32,
        cpus,
        tasks: tasks.collect(),
        holders: holders(tid),
    }
}

/// Finds all holders for a thread, except ourselves.
fn holders(tid: u32) -> Vec<Holder> {
    let status = fs::read(format!("/proc/{tid}/status")).unwrap_or_default();
    let pid = ThreadStatus::parse(&status).tracer;
    let mut found = Vec::new();
    if pid != 0 {
        found.push(Holder { pid, comm: comm(pid), how: HolderKind::Debugger });
    }
    let me = std::process::id();
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids =
        pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).filter(|&pid| pid != me);
    for pid in pids {
        let links = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let is_event = |entry: &fs::DirEntry| {
            fs::read_link(entry.path()).is_ok_and(|to| to.as_os_str() == "anon_inode:[perf_event]")
        };
        let events = links.filter(is_event).count() as u32;
        if events > 0 {
            found.push(Holder { pid, comm: comm(pid), how: HolderKind::PerfEvents(events) });
        }
    }
    found
}
