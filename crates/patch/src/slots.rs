//! Slots that stand in for return addresses, seen from outside: which are lent, and how they are taken back.
//!
//! In: a process, and where its slots lie (`record::slots`; steps A1 to B4 are those of `plan`'s `stub::slots`). Out: the calls that are
//! armed now; the real return addresses put back into their stack words; slots given back that nothing names any more. Invariants:
//! RET-1 a stack word is written only while all threads are stopped, and only if it still holds the slot; RET-2 a slot is given back only
//! if no register, no word of memory and no thread in the slots' own code names it. Does not: tell unwinders (see `unwinder`), or
//! unmap.
//!
//! # Detach
//!
//! The entries' patches are out, and no thread is in a stub that was there before (R3, R4). Then all threads are stopped, and of each lent
//! slot whose WORD is not 0:
//!
//! | the stack word holds | what |
//! |---|---|
//! | this slot | := the real return address, through all slots that lie under it |
//! | a slot that lies over this one (a tail call) | done with that one |
//! | anything else: the call was left by `longjmp`, or its stack is copied away | nothing; if it comes back it goes through the slot, which stays |
//!
//! On arm64 WORD is only the stack pointer at the entry, and the address may be signed: there `aarch64::returns` says what is looked at, and what is left to come home through its slot. Where
//! something is, unwinders keep what they were told.
//!
//! A thread between A3 and A4, or in the slots' code, goes on there. Code and entries stay mapped and go on working; whoever dies in the
//! middle of this leaves each word either way, and both lead to the same place.
//!
//! # Giving back what nobody will come back to
//!
//! Calls left by `longjmp`, exceptions and the ends of threads leave their slots lent. A stack pointer proves nothing: some
//! programs copy stacks away and back (greenlets). So when slots run short, all threads are stopped, and what private writable memory or a
//! register names stays, signed or not, with all that lies under it (tail calls); so does what a thread in the slots' code is working on (its number is at its stack pointer, on arm64 in x30), and what is
//! only half lent (WORD is 0: A1 to A4, B3). If a signal frame holds an address in the shared code, nothing is given back this time.

use std::time::{Duration, Instant};

use trapline_record::RemoteAddr;
use trapline_record::control::at;
use trapline_record::slots::{self, CHAIN, ENTRY, LENT, Slots, at as entry};
use trapline_target::{Batch, Process, StoppedAll};

use crate::attached::Attached;
use crate::error::PatchError;
use crate::native::returns::{BELOW, number_in, put_back};
use crate::still::words_in;
use crate::words::Block;

/// A call that is armed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Armed {
    /// Its slot.
    pub slot: u32,
    /// Where it returns to: an address of the program, or a slot under this one.
    pub real: u64,
    /// Its stack word; 0 while the slot is being lent or given back.
    pub word: u64,
    /// What the slots' code knows of its function.
    pub what: u64,
}

/// The slots that a control block names, if it names any that make sense.
pub(crate) fn slots_of(block: &Block) -> Option<Slots> {
    let count = u32::try_from(block.get(at::SLOTS_COUNT)).ok()?;
    let (least, most) = Slots::LIMITS;
    let fits = count.is_power_of_two() && (least..=most).contains(&count);
    fits.then(|| Slots { code: block.get(at::SLOTS_CODE), table: block.get(at::SLOTS_TABLE), count })
}

/// Makes CPUs begin their searches apart. Before anybody searches.
pub(crate) fn write_hints(process: &Process, slots: &Slots) -> Result<(), PatchError> {
    let mut bytes = vec![0; Slots::LENT_OFF as usize];
    for (addr, word) in slots.hints() {
        let off = (addr - slots.table) as usize;
        bytes[off..off + 8].copy_from_slice(&word.to_le_bytes());
    }
    Ok(process.write_text(RemoteAddr(slots.table), &bytes)?)
}

/// A slot's byte when its stack word holds the real address again: its call has not ended, and no word leads to the slot.
pub(crate) const PUT_BACK: u8 = 0x7f;

