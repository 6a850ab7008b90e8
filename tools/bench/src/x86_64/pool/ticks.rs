//! A timer signal to the calling thread that repeats, and the function that its handler calls.

use std::cell::Cell;
use std::marker::PhantomData;
use std::time::Duration;

use anyhow::{Result, ensure};

type Call = (fn(*const ()), *const ());

thread_local! {
    static CALL: Cell<Option<Call>> = const { Cell::new(None) };
}

/// The signal comes as long as this value lives, on the thread that made it.
#[derive(Debug)]
pub(super) struct Ticks<'a> {
    timer: libc::timer_t,
    /// Bound to that thread, and to the lifetime of the function that is called.
    _of: PhantomData<(*mut (), &'a ())>,
}

extern "C" fn ticked(_: libc::c_int) {
    if let Some((call, with)) = CALL.get() {
        call(with);
    }
}

impl<'a> Ticks<'a> {
    /// Calls `operation` in a signal handler of this thread. It must do only what a signal handler may do.
    pub(super) fn start<F: Fn()>(period: Duration, operation: &'a F) -> Result<Self> {
        let call: fn(*const ()) = |operation| {
            // SAFETY: `CALL` holds a reference of this type that outlives the ticks.
            unsafe { (*operation.cast::<F>())() }
        };
        CALL.set(Some((call, std::ptr::from_ref(operation).cast())));
        let signal = libc::SIGRTMIN() + 3;
        let mut timer: libc::timer_t = std::ptr::null_mut();
        // SAFETY: structures of the C library, filled as its manual says; the handler lives as long as the
        // program.
        let set = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = ticked as *const () as usize;
            action.sa_flags = libc::SA_RESTART;
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = signal;
            event.sigev_notify_thread_id = libc::gettid();
            let every = libc::timespec { tv_sec: 0, tv_nsec: period.subsec_nanos().into() };
            let spec = libc::itimerspec { it_interval: every, it_value: every };
            libc::sigaction(signal, &raw const action, std::ptr::null_mut()) == 0
                && libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) == 0
                && libc::timer_settime(timer, 0, &raw const spec, std::ptr::null_mut()) == 0
        };
        ensure!(set, "a timer: {}", std::io::Error::last_os_error());
        Ok(Self { timer, _of: PhantomData })
    }
}

impl Drop for Ticks<'_> {
    fn drop(&mut self) {
        // SAFETY: our own timer, deleted once. A signal that is still pending finds nothing to call.
        unsafe { libc::timer_delete(self.timer) };
        CALL.set(None);
    }
}
