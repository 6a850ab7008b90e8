//! Return instances: a bounded pool that any number of threads take from and put back to, at any moment.
//!
//! In: a [`PoolSize`] (CPUs, `maxactive`, size of an object), then [`get`](Pool::get) and [`put`](Pool::put)
//! with the place where the caller runs ([`At`]). Out: an object that no other caller holds, or `None`, which
//! the caller counts as missed. Invariants: POOL-1 no object is held twice. POOL-2 none is lost: each is
//! held, or in a magazine, or in a bitmap, and in one of them alone. POOL-3 putting back never fails and
//! never waits. POOL-4 no operation waits for another. So either may run in a signal handler that interrupted
//! the other, beside a thread that stands still for ever, and in a forked child. POOL-5 objects in magazines
//! never make a get fail while fewer than `maxactive` are held. POOL-6 after closing, exactly one put, or the
//! closing itself, is reported as the last.
//! Does not: look into objects, count misses, find an instance again at the function's exit, or make sure
//! that no get runs on memory that is gone. Only [`OwnedPool`] allocates, when it is made and freed. The code
//! that closes has made sure of that (`epoch`).
//!
//! # The parts
//!
//! Each CPU has two, on cache lines of their own:
//!
//! - a **per-CPU magazine** of a few objects, last in first out. Only threads that
//!   run on the CPU touch it, in a restartable sequence (rseq(2)) that ends in one plain store. There is no
//!   bus lock, and the object taken is the one that was used last.
//! - a **free bitmap** (*set* in identifiers), one bit for each object of the pool, so it has room for all of
//!   them. Any thread may take and put, by one atomic instruction on one word.
//!
//! Taking tries the own magazine, the own bitmap, then the other CPUs' bitmaps. Putting tries the own
//! magazine, then puts into the own bitmap. Only its CPU takes from a magazine, so objects in it are out of
//! reach for others. The pool allows for that in advance: it has `maxactive` + (CPUs × depth of a magazine)
//! objects. With fewer than `maxactive` held, the bitmaps together are never empty.
//!
//! Why not rings, as objpool has them (Linux 6.7, lib/objpool.c): a ring's put reserves, stores, publishes. A
//! thread that is interrupted, forked away or killed between those blocks all that come after. So the kernel
//! does it with interrupts off, which we cannot; and each ring takes a word for each object. A bitmap's put
//! is one `xadd`, which is wait-free, and a bitmap takes a bit for each object. As the seed's array showed,
//! there is no ABA if a word says "free" and nothing about what was before or comes next. What a ring would
//! give in return, first in first out, is the wrong order for caches.
//!
//! # The words
//!
//! | word | changed by |
//! |---|---|
//! | `magazine.word`: up to four objects of 16 bits, the last one lowest | sequences on that CPU; the closer after C2 |
//! | `magazine.limit`: there is room if the word is less; 0 closed | the closer |
//! | `set[w]`: bit *b*: object 63*w* + *b* is free here; bit 63: closed, others mean nothing | any thread, atomically |
//! | `refs`: objects that are not dropped, and 1 until closed | threads that drop, and the closer, atomically |
//!
//! # Taking
//!
//! | step | what |
//! |---|---|
//! | G1 | sequence: load the CPU; magazine closed or empty: G3 |
//! | G2 | store the word without its lowest object (commit): the object is ours |
//! | G3 | the own bitmap: load a word; if it has a free bit and is open, |
//! | | compare-and-swap it without the lowest (acquire). Failed: again |
//! | G4 | the same for the next CPU's bitmap, and so on round |
//! | G5 | `None` |
//!
//! # Putting
//!
//! | step | what |
//! |---|---|
//! | P1 | sequence: load the CPU; magazine closed or full: P3 |
//! | P2 | store the word with the object below the others (commit): done |
//! | P3 | add the object's bit to its word of the own bitmap (release). The word was open: done |
//! | P4 | it was closed: drop. Subtract 1 from `refs`; at 0, the caller is the last |
//!
//! # Closing
//!
//! | step | what |
//! |---|---|
//! | C1 | claim the closing (once only); `limit` := 0 on every CPU |
//! | C2 | restart all sequences in progress in this process (membarrier, PRIVATE_EXPEDITED_RSEQ), or undo C1, refuse |
//! | C3 | count the objects in the magazines, and empty them |
//! | C4 | swap every word of every bitmap for "closed"; count the bits |
//! | C5 | subtract the count, and 1, from `refs`; at 0, the closer is the last |
//!
//! ## Interleavings
//!
//! *Sequences.* The kernel aborts a sequence when its thread is preempted, migrated, or gets a signal, before
//! it executes another instruction of it. So between G1 and G2, or P1 and P2, nothing else has happened to
//! that CPU's magazine.
//! - *aborted*: before the commit, which is the only store, nothing was changed. An aborted operation goes on
//!   at G3 or P3 and does not try the magazine again. So each operation ends, even under a debugger that
//!   steps through it. POOL-5 does not need the own magazine.
//! - *migrated after the sequence*, at G3 or P3 with the old CPU's number: bitmaps are for any thread. The
//!   object ends in another CPU's bitmap; no harm but distance.
//! - *a CPU number past those known*, or none (thread not registered): G3 or P3, with the number wrapped.
//! - *two processes on a shared region*: the same; sequences are aborted whichever process runs next. Only
//!   closing needs one process.
//! - *no registration with the kernel, although the area exists*: a child of `vfork`, or of a raw clone with
//!   CLONE_VM and without an area of its own, runs on its parent's. Its sequences would not be aborted. It
//!   must not use [`At::Rseq`]; that is why making [`Registered`] is unsafe.
//!
//! *Bitmaps.* Each word is changed in single atomic steps, and its bits mean the same whatever came before.
//! - *G3 against G3*: one compare-and-swap wins; the other looks again. One of them has advanced.
//! - *G3 loads, another thread takes the object, uses it and puts it back to the same bitmap, then the swap*:
//!   it succeeds, and rightly so, since the object is free again (no ABA).
//! - *P3 against any step*: `xadd` always succeeds. The bit was 0, since the object was held (POOL-2), so
//!   there is no carry.
//! - *G4 passes a bitmap, then an object is put there, and another one that G4 has yet to look at is taken*:
//!   `None`, although at each moment an object was free. Reported as missed. It takes a second thread that
//!   takes and a third that puts during the search.
//! - *interrupted at any instruction*, by a signal with a handler that takes and puts, by death or by fork:
//!   the interrupted operation is either not yet committed or over. An object that another thread held at
//!   fork stays held in the child for good, since no thread there will put it.
//!
//! *Closing.*
//! - *P2 before C2*: C3 counts it. *P1 before C1, P2 not before C2*: restarted, goes to P3.
//! - *P3 before C4 reaches its word*: counted. *After it*: `xadd` returned "closed", so the object is
//!   dropped: that word is not read again.
//! - *G3 against C4*: either the swap takes the bit or G3 did; the loser's compare fails, and it sees
//!   "closed".
//! - *G2 between C1 and C2*: the object is held, C3 does not find it. *G1 after C1*: closed. So after C2 the
//!   magazines belong to the closer.
//! - *everything held is dropped while C4 goes on*: `refs` keeps the closer's own 1, so the memory stays
//!   until C5.
//! - *P3 put into an open word, and all is released at once*: the putting thread touches nothing after a
//!   successful P3 (nor after P2, except its own thread's area). *P4*: its object's part of `refs` keeps the
//!   memory until the subtraction, which is its last access.
//! - *a get beside C1 to C5*: it returns `None`, or an object that counts as held; but it holds no part of
//!   `refs`. So gets must be over before the last put may release memory (`epoch`), as objpool asks for a
//!   grace period.
//! - *closed twice*: C1's claim refuses the second.

#[cfg(all(not(loom), target_arch = "aarch64"))]
mod aarch64;
#[cfg(not(loom))]
mod bad_region;
pub mod magazine;
#[cfg(not(loom))]
mod memory;
pub mod protocol;
#[cfg(not(loom))]
mod sequence;
pub mod set;
pub mod size;
mod sync;
#[cfg(all(not(loom), target_arch = "x86_64"))]
mod x86_64;

#[cfg(not(loom))]
pub use crate::kernel::{register_restarts, restart_sequences};
#[cfg(all(not(loom), target_arch = "aarch64"))]
use aarch64 as native;
#[cfg(not(loom))]
pub use bad_region::BadRegion;
#[cfg(not(loom))]
pub(crate) use memory::Raw;
#[cfg(not(loom))]
pub use memory::{At, Held, Leaving, OwnedPool, Pool};
pub use protocol::{NotClosed, Returned};
#[cfg(not(loom))]
pub use sequence::Registered;
pub use size::{BadPoolSize, PoolSize};
#[cfg(all(not(loom), target_arch = "x86_64"))]
use x86_64 as native;
