//! The engine's lock during a fork. The thread that forks holds it meanwhile, so the child finds it free, and
//! all that it protects whole.
//!
//! In: nothing. Out: handlers that libc calls around `fork`. A child that is made by a raw clone finds the
//! lock as it was: it may hit probes, and must not register.
#![allow(unsafe_code, reason = "pthread_atfork takes C functions")]

use std::cell::RefCell;
use std::sync::MutexGuard;

use super::state::{State, lock};

thread_local! {
    /// The lock, while this thread forks.
    static HELD: RefCell<Option<MutexGuard<'static, State>>> = const { RefCell::new(None) };
}

/// Called once in each process.
pub(super) fn prepare() {
    // SAFETY: the functions live as long as the program, and call nothing that is forbidden in a forked
    // child.
    unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
}

unsafe extern "C" fn before() {
    let guard = lock();
    // A thread whose local storage is gone forks without the lock; there is no place to keep it.
    HELD.try_with(|held| *held.borrow_mut() = Some(guard)).unwrap_or_default();
}

unsafe extern "C" fn after() {
    drop(HELD.try_with(|held| held.borrow_mut().take()));
}
