//! Calls in flight whose return somebody waits for: each holds an instance of its probe's pool, from its entry to its exit.
//!
//! In: at an entry, the probe and the stack pointer. Out: an [`Instance`] to leave cookies in, or none: then the call is missed. At the
//! exit with the same stack pointer: what was left. Invariants: CAL-1 a call's instance is found by its own exit only; CAL-2 what could not be kept
//! is said (there is none, and the hit counts as missed); CAL-3 the instance of a call that can no longer return is had again.
//! Does not: hold pointers to consumers (numbers only, so an instance outlives them safely), count.
//!
//! # The words
//!
//! A call's key is its probe and the stack pointer at its entry: the stack is the thread's, and the function leaves as it came, so no two calls that
//! go on have one key. Nothing is kept in thread-local storage, and no order of returns is assumed: a stack may go on in another thread.
//!
//! | word | changed by |
//! |---|---|
//! | `instance.sp`: the key; 0: free, or held and not yet in use | its call; whoever had proof that the call is over (`claim`) |
//! | `instance.*`: address, thread, cookies | its call |
//! | hint: (stack pointer, number of an instance, or *nobody*) by hash of the stack pointer | anyone, by one store |
//!
//! A hint is a guess. It says which instance of the pool a stack pointer had last; what is true stands in the instance, and what the hint
//! does not say is found by looking at all instances of the probe. So hints need no protocol: they lie by stack page, where one thread writes;
//! pages that share a place overwrite each other's, which costs time.
//!
//! # Steps
//!
//! | entry | exit |
//! |---|---|
//! | A1 the hint names an instance with this key: its call never returned; claim it, go on at A4 | B1 the hint says *nobody*: done. It names an instance with this key: that one. Else the one with the key, if any |
//! | A2 take one from the pool, go on at A4 | B2 copy what it holds |
//! | A3 there is none: claim one whose call is over (below). None: missed, hint := *nobody* | B3 `sp` := 0 (release), hint := 0 |
//! | A4 write the rest, `sp` (release), hint | B4 put it back |
//! | A5 consumers are called, and leave cookies | B5 consumers are called |
//! | A6 if nobody waits after all: B3 and B4 at once, hint := *nobody* | |
//!
//! - *claim* is one compare-and-swap of `sp` to 0: of several that have proof, one gets it. Its call does not compete: it is over.
//! - *a hint that stays behind B3* (`general` of the twins leaves it, which saves two stores of each call) names an instance whose `sp` is 0,
//!   or another's: A1 and B1 see that it is not this call's.
//! - *a signal between any two steps*: its calls lie below on the same stack, so they have other keys, or on another stack. Its hint may displace
//!   this one's, or be displaced by it: a guess.
//! - *a handler that leaves* in A5 or B5 by `longjmp`, or ends its thread: behind A4 the instance has a key, so it is found as any
//!   that was left; behind B4 nothing is held.
//! - *another thread reads an instance while it changes* (B1's look at all, A3): it reads `sp`, which is another's key or 0. It goes no further.
//! - *a stack that goes on in another thread*: whatever handed it over orders A4 before B1. The pool orders B2 before the next A4.
//! - *pages that share hints*: B1 finds the other's key, or 0, and looks at all. *Nobody* is believed, as it has the key.
//! - *the probe's patches go while calls are in flight*: their exits are not seen, instances stay until they are claimed. They are
//!   numbers, nobody is called for them: a session is told only if its own number stands there.
//! - *a larger pool is asked for*: it comes in front of the older ones; entries take from the newest, exits look at all. Pools stay with their
//!   probe, for good (as code that names it does), so nobody holds on to one.
//!
//! # Calls that are over without an exit
//!
//! `longjmp`, an exception, the end of a thread: frames go, exits are not seen. What they held is had again:
//! - *the same key comes again* (A1);
//! - *the pool is empty, and one of this thread's frames lies below its stack pointer, on the same stack* (A3): what is below has been left. It is the
//!   same stack if all pages between can be read, as guards and holes cannot, and both or neither lie on the alternate signal
//!   stack. Stacks that touch without a guard look like one: see below;
//! - *the pool is empty, and the thread has ended* (A3; asked at the first miss of a thread, the second, the fourth and so on, as that takes system calls):
//!   its control block says so, or is gone, or the kernel does not know its number (a child after `fork`); the frame lies on that thread's own
//!   stack, between which and the control block all can be read, or is gone as well.
//!
//! Claimed in error (stacks that touch, one running in another thread): two calls may then hold one instance. The first one's exit finds a
//! key that is not its own and tells nobody; the second's puts it back. A child of `vfork` has its parent's stack, memory and rseq
//! area, of which the kernel does not know for it: a sequence of the pool is not restarted there, so between `vfork` and `exec` two calls
//! may be given one instance, with the same end.

#[cfg(not(loom))]
mod ask;
mod hints;
mod instance;
#[cfg(not(loom))]
mod left;
#[cfg(not(loom))]
mod of_probe;

pub use hints::Hint;
#[cfg(not(loom))]
pub(crate) use hints::LINE_LEN;
#[cfg(all(not(loom), target_arch = "x86_64"))]
pub(crate) use hints::{HINT_SHIFT, HINT_SPREAD, NOBODY, NUMBER_BITS, OTHER_SPREAD};
#[cfg_attr(loom, expect(unused_imports, reason = "models have no slots"))]
pub(crate) use hints::{Hints, Said};
pub use instance::{Instance, Kept, SESSIONS};
#[cfg(not(loom))]
pub use of_probe::Instances;
#[cfg(all(not(loom), target_arch = "x86_64"))]
pub(crate) use of_probe::Pool;
#[cfg(not(loom))]
pub(crate) use of_probe::{Call, Here};
