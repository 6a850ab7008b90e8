//! Calls whose return address is replaced, in our own process: which slot a call gets, and what its landing does.
//!
//! In: at an entry, the return address, and the stack word that holds it (on arm64 the stack pointer, and x30: below). Out: a slot for it, or none: then the call is missed. At a landing, the slot's number.
//! Out: where the call really returns to, and whose it was. Invariants: SLOT-1 to SLOT-3 of `plan`'s `stub::slots`, and SLOT-4 a slot that was
//! taken without proof that its last call is over leads, for good, to the address that the last call returns to.
//! Does not: keep who waits for a call (`instances` does, under the slot's address as key), make or map code.
//!
//! # The words
//!
//! Those of `record::slots`, reached through `words`; `models::slots` runs the steps below in loom. An entry's `WHAT` is the probe (0: nobody waits), `SITE` is 0 if the call has an instance, `BOUND` is below. Two more tables: *hints*, which slot
//! a (stack word, return address) has, a line of eight for some of each stack page; and *quick* hints, one for each, which name bound slots without one under them alone. A hint is a guess; what is true stands in the entry.
//!
//! # Steps
//!
//! | step | entry (`dispatch`, D3 to D6) | | landing (`dispatch::landed`) |
//! |---|---|---|---|
//! | A1 | real := the stack word. If that is a slot, the function was reached by a tail call: `UNDER` := its `UNDER` + 1, at most CHAIN | B1 | the slot's code has put its number into the stack word |
//! | A2 | the hint names a slot, its `WORD` is this word and its `REAL` is real: that one. If its `WHAT` is not 0, its last call was left, and it is *had again*; `BOUND` := 1. Go on at A4 | B2 | read `REAL` and `WHAT`; end the call's instance |
//! | A3 | a free one: its byte is exchanged with LENT, and was 0. `REAL`, `UNDER`, `BOUND` := 0, `WORD` (release), hint | B3 | bound, or to be bound from now on (`BOUND` := 1; below): quick hint, `WHAT` := 0. Else hint := 0, `WORD` := 0, byte := 0 |
//! | A4 | `SITE` := 0, `GO` := 0, `WHAT` := the probe. The instance, under the slot's address as key (or none: below) | B4 | the stack word := `REAL`; the instruction pointer := `REAL` |
//! | A5 | consumers are called | B5 | consumers are called |
//! | A6 | if somebody waits, and the stack word is real still: the stack word := the slot. Else as B3 | B6 | the landing's last instruction jumps to what the stack word holds |
//!
//! - *a signal handler between any two steps* lies below on the same stack, or on another: its calls have other words, and take other slots. The
//!   landing runs below the word, so B4 stands until B6.
//! - *an unwinder, a debugger or a profiler at any moment*: the word holds the real address, or a slot whose `REAL` was written before (A3, A6).
//! - *a handler that leaves* in A5, by `longjmp` or the end of its thread: the slot is lent, and no word names it. As any call that was left (below).
//! - *another thread*: no word of an entry whose byte is LENT is written but by who is at the stack word that it names. A stack that goes on in
//!   another thread takes that with it; whoever handed it over orders the two. A2's look at a slot that is another's by now finds another `WORD`.
//! - *unregistering while calls are in flight*: nobody is stopped, no word is written. Landings are code of this program and entries stay mapped, both for
//!   good: the call comes home through its slot, whenever, and finds that nobody waits. (An outside tracer may be gone when its landing is
//!   reached, so `patch` puts the addresses back; here the one who would have to be told is the one that runs.)
//! - *a forked child* has a copy of stacks and entries, and the same code. *A child of `vfork`* shares both, and the parent waits: it takes and
//!   gives back as a call below the parent's does.
//! - *two calls at once for one bound slot*: there is one thread at a stack word. So A2's look and A4's store need no bus lock, nor do B2 and B3.
//! - *another form*: while exits of the same function are still patched, an exit of an armed call finds no instance under its stack pointer.
//!
//! # Where the return address is
//!
//! On x86-64 in the word at the stack pointer. On arm64 a call leaves it in x30 and the function puts it where it likes, signed or not, so the *stack word* above is two things there: as a name, the stack pointer
//! of the entry, which two calls that go on have in common only as tail calls do; as what holds the address, x30 (the twins' `returning`). A handler of signals between A1 and A6
//! finds it in the registers that it gives back. B1 puts the slot's number into x30, B4 the address, and B6 is a `ret` by it.
//!
//! - *signed return addresses*: at its first instruction a function has signed nothing, so `REAL` is as the call left it. What the function signs then (`paciasp`) is the slot's address, and what it authenticates before it returns is that: a word that somebody else changed meanwhile fails there as it would without us.
//! - *landing pads*: a slot is reached by `ret`, whose target needs no `BTI` (Arm ARM C6.2, RET: unlike BR and BLR it sets BTypeNext, and so PSTATE.BTYPE, to 0), and so is what B6 leads to.
//! - *a handler of signals* returns to the vdso's `rt_sigreturn`, which Linux gives no unwind information since 5.8: unwinders know it by its instructions, at exactly that address, which the byte before it (`plan`'s `unwind`) is not. So calls that return into the vdso have no slot ([`Table::spare`]): unwinders find the interrupted frame as before.
//! - *a guarded control stack* compares what `ret` takes with what the call left: slots are not lent there.
//!
//! # Bound slots
//!
//! A slot that came home is bound to its stack word and return address, since the next call from there has the same: taking it is a look and a store, without a bus
//! lock, and a copied stack that returns twice finds the same way twice. At most half of all slots are bound like that, and of a line of hints all but
//! two; what comes later is lent from call to call (A3). Hints of bound slots are not displaced: nobody could find them again.
//!
//! # Calls without an instance
//!
//! Where nobody is called at the entry, all that an instance would keep is the address that was hit. So such a call on a slot that is bound has none: `SITE` := that address and `GO` := the way on, where the last
//! call's are not the same, before `WHAT` (`general` of the twins), and B2 finds it there. Both are the entry's last caller's until A4 of the long way sets them to 0. Who finds its own way on there stores
//! nothing, the site is its own too: stubs stay for good, and each is of one site. Whoever is at the stack word next finds what was compared: no other thread writes there meanwhile. `maxactive` does not bound these: slots do. Nothing is to be ended when the call was left.
//!
//! # Calls that are over without a landing
//!
//! `longjmp`, an exception, the end of a thread leave slots lent. Nothing here can know that: a stack may have been copied away, to come
//! back (greenlets), so a slot whose word holds something else now may still be named. Outside, all threads are stopped and memory is searched
//! (RET-2). Here, what was left is had again *only by a call at the same stack word with the same return address* (A2): whoever
//! comes back to it later, the copy or the new call, comes to the same place with the same stack pointer. From then on it is bound to that (SLOT-4)
//! and never given to another. So a loop that throws for ever holds one slot for each (stack word, return address) that it throws from; if there are more
//! of these than slots, or more than eight share a line of hints, slots run out, and calls are missed and counted ([`Tally::empty`](crate::engine::Tally::empty)).
//! The instance of what was left is ended at A2, or when its pool is empty, by the rules of `instances`.
//!
//! A stack that is copied and returns *twice* (multi-shot continuations) comes to a slot that, unless it is bound, is lent to nobody, or to another by now. The
//! first is sent to its old address; the second cannot be told: such a program must be probed at exits.