/// Numbers of the slots that are lent.
pub(crate) fn lent(process: &Process, slots: &Slots) -> Result<Vec<u32>, PatchError> {
    numbers(process, slots, |byte| byte == LENT)
}

fn numbers(process: &Process, slots: &Slots, which: fn(u8) -> bool) -> Result<Vec<u32>, PatchError> {
    let mut bytes = vec![0; slots.count as usize];
    process.read(RemoteAddr(slots.table + Slots::LENT_OFF), &mut bytes)?;
    Ok((0u32..).zip(bytes).filter(|&(_, byte)| which(byte)).map(|(slot, _)| slot).collect())
}

/// The calls that are armed in a process, or were at its detach.
///
/// # Errors
/// When its memory cannot be read.
pub fn armed(process: &Process, slots: &Slots) -> Result<Vec<Armed>, PatchError> {
    let one = |slot| {
        let mut bytes = [0; ENTRY as usize];
        process.read(RemoteAddr(slots.entry(slot)), &mut bytes)?;
        let word = |at: u64| {
            let at = at as usize;
            bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
        };
        Ok(Armed { slot, real: word(entry::REAL), word: word(entry::WORD), what: word(entry::WHAT) })
    };
    numbers(process, slots, |byte| byte == LENT || byte == PUT_BACK)?.into_iter().map(one).collect()
}

/// What became of the calls that were armed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct PutBack {
    /// They return where they were called from.
    pub(crate) restored: u32,
    /// They come home through their slots, as their return addresses are signed, or were not looked for.
    pub(crate) left: u32,
}

/// Where the call of a slot really returns to, through all slots under it; `None` where that is not known.
pub(crate) fn real_of(slots: &Slots, armed: &[Armed], slot: u32) -> Option<u64> {
    let under = |slot| armed.iter().find(|call| call.slot == slot);
    let mut real = under(slot).filter(|call| call.word != 0)?.real;
    for _ in 0..CHAIN {
        real = slots.slot_of(real).and_then(under).map_or(real, |call| call.real);
    }
    slots.slot_of(real).is_none().then_some(real)
}

/// Stops all threads and puts return addresses back, if any are replaced.
pub(crate) fn disarm(
    batch: &mut Batch<'_>,
    all: &[Slots],
    guard: &dyn Fn(u64) -> Option<u64>,
) -> Result<PutBack, PatchError> {
    let process = batch.process();
    // A child that was forked before they were made maps none.
    let in_use = |slots: &&Slots| lent(process, slots).is_ok_and(|lent| !lent.is_empty());
    let all: Vec<&Slots> = all.iter().filter(in_use).collect();
    let mut sum = PutBack::default();
    if all.is_empty() {
        return Ok(sum);
    }
    let mut stopped = batch.stop_all(guard)?;
    let done: Result<(), PatchError> = all.iter().try_for_each(|slots| {
        let done = put_back(process, &mut stopped, slots)?;
        sum.restored += done.restored;
        sum.left += done.left;
        Ok(())
    });
    stopped.resume()?;
    done.map(|()| sum)
}

/// What a search for slots that nobody will come back to found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reclaimed {
    /// Slots lent before.
    pub lent: u32,
    /// Slots given back.
    pub freed: u32,
    /// How long all threads stood.
    pub stopped: Duration,
}

