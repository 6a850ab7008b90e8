//! A probe: a site (file, offset) with its consumers, and how often it was hit.
//!
//! In: consumers, one change at a time; hits, at any time. Out: for a hit, the consumers as of one moment, newest first. Invariants:
//! PRB-1 a hit sees a list as it was between two changes, never a mixture; PRB-2 whoever is taken out is not called by hits that
//! begin after the taking out has returned and its grace has ended; PRB-3 a hit counts in words of its own thread.
//! Does not: know where the site is mapped, or change code.
//!
//! # The list
//!
//! An immutable [`List`] behind one pointer; a change makes a new one. Writers come one at a time.
//!
//! | writer | hit |
//! |---|---|
//! | A1 build the new list from the old one | H1 enter (epoch R2, R3) |
//! | A2 store the pointer (release) | H2 load the pointer (acquire) |
//! | A3 the old list is unlinked; it is freed after a grace (epoch W2 to W5) | H3 walk the list, call |
//! | | H4 leave (epoch R5) |
//!
//! - *H2 before A2*: the old list, whole, for as long as H4 is to come (A3's grace). A consumer that was taken out is called by this
//!   hit; unregistering has not returned, as it waits for the same grace.
//! - *H2 after A2*: the new list. A2's release and H2's acquire make A1's stores visible: relaxed at either is a model's twin.
//! - *a second change between H2 and H4*: H3 goes on in its list; both old lists wait for it.
//! - *a hit that looks at `only_returns` and at no list* (an entry where only returns are waited for) takes an instance or its place, or does not, as of the
//!   flag's store, which is before the change returns. It calls nobody; who is told is decided by the list at the return.
//! - *a hit between entry and return*: the return walks the list as of then, and calls a session only if its number stands in the call's
//!   record: so one that was taken out meanwhile is not called, one that came meanwhile has no cookie and is not called, and one
//!   that was taken out and put in again has another number.

use alloc::boxed::Box;
use core::ffi::c_void;
use core::ptr;

use trapline_record::{FileId, FileOffset};

use crate::consumer::{Consumer, ConsumerId, Flags, Handler, Installed};
use crate::engine::{Engine, GROUP_LEN};
use crate::epoch::{Inside, Writer};
use crate::sync::{Acquire, AtomicPtr, AtomicU32, Relaxed, Release};

/// Consumers of one probe, newest first. The first lies in the list itself: most probes have one.
#[derive(Clone, Debug)]
pub struct List {
    pub(crate) alone: Alone,
    waits: bool,
    newest: Installed,
    older: Box<[Installed]>,
}

/// The only consumer of a list, if all there is to do is to call its handlers, with nothing saved: a layout that code in
/// assembly knows (`general` of the twins).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Alone {
    /// Of one that does not wait for returns.
    pub(crate) handler: Option<Handler>,
    pub(crate) data: *mut c_void,
    pub(crate) ret: Option<Handler>,
    /// Of one that does.
    pub(crate) entry: Option<Handler>,
    /// The number of one whose return handler is for calls only whose entry handler ran; otherwise 0, which is nobody's.
    pub(crate) session: u64,
    /// `ret`, if there is no such number: for what need not ask for it.
    pub(crate) returns: Option<Handler>,
}

// SAFETY: a copy of what `Installed` holds, which is both.
unsafe impl Send for Alone {}
// SAFETY: as above.
unsafe impl Sync for Alone {}

impl List {
    /// Newest first.
    pub fn iter(&self) -> impl Iterator<Item = &Installed> {
        core::iter::once(&self.newest).chain(&self.older)
    }
    /// Whether one has a return handler.
    #[must_use]
    #[inline]
    pub const fn waits(&self) -> bool {
        self.waits
    }
    /// `None` if there are none.
    fn new(mut consumers: impl Iterator<Item = Installed>) -> Option<Self> {
        Some(Self::of(consumers.next()?, consumers.collect()))
    }
    fn of(newest: Installed, older: Box<[Installed]>) -> Self {
        let Consumer { entry, ret, filter, data, flags } = newest.consumer;
        let alone = older.is_empty() && filter.is_none() && flags.has(Flags::GENERAL_REGS_ONLY);
        let waits = ret.is_some() || older.iter().any(|one| one.consumer.ret.is_some());
        let session = if newest.consumer.is_session() { newest.id.0 } else { 0 };
        let alone = Alone {
            handler: entry.filter(|_| alone && ret.is_none()),
            data,
            ret: ret.filter(|_| alone),
            entry: entry.filter(|_| alone && ret.is_some()),
            session,
            returns: ret.filter(|_| alone && session == 0),
        };
        Self { alone, waits, newest, older }
    }
    /// Whether all there is to do at an entry is to take an instance.
    const fn only_returns(&self) -> bool {
        self.alone.returns.is_some()
    }
}