mod words;

use trapline_record::slots::{self, CHAIN, LENT, Slots, at};

use crate::engine::Engine;
use crate::instances::{Hint, Hints, LINE_LEN, Said};
use crate::probe::Probe;
use crate::sync::{AcqRel, Acquire, AtomicPtr, AtomicU32, AtomicU64, Relaxed, Release};
use words::Words;

/// The most slots that there may be: hints hold no larger numbers.
pub const MOST: u32 = 1 << 15;

/// Where the quick hint of a call lies, in bytes: (stack word · 2⁷ + return address) · that, from bit 20 on, so that neighbours of either kind lie apart.
pub(crate) const QUICK_UP: u32 = 7;
pub(crate) const QUICK_SPREAD: u64 = 0x61c8_8647;
pub(crate) const QUICK_SHIFT: u32 = 20;

/// Bytes of one.
const QUICK_LEN: usize = size_of::<u32>();

/// Hints of a line that are not for bound slots.
const UNBOUND: usize = 2;

/// The slots of a process, at an address that their code knows.
#[derive(Debug)]
#[repr(C)]
pub struct Table {
    pub(crate) raw: Raw,
    /// Somebody unwinds who was not told: no more are lent.
    pub(crate) closed: AtomicU32,
    /// How many were bound when they came home.
    bound: AtomicU32,
    /// Calls that return to here have none: first address and length.
    spared: [AtomicU64; 2],
    slots: Slots,
    pub(crate) words: Words,
    hints: Hints,
    quick: &'static [AtomicU32],
    none: &'static [AtomicU32],
}

