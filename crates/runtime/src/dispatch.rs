//! A hit, from registers to consumers. The stub of a jump and the handler of a trap both end up here.
//!
//! In: the probe and the thread's registers. Out: where the thread goes on. Invariants: RUN-1 to RUN-3. DSP-1
//! every hit counts once, as a hit or as missed, before any consumer is called. DSP-2 consumers run newest
//! first, in the list as it was at one moment. DSP-3 a consumer that does not come back holds nothing of its
//! hit (EPO-4: the hit is already counted, its frame is recognized as left, and its call's instance is
//! reclaimed).
//! Does not: save or restore registers, choose how the original instruction runs.
//!
//! # A hit
//!
//! | step | what |
//! |---|---|
//! | D1 | find the thread's line; if there is none: missed, done |
//! | D2 | enter; if a hit of this thread goes on: missed (nested), done |
//! | D3 | load the list. If a consumer in it has a return handler: |
//! | | take a return trampoline, if the probe arms its calls |
//! | | (`trampolines`, A1 to A4), and an instance (`instances`, A1 to A4). |
//! | | Count: missed if there was none, a hit otherwise |
//! | D4 | call each consumer with a filter that accepts the hit; note the verdicts. |
//! | | Without an instance, consumers with return handlers are not called |
//! | D5 | if all verdicts were *remove*, flag the probe for the writer |
//! | D6 | if no consumer waits for the return, or the instruction pointer moved, give back the instance |
//! | | and the trampoline. Otherwise write the trampoline's address into the stack word |
//! | D7 | leave |
//!
//! A consumer may change the list that it is in: the hit goes on in the old list (`probe`, H2). It may call a
//! probed function: that hit ends at D2. It may leave in D4: D1 to D3 are single stores, and they stand. D5
//! and D6 then do not happen, so no consumer is removed and no return is waited for.

use crate::consumer::{Handler, Hit, Installed, Verdict};
use crate::epoch::{Inside, Line, Seal, ThreadPointer};
use crate::instances::{Call, KeptCall};
use crate::native::{Regs, returning};
use crate::probe::{List, Probe};
use crate::trampolines::table::{TakenTrampoline, TrampolineTable};

/// Where the thread goes on.
#[repr(u64)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GoOn {
    /// At the original instruction. Registers may have changed, the stack pointer has not.
    Original = 0,
    /// At the instruction pointer of `regs`, with all of `regs`: the original instruction does not run.
    Elsewhere = 1,
    /// At the original instruction, with all of `regs`: the stack pointer was moved.
    OtherStack = 2,
}

/// Generated code calls this when a site is hit. Returns a [`GoOn`].
///
/// # Safety
/// `probe` is alive. `regs` holds the thread's state at the site, and only the caller uses it.
pub unsafe extern "C" fn entry(probe: *const Probe, regs: *mut Regs) -> u64 {
    // SAFETY: the caller promises both.
    let (probe, regs) = unsafe { (&*probe, &mut *regs) };
    let Some((row, line)) = own_line(probe) else {
        probe.engine().counts().unplaced(probe.number());
        return GoOn::Original as u64;
    };
    let seal = Seal::new();
    // SAFETY: the caller promises both.
    unsafe { entered(&line.enter_from(&seal, regs.sp()), row, probe, regs) as u64 }
}

/// Generated code calls this at the exits of a probed function, with the stack pointer of the entry. Returns
/// a [`GoOn`].
///
/// # Safety
/// As [`entry`].
pub unsafe extern "C" fn exit(probe: *const Probe, regs: *mut Regs) -> u64 {
    // SAFETY: the caller promises both.
    let (probe, regs) = unsafe { (&*probe, &mut *regs) };
    // Lines are not given back, so a thread without a line had none at the entry either.
    let Some((row, line)) = own_line(probe) else { return GoOn::Original as u64 };
    let seal = Seal::new();
    // SAFETY: the caller promises both.
    unsafe { exited(&line.enter_from(&seal, regs.sp()), row, probe, regs) as u64 }
}

