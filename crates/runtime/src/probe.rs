//! A probe: a site (file, offset) with its consumers, and how often it was hit.
//!
//! In: consumers, one change at a time; hits, at any time. Out: for a hit, the consumers as of one moment,
//! newest first. Invariants: PRB-1 a hit sees a list as it was between two changes, never a mixture. PRB-2
//! hits do not call a removed consumer if they begin after the removal has returned and its grace period has
//! ended. PRB-3 a hit counts in words of its own thread.
//! Does not: know where the site is mapped, or change code.
//!
//! # The list
//!
//! An immutable [`List`] behind one pointer; a change makes a new list. Writers run one at a time.
//!
//! | writer | hit |
//! |---|---|
//! | A1 build the new list from the old one | H1 enter (epoch R2, R3) |
//! | A2 store the pointer (release) | H2 load the pointer (acquire) |
//! | A3 the old list is unlinked; it is freed after a grace period (epoch W2 to W5) | H3 walk the list, call |
//! | | H4 leave (epoch R5) |
//!
//! - *H2 before A2*: the hit sees the old list, whole, until H4 (because of A3's grace period). It calls a
//!   consumer that was removed. Unregistering has not returned yet, as it waits for the same grace period.
//! - *H2 after A2*: the hit sees the new list. A2's release and H2's acquire make A1's stores visible;
//!   relaxed at either is a model's twin.
//! - *a second change between H2 and H4*: H3 goes on in its list; both old lists wait for it.
//! - *a hit that looks at `only_returns` and not at the list* (an entry where only returns are waited for)
//!   takes an instance or its place, or does not. That depends on the flag, which is stored before the change
//!   returns. It calls no consumer; the list at the return decides which are called.
//! - *a hit between entry and return*: the return walks the list as of then, and calls a session only if the
//!   call's instance holds its number. So a session that was removed meanwhile is not called. One that was
//!   added meanwhile has no cookie and is not called. One that was removed and added again has another
//!   number.

use alloc::boxed::Box;
use core::ffi::c_void;
#[cfg(not(loom))]
use core::num::NonZeroU64;

use trapline_record::{FileId, FileOffset};

use crate::consumer::{Consumer, ConsumerId, Flags, Handler, Installed};
use crate::engine::{Engine, GROUP_LEN};
use crate::epoch::{Inside, Published, Writer};
use crate::sync::{AtomicU32, Relaxed};

/// Consumers of one probe, newest first. The first is in the list itself, since most probes have one.
#[derive(Clone, Debug)]
pub struct List {
    pub(crate) alone: Alone,
    waits: bool,
    newest: Installed,
    older: Box<[Installed]>,
}

/// The only consumer of a list, if a hit has nothing else to do than to call its handlers, with nothing
/// saved. Assembly code relies on this layout (`general` of the processors).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Alone {
    /// The entry handler of a consumer that does not wait for returns.
    pub(crate) handler: Option<Handler>,
    pub(crate) data: *mut c_void,
    pub(crate) ret: Option<Handler>,
    /// The entry handler of a consumer that does.
    pub(crate) entry: Option<Handler>,
    /// The consumer's number, if it is a session: its return handler is called only for calls in which the
    /// entry handler ran. Otherwise 0, which is no consumer's number.
    pub(crate) session: u64,
    /// `ret`, unless the consumer is a session; for code that need not look for the number.
    pub(crate) returns: Option<Handler>,
}

// SAFETY: a copy of what `Installed` holds, which is `Send` and `Sync`.
unsafe impl Send for Alone {}
// SAFETY: as above.
unsafe impl Sync for Alone {}

impl List {
    /// The consumers, newest first.
    pub fn iter(&self) -> impl Iterator<Item = &Installed> {
        core::iter::once(&self.newest).chain(&self.older)
    }
    /// The newest consumer. A hit takes it by itself: a chained iterator costs it as much as the consumer.
    #[cfg(not(loom))]
    #[inline]
    pub(crate) const fn newest(&self) -> &Installed {
        &self.newest
    }
    /// The other consumers, newest first.
    #[cfg(not(loom))]
    #[inline]
    pub(crate) fn older(&self) -> &[Installed] {
        &self.older
    }
    /// Whether a consumer has a return handler.
    #[must_use]
    #[inline]
    pub const fn waits(&self) -> bool {
        self.waits
    }
    /// `None` if there are no consumers.
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
    /// Whether an entry has nothing to do but take an instance.
    const fn only_returns(&self) -> bool {
        self.alone.returns.is_some()
    }
}

/// The pointer to a list, for one writer and many hits.
#[derive(Debug)]
#[repr(C)]
pub struct Consumers {
    pub(crate) list: Published<List>,
    /// [`List::only_returns`] of the list, stored after it, for hits that do not look at the list.
    pub(crate) only_returns: AtomicU32,
    /// Not 0: calls that a consumer waits for get a return trampoline. Next to the other flag, since
    /// `general` reads both at once.
    pub(crate) arms: AtomicU32,
}

impl Default for Consumers {
    fn default() -> Self {
        let (only_returns, arms) = (AtomicU32::new(0), AtomicU32::new(0));
        Self { list: Published::new(None), only_returns, arms }
    }
}

