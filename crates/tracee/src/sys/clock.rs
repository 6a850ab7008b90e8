//! The counter that generated code reads, and the system's clocks.

pub(crate) use super::native::ticks;

/// Hour, minute and second of the day, in local time.
pub(crate) fn local_time() -> (i32, i32, i32) {
    // SAFETY: `tm` is plain integers and a pointer that is never followed; all-zero is a value of it.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: a null pointer is allowed: the time is then only returned.
    let now = unsafe { libc::time(std::ptr::null_mut()) };
    // SAFETY: both are live; on failure `tm` keeps its zeros.
    unsafe { libc::localtime_r(&raw const now, &raw mut tm) };
    (tm.tm_hour, tm.tm_min, tm.tm_sec)
}

fn read(clock: libc::clockid_t) -> std::time::Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is live; the clock is one of the two below, which always exist.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    std::time::Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// CLOCK_MONOTONIC.
pub(crate) fn monotonic() -> std::time::Duration {
    read(libc::CLOCK_MONOTONIC)
}

/// CPU time of the calling thread.
pub(crate) fn thread_time() -> std::time::Duration {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// The calling thread's number.
pub(crate) fn thread_id() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::gettid() }.cast_unsigned()
}
