//! Takes patches out of a process: steps R1 to R7 of [`protocol`](crate::protocol).
//!
//! `detach` puts back text, actions and semaphores (R1 to R6); `free` unmaps what is proven to be unused (R7).
//! `hold` takes out, before a detach, what relies on a fact that the program is about to change.

pub(crate) mod detach;
pub(crate) mod free;
pub(crate) mod hold;
pub(crate) mod toggle;
