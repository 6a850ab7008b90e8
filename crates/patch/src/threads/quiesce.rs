//! Waits until no thread is between a guard's trap and its stop: step R4 of `protocol`.
//!
//! In: a seized process; its sites hold the file's bytes again. Out: the proof, thread by thread, that none
//! will take a trap of ours any more, and that every trap taken was answered. Each thread proves it in one of
//! three ways:
//!
//! - it is blocked: the way from a trap to its stop never blocks;
//! - it has run for long enough: a trap that it had taken before would be a signal by now;
//! - it was stopped by an order, and no trap waits behind that stop. An ordered stop comes before queued
//!   signals (`trapline_tracee`, TGT-12), so a trap may have been taken and not been seen yet: such threads
//!   are sent on and waited for.
//!
//! A signal that waits (in the thread's own pending set), or an unanswered stop, refutes each of them.
//!
//! # What the wait costs
//!
//! A thread that is ready to run and never gets a CPU proves nothing by itself. It gets [`PATIENCE`] before
//! all threads are stopped for a moment. During that time the text is the file's already, every thread runs,
//! and signals are passed on as in any batch. What a user can see is that `detach` returns up to a second
//! later on a machine that starves the target. Stopping at once would be quicker, but would cost calls that
//! sleep with a timeout a part of it (see `restarted_timeouts`).
//! Does not: stop a thread that can prove it otherwise.

use std::time::Duration;

use trapline_tracee::{Batch, InCall, Process, TargetError, ThreadStatus};

use crate::error::PatchError;
use crate::signals::{SIGILL, SIGTRAP};

/// A thread needs a few microseconds from a trap to its stop; after this much run time it has made it.
const ENOUGH_NS: u64 = 200_000;
/// How long threads get to prove it. Most have done so within one slice of the scheduler.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a trap that waits behind a stop may take to show. Its thread got a CPU for that stop a moment
/// ago.
const LATEST: Duration = Duration::from_secs(10);

/// Returns when no thread can take a guard's trap any more, and none is unanswered.
pub(crate) fn quiesce(batch: &mut Batch<'_>, guard: &dyn Fn(u64) -> Option<u64>) -> Result<(), PatchError> {
    quiesce_within(PATIENCE, batch, guard)
}

fn quiesce_within(
    patience: Duration,
    batch: &mut Batch<'_>,
    guard: &dyn Fn(u64) -> Option<u64>,
) -> Result<(), PatchError> {
    let process = batch.process();
    // A thread that blocks has proven it, and so has one that is gone.
    let proven = |tid| !matches!(process.in_call(tid), Ok(InCall::Running)) && !is_unanswered(process, tid);
    // (thread, run time when the last site was restored)
    let mut open: Vec<(u32, u64)> = process
        .threads()?
        .into_iter()
        .filter(|&tid| !proven(tid))
        .filter_map(|tid| Some((tid, process.run_time(tid).ok()?)))
        .collect();
    let done = batch.serve_until(guard, patience, &mut |_| {
        open.retain(|&(tid, since)| {
            let short = process.run_time(tid).is_ok_and(|now| now < since + ENOUGH_NS);
            !proven(tid) && (short || is_unanswered(process, tid))
        });
        open.is_empty()
    })?;
    if done { Ok(()) } else { by_stop(batch, guard) }
}

/// Stops all threads. A thread that has no trap waiting then has taken none; the others are sent on until
/// theirs is answered.
fn by_stop(batch: &mut Batch<'_>, guard: &dyn Fn(u64) -> Option<u64>) -> Result<(), PatchError> {
    let process = batch.process();
    let stopped = batch.stop_all(guard)?;
    let mut waiting = stopped.threads();
    waiting.retain(|&tid| has_trap_waiting(process, tid));
    stopped.resume()?;
    batch.serve_until(guard, LATEST, &mut |_| {
        waiting.retain(|&tid| is_unanswered(process, tid));
        waiting.is_empty()
    })?;
    let Some(&tid) = waiting.first() else { return Ok(()) };
    Err(TargetError::no_stop(process.pid(), tid, LATEST).into())
}

/// Whether a trap that a thread took has not been answered: it waits as a signal, or the thread is in a stop.
/// The signal is looked for first. It leaves the pending set and the thread enters its stop in one step, so
/// it is seen in one place or the other.
fn is_unanswered(process: &Process, tid: u32) -> bool {
    has_trap_waiting(process, tid) || process.thread_status(tid).is_ok_and(|status| status.state == 't')
}

