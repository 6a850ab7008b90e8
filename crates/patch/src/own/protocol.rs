//! How our own code changes while our own threads run it. No code here.
//!
//! [`protocol`](crate::protocol) holds: its words, its order (PATCH-3), its writes (PATCH-5, PATCH-6), its
//! journal. Here stands what differs because the writer is one of the threads, and nobody is seized.
//!
//! # Who takes part
//!
//! - the *writer*: a thread that holds the engine's lock (one at a time); it may run patched code itself at any moment;
//! - the other *threads*, running, none ever stopped;
//! - the *handler of traps*: `runtime::x86_64`'s, which the engine puts in front of the program's before anything is written. It asks
//!   `Windows` (what this module hands over of guards and copies) and `Sites` (traps for good), takes no lock, and so serves the writer's
//!   own traps too. It is code of the program, inherited over `fork` and shared over `vfork`, so the generated handler that an outside tracer
//!   brings is needed nowhere here; the control block's HANDLES is 0, which tells an outside detach that there is no action to put back;
//! - *children* forked meanwhile, by threads that do not hold the lock;
//! - an *outside tracer* that wants to patch the same process.
//!
//! # Install
//!
//! | step | what | what others may meet |
//! |---|---|---|
//! | O1 | look: segments, maps, who blocks signals; plan; compare every site with the file (I1 and I3) | nothing was changed |
//! | O2 | memfd, data RW, code R-X at the planned addresses, where nothing was (MAP_FIXED_NOREPLACE); control block in state Building | mapped and inert |
//! | O3 | look for an outside tracer (PATCH-1, below); if there is one, undo O2 | |
//! | O4 | fill code, guard table, journal; link the segment; hand guards, copies and traps over; state Armed (I6, I7) | |
//! | O5 | publish islands, exits, entries (I8), each with one write to /proc/self/mem | below |
//!
//! PATCH-4 holds as outside: what a published byte can lead to exists before it. A thread that fetches the new bytes has seen an
//! 8-byte store by the kernel's copy on this CPU or got the line from it; the code that they lead to was written before, through
//! another mapping of the same page, and is reached by a jump: x86 keeps instruction fetch coherent with stores by physical address
//! (SDM 3, 11.6), and no CPU can have fetched those lines earlier for execution, because nothing led there.
//!
//! ## A window inside one line
//!
//! As in I8: a thread before the head runs old or the jump; one at an interior boundary (preempted there, in a signal frame, come
//! from a branch that nobody saw) traps, now or in minutes, and the handler sends it to the copy. There is no seizure, so
//! the kernel delivers SIGTRAP at once. It needs that the thread does not block it:
//!
//! - *a thread that blocks SIGTRAP for good* is found by O1; windows with a boundary inside are then refused
//!   ([`Why::NeedsTraps`](crate::Why)), as are those across a line, sites for a trap, and without proof all ([`Why::Unproven`](crate::Why)). Others need no trap ever;
//! - *a thread that blocks all signals for an instant*, as libc does in `pthread_create`, `abort` and `posix_spawn`, and that is
//!   preempted exactly at an interior boundary of a window that is published in that instant, is killed by the kernel. It takes a probe on
//!   a function that libc calls in that state. Outside, the tracer repairs this; in our own process nobody can. Stated, not solved;
//! - *a thread inside a consumer* runs with the mask of the code that it was called from.
//!
//! ## A window across a line, and every window where eight-byte writes were not proven
//!
//! T1 to T6, with `membarrier` (PRIVATE_EXPEDITED_SYNC_CORE) for each core sync: when it returns, every CPU that runs a thread of this
//! process has serialised, and a thread that runs later serialises as it returns to user space. The int3 that stand at the head and at boundaries
//! from T1 to T5 are served by the guard table (PATCH-7). A thread that calls the function in those microseconds with all signals
//! blocked is the case above.
//!
//! ## A trap for good
//!
//! Where no jump fits, or where the caller asks, the patch is one byte, int3. The handler finds it in `Sites`, calls the consumers and
//! simulates the instruction, or sends the thread on to its copy. A byte is written whole on any CPU, and has no interior. It is in `Sites` before it is
//! written, and taken out of it after it was removed; a thread that has trapped and is on its way to the handler then finds
//! nothing, sees that the byte is no int3, and goes back to the instruction (`trap`, T6). The segment's guard table has the trap too,
//! leading to a stub that does the same as the handler: whoever serves traps from outside (a tracer that cleans up a forked child whose parent
//! is gone) finds a place there that calls the consumers.
//!
//! # Many small batches
//!
//! A batch takes a displacement (of some hundred) for the stretch of text that it is about; so after some batches a module gets a *home* (`home`): one displacement for its
//! whole text, one segment, into which batch after batch is laid. What is there is never overwritten (HOME-1), so O2 and O3 are done once and again when
//! all sites had been given up ([`come_back`](super::Own)); O4 is:
//!
//! | step | what | who looks meanwhile |
//! |---|---|---|
//! | H1 | code: stubs behind those that are there; in the mirror one jump for each site, where nothing was | nobody comes there yet |
//! | H2 | the old guard table is filled up with addresses that nobody has, the count raised, the new table written apart, one word turned | an outside tracer, or a child forked meanwhile, finds a whole sorted table |
//! | H3 | journal: entries, then the count | sites that hold *old*, and are skipped |
//!
//! then as above. Where neither a space nor a home is within reach, sites become traps, with stubs anywhere: their ways back are jumps through memory.
//!
//! # Change
//!
//! A patch that is planned anew, because a neighbour needs bytes of its window or it must do more, goes through traps, as the kernel's own text does
//! (`smp_text_poke_batch_finish`, arch/x86/kernel/alternative.c): nobody who comes meanwhile is missed.
//!
//! | step | what | what a thread at a probed instruction meets |
//! |---|---|---|
//! | S1 | the handler is told of each instruction in the old windows before which a consumer is called; the windows get *old* with int3 at those instructions, as in Q1 | the jump, or the trap: consumers called, the instruction simulated or its copy in the old stub |
//! | S2 | O1 to O5 for what is planned now: traps of S1 are compared as the bytes that they stand for, and stay until their window is written | the trap, or the new jump; a trap inside a new window has a guard from O4 on, which leads to before the call in the new stub |
//! | S3 | traps of S1 that nothing covers get *old*; the handler forgets all that are not for good | a trap that was executed before: its byte is no int3 now, so back to the instruction (`trap`, T6), which is whole, or to the new jump |
//!
//! Each arrival runs the consumers once: the handler's answer is the guard's way (the stub calls them) or its own, never both, and T6 calls nobody.
//! A thread that stands inside an old window at S1 finds the file's instructions, or a trap at a probed one, which is before its call. A
//! child that is forked between S1 and S3 keeps the traps, and the handler with its table. The journal knows *old* and *new* of a
//! window only, so an outside tracer that cleans such a child up leaves the traps alone and says so.
//!
//! # One address, several guards
//!
//! A place may be patched more than once over time: with another stub, or because another library lies there now. Whoever looks
//! takes one entry for an address, so before a site is published (O4, and when it is put back) all
//! entries for its addresses are made to lead to what it leads to: one aligned word each. A thread that traps meanwhile reads
//! the word before or after. Before: it goes on in an older copy of the same instructions, or runs an older stub of the same probe, as a
//! thread that was there a moment earlier would; if another library was there, no thread can stand in it any more.
//!
//! # Who writes besides us
//!
//! Nobody may (PATCH-1). Threads of ours take the engine's lock. Against an outside tracer T, who seizes us, then looks for
//! segments, then maps its own, and lets go when its patches are in place, we map (state Building), then look whether we are
//! seized, then for segments:
//!
//! - T looks after our mapping: it finds it, sees that its tracer (we) lives, and refuses;
//! - T looked before our mapping: it had seized us by then. Either it still holds us when we look, or it let go: then its segment is
//!   mapped by now, and we find that. Both ways we undo O2, and report who it is.
//!
//! A debugger that holds us looks the same as T before its mapping. It is refused as well: two who put int3 into the same code would
//! take each other's for theirs. When none of our sites is in place, all segments are in state Removed, and T may come; before a site
//! is put back, the state is Armed again and the look is repeated, so that the same two cases decide.
//!
//! # Remove
//!
//! | step | what | what others may meet |
//! |---|---|---|
//! | Q1 | entries, then exits, then islands get *old* where they hold *new* (R3) | a thread in a stub or copy runs on there; one with the jump fetched runs the stub once more |
//! | Q2 | if no site is left: state Removed | |
//!
//! Actions stay: the handler passes on what is not ours (TRAP-1), and without stopping everybody nobody can tell that no trap
//! is on its way to it. Code stays mapped for the same reason (PATCH-10, docs/design/memory.md), and is used again: a site that is wanted once
//! more *at the same address with the same file bytes* gets the same patch, leading to the same stub, by one write. So
//! registering and unregistering for ever takes no more memory than doing it once. A stub holds a number that names a probe: the
//! owner of that probe keeps it as long as the code.
//!
//! When a consumer may be dropped is not decided here: bytes are no proof that nobody is in a stub. The registry's grace period is.
//!
//! # Fork
//!
//! A child has a copy of the text and of the registry, and shares the segments' words. Each patch works by itself, so a fork
//! between any two writes leaves a working child. A child forked between T1 and T5 keeps the int3 of that moment, and is served by traps. The
//! child's first registration notices the new pid: it opens its own memory (the old descriptor is the parent's!), makes
//! segments of its own, served by the handler that it inherited, and never writes inherited words. Taking
//! inherited sites out changes the child's text only.
//!
//! # Handlers that hit meanwhile
//!
//! A consumer called while the writer is between two writes sees some sites patched and others not; nothing in the engine
//! depends on more. A consumer must not register: it would wait for a lock that its own thread may hold.
//!
//! # Where /proc/self/mem is refused
//!
//! Some systems forbid it (`proc_mem.force_override=never`, a sandbox without /proc). There is no other way that keeps the rule that
//! no page is ever writable and executable at once; the batch fails with the system's own error, and nothing was changed.
//!
//! # Where /proc/self/mem refuses
//!
//! A kernel may refuse to write to pages that are not writable (`proc_mem.force_override`, since 6.12; a seccomp filter). Then each write is
//! made by a store, of the same words, between two `mprotect`s of its page: R-X to RWX, and back. Every thread goes on meanwhile, since the
//! page stays executable; the stores are those of one CPU, to which what stands above applies as to the kernel's copy.
//!
//! - *another thread writes to that page by accident in those microseconds*: it would have had a fault. This is the one moment at which a page of
//!   the program's is both writable and executable; where that may not be (SELinux, `PR_SET_MDWE`), the batch ends with `TargetError::Locked`.
//! - *the page is unmapped*: `mprotect` says so, and the site is unreachable. Unmapped between `mprotect` and the store, the store faults as
//!   the program's own would: unlike a write to /proc/self/mem, this one trusts that nobody unloads code while it is registered on.
//! - *somebody reads the maps*: a look may find the page writable, and takes nothing there; looks are made under the same lock.
//! - *the kernel's records*: each change back tells of an executable mapping; the look that follows finds nothing new.
