//! Puts back real return addresses: each lies in the stack word that its return trampoline's entry names.
//!
//! In: stopped threads, return trampolines. Out: stack words that held trampolines hold real
//! addresses again (RET-1), and those trampolines are no longer taken. Does not: stop threads.
//!
//! When a trampoline's word is put back, nothing leads to it but a copy of that word (a stack that was copied
//! away). No entry takes trampolines any more, so its own entry stays as it is: a thread that comes by a copy
//! goes on at the right place (SLOT-2). Before memory is unmapped, such copies are searched for (`free`, F3).
//! If the tracer dies between both writes, a trampoline stays taken, and the memory mapped.
//!
//! ```text
//!   armed            [WORD] = address of trampoline n
//!   put back         [WORD] = REAL, followed through the trampolines under it;  then LENT byte n = PUT_BACK
//!   in shared code   rsp = WORD + 0, [rsp] = n                      (`number_in`)
//! ```

use trapline_record::RemoteAddr;
use trapline_record::trampolines::{CHAIN, Trampolines};
use trapline_tracee::{Process, Regs, StoppedAll, TargetError};

use crate::error::PatchError;
use crate::returns::armed::{Armed, PUT_BACK, PutBack, armed, real_of};

/// Number of bytes of code for which room is kept.
pub(crate) use trapline_plan::x86_64::stub::trampoline_code_len;

/// How far below an entry's WORD the return address lies: exactly there.
pub(crate) const BELOW: u64 = 0;
/// Whether a return address may be in a register only: no, since a call stores it.
pub(crate) const IN_REGISTERS: bool = false;

/// The trampoline that a thread in the shared code returns through, as long as it is taken.
pub(crate) fn number_in(process: &Process, regs: &Regs) -> Result<u64, TargetError> {
    process.read_u64(RemoteAddr(regs.sp()))
}

/// Puts back real return addresses. What was left by `longjmp`, or is copied away, stays as it is.
pub(crate) fn put_back(
    process: &Process,
    _: &mut StoppedAll<'_, '_>,
    trampolines: &Trampolines,
) -> Result<PutBack, PatchError> {
    let armed = armed(process, trampolines)?;
    let mut done = PutBack::default();
    for call in armed.iter().filter(|call| call.word != 0) {
        let word = RemoteAddr(call.word);
        // A stack that is gone takes its calls with it.
        let holds = process.read_u64(word).is_ok_and(|held| held == trampolines.address(call.trampoline));
        if let Some(real) = real_of(trampolines, &armed, call.trampoline).filter(|_| holds) {
            process.write_text(word, &real.to_le_bytes())?;
            done.restored += 1;
            take_back(process, trampolines, &armed, call.trampoline)?;
        }
    }
    Ok(done)
}

/// Marks a trampoline, and those that lie under it on the same word, as no longer taken; their calls are
/// still running.
fn take_back(
    process: &Process,
    trampolines: &Trampolines,
    armed: &[Armed],
    trampoline: u32,
) -> Result<(), PatchError> {
    let mut next = Some(trampoline);
    for _ in 0..=CHAIN {
        let Some(trampoline) = next else { break };
        process.write_text(
            RemoteAddr(trampolines.table + Trampolines::LENT_OFF + u64::from(trampoline)),
            &[PUT_BACK],
        )?;
        let call = armed.iter().find(|call| call.trampoline == trampoline);
        next = call.and_then(|call| trampolines.number_of(call.real));
    }
    Ok(())
}
