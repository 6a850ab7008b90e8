//! How this process notices what it maps, so that a registration also applies to a file that is mapped later.
//!
//! In: the kernel's records of the process' own mappings; libc's calls, probed by the engine itself; the
//! user's [`rescan`](super::rescan). Out: looks at the maps; counts of what each look found, by what had
//! reported it ([`Noticed`]). Invariants: LRN-1 a notice from any source only leads to reading the maps; the
//! maps are read after it, and they alone are believed. LRN-2 no thread waits without a limit for the one
//! that looks. LRN-3 what only a look found, what the kernel dropped and what was armed late is counted. Does
//! not: patch (`probes`, `patcher`), or answer hits.
//!
//! # Sources
//!
//! | source | sees | does not see |
//! |---|---|---|
//! | records | every `mmap` of code and every `mprotect` that makes code, | unmapping, `mremap` |
//! | | by whatever call: libc's, ld.so's, musl's, Go's, a raw one | |
//! | the loader's own notice, probed | `dlopen`, `dlclose`, between mapping and constructors | raw calls |
//! | calls, probed | programs that load code by themselves, through libc | raw calls |
//! | a look that the user asked for | everything | when |
//! | a miss | everything | when; and what is never asked for |
//!
//! - *Records* come from a dummy perf event on every CPU, inherited by threads.
//! - *The loader's own notice* is `_dl_debug_state`, which exists for debuggers; both libcs call it. It is probed
//!   even where there are records, since it comes at a moment when the thread that maps can wait (below).
//! - *Calls* are libc's `mmap`, `mprotect` and `mremap`. They are probed only where there are no records.
//! - *A miss*: the program asks what is mapped at an address ([`code_at`](super::code_at)), and no file's code is
//!   known there.
//!
//! # The thread that looks
//!
//! One thread of the engine's does this, made at the first registration, and it does nothing else. No look is
//! requested from within a hit: a handler neither locks nor waits. The probes on calls move the instruction
//! pointer to a function of the engine's, which runs when the hit is over.
//!
//! The thread blocks all signals that are sent, and none that an instruction raises: it runs patched code
//! like any other thread, and SIGTRAP must reach it.
//!
//! | step | the thread that looks (T) | one that asks (A) |
//! |---|---|---|
//! | A1 | | `asked` := `asked` + 1 (its ticket) |
//! | A2 | | ring the bell |
//! | A3 | | the loader's notice only: wait until `done` ≥ ticket, at most [`PATIENCE`] |
//! | T1 | poll the rings and the bell | |
//! | T2 | clear the bell | |
//! | T3 | load `asked`, and how many misses there were (`misses` says which of them ask) | |
//! | T4 | take the engine's lock; take all records out of the rings | |
//! | T5 | if there were any, or a thread or a miss asked: read the maps, patch what changed | |
//! | T6 | `done` := what T3 loaded; wake askers | |
//!
//! ## Interleavings
//!
//! - *A1 before T3*: the maps are read (T5) after it, so they show what A had mapped; T6 lets A go on.
//! - *A1 after T3*: A2 is after T2, so T1 of the next round returns at once.
//! - *A between A1 and A2 at T3*: served in this round; the bell rings once for nothing.
//! - *A mapping is made, and its record written, before T4*: taken there; the maps of T5 are younger. *After
//!   T4*: the record stays, and makes the ring readable for the next T1. The mapping may be in T5's maps
//!   already. Then that look counts it as found without a notice, or by the call that asked, and the next
//!   look finds nothing new.
//! - *A record is written after T4, and the look itself takes it out*: a look takes records out again before each
//!   time that it reads the maps. It settles only the files of the records that it began with. So the record
//!   stays in `pending`, and the bell wakes T for it: the ring has nothing to report any more.
//! - *Another thread holds the lock* (it registers): T waits at T4. That thread takes the records out itself
//!   before it reads the maps. It leaves those of other files for T in `pending`, which T treats as if it had
//!   taken them out.
//! - *A holds something that T, or the holder of the lock, needs*: A is in the loader and holds the loader's
//!   lock. The engine itself never takes the loader's locks, but code that it calls may: a consumer's
//!   destructor, or an allocator with thread-local storage of a library. Hence [`PATIENCE`]: A goes on, and
//!   what is armed after that counts as late (`Noticed::impatient`). To make this rare, a look makes no
//!   threads, since a new thread takes the loader's lock for its destructors. What must be known of a file's
//!   code is found out at its registration, and in a look by T alone. A registration in a library's
//!   constructor makes no threads either (`loader`); T, if it is made there, begins when the loader is done.
//! - *A is the holder itself* (a destructor that calls `dlclose`): as above.
//! - *A is T*: T calls nothing that maps code through the loader.
//! - *A mapping goes away, and another is made at its place*: the record of the second, or the notice of
//!   `dlclose`, makes T look. The maps show what is there, and sites that do not hold this engine's patch are
//!   dropped before anything is written. A write always compares first. Stated, not solved: in the
//!   microseconds between the comparison and the write, another thread may put other memory there, which
//!   then gets our bytes. User space has no write that the kernel makes only if a mapping is still the same.
//! - *A miss*: the address was mapped before it was asked for, and the maps are read after T3, so the look
//!   that it asks for finds the mapping. That question itself is answered by "not known", and the next one by
//!   what the look found: no thread waits.
//! - *A trap at which nothing is registered*: no look could explain it. Code that is mapped anew has the
//!   file's own bytes; patches are only where they were written, and hits know those places.
//! - *A mapping goes away and nothing takes its place*: no code runs there. Regions keep it until the next
//!   look.
//!
//! # Guarantees
//!
//! - When `dlopen` returns (glibc, musl; by records or calls), the sites of registrations in what it loaded
//!   are armed. They are also armed before constructors run. The exception is a wait that ended at
//!   [`PATIENCE`]; `impatient` counts that.
//! - Other ways to map: the kernel's own probes are armed before `mmap` returns. Here T is woken by then, and
//!   arms some 100 µs later. The longest time that this took, from record to patch, is [`Noticed::longest`].
//!   Hits before that are not seen.
//! - Without records, raw calls are seen only by the next look (a miss leads to one), and counted in
//!   `by_look`.
//!
//! # Forks
//!
//! A child has neither T nor records; its rings are the parent's, and it releases them. It begins anew with
//! its next call of [`register_all`](super::register_all) or [`rescan`](super::rescan). Until then, the
//! loader's notice makes the thread that loads look by itself, if no thread holds the lock.

