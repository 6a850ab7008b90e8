//! One stopped thread that makes calls for the tracer, and its way back (TGT-1).
//!
//! Input: a thread in a ptrace-stop. Output: results of calls; then its old registers, mask and call.
//! Invariants: from the first changed register on, the thread's registers lead to rt_sigreturn of a frame
//! that holds its old state. So it restores itself if the tracer dies. Its signal mask is changed only inside
//! that span. Does not: choose the thread, or let it run at the end.
//!
//! # A call that does not end
//!
//! The wait for the thread has a limit, after which the thread is ordered to stop. It may
//! - *stop before it entered the call* (it was frozen, or got no CPU): the call was not made; the thread gets
//!   its own registers back;
//! - *come to the call's entry or end after all*: the call counts like any other. A call that sleeps
//!   interruptibly returns an error;
//! - *not stop*, because the kernel waits uninterruptibly in the call: it is left there. When the kernel
//!   returns, and the tracer is gone or has detached, the thread goes back through the frame, as it would if
//!   the tracer had died (TGT-1).
//!
//! In the first and the last case the session makes no further calls. What the call made, if it did, stays in
//! the process.

use std::io;
use std::time::{Duration, Instant};

use trapline_record::RemoteAddr;

use crate::call_rights::{check_dispatch, check_thread, suspend_seccomp};
use crate::calls::{Interruption, Repair};
use crate::error::{TargetError, caller_gone_or};
use crate::frame::{ARGUMENT_LEN, Frame, RED_ZONE};
use crate::gadget::Gadgets;
use crate::maps::Mapping;
use crate::numbers::forgets_timeout;
use crate::process::Process;
use crate::regs::Regs;
use crate::remote_options::{RemoteOptions, RemoteReport, Rseq};
use crate::repair::{interruption, may_redo_eintr};
use crate::room::{check_room, frame_place};
use crate::status::InCall;
use crate::stuck::Stuck;
use crate::sys::ptrace::{self, Vectors};
use crate::sys::signals;
use crate::sys::wait::pause;
use crate::sys::wait::{self, Stop};

/// A stopped thread and all that is needed to make calls in it and to restore it.
#[derive(Debug)]
pub(crate) struct Session {
    tid: u32,
    original: Regs,
    restored: Regs,
    repair: Repair,
    mask: u64,
    frame: Frame,
    gadgets: Gadgets,
    scratch: Option<Vec<u8>>,
    seccomp_suspended: bool,
    calls: u32,
    since: Instant,
    synced: bool,
    vectors: Vectors,
    /// How a call was left that did not end in time; `None` as long as all calls ended.
    late: Option<Late>,
}

/// The state of a thread that did not make its call in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Late {
    /// It is stopped, outside of the call.
    Outside,
    /// It is still in the call.
    Inside,
}

/// Limit for a call: the kernel may have to find memory for it, or a CPU for the thread.
const CALL_TIME: Duration = Duration::from_secs(10);
/// Limit for a frozen thread, which makes no call until it is thawed.
const FROZEN_TIME: Duration = Duration::from_millis(500);
/// Limit for the stop of a thread that has exceeded one of the limits above.
const LEAVE_TIME: Duration = Duration::from_millis(500);

/// Waits for the next stop of a thread that is to make a call; `None` when that takes too long.
fn next_stop(process: &Process, tid: u32, at_most: Duration) -> io::Result<Option<Stop>> {
    let start = Instant::now();
    loop {
        let passed = start.elapsed();
        let frozen = || passed >= FROZEN_TIME && Stuck::of(process.pid(), tid).is_frozen();
        // Compute this before the look, so that a tracer that got no CPU for a while still looks once more.
        let late = passed >= at_most || signals::asked_to_end(start) || frozen();
        match wait::peek(tid)? {
            None if late => return Ok(None),
            None => pause(passed),
            stop => return Ok(stop),
        }
    }
}

/// A thread's rseq area; `None` if it has registered none.
fn rseq(tid: u32, regs: &Regs) -> io::Result<Option<Rseq>> {
    let (addr, len, signature) = ptrace::rseq(tid)?;
    let offset = addr.wrapping_sub(regs.thread_pointer()).cast_signed() as i32;
    Ok((addr != 0).then_some(Rseq { addr: RemoteAddr(addr), offset, len, signature }))
}

/// Moves a thread that stands in an rseq critical section to its abort handler, as the kernel would do.
fn leave_critical_section(process: &Process, tid: u32, regs: &mut Regs) {
    const RSEQ_CS: u64 = 8;
    let Ok(Some(area)) = rseq(tid, regs) else { return };
    let Ok(descriptor) = process.read_u64(area.addr + RSEQ_CS) else { return };
    if descriptor == 0 {
        return;
    }
    let word = |index: u64| process.read_u64(RemoteAddr(descriptor) + index * 8);
    if let (Ok(start), Ok(len), Ok(abort)) = (word(1), word(2), word(3))
        && regs.pc().wrapping_sub(start) < len
    {
        regs.set_pc(abort);
    }
}

