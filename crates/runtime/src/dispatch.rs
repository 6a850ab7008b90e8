//! A hit, from registers to consumers: where the jump's stub and the trap's handler meet.
//!
//! In: the probe and the thread's registers. Out: where the thread goes on. Invariants: RUN-1 to RUN-3; DSP-1 every hit counts once, as a hit or
//! as missed, before any consumer is called; DSP-2 consumers run newest first, in a list as of one moment; DSP-3 nothing of a hit is
//! held by a consumer that does not come back (EPO-4: its count is made, its frame is found to be left, its call's record is replaced).
//! Does not: save or restore registers, choose how the original instruction runs.
//!
//! # A hit
//!
//! | step | what |
//! |---|---|
//! | D1 | the thread's line; without one: missed, done |
//! | D2 | enter; if a hit of this thread goes on: missed (nested), done |
//! | D3 | count |
//! | D4 | load the list, call each consumer whose filter agrees; remember who said what |
//! | D5 | if all said *remove*, flag the probe for the writer |
//! | D6 | unless the instruction pointer moved, keep the call's record for those that wait for its return |
//! | D7 | leave |
//!
//! A consumer may change the list that it stands in: it goes on in the old one (`probe`, H2). It may call what is probed: D2
//! of that hit. It may leave in D4: D1 to D3 are single stores that stand; D5 and D6 do not happen, so nobody is removed and no
//! return is waited for.

use trapline_insn::x86_64::Regs;

use crate::calls::Kept;
use crate::consumer::{Handler, Hit, Installed, Verdict};
use crate::epoch::{Inside, Line, Seal, ThreadPointer};
use crate::probe::{List, Probe};

/// Where the thread goes on.
#[repr(u64)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GoOn {
    /// At the original instruction. Registers may have changed, the stack pointer has not.
    Original = 0,
    /// At `regs.rip`, with all of `regs`: the original instruction does not run.
    Elsewhere = 1,
    /// At the original instruction, with all of `regs`: the stack pointer was moved.
    OtherStack = 2,
}

/// A site was hit: what generated code calls. Returns a [`GoOn`].
///
/// # Safety
/// `probe` is alive; `regs` holds the thread's state at the site and is the caller's alone.
pub unsafe extern "C" fn entry(probe: *const Probe, regs: *mut Regs) -> u64 {
    // SAFETY: the caller's.
    let (probe, regs) = unsafe { (&*probe, &mut *regs) };
    let Some((row, line)) = own_line(probe) else {
        probe.engine().counts().unplaced(probe.number());
        return GoOn::Original as u64;
    };
    let seal = Seal::new();
    // SAFETY: the caller's.
    unsafe { entered(&line.enter(&seal), row, probe, regs) as u64 }
}

/// A probed function returns: what generated code calls at its exits, with the stack pointer that the entry had. Returns a [`GoOn`].
///
/// # Safety
/// As [`entry`].
pub unsafe extern "C" fn exit(probe: *const Probe, regs: *mut Regs) -> u64 {
    // SAFETY: the caller's.
    let (probe, regs) = unsafe { (&*probe, &mut *regs) };
    // A thread without a line had none at the entry either: lines are not given back.
    let Some((row, line)) = own_line(probe) else { return GoOn::Original as u64 };
    let seal = Seal::new();
    // SAFETY: the caller's.
    unsafe { exited(&line.enter(&seal), row, probe, regs) as u64 }
}

#[inline]
fn own_line(probe: &Probe) -> Option<(usize, &'static Line)> {
    probe.engine().lines().of(ThreadPointer::own())
}

/// As [`entry`], for a trap's handler, which entered before it looked the probe up. `row` is the number of its line.
///
/// # Safety
/// As [`entry`].
#[inline]
pub unsafe fn entered(inside: &Inside<'_>, row: usize, probe: &Probe, regs: &mut Regs) -> GoOn {
    let (counts, number) = (probe.engine().counts(), probe.number());
    if inside.is_nested() {
        counts.nested(row, number);
        return GoOn::Original;
    }
    counts.hit(row, number);
    let Some(list) = probe.consumers().get(inside) else { return GoOn::Original };
    let (ip, sp) = (regs.rip, regs.sp());
    let mut said = Said::new(ip);
    for installed in list.iter() {
        // SAFETY: the consumers of the list are registered or in their grace, and this thread is inside.
        unsafe { said.ask(installed, regs) };
    }
    if said.agreed && !said.objected {
        probe.want_removal();
    }
    if said.waiting && regs.rip == ip && !probe.engine().calls().keep(probe.address(), sp, &said.kept) {
        said.lost += 1;
    }
    (0..said.lost).for_each(|_| counts.unreturned(row, number));
    go_on(ip, sp, regs)
}

