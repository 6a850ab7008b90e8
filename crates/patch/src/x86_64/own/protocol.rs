//! How our own code changes while our own threads run it. No code here.
//!
//! [`protocol`](crate::protocol) holds: its words, its order (PATCH-3), its writes (PATCH-5, PATCH-6), its
//! journal. Described here is what differs because the writer is one of the threads, and no thread is seized.
//!
//! # What takes part
//!
//! - the *writer*: a thread that holds the engine's lock (one at a time); it may run patched code itself at
//!   any moment;
//! - the other *threads*, running, none ever stopped;
//! - the *handler of traps*: `runtime::x86_64`'s, which the engine puts in front of the program's before
//!   anything is written. It reads `Windows` (the guards and copies that this module hands over) and `Sites`
//!   (permanent traps). It takes no lock, and so serves the writer's own traps too. It is code of the
//!   program, inherited over `fork` and shared over `vfork`. So the generated handler that an outside tracer
//!   installs is not needed here. The control block's HANDLES is 0, which shows an outside detach that there
//!   is no action to put back;
//! - *children* forked meanwhile, by threads that do not hold the lock;
//! - an *outside tracer* that wants to patch the same process.
//!
//! # Install
//!
//! | step | what | what other threads may meet |
//! |---|---|---|
//! | O1 | look: segments, maps, threads that block signals; | nothing was changed |
//! | | plan; compare every site with the file (I1 and I3) | |
//! | O2 | memfd, data RW, code R-X at the planned addresses, | mapped and inert |
//! | | where nothing was (MAP_FIXED_NOREPLACE); control block in state Building | |
//! | O3 | look for an outside tracer (PATCH-1, below); if there is one, undo O2 | |
//! | O4 | fill code, guard table, journal; link the segment; hand over guards, copies and traps; state Armed (I6, I7) | |
//! | O5 | publish islands, exits, entries (I8), each with one write to /proc/self/mem | below |
//!
//! PATCH-4 holds as outside: what a published byte can lead to exists before it. A thread that fetches the
//! new bytes has seen an 8-byte store by the kernel's copy on this CPU, or got the line from it. The code
//! that they lead to was written before, through another mapping of the same page, and is reached by a jump.
//! x86 keeps instruction fetch coherent with stores by physical address (SDM 3, 11.6), and no CPU can have
//! fetched those lines earlier for execution, because nothing led there.
//!
//! ## A window inside one line
//!
//! As in I8: a thread before the head runs *old* or the jump. A thread at an interior boundary (preempted
//! there, in a signal frame, or come from a branch that no analysis found) traps, now or in minutes, and the
//! handler sends it to the copy. There is no seizure, so the kernel delivers SIGTRAP at once. That requires
//! that the thread does not block it:
//!
//! - *A thread that blocks SIGTRAP for good* is found by O1. Windows with a boundary inside are then refused
//!   ([`Why::NeedsTraps`](crate::Why)), as are those across a line and sites for a trap; without proof, all
//!   are refused ([`Why::Unproven`](crate::Why)). Others never need a trap.
//! - *A thread that blocks all signals for an instant*, as libc does in `pthread_create`, `abort` and
//!   `posix_spawn`, may be killed by the kernel. This happens if it is preempted exactly at an interior
//!   boundary of a window that is published in that instant. It takes a probe on a function that libc calls
//!   in that state. Outside, the tracer repairs this; in our own process no code can. Stated, not solved.
//! - *A thread inside a consumer* runs with the mask of the code that it was called from.
//!
//! ## A window across a line, and every window where eight-byte writes were not proven
//!
//! T1 to T6, with `membarrier` (PRIVATE_EXPEDITED_SYNC_CORE) for each core sync: when it returns, every CPU
//! that runs a thread of this process has serialised. A thread that runs later serialises as it returns to
//! user space. The int3 that stand at the head and at boundaries from T1 to T5 are served by the guard table
//! (PATCH-7). A thread that calls the function in those microseconds with all signals blocked is the case
//! above.
//!
//! ## A permanent trap
//!
//! If no jump fits, or if the caller requests it, the patch is one byte, int3. The handler finds it in
//! `Sites`, calls the consumers and simulates the instruction, or sends the thread on to its copy. A byte is
//! written whole on any CPU, and has no interior. It is in `Sites` before it is written, and is taken out of
//! `Sites` after it was removed. A thread that has trapped and is on its way to the handler then finds
//! nothing, sees that the byte is no int3, and goes back to the instruction (`trap`, T6). The segment's guard
//! table has the trap too, leading to a stub that does the same as the handler. So a tool that serves traps
//! from outside (a tracer that cleans up a forked child after its parent is gone) finds code there that calls
//! the consumers.
//!
//! # Many small batches
//!
//! A batch takes one of some hundred displacements for the stretch of text that it is about. So after some
//! batches a module gets a common code region: one displacement for its whole text,
//! one segment, into which batch after batch is laid. What is there is never overwritten (APPEND-1). So O2 and
//! O3 are done once, and again if all sites had been given up ([`come_back`](super::Own)). O4 is:
//!
//! | step | what | what other code sees meanwhile |
//! |---|---|---|
//! | H1 | code: stubs behind those that are there; | nothing leads there yet |
//! | | in the mirrored range one jump for each site, where nothing was | |
//! | H2 | the old guard table is filled up with addresses that do not exist, | an outside tracer, or a child forked |
//! | | the count is raised, | meanwhile, finds a whole sorted table |
//! | | the new table is written separately, one word switches to it | |
//! | H3 | journal: entries, then the count | sites that hold *old*, and are skipped |
//!
//! then as above. If neither a space nor a common code region is within reach, sites become traps, with stubs
//! anywhere: their jumps back go through memory.
//!
//! # Change
//!
//! A patch is planned anew if a neighbour needs bytes of its window, or if it must do more. The change goes
//! through traps, as the kernel changes its own text (`smp_text_poke_batch_finish`,
//! arch/x86/kernel/alternative.c): no hit that happens meanwhile is missed.
//!
//! | step | what | what a thread at a probed instruction meets |
//! |---|---|---|
//! | S1 | the handler is given each instruction in the old windows | the jump, or the trap: consumers are called, |
//! | | before which a consumer is called; the windows get *old* | and the instruction is simulated, |
//! | | with int3 at those instructions, as in Q1 | or its copy in the old stub is run |
//! | S2 | O1 to O5 for what is planned now: traps of S1 | the trap, or the new jump; |
//! | | are compared as the bytes that they stand for, | a trap inside a new window has a guard from O4 on, |
//! | | and stay until their window is written | which leads to before the call in the new stub |
//! | S3 | traps of S1 that nothing covers get *old*; | a trap that was executed before: its byte is no int3 now, |
//! | | the handler forgets all that are not permanent | so back to the instruction |
//! | | | (`trap`, T6), which is whole, or to the new jump |
//!
//! Each arrival runs the consumers once: the handler's answer is the guard's way (the stub calls them) or its
//! own, never both, and T6 calls none. A thread that stands inside an old window at S1 finds the file's
//! instructions, or a trap at a probed one, which is before its call. A child that is forked between S1 and
//! S3 keeps the traps, and the handler with its table. The journal knows only *old* and *new* of a window, so
//! an outside tracer that cleans up such a child leaves the traps alone and reports it.
//!
//! # One address, several guards
//!
//! A place may be patched more than once over time: with another stub, or because another library lies there
//! now. A search takes one entry for an address. So before a site is published (O4, and when it is put back),
//! all entries for its addresses are made to lead to where it leads, with one aligned word each. A thread
//! that traps meanwhile reads the word before or after. Before: it goes on in an older copy of the same
//! instructions, or runs an older stub of the same probe, as a thread that was there a moment earlier would.
//! If another library was there, no thread can stand in it any more.
//!
//! # Other writers
//!
//! There may be none (PATCH-1). Threads of ours take the engine's lock. An outside tracer T seizes us, then
//! looks for segments, then maps its own, and releases us when its patches are in place. Against it, we map
//! (state Building), then look whether we are seized, then look for segments:
//!
//! - T looks after our mapping: it finds the mapping, sees that its tracer (we) lives, and refuses.
//! - T looked before our mapping: it had seized us by then. Either it still holds us when we look, or it has
//!   released us; then its segment is mapped by now, and we find that. Either way we undo O2, and report
//!   which process it is.
//!
//! A debugger that holds us looks the same as T before its mapping. It is refused as well: two tools that put
//! int3 into the same code would each take the other's for its own. When none of our sites is in place, all
//! segments are in state Removed, and T may come. Before a site is put back, the state becomes Armed again
//! and the look is repeated, so that the same two cases decide.
//!
//! # Remove
//!
//! | step | what | what other threads may meet |
//! |---|---|---|
//! | Q1 | entries, then exits, then islands | a thread in a stub or copy runs on there; |
//! | | get *old* where they hold *new* (R3) | one with the jump fetched runs the stub once more |
//! | Q2 | if no site is left: state Removed | |
//!
//! Actions stay: the handler passes on what is not ours (TRAP-1), and without stopping all threads it cannot
//! be known that no trap is on its way to it. Code stays mapped for the same reason (PATCH-10), and is used
//! again. A site that is requested once more *at the same address with the same file bytes* gets the same
//! patch, leading to the same stub, by one write. So registering and unregistering for ever takes no more
//! memory than doing it once. A stub holds a number that names a probe: the owner of that probe keeps the
//! number as long as the code.
//!
//! When a consumer may be dropped is not decided here: bytes are no proof that no thread is in a stub. The
//! registry's grace period is.
//!
//! # Fork
//!
//! A child has a copy of the text and of the registry, and shares the segments' words. Each patch works by
//! itself, so a fork between any two writes leaves a working child. A child forked between T1 and T5 keeps
//! the int3 of that moment, and is served by traps. The child's first registration notices the new pid. It
//! opens its own memory (the old descriptor is the parent's!), makes segments of its own, served by the
//! handler that it inherited, and never writes inherited words. Taking out inherited sites changes only the
//! child's text.
//!
//! # Handlers that hit meanwhile
//!
//! A consumer called while the writer is between two writes sees some sites patched and others not; nothing
//! in the engine depends on more. A consumer must not register: it would wait for a lock that its own thread
//! may hold.
//!
//! # Where /proc/self/mem is refused
//!
//! Some systems forbid it (`proc_mem.force_override=never`, a sandbox without /proc). There is no other way
//! that never makes a page both writable and executable; the batch fails with the system's own error, and
//! nothing was changed.
//!
//! # Where /proc/self/mem refuses
//!
//! A kernel may refuse to write to pages that are not writable (`proc_mem.force_override`, since 6.12; a
//! seccomp filter). Then each write is made by a store, of the same words, between two `mprotect`s of its
//! page: R-X to RWX, and back. Every thread goes on meanwhile, since the page stays executable. The stores
//! are those of one CPU, to which the arguments above apply as to the kernel's copy.
//!
//! - *Another thread writes to that page by accident in those microseconds*: it would have had a fault
//!   otherwise. This is the one moment at which a page of the program's is both writable and executable. If
//!   that is forbidden (SELinux, `PR_SET_MDWE`), the batch ends with `TargetError::Locked`.
//! - *The page is unmapped*: `mprotect` fails, and the site is unreachable. If it is unmapped between
//!   `mprotect` and the store, the store faults as the program's own would. Unlike a write to /proc/self/mem,
//!   this one relies on code not being unloaded while it is registered on.
//! - *Other code reads the maps*: a look may find the page writable, and takes nothing there; looks are made
//!   under the same lock.
//! - *The kernel's records*: each change back is recorded as an executable mapping; the look that follows
//!   finds nothing new.
