//! Whether somebody in the dynamic loader waits for us: then no thread may be made and waited for, as a new one takes the loader's lock
//! (`__cxa_thread_atexit_impl`, for the destructors of what is thread-local).
//!
//! In: the calls that this thread is in. Out: whether one of them is the loader's, as it is for a library's constructor. Does not: know of a loader that waits
//! for this thread from another one; and what was compiled without unwind tables, which the psABI asks for, hides those above it.
#![allow(
    unsafe_code,
    reason = "the unwinder calls back with a pointer of ours; one word of the auxiliary vector"
)]

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::OnceLock;

use trapline_target::Process;

/// Calls looked at.
const MOST: usize = 256;

unsafe extern "C" {
    /// "Exception Handling ABI": calls `see` with each frame, from the innermost on, until it answers anything but 0.
    fn _Unwind_Backtrace(see: extern "C" fn(*mut c_void, *mut Looked) -> c_int, data: *mut Looked) -> c_int;
    fn _Unwind_GetIP(frame: *mut c_void) -> usize;
}

/// At how many calls, and whether one was the loader's.
#[repr(C)]
struct Looked {
    loader: [u64; 2],
    calls: usize,
    found: bool,
}

extern "C" fn see(frame: *mut c_void, looked: *mut Looked) -> c_int {
    // SAFETY: the frame that the unwinder is at, and what `is_above` handed over.
    let (at, looked) = unsafe { (_Unwind_GetIP(frame) as u64, &mut *looked) };
    looked.calls += 1;
    looked.found |= (looked.loader[0]..looked.loader[1]).contains(&at);
    c_int::from(looked.found || looked.calls == MOST)
}

/// Whether this thread is in a call of the loader's.
pub(super) fn is_above(process: &Process) -> bool {
    static LOADER: OnceLock<Range<u64>> = OnceLock::new();
    let loader = LOADER.get_or_init(|| text(process).unwrap_or_default());
    let mut looked = Looked { loader: [loader.start, loader.end], calls: 0, found: false };
    // SAFETY: `see` is given `looked`, which outlives the call, and unwinds nowhere.
    unsafe { _Unwind_Backtrace(see, &raw mut looked) };
    looked.found
}

/// The loader's code. A program without one has nobody to wait for.
fn text(process: &Process) -> Option<Range<u64>> {
    // SAFETY: a number.
    let base = unsafe { libc::getauxval(libc::AT_BASE) };
    let maps = process.maps().ok()?;
    let file = maps.iter().find(|one| one.start.0 <= base && base < one.end.0)?.file?;
    let code = maps.iter().find(|one| one.file == Some(file) && one.perms.exec)?;
    Some(code.start.0..code.end.0)
}
