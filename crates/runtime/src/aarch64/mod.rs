//! arm64: signal frames, trap instructions, the system calls that signal handling needs, and cache
//! maintenance after changes of code.

pub(crate) mod access;
pub(crate) mod breakpoint;
pub mod cache;
pub mod context;
#[cfg(not(loom))]
pub(crate) mod control;
pub mod copies;
mod frame;
#[cfg(not(loom))]
pub mod gate;
#[cfg(not(loom))]
pub(crate) mod returning;
pub mod sys;

pub use trapline_insn::aarch64::{Op, Regs};

pub use crate::trap::{
    Answer, Arena, Block, Brought, Copies, Copy, Info, InstallError, PART_LEN, Signal, Step, Traps, Windows,
    blocks_traps, install, standing, stands, uninstall,
};
#[cfg(not(loom))]
pub use crate::trap::{Called, Placed, Role, Sites};
pub use context::Context;
pub use copies::{CopyError, copy, without_copy};

/// What a thread knows of itself, and of the other threads of its process.
pub mod thread {
    pub use super::sys::{add_own, thread_pointer};
    pub use crate::kernel::{
        AlternateStack, Word, alternate_stack, membarrier, read_word, register_core_sync,
        register_membarrier, synchronise_cores,
    };
}
