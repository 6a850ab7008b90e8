//! Armed calls, read from the entries of their return trampolines.
//!
//! In: a process, and where its trampolines lie (`record::trampolines`). Out: which trampolines are taken, and
//! where each call really returns to. What is read is input: the process can write it.
//! Does not: put anything back (see `trampolines`).

use trapline_record::RemoteAddr;
use trapline_record::trampolines::{CHAIN, ENTRY, LENT, Trampolines, at as entry};
use trapline_tracee::Process;

use crate::error::PatchError;

/// A call with a replaced return address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Armed {
    /// Number of its return trampoline.
    pub trampoline: u32,
    /// Its return address: an address of the program, or a trampoline under this one.
    pub real: u64,
    /// Address of its stack word; 0 while the trampoline is being taken or given back.
    pub word: u64,
    /// What the trampolines' code knows about its function.
    pub what: u64,
}

/// Makes CPUs begin their searches at different places. Must come before the first search.
pub(crate) fn write_hints(process: &Process, trampolines: &Trampolines) -> Result<(), PatchError> {
    let mut bytes = vec![0; Trampolines::LENT_OFF as usize];
    for (addr, word) in trampolines.hints() {
        let off = (addr - trampolines.table) as usize;
        bytes[off..off + 8].copy_from_slice(&word.to_le_bytes());
    }
    Ok(process.write_text(RemoteAddr(trampolines.table), &bytes)?)
}

/// A trampoline's byte when its stack word holds the real address again: its call has not ended, and no word
/// leads to the trampoline.
pub(crate) const PUT_BACK: u8 = 0x7f;

/// Numbers of the taken trampolines.
pub(crate) fn lent(process: &Process, trampolines: &Trampolines) -> Result<Vec<u32>, PatchError> {
    numbers(process, trampolines, |byte| byte == LENT)
}

fn numbers(
    process: &Process,
    trampolines: &Trampolines,
    which: fn(u8) -> bool,
) -> Result<Vec<u32>, PatchError> {
    let mut bytes = vec![0; trampolines.count as usize];
    process.read(RemoteAddr(trampolines.table + Trampolines::LENT_OFF), &mut bytes)?;
    Ok((0u32..).zip(bytes).filter(|&(_, byte)| which(byte)).map(|(trampoline, _)| trampoline).collect())
}

/// The calls that are armed in a process, or that were armed when it was detached.
///
/// # Errors
/// If its memory cannot be read.
pub fn armed(process: &Process, trampolines: &Trampolines) -> Result<Vec<Armed>, PatchError> {
    let one = |trampoline| {
        let mut bytes = [0; ENTRY as usize];
        process.read(RemoteAddr(trampolines.entry(trampoline)), &mut bytes)?;
        let word = |at: u64| {
            let at = at as usize;
            bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
        };
        Ok(Armed { trampoline, real: word(entry::REAL), word: word(entry::WORD), what: word(entry::WHAT) })
    };
    numbers(process, trampolines, |byte| byte == LENT || byte == PUT_BACK)?.into_iter().map(one).collect()
}

/// What became of the calls that were armed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct PutBack {
    /// Calls that return directly to their callers again.
    pub(crate) restored: u32,
    /// Calls that still return through their trampolines, because their return addresses are signed, or were
    /// not searched for.
    pub(crate) left: u32,
}

/// The address to which the call of a trampoline really returns, through all trampolines under it; `None` if
/// it is not known.
pub(crate) fn real_of(trampolines: &Trampolines, armed: &[Armed], trampoline: u32) -> Option<u64> {
    let under = |trampoline| armed.iter().find(|call| call.trampoline == trampoline);
    let mut real = under(trampoline).filter(|call| call.word != 0)?.real;
    for _ in 0..CHAIN {
        real = trampolines.number_of(real).and_then(under).map_or(real, |call| call.real);
    }
    trampolines.number_of(real).is_none().then_some(real)
}

/// Trampolines of calls on stacks that are not private memory, which is not searched. `below`: how far
/// below an entry's WORD the return address lies.
pub(crate) fn on_shared_stacks(
    process: &Process,
    calls: &[Armed],
    below: u64,
) -> Result<Vec<u32>, PatchError> {
    let maps = process.maps()?;
    let is_shared = |call: &&Armed| {
        let at = RemoteAddr(call.word.wrapping_sub(below));
        let stack = maps.iter().find(|map| map.contains(at));
        stack.is_some_and(|map| map.perms.shared || !map.perms.read || !map.perms.write)
    };
    Ok(calls.iter().filter(is_shared).map(|call| call.trampoline).collect())
}
