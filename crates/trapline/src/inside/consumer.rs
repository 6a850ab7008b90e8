//! Consumers as closures.
//!
//! In: closures. Out: what the engine calls: C functions, and a pointer to the closures. These stay where
//! they are until the consumer is unregistered and no thread runs it any more. Does not: register.
#![allow(
    unsafe_code,
    reason = "the engine calls through C functions with a pointer; it is made and read here only"
)]

use std::ffi::c_void;
use std::fmt;

use trapline_runtime::consumer::{self as engine, Flags};

use super::Regs;
use crate::Returns;

/// Answer of a handler.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Verdict {
    /// Go on.
    #[default]
    Continue,
    /// The probe is no longer needed. Once every consumer has answered so at one hit, it is taken out at the
    /// next call of [`rescan`](super::rescan), [`register`](super::register) or an unregistration.
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
    /// Registers of the thread at the site. For a return handler they are those at the return instruction,
    /// with the value in rax.
    #[must_use]
    pub fn regs(&self) -> &Regs {
        // SAFETY: the engine gives registers that live as long as the call, and nothing else refers to them.
        unsafe { &*self.0.regs }
    }
    /// The same registers, to be changed: the thread goes on with the values left here. If the instruction
    /// pointer is changed, the original instruction does not run. Changes of the instruction or stack pointer
    /// must have been declared ([`Consumer::moves_ip`], [`Consumer::moves_sp`]).
    ///
    /// # Safety
    /// The program goes on with these registers, so they must be valid for it.
    #[must_use]
    pub unsafe fn regs_mut(&mut self) -> &mut Regs {
        // SAFETY: as in `regs`; the borrow is exclusive.
        unsafe { &mut *self.0.regs }
    }
    /// Address of the site that was hit; for a return handler, that of the entry.
    #[must_use]
    pub const fn site(&self) -> u64 {
        self.0.site
    }
    /// Word that this consumer's entry handler left for this call.
    #[must_use]
    pub const fn cookie(&self) -> u64 {
        self.0.cookie
    }
    /// Leaves a word for this consumer's return handler of the same call.
    pub const fn set_cookie(&mut self, cookie: u64) {
        self.0.cookie = cookie;
    }
}

