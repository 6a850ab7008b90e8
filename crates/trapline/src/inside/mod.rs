//! Probes in the program's own process: consumers registered on (file, offset), called by its own threads.
//!
//! In: a file, an offset in it, a [`Consumer`]. Out: the consumer called at every hit in every mapping of
//! that file, by a jump where one fits. [`crate::Session`] does this to other processes from outside. Here a
//! program does it to itself, as kernel code does with `uprobe_register`.
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
//! 1. *Where.* A site is (file, offset), so it means the same in every process, however often the file is
//!    mapped. [`find()`] gives it for a name. An instruction inside a function is the function's offset plus
//!    its distance.
//! 2. *What.* [`Consumer::entry`] is called before the instruction, with the registers of that moment. At a
//!    function's entry, the arguments are in rdi, rsi, rdx, rcx, r8, r9 (on arm64 in x0 to x7).
//!    [`Consumer::returns`] is called at the function's return instructions, with the value in rax (x0).
//!    [`Consumer::session`] is both for one call, with a word handed from the first to the second.
//! 3. *How careful.* A handler interrupts whatever the thread does: see [`Consumer`]. The thread's vector
//!    registers are saved around it, which is most of what a hit costs; [`Consumer::general_regs_only`]
//!    leaves that out.
//! 4. *The end.* [`Registration::unregister`] returns when no handler of the consumer can still run, so what
//!    it used can then be freed. [`unregister_all`] waits once for many.
//!
//! `examples/self_trace.rs` is a whole program.
//!
//! # Mappings
//!
//! A consumer applies to every executable, private, unwritable mapping of the file. Mappings that exist are
//! patched before [`register`] returns. A file that is not mapped yet can be registered all the same, and is
//! probed when it is mapped. A library is patched when `dlopen` returns, and before its constructors run;
//! other mappings are patched a moment after they were made. The engine has a thread of its own for that.
//! [`notice_by`] chooses how it notices mappings. [`noticed`] reports what it noticed, and what was late.
//! [`rescan`] looks at once.
//!
//! [`code_at`] and [`code`] find which file is mapped at an address, without a lock. If none is known there,
//! the engine reads the maps once more.
//!
//! # What differs from the kernel's probes
//!
//! - Registering again may change a patch that is in place: for a first consumer of returns whose windows
//!   meet the entry's, or for another probe within the same few bytes. Hits during the change come by trap,
//!   so none is missed.
//! - Returns are seen at the function's return instructions. A function that ends in a jump to another has
//!   none there, and is refused unless its consumer asks for another form ([`Consumer::returns_by`]). That
//!   form replaces return addresses, as the kernel does, but in a way that exceptions and `backtrace` still
//!   work.
//! - A consumer of returns may be registered during a call. It is told of that call's return if any consumer
//!   waited for it. The kernel also requires that one of those present at the entry is still there.
//! - A hit inside a consumer of the same thread is not seen, and counted ([`Registration::counts`]).
//! - [`Verdict::Remove`] takes effect at the next call of this module.
//! - Handlers for SIGTRAP, SIGSEGV, SIGBUS, SIGFPE and SIGILL stand in front of the program's from the first
//!   registration on, and pass on what does not concern the engine. So the program sees faults of displaced
//!   instructions at the original address. Handlers of other signals are called through signal wrappers of
//!   the engine. So a handler whose signal arrives in a displaced instruction sees the original address as
//!   well. Handlers that are set later by libc's `sigaction` get wrappers at once, unless the way to notice
//!   changes is [`NoticeMode::Asked`]; those set by raw system calls get them at the next registration or
//!   [`rescan`]. Asked for its handlers, libc shows the program its own; a raw system call shows the
//!   engine's. Two cases are not covered. If a handler moves the instruction pointer, and the shown address
//!   is used again later, that hits once more. A signal in a stub, before its displaced instructions, sees
//!   the stub's address; so do ptrace and perf.
//! - If the program installs a handler for one of the five signals later, only its own runs. For SIGTRAP,
//!   nothing more can be registered then ([`Error::TrapsTaken`]).
//! - Without perf events (`perf_event_paranoid`, seccomp), mappings by raw system calls are found only by the
//!   next [`rescan`]. Libc's `mmap`, `mprotect` and `mremap` are probed instead, and consumers of their
//!   returns do not see those calls.
//! - A batch may have 131,072 places, including all places that were ever registered before; the kernel takes
//!   2²⁰ links at a time ([`Error::TooMany`]). What belongs to a place stays, as a hit may be about to read
//!   it.
//! - A trap at which nothing is registered is the program's own. The maps are not read for it, since code
//!   that is mapped anew holds no patches.
//! - If a thread blocks SIGTRAP for good, windows that need traps are not possible, and are refused.
//!
//! # On arm64
//!
//! A patch is one instruction in the place of another, a jump or a trap, so windows never overlap. A landing
//! pad (`bti`, `paciasp`) on a guarded page gets a trap. If a handler moves the program counter at a
//! function's entry by a jump, x17 holds the target, as it does behind a linker's veneer. The stack pointer
//! must be a multiple of 16 at a jump's site, as it is wherever memory is accessed through it. Code in
//! streaming mode (SME) gets traps only, by request. With [`Returns::Stack`] a function signs and
//! authenticates the return trampoline's address, if it signs return addresses at all. A return handler finds
//! the program counter and x30 at the place where the call goes on; moving the program counter there
//! overwrites x17, too. Calls of signal handlers get no return trampoline: they are missed and counted.
//! Handlers of signals that are sent get no wrappers: if a signal arrives while its thread runs a displaced
//! instruction, its handler sees the copy's address. Without perf events, only `dlopen` is noticed at once;
//! other mappings are found by [`rescan`].
//!
//! Does not: choose functions (see `trapline_image`), run handlers in a thread of their own.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod check;
mod consumer;
mod error;
mod find;
mod fork;
mod grace;
mod groups;
mod loader;
mod mapped_files;
mod memory;
mod notice;
mod own_stack;
mod placing;
mod probed_site;
mod semaphores;
mod settle;
mod site_request;
mod speculate;
mod state;
mod trampolines;
mod traps;
#[cfg(target_arch = "x86_64")]
mod x86_64;