/// Whether such a signal waits. One that is blocked was sent by a process: for a trap, the kernel unblocks
/// it.
pub(crate) fn has_trap_waiting(process: &Process, tid: u32) -> bool {
    process.thread_status(tid).is_ok_and(|status| {
        let deliverable = status.pending & !status.blocked;
        [SIGTRAP, SIGILL].iter().any(|&signal| ThreadStatus::has(deliverable, signal))
    })
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    use trapline_record::RemoteAddr;
    use trapline_tracee::{Batch, BatchOptions, Process};

    use super::{is_unanswered, quiesce_within};
    use crate::threads::still::move_out;

    /// Four threads that run one instruction all the time, in a program without a handler.
    const RUNNERS: &str = r#"
#include <stdio.h>
#include <pthread.h>
#include <unistd.h>
extern char site[]; void run(void);
__asm__(".globl run\n run: site: nop\n ret\n ret");
static void *work(void *a) { for (;;) run(); }
int main() { pthread_t t; for (int i = 0; i < 4; i++) pthread_create(&t, 0, work, 0);
 printf("%lx\n", (long)site); fflush(stdout); pause(); }
"#;

    /// Right behind the site is the next boundary, whose copy is right behind that.
    #[test]
    fn a_thread_behind_its_trap_is_not_at_the_next_boundary() {
        let (mut runners, site) = start();
        let process = Process::open(runners.0.id()).expect("traceable");
        let guard = |addr: u64| (addr == site.0 || addr == site.0 + 1).then_some(addr + 1);
        let mut met = 0;
        for round in 0..200 {
            Batch::run(&process, BatchOptions::default(), |batch| {
                process.write_text(site, &[0xcc]).expect("written");
                for _ in 0..10 {
                    batch.serve(&guard).expect("served");
                }
                let mut stopped = batch.stop_all(&guard).expect("stopped");
                let behind: Vec<u32> = stopped
                    .threads()
                    .into_iter()
                    .filter(|&tid| super::has_trap_waiting(&process, tid))
                    .collect();
                move_out(&process, &mut stopped, &guard).expect("moved");
                for tid in &behind {
                    assert_eq!(stopped.regs(*tid).expect("alive").pc(), site.0 + 1, "round {round}");
                }
                met += behind.len();
                process.write_text(site, &[0x90]).expect("written");
                stopped.resume().expect("resumed");
                quiesce_within(Duration::from_secs(1), batch, &guard).expect("quiet");
            })
            .expect("traced");
            assert_eq!(runners.0.try_wait().expect("ours"), None, "round {round}");
        }
        assert!(met > 0, "no thread was stopped behind its trap");
    }

    /// Killed when dropped.
    struct Runners(Child);

    impl Drop for Runners {
        fn drop(&mut self) {
            drop(self.0.kill());
            drop(self.0.wait());
        }
    }

    fn start() -> (Runners, RemoteAddr) {
        // Tests of one process run beside each other.
        let of = std::thread::current().id();
        let dir = std::env::temp_dir().join(format!("trapline-quiesce-{}-{of:?}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a temporary folder");
        let (source, program) = (dir.join("runners.c"), dir.join("runners"));
        std::fs::write(&source, RUNNERS).expect("written");
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-w", "-pthread", "-o"]).args([&program, &source]);
        assert!(cc.status().expect("a C compiler").success());
        let mut child = Command::new(&program).stdout(Stdio::piped()).spawn().expect("started");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        drop(std::fs::remove_dir_all(&dir));
        (Runners(child), RemoteAddr(u64::from_str_radix(line.trim(), 16).expect("an address")))
    }

    #[test]
    fn no_trap_is_left_behind_when_threads_are_stopped_for_the_proof() {
        let (mut runners, site) = start();
        let process = Process::open(runners.0.id()).expect("traceable");
        let guard = |addr: u64| (addr == site.0).then_some(addr + 1);
        for round in 0..200 {
            Batch::run(&process, BatchOptions::default(), |batch| {
                process.write_text(site, &[0xcc]).expect("written");
                for _ in 0..10 {
                    batch.serve(&guard).expect("served");
                }
                process.write_text(site, &[0x90]).expect("written");
                quiesce_within(Duration::ZERO, batch, &guard).expect("quiet");
                for tid in process.threads().expect("alive") {
                    assert!(!is_unanswered(&process, tid), "round {round}");
                }
            })
            .expect("traced");
            // A trap left behind would have killed it.
            assert_eq!(runners.0.try_wait().expect("ours"), None, "round {round}");
        }
    }
}
