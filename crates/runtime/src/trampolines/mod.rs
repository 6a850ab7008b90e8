//! Calls with a replaced return address, in our own process: which return trampoline a call gets, and what
//! happens when the call returns to it.
//!
//! In: at an entry, the return address and the stack word that holds it (on arm64 the stack pointer and x30,
//! see below). Out: a trampoline for the call, or none, and then the call is missed. In: at a return, the
//! trampoline's number. Out: the real return address, and the probe of the call. Invariants: SLOT-1 to SLOT-3
//! of `plan`'s `stub::trampolines`. SLOT-4 a trampoline that was taken without proof that its last call is
//! over leads for good to the address that the last call returns to.
//! Does not: keep which consumers wait for a call (`instances` does, with the trampoline's address as key),
//! make or map code.
//!
//! # The words
//!
//! They are those of `record::trampolines`, reached through `words`; `models::trampolines` runs the steps
//! below in loom. In an entry, `WHAT` is the probe (0: no consumer waits), `SITE` is 0 if the call has an
//! instance, and `BOUND` is explained below. There are two more tables. *Hints* name the trampoline of a
//! (stack word, return address); a line of eight serves a part of a stack page. *Quick hints*, one for each
//! such pair, name bound trampolines that have no other armed call under them on the same stack word. A hint
//! is a guess; the entry decides.
//!
//! # Steps
//!
//! | step | entry (`dispatch`, D3 to D6) | | return (`dispatch::returned`) |
//! |---|---|---|---|
//! | A1 | real := the stack word. | B1 | the trampoline's code has put |
//! | | If that is a trampoline, the function was reached by a tail call: | | its number into the stack word |
//! | | `UNDER` := the other's `UNDER` + 1, at most CHAIN | | |
//! | A2 | a hint names a trampoline; its `WORD` is this word and its `REAL` is real: | B2 | read `REAL` and `WHAT`; |
//! | | take that one. If its `WHAT` is not 0, | | end the call's instance |
//! | | its last call was left, and it is *reused*; `BOUND` := 1. Go on at A4 | | |
//! | A3 | find a free one: exchange its byte with LENT, | B3 | if it is bound, or becomes bound now (`BOUND` := 1; |
//! | | and the byte was 0. | | below): quick hint, `WHAT` := 0. |
//! | | `REAL`, `UNDER`, `BOUND` := 0, `WORD` (release), hint | | Else hint := 0, `WORD` := 0, byte := 0 |
//! | A4 | `SITE` := 0, `GO` := 0, `WHAT` := the probe. Take the instance, | B4 | the stack word := `REAL`; |
//! | | with the trampoline's address as key (or none: below) | | the instruction pointer := `REAL` |
//! | A5 | consumers are called | B5 | consumers are called |
//! | A6 | if a consumer waits, and the stack word still is real: | B6 | the last instruction of the trampolines' |
//! | | the stack word := the trampoline. Else as B3 | | code jumps to the address in the stack word |
//!
//! - *a signal handler between any two steps* runs below on the same stack, or on another one. Its calls have
//!   other stack words, and take other trampolines. The code of the return runs below the word, so B4's store
//!   is still there at B6.
//! - *an unwinder, a debugger or a profiler at any moment*: the word holds the real address, or a trampoline
//!   with a `REAL` that was written before (A3, A6).
//! - *a handler that leaves* in A5, by `longjmp` or the end of its thread: the trampoline is in use, and no
//!   word names it. This is the case of any call that was left (below).
//! - *another thread*: while an entry's byte is LENT, only the thread at the stack word that the entry names
//!   writes its words. If a stack goes on in another thread, the trampolines on it do too, and the code that
//!   handed over the stack orders the two threads. If A2 looks at a trampoline that belongs to another call
//!   by now, it finds another `WORD`.
//! - *unregistering while calls are in flight*: no thread is stopped, no word is written. The trampolines'
//!   code belongs to this program and their entries stay mapped, both for good. The call returns through its
//!   trampoline, however late, and finds that no consumer waits. (An outside tracer may be gone when the call
//!   returns, so `patch` puts the addresses back. Here the tracer is the process itself.)
//! - *a forked child* has a copy of stacks and entries, and the same code. *A child of `vfork`* shares both,
//!   and the parent waits: the child takes and gives back as a call below the parent's call does.
//! - *two calls at once for one bound trampoline*: only one thread is at a stack word. So A2's look and A4's
//!   store need no bus lock, and neither do B2 and B3.
//! - *exits still patched*: while exits of the same function are still patched, an exit of an armed call
//!   finds no instance under its stack pointer.
//!
//! # Where the return address is
//!
//! On x86-64 it is in the word at the stack pointer. On arm64 a call leaves it in x30, and the function
//! stores it where it likes, signed or not. So on arm64 the *stack word* above is two things. As a name it is
//! the stack pointer of the entry, which two calls that both go on share only as tail calls do. As the place
//! of the address it is x30 (the processors' `returning`). A signal handler between A1 and A6 finds x30 in
//! the registers that its return restores. B1 puts the trampoline's number into x30, B4 the address, and B6
//! is a `ret` through it.
//!
//! - *signed return addresses*: at its first instruction a function has signed nothing, so `REAL` is as the
//!   call left it. What the function then signs (`paciasp`) and authenticates before it returns is the
//!   trampoline's address. If other code changes the word meanwhile, authentication fails as it would without
//!   us.
//! - *landing pads*: a trampoline is reached by `ret`, and its target needs no `BTI` (Arm ARM C6.2, RET:
//!   unlike BR and BLR it sets BTypeNext, and so PSTATE.BTYPE, to 0). The same is true of the target of B6.
//! - *a signal handler* returns to the vdso's `rt_sigreturn`, to which Linux gives no unwind information
//!   since 5.8. Unwinders recognize it by its instructions, at exactly that address, which the byte before it
//!   (`plan`'s `unwind`) is not. So calls that return into the vdso get no trampoline
//!   ([`TrampolineTable::spare`]), and unwinders find the interrupted frame as before.
//! - *a guarded control stack* compares the address that `ret` takes with the one that the call left.
//!   Trampolines are not used there.
//!
//! # Bound trampolines
//!
//! When a call returns, its trampoline is bound to its stack word and return address, since the next call
//! from there has the same ones. Taking it then is a look and a store, without a bus lock. A copied stack
//! that returns twice finds the same way twice. At most half of all trampolines are bound like that, and in a
//! line of hints all but two; later ones serve one call at a time (A3). Hints of bound trampolines are not
//! displaced, since then the trampolines could not be found again.
//!
//! # Calls without an instance
//!
//! If no consumer is called at the entry, all that an instance would keep is the address that was hit. So
//! such a call on a bound trampoline has no instance. Instead, `SITE` := that address and `GO` := the address
//! where the function goes on, both written before `WHAT`, and only if the last call's values differ
//! (`general` of the processors); B2 reads `SITE`. Both belong to the entry's last call until A4 of the
//! general path sets them to 0. A call that finds its own `GO` there stores nothing, since then the site is
//! its own too: stubs stay for good, and each belongs to one site. The next call at the stack word finds the
//! values that were compared: no other thread writes there meanwhile. `maxactive` does not limit these calls;
//! the number of trampolines does. Nothing has to be ended if the call was left.
//!
//! # Calls that end without a return
//!
//! `longjmp`, an exception and the end of a thread leave trampolines in use. No code here can know that. A
//! stack may have been copied away, to be copied back later (greenlets), so a trampoline may still be named
//! although its word holds something else now. An outside tracer stops all threads and searches memory
//! (RET-2). Here, a trampoline that was left is reused *only by a call at the same stack word with the same
//! return address* (A2). Whichever returns to it later, the copy or the new call, goes to the same address
//! with the same stack pointer. From then on it is bound to that (SLOT-4) and never given to another. So a
//! loop that throws forever holds one trampoline for each (stack word, return address) that it throws from.
//! If there are more of these than trampolines, or more than eight share a line of hints, trampolines run
//! out, and calls are missed and counted ([`Tally::empty`](crate::engine::Tally::empty)). The instance of a
//! call that was left is ended at A2, or by the rules of `instances` when its pool is empty.
//!
//! A stack that is copied and returns *twice* (multi-shot continuations) returns to a trampoline that, unless
//! it is bound, is free or belongs to another call by now. In the first case the thread is sent to its old
//! address. The second case cannot be detected: such a program must be probed at exits.

pub(crate) mod table;
mod words;

pub use table::{MOST, TrampolineTable};
