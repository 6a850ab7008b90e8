//! What the kernel saves at a signal: its `ucontext` and `sigcontext`, and the conversion from and
//! to the engine's [`Regs`].
//!
//! Layouts are the kernel's (asm/sigcontext.h, asm/ucontext.h), not a C library's. The
//! thread goes on with the [`Context`] that a handler leaves, including the mask. Of the records behind the
//! registers only a fault's syndrome is touched; vector state is another of them.
//!
//! ```text
//!   +   0   flags, link; 16: the alternate stack
//!   +  40   mask
//!   + 176   fault_address
//!   + 184   regs: x0 to x30; + 432 sp, + 440 pc, + 448 pstate
//!   + 464   records, 4096 bytes: each (magic | length << 32), its words; then a head of zeros
//!           behind them, if they do not fit: the memory that the record EXTRA names
//! ```

use core::mem::offset_of;
use core::ptr;

use trapline_insn::aarch64::Regs;

/// `struct ucontext`.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug)]
pub struct Context {
    flags: u64,
    link: u64,
    stack: [u64; 3],
    /// Signals that are blocked once the handler returns.
    pub mask: u64,
    unused: [u64; 16],
    /// Address of this thread's last fault. Outdated in a signal that was sent.
    pub fault_address: u64,
    /// x0 to x30, sp, pc and PSTATE, in the layout of [`Regs`].
    regs: Regs,
    padding: u64,
    /// Records: magic and length in bytes (32 bits each), then their content. A record of zeros ends them.
    records: [u64; RECORDS],
}

const RECORDS: usize = 4096 / 8;
/// `ESR_MAGIC`: the exception syndrome of a fault, one word.
const SYNDROME: u64 = 0x4553_5201;
/// The first word of its record, and the record's length in words.
const SYNDROME_HEAD: u64 = SYNDROME | 16 << 32;
const SYNDROME_LEN: usize = 2;
/// `EXTRA_MAGIC`: address and length of further records that do not fit here.
const EXTRA_HEAD: u64 = 0x4558_5401 | 32 << 32;

impl Context {
    /// General registers, stack pointer, program counter and flags. The thread goes on with them as they are
    /// left. The kernel takes only those bits of PSTATE that a program may change.
    #[inline(always)]
    pub const fn regs(&mut self) -> &mut Regs {
        &mut self.regs
    }
    /// The program counter.
    #[must_use]
    pub const fn pc(&self) -> u64 {
        self.regs.pc
    }
    /// Sets the program counter.
    pub const fn set_pc(&mut self, to: u64) {
        self.regs.pc = to;
    }
    /// x1.
    pub(super) const fn x1(&self) -> u64 {
        let [_, x1, ..] = self.regs.x;
        x1
    }
    /// The syndrome of the last fault, if the kernel reported one.
    #[must_use]
    pub fn syndrome(&self) -> Option<u64> {
        let (at, found) = self.record(SYNDROME_HEAD);
        if found { self.records.get(at + 1).copied() } else { None }
    }
    /// Sets the syndrome, in its record or in a new one behind the last, if there is room.
    pub fn set_syndrome(&mut self, syndrome: u64) {
        let (at, found) = self.record(SYNDROME_HEAD);
        let end = [0; SYNDROME_LEN];
        let len = if found { SYNDROME_LEN } else { 2 * SYNDROME_LEN };
        if let Some(room) = self.records.get_mut(at..at.saturating_add(len)) {
            let words = [SYNDROME_HEAD, syndrome].into_iter().chain(end);
            room.iter_mut().zip(words).for_each(|(room, word)| *room = word);
        }
    }
    /// The record that leads to further records behind this context (`EXTRA_MAGIC`), if there is one: its
    /// second word, which is their address, and their length in bytes. The length is half of its third word.
    /// The other half holds whatever was on the stack.
    ///
    /// # Errors
    /// There is none: the index of the word at which the records end.
    #[inline]
    pub(super) fn extra(&mut self) -> Result<(&mut u64, u64), usize> {
        let (at, found) = self.record(EXTRA_HEAD);
        match self.records.get_mut(at + 1..at + 3) {
            Some([to, len]) if found => Ok((to, *len & u64::from(u32::MAX))),
            _ => Err(at),
        }
    }
    /// Whether `addr` is in the memory that the kernel reads when the handler returns.
    #[inline]
    pub(super) fn reaches(&mut self, addr: u64) -> bool {
        let start = ptr::from_ref(self).addr() as u64;
        let end = match self.extra() {
            Ok((to, len)) => to.wrapping_add(len),
            Err(end) => start + offset_of!(Self, records) as u64 + 8 * (end + SYNDROME_LEN) as u64,
        };
        (start..end).contains(&addr)
    }
    /// Index of the record with this first word, and true; or the index where the records end, and false.
    #[inline]
    fn record(&self, wanted: u64) -> (usize, bool) {
        let mut at = 0;
        while let Some(&head) = self.records.get(at) {
            let words = (head >> 35) as usize;
            if head == wanted && head != 0 {
                return (at, true);
            }
            if head as u32 == 0 || words == 0 {
                return (at, false);
            }
            at += words;
        }
        (RECORDS, false)
    }
}

