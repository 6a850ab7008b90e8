//! Calls a function of the target in one of its own threads. Made for functions that allocate, so not every
//! thread is fit.
//!
//! Input: a seized process, and a function that takes one word. Output: it has run. Invariants: TGT-1,
//! throughout. The function returns to rt_sigreturn of the frame that holds the thread's old state, so the
//! thread comes back by itself if the tracer dies. Signals are blocked meanwhile. The other threads run and
//! are served, so any lock that the function waits for gets released. A function that does not come back
//! within [`FUNCTION_TIME`] is left to end by itself. The thread runs on in it, returns through the same
//! frame, and is served like any other. Does not: know what the function does.
//!
//! # Which thread
//!
//! A thread that holds a lock of the allocator, the loader or the unwinder would wait for itself. So a thread
//! is taken if
//! - it waits in a call that none of these makes with a lock held. That is a sleep, a poll, or a wait for a
//!   child, a signal, a peer, a terminal or a condition (their own waits are plain FUTEX_WAITs). Or its pc
//!   lies in `own`, code which they never call while they hold a lock. The code in which a program waits at
//!   its entry point may be such (`park`); and
//! - it is not in a signal handler, which may have interrupted any of them. That holds if no word of its
//!   stack is a signal restorer's address with a frame behind it as the kernel writes it. (The address alone
//!   is left on the stack by a call of sigaction.) A stale frame only delays the call to another moment; and
//! - its stack has enough space.
//!
//! A thread that waits at its entry point stays there until the caller releases it. If all threads do, and
//! that code is not in `own`, no thread becomes fit, and the search ends at once.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use trapline_record::RemoteAddr;

use super::serving::Serving;
use super::trap_actions::Guard;
use crate::calls::waits_outside;
use crate::error::TargetError;
use crate::maps::Mapping;
use crate::native::frame;
use crate::process::Process;
use crate::remote_options::RemoteOptions;
use crate::session::Session;
use crate::sys::wait::{self, Stop, pause};
use crate::sys::{ptrace, signals};

/// Limit for the function. It allocates, and may wait for a lock that another thread holds.
const FUNCTION_TIME: Duration = Duration::from_secs(10);
/// Bytes of stack below a frame that the function may use.
const STACK: u64 = 96 << 10;
/// Bytes of stack that are searched for signal frames.
const LOOKED_AT: u64 = 1 << 20;

/// A function of the target, and where a thread may stand that is to run it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Function<'a> {
    pub(super) address: RemoteAddr,
    pub(super) argument: u64,
    /// Code that an allocator, a loader or an unwinder never calls while it holds a lock.
    pub(super) own: &'a [Range<u64>],
}

/// The search for a thread that is fit, and the call in it.
pub(super) struct FunctionCall<'b, 'p, 'a> {
    serving: &'b mut Serving<'p>,
    function: Function<'a>,
    guard: Guard<'a>,
}

