//! The x86-64 side: patches by jumps and traps, replaced return addresses, signal wrappers.

pub(super) mod check;
pub(super) mod code_map;
pub(super) mod patch_sites;
pub(super) mod setting;
pub(super) mod signals;
pub(super) mod step;
pub(super) mod thread;
pub(super) mod trampolines;

use super::capacity::Capacity;

pub use trapline_insn::x86_64::{Gpr, Regs};

/// Files that may contain the dynamic loader's notice, and libc's functions, as short names.
pub(super) const LOADERS: &[&str] = &["ld-linux-x86-64", "ld-musl-x86_64", "libc"];
pub(super) const LIBCS: &[&str] = &["libc", "ld-musl-x86_64"];
/// Calls are probed by jumps only: a thread that blocks signals may come there.
pub(super) const LISTENS_BY_TRAPS: bool = false;

/// How much the engine has room for.
pub(super) const fn room() -> Capacity {
    Capacity::USUAL
}