/// A thread's settings for rounding, exceptions and denormals. Linux starts handlers with those of the
/// interrupted code (`setup_return` does not set FPCR), so there is never anything to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ControlWords;

impl ControlWords {
    /// Always `None`.
    ///
    /// # Safety
    /// None is required.
    pub(crate) const unsafe fn unusual(_: &Context) -> Option<Self> {
        None
    }
    /// Does nothing.
    pub(crate) const fn load(self) {}
    /// Does nothing.
    pub(crate) const fn reset() {}
}

/// A thread's registers at a hit, which consumers see and change, and the signal frame that they come from.
/// Here they are the frame's own: nothing is copied.
#[derive(Debug)]
pub(crate) struct State<'a>(&'a mut Context);

impl<'a> State<'a> {
    /// The frame's registers: their program counter is at the trap that was executed (`breakpoint`).
    #[inline(always)]
    pub(crate) const fn at(context: &'a mut Context, _: u64) -> Self {
        Self(context)
    }
    /// The registers.
    #[inline(always)]
    pub(crate) const fn regs(&mut self) -> &mut Regs {
        &mut self.0.regs
    }
    /// The frame.
    #[inline(always)]
    pub(crate) const fn context(&mut self) -> &mut Context {
        self.0
    }
    /// The thread goes on with these registers already: does nothing.
    #[inline(always)]
    pub(crate) const fn keep(&self) {}
    /// These are the frame's registers already: does nothing.
    pub(crate) const fn read(&self) {}
}

/// `si_code` of a `brk` (`TRAP_BRKPT`).
pub const BREAKPOINT: i32 = 1;

#[cfg(test)]
mod tests {
    use super::{Context, SYNDROME_HEAD};
    use std::mem::{offset_of, size_of};
    use trapline_insn::aarch64::Regs;

    #[test]
    fn layouts_are_the_kernels() {
        let machine = offset_of!(libc::ucontext_t, uc_mcontext);
        let field = |at| machine + at;
        assert_eq!(offset_of!(libc::ucontext_t, uc_sigmask), offset_of!(Context, mask));
        for (theirs, ours) in [
            (offset_of!(libc::mcontext_t, fault_address), offset_of!(Context, fault_address)),
            (offset_of!(libc::mcontext_t, regs), offset_of!(Context, regs.x)),
            (offset_of!(libc::mcontext_t, sp), offset_of!(Context, regs.sp)),
            (offset_of!(libc::mcontext_t, pc), offset_of!(Context, regs.pc)),
            (offset_of!(libc::mcontext_t, pstate), offset_of!(Context, regs.pstate)),
        ] {
            assert_eq!(field(theirs), ours);
        }
        // libc's records are private; they are aligned to 16 behind PSTATE, and are the last field.
        assert_eq!(offset_of!(Context, records), field(288));
        assert_eq!(size_of::<Context>(), size_of::<libc::ucontext_t>());
    }

    fn context() -> Context {
        // SAFETY: all fields are integers, for which zeros are values.
        unsafe { std::mem::zeroed() }
    }

    #[test]
    fn registers_are_the_frames() {
        let mut context = context();
        let regs = Regs { x: std::array::from_fn(|n| 100 + n as u64), sp: 1, pc: 2, pstate: 3 };
        *context.regs() = regs;
        assert_eq!((context.pc(), context.x1()), (2, 101));
    }

    #[test]
    fn what_stands_beside_the_length_of_more_records_is_nobodys() {
        let mut context = context();
        assert_eq!(context.extra(), Err(0));
        let mut to = std::ptr::from_ref(&context).addr() as u64 + 8192;
        context.records[..4].copy_from_slice(&[super::EXTRA_HEAD, to, 0x9100_0000_0000_0120, 7]);
        assert_eq!(context.extra(), Ok((&mut to, 0x120)));
        assert!(context.reaches(to) && !context.reaches(to + 0x120));
    }

    #[test]
    fn a_syndrome_is_found_or_put_behind_the_last_record() {
        let mut context = context();
        assert_eq!(context.syndrome(), None);
        // What the kernel writes at every signal: vector state, 528 bytes.
        context.records[0] = 0x4650_8001 | 528 << 32;
        context.set_syndrome(7);
        assert_eq!((context.records[66], context.syndrome()), (SYNDROME_HEAD, Some(7)));
        context.set_syndrome(8);
        assert_eq!((context.syndrome(), context.records[68]), (Some(8), 0));
        // Without room, nothing is written and nothing else is touched.
        context.records[66] = 1 | (4096 - 528) << 32;
        let before = context.records;
        context.set_syndrome(9);
        assert_eq!((context.syndrome(), context.records == before), (None, true));
        // A record of length 0 ends the search.
        context.records[66] = 5;
        assert_eq!(context.syndrome(), None);
    }
}
