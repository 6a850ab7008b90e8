//! Probing ourselves: consumers registered on (file, offset), called by threads of this very process.
//!
//! In: a file, an offset in it, a [`Consumer`]. Out: the consumer called at every hit in every mapping of that file, by a jump where
//! one fits. What [`crate::Session`] does to other processes from outside, a program does to itself here, as kernel code does
//! with `uprobe_register`.
//!
//! ```no_run
//! use std::sync::atomic::{AtomicU64, Ordering};
//! use trapline::inside::{Consumer, Verdict, find, register};
//!
//! static CALLS: AtomicU64 = AtomicU64::new(0);
//!
//! # fn main() -> Result<(), trapline::inside::Error> {
//! let consumer = Consumer::entry(|_| {
//!     CALLS.fetch_add(1, Ordering::Relaxed);
//!     Verdict::Continue
//! });
//! let (libc, offset) = find("libc", "malloc")?;
//! let probe = register(libc, offset, consumer)?;
//! // … the program runs …
//! probe.unregister()?; // no handler runs any more
//! # Ok(())
//! # }
//! ```
//!
//! # A tutorial
//!
//! 1. *Where.* A site is (file, offset), so it means the same in every process and however often the file is mapped. [`find()`] gives it for
//!    a name; an instruction inside a function is the function's offset and some.
//! 2. *What.* [`Consumer::entry`] is called before the instruction, with the registers of that moment: at a function's entry the
//!    arguments are in rdi, rsi, rdx, rcx, r8, r9 (on arm64 in x0 to x7). [`Consumer::returns`] is called at the function's return instructions, with the value in
//!    rax (x0). [`Consumer::session`] is both for one call, with a word handed from the first to the second.
//! 3. *How careful.* A handler interrupts whatever the thread does: see [`Consumer`]. Its vector registers are saved around it, which is
//!    most of what a hit costs; [`Consumer::general_regs_only`] leaves that out.
//! 4. *The end.* [`Registration::unregister`] returns when no handler of it can still run, so that what it used can go.
//!    [`unregister_all`] waits once for many.
//!
//! `examples/self_trace.rs` is a whole program.
//!
//! # Mappings
//!
//! A consumer applies to every executable, private, unwritable mapping of the file. Those that are there are patched
//! before [`register`] returns; a file that nobody maps yet is registered all the same, and taken hold of when it is mapped: a library is
//! patched when `dlopen` returns, and before its constructors run; other mappings a moment after they were made. The engine has a thread of its own
//! for that. [`learn_by`] says how it learns of mappings, [`learnt`] what it learnt, and what came late. [`rescan`] looks at once.
//!
//! [`code_at`] and [`code`] tell which file lies at an address, without a lock; where none is known, the engine looks at the maps once more.
//!
//! # What differs from the kernel's probes
//!
//! - Registering again at a place whose patch must change (a first consumer of returns whose windows meet the
//!   entry's, another probe within the same few bytes) has the hits of that moment come by trap: none is missed.
//! - Returns are seen at the function's return instructions. A function that ends in a jump to another has none there, and is refused, unless its
//!   consumer asks for another form ([`Consumer::returns_by`]): replaced return addresses, as in the kernel, but such that exceptions and
//!   `backtrace` find their way.
//! - A consumer of returns that is registered during a call is told of that call's return if anybody waited for it; the kernel also asks that
//!   one of those who were there at the entry is there still.
//! - A hit inside a consumer of the same thread is not seen, and counted ([`Registration::counts`]).
//! - [`Verdict::Remove`] takes effect at the next call of this module.
//! - Handlers for SIGTRAP, SIGSEGV, SIGBUS, SIGFPE and SIGILL stand in front of the program's from the first registration on, and pass on what is
//!   not theirs: faults of displaced instructions are seen at the original address. Handlers of other signals are called by way of code of ours, so that
//!   a signal that arrives in a displaced instruction sees the original address as well. Handlers that libc's `sigaction` sets later are known at once,
//!   unless the way to learn is [`Way::Asked`]; those of raw system calls at the next registration or [`rescan`]. Libc tells the program of its own handlers, a raw
//!   call of ours. What is not shown so: a handler that moves the instruction pointer and has the shown address come back later hits once more;
//!   a signal in a stub, before its displaced instructions, sees the stub's address, and so do ptrace and perf.
//! - If the program installs a handler for one of the five signals later, its own is alone: for SIGTRAP no more is registered then
//!   ([`Error::TrapsTaken`]).
//! - Without perf events (`perf_event_paranoid`, seccomp), what is mapped by raw system calls is found by the next [`rescan`] only; libc's `mmap`, `mprotect`
//!   and `mremap` are probed instead, and consumers of their returns do not see those.
//! - A batch, with all places that were ever registered before, may have 131,072 places, where the kernel takes 2²⁰ links at a time ([`Error::TooMany`]): what belongs to a place stays,
//!   as a hit may be about to look at it.
//! - A trap that is nobody's is the program's own, and no look at the mappings is made for it: code that is mapped anew holds none of ours.
//! - A thread that blocks SIGTRAP for good makes windows that need traps impossible; they are refused.
//!
//! # On arm64
//!
//! A patch is one instruction in the place of another, a jump or a trap, so no window is ever in another's way. A landing pad (`bti`, `paciasp`) on a page that is guarded takes a trap. Where
//! a handler moves the program counter at a function's entry by a jump, x17 holds where it goes on, as behind a linker's veneer. The stack pointer must be a multiple of 16 at a jump's site, as it
//! is wherever memory is reached through it. Code in streaming mode (SME) takes traps only, by request. With [`Returns::Stack`] a
//! function signs and authenticates its slot's address, if it signs any; a return handler finds the program counter and x30 where the call goes on, and who moves the program counter there spoils x17,
//! too. Calls of handlers of signals have no slot: they are missed and counted. Handlers of signals that are sent are called as they are: one that arrives while its thread runs a displaced
//! instruction sees its copy's address. Without perf events, what is mapped by other ways than `dlopen` is found by [`rescan`].
//!
//! Does not: choose functions (see `trapline_image`), run handlers in a thread of their own.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod check;
mod consumer;
mod early;
mod error;
mod find;
mod fork;
mod grace;
mod groups;
mod known;
mod learn;
mod loader;
mod memory;
mod own_stack;
mod place;
mod semaphores;
mod settle;
mod slots;
mod spot;
mod state;
mod traps;
#[cfg(target_arch = "x86_64")]
mod x86_64;

