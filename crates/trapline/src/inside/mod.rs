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
//! - Registering again may change a patch that is in place: for a first consumer of returns, if the windows
//!   of exits meet the entry's, or for another probe within the same few bytes. Hits during the change come
//!   by trap, so none is missed.
//! - Returns are seen at the function's return instructions. A function that ends in a jump to another has
//!   none there, and is refused unless its consumer asks for another form ([`Consumer::returns_by`]). That
//!   form replaces return addresses, as the kernel does, but in a way that exceptions and `backtrace` still
//!   work.
//! - A consumer of returns may be registered during a call. It receives that call's return if any consumer
//!   waited for it. The kernel also requires that one of those present at the entry is still there.
//! - A hit inside a consumer of the same thread is not seen, and counted ([`Registration::counts`]).
//! - [`Verdict::Remove`] takes effect at the next call of this module.
//! - Handlers for SIGTRAP, SIGSEGV, SIGBUS, SIGFPE and SIGILL stand in front of the program's from the first
//!   registration on, and pass on what does not concern the engine. So the program sees faults of displaced
//!   instructions at the original address. Handlers of other signals are called through signal wrappers of
//!   the engine. So a handler sees the original address as well if its signal arrives in a displaced
//!   instruction. Handlers that are set later by libc's `sigaction` get wrappers at once, unless the way to
//!   notice changes is [`NoticeMode::Asked`]; those set by raw system calls get them at the next registration
//!   or [`rescan`]. Asked for its handlers, libc shows the program its own; a raw system call shows the
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
mod capacity;
mod change;
mod check;
mod consumer;
mod error;
mod find;
mod grace;
mod group;
mod loader;
mod lock;
mod mapped_files;
mod memory;
mod notice;
mod own_process;
mod own_stack;
mod patcher;
mod placing;
mod probed_site;
mod probes;
mod registered_files;
mod registration;
mod registry;
mod request;
mod semaphore;
mod semaphores;
mod site_request;
mod speculate;
mod state;
mod system;
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
pub use mapped_files::{Code, CodePlace, code, code_at};
pub use notice::{NoticeMode, Noticed};
pub use own_stack::is_inside_handler;
pub use registration::{
    Registration, find, notice_by, noticed, register, register_all, rescan, unregister_all,
};
pub use request::Request;
pub use trampolines::{TRAMPOLINES, returns_to};
pub use trapline_plan::Tactic;
pub use trapline_record::FileId;
/// Handlers as the engine calls them: see [`Functions`].
pub mod raw {
    pub use trapline_runtime::consumer::{Filter, Handler, Hit, Verdict};
}
pub use trapline_runtime::engine::Tally;
pub use trapline_runtime::regions::PictureError;
