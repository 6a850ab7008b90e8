//! The engine's lock, which no hit takes, and what becomes of it during a fork.
//!
//! In: nothing. Out: the engine's [`State`], for one thread at a time; the functions by which the thread that
//! looks reaches it; handlers that libc calls around `fork`. The thread that forks holds the lock meanwhile,
//! so the child finds it free, and all that it protects whole. A child that is made by a raw clone finds the
//! lock as it was: it may hit probes, and must not register. Does not: decide anything (`state`).

use std::cell::RefCell;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use super::memory::engine;
use super::notice::Looker;
use super::state::State;
use super::system::around_forks;
use super::{Error, own_stack};

static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| {
    around_forks(before_fork, after_fork);
    Mutex::new(State::new(Looker { waits, look, look_unless_locked }))
});

/// Takes the lock.
pub(super) fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the lock, if no thread holds it.
fn try_lock() -> Option<MutexGuard<'static, State>> {
    match STATE.try_lock() {
        Ok(state) => Some(state),
        Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Takes the lock, for a caller that may wait for handlers, so not from inside one.
pub(super) fn enter() -> Result<MutexGuard<'static, State>, Error> {
    if own_stack::is_inside_handler() {
        return Err(Error::InsideHandler);
    }
    let state = lock();
    engine().ok_or(Error::NoEngine)?;
    Ok(state)
}

fn waits() -> (Vec<i32>, Option<Duration>) {
    lock().waits()
}

fn look(asked: bool, missed: bool) -> bool {
    lock().look(asked, missed)
}

fn look_unless_locked() {
    if let Some(mut state) = try_lock() {
        state.look(true, false);
    }
}

thread_local! {
    /// The lock, while this thread forks.
    static HELD: RefCell<Option<MutexGuard<'static, State>>> = const { RefCell::new(None) };
}

extern "C" fn before_fork() {
    let guard = lock();
    // A thread forks without the lock if its local storage is gone; there is no place to keep it.
    HELD.try_with(|held| *held.borrow_mut() = Some(guard)).unwrap_or_default();
}

extern "C" fn after_fork() {
    drop(HELD.try_with(|held| held.borrow_mut().take()));
}