/// The twin of the processor that this runs on.
#[cfg(target_arch = "aarch64")]
use aarch64 as arch;
#[cfg(target_arch = "x86_64")]
use x86_64 as arch;

pub use crate::Returns;
pub use arch::{Gpr, Regs};
pub use consumer::{Consumer, Functions, Hit, Verdict};
pub use error::Error;
pub use find::find;
pub use known::{Code, CodePlace, code, code_at};
pub use learn::{Learnt, Way};
pub use own_stack::is_inside_handler;
pub use slots::{SLOTS, returns_to};
pub use trapline_plan::Tactic;
pub use trapline_record::FileId;
/// Handlers as the engine calls them: see [`Functions`].
pub mod raw {
    pub use trapline_runtime::consumer::{Filter, Handler, Hit, Verdict};
}
pub use trapline_runtime::engine::Tally;
pub use trapline_runtime::regions::PictureError;

use std::path::{Path, PathBuf};

use arch::signals;
use state::{Key, State, lock};

/// A site to be probed, and by whom.
#[derive(Debug)]
pub struct Request {
    /// The file.
    pub file: PathBuf,
    /// Byte offset in the file of the instruction.
    pub offset: u64,
    /// Who is called.
    pub consumer: Consumer,
    /// Take a trap, though a jump might fit.
    pub by_trap: bool,
    /// Byte offset in the file of a USDT semaphore: a 16-bit word of its data.
    pub semaphore: Option<u64>,
}

