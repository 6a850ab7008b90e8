//! The thread that looks, and requests to it. The protocol is in [`notice`](super).

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use trapline_tracee::Bell;

use super::PATIENCE;
use super::misses::Misses;
use crate::inside::memory::Leaked;
use crate::inside::system::with_signals_blocked;

/// State that askers and the thread share.
struct Desk {
    /// Process to which the thread belongs.
    pid: u32,
    bell: Bell,
    asked: AtomicU64,
    done: Mutex<u64>,
    changed: Condvar,
    impatient: AtomicU64,
    misses: Misses,
    looker: Looker,
}

/// How the thread reaches the engine's state. Each function takes the engine's lock.
#[derive(Clone, Copy, Debug)]
pub(in crate::inside) struct Looker {
    /// What T1 waits for: descriptors, and how long at most.
    pub(in crate::inside) waits: fn() -> (Vec<i32>, Option<Duration>),
    /// T4 and T5. Whether a thread asked, and whether a miss did; returns whether anything was found.
    pub(in crate::inside) look: fn(bool, bool) -> bool,
    /// T4 and T5 in the calling thread, unless a thread holds the lock.
    pub(in crate::inside) look_unless_locked: fn(),
}

/// The desk of this process. A forked child has its parent's until it makes its own.
static DESK: Leaked<Desk> = Leaked::new();

/// The desk, if its thread belongs to this process.
fn desk() -> Option<&'static Desk> {
    DESK.get().filter(|desk| desk.pid == std::process::id())
}

/// Makes the thread. Returns false if the system gives no thread or no descriptor.
pub(in crate::inside) fn start(looker: Looker) -> bool {
    let Ok(bell) = Bell::new() else { return false };
    let desk: &'static Desk = Box::leak(Box::new(Desk {
        pid: std::process::id(),
        bell,
        asked: AtomicU64::new(0),
        done: Mutex::new(0),
        changed: Condvar::new(),
        impatient: AtomicU64::new(0),
        misses: Misses::new(),
        looker,
    }));
    let builder = std::thread::Builder::new().name("trapline-learn".into());
    let made = with_signals_blocked(|| builder.spawn(move || run(desk))).is_ok();
    if made {
        DESK.set(desk);
    }
    made
}

/// T1 to T6, for as long as the process lives.
fn run(desk: &'static Desk) {
    let mut served = 0;
    loop {
        let (rings, patience) = (desk.looker.waits)();
        desk.bell.wait(&rings, patience);
        desk.bell.clear();
        let (asked, seen) = (desk.asked.load(Acquire), desk.misses.seen());
        let found = (desk.looker.look)(asked > served, desk.misses.asks(seen));
        desk.misses.looked(seen, found);
        served = asked;
        *desk.done.lock().unwrap_or_else(PoisonError::into_inner) = served;
        desk.changed.notify_all();
    }
}

/// A1 and A2: no lock, no allocation, errno unchanged.
pub(super) fn ask() {
    if let Some(desk) = desk() {
        desk.asked.fetch_add(1, Release);
        desk.bell.ring();
    }
}

/// A question found no file's code. Unless many looks for that found nothing, T will read the maps soon. No
/// lock, no allocation, errno unchanged.
pub(in crate::inside) fn missed() {
    if let Some(desk) = desk()
        && desk.misses.miss()
    {
        desk.bell.ring();
    }
}

/// How often [`missed`] was called.
pub(in crate::inside) fn misses() -> u64 {
    desk().map_or(0, |desk| desk.misses.seen())
}

/// Wakes the thread, since the rings were replaced.
pub(super) fn look_up() {
    if let Some(desk) = desk() {
        desk.bell.ring();
    }
}

/// A1 to A3. In a forked child without a thread: the caller looks by itself, if no thread holds the lock.
pub(super) fn ask_and_wait() {
    let Some(desk) = desk() else {
        // The call is probed only where a desk was made, in this process or in the one that forked it.
        if let Some(desk) = DESK.get() {
            (desk.looker.look_unless_locked)();
        }
        return;
    };
    let ticket = desk.asked.fetch_add(1, Release) + 1;
    desk.bell.ring();
    let end = Instant::now() + PATIENCE;
    let mut done = desk.done.lock().unwrap_or_else(PoisonError::into_inner);
    while *done < ticket {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            desk.impatient.fetch_add(1, Relaxed);
            return;
        }
        done = desk.changed.wait_timeout(done, left).unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// Number of askers that did not wait any longer.
pub(in crate::inside) fn impatient() -> u64 {
    desk().map_or(0, |desk| desk.impatient.load(Relaxed))
}
