//! The control block: the first pages of a segment's shared memory.
//!
//! A *segment* is one memfd made for one batch of patches in one process. It holds, in this order: control
//! block, journal, guard table, list of regions, counters (the *near* part, which every module maps within
//! reach of its code). Then, page-aligned, come latency areas, counters by thread, tables of values, rings
//! (the *far* part, mapped once, anywhere); then the code regions. Forked children inherit it. The generated
//! code knows only absolute or rip-relative addresses; the offsets below are for the tracer, and for a later
//! tracer that cleans up.

/// First word of a segment: "TRAPLINE" in little-endian ASCII.
pub const MAGIC: u64 = u64::from_le_bytes(*b"TRAPLINE");
/// Version of everything declared in this crate. A segment of another version is never written to, only named
/// in an error.
pub const VERSION: u64 = 9;
/// Name of the memfd, as /proc/PID/maps shows it: `/memfd:trapline (deleted)`.
pub const MEMFD_NAME: &str = "trapline";
/// Length of the control block in bytes.
pub const CONTROL_LEN: u64 = 4096;

/// Byte offsets of the control block's words.
pub mod at {
    #![allow(missing_docs, reason = "each name is its documentation; units stand in the name")]
    pub const MAGIC: u64 = 0;
    pub const VERSION: u64 = 8;
    /// One of [`super::State`].
    pub const STATE: u64 = 16;
    pub const TRACER_PID: u64 = 24;
    /// Field 22 of the tracer's /proc/PID/stat, so that another process with a reused PID is not mistaken for
    /// the tracer.
    pub const TRACER_START: u64 = 32;
    /// Process that the segment was made for (forked children differ from it).
    pub const OWNER_PID: u64 = 40;
    pub const DATA_LEN: u64 = 48;
    pub const JOURNAL_OFF: u64 = 56;
    pub const JOURNAL_COUNT: u64 = 64;
    pub const GUARD_OFF: u64 = 72;
    pub const GUARD_COUNT: u64 = 80;
    pub const COUNTER_OFF: u64 = 88;
    pub const COUNTER_COUNT: u64 = 96;
    /// Lines of 64 bytes per group of 8 counters.
    pub const COUNTER_LINES: u64 = 104;
    pub const LATENCY_OFF: u64 = 112;
    pub const LATENCY_COUNT: u64 = 120;
    pub const LATENCY_STRIDE: u64 = 128;
    /// Private anonymous memory of the target that holds entry stamps: address and length; 0 when none.
    pub const STAMPS_ADDR: u64 = 136;
    pub const STAMPS_LEN: u64 = 144;
    /// Address, in the target, of the next segment's control block; 0 at the end of the chain.
    pub const NEXT_SEGMENT: u64 = 152;
    /// Dispositions that we replaced: 4 words each (handler, flags, restorer, mask), as rt_sigaction takes
    /// them.
    pub const OLD_SIGTRAP: u64 = 160;
    pub const OLD_SIGILL: u64 = 192;
    /// Our handler's address; 0 when none was installed.
    pub const HANDLER: u64 = 224;
    /// Bit 0: SIGTRAP's disposition is ours; bit 1: SIGILL's; 2: SIGSEGV's; 3: SIGBUS'.
    pub const HANDLES: u64 = 232;
    /// Guard traps that the in-target handler has served.
    pub const GUARD_HITS: u64 = 240;
    /// Entries that found no stamp block free.
    pub const MISSED: u64 = 248;
    pub const REGION_COUNT: u64 = 256;
    /// Byte offset of `REGION_COUNT` records of 4 words: address, length, memfd offset, kind (see
    /// [`super::RegionKind`]).
    pub const REGIONS_OFF: u64 = 264;
    /// Counters by thread (see [`crate::threads`]): byte offset, number of rows, number of counters; no rows
    /// means none.
    pub const THREADS_OFF: u64 = REGIONS_OFF + 8;
    pub const THREADS_ROWS: u64 = THREADS_OFF + 8;
    pub const THREADS_COUNTERS: u64 = THREADS_OFF + 16;
    /// Return trampolines of the process (see [`crate::trampolines`]), in the segment that contains them:
    /// address of the code, of the private memory, number; 0 in other segments.
    pub const TRAMPOLINES_CODE: u64 = THREADS_OFF + 24;
    pub const TRAMPOLINES_TABLE: u64 = THREADS_OFF + 32;
    pub const TRAMPOLINES_COUNT: u64 = THREADS_OFF + 40;
    /// First address of the code that the trampolines share, and the first behind it.
    pub const TRAMPOLINES_SHARED: u64 = THREADS_OFF + 48;
    pub const TRAMPOLINES_SHARED_END: u64 = THREADS_OFF + 56;
    /// Frame information of the trampolines, as it is registered with unwinders.
    pub const UNWIND: u64 = THREADS_OFF + 64;
    /// Bit 2n: the information may be registered with unwinder n, so its memory must stay; bit 2n + 1: it is
    /// registered, and not yet deregistered.
    pub const UNWIND_REGISTERED: u64 = THREADS_OFF + 72;
    /// Address of unwinder n's `__deregister_frame`, [`super::MAX_UNWINDERS`] words.
    pub const UNWIND_TAKE_BACK: u64 = THREADS_OFF + 80;
    /// As `OLD_SIGTRAP`.
    pub const OLD_SIGSEGV: u64 = UNWIND_TAKE_BACK + super::MAX_UNWINDERS * 8;
    pub const OLD_SIGBUS: u64 = OLD_SIGSEGV + 32;
    /// In each segment: the handler that serves faults of its code; 0 when none does.
    pub const FAULT_HANDLER: u64 = OLD_SIGBUS + 32;
    /// Tables of pages that texts may be loaded from (see [`crate::pages`]): byte offset, and number of
    /// tables; 0 when there are none.
    pub const PAGES_OFF: u64 = FAULT_HANDLER + 8;
    pub const PAGES_TABLES: u64 = FAULT_HANDLER + 16;
    /// Bits of [`super::fact`]: facts that threads are about to change. These threads wait until patches that
    /// rely on them are removed.
    pub const ASKED: u64 = PAGES_TABLES + 8;
    /// The same bits: nothing relies on these facts any more, so no thread waits.
    pub const CLOSED: u64 = PAGES_TABLES + 16;
    /// x86-64: the last handler that a thread asked to set at C's `sigaction`; bit 63: the kernel describes the
    /// signal to it. 0 if none.
    pub const ASKED_HANDLER: u64 = PAGES_TABLES + 24;
    /// Not 0: threads that find a compact ring full wait for the reader (docs/design/recording.md).
    pub const MAY_WAIT: u64 = PAGES_TABLES + 32;
    /// The tick of the clock at which the reader last showed that it lives.
    pub const BEAT: u64 = PAGES_TABLES + 40;
    /// The last ticket that was drawn at the loader's rendezvous (`patch`'s `loading`), and the last one that was
    /// answered.
    pub const LOADED: u64 = PAGES_TABLES + 48;
    pub const LOOKED: u64 = PAGES_TABLES + 56;
    /// Changes while the tracer lives: threads that wait for its answer give up only if it stays the same.
    pub const ALIVE: u64 = PAGES_TABLES + 64;
    /// x86-64: the last ticket that was drawn by a thread that asks, and the last one of those that may go on although
    /// their facts stay as they are.
    pub const ASKERS: u64 = PAGES_TABLES + 72;
    pub const PASSED: u64 = PAGES_TABLES + 80;
    /// How many numbers of processes were given (see [`crate::sharers`]), and the address of the page that each process
    /// has for itself; 0 when there is none.
    pub const SHARERS: u64 = PAGES_TABLES + 88;
    pub const OWN_PAGE: u64 = PAGES_TABLES + 96;
}

