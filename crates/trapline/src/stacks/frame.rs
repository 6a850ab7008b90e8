//! Stacks as values: frames, sums, and copies as records hold them.
//!
//! In: nothing. Out: plain values. A frame is known by (file, offset), and its file is held open. Does
//! not: read or name anything.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use crate::report::Site;

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

/// The stack of one hit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HitStack {
    /// The probed place.
    pub here: Frame,
    /// Callers, innermost first.
    pub callers: Arc<[Frame]>,
    /// The stack goes on: the record had no more room, or it was not known how far the stack may be read.
    pub cut: bool,
}

impl Eq for Frame {}

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

/// A stack as a record holds it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StackCopy<'a> {
    /// Address of the instruction that was about to run.
    pub(crate) pc: u64,
    pub(crate) sp: u64,
    pub(crate) frame: u64,
    /// Words from `sp` on; on arm64 the link register comes first.
    pub(crate) words: &'a [u64],
}
