//! What is kept of one call between its entry and its exit. [`instances`](super) describes the protocol.
//!
//! In: the address that was hit, sessions with their cookies. Out: the same.
//! Does not: know its pool.

use crate::consumer::ConsumerId;
use crate::sync::{AcqRel, Acquire, AtomicU64, Relaxed, Release};

/// Maximum number of return handlers that are called for one call (one for each session): as many as fit into
/// two cache lines.
pub const SESSIONS: usize = 5;

/// What the exit finds of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KeptCall {
    /// The address that was hit at entry.
    pub site: u64,
    sessions: [(u64, u64); SESSIONS],
    len: usize,
}

impl KeptCall {
    /// What is kept of a call without sessions.
    #[must_use]
    pub fn of(site: u64) -> Self {
        Self { site, ..Self::default() }
    }
    /// A session's cookie, if its entry handler ran in this call and did not decline.
    #[must_use]
    pub fn cookie(&self, id: ConsumerId) -> Option<u64> {
        self.sessions.iter().take(self.len).find(|one| one.0 == id.0).map(|one| one.1)
    }
}

/// A return instance: an object of a pool. All zero is a free one.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct Instance {
    /// Stack pointer at the entry; 0: no call has the instance.
    pub(crate) sp: AtomicU64,
    pub(crate) site: AtomicU64,
    /// Thread pointer at the entry.
    pub(crate) thread: AtomicU64,
    /// Number of calls that had the instance and are counted nowhere else.
    pub(crate) calls: AtomicU64,
    pub(crate) len: AtomicU64,
    pub(crate) sessions: [[AtomicU64; 2]; SESSIONS],
}

const _: () = assert!(size_of::<Instance>() == 128);

impl Instance {
    /// The key of the call that has the instance, or 0.
    #[must_use]
    pub fn sp(&self) -> u64 {
        self.sp.load(Acquire)
    }
    pub(crate) fn thread(&self) -> u64 {
        self.thread.load(Relaxed)
    }
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }
    /// A4; only the call that holds the instance may do it.
    pub fn begin(&self, sp: u64, site: u64, thread: u64) {
        self.site.store(site, Relaxed);
        self.thread.store(thread, Relaxed);
        self.len.store(0, Relaxed);
        self.sp.store(sp, Release);
    }
    /// Adds a session and its cookie; only the call that holds the instance may do it. False if there are too
    /// many.
    #[must_use]
    pub fn push(&self, id: ConsumerId, cookie: u64) -> bool {
        let len = self.len.load(Relaxed);
        let Some([id_word, cookie_word]) = self.sessions.get(len as usize) else { return false };
        id_word.store(id.0, Relaxed);
        cookie_word.store(cookie, Relaxed);
        self.len.store(len + 1, Relaxed);
        true
    }
    /// B2; only the call that holds the instance may do it.
    #[must_use]
    pub fn kept(&self) -> KeptCall {
        let len = (self.len.load(Relaxed) as usize).min(SESSIONS);
        let mut kept = KeptCall { site: self.site.load(Relaxed), len, ..KeptCall::default() };
        for ([id, cookie], kept) in self.sessions.iter().zip(&mut kept.sessions).take(len) {
            *kept = (id.load(Relaxed), cookie.load(Relaxed));
        }
        kept
    }
    /// B3; only the call that holds the instance may do it.
    pub fn end(&self) {
        self.sp.store(0, Release);
    }
    /// Takes the instance from a call that is over. False if another thread did so first.
    #[must_use]
    pub fn claim(&self, sp: u64) -> bool {
        self.sp.compare_exchange(sp, 0, AcqRel, Relaxed).is_ok()
    }
    /// A1, A3: takes the instance from the call that has it, if `is_over` proves that this call is over. It
    /// is taken only if the key is still the one that was passed to `is_over`, whatever happened in between.
    #[inline]
    #[must_use]
    pub fn claim_if(&self, is_over: impl FnOnce(u64) -> bool) -> bool {
        let sp = self.sp();
        sp != 0 && is_over(sp) && self.claim(sp)
    }
    /// A twin of `claim` that must fail: a look, then a store.
    #[cfg(all(test, loom))]
    pub(crate) fn claim_in_two_steps(&self, sp: u64) -> bool {
        let is_its = self.sp.load(Acquire) == sp;
        if is_its {
            self.sp.store(0, Release);
        }
        is_its
    }
}
