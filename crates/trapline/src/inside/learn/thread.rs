//! The thread that looks, and those who ask it. The protocol stands in [`learn`](super).
#![allow(
    unsafe_code,
    reason = "signals are blocked around the making of a thread; what askers share with it is leaked"
)]

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use trapline_target::Bell;

use super::super::state::lock;
use super::PATIENCE;
use super::misses::Misses;

/// Signals that instructions raise; all others are blocked.
const RAISED: [i32; 6] =
    [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGSYS];

/// Where askers and the thread meet.
struct Desk {
    /// The process that the thread is of.
    pid: u32,
    bell: Bell,
    asked: AtomicU64,
    done: Mutex<u64>,
    changed: Condvar,
    impatient: AtomicU64,
    misses: Misses,
}

/// How often an unwinder is looked at that is being loaded.
const LOADING: Duration = Duration::from_millis(1);

/// This process's; a forked child makes its own.
static DESK: AtomicPtr<Desk> = AtomicPtr::new(ptr::null_mut());

/// The desk, if its thread is of this process.
fn desk() -> Option<&'static Desk> {
    // SAFETY: null, or leaked by `start`. Acquire: what it holds is visible.
    let desk = unsafe { DESK.load(Acquire).as_ref() }?;
    (desk.pid == std::process::id()).then_some(desk)
}

/// Makes the thread. False: the system has none to give, or no descriptor.
pub(super) fn start() -> bool {
    let Ok(bell) = Bell::new() else { return false };
    let desk: &'static Desk = Box::leak(Box::new(Desk {
        pid: std::process::id(),
        bell,
        asked: AtomicU64::new(0),
        done: Mutex::new(0),
        changed: Condvar::new(),
        impatient: AtomicU64::new(0),
        misses: Misses::new(),
    }));
    let builder = std::thread::Builder::new().name("trapline-learn".into());
    let made = with_signals_blocked(|| builder.spawn(move || run(desk))).is_ok();
    if made {
        DESK.store(ptr::from_ref(desk).cast_mut(), Release);
    }
    made
}

/// The new thread inherits the mask, so that no signal finds it before it could set its own.
pub(in crate::inside) fn with_signals_blocked<T>(body: impl FnOnce() -> T) -> T {
    with_mask(libc::SIG_SETMASK, body)
}

/// The same around work that makes threads for as long as it takes: the program's signals are its own threads' to take. Those that instructions raise stay as they are.
pub(in crate::inside) fn with_signals_held<T>(body: impl FnOnce() -> T) -> T {
    with_mask(libc::SIG_BLOCK, body)
}

fn with_mask<T>(how: i32, body: impl FnOnce() -> T) -> T {
    let _before = Mask::change(how);
    body()
}

/// This thread's mask of before, which it gets back at the end, by a panic too.
struct Mask(libc::sigset_t);

impl Mask {
    fn change(how: i32) -> Self {
        let (mut blocked, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: both sets are live and written before they are read; the calls change this thread's mask only.
        unsafe {
            libc::sigfillset(blocked.as_mut_ptr());
            for signal in RAISED {
                libc::sigdelset(blocked.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(how, blocked.as_ptr(), before.as_mut_ptr());
            Self(before.assume_init())
        }
    }
}

impl Drop for Mask {
    fn drop(&mut self) {
        // SAFETY: the mask of before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

/// T1 to T6, for as long as the process lives.
fn run(desk: &'static Desk) {
    let mut served = 0;
    loop {
        let (rings, patience) = {
            let state = lock();
            (state.descriptors(), state.unwinders.loading.then_some(LOADING))
        };
        desk.bell.wait(&rings, patience);
        desk.bell.clear();
        let (asked, seen) = (desk.asked.load(Acquire), desk.misses.seen());
        let found = lock().learn(asked > served, desk.misses.asks(seen));
        desk.misses.looked(seen, found);
        served = asked;
        *desk.done.lock().unwrap_or_else(PoisonError::into_inner) = served;
        desk.changed.notify_all();
    }
}

/// A1 and A2: no lock, no allocation, errno as before.
pub(super) fn ask() {
    if let Some(desk) = desk() {
        desk.asked.fetch_add(1, Release);
        desk.bell.ring();
    }
}

/// No file's code is known where somebody asked: the maps are looked at soon, by T, unless many a look for that found nothing. No lock, no allocation, errno
/// as before.
pub(in crate::inside) fn missed() {
    if let Some(desk) = desk()
        && desk.misses.miss()
    {
        desk.bell.ring();
    }
}

/// Times that [`missed`] was called.
pub(super) fn misses() -> u64 {
    desk().map_or(0, |desk| desk.misses.seen())
}

/// The rings were replaced.
pub(super) fn look_up() {
    if let Some(desk) = desk() {
        desk.bell.ring();
    }
}

/// A1 to A3. In a forked child without a thread: a look by the caller, if nobody holds the lock.
pub(super) fn ask_and_wait() {
    let Some(desk) = desk() else {
        if let Some(mut state) = super::super::state::try_lock() {
            state.learn(true, false);
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

/// Askers that did not wait any longer.
pub(super) fn impatient() -> u64 {
    desk().map_or(0, |desk| desk.impatient.load(Relaxed))
}
