//! The engine's lock over a fork: the thread that forks holds it meanwhile, so that the child finds it free and all behind it whole.
//!
//! In: nothing. Out: handlers that libc calls around `fork`. A child made by a raw clone finds the lock as it was: it may hit probes,
//! and must not register.
#![allow(unsafe_code, reason = "pthread_atfork takes C functions")]

use std::cell::RefCell;
use std::sync::MutexGuard;

use super::state::{State, lock};

thread_local! {
    /// Held by this thread while it forks.
    static HELD: RefCell<Option<MutexGuard<'static, State>>> = const { RefCell::new(None) };
}

/// Once a process.
pub(super) fn prepare() {
    // SAFETY: the functions live as long as the program, and call nothing that a forked child may not.
    unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
}

unsafe extern "C" fn before() {
    let guard = lock();
    // A thread whose local storage is gone forks without the lock; nobody can do better there.
    HELD.try_with(|held| *held.borrow_mut() = Some(guard)).unwrap_or_default();
}

unsafe extern "C" fn after() {
    drop(HELD.try_with(|held| held.borrow_mut().take()));
}
