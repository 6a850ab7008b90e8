//! Stacks at hits: who called.
//!
//! In: return addresses, as records hold them, and what the process had mapped. Out: [`StackSum`]s: how often each stack was met, and
//! how long the calls took that were made with it. Frames are kept as (file, offset), with the file held open, so that what is
//! unloaded, replaced or deleted later still has its names (`symbols`). Invariant: STA-1 the calls of all sums of a site are its hits
//! that were read. Does not: read rings (`traced::stacks`), or print.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod copied;
mod jit;
mod places;
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
pub(crate) use self::places::{Places, open};
pub(crate) use self::sums::{Ended, StackId, Sums};
pub use self::symbols::{Function, Symbols};
use crate::report::Site;

/// How a stack is learnt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unwinding {
    /// By frame pointers, in the program itself: at most so many return addresses.
    FramePointers(u8),
    /// From a copy of the top of the stack, at most so many bytes, by the tables that exceptions are thrown with.
    Copied(u32),
}

impl Unwinding {
    /// As many return addresses as a record holds.
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
    /// As the process sees it; `[vdso]` has none.
    pub path: String,
    /// The very file.
    pub(crate) file: Option<File>,
}

/// One place on a stack.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The address: of the function that was probed, or where a call returns to.
    pub address: u64,
    /// The file that was mapped there, and the offset in it; none for code that a program made itself.
    pub place: Option<(Arc<StackFile>, u64)>,
    /// It is where a call returns to: the call lies before it.
    pub is_return: bool,
}

/// What is known of one stack, innermost frame first: the function that was probed.
#[derive(Clone, Debug)]
pub struct StackSum {
    /// The process that was traced; a forked child's calls count as its parent's.
    pub pid: u32,
    /// What it is called.
    pub process: String,
    /// What was hit.
    pub site: Arc<Site>,
    /// From the probed place to the first function.
    pub frames: Arc<[Frame]>,
    /// The stack goes on: there was no room for more, or it was not known how far it may be read.
    pub cut: bool,
    /// Hits with this stack; when time is summed, of calls that ended.
    pub calls: u64,
    /// Sum of their durations, when that was asked for.
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
