//! Stacks at hits, which show the callers.
//!
//! In: return addresses, as records hold them, and what the process had mapped. Out: [`StackSum`]s: how often
//! each stack was seen, and how long the calls with it took. Frames are kept as (file, offset), with the file
//! held open. So what is unloaded, replaced or deleted later still has its names (`symbols`). Invariant:
//! STA-1 the calls of all sums of a site are its hits that were read. Does not: read rings
//! (`traced::stack_reader`), or print.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod code_at;
mod copied;
mod frame;
mod jit;
mod seen_code;
mod sums;
mod symbols;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as native;
#[cfg(target_arch = "x86_64")]
use x86_64 as native;

use trapline_plan::Unwind;
use trapline_record::ring::LEAST_SLOT;
use trapline_record::stack::{MAX_FRAMES, MAX_RECORD};

pub use self::code_at::CodeAt;
pub(crate) use self::frame::StackCopy;
pub use self::frame::{Frame, HitStack, StackFile, StackSum};
pub(crate) use self::seen_code::{SeenCode, open};
pub(crate) use self::sums::{Ended, StackId, Sums};
pub use self::symbols::{Function, Symbols};

/// How a stack is read; [`Builder::stacks`](crate::Builder::stacks) takes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unwinding {
    /// By frame pointers, in the program itself: at most so many return addresses.
    FramePointers(u8),
    /// From a copy of the top of the stack, at most so many bytes, by the tables that serve exceptions.
    Copied(u32),
}

impl Unwinding {
    /// As many return addresses as a record can hold.
    pub const DEEPEST: u8 = MAX_FRAMES;

    pub(crate) fn unwind(self) -> Unwind {
        match self {
            Self::FramePointers(frames) => Unwind::Frames(frames.clamp(1, MAX_FRAMES)),
            Self::Copied(bytes) => Unwind::Copy(bytes.clamp(LEAST_SLOT, MAX_RECORD)),
        }
    }
}
