//! Consumers as closures.
//!
//! In: closures. Out: what the engine calls: C functions and a pointer to the closures, which stay where they are until the consumer
//! is unregistered and nobody runs it any more. Does not: register.
#![allow(
    unsafe_code,
    reason = "the engine calls through C functions with a pointer; it is made and read here only"
)]

use std::ffi::c_void;
use std::fmt;

use trapline_insn::x86_64::Regs;
use trapline_runtime::consumer::{self as engine, Flags};

/// What a handler says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Verdict {
    /// Go on.
    #[default]
    Continue,
    /// The probe is no longer needed. It is taken out when every consumer has said so at one hit: at the next call of
    /// [`rescan`](super::rescan), [`register`](super::register) or an unregistration.
    Remove,
    /// Do not call this consumer's return handler for this call.
    IgnoreReturn,
}

impl From<Verdict> for engine::Verdict {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Continue => Self::CONTINUE,
            Verdict::Remove => Self::REMOVE,
            Verdict::IgnoreReturn => Self::IGNORE_RETURN,
        }
    }
}

/// One hit, as a handler sees it.
#[derive(Debug)]
pub struct Hit<'a>(&'a mut engine::Hit);

impl Hit<'_> {
    /// The machine's registers at the site; for a return handler, at the return instruction, with the value in rax.
    #[must_use]
    pub fn regs(&self) -> &Regs {
        // SAFETY: the engine gives registers that live as long as the call, and nobody else has them.
        unsafe { &*self.0.regs }
    }
    /// The same, to be changed: the thread goes on with what is left here. If the instruction pointer is changed, the original
    /// instruction does not run; that, and another stack pointer, must have been declared
    /// ([`Consumer::moves_ip`], [`Consumer::moves_sp`]).
    ///
    /// # Safety
    /// The program goes on with these registers: they must be such that it may.
    #[must_use]
    pub unsafe fn regs_mut(&mut self) -> &mut Regs {
        // SAFETY: as in `regs`; the borrow is exclusive.
        unsafe { &mut *self.0.regs }
    }
    /// The address that was hit; for a return handler, that of the entry.
    #[must_use]
    pub const fn site(&self) -> u64 {
        self.0.site
    }
    /// What this consumer's entry handler left for this call.
    #[must_use]
    pub const fn cookie(&self) -> u64 {
        self.0.cookie
    }
    /// Leaves a word for this consumer's return handler of this call.
    pub const fn set_cookie(&mut self, cookie: u64) {
        self.0.cookie = cookie;
    }
}

