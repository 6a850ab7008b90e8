//! Our own process: what both processors' writers of its code share, and the writer of this processor.
//!
//! In: requests of the program that probes itself. Out: [`Own`], which changes its code, and its return
//! trampolines and semaphores. How code changes there is argued in [`protocol`].
//! Does not: write code, which differs by processor (`own` of the twin folders).

mod semaphores;
pub(crate) mod trampolines;

pub use crate::native::own::*;
pub use trampolines::OwnTrampolines;
