//! Which thread's folder in /proc shows a process, and which threads belong to the program.
//!
//! Input: a pid. Output: a folder of /proc that shows the process, its threads, the fields of a `stat`.
//! Invariants: TGT-14; a main thread that has ended is not used to read anything.
//! Does not: stop anything.
//!
//! # A main thread that has ended
//!
//! It stays as a zombie until all others have ended. /proc/PID shows nothing of the process then: `maps` is
//! empty; `exe`, `root`, `fd` and `mem` cannot be opened. /proc/PID/task/TID of any living thread shows all
//! of it. `wait` reports the main thread's end only after that of all others. So each read picks its folder
//! anew: a thread that executes a program takes the main thread's place, and /proc/PID shows the process
//! again.
//!
//! # Threads of the kernel
//!
//! io_uring (`iou-sqp-*`, `iou-wrk-*`) and vhost run kernel code in threads of the process. These threads
//! have its memory and never run its code. So none of them can make a call for us, or has a state to which it
//! could return. They are left out of every list of threads.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::procfs;
use crate::spare;
use crate::status::ThreadStatus;

/// Flags of threads that have begun to end, or to be ended by a signal (linux/sched.h).
const EXITING: u64 = 0x404;
/// SIGKILL, as a bit of a set of signals.
const KILL: u64 = 1 << 8;
/// Flag of threads that the kernel creates for itself, which belong to no program (linux/sched.h).
const KERNEL: u64 = 0x20_0000;
/// Flag of io_uring's workers (linux/sched.h).
const IO_WORKER: u64 = 0x10;
/// Flag of all workers that the kernel creates for a process, from Linux 6.4 on. It had another meaning until
/// 5.16.
const USER_WORKER: u64 = 0x4000;
/// The signals 1 to 31 that such a worker blocks: all but SIGKILL and SIGSTOP.
const WORKER_BLOCKS: u64 = 0x7ffb_feff;

/// A `stat` file, from its third field on.
#[derive(Debug)]
pub(crate) struct Stat(String);

impl Stat {
    /// Reads one; `task` is a folder of /proc.
    pub(crate) fn read(task: &Path) -> io::Result<Self> {
        Ok(Self::parse(&procfs::read(task.join("stat"))?))
    }
    /// Parses a text. The name before the fields may hold any byte.
    fn parse(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        Self(text.rsplit_once(')').map_or("", |(_, rest)| rest).to_owned())
    }
    /// Field `number`, counted from 1 as proc(5) does.
    pub(crate) fn field(&self, number: usize) -> Option<u64> {
        self.0.split_ascii_whitespace().nth(number - 3)?.parse().ok()
    }
    /// Whether it belongs to a task that has ended.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.0.split_ascii_whitespace().next(), None | Some("Z" | "X"))
    }
    /// Whether it belongs to a task that has ended, is about to, or was killed. The kernel kills the other
    /// threads of a process that exits.
    fn is_ending(&self) -> bool {
        let (flags, pending) = (self.field(9).unwrap_or(0), self.field(31).unwrap_or(0));
        self.has_ended() || flags & EXITING != 0 || pending & KILL != 0
    }
    /// Whether it belongs to a thread that the kernel created for work of its own.
    fn is_kernels(&self) -> bool {
        let (flags, blocked) = (self.field(9).unwrap_or(0), self.field(32).unwrap_or(0));
        flags & IO_WORKER != 0 || flags & USER_WORKER != 0 && blocked == WORKER_BLOCKS
    }
}

fn main_folder(pid: u32) -> PathBuf {
    format!("/proc/{pid}").into()
}