/// Where all that lies, in a layout that code in assembly knows (`general` of the twins).
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Raw {
    /// Whose calls have them; nobody's until they are lent. A landing would learn it from the call's probe, but later, and waits for what it leads to.
    pub(crate) engine: AtomicPtr<Engine>,
    /// Where entries of bound slots lie, from the first; a power of two of them. Where no slots are lent, words that are 0 for good: slot 0 is nobody's.
    pub(crate) quick: AtomicPtr<AtomicU32>,
    /// Bytes of all but one.
    pub(crate) quick_mask: u64,
    /// The first entry.
    pub(crate) entries: u64,
}

/// A slot between A3 and A6.
#[derive(Debug)]
pub(crate) struct Taken {
    table: &'static Table,
    number: u32,
    real: u64,
    /// Whose call left it, and whether that had no instance.
    pub(crate) left: Option<(&'static Probe, bool)>,
}

/// What a landing finds.
#[derive(Debug)]
pub(crate) struct Landed {
    /// Where the call returns to.
    pub(crate) real: u64,
    /// Whose call it is; nobody's if nobody waits.
    pub(crate) probe: Option<&'static Probe>,
    /// The key of its instance.
    pub(crate) key: u64,
    /// The address that was hit, if it has none.
    pub(crate) site: Option<u64>,
    number: u32,
}

impl Table {
    /// Over slots that are mapped and lent to nobody. `None`: there are too many, or the hints are not whole cache lines, a power of two, as
    /// the quick ones must be, of which the second half stays 0.
    ///
    /// # Safety
    /// The private memory is zeroed but for the hints of [`Slots::hints`], readable and writable for good, and nobody else's. Of an entry whose byte is LENT,
    /// `WHAT` is 0 or the address of a probe that lives for good.
    #[must_use]
    pub unsafe fn new(slots: Slots, hints: &'static [Hint], quick: &'static [AtomicU32]) -> Option<Self> {
        let hints = Hints::new(hints)?;
        let aligned = cfg!(loom) || hints.first().addr().is_multiple_of(LINE_LEN);
        let lines = aligned && hints.mask() >= (LINE_LEN - size_of::<u64>()) as u64;
        let (quick, none) = quick.split_at(quick.len() / 2);
        let quick_mask = (quick.len().checked_sub(1)? * QUICK_LEN) as u64;
        let first = AtomicPtr::new(quick.as_ptr().cast_mut());
        let engine = AtomicPtr::new(core::ptr::null_mut());
        let raw = Raw { engine, quick: first, quick_mask, entries: slots.entry(0) };
        let (closed, bound) = (AtomicU32::new(0), AtomicU32::new(0));
        let whole = quick.len() == none.len() && quick.len().is_power_of_two();
        // SAFETY: the caller's.
        let words = unsafe { Words::new(slots) };
        let spared = [AtomicU64::new(0), AtomicU64::new(0)];
        let made = Self { raw, closed, bound, spared, slots, words, hints, quick, none };
        (slots.count <= MOST && lines && whole).then_some(made)
    }
    /// Lends no more; what is lent stays so. Or lends again.
    pub fn close(&self, closed: bool) {
        self.closed.store(closed.into(), Release);
        let quick = if closed { self.none } else { self.quick };
        self.raw.quick.store(quick.as_ptr().cast_mut(), Release);
    }
    /// Calls that return to one of these addresses have no slot from now on: they are missed. Before the first is lent.
    pub fn spare(&self, addresses: core::ops::Range<u64>) {
        self.spared[0].store(addresses.start, Relaxed);
        self.spared[1].store(addresses.end - addresses.start, Relaxed);
    }
    /// Whether none is lent now.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Acquire) != 0
    }
    /// How many are lent to calls now.
    #[must_use]
    pub fn lent(&self) -> u32 {
        let is_lent = |&number: &u32| {
            self.words.byte(number).load(Relaxed) != 0 && self.words.word(number, at::WHAT).load(Relaxed) != 0
        };
        (0..self.slots.count).filter(is_lent).count() as u32
    }
    /// Where they are.
    #[must_use]
    pub const fn slots(&self) -> Slots {
        self.slots
    }
    /// Where a call really returns to whose stack word holds this address; `None` if that is no slot's. What an unwinder asks that cannot be told: of calls that
    /// go on, by their own thread or while that stands.
    #[must_use]
    pub fn real(&self, address: u64) -> Option<u64> {
        let under = |&address: &u64| {
            self.slots.slot_of(address).map(|number| self.words.word(number, at::REAL).load(Acquire))
        };
        let first = under(&address)?;
        // Through as many as there are; the last that is no slot's.
        core::iter::successors(Some(first), under).take(CHAIN as usize + 1).last()
    }
    /// The quick hint of a call.
    fn quick(&self, word: u64, real: u64) -> &AtomicU32 {
        let sum = (word << QUICK_UP).wrapping_add(real).wrapping_mul(QUICK_SPREAD);
        let at = (sum >> QUICK_SHIFT & self.raw.quick_mask) as usize / QUICK_LEN;
        // SAFETY: the mask is the hints' bytes but for a last word's, so this is at most the last hint (`new`).
        unsafe { self.quick.get_unchecked(at) }
    }
    /// The hints that a call's may be among. Different return addresses at one stack word have different lines.
    #[inline]
    fn hints(&self, word: u64, real: u64) -> &'static [Hint] {
        self.hints.line(word, real)
    }
    /// The stack pointer at the entry of a call whose instance has this key; 0 if that is over.
    pub(crate) fn frame(&self, key: u64) -> u64 {
        self.slots.slot_of(key).map_or(key, |number| self.words.word(number, at::WORD).load(Acquire))
    }
    /// A1 to A4, but for the instance. Of a call that has just begun in this thread: the address of its stack word, and its return address.
    ///
    /// # Safety
    /// It is so.
    #[inline]
    pub(crate) unsafe fn take(
        &'static self,
        (word, real): (u64, u64),
        home: u32,
        probe: &Probe,
    ) -> Option<Taken> {
        if self.closed.load(Relaxed) != 0 {
            return None;
        }
        if real.wrapping_sub(self.spared[0].load(Relaxed)) < self.spared[1].load(Relaxed) {
            return None;
        }
        let under = match self.slots.slot_of(real) {
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
                // SAFETY: 0, or a probe that stays (`new`).
                (number, unsafe { self.whose(number) }.map(|left| (left, is_alone)))
            }
            None => {
                let number = self.free(home)?;
                let enters = self.slots.address(number) - slots::RETURN + slots::ENTER;
                self.words.word(number, at::INTO).store(enters, Relaxed);
                self.words.word(number, at::REAL).store(real, Relaxed);
                self.words.word(number, at::UNDER).store(under, Relaxed);
                self.words.word(number, at::BOUND).store(0, Relaxed);
                self.words.word(number, at::WORD).store(word, Release);
                // A free place, or that of another.
                let free = hints.iter().find(|hint| hint.is_clear());
                free.or_else(|| hints.iter().find(|hint| !self.is_bound(hint)))
                    .into_iter()
                    .for_each(|hint| hint.number(word, number));
                (number, None)
            }
        };
        // The way on tells the site: neither stays.
        self.words.word(number, at::SITE).store(0, Relaxed);
        self.words.word(number, at::GO).store(0, Relaxed);
        self.words.word(number, at::WHAT).store(core::ptr::from_ref(probe) as u64, Relaxed);
        Some(Taken { table: self, number, real, left })
    }
    /// A2.
    #[inline]
    fn its(&self, hints: &[Hint], word: u64, real: u64) -> Option<u32> {
        let is_its = |number: &u32| {
            *number < self.slots.count
                && self.words.word(*number, at::WORD).load(Acquire) == word
                && self.words.word(*number, at::REAL).load(Relaxed) == real
        };
        let said = hints.iter().filter_map(|hint| match hint.says(word) {
            Said::Number(number) => Some(number),
            Said::Nobody | Said::Nothing => None,
        });
        { said }.find(is_its)
    }
    /// A3: a byte that was 0.
    #[inline]
    fn free(&self, home: u32) -> Option<u32> {
        let first = self.words.first(home);
        let from = first.load(Relaxed);
        let is_free = |&number: &u32| {
            let byte = self.words.byte(number);
            number != 0 && byte.load(Relaxed) == 0 && byte.swap(LENT, AcqRel) == 0
        };
        let all = (0..self.slots.count).map(|n| from.wrapping_add(n) & (self.slots.count - 1));
        let number = { all }.find(is_free)?;
        first.store(number, Relaxed);
        Some(number)
    }
    /// # Safety
    /// The slot is lent (`new`).
    unsafe fn whose(&self, number: u32) -> Option<&'static Probe> {
        // SAFETY: the caller's.
        unsafe { (self.words.word(number, at::WHAT).load(Relaxed) as *const Probe).as_ref() }
    }
    /// B2. `None`: no slot has that number.
    ///
    /// # Safety
    /// This thread has come to that slot's code.
    pub(crate) unsafe fn landed(&self, number: u32) -> Option<Landed> {
        if number >= self.slots.count {
            return None;
        }
        let is_lent = self.words.byte(number).load(Acquire) != 0;
        // SAFETY: it is lent.
        let probe = unsafe { if is_lent { self.whose(number) } else { None } };
        let real = self.words.word(number, at::REAL).load(Relaxed);
        let site = self.words.word(number, at::SITE).load(Relaxed);
        Some(Landed {
            real,
            probe,
            key: self.slots.address(number),
            site: (site != 0).then_some(site),
            number,
        })
    }
    /// B3. By who landed, once its instance is ended.
    pub(crate) fn come_home(&self, landed: &Landed) {
        if landed.probe.is_some() {
            self.give_back(landed.number);
        }
    }
    /// B3.
    fn give_back(&self, number: u32) {
        let (word, bound) = (self.words.word(number, at::WORD), self.words.word(number, at::BOUND));
        let (at, real) = (word.load(Relaxed), self.words.word(number, at::REAL).load(Relaxed));
        if bound.load(Relaxed) != 0 || self.may_bind(number, self.hints(at, real), at) {
            bound.store(1, Relaxed);
            if self.words.word(number, at::UNDER).load(Relaxed) == 0 {
                self.quick(at, real).store(number * slots::ENTRY as u32, Relaxed);
            }
            self.words.word(number, at::WHAT).store(0, Relaxed);
            return;
        }
        let its = self.hints(at, real).iter().find(|hint| hint.says(at) == Said::Number(number));
        its.into_iter().for_each(Hint::clear);
        word.store(0, Relaxed);
        self.words.word(number, at::WHAT).store(0, Relaxed);
        self.words.frees(number);
    }
    /// Whether the slot that came home may stay with its stack word: it can be found, and others keep room.
    fn may_bind(&self, number: u32, hints: &[Hint], word: u64) -> bool {
        let is_hinted = hints.iter().any(|hint| hint.says(word) == Said::Number(number));
        let bound = hints.iter().filter(|hint| self.is_bound(hint)).count();
        let most = self.slots.count / 2;
        is_hinted
            && bound + UNBOUND < hints.len()
            && self.bound.load(Relaxed) < most
            && self.bound.fetch_add(1, Relaxed) < most
    }
    /// Whether a hint names a bound slot.
    fn is_bound(&self, hint: &Hint) -> bool {
        hint.named().is_some_and(|number| {
            number < self.slots.count && self.words.word(number, at::BOUND).load(Relaxed) != 0
        })
    }
}

impl Taken {
    /// The key of the call's instance.
    pub(crate) const fn key(&self) -> u64 {
        self.table.slots.address(self.number)
    }
    /// A6: what the stack word is to hold. `None`: it `holds` another address by now.
    pub(crate) const fn arm(&self, holds: u64) -> Option<u64> {
        if holds == self.real { Some(self.key()) } else { None }
    }
    /// The call is not waited for after all; its instance is ended.
    pub(crate) fn cancel(self) {
        self.table.give_back(self.number);
    }
}
