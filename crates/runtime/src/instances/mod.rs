//! Calls in flight with a return that a consumer waits for. Each holds an instance of its probe's pool, from
//! its entry to its exit.
//!
//! In: at an entry, the probe and the stack pointer. Out: an [`Instance`] to leave cookies in, or none: then
//! the call is missed. At the exit with the same stack pointer: what was left there. Invariants: CAL-1 a
//! call's instance is found by its own exit only. CAL-2 a call that could not be kept is reported (there is
//! no instance, and the hit counts as missed). CAL-3 the instance of a call that can no longer return is
//! reused. CAL-4 a bound place is written at its stack word alone.
//! Does not: hold pointers to consumers (only numbers, so an instance outlives them safely), count.
//!
//! # The words
//!
//! A call's key is its probe and the stack pointer at its entry. The stack is the thread's, and the function
//! leaves with the stack pointer that it came with, so no two calls that go on have one key. Nothing is kept
//! in thread-local storage, and no order of returns is assumed: a stack may go on in another thread.
//!
//! | word | changed by |
//! |---|---|
//! | `instance.sp`: the key; 0: free, or held and not yet in use | its call; code with proof that it is over (`claim`) |
//! | `instance.*`: address, thread, cookies | its call |
//! | place, by hash of the stack pointer: `hint` (stack pointer, instance or *no consumer*) | any call, by one store |
//! | `bound`: the stack pointer of calls that may be kept there, or 0 | the first one (compare-and-swap), for good |
//! | `keeps`: the probe of the call that is kept there, or 0; `site`: its address | calls at that stack word |
//!
//! A hint is a guess. It names the instance of the pool that a stack pointer had last; the instance itself
//! decides. If the hint does not help, all instances of the probe are searched. So hints need no protocol.
//! They are grouped by stack page, which one thread writes to; pages that share places overwrite each other's
//! hints, which costs time.
//!
//! # Calls that are kept in place
//!
//! If only one consumer waits, and none is called at the entry, all that an instance would hold is the
//! address that was hit. Such a call needs no instance: its stack word's place holds that address, as a
//! trampoline's entry does (`trampolines`). The place is taken and left by plain stores, on whatever CPU,
//! with or without rseq. No pool is involved, so there is nothing to lose when a pool is empty, a thread ends
//! or a process forks. `maxactive` does not limit these calls. Places do: there is one for each stack word,
//! unless other words that came first share it.
//!
//! | step | entry (`general` of the processors) | | exit |
//! |---|---|---|---|
//! | K1 | the place is not bound: | L1 | the place is bound to this stack word and keeps a call of |
//! | | bind it (`dispatch`), and go on at A1 | | this probe: read `site`, `keeps` := 0, go on at B5. Else B1 |
//! | K2 | it is bound to this stack word, and keeps nothing, or a call of this probe: | | |
//! | | `site`, `keeps` := the probe (release). Else A1 | | |
//! | K3 | before A1: if it keeps a call of this probe at this stack word, that call was left. `keeps` := 0 | | |
//!
//! - *two at once for one place*: only calls at the stack word that the place is bound to store to `keeps`
//!   and `site`. At a stack word there is one thread, with one call that goes on. So K2's look and its stores
//!   need no bus lock, and neither do L1's. Binding does (K1): a look and then a store is a model's twin.
//! - *a signal between any two steps*: its calls have other stack words. So they have another place, or this
//!   one, which is not bound to theirs.
//! - *a call that was left* (`longjmp`, the end of a thread, a child of `vfork` that ran exec) stays in its
//!   place until its probe is called there again (K2, K3). Meanwhile other probes' calls at that stack word
//!   have instances.
//! - *a call of one probe in a call of another at one stack word* (a tail call with an exit that was not
//!   seen): K2 finds the other's call, and leaves it.
//! - *a stack that goes on in another thread* takes its words with it; the code that hands it over orders K2
//!   before L1. *A forked child* has the same places, with the calls of its one thread.
//! - *the list has changed since* (a session was added, the only consumer was removed): L1 calls the
//!   consumers that are in the list now and are no sessions, as B5 does. Entries go to A1 by K3.
//!
//! # Steps
//!
//! | entry | exit |
//! |---|---|
//! | A1 the hint names an instance with this key: | B1 the hint says *no consumer*: done. It names an instance |
//! | its call never returned; claim it, go on at A4 | with this key: that one. Else the one with the key, if any |
//! | A2 take one from the pool, go on at A4 | B2 copy what it holds |
//! | A3 there is none: claim one of a call that is over (below). | B3 `sp` := 0 (release), hint := 0 |
//! | None: missed, hint := *no consumer* | |
//! | A4 write the rest, `sp` (release), hint | B4 put it back |
//! | A5 consumers are called, and leave cookies | B5 consumers are called |
//! | A6 if no consumer waits after all: B3 and B4 at once, hint := *no consumer* | |
//!
//! - *claim* is one compare-and-swap of `sp` to 0: if several threads have proof, one of them gets the
//!   instance. The call itself does not compete, since it is over.
//! - *a hint that is still there after B3* (`general` of the processors leaves it, which saves two stores for
//!   each call) names an instance with the `sp` 0, or another call's. A1 and B1 see that it is not this
//!   call's.
//! - *a signal between any two steps*: its calls lie below on the same stack, so they have other keys, or on
//!   another stack. Its hint may displace this call's, or be displaced by it: hints are guesses.
//! - *a handler that leaves* in A5 or B5 by `longjmp`, or ends its thread: after A4 the instance has a key,
//!   so it is found like any that was left. After B4 nothing is held.
//! - *another thread reads an instance while it changes* (A3, or B1 when it searches all): it reads `sp`,
//!   which is another call's key or 0, and stops there.
//! - *a stack that goes on in another thread*: the code that handed it over orders A4 before B1. The pool
//!   orders B2 before the next A4.
//! - *pages that share hints*: B1 finds another key, or 0, and searches all. *No consumer* is believed, since it
//!   has the key.
//! - *the probe's patches are removed while calls are in flight*: their exits are not seen, and instances
//!   stay until they are claimed. They are numbers, and no consumer is called because of them: a session's
//!   return handler is called only if its own number is there.
//! - *a larger pool is requested*: it comes in front of the older ones. Entries take from the newest, exits
//!   search all. Pools stay with their probe for good (as code that names the probe does), so no reference
//!   counts are needed.
//!
//! # Calls that end without an exit
//!
//! `longjmp`, an exception, the end of a thread: frames disappear, and their exits are not seen. What they
//! held is reused:
//! - *the same key comes again* (A1);
//! - *the pool is empty, and the frame is one of this thread's and lies below its stack pointer, on the same
//!   stack* (A3): what is below has been left. It is the same stack if all pages between can be read, as
//!   guards and holes cannot, and if both or neither lie on the alternate signal stack. Two stacks that touch
//!   without a guard look like one: see below;
//! - *the pool is empty, and the frame's thread has ended* (A3; checked at the first miss of a thread, the
//!   second, the fourth and so on, as that takes system calls). The thread has ended if its control block
//!   says so, or is gone, or if the kernel does not know its number (a child after `fork`). The frame must
//!   lie on that thread's own stack, with all between it and the control block readable, or be gone as well.
//!
//! An instance may be claimed in error (stacks that touch, one of them running in another thread). Then two
//! calls may hold one instance. The first one's exit finds a key that is not its own and calls no consumer;
//! the second one's puts the instance back. A child of `vfork` has its parent's stack, memory and rseq area,
//! and the kernel does not know that area as the child's. So a sequence of the pool is not restarted there,
//! and between `vfork` and `exec` two calls may be given one instance, with the same result.

pub(crate) mod hints;
mod instance;
pub(crate) mod kept_place;
#[cfg(not(loom))]
mod left;
#[cfg(not(loom))]
pub(crate) mod of_probe;

pub use hints::Hint;
pub(crate) use hints::{Hinted, Hints, LINE_LEN};
pub use instance::{Instance, KeptCall, SESSIONS};
pub use kept_place::KeptPlace;
pub(crate) use kept_place::KeptPlaces;
#[cfg(not(loom))]
pub use of_probe::Instances;
#[cfg(not(loom))]
pub(crate) use of_probe::{Call, ThreadPlace};
