//! Waits until no thread can be in a handler that was taken out.
//!
//! In: the engine's lines. Out: the proof (see `trapline_runtime::epoch`, W2 to W4). A hit never reports its
//! end if it was left by `longjmp`, or if the thread ended in it. Its thread is then found by its number, and
//! inspected from outside. Does not: unlink anything.
#![allow(unsafe_code, reason = "one promise to the engine: for which hits it need not wait")]

use std::time::{Duration, Instant};

use trapline_record::RemoteAddr;
use trapline_runtime::epoch::{Straggler, Writer};
use trapline_tracee::Process;

use super::arch::thread::{self, Number};

/// Hits are over in microseconds; those that are not over after this time are inspected.
const PATIENCE: Duration = Duration::from_millis(2);

/// Returns when every handler that had begun is over.
pub(super) fn wait(writer: &Writer, process: &Process) {
    let lines = writer.lines();
    let mut grace = loop {
        match writer.grace() {
            Some(grace) => break grace,
            // The membarrier was registered when the engine was made. A system that refuses it now is out of
            // memory for a moment.
            None => std::thread::yield_now(),
        }
    };
    let start = Instant::now();
    while !grace.poll(lines) {
        if start.elapsed() < PATIENCE {
            std::thread::yield_now();
            continue;
        }
        let stragglers: Vec<Straggler> = grace.stragglers(lines).collect();
        for one in stragglers.into_iter().filter(|one| is_left(process, one)) {
            // SAFETY: `is_left` has found that the hit's thread has ended, or is in a call above that frame.
            unsafe { grace.excuse(lines, one) };
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether a hit is over although its thread did not report it. That is so if the thread has ended, if
/// another one has its place, or if it is blocked in a call above the hit's frame on the same stack. In case
/// of doubt, the hit counts as going on.
fn is_left(process: &Process, straggler: &Straggler) -> bool {
    let word = |at: u64| process.read_u64(RemoteAddr(at)).ok();
    // The thread's stack holds the seal as long as the hit goes on; another value there shows that it does
    // not. The reverse shows nothing: a thread may have the place of one that ended in a handler, and be
    // blocked deeper with that word untouched. Such a thread is waited for.
    if word(straggler.frame) != Some(straggler.seal()) {
        return true;
    }
    let tid = match thread::number(straggler.thread.0, word) {
        Number::Gone => return true,
        Number::Unknown => return false,
        Number::Is(tid) => tid,
    };
    if process.thread_status(tid).is_err() {
        return true;
    }
    let Ok(maps) = process.maps() else { return false };
    let stack = maps.iter().find(|m| (m.start.0..m.end.0).contains(&straggler.frame));
    let Some(stack) = stack else { return true };
    // A thread that is running shows no stack pointer; it is asked again.
    let blocked_at = std::fs::read_to_string(format!("/proc/self/task/{tid}/syscall")).unwrap_or_default();
    let sp = blocked_at
        .split_whitespace()
        .rev()
        .nth(1)
        .and_then(|w| u64::from_str_radix(w.trim_start_matches("0x"), 16).ok());
    sp.is_some_and(|sp| sp > straggler.frame && (stack.start.0..stack.end.0).contains(&sp))
}
