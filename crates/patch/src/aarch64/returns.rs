//! Puts back real return addresses: each is wherever its function keeps x30.
//!
//! In: stopped threads, return trampolines. Out: words of private writable memory, and x30 of
//! threads, that held a trampoline's address hold the real one again (RET-1). Does not: stop a thread.
//!
//! Some calls return through their trampoline: its code, entry and unwind information stay for that (`left`).
//! There are three kinds. If addresses are signed, only the process could sign the real one. A call's entry
//! may be incomplete (its WORD is 0: A3 to A4, under a signal handler perhaps). A stack that is not private
//! memory is not searched.
//!
//! ```text
//!   word & address = code + CODE·n + RETURN       address: all bits but those of a signature
//!   word           = REAL of n                    if that is a trampoline's address, REAL of that (CHAIN)
//! ```
//!
//! A word that only looks like a trampoline's address is a copy by which no call returns: no other number is
//! likely to be an address in pages of ours.

use std::collections::HashSet;

use trapline_record::RemoteAddr;
use trapline_record::trampolines::Trampolines;
use trapline_tracee::{Process, Regs, StoppedAll, TargetError};

use crate::error::PatchError;
use crate::returns::armed::{PutBack, armed, on_shared_stacks, real_of};
use crate::threads::still::words_in;

/// Number of bytes of code for which room is kept.
pub(crate) use trapline_plan::x86_64::stub::trampoline_code_len;

/// How far below an entry's WORD, the stack pointer at the entry, the return address lies at least.
pub(crate) const BELOW: u64 = 8;
/// Whether a return address may be in a register only: it may, in x30.
pub(crate) const IN_REGISTERS: bool = true;

/// The trampoline through which a thread in the shared code returns, as long as it is taken.
#[allow(clippy::unnecessary_wraps, reason = "its twin may fail")]
pub(crate) const fn number_in(_: &Process, regs: &Regs) -> Result<u64, TargetError> {
    Ok(regs.link())
}

/// Puts real return addresses back.
pub(crate) fn put_back(
    process: &Process,
    stopped: &mut StoppedAll<'_, '_>,
    trampolines: &Trampolines,
) -> Result<PutBack, PatchError> {
    let (armed, address) = (armed(process, trampolines)?, !stopped.signature());
    // The trampoline that a word would return to, and what can be put in its place.
    let named = |word: u64| {
        let trampoline = trampolines
            .number_of(word & address)
            .filter(|&trampoline| trampolines.address(trampoline) == word & address)?;
        let real = real_of(trampolines, &armed, trampoline).filter(|_| word & address == word);
        armed.iter().any(|call| call.trampoline == trampoline).then_some((trampoline, real))
    };
    let (mut writes, mut restored) = (Vec::new(), HashSet::new());
    let mut left: HashSet<u32> = on_shared_stacks(process, &armed, BELOW)?.into_iter().collect();
    let all = words_in(process, &mut |map, at, word| match named(word) {
        Some(_) if map.start.0 == trampolines.table => {}
        Some((trampoline, Some(real))) => writes.push((at, trampoline, real)),
        Some((trampoline, None)) => _ = left.insert(trampoline),
        None => {}
    })?;
    for (at, trampoline, real) in writes {
        process.write_text(RemoteAddr(at), &real.to_le_bytes())?;
        restored.insert(trampoline);
    }
    for tid in stopped.threads() {
        let Ok(mut regs) = stopped.regs(tid) else { continue };
        match named(regs.link()) {
            Some((trampoline, Some(real))) => {
                regs.set_link(real);
                stopped.set_regs(tid, &regs)?;
                restored.insert(trampoline);
            }
            Some((trampoline, None)) => _ = left.insert(trampoline),
            None => {}
        }
    }
    let unseen = if all { 0 } else { armed.len() as u32 };
    Ok(PutBack { restored: restored.len() as u32, left: unseen.max(left.len() as u32) })
}