impl Request {
    /// By jump where one fits.
    #[must_use]
    pub fn new(file: impl AsRef<Path>, offset: u64, consumer: Consumer) -> Self {
        Self { file: file.as_ref().to_owned(), offset, consumer, by_trap: false, semaphore: None }
    }
    /// Take a trap, though a jump might fit.
    #[must_use]
    pub const fn by_trap(mut self) -> Self {
        self.by_trap = true;
        self
    }
    /// Counts a USDT semaphore up by one while this site is active, in every mapping of the file; where the data is not mapped yet, as soon as
    /// it is. All consumers of a site name the same.
    #[must_use]
    pub const fn semaphore(mut self, offset: u64) -> Self {
        self.semaphore = Some(offset);
        self
    }
}

/// A registered consumer. Dropping it unregisters; of many, each waits for hits by itself then, some 15 µs, where [`unregister_all`] waits once.
#[derive(Debug)]
#[must_use = "dropping it unregisters the consumer"]
pub struct Registration {
    key: Option<Key>,
}

/// Registers a consumer on (file, offset). May be called by a library's constructor.
///
/// # Errors
/// Nothing is registered.
pub fn register(file: impl AsRef<Path>, offset: u64, consumer: Consumer) -> Result<Registration, Error> {
    let mut all = register_all([Request::new(file, offset, consumer)])?;
    all.pop().ok_or(Error::Empty)
}

/// Registers all, or none: in the order of the requests.
///
/// # Errors
/// Nothing is registered.
pub fn register_all(requests: impl IntoIterator<Item = Request>) -> Result<Vec<Registration>, Error> {
    let keys = state::enter()?.register_and_learn(requests.into_iter().collect())?;
    Ok(keys.into_iter().map(|key| Registration { key: Some(key) }).collect())
}

/// Unregisters all, and returns when no handler of any of them can still run.
///
/// # Errors
/// Inside a handler: nothing was unregistered. Otherwise when code could not be written: the consumers are out all the same.
pub fn unregister_all(registrations: impl IntoIterator<Item = Registration>) -> Result<(), Error> {
    let mut registrations: Vec<Registration> = registrations.into_iter().collect();
    let mut state = state::enter()?;
    state.unregister_and_learn(registrations.iter_mut().filter_map(|one| one.key.take()).collect())
}

/// Takes hold of what was mapped since the last look, and lets go of what was unmapped. Returns how many sites were patched. Sites that
/// cannot be patched where they are mapped now are left out, as the kernel leaves them out; [`Registration::sites`] tells.
///
/// # Errors
/// When the process as a whole cannot be patched.
pub fn rescan() -> Result<usize, Error> {
    state::enter()?.rescan_and_learn()
}

/// Chooses how this process learns of what it maps, before anything is registered.
///
/// # Errors
/// It learns another way already.
pub fn learn_by(way: Way) -> Result<(), Error> {
    lock().learning.choose(way)
}

/// What was learnt of mappings, and from whom.
#[must_use]
pub fn learnt() -> Learnt {
    lock().learnt()
}

impl Registration {
    /// Returns when no handler of it can still run.
    ///
    /// # Errors
    /// As [`unregister_all`].
    pub fn unregister(self) -> Result<(), Error> {
        unregister_all([self])
    }
    /// Hits of the site so far, by all its consumers, and hits that were missed.
    #[must_use]
    pub fn counts(&self) -> Tally {
        self.read(State::counts).unwrap_or_default()
    }
    /// How the site is reached in each mapping where it is patched now.
    #[must_use]
    pub fn sites(&self) -> Vec<Tactic> {
        self.read(State::tactics).unwrap_or_default()
    }
    /// How returns of its function are seen, where somebody waits for them: [`Returns::Exits`] or [`Returns::Stack`].
    #[must_use]
    pub fn returns_by(&self) -> Option<Returns> {
        self.read(State::form).flatten()
    }
    fn read<T>(&self, read: impl FnOnce(&State, Key) -> T) -> Option<T> {
        Some(read(&lock(), self.key?))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let (Some(key), Ok(mut state)) = (self.key.take(), state::enter()) {
            // The consumer is out of the list whatever becomes of the bytes.
            drop(state.unregister_and_learn(vec![key]));
        }
    }
}
