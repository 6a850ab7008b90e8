//! Other processes: counts and durations, from attach to detach.
//!
//! In: processes and probes. Out: a session, reports of it. Does not: wait, print, launch commands.

use std::ffi::c_char;
use std::time::Duration;

use trapline::{Builder, ProbeSpec};

use crate::error::{Error, Fault, guard};
use crate::growing::{self, Growing};
use crate::inside::{leave, text};
use crate::report::Report;

/// Follow fork and exec.
pub const TRAPLINE_OPTION_FOLLOW: u32 = 1;
/// Stop all threads while code changes.
pub const TRAPLINE_OPTION_STRICT: u32 = 2;
/// The processes' SIGSEGV and SIGBUS handlers look no address up: instructions that may fault may be moved.
pub const TRAPLINE_OPTION_FAULTS_ARE_FATAL: u32 = 4;
/// Of recursive calls, time only the outermost.
pub const TRAPLINE_OPTION_OUTERMOST: u32 = 8;

const FLAGS: u32 = TRAPLINE_OPTION_FOLLOW
    | TRAPLINE_OPTION_STRICT
    | TRAPLINE_OPTION_FAULTS_ARE_FATAL
    | TRAPLINE_OPTION_OUTERMOST;

/// What to trace, and how.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// sizeof.
    pub size: usize,
    /// Processes; none: every process that maps a file which a probe names.
    pub pids: *const u32,
    /// How many.
    pub pids_len: usize,
    /// Probes, in bpftrace's words: "libssl:SSL_*", "uretprobe:/bin/x:f", "usdt:libc:libc:setjmp".
    pub probes: *const *const c_char,
    /// How many.
    pub probes_len: usize,
    /// Time only calls that take at least this long.
    pub at_least_ns: u64,
    /// TRAPLINE_OPTION_FOLLOW and so on.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: sizes, addresses, numbers.
unsafe impl Growing for Options {
    const NAME: &'static str = "trapline_options";
    const FIRST: usize = 56;
}

/// Probes at work in other processes. To be used by the thread that started it: the kernel knows that one as the tracer.
#[derive(Debug)]
pub struct Session(trapline::Session);

/// # Safety
/// `at` leads to `len` values, or `len` is 0.
unsafe fn list<'a, T>(at: *const T, len: usize, what: &str) -> Result<&'a [T], Fault> {
    match len {
        0 => Ok(&[]),
        _ if at.is_null() => Err(Fault::new(Error::NullPointer, format!("{what} is null"))),
        // SAFETY: the caller's.
        _ => Ok(unsafe { std::slice::from_raw_parts(at, len) }),
    }
}

/// # Safety
/// What the header says of options.
unsafe fn builder(options: *const Options) -> Result<Builder, Fault> {
    // SAFETY: the caller's.
    let options = unsafe { growing::read(options)? };
    if options.flags & !FLAGS != 0 || options.reserved != 0 {
        let unknown = format!("flags {:#x}, reserved {:#x}", options.flags & !FLAGS, options.reserved);
        return Err(Fault::new(Error::UnknownFlag, format!("trapline_options: unknown {unknown}")));
    }
    let has = |flag: u32| options.flags & flag != 0;
    let mut builder = trapline::Session::builder()
        .follow(has(TRAPLINE_OPTION_FOLLOW))
        .strict(has(TRAPLINE_OPTION_STRICT))
        .faults_are_fatal(has(TRAPLINE_OPTION_FAULTS_ARE_FATAL))
        .outermost(has(TRAPLINE_OPTION_OUTERMOST))
        .at_least(Duration::from_nanos(options.at_least_ns));
    // SAFETY: the caller's, for both.
    let (pids, probes) = unsafe {
        let pids = list(options.pids, options.pids_len, "trapline_options' pids")?;
        (pids, list(options.probes, options.probes_len, "trapline_options' probes")?)
    };
    for &pid in pids {
        builder = builder.pid(pid);
    }
    let mut specs = Vec::with_capacity(probes.len());
    for &probe in probes {
        // SAFETY: the caller's.
        let spec: Result<ProbeSpec, _> = unsafe { text(probe, "a probe")? }.parse();
        specs.push(spec.map_err(trapline::Error::from)?);
    }
    Ok(builder.probes(specs))
}

