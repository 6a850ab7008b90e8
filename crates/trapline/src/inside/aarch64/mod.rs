//! The arm64 side: patches of one word, returns at return instructions.

pub(super) mod check;
pub(super) mod code_map;
pub(super) mod patch_sites;
pub(super) mod setting;
pub(super) mod signals;
pub(super) mod step;
pub(super) mod thread;
pub(super) mod trampolines;

use super::capacity::Capacity;

pub use trapline_insn::aarch64::{Gpr, Regs};

/// Files that may contain the dynamic loader's notice, and libc's functions, as short names.
pub(super) const LOADERS: &[&str] = &["ld-linux-aarch64", "ld-musl-aarch64", "libc"];
pub(super) const LIBCS: &[&str] = &["libc", "ld-musl-aarch64"];
/// The loader's notice is probed by a trap. Libc's `mmap` is not probed, since threads that block all signals
/// call it.
pub(super) const LISTENS_BY_TRAPS: bool = true;

/// How much the engine has room for. An emulator may keep a record of every page, used or not. There the
/// usual 17 GiB of address space would cost each look at the maps a walk over four million of them.
pub(super) fn room() -> Capacity {
    if trapline_tracee::is_emulated() { Capacity { lines: 1024, probes: 1 << 13 } } else { Capacity::USUAL }
}
