//! Calls in flight whose return somebody waits for: (probe, stack pointer at entry) → the cookies of that call.
//!
//! In: at an entry, who wants to know of the return. Out: at the exit with the same stack pointer, the same. Invariants: CAL-1 a call's
//! record is found by its own exit only; CAL-2 what could not be kept is said ([`Calls::keep`] fails).
//! Does not: hold pointers to consumers (numbers only, so a record outlives them safely), or notice calls that never return: their
//! record goes when a call with the same key comes.
//!
//! # Steps
//!
//! A call's key is its probe and stack pointer: the stack is the thread's, so no two threads use one key at a time. `keep`: K1 look at
//! all places of the key for a record of the same key (an earlier call that never returned: it is replaced); K2 else claim a free
//! place by compare-and-swap of the stack pointer; K3 write the rest. `take`: T1 find it; T2 copy; T3 free the place (release).
//! - *two threads claim one place*: one wins, the other looks on. *A signal between K2 and K3*: its calls have other stack pointers.
//!   *T1 beside another thread's K2, K3*: other stack pointer, so other key. *T3, then another thread's K2*: release and acquire
//!   order T2's reads before K3's writes. *A stack that goes on in another thread*: whatever handed it over orders K3 before T1.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::consumer::ConsumerId;

/// Sessions of one call that are told of its return.
pub const SESSIONS: usize = 6;

/// Who waits for a call's return.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Kept {
    /// The address that was hit at entry.
    pub site: u64,
    sessions: [(u64, u64); SESSIONS],
    len: usize,
}

impl Kept {
    /// Nobody yet.
    #[must_use]
    pub fn new(site: u64) -> Self {
        Self { site, ..Self::default() }
    }
    /// Another session, and its cookie. False if there are too many.
    #[must_use]
    pub fn push(&mut self, id: ConsumerId, cookie: u64) -> bool {
        let Some(place) = self.sessions.get_mut(self.len) else { return false };
        *place = (id.0, cookie);
        self.len += 1;
        true
    }
    /// A session's cookie, if its entry handler ran in this call and did not decline.
    #[must_use]
    pub fn cookie(&self, id: ConsumerId) -> Option<u64> {
        self.sessions.iter().take(self.len).find(|one| one.0 == id.0).map(|one| one.1)
    }
}

/// Room for one call's record.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct Call {
    /// Stack pointer at entry; 0 is free.
    sp: AtomicU64,
    probe: AtomicU64,
    site: AtomicU64,
    len: AtomicU64,
    sessions: [[AtomicU64; 2]; SESSIONS],
}

impl Call {
    fn is(&self, probe: u64, sp: u64) -> bool {
        self.sp.load(Acquire) == sp && self.probe.load(Relaxed) == probe
    }
    fn write(&self, probe: u64, kept: &Kept) {
        self.probe.store(probe, Relaxed);
        self.site.store(kept.site, Relaxed);
        self.len.store(kept.len as u64, Relaxed);
        for ([id, cookie], kept) in self.sessions.iter().zip(&kept.sessions).take(kept.len) {
            id.store(kept.0, Relaxed);
            cookie.store(kept.1, Relaxed);
        }
    }
    fn read(&self) -> Kept {
        let mut kept = Kept::new(self.site.load(Relaxed));
        kept.len = (self.len.load(Relaxed) as usize).min(SESSIONS);
        for ([id, cookie], kept) in self.sessions.iter().zip(&mut kept.sessions).take(kept.len) {
            *kept = (id.load(Relaxed), cookie.load(Relaxed));
        }
        kept
    }
}

/// All records of a process.
#[derive(Clone, Copy, Debug)]
pub struct Calls {
    calls: &'static [Call],
}

/// Places of one key.
const PLACES: usize = 8;

impl Calls {
    /// Over zeroed memory.
    #[must_use]
    pub const fn new(calls: &'static [Call]) -> Self {
        Self { calls }
    }
    fn places(&self, probe: u64, sp: u64) -> impl Iterator<Item = &'static Call> {
        let mixed = (sp ^ probe.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let (calls, n) = (self.calls, self.calls.len());
        (0..PLACES.min(n)).filter_map(move |step| calls.get((mixed as usize + step) % n))
    }
    /// Keeps a call's record. False: there was no place.
    #[must_use]
    pub fn keep(&self, probe: u64, sp: u64, kept: &Kept) -> bool {
        let same = self.places(probe, sp).find(|call| call.is(probe, sp));
        let claim = |call: &&Call| {
            call.sp.load(Relaxed) == 0 && call.sp.compare_exchange(0, sp, AcqRel, Relaxed).is_ok()
        };
        let place = same.or_else(|| self.places(probe, sp).find(claim));
        place.inspect(|call| call.write(probe, kept)).is_some()
    }
    /// Takes a call's record, if there is one.
    #[must_use]
    pub fn take(&self, probe: u64, sp: u64) -> Option<Kept> {
        let call = self.places(probe, sp).find(|call| call.is(probe, sp))?;
        let kept = call.read();
        call.sp.store(0, Release);
        Some(kept)
    }
}