/// # Safety
/// What the header says of options; `session` may be written.
unsafe fn start(
    options: *const Options,
    session: *mut *mut Session,
    begin: impl FnOnce(Builder) -> Result<trapline::Session, trapline::Error>,
) -> Error {
    guard(|| {
        if session.is_null() {
            return Err(Fault::new(Error::NullPointer, "session is null"));
        }
        // SAFETY: the caller's.
        let started = begin(unsafe { builder(options)? })?;
        // SAFETY: the caller's.
        unsafe { leave(session, Box::into_raw(Box::new(Session(started))), "session") }
    })
}

/// Starts counting. Ended by trapline_detach.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_count(options: *const Options, session: *mut *mut Session) -> Error {
    // SAFETY: the caller's.
    unsafe { start(options, session, Builder::count) }
}

/// Starts timing calls, from entry to return. Ended by trapline_detach.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_latency(options: *const Options, session: *mut *mut Session) -> Error {
    // SAFETY: the caller's.
    unsafe { start(options, session, Builder::latency) }
}

/// # Safety
/// `session` is null or alive, and nobody else uses it.
unsafe fn of<'a>(session: *mut Session) -> Result<&'a mut Session, Fault> {
    // SAFETY: the caller's.
    unsafe { session.as_mut() }.ok_or_else(|| Fault::new(Error::NullPointer, "session is null"))
}

/// Looks for new libraries, executed programs and processes that ended; to be called a few times a second. `goes_on`, if not null, is set
/// to false when nothing is left to trace.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_poll(session: *mut Session, goes_on: *mut bool) -> Error {
    guard(|| {
        // SAFETY: the caller's.
        let any = unsafe { of(session)? }.0.poll();
        if !goes_on.is_null() {
            // SAFETY: the caller's.
            unsafe { goes_on.write(any) };
        }
        Ok(())
    })
}

/// Counts or durations since attach. The report is the caller's: trapline_report_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_read(session: *mut Session, report: *mut *mut Report) -> Error {
    guard(|| {
        // SAFETY: the caller's.
        let session = unsafe { &mut of(session)?.0 };
        if report.is_null() {
            return Err(Fault::new(Error::NullPointer, "report is null"));
        }
        let made = Report::new(session.report(), session.take_notices());
        // SAFETY: the caller's.
        unsafe { leave(report, Box::into_raw(Box::new(made)), "report") }
    })
}

/// Takes all patches out. The session is gone then. `report`, if not null, is set to the last report, counted after the last patch was out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_detach(session: *mut Session, report: *mut *mut Report) -> Error {
    guard(|| {
        if session.is_null() {
            return Err(Fault::new(Error::NullPointer, "session is null"));
        }
        // SAFETY: the caller's: made by `start`, and nobody has ended it.
        let Session(session) = *unsafe { Box::from_raw(session) };
        let finished = session.detach();
        if !report.is_null() {
            let made = Report::new(finished.reports, finished.summary.notices);
            // SAFETY: the caller's.
            unsafe { report.write(Box::into_raw(Box::new(made))) };
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::{Growing as _, Options};
    use std::mem::{offset_of, size_of};

    /// What programs were compiled with stays.
    #[test]
    fn the_first_versions_fields_stay_where_they_are() {
        let fields = [
            offset_of!(Options, size),
            offset_of!(Options, pids),
            offset_of!(Options, pids_len),
            offset_of!(Options, probes),
            offset_of!(Options, probes_len),
            offset_of!(Options, at_least_ns),
            offset_of!(Options, flags),
            offset_of!(Options, reserved),
            Options::FIRST,
        ];
        assert_eq!(fields, [0, 8, 16, 24, 32, 40, 48, 52, 56]);
        assert!(size_of::<Options>() >= Options::FIRST);
    }
}
