//! The table of return trampolines, and the steps at its entries.
//!
//! In: at an entry, the stack word and the return address; at a return, the trampoline's number. Out: a
//! trampoline that is taken; what is known of the call that returned. Keeps SLOT-1 to SLOT-4, by the steps that
//! `trampolines` has.
//! Does not: reach the words by itself (`words`), end instances.

use core::ffi::c_void;
use core::num::NonZeroU64;

use trapline_record::trampolines::{self, CHAIN, LENT, Trampolines, at};

use super::words::TableWords;
use crate::instances::{Hint, Hinted, Hints, LINE_LEN};
use crate::sync::{AcqRel, Acquire, AtomicPtr, AtomicU32, AtomicU64, Relaxed, Release};

/// Maximum number of trampolines: hints hold no larger numbers.
pub const MOST: u32 = 1 << 15;

/// The quick hint of a call is at byte (stack word · 2^`QUICK_UP` + return address) · `QUICK_SPREAD`, from
/// bit `QUICK_SHIFT` on. So calls with neighbouring stack words or return addresses have distant hints.
pub(crate) const QUICK_UP: u32 = 7;
pub(crate) const QUICK_SPREAD: u64 = 0x61c8_8647;
pub(crate) const QUICK_SHIFT: u32 = 20;

/// Length of a quick hint in bytes.
const QUICK_LEN: usize = size_of::<u32>();

/// Hints of a line that bound trampolines may not use.
const UNBOUND: usize = 2;

/// The return trampolines of a process, at an address that their code contains.
#[derive(Debug)]
#[repr(C)]
pub struct TrampolineTable {
    pub(crate) raw: Raw,
    /// 1: no more trampolines are handed out, because an unwinder runs that does not know about them.
    pub(crate) closed: AtomicU32,
    /// Number of trampolines that became bound when a call returned.
    bound: AtomicU32,
    /// Return addresses of calls that get no trampoline: first address and length in bytes.
    spared: [AtomicU64; 2],
    trampolines: Trampolines,
    pub(crate) words: TableWords,
    hints: Hints,
    quick: &'static [AtomicU32],
    none: &'static [AtomicU32],
}

/// Addresses of all that, in a layout that assembly code relies on (`general` of the two processors).
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Raw {
    /// The `Engine` that owns these trampolines; null until they are first handed out. Cached here because reading
    /// it through the call's probe would put a dependent load on the return path.
    pub(crate) engine: AtomicPtr<c_void>,
    /// Quick hints: byte offsets of bound trampolines' entries from the first entry; their number is a power
    /// of two. While no trampolines are handed out, this points to words that are always 0: no call has
    /// trampoline 0.
    pub(crate) quick: AtomicPtr<AtomicU32>,
    /// Length of all quick hints but one, in bytes.
    pub(crate) quick_mask: u64,
    /// Address of the first entry.
    pub(crate) entries: u64,
}

/// A return trampoline between A3 and A6.
#[derive(Debug)]
pub(crate) struct TakenTrampoline {
    table: &'static TrampolineTable,
    number: u32,
    real: u64,
    /// Address of the probe of the previous call, which was left without a return, and whether that call had
    /// no instance.
    pub(crate) left: Option<(NonZeroU64, bool)>,
}

/// What is known of a call that has returned to its trampoline.
#[derive(Debug)]
pub(crate) struct ReturnedCall {
    /// Address that the call returns to.
    pub(crate) real: u64,
    /// Address of the call's probe; `None` if no consumer waits.
    pub(crate) probe: Option<NonZeroU64>,
    /// Key of its instance: the trampoline's address.
    pub(crate) key: u64,
    /// Address that was hit, if the call has no instance.
    pub(crate) site: Option<u64>,
    number: u32,
}

