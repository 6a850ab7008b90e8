//! Who is called at a hit.
//!
//! In: handlers, as C functions with a pointer of their own. Out: what they said. Semantics are those of the kernel's uprobe consumers
//! (`include/linux/uprobes.h`), as far as a single process has them.
//! Does not: own what `data` points to. Whoever registers keeps it until unregistering has returned (EPO-1).
//!
//! # A consumer's contract
//!
//! It runs in the thread that hit, wherever that is: it must be async-signal-safe, must not unwind, must not block for long
//! (writers wait for it), must not switch stacks and come back. It may leave by `longjmp` or end its thread; it then holds
//! nothing. What it hits itself runs unprobed and counts as missed (nested).

use core::ffi::c_void;

use crate::native::Regs;

/// One hit, as a handler sees it. Grows at the end.
#[repr(C)]
#[derive(Debug)]
pub struct Hit {
    /// The machine's state, at the site or at the function's exit. What a handler changes is what the thread goes on with.
    pub regs: *mut Regs,
    /// The address that was hit; for a return handler, that of the entry.
    pub site: u64,
    /// This consumer's, for this call: what the entry handler leaves here, the return handler finds.
    pub cookie: u64,
}

/// What a handler says. Values that are none of these count as [`Verdict::CONTINUE`].
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verdict(pub u32);

impl Verdict {
    /// Go on.
    pub const CONTINUE: Self = Self(0);
    /// The probe is no longer needed here. Takes effect when every consumer of the probe says so at one hit.
    pub const REMOVE: Self = Self(1);
    /// Do not call this consumer's return handler for this call.
    pub const IGNORE_RETURN: Self = Self(2);
}

/// Called with the consumer's `data`. A return handler's verdict is not looked at.
pub type Handler = unsafe extern "C" fn(data: *mut c_void, hit: *mut Hit) -> Verdict;
/// Says whether the consumer wants this hit.
pub type Filter = unsafe extern "C" fn(data: *mut c_void, hit: *const Hit) -> bool;

/// What a consumer declares; bits.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(pub u32);

impl Flags {
    /// It and all that it calls use general registers only: no vector state is saved around it.
    pub const GENERAL_REGS_ONLY: Self = Self(1);
    /// It may change the instruction pointer.
    pub const MOVES_IP: Self = Self(2);
    /// It may change the stack pointer.
    pub const MOVES_SP: Self = Self(4);
    /// Both sets.
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

/// Handlers and what they are called with. With an entry handler and a return handler it is a *session*: the return handler is called
/// for exactly the calls whose entry handler ran and did not decline.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Consumer {
    /// Called at the site.
    pub entry: Option<Handler>,
    /// Called when the function returns.
    pub ret: Option<Handler>,
    /// Asked first, at every hit; without one, every hit is wanted.
    pub filter: Option<Filter>,
    /// Handed to all of them.
    pub data: *mut c_void,
    /// What it declares.
    pub flags: Flags,
}

// SAFETY: a consumer is called in whatever thread hits; that `data` may be used there is what registering it asserts.
unsafe impl Send for Consumer {}
// SAFETY: as above; nothing is changed through a shared `Consumer`.
unsafe impl Sync for Consumer {}

impl Consumer {
    /// Both handlers.
    #[must_use]
    pub const fn is_session(&self) -> bool {
        self.entry.is_some() && self.ret.is_some()
    }
    /// Whether it wants this hit.
    ///
    /// # Safety
    /// `hit.regs` points to the thread's registers; the consumer is still registered, or its grace has not ended.
    pub(crate) unsafe fn wants(&self, hit: &Hit) -> bool {
        // SAFETY: the caller's; filters accept any hit.
        self.filter.is_none_or(|filter| unsafe { filter(self.data, hit) })
    }
}

/// A consumer's number: given once in a process, never again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConsumerId(pub u64);

/// A consumer in a probe's list.
#[derive(Clone, Copy, Debug)]
pub struct Installed {
    /// Its number.
    pub id: ConsumerId,
    /// What it does.
    pub consumer: Consumer,
}