pub(super) mod calls;
mod listening;
mod misses;
mod notices;
pub(super) mod thread;

use std::time::Duration;

use trapline_record::FileId;

pub(super) use listening::Listening;
pub(super) use notices::Notices;
pub(super) use thread::{Looker, missed};

/// How this process notices what it maps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum NoticeMode {
    /// By the kernel's records and the loader's notice. If records are refused: as [`NoticeMode::Calls`].
    #[default]
    Records,
    /// By the loader's notice and probes on libc's calls.
    Calls,
    /// Only by [`rescan`](super::rescan): no thread is made, and nothing of libc's is patched.
    Asked,
}

/// What was noticed, and how. The mapping counts cover only mappings to which an earlier registration
/// applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Noticed {
    /// Way in use; `None` before the first registration.
    pub way: Option<NoticeMode>,
    /// Whether records come from every thread. Those of threads that began while the process was being
    /// followed may be missing.
    pub complete: bool,
    /// Whether the loader's notice is probed.
    pub notice: bool,
    /// Whether handlers that libc's `sigaction` sets are known at once.
    pub handlers: bool,
    /// Mappings that a record reported.
    pub by_record: u64,
    /// Mappings that a call reported, and no record.
    pub by_call: u64,
    /// Mappings that only a look found.
    pub by_look: u64,
    /// Records that the kernel dropped; each time, a look at everything followed.
    pub lost: u64,
    /// Looks that failed, and mappings for which the tables had no room.
    pub failed: u64,
    /// Waits of the loader that ended at the time limit.
    pub impatient: u64,
    /// Questions ([`code_at`](super::code_at)) for an address at which no file's code was known.
    pub misses: u64,
    /// Longest time from a record to the end of the look that it led to.
    pub longest: Duration,
}

/// File id that stands for anonymous memory.
pub(super) const NO_FILE: FileId = FileId { dev: 0, inode: 0 };

/// How long the loader waits at most.
const PATIENCE: Duration = Duration::from_millis(100);