impl TrampolineTable {
    /// A table of trampolines that are mapped and not in use. `None` if there are too many, or if the hints
    /// are not whole cache lines or not a power of two. The quick hints must be a power of two, too; half of
    /// them are used, and the second half stays 0.
    ///
    /// # Safety
    /// The private memory is zeroed except for the hints of [`Trampolines::hints`]. It stays readable and
    /// writable for good, and no other code uses it. In an entry with the byte LENT, `WHAT` is 0 or the
    /// address of a probe that is never freed.
    #[must_use]
    pub unsafe fn new(
        trampolines: Trampolines,
        hints: &'static [Hint],
        quick: &'static [AtomicU32],
    ) -> Option<Self> {
        let hints = Hints::new(hints)?;
        let aligned = cfg!(loom) || hints.first().addr().is_multiple_of(LINE_LEN);
        let lines = aligned && hints.mask() >= (LINE_LEN - size_of::<u64>()) as u64;
        let (quick, none) = quick.split_at(quick.len() / 2);
        let quick_mask = (quick.len().checked_sub(1)? * QUICK_LEN) as u64;
        let first = AtomicPtr::new(quick.as_ptr().cast_mut());
        let engine = AtomicPtr::new(core::ptr::null_mut());
        let raw = Raw { engine, quick: first, quick_mask, entries: trampolines.entry(0) };
        let (closed, bound) = (AtomicU32::new(0), AtomicU32::new(0));
        let whole = quick.len() == none.len() && quick.len().is_power_of_two();
        // SAFETY: the caller promises it.
        let words = unsafe { TableWords::new(trampolines) };
        let spared = [AtomicU64::new(0), AtomicU64::new(0)];
        let made = Self { raw, closed, bound, spared, trampolines, words, hints, quick, none };
        (trampolines.count <= MOST && lines && whole).then_some(made)
    }
    /// Hands out no more trampolines; those in use stay so. With `false`, hands them out again.
    pub fn close(&self, closed: bool) {
        self.closed.store(closed.into(), Release);
        let quick = if closed { self.none } else { self.quick };
        self.raw.quick.store(quick.as_ptr().cast_mut(), Release);
    }
    /// From now on, calls that return to one of these addresses get no trampoline and are missed. To be
    /// called before the first one is handed out.
    pub fn spare(&self, addresses: core::ops::Range<u64>) {
        self.spared[0].store(addresses.start, Relaxed);
        self.spared[1].store(addresses.end - addresses.start, Relaxed);
    }
    /// Whether no trampoline is handed out at present.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Acquire) != 0
    }
    /// Number of trampolines in use by calls.
    #[must_use]
    pub fn lent(&self) -> u32 {
        let is_lent = |&number: &u32| {
            self.words.byte(number).load(Relaxed) != 0 && self.words.word(number, at::WHAT).load(Relaxed) != 0
        };
        (0..self.trampolines.count).filter(is_lent).count() as u32
    }
    /// Addresses of the trampolines.
    #[must_use]
    pub const fn trampolines(&self) -> Trampolines {
        self.trampolines
    }
    /// Real return address of a call with `address` in its stack word; `None` if `address` is not a
    /// trampoline's. For unwinders that cannot read our unwind tables. Valid for calls that go on: asked by
    /// their own thread, or while it stands still.
    #[must_use]
    pub fn real(&self, address: u64) -> Option<u64> {
        let under = |&address: &u64| {
            self.trampolines.number_of(address).map(|number| self.words.word(number, at::REAL).load(Acquire))
        };
        let first = under(&address)?;
        // Follows at most as many trampolines as a stack word can have; the result is the last address, which
        // is not a trampoline's.
        core::iter::successors(Some(first), under).take(CHAIN as usize + 1).last()
    }
    /// The quick hint of a call.
    fn quick(&self, word: u64, real: u64) -> &AtomicU32 {
        let sum = (word << QUICK_UP).wrapping_add(real).wrapping_mul(QUICK_SPREAD);
        let at = (sum >> QUICK_SHIFT & self.raw.quick_mask) as usize / QUICK_LEN;
        // SAFETY: the mask is the length of all hints but one, in bytes, so this index is at most the last
        // hint (`new`).
        unsafe { self.quick.get_unchecked(at) }
    }
    /// The line of hints that may contain the call's hint. Different return addresses at one stack word have
    /// different lines.
    #[inline]
    fn hints(&self, word: u64, real: u64) -> &'static [Hint] {
        self.hints.line(word, real)
    }
    /// The stack pointer at the entry of the call with this key as its instance's; 0 if the call is over.
    pub(crate) fn frame(&self, key: u64) -> u64 {
        self.trampolines.number_of(key).map_or(key, |number| self.words.word(number, at::WORD).load(Acquire))
    }
    /// A1 to A4, without the instance. The arguments are the address of the stack word and the return
    /// address; a CPU; the address of the probe.
    ///
    /// # Safety
    /// The call has just begun in this thread, with this stack word and return address.
    #[inline]
    pub(crate) unsafe fn take(
        &'static self,
        (word, real): (u64, u64),
        cpu: u32,
        probe: u64,
    ) -> Option<TakenTrampoline> {
        if self.closed.load(Relaxed) != 0 {
            return None;
        }
        if real.wrapping_sub(self.spared[0].load(Relaxed)) < self.spared[1].load(Relaxed) {
            return None;
        }
        let under = match self.trampolines.number_of(real) {
            Some(lower) => self.words.word(lower, at::UNDER).load(Relaxed) + 1,
            None => 0,
        };
        if under >= CHAIN.into() {
            return None;
        }
        let hints = self.hints(word, real);
        let (number, left) = match self.its(hints, word, real) {
            Some(number) => {
                self.words.word(number, at::BOUND).store(1, Relaxed);
                self.words.word(number, at::UNDER).store(under, Relaxed);
                let is_alone = self.words.word(number, at::SITE).load(Relaxed) != 0;
                (number, self.probe_of(number).map(|left| (left, is_alone)))
            }
            None => {
                let number = self.free(cpu)?;
                let enters = self.trampolines.address(number) - trampolines::RETURN + trampolines::ENTER;
                self.words.word(number, at::INTO).store(enters, Relaxed);
                self.words.word(number, at::REAL).store(real, Relaxed);
                self.words.word(number, at::UNDER).store(under, Relaxed);
                self.words.word(number, at::BOUND).store(0, Relaxed);
                self.words.word(number, at::WORD).store(word, Release);
                // A free hint, or else the hint of a trampoline that is not bound.
                let free = hints.iter().find(|hint| hint.is_clear());
                free.or_else(|| hints.iter().find(|hint| !self.is_bound(hint)))
                    .into_iter()
                    .for_each(|hint| hint.number(word, number));
                (number, None)
            }
        };
        // A matching `GO` implies the site, so neither stays.
        self.words.word(number, at::SITE).store(0, Relaxed);
        self.words.word(number, at::GO).store(0, Relaxed);
        self.words.word(number, at::WHAT).store(probe, Relaxed);
        Some(TakenTrampoline { table: self, number, real, left })
    }
    /// A2: the trampoline that this (stack word, return address) already has.
    #[inline]
    fn its(&self, hints: &[Hint], word: u64, real: u64) -> Option<u32> {
        let is_its = |number: &u32| {
            *number < self.trampolines.count
                && self.words.word(*number, at::WORD).load(Acquire) == word
                && self.words.word(*number, at::REAL).load(Relaxed) == real
        };
        let hinted = hints.iter().filter_map(|hint| match hint.read(word) {
            Hinted::Number(number) => Some(number),
            Hinted::NoConsumer | Hinted::Nothing => None,
        });
        { hinted }.find(is_its)
    }
    /// A3: takes a trampoline with the byte 0.
    #[inline]
    fn free(&self, cpu: u32) -> Option<u32> {
        let first = self.words.first(cpu);
        let from = first.load(Relaxed);
        let is_free = |&number: &u32| {
            let byte = self.words.byte(number);
            number != 0 && byte.load(Relaxed) == 0 && byte.swap(LENT, AcqRel) == 0
        };
        let all = (0..self.trampolines.count).map(|n| from.wrapping_add(n) & (self.trampolines.count - 1));
        let number = { all }.find(is_free)?;
        first.store(number, Relaxed);
        Some(number)
    }
    /// What `WHAT` holds: while the trampoline is in use, 0 or the address of a probe that is never freed
    /// (`new`).
    fn probe_of(&self, number: u32) -> Option<NonZeroU64> {
        NonZeroU64::new(self.words.word(number, at::WHAT).load(Relaxed))
    }
    /// B2. `None` if there is no trampoline of that number.
    ///
    /// # Safety
    /// This thread has returned to that trampoline's code.
    pub(crate) unsafe fn returned(&self, number: u32) -> Option<ReturnedCall> {
        if number >= self.trampolines.count {
            return None;
        }
        let is_lent = self.words.byte(number).load(Acquire) != 0;
        let probe = if is_lent { self.probe_of(number) } else { None };
        let real = self.words.word(number, at::REAL).load(Relaxed);
        let site = self.words.word(number, at::SITE).load(Relaxed);
        Some(ReturnedCall {
            real,
            probe,
            key: self.trampolines.address(number),
            site: (site != 0).then_some(site),
            number,
        })
    }
    /// B3, in the thread that has returned, after its instance is ended.
    pub(crate) fn put_back(&self, returned: &ReturnedCall) {
        if returned.probe.is_some() {
            self.give_back(returned.number);
        }
    }
    /// B3.
    fn give_back(&self, number: u32) {
        let (word, bound) = (self.words.word(number, at::WORD), self.words.word(number, at::BOUND));
        let (at, real) = (word.load(Relaxed), self.words.word(number, at::REAL).load(Relaxed));
        if bound.load(Relaxed) != 0 || self.may_bind(number, self.hints(at, real), at) {
            bound.store(1, Relaxed);
            if self.words.word(number, at::UNDER).load(Relaxed) == 0 {
                self.quick(at, real).store(number * trampolines::ENTRY as u32, Relaxed);
            }
            self.words.word(number, at::WHAT).store(0, Relaxed);
            return;
        }
        let its = self.hints(at, real).iter().find(|hint| hint.read(at) == Hinted::Number(number));
        its.into_iter().for_each(Hint::clear);
        word.store(0, Relaxed);
        self.words.word(number, at::WHAT).store(0, Relaxed);
        self.words.frees(number);
    }
    /// Whether the trampoline may stay bound to its stack word after the return: it can be found, and enough
    /// others stay free.
    fn may_bind(&self, number: u32, hints: &[Hint], word: u64) -> bool {
        let is_hinted = hints.iter().any(|hint| hint.read(word) == Hinted::Number(number));
        let bound = hints.iter().filter(|hint| self.is_bound(hint)).count();
        let most = self.trampolines.count / 2;
        is_hinted
            && bound + UNBOUND < hints.len()
            && self.bound.load(Relaxed) < most
            && self.bound.fetch_add(1, Relaxed) < most
    }
    /// Whether a hint names a bound trampoline.
    fn is_bound(&self, hint: &Hint) -> bool {
        hint.named().is_some_and(|number| {
            number < self.trampolines.count && self.words.word(number, at::BOUND).load(Relaxed) != 0
        })
    }
}

impl TakenTrampoline {
    /// The key of the call's instance.
    pub(crate) const fn key(&self) -> u64 {
        self.table.trampolines.address(self.number)
    }
    /// A6: what the stack word is to hold. `None` if the word `holds` another address than the real one by
    /// now.
    pub(crate) const fn arm(&self, holds: u64) -> Option<u64> {
        if holds == self.real { Some(self.key()) } else { None }
    }
    /// No consumer waits for the call after all; its instance is ended already.
    pub(crate) fn cancel(self) {
        self.table.give_back(self.number);
    }
}
