//! Real return addresses put back: each lies in the stack word that its slot's entry names.
//!
//! In: stopped threads, slots. Out: stack words that held slots hold real addresses again (RET-1), and those slots are not lent any more. Does not:
//! stop threads.
//!
//! A slot whose word is put back has no way to it but a copy of that word (a stack that was copied away). No entry takes slots any more, so its own
//! entry stays as it is: what comes by a copy goes on at the right place (SLOT-2). Before memory is unmapped, such copies are looked for (`free`, F3). A tracer
//! that dies between both writes leaves a slot lent, and the memory mapped.

use trapline_record::RemoteAddr;
use trapline_record::slots::{CHAIN, Slots};
use trapline_target::{Process, Regs, StoppedAll, TargetError};

use crate::error::PatchError;
use crate::slots::{Armed, PUT_BACK, PutBack, armed, real_of};

/// How far below an entry's WORD the return address lies: it is there.
pub(crate) const BELOW: u64 = 0;
/// Whether a register may be all that holds a return address: a call stores it.
pub(crate) const IN_REGISTERS: bool = false;

/// The slot whose return a thread in the shared code makes, as long as it is lent.
pub(crate) fn number_in(process: &Process, regs: &Regs) -> Result<u64, TargetError> {
    process.read_u64(RemoteAddr(regs.sp()))
}

/// Puts real return addresses back. What was left by `longjmp`, or is copied away, stays as it is.
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

/// A slot, and those that lie under it on the same word, are lent no longer; their calls are still under way.
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
