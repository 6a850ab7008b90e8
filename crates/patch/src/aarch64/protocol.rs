//! How the code of other processes changes on arm64, and every way in which their threads may be in the
//! middle of it. No code here.
//!
//! The steps and their order are those of [`crate::protocol`]; what differs is below. A patch is one word: a
//! `b` to a stub in a code region within 128 MiB, or to an island there that leads to it
//! (`trapline_plan::aarch64::module`; its `island` lists the steps).
//!
//! # All threads are stopped
//!
//! Only `b`, `bl`, `brk`, `nop` and a few more may be exchanged for each other under threads that run them
//! (Arm ARM B2.2.5). Most first words are none of these. So every batch stops all threads while words change,
//! for publishing (I8) as for removing (R3). What a processor fetched before, it does not run afterwards. A
//! thread that was stopped goes on by an exception return, which synchronises its processor's context. The
//! kernel, which wrote through /proc/PID/mem, has cleaned the data cache and invalidated the instruction
//! cache for what it wrote (`copy_to_user_page`, arch/arm64/mm/flush.c), for all processors.
//!
//! | step | what | if the tracer dies right after |
//! |---|---|---|
//! | S1 | all threads are stopped | the kernel releases all; a call that only a repair would have hidden gives EINTR |
//! | S2 | each site is compared with the file's word, then written whole: | each word is old or new, and both work: |
//! | | eight bytes inside its line, | what new leads to exists (PATCH-4) |
//! | | of which the other four are what was read since S1 | |
//! | S3 | calls that the stop broke off are made again (`trapline_tracee::Regs`); all threads run | |
//!
//! # Where threads may be at S1
//!
//! - *Before the word, or at it*: its next fetch finds what stands there. No thread stands inside a word.
//! - *In a copy or a stub*: it runs on there and jumps back behind the word: code stays mapped (PATCH-10).
//! - *In a restartable sequence of a stub*: the stop is a preemption: the sequence begins again, and counts
//!   once.
//! - *In a signal frame with a pc at the word or in a stub*: as the two above, when it returns.
//! - *Between an exclusive load and its store*: words there are refused.
//! - *At a `blr` or `br` to the word*: a landing pad stands before the word, and stays.
//! - *Being born*: it is seized at birth, and comes to a stop of its own before its first instruction.
//! - *Forking*: the child is held, and gets the same words (I10).
//!
//! Stubs are written through the tracer's own mapping of the memfd, before any thread can come there
//! (PATCH-4). The kernel makes such a page fit for execution when the target first maps it executable, which
//! is at the first fetch (`__sync_icache_dcache`, arch/arm64/mm/flush.c). A later batch has a memfd of its
//! own.
//!
//! There are no guards, so no trap is ever served, no action of a signal is taken, and R4 has nothing to wait
//! for.
//!
//! # What remains
//!
//! A kernel uprobe that is put on our word replaces the whole word. It is found at removal as a word that is
//! neither old nor new, left alone, and reported. With pages of other than 4096 bytes, mapping fails with the
//! kernel's error, before anything was changed.
