//! Libraries that the program loads while it is traced: the thread waits at its loader's rendezvous until they were
//! looked at, so that no call in them is missed.
//!
//! In: segments with a site at the loader's `_dl_debug_state`. Out: whether a thread waits there; the answer.
//! Invariants: LOAD-1, LOAD-2 (`plan`'s `stub/load.rs`). LOAD-3 a ticket is answered only after a look that read the
//! mappings when the ticket was drawn already, or if that look failed. Does not: look, or choose the place.
//!
//! # Protocol
//!
//! What takes part: *C*, the thread that loads libraries. It holds the loader's lock. All of them are mapped and
//! relocated, and none of their constructors has run. *T*, the tracer. Words of the control block: `LOADED`, the last
//! ticket that was drawn; `LOOKED`, the last one that was answered.
//!
//! | step | by | what | if T dies right after |
//! |---|---|---|---|
//! | L1 | C | comes to the function; passes if the loader's list is not complete | – |
//! | L2 | C | draws a ticket from `LOADED`; takes turns until `LOOKED` is not less | C's turns end; it sets `LOOKED` |
//! | | | | to the greatest number, and none waits again |
//! | L3 | T | at its next poll finds `LOADED` above `LOOKED`; notes `LOADED` | as L2 |
//! | L4 | T | reads the mappings, and probes what is new | as L2; patches are journaled as ever |
//! | L5 | T | writes the number that it noted to `LOOKED` | C goes on |
//! | L6 | C | goes on; the constructors run, probed | – |
//!
//! # Interleavings
//!
//! - *T hears of the mapping from the kernel before L2, and looks*: L3 to L5 is one more look, which finds nothing
//!   new. Where the kernel does not tell, T polls.
//! - *C's turns are over before L5*, also during L4: it goes on, and `LOOKED` is the greatest number. At L5 T sees
//!   that by the access that writes what it noted, so later threads wait again. Calls that were missed are told with their times (`trapline`'s `traced/loads.rs`).
//! - *Two threads load at a time*: the loader's lock lets one of them be here.
//! - *A forked child loads*: it shares both words. T answers it after a look at the parent. The child's library is
//!   not probed: as ever, children are not looked at.
//! - *A library is unloaded, or one of another namespace is loaded*: the loader calls the function too. C waits once
//!   or twice for a look that finds nothing.
//! - *A batch of L4 needs a thread for calls*: C is fit, as any thread in our code.
//! - *A signal's handler runs in C meanwhile*: C waits on when it returns. If the handler loads a library, it waits
//!   with a later ticket, and C's own is answered with it.
//! - *C has waited at its first rendezvous in another way* (`tracee`'s `ambush`), and T has looked meanwhile: the first
//!   ticket is answered before C goes on. If T was so slow that C had gone on before, that answer is one too many, and
//!   the next library is not waited for.
//! - *T is at work in other processes*: it changes `ALIVE` in between, and C takes all its turns anew.
//! - *T removes its patches between L2 and L5*: removal writes the greatest number when the sites hold the file's
//!   bytes. So does a tracer that cleans up after a dead one.

use trapline_record::control::at;

use crate::batches::Batches;

/// Step L3: the tickets that are not answered yet, with their segments' indices. Empty if no thread waits.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tickets {
    drawn: Vec<(usize, u64)>,
}

impl Tickets {
    /// Whether no thread waits, or has waited in vain.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.drawn.is_empty()
    }
}

pub(crate) fn tickets(batches: &Batches) -> Tickets {
    let mut tickets = Tickets::default();
    for (index, segment) in batches.segments.iter().enumerate() {
        let (loaded, looked) = (segment.view().get(at::LOADED), segment.view().get(at::LOOKED));
        // A thread that went on by itself has set the greatest number.
        if loaded > looked || looked == u64::MAX {
            tickets.drawn.push((index, loaded));
        }
    }
    tickets
}

/// Answers the next ticket of each segment before it is drawn.
pub(crate) fn answer_next(batches: &Batches) {
    for view in batches.segments.iter().map(crate::Segment::view) {
        view.set(at::LOOKED, view.get(at::LOADED) + 1);
    }
}

/// Step L5. Returns whether every thread has waited for it.
pub(crate) fn answer(batches: &Batches, tickets: &Tickets) -> bool {
    let mut in_time = true;
    for (index, ticket) in &tickets.drawn {
        if let Some(segment) = batches.segments.get(*index) {
            // A thread may have gone on during the look.
            in_time &= segment.view().swap(at::LOOKED, *ticket) != u64::MAX;
        }
    }
    in_time
}
