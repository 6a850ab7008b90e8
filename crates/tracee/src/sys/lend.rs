//! Runs a job in another thread that lives longer than what the job borrows.
//!
//! In: a job, a way to send it to that thread. Out: its result. Invariants: LEND-1 when [`lend`] returns or panics,
//! the job has run or was dropped, so nothing borrows any more. Does not: choose the thread.
//!
//! | step | by | what |
//! |---|---|---|
//! | L1 | caller | sends a [`Lent`]: the job, and behind it the end of a channel |
//! | L2 | other thread | runs the job, which consumes it; or drops it unrun, with its queue |
//! | L3 | other thread | drops the channel's end, which lies behind the job in the same structure |
//! | L4 | caller | sees the channel closed; goes on |
//!
//! Interleavings: *the job panics*: the panic is caught within the job and is part of the result. *The other thread
//! ends before L2*: its queue is dropped, the job first (fields are dropped in their order). *The caller panics
//! between L1 and L4*: a guard waits for L3 all the same.

use std::convert::Infallible;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

type Job<S> = Box<dyn FnOnce(&mut S) + Send + 'static>;

/// A job on its way to the thread that has a state of type `S`.
pub(crate) struct Lent<S: ?Sized> {
    job: Job<S>,
    // Behind the job, since fields are dropped in this order.
    _done: Sender<Infallible>,
}

impl<S: ?Sized> fmt::Debug for Lent<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lent")
    }
}

impl<S: ?Sized> Lent<S> {
    /// L2 and L3.
    pub(crate) fn run(self, state: &mut S) {
        let Self { job, _done } = self;
        job(state);
    }
}

/// Waits for L3 when it is dropped.
struct Until(Receiver<Infallible>);

impl Drop for Until {
    fn drop(&mut self) {
        // Nothing is ever sent, so this returns when the other end is dropped.
        _ = self.0.recv();
    }
}

/// Sends a job by `send`, calls `meanwhile`, and waits for the job's end. `None` if it did not run, as the other
/// thread has ended.
pub(crate) fn lend<S: ?Sized + 'static, T: Send>(
    send: impl FnOnce(Lent<S>),
    job: impl FnOnce(&mut S) -> T + Send,
    meanwhile: impl FnOnce(),
) -> Option<thread::Result<T>> {
    let mut result = None;
    let slot = &mut result;
    let job: Box<dyn FnOnce(&mut S) + Send + '_> =
        Box::new(move |state| *slot = Some(catch_unwind(AssertUnwindSafe(|| job(state)))));
    // SAFETY: the two types differ in the lifetime alone. What the job borrows lives until this function ends, and
    // it ends only when the job is gone (LEND-1): `until` waits for that, also if `send` or `meanwhile` panics.
    let job = unsafe { std::mem::transmute::<Box<dyn FnOnce(&mut S) + Send + '_>, Job<S>>(job) };
    let (done, closed) = channel();
    let until = Until(closed);
    send(Lent { job, _done: done });
    meanwhile();
    drop(until);
    result
}

#[cfg(test)]
mod tests {
    use super::{Lent, lend};
    use std::sync::mpsc::channel;

    #[test]
    fn a_job_borrows_and_changes_what_its_caller_has() {
        let (to, from) = channel::<Lent<u32>>();
        let other = std::thread::spawn(move || {
            let mut state = 40;
            while let Ok(lent) = from.recv() {
                lent.run(&mut state);
            }
        });
        let mut seen = Vec::new();
        for n in 1..=3 {
            let job = |state: &mut u32| {
                *state += 1;
                seen.push(*state);
                *state * n
            };
            let result = lend(|lent| to.send(lent).expect("it lives"), job, || {});
            assert_eq!(result.expect("it ran").expect("no panic"), (40 + n) * n);
        }
        let panics = lend(|lent| to.send(lent).expect("it lives"), |_| panic!("in the job"), || {});
        assert!(panics.expect("it ran").is_err_and(|cause| cause.is::<&str>()));
        drop(to);
        other.join().expect("it ended");
        assert_eq!(seen, [41, 42, 43]);
    }

    /// The queue of a thread that has ended drops the job, and the caller goes on.
    #[test]
    fn a_job_that_does_not_run_is_dropped_first() {
        let kept = std::sync::Arc::new(());
        let (to, from) = channel::<Lent<u32>>();
        let held = std::sync::Arc::clone(&kept);
        let result =
            lend(|lent| to.send(lent).expect("the queue is there"), move |_| drop(held), || drop(from));
        assert!(result.is_none());
        assert_eq!(std::sync::Arc::strong_count(&kept), 1);
    }
}