/// The code of the return trampolines calls this when a call has returned to one. At the place of the return
/// address is the trampoline's number. This function writes the real return address there, and into `regs` as
/// the instruction pointer. Returns a [`GoOn`], in which the "original instruction" is a jump to that
/// address.
///
/// # Safety
/// `trampolines` is alive. `regs` holds the thread's state in the trampolines' code, and only the caller uses
/// it.
pub unsafe extern "C" fn returned_to_trampoline(trampolines: *const TrampolineTable, regs: *mut Regs) -> u64 {
    // SAFETY: the caller promises both.
    let (trampolines, regs) = unsafe { (&*trampolines, &mut *regs) };
    // SAFETY: the trampolines' code has written the number there, into the stack word of a call that is over.
    let number = unsafe { returning::address(regs) } as u32;
    // SAFETY: as above.
    let Some(returned) = (unsafe { trampolines.returned(number) }) else { return GoOn::Original as u64 };
    // SAFETY: the trampoline is in use, so that is the address of a probe that is never freed
    // (`TrampolineTable::new`).
    let probe = returned.probe.map(|probe| unsafe { Probe::at(probe) });
    // End the instance before its key becomes free.
    let kept = probe.and_then(|probe| match returned.site {
        Some(site) => Some(KeptCall::of(site)),
        None => probe.instances().end(probe.engine().returns(), returned.key, probe.address()),
    });
    trampolines.put_back(&returned);
    // SAFETY: as above; no frame of ours lies there or above.
    unsafe { returning::replace(regs, returned.real) };
    regs.set_ip(returned.real);
    let (Some(probe), Some(kept)) = (probe, kept) else { return GoOn::Original as u64 };
    // A stack may go on in a thread for which there is no line.
    let Some((row, line)) = own_line(probe) else { return GoOn::Original as u64 };
    let seal = Seal::new();
    // SAFETY: the caller promises both.
    unsafe { returns(&line.enter_from(&seal, regs.sp()), row, probe, &kept, regs) as u64 }
}

#[inline]
fn own_line(probe: &Probe) -> Option<(usize, &'static Line)> {
    probe.engine().lines().of(ThreadPointer::own())
}

/// Like [`entry`], for a trap's handler, which has entered before it looks up the probe. `row` is the number
/// of its line.
///
/// # Safety
/// As [`entry`].
#[inline]
pub unsafe fn entered(inside: &Inside<'_>, row: usize, probe: &Probe, regs: &mut Regs) -> GoOn {
    let (engine, number) = (probe.engine(), probe.number());
    let counts = engine.counts();
    if inside.is_nested() {
        counts.nested(row, number);
        return GoOn::Original;
    }
    let Some(list) = probe.consumers().get(inside) else {
        counts.hit(row, number);
        return GoOn::Original;
    };
    if list.waits() {
        // SAFETY: the caller promises it, and this thread is inside.
        return unsafe { entered_waiting(list, row, probe, regs) };
    }
    counts.hit(row, number);
    let (ip, sp) = (regs.ip(), regs.sp());
    // SAFETY: the consumers of the list are registered or in their grace period, and this thread is inside.
    unsafe { Verdicts::of(list, ip, None, false, regs) }.conclude(probe);
    go_on(ip, sp, regs)
}

/// D3 to D6, if a consumer has a return handler. Separate, so that the other hits keep their values in
/// registers.
///
/// # Safety
/// As [`entry`]; `list` is the probe's, and this thread is inside.
#[inline(never)]
unsafe fn entered_waiting(list: &List, row: usize, probe: &Probe, regs: &mut Regs) -> GoOn {
    let (counts, number) = (probe.engine().counts(), probe.number());
    let (ip, sp) = (regs.ip(), regs.sp());
    let call = begin(probe, row, regs);
    if call.is_some() {
        counts.hit(row, number);
    }
    // SAFETY: the consumers of the list are registered or in their grace period, and this thread is inside.
    let mut verdicts =
        unsafe { Verdicts::of(list, ip, call.as_ref().map(|waited| &waited.call), call.is_none(), regs) };
    verdicts.conclude(probe);
    if let Some(call) = call {
        if verdicts.waiting && regs.ip() == ip {
            verdicts.lost += call.go_on(probe, regs, sp == regs.sp());
        } else {
            call.cancel(probe);
        }
    }
    (0..verdicts.lost).for_each(|_| counts.unreturned(row, number));
    go_on(ip, sp, regs)
}

/// A call, while a consumer waits for its return.
struct Waited {
    call: Call<'static>,
    trampoline: Option<TakenTrampoline>,
}