/// All tasks that /proc lists.
fn tasks(pid: u32) -> io::Result<Vec<u32>> {
    let list = || {
        let dir = fs::read_dir(format!("/proc/{pid}/task"))?;
        Ok(dir.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
    };
    spare::with(list)
}

fn task(pid: u32, tid: u32) -> PathBuf {
    format!("/proc/{pid}/task/{tid}").into()
}

/// The threads that run the program.
pub(crate) fn threads(pid: u32) -> io::Result<Vec<u32>> {
    let is_programs = |&tid: &u32| !Stat::read(&task(pid, tid)).is_ok_and(|stat| stat.is_kernels());
    Ok(tasks(pid)?.into_iter().filter(is_programs).collect())
}

/// A thread that lives: the main thread if it does, otherwise another.
pub(crate) fn living(pid: u32) -> Option<u32> {
    let lives = |&tid: &u32| Stat::read(&task(pid, tid)).is_ok_and(|stat| !stat.has_ended());
    Some(pid).filter(lives).or_else(|| threads(pid).ok()?.into_iter().find(lives))
}

/// Whether all threads of the process have ended or are about to.
pub(crate) fn is_ending(pid: u32) -> bool {
    let ends = |tid| Stat::read(&task(pid, tid)).map_or(true, |stat| stat.is_ending());
    tasks(pid).map_or(true, |tasks| tasks.into_iter().all(ends))
}

/// The folder of /proc that shows the process: its own, or that of a living thread where the main thread has
/// ended.
#[must_use]
pub fn folder(pid: u32) -> PathBuf {
    match living(pid) {
        Some(tid) if tid != pid => task(pid, tid),
        _ => main_folder(pid),
    }
}

/// Name of what is gone.
pub(crate) const UNKNOWN: &str = "?";

/// The name of a process or thread (`comm`), `?` if it is gone. Bytes that are not UTF-8 are shown as U+FFFD.
#[must_use]
pub fn comm(tid: u32) -> String {
    let Ok(name) = procfs::read(format!("/proc/{tid}/comm")) else { return UNKNOWN.to_owned() };
    String::from_utf8_lossy(name.strip_suffix(b"\n").unwrap_or(&name)).into_owned()
}

/// The time when a process began, in clock ticks after boot (field 22 of its `stat`).
///
/// # Errors
/// When there is no such process.
pub fn start_time(pid: u32) -> io::Result<u64> {
    stat(pid)?.field(22).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Whether any thread of the process runs. A process that has ended stays in /proc until its parent reaps it.
#[must_use]
pub fn runs(pid: u32) -> bool {
    living(pid).is_some()
}

/// Children of all threads of a process; none where the kernel does not list them.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let list = |tid| procfs::text(task(pid, tid).join("children")).unwrap_or_default();
    let lists: Vec<String> = tasks(pid).into_iter().flatten().map(list).collect();
    lists.iter().flat_map(|list| list.split_whitespace()).filter_map(|pid| pid.parse().ok()).collect()
}

/// Whether it is a thread that the kernel runs for itself. A process that is ending has no memory either.
pub(crate) fn is_kernel_thread(pid: u32) -> bool {
    stat(pid).is_ok_and(|stat| stat.field(9).unwrap_or(0) & KERNEL != 0)
}

/// User and system time of a process with all its threads, in ticks of 10 ms.
#[must_use]
pub fn cpu_ticks(pid: u32) -> Option<u64> {
    let stat = stat(pid).ok()?;
    stat.field(14)?.checked_add(stat.field(15)?)
}

/// The main thread's `stat`.
pub(crate) fn stat(pid: u32) -> io::Result<Stat> {
    Stat::read(&main_folder(pid))
}

/// Waits until the kernel has finished with a thread of ours, and has so detached from its tracees. Its entry
/// in /proc stays until then. That takes microseconds. A join returns earlier, as soon as the thread's memory
/// is no longer needed.
pub(crate) fn until_gone(task: &Path) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while task.exists() && Instant::now() < deadline {
        std::thread::yield_now();
    }
}

/// Whether a thread that has ended is the main thread of our own child: the child's end is its parent's to see. Ends of
/// other threads of it are only the tracer's to see, and they stay there as zombies until it does.
pub(crate) fn is_own_child(tid: u32) -> bool {
    let status = ThreadStatus::parse(&procfs::read(format!("/proc/{tid}/status")).unwrap_or_default());
    status.ppid == std::process::id() && status.tgid == tid
}

#[cfg(test)]
mod tests {
    use super::Stat;

    fn stat(state: &str, flags: u64, blocked: u64) -> Stat {
        let between = "0 ".repeat(22);
        Stat::parse(format!("7 (a) b\u{fffd}) {state} 1 1 1 0 -1 {flags} {between}{blocked} 0\n").as_bytes())
    }

    #[test]
    fn workers_of_the_kernel_are_distinguished_from_threads_that_block_as_much() {
        assert!(stat("S", 0x0040_4050, 0x7ffb_feff).is_kernels(), "iou-sqp of Linux 6.18");
        assert!(stat("S", 0x50, 0).is_kernels(), "iou-wrk of Linux 5.15");
        assert!(stat("S", 0x4040, 0x7ffb_feff).is_kernels(), "vhost");
        assert!(!stat("S", 0x4040, 0).is_kernels(), "it loaded a module under Linux 5.10");
        assert!(!stat("S", 0x0040_0040, 0x7ffb_feff).is_kernels(), "it blocks all signals");
    }

    #[test]
    fn a_name_may_hold_anything() {
        let text = [b"9 (\xff) Z (\xc3) ".as_slice(), b"S 4 9 9 0 -1 64"].concat();
        let stat = Stat::parse(&text);
        assert_eq!((stat.has_ended(), stat.field(4), stat.field(9)), (false, Some(4), Some(64)));
        assert!(Stat::parse(b"9 (x) Z 4").has_ended() && Stat::parse(b"").has_ended());
    }

    #[test]
    fn a_thread_ends_when_it_is_killed_and_before_it_is_a_zombie() {
        let stat = |state: &str, flags: u64, pending: u64| {
            let between = "0 ".repeat(21);
            let text = format!("7 (a) {state} 1 1 1 0 -1 {flags} {between}{pending} 0 0\n");
            Stat::parse(text.as_bytes())
        };
        assert!(stat("R", 0x40_0044, 0).is_ending(), "it has begun to end");
        assert!(stat("R", 0x40_0040, 1 << 8).is_ending(), "it was killed");
        assert!(stat("Z", 0, 0).is_ending(), "it has ended");
        assert!(!stat("R", 0x40_0040, 1 << 14).is_ending(), "a signal that it may handle");
    }
}