/// The pointer to a list, for one writer and many hits.
#[derive(Debug)]
#[repr(C)]
pub struct Consumers {
    pub(crate) list: AtomicPtr<List>,
    /// [`List::only_returns`] of it, stored behind it: what a hit may act upon that does not look at the list.
    pub(crate) only_returns: AtomicU32,
    /// Not 0: calls that somebody waits for get a slot for their return address. Beside the other, as `general` looks at both at once.
    pub(crate) arms: AtomicU32,
}

impl Default for Consumers {
    fn default() -> Self {
        let (only_returns, arms) = (AtomicU32::new(0), AtomicU32::new(0));
        Self { list: AtomicPtr::new(ptr::null_mut()), only_returns, arms }
    }
}

impl Consumers {
    /// H2: as of now; `None` if there are none.
    #[inline]
    pub fn get<'a>(&self, _inside: &'a Inside<'_>) -> Option<&'a List> {
        // SAFETY: null, or a list from `replace`, which is freed after the grace of every hit that could load it (EPO-1); this hit
        // is inside for 'a. Acquire: the list's own stores are visible.
        unsafe { self.list.load(Acquire).as_ref() }
    }
    /// Whether one alone waits for returns, uses general registers alone, and nobody is called at the entry.
    #[cfg(not(loom))]
    pub(crate) fn only_returns(&self) -> bool {
        self.only_returns.load(Relaxed) != 0
    }
    /// As the writer sees it.
    fn current(&self, _writer: &Writer) -> Option<&List> {
        // SAFETY: null or alive: only the writer retires lists, and it is here.
        unsafe { self.list.load(Relaxed).as_ref() }
    }
    /// A2 and A3.
    fn replace(&self, writer: &mut Writer, list: Option<List>) {
        let only_returns = list.as_ref().is_some_and(List::only_returns);
        let new = list.map_or(ptr::null_mut(), |list| Box::into_raw(Box::new(list)));
        let old = self.list.load(Relaxed);
        self.list.store(new, Release);
        self.only_returns.store(only_returns.into(), Relaxed);
        if !old.is_null() {
            // SAFETY: `old` came from `Box::into_raw` above, and no pointer leads to it any more.
            writer.unlinked(unsafe { Box::from_raw(old) });
        }
    }
    /// Puts one in front.
    pub fn add(&self, writer: &mut Writer, installed: Installed) {
        let older = self.current(writer).map(|list| list.iter().copied().collect()).unwrap_or_default();
        self.replace(writer, Some(List::of(installed, older)));
    }
    /// Takes one out; hits that began before may still call it, until a grace has passed. False if it is not there.
    pub fn remove(&self, writer: &mut Writer, id: ConsumerId) -> bool {
        let Some(list) = self.current(writer) else { return false };
        let is_there = list.iter().any(|installed| installed.id == id);
        if is_there {
            let others = List::new(list.iter().copied().filter(|installed| installed.id != id));
            self.replace(writer, others);
        }
        is_there
    }
}

impl Drop for Consumers {
    fn drop(&mut self) {
        let list = self.list.load(Relaxed);
        if !list.is_null() {
            // SAFETY: it came from `Box::into_raw`; whoever drops a probe knows that no hit leads to it.
            drop(unsafe { Box::from_raw(list) });
        }
    }
}