impl Attached {
    /// How many slots the process has, and how many of them are lent; `None` without slots.
    ///
    /// # Errors
    /// When its memory cannot be read.
    pub fn lent(&self, process: &Process) -> Result<Option<(u32, u32)>, PatchError> {
        let Some(slots) = self.slots else { return Ok(None) };
        Ok(Some((slots.count, lent(process, &slots)?.len() as u32)))
    }
    /// Gives back the slots of calls that were left without a return. Each counts as unreturned.
    ///
    /// # Errors
    /// When the process is gone or cannot be stopped.
    pub fn reclaim(&mut self, process: &Process) -> Result<Reclaimed, PatchError> {
        let Some(slots) = self.slots else { return Ok(Reclaimed::default()) };
        let shared = self.segments.iter().find_map(|s| s.slots).map_or((0, 0), |made| made.shared);
        let mut found = Reclaimed::default();
        let left = Batch::run(process, trapline_target::BatchOptions { hold_children: false }, |batch| {
            let guard = |addr| self.resume(addr);
            let start = Instant::now();
            let stopped = batch.stop_all(&guard)?;
            let calls = armed(process, &slots)?;
            found.lent = calls.len() as u32;
            let left = match named(process, &stopped, &slots, (&calls, shared))? {
                Some(named) => calls.into_iter().filter(|c| c.word != 0 && !named[c.slot as usize]).collect(),
                None => Vec::new(),
            };
            let given = left.iter().try_for_each(|call: &Armed| give_back(process, &slots, call.slot));
            stopped.resume()?;
            found.stopped = start.elapsed();
            given.map(|()| left)
        })??;
        found.freed = left.len() as u32;
        for call in &left {
            self.segments.iter().for_each(|segment| segment.count_unreturned(call.what));
        }
        Ok(found)
    }
}

/// For each slot, whether something names it; `None` if that cannot be known now.
fn named(
    process: &Process,
    stopped: &StoppedAll<'_, '_>,
    slots: &Slots,
    (calls, shared): (&[Armed], (u64, u64)),
) -> Result<Option<Vec<bool>>, PatchError> {
    let mut named = vec![false; slots.count as usize];
    let address = !stopped.signature();
    let mut name = |word: u64| {
        if let Some(slot) = slots.slot_of(word & address) {
            named[slot as usize] = true;
        }
    };
    let is_shared = |word: u64| (shared.0..shared.1).contains(&word);
    let mut known = true;
    for tid in stopped.threads() {
        let Ok(regs) = stopped.regs(tid) else { continue };
        regs.general().into_iter().for_each(&mut name);
        if is_shared(regs.pc()) {
            match number_in(process, &regs) {
                Ok(slot) => name(slots.code + slot.wrapping_mul(slots::CODE)),
                Err(_) => known = false,
            }
        }
    }
    let all = words_in(process, &mut |map, _, word| {
        if map.start.0 != slots.table {
            name(word);
            known &= !is_shared(word);
        }
    })?;
    on_shared_stacks(process, calls)?.into_iter().for_each(|slot| name(slots.address(slot)));
    name_under(&mut named, slots, calls);
    Ok((all && known).then_some(named))
}

/// Slots of calls on stacks that are no private memory, which nobody searches.
pub(crate) fn on_shared_stacks(process: &Process, calls: &[Armed]) -> Result<Vec<u32>, PatchError> {
    let maps = process.maps()?;
    let is_shared = |call: &&Armed| {
        let at = RemoteAddr(call.word.wrapping_sub(BELOW));
        let stack = maps.iter().find(|map| map.contains(at));
        stack.is_some_and(|map| map.perms.shared || !map.perms.read || !map.perms.write)
    };
    Ok(calls.iter().filter(is_shared).map(|call| call.slot).collect())
}

/// A call that was entered by a jump from an armed one returns through that one's slot, which the entry of its own alone names.
fn name_under(named: &mut [bool], slots: &Slots, calls: &[Armed]) {
    for _ in 0..CHAIN {
        for call in calls {
            if let Some(under) = slots.slot_of(call.real).filter(|_| named[call.slot as usize]) {
                named[under as usize] = true;
            }
        }
    }
}

/// B3, done for somebody who will not.
fn give_back(process: &Process, slots: &Slots, slot: u32) -> Result<(), PatchError> {
    process.write_text(RemoteAddr(slots.entry(slot) + entry::WORD), &[0; 8])?;
    Ok(process.write_text(RemoteAddr(slots.table + Slots::LENT_OFF + u64::from(slot)), &[0])?)
}
