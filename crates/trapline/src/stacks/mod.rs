//! Stacks at hits, which show the callers.
//!
//! In: return addresses, as records hold them, and what the process had mapped. Out: [`StackSum`]s: how often
//! each stack was seen, and how long the calls with it took. Frames are kept as (file, offset), with the file
//! held open. So what is unloaded, replaced or deleted later still has its names (`symbols`). Invariant:
//! STA-1 the calls of all sums of a site are its hits that were read. Does not: read rings
//! (`traced::stacks`), or print.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod copied;
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

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use trapline_plan::Unwind;
use trapline_record::ring::LEAST_SLOT;
use trapline_record::stack::{MAX_FRAMES, MAX_RECORD};

pub(crate) use self::copied::{Copies, Copy};
pub(crate) use self::seen_code::{SeenCode, open};
pub(crate) use self::sums::{Ended, StackId, Sums};
pub use self::symbols::{Function, Symbols};
use crate::report::Site;

/// How a stack is read.
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

/// A mapped file with code.
#[derive(Debug)]
pub struct StackFile {
    /// Path as the process sees it, or a name such as `[vdso]`.
    pub path: String,
    /// The very file; `None` for `[vdso]`.
    pub(crate) file: Option<File>,
}

/// One frame of a stack.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Address of the probed function, or a return address.
    pub address: u64,
    /// File that was mapped there, and the offset in it; `None` for code that a program generated itself.
    pub place: Option<(Arc<StackFile>, u64)>,
    /// It is a return address: the call is before it.
    pub is_return: bool,
}

/// All hits with one stack. The innermost frame is first: the probed function.
#[derive(Clone, Debug)]
pub struct StackSum {
    /// Traced process; calls of a forked child count as its parent's.
    pub pid: u32,
    /// Name of the process.
    pub process: String,
    /// Site that was hit.
    pub site: Arc<Site>,
    /// Frames from the probed place to the outermost function.
    pub frames: Arc<[Frame]>,
    /// The stack goes on: the record had no more room, or it was not known how far the stack may be read.
    pub cut: bool,
    /// Hits with this stack; if time is summed, only those of calls that ended.
    pub calls: u64,
    /// Sum of their durations, if requested.
    pub time: Duration,
}

impl PartialEq for Frame {
    fn eq(&self, other: &Self) -> bool {
        let same = match (&self.place, &other.place) {
            (Some((a, at)), Some((b, other))) => Arc::ptr_eq(a, b) && at == other,
            (None, None) => self.address == other.address,
            _ => false,
        };
        same && self.is_return == other.is_return
    }
}