/// What a stub or a trap leads to. Its address is an immediate in generated code: it stays where it is, and is freed only after all
/// code that names it.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Probe {
    pub(crate) engine: &'static Engine,
    pub(crate) consumers: Consumers,
    pub(crate) number: u32,
    pub(crate) removal: AtomicU32,
    /// Its words in the row of a line at address 0, of which there is none: those of a line are as far behind as its address times [`Raw::row`](crate::engine::Raw::row).
    pub(crate) words: u64,
    #[cfg(not(loom))]
    pub(crate) instances: crate::instances::Instances,
    file: FileId,
    offset: FileOffset,
}

impl Probe {
    /// Without consumers. `number` tells the probes of an engine apart: it is where hits are counted.
    #[must_use]
    #[inline]
    pub fn new(engine: &'static Engine, number: u32, file: FileId, offset: FileOffset) -> Self {
        let (consumers, removal) = (Consumers::default(), AtomicU32::new(0));
        let first = engine.raw.words as u64 + u64::from(number) * GROUP_LEN as u64;
        let words = first.wrapping_sub((engine.raw.lines as u64).wrapping_mul(engine.raw.row));
        Self {
            engine,
            consumers,
            number,
            removal,
            words,
            #[cfg(not(loom))]
            instances: crate::instances::Instances::default(),
            file,
            offset,
        }
    }
    /// What it shares with all others.
    #[must_use]
    pub const fn engine(&self) -> &'static Engine {
        self.engine
    }
    /// What stands for it in generated code, and in records of calls.
    #[must_use]
    pub fn address(&self) -> u64 {
        core::ptr::from_ref(self) as u64
    }
    /// Where its hits are counted.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }
    /// The site.
    #[must_use]
    pub const fn site(&self) -> (FileId, FileOffset) {
        (self.file, self.offset)
    }
    /// Who is called.
    #[must_use]
    pub const fn consumers(&self) -> &Consumers {
        &self.consumers
    }
    /// What calls in flight hold whose return somebody waits for. To be provided before a consumer that waits is added.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn instances(&self) -> &crate::instances::Instances {
        &self.instances
    }
    /// Whether calls that somebody waits for get a slot for their return address, or are seen at their exits.
    #[cfg(not(loom))]
    #[must_use]
    #[inline]
    pub fn arms(&self) -> bool {
        self.consumers.arms.load(Relaxed) != 0
    }
    /// Chooses that, for calls from now on.
    ///
    /// # Safety
    /// If it arms: the engine has slots; the site is the entry of a function, at which the stack pointer points to an address that the function returns to, which
    /// nobody reads but who unwinds, and all who unwind know of slots.
    #[cfg(not(loom))]
    pub unsafe fn set_arms(&self, arms: bool) {
        self.consumers.arms.store(arms.into(), Relaxed);
    }
    /// What every consumer declares: what a stub may leave out.
    #[must_use]
    pub fn all_declare(&self, writer: &Writer, flags: Flags) -> bool {
        self.consumers
            .current(writer)
            .is_some_and(|list| list.iter().all(|one| one.consumer.flags.has(flags)))
    }
    /// What any consumer declares: what the site must allow.
    #[must_use]
    pub fn any_declares(&self, writer: &Writer, flags: Flags) -> bool {
        self.consumers
            .current(writer)
            .is_some_and(|list| list.iter().any(|one| one.consumer.flags.has(flags)))
    }
    /// At one hit every consumer said [`Verdict::REMOVE`](crate::consumer::Verdict::REMOVE). Asked and forgotten by whoever takes
    /// probes out; a consumer that was added since speaks for itself at the next hit.
    #[must_use]
    pub fn take_removal(&self) -> bool {
        self.removal.load(Relaxed) != 0 && self.removal.swap(0, Relaxed) != 0
    }
    /// A store only the first time: later hits find the flag set.
    pub(crate) fn want_removal(&self) {
        if self.removal.load(Relaxed) == 0 {
            self.removal.store(1, Relaxed);
        }
    }
    /// Hits so far, over all threads, and hits whose consumers were not called.
    #[must_use]
    pub fn counts(&self) -> crate::engine::Tally {
        let tally = self.engine.counts().of(self.number);
        #[cfg(not(loom))]
        let tally = crate::engine::Tally { hits: tally.hits + self.instances.calls(), ..tally };
        tally
    }
}
