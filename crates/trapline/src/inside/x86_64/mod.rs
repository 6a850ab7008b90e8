//! What is x86-64's own: patches by jumps and traps, replaced return addresses, stand-ins for handlers of signals.

pub(super) mod check;
pub(super) mod landing;
pub(super) mod place;
pub(super) mod signals;
pub(super) mod step;
pub(super) mod thread;

use super::memory::Room;

pub use trapline_insn::x86_64::{Gpr, Regs};

/// Files that the dynamic loader's notice may be in, and libc's functions, as short names.
pub(super) const LOADERS: &[&str] = &["ld-linux-x86-64", "ld-musl-x86_64", "libc"];
pub(super) const LIBCS: &[&str] = &["libc", "ld-musl-x86_64"];
/// Calls are heard by jumps: a thread that blocks signals may come there.
pub(super) const LISTENS_BY_TRAPS: bool = false;

/// What the engine makes room for.
pub(super) const fn room() -> Room {
    Room::USUAL
}
