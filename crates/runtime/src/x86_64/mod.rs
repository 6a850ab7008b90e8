//! x86-64: the trap handler, and what the kernel saves at a signal.

mod access;
mod chain;
pub mod context;
pub mod copies;
mod fault;
pub mod general;
pub mod install;
pub mod sites;
pub mod sys;
pub mod thread;
pub mod trap;

pub use context::{Context, Info};
pub use copies::{Arena, Copies, Copy, CopyError, SLOT, copy};
pub use install::{Block, InstallError, Signal, blocks_traps, install, standing, uninstall};
pub use sites::{Placed, Role, Sites};
pub use trap::{Answer, Step, Traps};