impl Consumers {
    /// H2: the present list; `None` if there are no consumers.
    #[inline]
    pub fn get<'a>(&'a self, inside: &'a Inside<'_>) -> Option<&'a List> {
        self.list.get(inside)
    }
    /// Whether there is one consumer, which waits for returns, uses general registers only, and is not called
    /// at the entry.
    #[cfg(not(loom))]
    pub(crate) fn only_returns(&self) -> bool {
        self.only_returns.load(Relaxed) != 0
    }
    /// A2 and A3.
    fn replace(&self, writer: &mut Writer, list: Option<List>) {
        let only_returns = list.as_ref().is_some_and(List::only_returns);
        self.list.replace(writer, list.map(Box::new));
        self.only_returns.store(only_returns.into(), Relaxed);
    }
    /// Puts a consumer in front.
    pub fn add(&self, writer: &mut Writer, installed: Installed) {
        let older = self.list.current(writer).map(|list| list.iter().copied().collect()).unwrap_or_default();
        self.replace(writer, Some(List::of(installed, older)));
    }
    /// Removes a consumer. Hits that began before may still call it until a grace period has ended. False if
    /// it is not in the list.
    pub fn remove(&self, writer: &mut Writer, id: ConsumerId) -> bool {
        let Some(list) = self.list.current(writer) else { return false };
        let is_there = list.iter().any(|installed| installed.id == id);
        if is_there {
            let others = List::new(list.iter().copied().filter(|installed| installed.id != id));
            self.replace(writer, others);
        }
        is_there
    }
}

/// What a stub or a trap leads to. Its address is an immediate in generated code, so it is never moved, and
/// is freed only after all code that names it.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Probe {
    pub(crate) engine: &'static Engine,
    pub(crate) consumers: Consumers,
    pub(crate) number: u32,
    pub(crate) removal: AtomicU32,
    /// Address that this probe's words would have in the row of a line at address 0 (there is no such line).
    /// For a line at address `x` they are at this address plus `x` times
    /// [`Raw::row`](crate::engine::Raw::row).
    pub(crate) words: u64,
    #[cfg(not(loom))]
    pub(crate) instances: crate::instances::Instances,
    file: FileId,
    offset: FileOffset,
}

impl Probe {
    /// A probe without consumers. `number` is different for each probe of an engine, and selects the words
    /// that count its hits.
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
    /// The probe at an address that a call's record holds.
    ///
    /// # Safety
    /// It is the [address](Self::address) of a probe that is never freed.
    #[cfg(not(loom))]
    pub(crate) const unsafe fn at(address: NonZeroU64) -> &'static Self {
        // SAFETY: the caller promises it.
        unsafe { &*(address.get() as *const Self) }
    }
    /// What it shares with all other probes.
    #[must_use]
    pub const fn engine(&self) -> &'static Engine {
        self.engine
    }
    /// Its address, which stands for it in generated code and in records of calls.
    #[must_use]
    pub fn address(&self) -> u64 {
        core::ptr::from_ref(self) as u64
    }
    /// Number of the words that count its hits.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }
    /// The site.
    #[must_use]
    pub const fn site(&self) -> (FileId, FileOffset) {
        (self.file, self.offset)
    }
    /// Its consumers.
    #[must_use]
    pub const fn consumers(&self) -> &Consumers {
        &self.consumers
    }
    /// What calls in flight hold if a consumer waits for their return. To be provided before a consumer that
    /// waits is added.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn instances(&self) -> &crate::instances::Instances {
        &self.instances
    }
    /// Whether calls that a consumer waits for get a return trampoline; otherwise their exits are patched.
    #[cfg(not(loom))]
    #[must_use]
    #[inline]
    pub fn arms(&self) -> bool {
        self.consumers.arms.load(Relaxed) != 0
    }
    /// Chooses between these, for calls from now on.
    ///
    /// # Safety
    /// If it arms: the engine has return trampolines. The site is the entry of a function. There the stack
    /// pointer points to an address that the function returns to and that only unwinders read, and all
    /// unwinders know about the trampolines.
    #[cfg(not(loom))]
    pub unsafe fn set_arms(&self, arms: bool) {
        self.consumers.arms.store(arms.into(), Relaxed);
    }
    /// Whether every consumer declares these flags, so that a stub may leave something out.
    #[must_use]
    pub fn all_declare(&self, writer: &Writer, flags: Flags) -> bool {
        self.consumers
            .list
            .current(writer)
            .is_some_and(|list| list.iter().all(|one| one.consumer.flags.has(flags)))
    }
    /// Whether any consumer declares these flags, so that the site must allow it.
    #[must_use]
    pub fn any_declares(&self, writer: &Writer, flags: Flags) -> bool {
        self.consumers
            .list
            .current(writer)
            .is_some_and(|list| list.iter().any(|one| one.consumer.flags.has(flags)))
    }
    /// Whether at one hit every consumer returned [`Verdict::REMOVE`](crate::consumer::Verdict::REMOVE).
    /// Reading it resets it; the code that removes probes reads it. A consumer that was added since decides
    /// for itself at the next hit.
    #[must_use]
    pub fn take_removal(&self) -> bool {
        self.removal.load(Relaxed) != 0 && self.removal.swap(0, Relaxed) != 0
    }
    /// Stores only the first time: later hits find the flag set.
    pub(crate) fn request_removal(&self) {
        if self.removal.load(Relaxed) == 0 {
            self.removal.store(1, Relaxed);
        }
    }
    /// Number of hits so far, over all threads, and of hits at which no consumer was called.
    #[must_use]
    pub fn counts(&self) -> crate::engine::Tally {
        let tally = self.engine.counts().of(self.number);
        #[cfg(not(loom))]
        let tally = crate::engine::Tally { hits: tally.hits + self.instances.calls(), ..tally };
        tally
    }
}