/// Code for the processor that this runs on.
#[cfg(target_arch = "aarch64")]
use aarch64 as arch;
#[cfg(target_arch = "x86_64")]
use x86_64 as arch;

pub use crate::Returns;
pub use arch::{Gpr, Regs};
pub use consumer::{Consumer, Functions, Hit, Verdict};
pub use error::Error;
pub use find::find;
pub use mapped_files::{Code, CodePlace, code, code_at};
pub use notice::{NoticeMode, Noticed};
pub use own_stack::is_inside_handler;
pub use trampolines::{TRAMPOLINES, returns_to};
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

/// A site to be probed, and its consumer.
#[derive(Debug)]
pub struct Request {
    /// The file.
    pub file: PathBuf,
    /// Bytes from the start of the file to the instruction.
    pub offset: u64,
    /// The consumer that is called.
    pub consumer: Consumer,
    /// Use a trap even if a jump might fit.
    pub by_trap: bool,
    /// Bytes from the start of the file to a USDT semaphore: a 16-bit word of the file's data.
    pub semaphore: Option<u64>,
}

impl Request {
    /// A request for a jump where one fits.
    #[must_use]
    pub fn new(file: impl AsRef<Path>, offset: u64, consumer: Consumer) -> Self {
        Self { file: file.as_ref().to_owned(), offset, consumer, by_trap: false, semaphore: None }
    }
    /// Uses a trap even if a jump might fit.
    #[must_use]
    pub const fn by_trap(mut self) -> Self {
        self.by_trap = true;
        self
    }
    /// Increments a USDT semaphore while this site is active, in every mapping of the file; if the data is
    /// not mapped yet, as soon as it is. All consumers of a site must name the same one.
    #[must_use]
    pub const fn semaphore(mut self, offset: u64) -> Self {
        self.semaphore = Some(offset);
        self
    }
}

/// A registered consumer. Dropping it unregisters the consumer and waits for running hits, some 15 µs each
/// time; for many registrations, [`unregister_all`] waits only once.
#[derive(Debug)]
#[must_use = "dropping it unregisters the consumer"]
pub struct Registration {
    key: Option<Key>,
}

/// Registers a consumer on (file, offset). A library's constructor may call this.
///
/// # Errors
/// Nothing is registered then.
pub fn register(file: impl AsRef<Path>, offset: u64, consumer: Consumer) -> Result<Registration, Error> {
    let mut all = register_all([Request::new(file, offset, consumer)])?;
    all.pop().ok_or(Error::Empty)
}

/// Registers all or none, in the order of the requests.
///
/// # Errors
/// Nothing is registered then.
pub fn register_all(requests: impl IntoIterator<Item = Request>) -> Result<Vec<Registration>, Error> {
    let keys = state::enter()?.register_and_notice(requests.into_iter().collect())?;
    Ok(keys.into_iter().map(|key| Registration { key: Some(key) }).collect())
}

/// Unregisters all, and returns when no handler of any of them can still run.
///
/// # Errors
/// Called inside a handler: nothing was unregistered. Otherwise if code could not be written: the consumers
/// are out all the same.
pub fn unregister_all(registrations: impl IntoIterator<Item = Registration>) -> Result<(), Error> {
    let mut registrations: Vec<Registration> = registrations.into_iter().collect();
    let mut state = state::enter()?;
    state.unregister_and_notice(registrations.iter_mut().filter_map(|one| one.key.take()).collect())
}

/// Probes what was mapped since the last look, and drops what was unmapped. Returns how many sites were
/// patched. Sites that cannot be patched where they are mapped now are left out, as by the kernel;
/// [`Registration::sites`] shows that.
///
/// # Errors
/// If the process as a whole cannot be patched.
pub fn rescan() -> Result<usize, Error> {
    state::enter()?.rescan_and_notice()
}

/// Chooses how this process notices what it maps. Must come before anything is registered.
///
/// # Errors
/// If another way is in use already.
pub fn notice_by(way: NoticeMode) -> Result<(), Error> {
    lock().noticing.choose(way)
}

/// What was noticed of mappings, and how.
#[must_use]
pub fn noticed() -> Noticed {
    lock().noticed()
}

impl Registration {
    /// Unregisters, and returns when no handler of the consumer can still run.
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
    /// How returns of the site's function are seen, if any consumer waits for them: [`Returns::Exits`] or
    /// [`Returns::Stack`].
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
            // The consumer is out of the list, even if the bytes could not be changed back.
            drop(state.unregister_and_notice(vec![key]));
        }
    }
}
