//! Return instances: a bounded pool that any number of threads take from and put back to, at any moment.
//!
//! In: a [`Shape`] (CPUs, `maxactive`, size of an object), then [`get`](Pool::get) and [`put`](Pool::put) with where the caller
//! runs ([`At`]). Out: an object that nobody else holds, or `None`, which the caller counts as missed. Invariants: POOL-1 no object is
//! held twice; POOL-2 none is lost: it is held, on a shelf or in a set, and in one of them alone; POOL-3 putting back never
//! fails and never waits; POOL-4 no operation waits for another, so either may run in a signal handler that interrupted the
//! other, beside a thread that stands still for ever, and in a forked child; POOL-5 what is on shelves never makes a get fail
//! while fewer than `maxactive` are held; POOL-6 after closing, exactly one put, or the closing itself, is told that it was the last.
//! Does not: look into objects, count misses, find an instance again at the function's exit, allocate (but [`OwnedPool`], when made
//! and freed), or make sure that no get runs on memory that is gone: whoever closes has seen to that (`epoch`).
//!
//! # The parts
//!
//! Each CPU has two, on cache lines of their own:
//!
//! - a **shelf**, of a few objects, last in first out. Only threads that run on the CPU touch it, in a restartable sequence
//!   (rseq(2)) that ends in one plain store. No bus lock, and the object that comes back was used last.
//! - a **set**, one bit for each object there is, so it has room for all of them. Anyone may take and put, by one atomic
//!   instruction on one word.
//!
//! Taking tries the own shelf, the own set, then the others' sets. Putting tries the own shelf, then puts into the own set. Nobody
//! but its CPU takes from a shelf, so what rests there is out of reach for others. That is paid for beforehand:
//! the pool has `maxactive` + (CPUs × depth of a shelf) objects. With fewer than `maxactive` held, the sets together are never empty.
//!
//! Why not rings, as objpool has them (Linux 6.7, lib/objpool.c): a ring's put reserves, stores, publishes. Who is interrupted,
//! forked away or killed between those holds up all that come after, so the kernel does it with interrupts off, which we cannot; and
//! each ring takes a word for each object. A set's put is one `xadd`, wait-free; a set takes a bit for each object; and as the
//! seed's array showed, there is no ABA where a word says "free" and nothing about what was before or comes next. What a ring would give in return,
//! the order first in first out, is the wrong one for caches.
//!
//! # The words
//!
//! | word | changed by |
//! |---|---|
//! | `shelf.word`: up to four objects of 16 bits, the last one lowest | sequences on that CPU; the closer, behind step C2 |
//! | `shelf.limit`: there is room if the word is less; 0 closed | the closer |
//! | `set[w]`: bit *b* set: object 63*w* + *b* is free here; bit 63: closed, other bits say nothing | anyone, atomically |
//! | `refs`: objects that are not dropped, and 1 until closed | droppers and the closer, atomically |
//!
//! # Taking
//!
//! | step | what |
//! |---|---|
//! | G1 | sequence: load the CPU; shelf closed or empty: G3 |
//! | G2 | store the word without its lowest object (commit): that is ours |
//! | G3 | the own set: load a word; if it has a free bit and is open, compare-and-swap it without the lowest (acquire). Failed: again |
//! | G4 | the same for the next CPU's set, and so on round |
//! | G5 | `None` |
//!
//! # Putting
//!
//! | step | what |
//! |---|---|
//! | P1 | sequence: load the CPU; shelf closed or full: P3 |
//! | P2 | store the word with the object below the others (commit): done |
//! | P3 | add the object's bit to its word of the own set (release). The word was open: done |
//! | P4 | it was closed: drop. Subtract 1 from `refs`; at 0, the caller is the last |
//!
//! # Closing
//!
//! | step | what |
//! |---|---|
//! | C1 | claim the closing (once only); `limit` := 0 on every CPU |
//! | C2 | restart every sequence in progress in this process (membarrier(2), PRIVATE_EXPEDITED_RSEQ). Not possible: undo C1, refuse |
//! | C3 | count what is on the shelves, and empty them |
//! | C4 | swap every word of every set for "closed"; count the bits |
//! | C5 | subtract the count, and 1, from `refs`; at 0, the closer is the last |
//!
//! ## Interleavings
//!
//! *Sequences.* The kernel aborts a sequence when its thread is preempted, migrated, or gets a signal, before it
//! executes another instruction of it. So between G1 and G2, or P1 and P2, nothing else has happened on that CPU's shelf.
//! - *aborted*: before the commit, which is the only store, nothing was changed. An aborted operation goes on at G3 or P3 and does
//!   not try the shelf again: each operation ends, even under a debugger that steps through it. POOL-5 does not need the
//!   own shelf.
//! - *migrated behind the sequence*, at G3 or P3 with the old CPU's number: sets are anyone's. The object ends in another CPU's
//!   set; no harm but distance.
//! - *a CPU number past those known*, or none (thread not registered): G3 or P3, with the number wrapped.
//! - *two processes on a shared region*: the same; sequences are aborted whoever comes. Only closing needs one process.
//! - *no registration that the kernel knows of, though the area is there*: a child of `vfork`, or of a raw clone with CLONE_VM and
//!   without its own area, runs on its parent's. Its sequences would not be aborted. It must not use [`At::Rseq`]; that is what is
//!   unsafe about making [`Registered`].
//!
//! *Sets.* Each word is changed in single atomic steps, and its bits mean the same whatever came before.
//! - *G3 against G3*: one compare-and-swap wins; the other looks again. Someone has advanced.
//! - *G3 loads, another takes the object, uses it and puts it back to the same set, then the swap*: it succeeds, rightly: the object is
//!   free again (no ABA).
//! - *P3 against anything*: `xadd` always succeeds; the bit was 0, since the object was held (POOL-2), so nothing is carried.
//! - *G4 passes a set, then something is put there, and what it has yet to look at is taken*: `None` though at each moment something
//!   was free. Said as missed. It takes another to take and a third to put within the scan.
//! - *interrupted at any instruction*, by a signal whose handler takes and puts, by death or by fork: what was interrupted is either not
//!   yet committed or over. What another thread held at fork stays held in the child, for good; there is no one to put it.
//!
//! *Closing.*
//! - *P2 before C2*: C3 counts it. *P1 before C1, P2 not before C2*: restarted, goes to P3.
//! - *P3 before C4 reaches its word*: counted. *behind*: `xadd` returned "closed", so it drops: nobody looks at that word again.
//! - *G3 against C4*: the swap takes the bit or G3 did; the loser's compare fails, and it sees "closed".
//! - *G2 between C1 and C2*: the object is held, C3 does not find it. *G1 behind C1*: closed. So behind C2 shelves are the closer's.
//! - *everything held is dropped while C4 is on its way*: `refs` keeps the closer's own 1: the memory stays until C5.
//! - *P3 put into an open word, and all is released at once*: the putter touches nothing behind a successful P3 (nor behind P2, but its own
//!   thread's area). *P4*: its object's part of `refs` keeps the memory until the subtraction, its last touch.
//! - *a get beside C1 to C5*: told `None`, or given an object that counts as held; but it holds no part of `refs`. So gets must
//!   be over before the last put may release memory (`epoch`), as objpool asks for a grace period.
//! - *closed twice*: C1's claim refuses the second.

#[cfg(all(not(loom), target_arch = "aarch64"))]
pub mod aarch64;
#[cfg(not(loom))]
mod memory;
pub mod protocol;
pub mod set;
pub mod shape;
pub mod shelf;
mod sync;
#[cfg(all(not(loom), target_arch = "x86_64"))]
pub mod x86_64;

#[cfg(not(loom))]
pub use crate::kernel::{register_restarts, restart_sequences};
#[cfg(all(not(loom), target_arch = "aarch64"))]
use aarch64 as native;
#[cfg(not(loom))]
pub(crate) use memory::Raw;
#[cfg(not(loom))]
pub use memory::{At, BadRegion, Held, Leaving, OwnedPool, Pool};
#[cfg(not(loom))]
pub use native::Registered;
pub use protocol::{NotClosed, Returned};
pub use shape::{BadShape, Shape};
#[cfg(all(not(loom), target_arch = "x86_64"))]
use x86_64 as native;
