//! Calls in flight whose return somebody waits for: each holds an instance of its probe's pool, from its entry to its exit.
//!
//! In: at an entry, the probe and the stack pointer. Out: an [`Instance`] to leave cookies in, or none: then the call is missed. At the
//! exit with the same stack pointer: what was left. Invariants: CAL-1 a call's instance is found by its own exit only; CAL-2 what could not be kept
//! is said (there is none, and the hit counts as missed); CAL-3 the instance of a call that can no longer return is had again.
//! CAL-4 a place that is bound is written at its stack word alone.
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
//! | place, by hash of the stack pointer: `hint`: (stack pointer, number of an instance, or *nobody*) | anyone, by one store |
//! | `bound`: the stack pointer whose calls may be kept there; 0: nobody's | the first who wants it (compare-and-swap), for good |
//! | `keeps`: the probe whose call is kept there, or 0; `site`: its address | calls at the stack word that it is bound to |
//!
//! A hint is a guess. It says which instance of the pool a stack pointer had last; what is true stands in the instance, and what the hint
//! does not say is found by looking at all instances of the probe. So hints need no protocol: they lie by stack page, where one thread writes;
//! pages that share a place overwrite each other's, which costs time.
//!
//! # Calls that are kept in place
//!
//! Where one consumer alone waits, and nobody is called at the entry, all that an instance would hold is the address that was hit. Such a call needs none: its stack
//! word's place holds that, as a slot's entry does (`slots`). It is taken and left by plain stores, whatever CPU this is and with or without rseq, and
//! no pool knows of it: there is nothing to be lost when a pool is empty, a thread ends or a process forks. `maxactive` does not bound these; places do, of which
//! there is one for each stack word while words that came first do not share it.
//!
//! | step | entry (`general` of the twins) | | exit |
//! |---|---|---|---|
//! | K1 | the place is nobody's: bind it (`dispatch`), and go on at A1 | L1 | the place is bound to this stack word and keeps a call of this probe: read `site`, `keeps` := 0, go on at B5. Else B1 |
//! | K2 | it is bound to this stack word, and keeps nothing, or a call of this probe: `site`, `keeps` := the probe (release). Else A1 | | |
//! | K3 | before A1: what it keeps of this probe at this stack word was left. `keeps` := 0 | | |
//!
//! - *two at once for one place*: only calls at the stack word that it is bound to store to `keeps` and `site`, and at a stack word there is one thread, with one call
//!   that goes on. So K2's look and its stores need no bus lock, nor do L1's. Binding does (K1): a look and a store is a model's twin.
//! - *a signal between any two steps*: its calls have other stack words, so another place, or this one, which is not bound to theirs.
//! - *a call that was left* (`longjmp`, the end of a thread, a child of `vfork` that ran exec) stays in its place until its probe is called there again (K2, K3). Another
//!   probe's calls at that stack word have instances meanwhile.
//! - *a call of one probe in a call of another at one stack word* (a tail call whose exit was not seen): K2 finds the other's, and leaves it.
//! - *a stack that goes on in another thread* takes its words with it; whoever hands it over orders K2 before L1. *A forked child* has the same
//!   places, with the calls of its one thread.
//! - *another list since* (a session came, the only consumer went): L1 tells those who are in the list now and are no session, as B5 does; entries go to A1 by K3.
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
mod place;

pub use hints::Hint;
#[cfg(all(not(loom), target_arch = "x86_64"))]
pub(crate) use hints::{HINT_SHIFT, HINT_SPREAD, NOBODY, NUMBER_BITS};
pub(crate) use hints::{Hints, LINE_LEN, Said};
pub use instance::{Instance, Kept, SESSIONS};
#[cfg(not(loom))]
pub use of_probe::Instances;
#[cfg(all(not(loom), target_arch = "x86_64"))]
pub(crate) use of_probe::Pool;
#[cfg(not(loom))]
pub(crate) use of_probe::{Call, Here};
#[cfg(all(not(loom), target_arch = "x86_64"))]
pub(crate) use place::PLACE_SHIFT;
pub use place::Place;
pub(crate) use place::Places;
