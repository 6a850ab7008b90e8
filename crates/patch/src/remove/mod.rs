//! Takes patches out of a process: steps R1 to R7 of [`protocol`](crate::protocol).
//!
//! `detach` goes through a process and its children; `clean` puts back text, actions and semaphores of one (R1 to
//! R6), segment by segment (`removal`, `actions`); `free` unmaps what is proven to be unused (R7). `hold` takes
//! out, before a detach, what relies on a fact that the program is about to change (`facts`); `part` takes out some probes.
//! `toggle` is for tests of endurance.

mod actions;
mod clean;
pub(crate) mod detach;
pub(crate) mod facts;
pub(crate) mod free;
pub(crate) mod hold;
pub(crate) mod part;
mod removal;
pub(crate) mod toggle;
