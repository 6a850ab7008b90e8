//! How the code of other processes changes on arm64, and every way in which their threads may be in the middle of it. No code here.
//!
//! The steps and their order are those of [`crate::protocol`]; what differs is below. A patch is one word: a `b` to a stub in a room
//! within 128 MiB, or to an island there that leads to it (`trapline_plan::aarch64::module`; its `island` lists the steps).
//!
//! # Who stands still
//!
//! Only `b`, `bl`, `brk`, `nop` and a few more may be exchanged for each other under threads that run them (Arm ARM B2.2.5); most first words are none of
//! these. So every batch stops all threads while words change, for publishing (I8) as for removing (R3). What a processor fetched before, it does not run
//! afterwards: a thread that was stopped goes on by an exception return, which synchronises its processor's context, and the kernel that wrote through /proc/PID/mem
//! has cleaned the data cache and invalidated the instruction cache for what it wrote (`copy_to_user_page`, arch/arm64/mm/flush.c), for all processors.
//!
//! | step | what | if the tracer dies right after |
//! |---|---|---|
//! | S1 | all threads stopped | the kernel lets go of all; a call that only a repair would have hidden gives EINTR |
//! | S2 | each site compared with the file's word, then written whole: eight bytes inside its line, of which the other four are what was read since S1 | each word is old or new, and both work: what new leads to exists (PATCH-4) |
//! | S3 | calls that the stop broke off made again (`trapline_target::Regs`); all run | |
//!
//! # Where threads may be at S1
//!
//! - *before the word, or at it*: its next fetch finds what stands there. Nobody stands inside a word.
//! - *in a copy or a stub*: it runs on there and jumps back behind the word: code stays mapped (PATCH-10).
//! - *in a restartable sequence of a stub*: the stop is a preemption: it begins again, and counts once.
//! - *in a signal frame with a pc at the word or in a stub*: as the two above, when it returns.
//! - *between an exclusive load and its store*: words there are refused.
//! - *at `blr` or `br` whose target the word is*: a landing pad stands before the word, and stays.
//! - *being born*: it is seized at birth, and comes to a stop of its own before its first instruction.
//! - *forking*: the child is held, and gets the same words (I10).
//!
//! Stubs are written through the tracer's own mapping of the memfd, before anybody can come there (PATCH-4); the kernel makes such a page fit for execution
//! when the target first maps it executable, which is at the first fetch (`__sync_icache_dcache`, arch/arm64/mm/flush.c). A later batch has a memfd of its own.
//!
//! There are no guards, so no trap is ever served, no action of a signal is taken, and R4 has nothing to wait for.
//!
//! # What remains
//!
//! A kernel uprobe that somebody puts on our word replaces it whole: it is found at removal as what is neither old nor new, left alone, and reported. Pages of other than
//! 4096 bytes: mapping fails by the kernel's word for it, before anything was changed.
