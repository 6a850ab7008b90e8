//! Puts back real return addresses: each lies in the stack word that its return trampoline's entry names.
//!
//! In: stopped threads, return trampolines (*slots*). Out: stack words that held trampolines hold real
//! addresses again (RET-1), and those trampolines are no longer taken. Does not: stop threads.
//!
//! When a trampoline's word is put back, nothing leads to it but a copy of that word (a stack that was copied
//! away). No entry takes trampolines any more, so its own entry stays as it is: a thread that comes by a copy
//! goes on at the right place (SLOT-2). Before memory is unmapped, such copies are searched for (`free`, F3).
//! If the tracer dies between both writes, a trampoline stays taken, and the memory mapped.

use trapline_record::RemoteAddr;
use trapline_record::slots::{CHAIN, Slots};
use trapline_tracee::{Process, Regs, StoppedAll, TargetError};

use crate::error::PatchError;
use crate::slots::{Armed, PUT_BACK, PutBack, armed, real_of};

/// How far below an entry's WORD the return address lies: exactly there.
pub(crate) const BELOW: u64 = 0;
/// Whether a return address may be in a register only: no, since a call stores it.
pub(crate) const IN_REGISTERS: bool = false;

/// The trampoline whose return a thread in the shared code is making, as long as it is taken.
pub(crate) fn number_in(process: &Process, regs: &Regs) -> Result<u64, TargetError> {
    process.read_u64(RemoteAddr(regs.sp()))
}

/// Puts back real return addresses. What was left by `longjmp`, or is copied away, stays as it is.
pub(crate) fn put_back(
    process: &Process,
    _: &mut StoppedAll<'_, '_>,
    slots: &Slots,
) -> Result<PutBack, PatchError> {
    let armed = armed(process, slots)?;
    let mut done = PutBack::default();
    for call in armed.iter().filter(|call| call.word != 0) {
        let word = RemoteAddr(call.word);
        // A stack that is gone takes its calls with it.
        let holds = process.read_u64(word).is_ok_and(|held| held == slots.address(call.slot));
        if let Some(real) = real_of(slots, &armed, call.slot).filter(|_| holds) {
            process.write_text(word, &real.to_le_bytes())?;
            done.restored += 1;
            take_back(process, slots, &armed, call.slot)?;
        }
    }
    Ok(done)
}

/// Marks a trampoline, and those that lie under it on the same word, as no longer taken; their calls are
/// still running.
fn take_back(process: &Process, slots: &Slots, armed: &[Armed], slot: u32) -> Result<(), PatchError> {
    let mut next = Some(slot);
    for _ in 0..=CHAIN {
        let Some(slot) = next else { break };
        process.write_text(RemoteAddr(slots.table + Slots::LENT_OFF + u64::from(slot)), &[PUT_BACK])?;
        let call = armed.iter().find(|call| call.slot == slot);
        next = call.and_then(|call| slots.slot_of(call.real));
    }
    Ok(())
}
