//! What is called at a hit.
//!
//! In: handlers, as C functions with a data pointer each. Out: their verdicts. The semantics are those of the
//! kernel's uprobe consumers (`include/linux/uprobes.h`), as far as they apply to a single process.
//! Does not: own what `data` points to. The caller that registers a consumer keeps it until unregistering has
//! returned (EPO-1).
//!
//! # A consumer's contract
//!
//! It runs in the thread that hit, at whatever point that thread is. So it must be async-signal-safe, must
//! not unwind, must not block for long (writers wait for it), and must not switch stacks and come back. It
//! may leave by `longjmp` or end its thread; it then holds nothing. Hits inside it run unprobed and count as
//! missed (nested).

use core::ffi::c_void;

use crate::native::Regs;

/// One hit, as a handler sees it. Grows at the end.
#[repr(C)]
#[derive(Debug)]
pub struct Hit {
    /// The thread's registers, at the site or at the function's exit. The thread goes on with them as the
    /// handler leaves them.
    pub regs: *mut Regs,
    /// The address that was hit; for a return handler, that of the entry.
    pub site: u64,
    /// A word of this consumer for this call: the return handler finds what the entry handler left here.
    pub cookie: u64,
}

/// What a handler returns. Other values count as [`Verdict::CONTINUE`].
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verdict(pub u32);

impl Verdict {
    /// Go on.
    pub const CONTINUE: Self = Self(0);
    /// The probe is no longer needed here. Takes effect if every consumer of the probe returns it at one hit.
    pub const REMOVE: Self = Self(1);
    /// Do not call this consumer's return handler for this call.
    pub const IGNORE_RETURN: Self = Self(2);
}

/// Called with the consumer's `data`. A return handler's verdict is ignored.
pub type Handler = unsafe extern "C" fn(data: *mut c_void, hit: *mut Hit) -> Verdict;
/// Decides whether the consumer is called at this hit.
pub type Filter = unsafe extern "C" fn(data: *mut c_void, hit: *const Hit) -> bool;

/// What a consumer declares; bits.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(pub u32);

impl Flags {
    /// It and all that it calls use general registers only, so no vector state is saved around it.
    pub const GENERAL_REGS_ONLY: Self = Self(1);
    /// It may change the instruction pointer.
    pub const MOVES_IP: Self = Self(2);
    /// It may change the stack pointer.
    pub const MOVES_SP: Self = Self(4);
    /// All flags of either set.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    /// Whether all of `other` are set.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Handlers and their data pointer. A consumer with an entry handler and a return handler is a *session*: the
/// return handler is called for exactly those calls in which the entry handler ran and did not decline.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Consumer {
    /// Called at the site.
    pub entry: Option<Handler>,
    /// Called when the function returns.
    pub ret: Option<Handler>,
    /// Called first, at every hit. Without a filter, every hit is accepted.
    pub filter: Option<Filter>,
    /// First argument of all three functions.
    pub data: *mut c_void,
    /// What it declares.
    pub flags: Flags,
}

// SAFETY: a consumer is called in any thread that hits. Registering it asserts that `data` may be used there.
unsafe impl Send for Consumer {}
// SAFETY: as above; nothing is changed through a shared `Consumer`.
unsafe impl Sync for Consumer {}

impl Consumer {
    /// Whether it has both handlers.
    #[must_use]
    pub const fn is_session(&self) -> bool {
        self.entry.is_some() && self.ret.is_some()
    }
    /// Whether its filter accepts this hit.
    ///
    /// # Safety
    /// `hit.regs` points to the thread's registers. The consumer is registered, or its grace period has not
    /// ended.
    pub(crate) unsafe fn wants(&self, hit: &Hit) -> bool {
        // SAFETY: the caller promises both; filters accept any hit as argument.
        self.filter.is_none_or(|filter| unsafe { filter(self.data, hit) })
    }
}

/// A consumer's number. It is used once in a process, never again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConsumerId(pub u64);

/// A consumer in a probe's list.
#[derive(Clone, Copy, Debug)]
pub struct Installed {
    /// Its number.
    pub id: ConsumerId,
    /// Its handlers, data pointer and flags.
    pub consumer: Consumer,
}