type Entry = Box<dyn Fn(&mut Hit<'_>) -> Verdict + Send + Sync>;
type Return = Box<dyn Fn(&mut Hit<'_>) + Send + Sync>;
type Filter = Box<dyn Fn(&Hit<'_>) -> bool + Send + Sync>;

/// What is called at a hit.
///
/// # What a handler may do
///
/// It runs in whichever thread hits, in the middle of whatever that does: like a signal handler it must be async-signal-safe (no
/// allocation, no lock that the interrupted code may hold, no panic: one ends the process). It must not register or
/// unregister, must not block for long, and must not switch to another stack and come back. Atomics, and memory made
/// beforehand, are what it works with. What it hits itself is not probed, and counted as missed. It may leave by `longjmp` or end
/// its thread: it holds nothing then.
///
/// It runs with the thread's own floating-point control words.
#[derive(Default)]
pub struct Consumer {
    entry: Option<Entry>,
    returns: Option<Return>,
    filter: Option<Filter>,
    flags: Flags,
}

impl Consumer {
    /// Calls `handler` when the instruction is about to run; at a function's offset: at its entries.
    #[must_use]
    pub fn entry(handler: impl Fn(&mut Hit<'_>) -> Verdict + Send + Sync + 'static) -> Self {
        Self { entry: Some(Box::new(handler)), ..Self::default() }
    }
    /// Calls `handler` when the function returns.
    #[must_use]
    pub fn returns(handler: impl Fn(&mut Hit<'_>) + Send + Sync + 'static) -> Self {
        Self { returns: Some(Box::new(handler)), ..Self::default() }
    }
    /// Both: `returns` is called for exactly those calls whose entry was, unless that declined, and finds the cookie that it left.
    #[must_use]
    pub fn session(
        entry: impl Fn(&mut Hit<'_>) -> Verdict + Send + Sync + 'static,
        returns: impl Fn(&mut Hit<'_>) + Send + Sync + 'static,
    ) -> Self {
        Self { entry: Some(Box::new(entry)), returns: Some(Box::new(returns)), ..Self::default() }
    }
    /// Asks `filter` first, at every hit.
    #[must_use]
    pub fn filter(mut self, filter: impl Fn(&Hit<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.filter = Some(Box::new(filter));
        self
    }
    /// It may change the instruction pointer. That is honoured at function entries and single instructions.
    #[must_use]
    pub fn moves_ip(mut self) -> Self {
        self.flags = self.flags.with(Flags::MOVES_IP);
        self
    }
    /// It may change the stack pointer; honoured where the instruction pointer's change is.
    #[must_use]
    pub fn moves_sp(mut self) -> Self {
        self.flags = self.flags.with(Flags::MOVES_SP);
        self
    }
    /// Does not save vector and x87 registers around this consumer, which makes a hit some ten times as fast.
    ///
    /// # Safety
    /// The handlers, and all that they call, use general registers only, as compiled; in practice that takes handlers in
    /// assembly or from a compiler told so (`-mgeneral-regs-only`), or a look at the machine code.
    #[must_use]
    pub unsafe fn general_regs_only(mut self) -> Self {
        self.flags = self.flags.with(Flags::GENERAL_REGS_ONLY);
        self
    }
    pub(super) const fn has_handler(&self) -> bool {
        self.entry.is_some() || self.returns.is_some()
    }
    pub(super) const fn has_return(&self) -> bool {
        self.returns.is_some()
    }
    pub(super) const fn saves_state(&self) -> bool {
        !self.flags.has(Flags::GENERAL_REGS_ONLY)
    }
    /// What the engine calls, for as long as this stays where it is.
    pub(super) fn as_engine(&self) -> engine::Consumer {
        engine::Consumer {
            entry: self.entry.is_some().then_some(on_entry as engine::Handler),
            ret: self.returns.is_some().then_some(on_return as engine::Handler),
            filter: self.filter.is_some().then_some(on_filter as engine::Filter),
            data: std::ptr::from_ref::<Self>(self).cast_mut().cast(),
            flags: self.flags,
        }
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("entry", &self.entry.is_some())
            .field("returns", &self.returns.is_some())
            .field("filter", &self.filter.is_some())
            .field("flags", &self.flags)
            .finish()
    }
}

unsafe extern "C" fn on_entry(data: *mut c_void, hit: *mut engine::Hit) -> engine::Verdict {
    // SAFETY: `data` is the consumer that `as_engine` was asked of, which is kept until nobody runs it; `hit` is this call's.
    let (consumer, hit) = unsafe { (&*data.cast::<Consumer>(), &mut *hit) };
    consumer.entry.as_ref().map_or(Verdict::Continue, |handler| handler(&mut Hit(hit))).into()
}

unsafe extern "C" fn on_return(data: *mut c_void, hit: *mut engine::Hit) -> engine::Verdict {
    // SAFETY: as in `on_entry`.
    let (consumer, hit) = unsafe { (&*data.cast::<Consumer>(), &mut *hit) };
    if let Some(handler) = &consumer.returns {
        handler(&mut Hit(hit));
    }
    engine::Verdict::CONTINUE
}

unsafe extern "C" fn on_filter(data: *mut c_void, hit: *const engine::Hit) -> bool {
    // SAFETY: as in `on_entry`; the filter gets a shared `Hit`, from which nothing can be changed.
    let (consumer, hit) = unsafe { (&*data.cast::<Consumer>(), &mut *hit.cast_mut()) };
    consumer.filter.as_ref().is_none_or(|filter| filter(&Hit(hit)))
}