impl<'b, 'p, 'a> FunctionCall<'b, 'p, 'a> {
    pub(super) const fn new(serving: &'b mut Serving<'p>, function: Function<'a>, guard: Guard<'a>) -> Self {
        Self { serving, function, guard }
    }
    /// Runs the function in a thread that is fit for it, waiting at most `patience` for one.
    pub(super) fn run(&mut self, patience: Duration) -> Result<(), TargetError> {
        let process = self.serving.process();
        let start = Instant::now();
        let mut why = "no thread could be stopped".to_owned();
        loop {
            let maps = process.maps()?;
            let threads = self.serving.tracees().threads();
            let mut staying = 0;
            for &tid in &threads {
                if process.thread_status(tid).is_ok_and(|status| status.state == 'D') {
                    why = "a thread waits uninterruptibly".to_owned();
                    continue;
                }
                if self.serving.hold(tid, self.guard).is_err() {
                    self.serving.check_gone()?;
                    continue;
                }
                staying += usize::from(self.is_at_entry(tid));
                let fit = self.fit(tid, &maps);
                let done = fit.and_then(|()| self.run_in(tid, &maps));
                self.serving.tracees_mut().let_run(tid)?;
                match done {
                    Err(TargetError::NoCaller { why: reason, .. }) => why = reason,
                    other => return other,
                }
            }
            if staying > 0 && staying == threads.len() || start.elapsed() >= patience {
                return Err(TargetError::NoCaller { pid: process.pid(), why });
            }
            self.serving.serve(self.guard)?;
            std::thread::sleep(Duration::from_micros(500));
        }
    }
    /// Whether a held thread waits at its entry point.
    fn is_at_entry(&self, tid: u32) -> bool {
        let code = self.serving.process().entry_wait();
        let regs = self.serving.tracees().regs(tid);
        code.zip(regs.ok()).is_some_and(|(code, regs)| code.contains(&regs.pc()))
    }
    fn fit(&mut self, tid: u32, maps: &[Mapping]) -> Result<(), TargetError> {
        let process = self.serving.process();
        let refuse = |why: &str| Err(TargetError::NoCaller { pid: process.pid(), why: why.to_owned() });
        let Ok(regs) = self.serving.tracees().regs(tid) else { return refuse("a thread ended") };
        let in_own = || self.function.own.iter().any(|code| code.contains(&regs.pc()));
        let outside = match regs.call() {
            // It may sleep there.
            _ if self.is_at_entry(tid) => in_own(),
            Some((libc::SYS_read, args)) => is_no_file(process, args[0]),
            Some((nr, args)) => waits_outside(nr, &args),
            None => in_own(),
        };
        if !outside && self.is_at_entry(tid) {
            return refuse("at its entry point its C library may not be ready for that");
        }
        if !outside {
            return refuse("every thread may hold a lock of the allocator or the loader");
        }
        let Some(restorer) = self.serving.gadgets(maps)?.restorer() else {
            return refuse("it has no signal restorer");
        };
        let Some(map) = maps.iter().find(|m| m.contains(RemoteAddr(regs.sp()))) else {
            return refuse("a thread's stack is not mapped");
        };
        if regs.sp() - map.start.0 < STACK && map.path != "[stack]" {
            return refuse("a thread's stack has no room for the call");
        }
        let end = map.end.0.min(regs.sp() + LOOKED_AT);
        let mut stack = vec![0; (end - regs.sp()) as usize & !7];
        process.read(RemoteAddr(regs.sp()), &mut stack)?;
        let words = stack.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes));
        let words: Vec<u64> = words.collect();
        // A handler returns to a restorer, and ours does too. libc's restorer is the first word of a frame.
        if (0..words.len()).any(|n| words[n] == restorer && frame::may_begin(&words[n..])) {
            return refuse("every thread may be in a signal handler");
        }
        Ok(())
    }
    fn run_in(&mut self, tid: u32, maps: &[Mapping]) -> Result<(), TargetError> {
        let process = self.serving.process();
        let gadgets = self.serving.gadgets(maps)?;
        let since = Instant::now();
        let options = RemoteOptions::default();
        let thread = (tid, self.serving.tracees().before(tid));
        let mut session = Session::begin(process, thread, gadgets, maps, &options, since)?;
        let done = session
            .begin_function(process, self.function.address.0, self.function.argument)
            .and_then(|()| self.until_back(&session));
        // A thread that is still in the function may hold its locks. It finishes the function and comes back
        // by itself.
        if !matches!(done, Err(TargetError::Stuck { .. })) {
            session.end(process)?;
        }
        self.serving.sums().add_remote_stop(since.elapsed());
        done
    }
    /// Lets the thread run until it has come back by rt_sigreturn, and serves the others meanwhile.
    fn until_back(&mut self, session: &Session) -> Result<(), TargetError> {
        let process = self.serving.process();
        let tid = session.tid();
        let fail = |e: io::Error| TargetError::system(tid, "run a function in it", e);
        let start = Instant::now();
        let (mut entering, mut back) = (true, false);
        ptrace::to_call(tid).map_err(fail)?;
        loop {
            match wait::peek(tid).map_err(fail)? {
                Some(Stop::Call { .. }) => {
                    wait::take(tid).map_err(fail)?;
                    if std::mem::take(&mut back) {
                        return Ok(());
                    }
                    // The return itself is made too: it restores the vector registers, which the session does
                    // not.
                    back = entering && session.is_back().map_err(fail)?;
                    entering = !entering;
                    ptrace::to_call(tid).map_err(fail)?;
                }
                Some(Stop::Event { .. }) => {
                    wait::take(tid).map_err(fail)?;
                    ptrace::to_call(tid).map_err(fail)?;
                }
                Some(Stop::Signal { signal, .. }) => {
                    wait::take(tid).map_err(fail)?;
                    return Err(fail(io::Error::other(format!("the function raised signal {signal}"))));
                }
                Some(Stop::Exit { .. }) => return Err(process.gone("it ended in our call")),
                None if start.elapsed() >= FUNCTION_TIME || signals::asked_to_end(start) => {
                    return Err(TargetError::stuck(
                        process.pid(),
                        tid,
                        "a function of its own",
                        start.elapsed(),
                    ));
                }
                None => {
                    self.serving.serve_others(self.guard)?;
                    pause(start.elapsed());
                }
            }
        }
    }
}

/// Whether a descriptor does not lead to a file. A peer may take long to answer, and the loader reads only
/// files.
fn is_no_file(process: &Process, fd: u64) -> bool {
    let of = std::fs::metadata(process.folder().join(format!("fd/{fd}")));
    of.is_ok_and(|of| !of.is_file())
}