impl Session {
    /// Prepares a stopped thread. The call `before` is the one that it was in when it was ordered to stop.
    /// Nothing in the thread is changed if this fails.
    pub(crate) fn begin(
        process: &Process,
        (tid, before): (u32, Option<InCall>),
        gadgets: Gadgets,
        maps: &[Mapping],
        options: &RemoteOptions,
        since: Instant,
    ) -> Result<Self, TargetError> {
        let fail = |what: &str, error| caller_gone_or(process.pid(), what, error);
        let mut original =
            Regs::read(tid, before.as_ref()).map_err(|e| fail("read a thread's registers", e))?;
        let mask = ptrace::signal_mask(tid).map_err(|e| fail("read a thread's signal mask", e))?;
        leave_critical_section(process, tid, &mut original);
        let redo = original.shows_eintr() && may_redo_eintr(process, tid, &original, mask);
        let (restored, repair) = original.repaired(redo);
        let vectors = ptrace::vectors(tid).map_err(|e| fail("read a thread's vector state", e))?;
        let status = process.thread_status(tid)?;
        check_thread(process.pid(), &status)?;
        check_dispatch(process, tid)?;
        let scratch = frame_place(process, maps, original.sp(), options)?;
        let top = scratch.map_or(original.sp() - RED_ZONE, |at| at.0 + RemoteOptions::FRAME_ROOM);
        let back = original.repaired_for_sigreturn(redo);
        let no_frame = |why: &str| TargetError::NoCaller { pid: process.pid(), why: why.into() };
        let frame = Frame::new(top, &gadgets, &back, mask, &vectors).map_err(no_frame)?;
        check_room(process, maps, &frame, scratch)?;
        let seccomp_suspended = suspend_seccomp(process.pid(), &status, options)?;
        let mut session = Self {
            tid,
            original,
            restored,
            repair,
            mask,
            frame,
            gadgets,
            scratch: None,
            seccomp_suspended,
            calls: 0,
            since,
            synced: false,
            vectors,
            late: None,
        };
        if scratch.is_some() {
            let mut old = vec![0; session.frame.bytes.len()];
            process.read(RemoteAddr(session.frame.base), &mut old)?;
            session.scratch = Some(old);
        }
        session.enter(process)?;
        Ok(session)
    }
    /// The thread.
    pub(crate) const fn tid(&self) -> u32 {
        self.tid
    }
    /// The thread's registers when it was stopped.
    pub(crate) const fn original(&self) -> Regs {
        self.original
    }
    /// What the stop does to the call that the thread was in.
    pub(crate) fn report(&self, process: &Process) -> RemoteReport {
        let timeout = self.original.call().is_some_and(|(nr, args)| match self.repair {
            Repair::Again => interruption(process, nr, &args) == Interruption::EintrTimeout,
            Repair::Restarted => forgets_timeout(nr, &args),
            Repair::None | Repair::Eintr => false,
        });
        RemoteReport {
            tid: self.tid,
            interrupted: self.repair == Repair::Eintr,
            restarted_timeout: timeout,
            ..RemoteReport::default()
        }
    }
    /// Completes a report with the calls made, and the time since the order to stop.
    pub(crate) fn complete(&self, report: &mut RemoteReport) {
        report.calls = self.calls;
        report.stopped = self.since.elapsed();
    }
    fn enter(&self, process: &Process) -> Result<(), TargetError> {
        process.write_text(RemoteAddr(self.frame.base), &self.frame.bytes)?;
        self.set_call(self.frame.return_sp, libc::SYS_rt_sigreturn, [0; 6])
            .map_err(|e| caller_gone_or(process.pid(), "set a thread's registers", e))?;
        ptrace::set_signal_mask(self.tid, u64::MAX)
            .map_err(|e| caller_gone_or(process.pid(), "block a thread's signals", e))
    }
    fn set_call(&self, sp: u64, nr: i64, args: [u64; 6]) -> io::Result<()> {
        self.original.for_call(&self.gadgets, sp, nr, args).write(self.tid)
    }
    /// Runs the thread to its next system-call stop. Returns the thread's state if it does not come there in
    /// time.
    fn advance(&self, process: &Process) -> io::Result<Option<Late>> {
        let mut late = false;
        loop {
            ptrace::to_call(self.tid)?;
            let mut stop = next_stop(process, self.tid, CALL_TIME)?;
            if stop.is_none() {
                late = true;
                ptrace::interrupt(self.tid)?;
                stop = next_stop(process, self.tid, LEAVE_TIME)?;
            }
            match stop {
                None => return Ok(Some(Late::Inside)),
                Some(Stop::Call { .. }) => {
                    wait::take(self.tid)?;
                    return Ok(None);
                }
                Some(Stop::Event { .. }) => {
                    wait::take(self.tid)?;
                    if late {
                        return Ok(Some(Late::Outside));
                    }
                }
                // Only a forced signal can come here, and then our own call caused it. It is not delivered.
                Some(Stop::Signal { signal, .. }) => {
                    wait::take(self.tid)?;
                    return Err(io::Error::other(format!("the call raised signal {signal}")));
                }
                _ => return Err(io::Error::from_raw_os_error(libc::ESRCH)),
            }
        }
    }
    /// Makes a call; the inner error is the one that the call returned.
    pub(crate) fn call(
        &mut self,
        process: &Process,
        nr: i64,
        args: [u64; 6],
    ) -> Result<Result<u64, io::Error>, TargetError> {
        if !self.gadgets.hold(process) {
            return Err(TargetError::NoCaller {
                pid: process.pid(),
                why: "the code that its calls go through was changed meanwhile".into(),
            });
        }
        let since = Instant::now();
        let run = || -> io::Result<Result<u64, Late>> {
            self.set_call(self.frame.call_sp, nr, args)?;
            for _ in ["entry", "end"] {
                if let Some(late) = self.advance(process)? {
                    return Ok(Err(late));
                }
            }
            Ok(Ok(Regs::read(self.tid, None)?.result()))
        };
        let stuck =
            |since: Instant| TargetError::stuck(process.pid(), self.tid, "a call of ours", since.elapsed());
        if self.late.is_some() {
            return Err(stuck(since));
        }
        let value = match run().map_err(|e| caller_gone_or(process.pid(), "run a call in it", e))? {
            Ok(value) => value,
            Err(late) => {
                let error = stuck(since);
                self.late = Some(late);
                return Err(error);
            }
        };
        self.calls += 1;
        let is_error = (-4095..0).contains(&value.cast_signed());
        Ok(if is_error {
            Err(io::Error::from_raw_os_error(-(value.cast_signed() as i32)))
        } else {
            Ok(value)
        })
    }
    /// Sets the thread to the first instruction of a function that will return to the frame's rt_sigreturn.
    /// Refused for a frame in borrowed memory, since no stack lies below it.
    pub(crate) fn begin_function(
        &mut self,
        process: &Process,
        function: u64,
        argument: u64,
    ) -> Result<(), TargetError> {
        let refuse = |why: &str| Err(TargetError::NoCaller { pid: process.pid(), why: why.to_owned() });
        let (Some(_), None) = (self.gadgets.restorer(), &self.scratch) else {
            return refuse("its stack may be a small one");
        };
        let sp = self.frame.return_sp;
        let (regs, word) = self.original.for_function(&self.gadgets, sp, function, argument);
        if let Some((at, word)) = word {
            process.write_text(RemoteAddr(at), &word.to_le_bytes())?;
        }
        self.calls += 1;
        regs.write(self.tid).map_err(|e| caller_gone_or(process.pid(), "set a thread's registers", e))
    }
    /// Whether the thread, which is at the entry of a call, is about to return through the frame.
    pub(crate) fn is_back(&self) -> io::Result<bool> {
        Ok(Regs::read(self.tid, None)?.returns_through(self.frame.return_sp))
    }
    /// Writes bytes where a call can read them, and returns the address.
    pub(crate) fn argument(&self, process: &Process, bytes: &[u8]) -> Result<RemoteAddr, TargetError> {
        let at = RemoteAddr(self.frame.base);
        if bytes.len() as u64 > ARGUMENT_LEN {
            let source = io::Error::from_raw_os_error(libc::E2BIG);
            return Err(TargetError::Memory {
                pid: process.pid(),
                what: "write",
                addr: at,
                len: bytes.len(),
                source,
            });
        }
        process.write_text(at, bytes)?;
        Ok(at)
    }
    pub(crate) fn rseq(&self, process: &Process) -> Result<Option<Rseq>, TargetError> {
        rseq(self.tid, &self.original)
            .map_err(|e| caller_gone_or(process.pid(), "ask for a thread's rseq area", e))
    }
    /// Returns whether membarrier was registered in this session, and notes that it is now.
    pub(crate) const fn mark_synced(&mut self) -> bool {
        std::mem::replace(&mut self.synced, true)
    }
    /// Gives the thread its own registers and mask back. The thread stays stopped.
    pub(crate) fn end(&self, process: &Process) -> Result<(), TargetError> {
        let fail = |e| caller_gone_or(process.pid(), "give a thread its registers back", e);
        if self.late == Some(Late::Inside) {
            // It goes back through the frame by itself.
            return Ok(());
        }
        if self.seccomp_suspended {
            ptrace::set_options(self.tid, ptrace::OPTIONS).map_err(fail)?;
        }
        ptrace::set_signal_mask(self.tid, self.mask).map_err(fail)?;
        self.restored.write(self.tid).map_err(fail)?;
        ptrace::forget_call(self.tid).map_err(fail)?;
        ptrace::restore_vectors(self.tid, &self.vectors).map_err(fail)?;
        self.scratch.as_ref().map_or(Ok(()), |old| process.write_text(RemoteAddr(self.frame.base), old))
    }
    /// The registers and the signal mask that the thread will go on with, for a caller that needs to change
    /// them.
    pub(crate) const fn restored_mut(&mut self) -> (&mut Regs, &mut u64) {
        (&mut self.restored, &mut self.mask)
    }
}
