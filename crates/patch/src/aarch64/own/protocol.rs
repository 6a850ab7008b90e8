//! How our own code changes on arm64 while our own threads run it. No code here.
//!
//! A patch is one word in place of another one. It is a *jump* or a *trap*. A jump is one `b` to a stub
//! (`plan`'s `stub::call`). The stub leads through a gate (`runtime::aarch64::gate`) to the consumers, does
//! what the word did, and branches back. A trap is `brk #0`. The handler (`runtime::trap`) finds it in
//! `Sites`, calls the consumers, and simulates the word or sends the thread on to its copy. What takes part
//! is the same as on x86-64. There is one writer, which holds the engine's lock and may run patched code
//! itself. There are threads, none ever stopped; the handler, which takes no lock; and children forked
//! meanwhile.
//!
//! # Jump or trap
//!
//! A word gets a trap in three cases. First, on request, which is needed for a consumer that may move the
//! program counter or the stack pointer inside a function or at a return. Second, if not even a page for a
//! stub is free within 128 MiB of it, or if its copy in a stub would not reach what it names (the simulation
//! reaches everything). Third, if it is a landing pad on a guarded page: what lands there must find a pad, of
//! which `brk` is one and `b` is none (Arm ARM D8.4.10). Such pads stay what they are. An island in between
//! would not help: it is no shorter than a stub.
//!
//! # Why a page is exchanged instead of storing a word
//!
//! The architecture lets only some words be replaced while another thread may be running them: `b`, `bl`,
//! `brk`, `hvc`, `isb`, `nop`, `smc` and `svc`, each by one of the same. (Arm ARM B2.2.5, "Concurrent
//! modification and execution of instructions".) With any other word, it is CONSTRAINED UNPREDICTABLE what a
//! thread does that has not synchronised since. Functions begin with `stp`, `sub` and `paciasp`. One way out
//! is to stop all threads, which a process cannot do to itself. The other is the one that the kernel's own
//! uprobes take (`__replace_page`, kernel/events/uprobes.c). They do not modify the memory that threads run.
//! They make the address lead to other memory, in which the word was changed before any thread ran it. An
//! instruction is then fetched from the old page or from the new one. So any word can be changed, also to a
//! branch.
//!
//! A user-mode emulator keeps translations of code by address, and notices a change only by certain calls.
//! `mremap` is one, a write to `/proc/self/mem` is none (QEMU 7.2 translates nothing anew behind it). What is
//! right on the processor works there as well.
//!
//! The new page is one of the same file at the same offset, mapped privately and executable from the start.
//! So `/proc/self/maps` goes on to show the file and where in it the page lies: regions, debuggers, profilers
//! and our own looks at the maps find what they found before. It is guarded (`PROT_BTI`) if the old one is.
//! It is filled through `/proc/self/mem`: no page is ever writable and executable, and the kernel cleans the
//! caches behind each such write (`copy_to_user_page`, arch/arm64/mm/flush.c).
//!
//! # Install
//!
//! | step | what | what other threads may meet |
//! |---|---|---|
//! | O1 | look: a tracer, maps, if there are to be traps also threads that block SIGTRAP; | nothing was changed |
//! | | compare each word with the file's | |
//! | O2 | stubs, and copies of words that trap and are not simulated, | nothing leads there yet |
//! | | in rooms within reach of a `b`; if there are new stubs, `membarrier` (SYNC_CORE) | |
//! | O3 | give the handler which copy stands for which original, | a table that has more than the code |
//! | | and which probes each trap calls | |
//! | O4 | for each page with words to change: a spare page of the file (S), | as before |
//! | | filled with what the page holds, and `b` or `brk` in the words' places | |
//! | O5 | `mremap` S over the page | the old page, or the new one; |
//! | | | a thread that comes between waits for the kernel's lock on the mappings |
//! | O6 | when all pages are done: | behind it, no thread runs what was fetched from an old page |
//! | | `membarrier` (PRIVATE_EXPEDITED_SYNC_CORE) | |
//! Pages with returns are exchanged before those with entries, so that no call is seen entering and not
//! returning (if both are in one page, both at once).
//!
//! - *A thread comes to a new stub*: the branch that leads there was fetched behind O5, so behind O2's
//!   barrier. What a processor may have fetched of the stub's memory before it was written is gone. (A thread
//!   that comes to a copy comes from a handler, which synchronises.) The room was mapped and cleaned before,
//!   by the kernel's own writes.
//! - *A thread stands in a stub when its word is taken out*: it goes on, calls no consumer if none is
//!   registered any more, and branches back behind the word. Stubs stay as copies do.
//! - *A signal arrives in a stub, in the gate or in a consumer*: its handler runs below the stack pointer,
//!   above which everything in use lies. It may hit the same stub, which is nested from the moment at which
//!   the thread has entered its line, as behind a trap. It sees the stub's address up to the displaced word,
//!   and the address of that word's copy behind it, as with copies. A fault of the displaced word is shown
//!   where the word stood.
//! - *A thread runs in the page during O5*: its next fetch misses the translation, which the kernel has
//!   invalidated on all processors, and waits in the fault for the kernel's lock on the mappings. The kernel
//!   takes the old page away and puts the new one there under that lock.
//! - *The writer itself runs in the page* (it is in `mremap`, and its caller's code may lie there): the same
//!   when it comes back.
//! - *A word of the page is changed between O4's reading and O5*: this must not happen. Our writers take the
//!   engine's lock; a debugger is refused in O1; the program cannot, as the page is not writable.
//! - *A fork between O5 of two pages*: the child has the patches of the first, rooms, the table that knows
//!   them, and a handler. Its first registration opens its own memory.
//! - *`mremap` fails behind the point where the old page is gone* (the kernel has no memory for a few hundred
//!   bytes). The program ends at its next step there, as it would for lack of memory anywhere. The number of
//!   mappings, which might be exhausted, is checked before. All failures but this one leave everything as it
//!   was.
//! - *The file was replaced on disk*: it is opened through what is mapped (`/proc/self/map_files`), or by its
//!   path, with device and inode compared. If neither works, that is the error, and nothing was changed.
//! - *A page that the dynamic linker has written to* (text relocations), *or that has traps already*: it is
//!   copied as it is.
//!
//! Pages that hold the file's bytes again are the file's own, with no copy of ours left: taking out the last
//! patch of a page frees its memory.
//!
//! # Traps
//!
//! A thread that blocks SIGTRAP is killed by a trap. So while a thread blocks it for good, no trap is placed
//! ([`Why::NeedsTraps`](crate::Why)), only jumps; what is there stays. A thread that begins to block it
//! later, or for an instant inside the C library, must not run probed code meanwhile: stated, not solved, as
//! for x86-64's traps.
//!
//! # One word, several calls
//!
//! A word may be an entry and a return, or a return and an instruction that is probed too. It is one site,
//! and the table lists its calls. So if such a word is requested again for more, what is there is planned
//! anew with it (`trapline::inside`, `with_neighbours`). The patch stays meanwhile:
//!
//! | step | what | what a thread meets |
//! |---|---|---|
//! | S1 | the sites become *soft* ([`Own::soften`](super::Own)); | the patch; the probes called before |
//! | | the table gets which probes are called there; nothing is written | |
//! | S2 | O1 to O6 for what is planned now: a word with a soft patch reads as the | one patch or the other; |
//! | | file's, and is written again only if it becomes another one (another stub; | the probes called before, |
//! | | a trap instead of a jump, or the other way round) | or those called now |
//! | S3 | soft patches that are no longer needed are taken out | the patch, or the word |
//! | | ([`Own::harden`](super::Own)); the table forgets what is no trap | |
//!
//! - *A thread has trapped, and a jump takes the trap's place before the handler looks*: it finds the table's
//!   entry, and the hit is made by the trap. Or it finds none any more, sees that no trap stands there, and
//!   goes back to the word (`trap`, T6), which is the jump. Once either way.
//! - *A thread is in the old stub when the word becomes a trap or another stub's*: its hit calls the probes
//!   that the old stub names, by their lists of now. Then it goes back behind the word.
//!
//! # Remove
//!
//! | step | what | what other threads may meet |
//! |---|---|---|
//! | Q1 | pages with entries, then those with returns: as O4 to O6, with the file's words | the patch, or the word |
//! | Q2 | the traps are taken out | a thread that trapped before finds nothing, |
//! | | of the table (the caller) | sees that there is no trap, and goes back to the word (`trap`, T6) |
//!
//! Copies and stubs stay, and serve again if the same word is requested at the same place for the same
//! probes: registering and unregistering for ever takes no more memory than once.