type Entry = Box<dyn Fn(&mut Hit<'_>) -> Verdict + Send + Sync>;
type Return = Box<dyn Fn(&mut Hit<'_>) + Send + Sync>;
type Filter = Box<dyn Fn(&Hit<'_>) -> bool + Send + Sync>;

/// Handlers as C functions, which the engine calls directly.
#[derive(Clone, Copy, Debug)]
pub struct Functions {
    /// Called when the instruction is about to run.
    pub entry: Option<engine::Handler>,
    /// Called when the function returns.
    pub returns: Option<engine::Handler>,
    /// Called first, at every hit: whether the handlers want it.
    pub filter: Option<engine::Filter>,
    /// Handed to all of them.
    pub data: *mut c_void,
}

/// The handlers of a probe.
///
/// # What a handler may do
///
/// It runs in whichever thread hits, in the middle of whatever that does. Like a signal handler it must be
/// async-signal-safe: no allocation, no lock that the interrupted code may hold, no panic (one ends the
/// process). It must not register or unregister, must not block for long, and must not switch to another
/// stack and come back. It can use atomics, and memory that was allocated beforehand. Sites that it hits
/// itself are not probed, and count as missed. It may leave by `longjmp` or end its thread: it holds nothing
/// then.
///
/// It runs with the thread's own floating-point control words.
#[derive(Default)]
pub struct Consumer {
    entry: Option<Entry>,
    returns: Option<Return>,
    filter: Option<Filter>,
    /// C functions in place of closures.
    functions: Option<engine::Consumer>,
    flags: Flags,
    maxactive: Option<u32>,
    form: Option<Returns>,
}

impl Consumer {
    /// Calls C functions. [`Self::filter`] has no effect then: they bring their own.
    ///
    /// # Safety
    /// The functions keep to what a handler may do, and never unwind. Any thread may call them with `data`
    /// and a hit, until unregistering has returned. What they leave in the registers is valid for the program
    /// to go on with.
    #[must_use]
    pub unsafe fn functions(functions: Functions) -> Self {
        let Functions { entry, returns, filter, data } = functions;
        let functions = engine::Consumer { entry, ret: returns, filter, data, flags: Flags::default() };
        Self { functions: Some(functions), ..Self::default() }
    }
    /// Calls `handler` when the instruction is about to run; at a function's offset, at its entries.
    #[must_use]
    pub fn entry(handler: impl Fn(&mut Hit<'_>) -> Verdict + Send + Sync + 'static) -> Self {
        Self { entry: Some(Box::new(handler)), ..Self::default() }
    }
    /// Calls `handler` when the function returns.
    #[must_use]
    pub fn returns(handler: impl Fn(&mut Hit<'_>) + Send + Sync + 'static) -> Self {
        Self { returns: Some(Box::new(handler)), ..Self::default() }
    }
    /// Both: `returns` is called for exactly those calls for which the entry handler was called and did not
    /// decline. It finds the cookie that the entry handler left.
    #[must_use]
    pub fn session(
        entry: impl Fn(&mut Hit<'_>) -> Verdict + Send + Sync + 'static,
        returns: impl Fn(&mut Hit<'_>) + Send + Sync + 'static,
    ) -> Self {
        Self { entry: Some(Box::new(entry)), returns: Some(Box::new(returns)), ..Self::default() }
    }
    /// Calls `filter` first, at every hit; handlers are called only if it agrees.
    #[must_use]
    pub fn filter(mut self, filter: impl Fn(&Hit<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.filter = Some(Box::new(filter));
        self
    }
    /// Limits how many calls of the function can be in flight at once with their return waited for: in all
    /// threads, blocked and recursive ones included. The default is four for each CPU, "a fair choice" for
    /// functions that neither block nor call themselves (Wu, linux-kernel, 2021-07-06). The largest limit
    /// among a site's consumers applies. Calls beyond it run unprobed and are counted
    /// ([`Tally::empty`](super::Tally::empty)). If only one consumer waits, uses only general registers and
    /// has no entry handler, most calls need no such object, and the limit does not apply to them.
    ///
    /// Memory: 128 bytes for each call, and for each CPU those of four more and 256 to 4352 bytes. That is
    /// 2.8 KiB by default on 2 CPUs, however many threads there are (4 KiB for each of 10,000 threads would
    /// be 40 MB). The memory stays with the site.
    #[must_use]
    pub const fn maxactive(mut self, calls: u32) -> Self {
        self.maxactive = Some(calls);
        self
    }
    /// Selects how the function's returns are seen; by default [`Returns::Exits`]: its return instructions
    /// are patched. A function is refused if it ends in a jump to another, or if its exits cannot all be
    /// found or patched. [`Returns::Stack`] replaces the return address by that of a return trampoline, of
    /// which this process' unwinders are informed. [`Returns::Auto`] does so only where exits cannot be
    /// patched. Refused are then functions that read their return address (`setjmp`, `vfork`), Go, and
    /// processes with a shadow stack or with an unwinder that cannot be informed. On arm64, a call of a
    /// signal handler is missed and counted, as it returns into the vdso.
    ///
    /// A site has one form for all its consumers. The first that asks for return trampolines brings them for
    /// all that wait there, until the last of these is gone. Calls in flight at that moment are not seen
    /// returning. There are [`TRAMPOLINES`](super::TRAMPOLINES) return trampolines for all sites. Calls
    /// beyond them are missed and counted, like those beyond `maxactive`.
    #[must_use]
    pub const fn returns_by(mut self, form: Returns) -> Self {
        self.form = Some(form);
        self
    }
    /// Declares that handlers may change the instruction pointer. At a function's entry that costs nothing.
    /// Elsewhere, at an instruction inside or at a return, the site then uses a trap.
    #[must_use]
    pub fn moves_ip(mut self) -> Self {
        self.flags = self.flags.with(Flags::MOVES_IP);
        self
    }
    /// Declares that handlers may change the stack pointer. The cost is as for [`moves_ip`](Self::moves_ip).
    #[must_use]
    pub fn moves_sp(mut self) -> Self {
        self.flags = self.flags.with(Flags::MOVES_SP);
        self
    }
    /// Does not save vector and x87 registers around this consumer, which makes a hit some ten times as fast.
    ///
    /// # Safety
    /// The handlers, and all that they call, use only general registers in their compiled form. In practice
    /// that takes handlers in assembly, a compiler option (`-mgeneral-regs-only`), or a look at the machine
    /// code.
    #[must_use]
    pub unsafe fn general_regs_only(mut self) -> Self {
        self.flags = self.flags.with(Flags::GENERAL_REGS_ONLY);
        self
    }
    pub(super) const fn has_handler(&self) -> bool {
        match &self.functions {
            Some(functions) => functions.entry.is_some() || functions.ret.is_some(),
            None => self.entry.is_some() || self.returns.is_some(),
        }
    }
    pub(super) const fn has_entry(&self) -> bool {
        match &self.functions {
            Some(functions) => functions.entry.is_some(),
            None => self.entry.is_some(),
        }
    }
    pub(super) const fn has_return(&self) -> bool {
        match &self.functions {
            Some(functions) => functions.ret.is_some(),
            None => self.returns.is_some(),
        }
    }
    /// Whether it may continue elsewhere than at the original instruction with the original stack.
    pub(super) fn moves(&self) -> bool {
        self.flags.has(Flags::MOVES_IP) || self.flags.has(Flags::MOVES_SP)
    }
    /// How returns are to be seen, if the consumer waits for them.
    pub(super) fn form(&self) -> Option<Returns> {
        self.has_return().then_some(self.form.unwrap_or(Returns::Exits))
    }
    pub(super) const fn instances(&self) -> Option<u32> {
        self.maxactive
    }
    pub(super) const fn saves_state(&self) -> bool {
        !self.flags.has(Flags::GENERAL_REGS_ONLY)
    }
    /// The form in which the engine calls it, valid as long as `self` stays where it is.
    pub(super) fn as_engine(&self) -> engine::Consumer {
        if let Some(functions) = self.functions {
            return engine::Consumer { flags: self.flags, ..functions };
        }
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
            .field("functions", &self.functions)
            .field("flags", &self.flags)
            .field("maxactive", &self.maxactive)
            .field("form", &self.form)
            .finish()
    }
}

unsafe extern "C" fn on_entry(data: *mut c_void, hit: *mut engine::Hit) -> engine::Verdict {
    // SAFETY: `data` is the consumer on which `as_engine` was called; it is kept until no thread runs it.
    // `hit` belongs to this call.
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
    // SAFETY: as in `on_entry`. The filter gets a shared `Hit`, through which nothing can be changed.
    let (consumer, hit) = unsafe { (&*data.cast::<Consumer>(), &mut *hit.cast_mut()) };
    consumer.filter.as_ref().is_none_or(|filter| filter(&Hit(hit)))
}