/// As [`exit`], for a trap's handler. `row` is the number of its line.
///
/// # Safety
/// As [`entry`].
#[inline]
pub unsafe fn exited(inside: &Inside<'_>, row: usize, probe: &Probe, regs: &mut Regs) -> GoOn {
    let (ip, sp) = (regs.rip, regs.sp());
    // Taken before anyone is called: a handler that leaves has nothing to give back.
    let Some(kept) = probe.engine().calls().take(probe.address(), sp) else { return GoOn::Original };
    if inside.is_nested() {
        // The entry was not, so a handler was left meanwhile and cannot yet be told from one that goes on.
        probe.engine().counts().unreturned(row, probe.number());
        return GoOn::Original;
    }
    for installed in probe.consumers().get(inside).into_iter().flat_map(List::iter) {
        // SAFETY: the consumers of the list are registered or in their grace, and this thread is inside.
        unsafe { returned(installed, &kept, regs) };
    }
    go_on(ip, sp, regs)
}

fn go_on(ip: u64, sp: u64, regs: &Regs) -> GoOn {
    match (regs.rip == ip, regs.sp() == sp) {
        (true, true) => GoOn::Original,
        (true, false) => GoOn::OtherStack,
        (false, _) => GoOn::Elsewhere,
    }
}

/// Calls a consumer, if it wants this hit.
///
/// # Safety
/// The consumer is registered, or its grace has not ended; this thread is inside.
unsafe fn call(installed: &Installed, handler: Handler, hit: &mut Hit) -> Option<Verdict> {
    let consumer = &installed.consumer;
    // SAFETY: the caller's; `hit.regs` is the caller's own.
    unsafe { consumer.wants(hit).then(|| handler(consumer.data, hit)) }
}

/// What consumers said to one hit.
struct Said {
    kept: Kept,
    /// Somebody waits for the return.
    waiting: bool,
    /// Somebody wants the probe removed; somebody does not.
    agreed: bool,
    objected: bool,
    /// Returns that nobody will be told of.
    lost: u32,
}

impl Said {
    fn new(site: u64) -> Self {
        Self { kept: Kept::new(site), waiting: false, agreed: false, objected: false, lost: 0 }
    }
    /// Asks one. One whose filter declines neither agrees nor objects, as in the kernel, where a filter decides first.
    ///
    /// # Safety
    /// As [`call`].
    unsafe fn ask(&mut self, installed: &Installed, regs: &mut Regs) {
        let Some(handler) = installed.consumer.entry else {
            self.waiting = true;
            self.objected = true;
            return;
        };
        let mut hit = Hit { regs, site: self.kept.site, cookie: 0 };
        // SAFETY: the caller's.
        let Some(verdict) = (unsafe { call(installed, handler, &mut hit) }) else { return };
        self.agreed |= verdict == Verdict::REMOVE;
        self.objected |= verdict != Verdict::REMOVE;
        let wants_return = verdict != Verdict::REMOVE && verdict != Verdict::IGNORE_RETURN;
        if installed.consumer.ret.is_some() && wants_return {
            self.waiting = true;
            self.lost += u32::from(!self.kept.push(installed.id, hit.cookie));
        }
    }
}

/// Tells one of a return: a session only if its entry handler ran in this call and did not decline.
///
/// # Safety
/// As [`call`].
unsafe fn returned(installed: &Installed, kept: &Kept, regs: &mut Regs) {
    let Some(handler) = installed.consumer.ret else { return };
    let cookie = if installed.consumer.is_session() { kept.cookie(installed.id) } else { Some(0) };
    if let Some(cookie) = cookie {
        let mut hit = Hit { regs, site: kept.site, cookie };
        // SAFETY: the caller's.
        unsafe { call(installed, handler, &mut hit) };
    }
}
