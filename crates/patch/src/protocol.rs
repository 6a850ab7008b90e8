//! How code changes under running threads, and every way in which other code may be in the middle of it. No
//! code here.
//!
//! # What takes part
//!
//! - the *tracer*: one thread, the only one that ptraces and the only writer of this process' code (PATCH-1);
//! - the *threads* of the target, running, none stopped unless a step says so;
//! - the *guard handler*: generated code in the target that serves SIGTRAP (and SIGILL) from guard bytes and,
//!   if texts are recorded, SIGSEGV and SIGBUS from its own loads (`plan`'s `stub/text.rs`);
//! - *children* forked meanwhile, with a copy of the text and the same shared memory;
//! - a *later tracer* that finds what a dead one left.
//!
//! # Words
//!
//! A *window* is the bytes of one patch, `len` of them from `addr` on. Its *head* is the first byte. Its
//! *interior boundaries* are the starts of instructions inside it. A patch is one jump, so after publication
//! only its head may be executed. **Every byte at an interior boundary is a trapping opcode** (PATCH-2), and
//! the guard table sends a thread that arrives there to the same instruction in the relocated copy. *old* are
//! the file's bytes, *new* the patch's.
//!
//! # Install
//!
//! | step | what | if the tracer dies right after |
//! |---|---|---|
//! | I1 | open the process; look for segments; | nothing was changed |
//! | | refuse if their tracer lives; read maps and signal masks | |
//! | I2 | once a session (before each batch if we catch faults), a short seizure: | the kernel |
//! | | one thread stops, and shows where rseq areas lie and whether the clock may be read | releases all threads |
//! | I3 | plan; compare every site with the file; no thread is seized meanwhile | nothing was changed |
//! | I4 | seize every thread (stops none); births and forks are reported from here on | the kernel releases all threads |
//! | I5 | one thread stops: the memfd is made, fetched and mapped: | mapped and inert: |
//! | | data RW, code R-X and never writable, stamps; control block, state Building; | `recover` puts actions back; |
//! | | in the first segment SIGTRAP, SIGILL if a displacement holds #UD bytes, | a handler without |
//! | | SIGSEGV and SIGBUS if texts are recorded, get the guard handler, | guards passes every trap on |
//! | | each old action journaled before it is replaced; the fd is closed | |
//! | I6 | fill code, guard table and journal by the tracer's own mapping; link the segment to the chain's end | as I5 |
//! | I6a | the first segment with return trampolines: their code | as I5; |
//! | | is mapped, and unwinders are informed (`unwinder`) | what unwinders were given stays mapped and true |
//! | I7 | state Armed | the journal lists sites that still hold *old*: `recover` skips those |
//! | I8 | publish islands, then exits, then entries (PATCH-3) | the journal names every site, changed or not |
//! | I9 | semaphores are raised, | a raised one without its mark is recognized by its value |
//! | | each marked in the journal after it is | |
//! | I10 | children born since I4 get the same bytes and are released | a child runs with some patches: |
//! | | | all of them work alone |
//! | I11 | the thread that traced ends, and with it the seizure; this stops no thread | the batch is complete |
//!
//! I5 and I6 precede I8 because of PATCH-4: *whatever a published byte can lead to exists before it*: stub,
//! copy, counters, guard entry, handler, journal entry.
//!
//! ## I8 for a window inside one 64-byte line: one write (PATCH-5)
//!
//! The eight bytes inside the line that cover the window are composed from the present ones, which were read
//! in the same batch and corrected by our own writes since then. The window must hold *old*, else the site is
//! refused ("already patched by …?"). One pwrite of these eight bytes patches the site. The kernel may copy
//! by aligned words, as shown by a run of toggles (`cpu`). Then one pwrite patches all sites of a page with
//! windows in such words, from the first to the last (`run`). It is a sequence of stores of eight bytes, each
//! as below, in an order that does not matter inside a phase. A thread may be
//! - *before the head*: it fetches the line before or after the write, never half of it: it runs *old* or the
//!   jump;
//! - *at an interior boundary*, preempted or interrupted there (4 to 17 % of patches of a hot function): the
//!   first byte of its next instruction is a trapping one: guard trap → copy;
//! - *past the head with the old bytes fetched*: it executes them from its own fetch, then as above;
//! - *in a signal frame* with a pc at an interior boundary: as above when it returns, minutes later perhaps;
//!   the handler stays until detach, and the copy longer;
//! - *at a branch into the window that no analysis found*: as above, at each execution;
//! - *in a system call or page fault of an interior instruction*: it resumes behind it or at it: as above;
//! - *forking*: the child copies the page before or after the write; I10 makes them equal;
//! - *writing the same line or page itself* (a debugger, a JIT, a kernel uprobe): PATCH-1 is only about us.
//!   The comparison sees a foreign change of the window. A foreign change of the rest of the word or run
//!   would be lost if it came in the microseconds between read and write. Stated, not solved. What other
//!   tools do to a window that is in place: `foreign`.
//!
//! ## I8 for a window that no one write makes (PATCH-6, `staged`)
//!
//! This is for a window that crosses a line. It is also for every window of more than a byte on CPUs for
//! which it was not proven that eight-byte writes are seen whole (`cpu`): on Zen 3 they are not
//! (`tools/bench/runs/2026-11-23-amd-25-1`). A write here needs no more than that each byte is seen as it was
//! or as it is.
//!
//! | step | write | what a thread may see, byte by byte |
//! |---|---|---|
//! | T1 | head and interior boundaries = int3, | at the head: the old instruction, whole, or a trap → stub; |
//! | | the rest stays *old* | at a boundary: the old instruction, whole, or a trap → copy |
//! | T2 | core sync: every CPU that runs a thread of the process serialises | no CPU holds bytes from before T1: |
//! | | | no instruction of the window can start |
//! | T3 | the rest = *new* | only traps: the bytes that change are those of instructions that no thread can start |
//! | T4 | core sync | no CPU holds bytes from before T3 |
//! | T5 | head and boundaries = *new* | at the head: the trap or the jump, whole, both lead to the stub; |
//! | | | at a boundary: a trap or another trapping opcode, both lead to the copy |
//! | T6 | back to *old* | when handlers are taken down next, no CPU holds a trap. On the way to *new*, |
//! | | only: core sync | whatever is held leads to the stub, and the next change of the window begins with T1 |
//!
//! The guard table also maps the head to the stub (PATCH-7). A window *is in place* from T1 on, when each thread at its
//! head runs the old instruction or the stub, and since T2 only the stub; on the way back until T5. So a phase begins
//! one step behind the phase before it, and four rounds do what two phases need:
//!
//! | round | on the way to *new* | on the way to *old* |
//! |---|---|---|
//! | 1 | exits T1 | entries T1: in place, by traps |
//! | 2 | exits T3, entries T1: each exit is in place since T2 | entries T3, exits T1: all in place |
//! | 3 | exits T5, entries T3 | entries T5: gone when the sync is done; exits T3: in place |
//! | 4 | entries T5 | exits T5 |
//!
//! Windows that one write changes are in place at once, and gone at once. They are written in their phase's first round on
//! the way to *new*, and in its last on the way to *old*. All windows of a round share a core
//! sync, and those of a page share each write: between them it stores what it read. If the tracer dies
//! anywhere inside, the site works through traps. Its bytes are each *old*, *new* or one of these int3.
//! `recover` accepts that as ours, and a child that was forked in between is completed from it. If no writer
//! can have died in between, an int3 at a head that holds *new* behind it is another tool's breakpoint, and
//! stays.
//!
//! Kernels change their own text in this way (Linux' text_poke for one), with an instruction in place of the
//! window.
//!
//! ## Traps while the batch runs
//!
//! A thread that hits a guard while seized stops before the signal is delivered. The tracer *looks*
//! (`WNOWAIT`), moves the thread's pc to the copy, *then* reaps the stop and continues the thread without the
//! signal. The tracer may die
//! - before the look or before the move: the kernel delivers SIGTRAP to the guard handler, which does the
//!   same;
//! - between the move and the reaping: SIGTRAP is delivered with the pc already in our code: the handler sees
//!   that and returns (PATCH-8);
//! - after reaping: the thread runs on at the copy.
//!
//! A thread that had SIGTRAP blocked at the trap makes the kernel reset the disposition and unblock the
//! signal. While the tracer is there, nothing is delivered, and the tracer puts both back. That is why it
//! looks for threads that block the signal first.
//!
//! No thread may take a trap's default action in between. A thread that trapped in an earlier seizure may
//! have been released behind its stop, and may not yet have come to the look at its action: it would die of
//! another thread's reset. So before a window is closed again, all threads are proven to be past such traps,
//! in a removal (R2a) and in every batch but the first (PATCH-13).
//!
//! A trap outside any seizure goes to the guard handler, which must not block the next trap. A signal that
//! waits when a trap is taken interrupts the handler before its first instruction, and the handler of that
//! signal may meet a guard there. With SIGTRAP blocked, the kernel would reset the action, and kill. So our
//! handler lets no signal interrupt it if the program has no handler of its own. If the program has one, its
//! mask holds for ours. Then traps stay unblocked in our handler, and a guard that is met inside is served by
//! one more frame.
//!
//! A handler of the program's that blocks SIGTRAP itself must not stand at an interior boundary when the
//! seizure ends, since then no tracer would put the action back. So if a thread blocks SIGTRAP or SIGILL
//! behind I8, all threads stop once, and each that stands at a boundary goes on in the copy (PATCH-15, PATCH-17). A
//! thread that begins to block them later reaches no boundary any more, except by a frame that a signal left
//! there: the frame's mask comes back with it. A frame with a mask that blocks traps (a handler that another
//! signal interrupted just there) still loses to the kernel. Stated, not solved.
//!
//! # Programs that trap themselves
//!
//! SBCL and others have int3 in their code and a handler for it. While the kernel's reset of the action is
//! not undone yet, such a trap of another thread would take the default action. The reset happens if a guard
//! is met with SIGTRAP blocked, so in a batch no guard may be met at all. If the program had a handler of its
//! own when we came, I8 and R3 run with all threads stopped, as under `--strict` (PATCH-15). Traps are still
//! served: a frame that a signal left at a boundary comes back with the mask from before the signal. A
//! handler of SIGTRAP that is installed while we are there replaces ours, and guards trap into it
//! (docs/design/what-can-change.md).
//!
//! ## When traps cannot be served
//!
//! This is so if a thread blocks SIGTRAP for good, if the program owns the signal (Go), and under `--strict`.
//! Then I8 runs with all threads stopped. A window with an interior boundary is published only if no saved
//! context holds that boundary (PATCH-9). No thread's pc may be there (a thread that is there is moved to the
//! copy). No word of private writable memory may hold it, since stacks, signal frames and preempted
//! goroutines are there. Other windows are refused. If the tracer dies there, no thread stays stopped, and
//! each site is whole.
//!
//! A window that crosses a line goes through T1 to T5 here too, without the syncs. If traps cannot be served
//! at all, it is refused, because a tracer that died between two writes would leave an int3 that no handler
//! serves. Without proof (`cpu`), the way back runs with all threads stopped there too.
//!
//! # Remove
//!
//! | step | what | if the tracer dies right after |
//! |---|---|---|
//! | R1 | seize; state Removing | `recover` starts here again |
//! | R2 | semaphores lowered, each unmarked in the journal | its mark says whether |
//! | R2a | if windows change in steps: quiesce as in R4, for traps of an earlier seizure; | as R2 |
//! | | the actions of traps are read, so that a reset one is put back as it was (PATCH-13) | |
//! | R3 | entries, then exits, then islands (PATCH-3 backwards): | restored sites hold *old* and are skipped |
//! | | sites that still hold *new* get *old* in one write; | |
//! | | others are left alone and reported | |
//! | R3a | the word that says that faults of our loads are served is cleared, | texts are copied by the kernel |
//! | | then the tables of pages that they load from (`plan`'s `stub::text`) | from then on, as without a handler |
//! | R4 | quiesce: no thread is between a load's look and the load; | handler and guards are still there |
//! | | and none is between a guard's trap and its stop | |
//! | R4b | if faults are delivered (docs/design/faults.md): all threads stop, again and again, | as R3 |
//! | | until none is in our code; then the handlers' entries get the old bytes | |
//! | R4a | if return addresses were replaced: all threads stop, | each word holds the one |
//! | | and real addresses go back into the words that still hold ours (`trampolines`); | or the other, and both work: |
//! | | the registration with unwinders is undone (`unwinder`) | trampolines stay |
//! | R5 | one thread stops: | the same; a second try sees that they are not ours |
//! | | dispositions are put back, if they are still ours | |
//! | R6 | state Removed; | a child's own text shows what is left |
//! | | children that map the same memory follow, each a batch of its own | |
//! | R7 | once everything is read: what is proven to be unused is unmapped, | mapped and Removed: |
//! | | of this session and of earlier ones (`free`: P1 to P4) | the next tracer frees it |
//! *A seccomp filter that came after us* may forbid all calls that R2a, R4a's unwinders, R5 and unmapping
//! need (`clean::barred`). Then R3 runs with all threads stopped, by the tracer's writes alone, and the
//! steps that need calls are left out. The handler stays, finds no guard's trap, and passes others on;
//! mappings stay. The report says so.
//!
//! R3 may meet a thread
//! - *in a stub or copy*: it runs on there and jumps back behind the window: the code stays mapped
//!   (PATCH-10);
//! - *at an interior boundary since before the install*: its own instruction is back: it runs on;
//! - *with the jump fetched*: it runs the stub once more: counted, harmless;
//! - *trapped at a guard, not yet stopped*: R4;
//! - *in a signal frame with a pc in a copy*: PATCH-10.
//!
//! For a window that no one write makes, T1 to T6 backwards: head and boundaries = int3 · sync · the rest =
//! *old* · sync · head and boundaries = *old* · sync.
//!
//! R4 for each thread: it is blocked (then it is not in a trap), or it has run on a CPU for long enough that
//! a trap taken before R4 must have become a stop. A thread that is in a stop, or has a trap waiting, is
//! answered first. If some thread does neither in time, all are stopped once, and interrupted calls are
//! repaired. A stop alone is no proof: the ordered stop comes before a trap that is queued already (one stop
//! in twenty, for threads that trap all the time). So a thread that has one waiting is sent on until it is
//! answered. Otherwise R5 would leave the trap to the default action, which kills. Threads born after R3
//! cannot have trapped.
//!
//! What cannot be proven stays mapped, and the report says how much. Each later detach, and each attach that
//! finds no room, tries again. On arm64 that takes a stop of all threads, and is done on request, or for lack
//! of room.
//!
//! # Signals that arrive in our code
//!
//! A signal that is sent while a thread is in a stub or a copy is delivered there. The target's handlers stay
//! the target's (SAFE-4), so no code of ours runs in front of them to show the original address. (In our own
//! process there is such code: the signal wrappers of `runtime`'s `signal_wrappers`.) Nothing here depends on
//! it, as code stays mapped (PATCH-10). What it means for the target:
//!
//! - *A handler that does not look at the interrupted address*: nothing.
//! - *One that decides by the address of a fault*: if SIGSEGV or SIGBUS is caught, what may fault is not
//!   displaced, unless the user says that handlers only end the process.
//! - *A profiler* (SIGPROF, perf, ptrace): samples that fall into displaced code have an address in
//!   `memfd:trapline`, without a symbol and without unwind information; in a copy, registers and stack are
//!   those of the original.
//! - *Go's preemption*: it takes an address that is in none of its functions for a place where preemption is
//!   forbidden, and comes again.
//! - *One that stores the context and goes on with it later* (`setcontext`, coroutines): it goes on in our
//!   code.
//! - *One that moves the pc by the length of the instruction there*: copies keep lengths except for branches,
//!   calls and instructions that name data by distance from afar. No program is known that does this for a
//!   signal that was sent.
//!
//! # Recover
//!
//! Segments are found in the maps by the memfd's name and the block's magic. One of another version is
//! reported, never written to. A segment is in use while its tracer (pid and start time) lives: an error,
//! unless it is Removed. Building, Armed and Removing all go through R1 to R6. Each step examines what is
//! there before it acts, so it may be repeated and may be interrupted anywhere (SAFE-3). All segments of the
//! chain are taken in one batch, the newest first.
//!
//! # Rules
//!
//! - PATCH-1 there is one writer per process, at any time.
//! - PATCH-2 every interior boundary of a published window holds a trapping opcode.
//! - PATCH-3 publishing goes islands, exits, entries; removing goes the reverse way.
//! - PATCH-4 whatever a published byte can lead to exists before it.
//! - PATCH-5 a write that must be seen whole is one pwrite, of eight bytes inside one line, or of aligned
//!   words inside one page.
//! - PATCH-6 a window that no such write can change is changed in the order T1 to T6.
//! - PATCH-7 a head that may hold int3 has a guard entry.
//! - PATCH-8 a trap with its pc already in our code is answered by returning.
//! - PATCH-9 without traps, only windows are published that no saved context points into.
//! - PATCH-10 code stays mapped until it is proven that no thread is in it.
//! - PATCH-11 a site is written only after its present bytes, and its mapping's file and offset, were
//!   compared.
//! - PATCH-12 after exec or exit nothing is written: memory is reached through the address space opened at
//!   the start.
//! - PATCH-13 no trap of ours is met where our own handler has its signal blocked, nor while an earlier
//!   seizure's traps are still on their way.
//! - PATCH-14 of a patch that other tools changed, only bytes that are the file's again are written, one at
//!   a time (`foreign`).
//! - PATCH-15 a thread that blocks traps meets none at the end of a batch; if the program traps itself, all
//!   threads are stopped while code changes.
//! - PATCH-17 a stopped thread is moved only if no trap of its own is still unanswered, since its pc is behind that trap.