/// Facts that patches rely on and that the program may change (`patch`'s `hold`).
pub mod fact {
    /// No handler of the program sees the address of a fault.
    pub const FAULTS: u64 = 1;
    /// No thread filters its system calls, or gets them back as signals.
    pub const FILTER: u64 = 2;
    /// Every thread may read the time-stamp counter.
    pub const CLOCK: u64 = 4;
    /// Our handler serves traps.
    pub const TRAPS: u64 = 8;
}

/// Bit of the word `ASKED_HANDLER`.
pub const INFORMED: u64 = 1 << 63;

/// Entries of the guard table that are no guards: copies, and the originals at which their faults are delivered
/// (`plan`'s `stub::deliver`). They follow the guards, since their first words are greater.
pub mod delivery {
    /// Bit of the first word, which is the address of a copy.
    pub const COPY: u64 = 1 << 63;
    /// Bit of the second word, which is the address of the original: a thread that returns there traps.
    pub const TRAPS: u64 = 1 << 63;
}

/// Maximum number of unwinders that get frame information.
pub const MAX_UNWINDERS: u64 = 2;

const _: () = assert!(at::OWN_PAGE + 8 <= CONTROL_LEN && at::ASKED_HANDLER == at::ASKED + 16);

/// Maximum number of region records; a block with more is broken.
pub const MAX_REGIONS: u64 = 1 << 15;
/// Length of a region record in bytes.
pub const REGION_LEN: u64 = 32;

/// What the segment's tracer was doing. Written before the step that it names begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum State {
    /// Memory is being mapped and filled; nothing is published.
    Building = 1,
    /// Patches are being published or are in place.
    Armed = 2,
    /// Patches are being removed.
    Removing = 3,
    /// Original bytes and dispositions are back; code stays mapped for threads that may still be in it.
    Removed = 4,
}

impl State {
    /// The state in a word; `None` if there is no such state.
    #[must_use]
    pub const fn from_word(word: u64) -> Option<Self> {
        match word {
            1 => Some(Self::Building),
            2 => Some(Self::Armed),
            3 => Some(Self::Removing),
            4 => Some(Self::Removed),
            _ => None,
        }
    }
}

/// What a mapping of the segment is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum RegionKind {
    /// R-X, generated code.
    Code = 1,
    /// RW, shared data: the near part once for each module, the far part once.
    Data = 2,
    /// RW, private anonymous: entry stamps.
    Stamps = 3,
    /// RW, private anonymous: entries of return trampolines.
    Trampolines = 4,
    /// RW, private anonymous, wiped by a fork: the number of the process ([`crate::sharers`]).
    Own = 5,
}
