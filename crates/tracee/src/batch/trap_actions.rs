//! Traps in guarded places, and the signal actions that the kernel resets for them.
//!
//! Input: a thread that is about to receive SIGTRAP or SIGILL, and where guarded places go on. Output: a thread
//! without that signal, at its place in the copy. Invariants: the pc is written before anything else, so a
//! thread needs no help any more if its tracer dies; an action that the trap reset is put back before the
//! thread runs. Does not: know what a guard is for, or let the thread run.

use std::io;
use std::time::Instant;

use super::gadgets::KnownGadgets;
use super::report::BatchReport;
use crate::error::TargetError;
use crate::handler::Handler;
use crate::process::Process;
use crate::regs::Regs;
use crate::remote_options::RemoteOptions;
use crate::session::Session;
use crate::status::ThreadStatus;
use crate::sys::ptrace;

/// Maps the address of a trapping byte to where its thread goes on.
pub(super) type Guard<'a> = &'a dyn Fn(u64) -> Option<u64>;

const SI_KERNEL: i32 = 0x80;
const ILL_ILLOPN: i32 = 2;

/// Moves a thread from a trap in a guarded place to where it goes on. Returns false if the signal is another
/// one; then nothing is changed.
pub(super) fn leave_guard(tid: u32, signal: i32, guard: Guard<'_>) -> io::Result<bool> {
    let back = match signal {
        libc::SIGTRAP => 1,
        libc::SIGILL => 0,
        _ => return Ok(false),
    };
    let (Ok((_, code)), Ok(mut regs)) = (ptrace::signal_info(tid), Regs::read(tid, None)) else {
        return Ok(false);
    };
    if !matches!((signal, code), (libc::SIGTRAP, SI_KERNEL) | (libc::SIGILL, ILL_ILLOPN)) {
        return Ok(false);
    }
    let Some(resume) = guard(regs.pc().wrapping_sub(back)) else { return Ok(false) };
    regs.set_pc(resume);
    // The pc comes first: if the tracer dies now, the signal's handler finds a pc that needs no help.
    ptrace::unless_killed(regs.write(tid))?;
    Ok(true)
}

/// The actions to put back if the kernel resets them, which it does when a guard is hit with its signal
/// blocked.
#[derive(Debug, Default)]
pub(super) struct TrapActions {
    trap: Option<Handler>,
    illegal: Option<Handler>,
}

impl TrapActions {
    pub(super) const fn set_trap(&mut self, handler: Option<Handler>) {
        self.trap = handler;
    }
    pub(super) const fn set_illegal(&mut self, handler: Option<Handler>) {
        self.illegal = handler;
    }
    const fn handler_of(&self, signal: i32) -> Option<Handler> {
        if signal == libc::SIGTRAP { self.trap } else { self.illegal }
    }
    /// Whether the kernel has reset the signal's action.
    pub(super) fn was_reset(&self, process: &Process, signal: i32) -> bool {
        self.handler_of(signal).is_some_and(|h| h.handler > 1)
            && process.status().is_ok_and(|status| !ThreadStatus::has(status.caught, signal))
    }
    /// Undoes what the kernel does when it forces a trap through although the signal is blocked: it resets
    /// the action and unblocks the signal. The thread itself makes a call for that. If that fails the thread
    /// still goes on correctly, but the action stays reset.
    pub(super) fn put_back(
        &self,
        process: &Process,
        gadgets: &mut KnownGadgets,
        report: &mut BatchReport,
        (tid, signal, blocked): (u32, i32, bool),
    ) {
        let Some(handler) = self.handler_of(signal) else { return };
        let Ok(maps) = process.maps() else { return };
        let Ok(gadgets) = gadgets.get(process, &maps) else { return };
        let begin = Instant::now();
        let options = RemoteOptions::default();
        let Ok(mut session) = Session::begin(process, (tid, None), gadgets, &maps, &options, begin) else {
            return;
        };
        *session.restored_mut().1 |= u64::from(blocked) << (signal - 1);
        let set = |session: &mut Session| -> Result<bool, TargetError> {
            let at = session.argument(process, &handler.to_bytes())?;
            let args = [signal as u64, at.0, 0, 8, 0, 0];
            Ok(session.call(process, libc::SYS_rt_sigaction, args)?.is_ok())
        };
        let done = set(&mut session).unwrap_or(false);
        if session.end(process).is_ok() && done {
            report.dispositions_restored += 1;
        }
        report.longest_stop = report.longest_stop.max(begin.elapsed());
    }
}