/// D3: takes an instance, or counts the hit as missed.
#[inline]
fn begin(probe: &Probe, row: usize, regs: &Regs) -> Option<Waited> {
    let at = (regs.ip(), regs.sp());
    let begun = if probe.arms() {
        // SAFETY: only entries of functions arm (`set_arms`), and the function has not begun.
        begin_armed(probe, row, at, unsafe { returning::address(regs) })
    } else {
        if probe.consumers().only_returns() {
            // K1, so that the next call can be kept in place.
            probe.engine().returns().0.of(at.1).bind(at.1);
        }
        instance(probe, row, at, at.1).map(|call| Waited { call, trampoline: None })
    };
    if begun.is_none() {
        probe.engine().counts().empty(row, probe.number());
    }
    begun
}

/// Looking for threads that have ended takes system calls, so it happens at misses number 1, 2, 4, 8 and so
/// on.
#[inline]
fn instance(probe: &Probe, row: usize, (ip, sp): (u64, u64), key: u64) -> Option<Call<'static>> {
    let (engine, number) = (probe.engine(), probe.number());
    let ask = || (engine.counts().emptied(row, number) + 1).is_power_of_two();
    probe.instances().begin(engine.returns(), (key, sp), (probe.address(), ip), ask)
}

fn begin_armed(probe: &Probe, row: usize, (ip, sp): (u64, u64), real: u64) -> Option<Waited> {
    let returns = probe.engine().returns();
    // SAFETY: as in `begin`.
    let trampoline =
        unsafe { returns.1.trampolines?.take((sp, real), returns.1.cpu_hint(), probe.address()) }?;
    // SAFETY: the trampoline is in use, so that is the address of a probe that is never freed
    // (`TrampolineTable::new`).
    let left = trampoline.left.map(|(left, is_alone)| (unsafe { Probe::at(left) }, is_alone));
    if let Some((left, is_alone)) = left
        && (is_alone || left.instances().end(returns, trampoline.key(), left.address()).is_some())
    {
        left.engine().counts().unreturned(row, left.number());
    }
    match instance(probe, row, (ip, sp), trampoline.key()) {
        Some(call) => Some(Waited { call, trampoline: Some(trampoline) }),
        None => {
            trampoline.cancel();
            None
        }
    }
}

impl Waited {
    /// D6, if a consumer waits. Returns the number of returns that will not be reported.
    fn go_on(self, probe: &Probe, regs: &mut Regs, same_stack: bool) -> u32 {
        let armed = self.trampoline.as_ref().is_none_or(|trampoline| {
            // SAFETY: as in `begin`: the function has not begun.
            let held = same_stack.then(|| unsafe { returning::address(regs) });
            let trampoline = held.and_then(|held| trampoline.arm(held));
            // SAFETY: as in `begin`.
            trampoline.is_some_and(|trampoline| unsafe { returning::replace(regs, trampoline) })
        });
        if !armed {
            self.cancel(probe);
        }
        u32::from(!armed)
    }
    /// D6, if no consumer waits.
    fn cancel(self, probe: &Probe) {
        self.call.cancel(probe.engine().returns());
        self.trampoline.into_iter().for_each(TakenTrampoline::cancel);
    }
}

/// Like [`exit`], for a trap's handler. `row` is the number of its line.
///
/// # Safety
/// As [`entry`].
#[inline]
pub unsafe fn exited(inside: &Inside<'_>, row: usize, probe: &Probe, regs: &mut Regs) -> GoOn {
    // The instance is given back before any consumer is called, so a handler that leaves holds none.
    let kept = probe.instances().end(probe.engine().returns(), regs.sp(), probe.address());
    // SAFETY: the caller promises it.
    kept.map_or(GoOn::Original, |kept| unsafe { returns(inside, row, probe, &kept, regs) })
}

/// Calls the consumers that wait for a return.
///
/// # Safety
/// As [`entry`].
#[inline]
unsafe fn returns(inside: &Inside<'_>, row: usize, probe: &Probe, kept: &KeptCall, regs: &mut Regs) -> GoOn {
    let (ip, sp) = (regs.ip(), regs.sp());
    if inside.is_nested() {
        // The entry was not nested. So a handler was left since then, and cannot yet be distinguished from
        // one that goes on.
        probe.engine().counts().unreturned(row, probe.number());
        return GoOn::Original;
    }
    if let Some(list) = probe.consumers().get(inside) {
        // SAFETY: the consumers of the list are registered or in their grace period, and this thread is
        // inside.
        unsafe {
            returned(list.newest(), kept, regs);
            for installed in list.older() {
                returned(installed, kept, regs);
            }
        }
    }
    go_on(ip, sp, regs)
}

