//! What is arm64's own: patches of one word, returns at return instructions.

pub(super) mod check;
pub(super) mod landing;
pub(super) mod place;
pub(super) mod signals;
pub(super) mod step;
pub(super) mod thread;

use super::memory::Room;

pub use trapline_insn::aarch64::{Gpr, Regs};

/// Files that the dynamic loader's notice may be in, and libc's functions, as short names.
pub(super) const LOADERS: &[&str] = &["ld-linux-aarch64", "ld-musl-aarch64", "libc"];
pub(super) const LIBCS: &[&str] = &["libc", "ld-musl-aarch64"];
/// The loader's notice is heard by a trap; libc's `mmap`, which threads call that block all signals, is not heard.
pub(super) const LISTENS_BY_TRAPS: bool = true;

/// What the engine makes room for. In an emulator that keeps a record of every page, used or not, the usual 17 GiB of address space would cost each look at the maps
/// a walk over four million of them.
pub(super) fn room() -> Room {
    if trapline_target::is_emulated() { Room { lines: 1024, probes: 1 << 13 } } else { Room::USUAL }
}
