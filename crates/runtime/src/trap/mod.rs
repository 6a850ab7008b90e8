//! The trap path: a trap instruction is executed, consumers run, the displaced instruction is carried out.
//!
//! In: signals. Out: hits; and the program's own signals, as they would be without us. What depends on the
//! processor and the kernel's frames is in the processor's folder ([`native`](crate::native)). It contains
//! registers and their place in a signal's frame (`context`), whether a signal is about a trap, and where
//! (`breakpoint`), an instruction's copy (`copies`), accesses that may fault (`access`), system calls
//! (`sys`). Invariants: TRAP-1 to TRAP-3, stated where they are kept.
//! Does not: write code.

pub(crate) mod block;
mod chain;
pub(crate) mod copies;
mod fault;
mod handler;
pub mod install;
mod siginfo;
#[cfg(not(loom))]
pub(crate) mod sites;
mod trap_table;
mod traps;
pub mod windows;

pub use block::{Block, Signal};
pub use copies::{Arena, Copies, Copy, PART_LEN};
pub use handler::handler_address;
pub use install::{InstallError, blocks_traps, install, standing, stands, uninstall};
pub use siginfo::Info;
#[cfg(not(loom))]
pub use sites::{Called, Placed, Role, Sites};
pub(crate) use traps::Stands;
pub use traps::{Answer, Step, Traps};
pub use windows::{Brought, Windows};