fn go_on(ip: u64, sp: u64, regs: &Regs) -> GoOn {
    match (regs.ip() == ip, regs.sp() == sp) {
        (true, true) => GoOn::Original,
        (true, false) => GoOn::OtherStack,
        (false, _) => GoOn::Elsewhere,
    }
}

/// Calls a consumer, unless its filter rejects this hit.
///
/// # Safety
/// The consumer is registered, or its grace period has not ended; this thread is inside.
unsafe fn call(installed: &Installed, handler: Handler, hit: &mut Hit) -> Option<Verdict> {
    let consumer = &installed.consumer;
    // SAFETY: the caller promises both; `hit.regs` is the caller's own.
    unsafe { consumer.wants(hit).then(|| handler(consumer.data, hit)) }
}

/// Verdicts of the consumers of one hit.
struct Verdicts {
    site: u64,
    /// No instance: consumers with return handlers are not called.
    missed: bool,
    /// At least one consumer waits for the return.
    waiting: bool,
    /// At least one consumer returned *remove* (`agreed`); at least one did not (`objected`).
    agreed: bool,
    objected: bool,
    /// Number of returns that will not be reported.
    lost: u32,
}

impl Verdicts {
    /// D4: calls the consumers of a list. `missed`: one of them waits for the return, but there is no
    /// instance.
    ///
    /// # Safety
    /// As [`call`], for all of them.
    #[inline]
    unsafe fn of(list: &List, site: u64, kept: Option<&Call<'_>>, missed: bool, regs: &mut Regs) -> Self {
        let mut verdicts = Self { site, missed, waiting: false, agreed: false, objected: false, lost: 0 };
        // SAFETY: the caller promises it.
        unsafe {
            verdicts.ask(list.newest(), kept, regs);
            for installed in list.older() {
                verdicts.ask(installed, kept, regs);
            }
        }
        verdicts
    }
    /// D5.
    #[inline]
    fn conclude(&self, probe: &Probe) {
        if self.agreed && !self.objected {
            probe.request_removal();
        }
    }
    /// Calls one consumer. A consumer with a filter that rejects the hit neither agrees nor objects, as in
    /// the kernel, where a filter decides first.
    ///
    /// # Safety
    /// As [`call`].
    #[inline]
    unsafe fn ask(&mut self, installed: &Installed, kept: Option<&Call<'_>>, regs: &mut Regs) {
        if self.missed && installed.consumer.ret.is_some() {
            self.objected = true;
            return;
        }
        let Some(handler) = installed.consumer.entry else {
            self.waiting = true;
            self.objected = true;
            return;
        };
        let mut hit = Hit { regs, site: self.site, cookie: 0 };
        // SAFETY: the caller promises it.
        let Some(verdict) = (unsafe { call(installed, handler, &mut hit) }) else { return };
        self.agreed |= verdict == Verdict::REMOVE;
        self.objected |= verdict != Verdict::REMOVE;
        let waits_for_return = verdict != Verdict::REMOVE && verdict != Verdict::IGNORE_RETURN;
        if installed.consumer.ret.is_some() && waits_for_return {
            self.waiting = true;
            let has_room = kept.is_some_and(|call| call.instance.push(installed.id, hit.cookie));
            self.lost += u32::from(!has_room);
        }
    }
}

/// Calls one consumer's return handler. A session's is called only if its entry handler ran in this call and
/// did not decline.
///
/// # Safety
/// As [`call`].
unsafe fn returned(installed: &Installed, kept: &KeptCall, regs: &mut Regs) {
    let Some(handler) = installed.consumer.ret else { return };
    let cookie = if installed.consumer.is_session() { kept.cookie(installed.id) } else { Some(0) };
    if let Some(cookie) = cookie {
        let mut hit = Hit { regs, site: kept.site, cookie };
        // SAFETY: the caller promises it.
        unsafe { call(installed, handler, &mut hit) };
    }
}
