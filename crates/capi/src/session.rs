//! Other processes: counts and durations, from attach to detach.
//!
//! In: processes and probes. Out: a session, and its reports. Does not: wait, print, launch commands.

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
/// The processes' SIGSEGV and SIGBUS handlers look no address up, so instructions that may fault can be
/// moved.
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
    /// sizeof; set by the caller.
    pub size: usize,
    /// Pids of processes. If there are none: every process that maps a file which a probe names.
    pub pids: *const u32,
    /// Number of pids.
    pub pids_len: usize,
    /// Probes, in bpftrace's words: "libssl:SSL_*", "uretprobe:/bin/x:f", "usdt:libc:libc:setjmp".
    pub probes: *const *const c_char,
    /// Number of probes.
    pub probes_len: usize,
    /// Time only calls that take at least this long.
    pub at_least_ns: u64,
    /// TRAPLINE_OPTION_FOLLOW and so on.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: `repr(C)`, sizes, addresses and numbers without padding.
unsafe impl Growing for Options {
    const NAME: &'static str = "trapline_options";
    const FIRST: usize = 56;
}

/// Probes at work in other processes. Only the thread that started a session may use it: for the kernel, that
/// thread is the tracer.
#[derive(Debug)]
pub struct Session(trapline::Session);

/// # Safety
/// `at` points to `len` values, or `len` is 0.
unsafe fn list<'a, T>(at: *const T, len: usize, what: &str) -> Result<&'a [T], Fault> {
    match len {
        0 => Ok(&[]),
        _ if at.is_null() => Err(Fault::new(Error::NullPointer, format!("{what} is null"))),
        // SAFETY: `at` is not null, and the caller promises that it points to `len` values.
        _ => Ok(unsafe { std::slice::from_raw_parts(at, len) }),
    }
}

/// # Safety
/// What the header demands of options.
unsafe fn builder(options: *const Options) -> Result<Builder, Fault> {
    // SAFETY: the header demands a structure of the size that it states.
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
    // SAFETY: the header demands arrays of the stated lengths. This is for both.
    let (pids, probes) = unsafe {
        let pids = list(options.pids, options.pids_len, "trapline_options' pids")?;
        (pids, list(options.probes, options.probes_len, "trapline_options' probes")?)
    };
    for &pid in pids {
        builder = builder.pid(pid);
    }
    let mut specs = Vec::with_capacity(probes.len());
    for &probe in probes {
        // SAFETY: the header demands texts that end in a zero.
        let spec: Result<ProbeSpec, _> = unsafe { text(probe, "a probe")? }.parse();
        specs.push(spec.map_err(trapline::Error::from)?);
    }
    Ok(builder.probes(specs))
}

/// # Safety
/// What the header demands of options; `session` is null or may be written.
unsafe fn start(
    options: *const Options,
    session: *mut *mut Session,
    begin: impl FnOnce(Builder) -> Result<trapline::Session, trapline::Error>,
) -> Error {
    guard(|| {
        if session.is_null() {
            return Err(Fault::new(Error::NullPointer, "session is null"));
        }
        // SAFETY: the caller promises what the header demands of options.
        let started = begin(unsafe { builder(options)? })?;
        // SAFETY: `session` is not null, and the caller promises that it may be written.
        unsafe { leave(session, Box::into_raw(Box::new(Session(started))), "session") }
    })
}

/// Starts counting. trapline_detach ends it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_count(options: *const Options, session: *mut *mut Session) -> Error {
    // SAFETY: the header demands the same.
    unsafe { start(options, session, Builder::count) }
}

/// Starts timing calls, from entry to return. trapline_detach ends it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_latency(options: *const Options, session: *mut *mut Session) -> Error {
    // SAFETY: the header demands the same.
    unsafe { start(options, session, Builder::latency) }
}

/// # Safety
/// `session` is null or alive, and nothing else uses it meanwhile.
unsafe fn of<'a>(session: *mut Session) -> Result<&'a mut Session, Fault> {
    // SAFETY: the caller promises null or a live session that nothing else uses.
    unsafe { session.as_mut() }.ok_or_else(|| Fault::new(Error::NullPointer, "session is null"))
}

/// Looks for new libraries, executed programs and processes that ended. Call it a few times a second.
/// `goes_on`, if not null, is set to false when nothing is left to trace, else to true.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_poll(session: *mut Session, goes_on: *mut bool) -> Error {
    guard(|| {
        // SAFETY: the header demands null or a live session that nothing else uses.
        let any = unsafe { of(session)? }.0.poll();
        if !goes_on.is_null() {
            // SAFETY: `goes_on` is not null, and the header demands that it may be written.
            unsafe { goes_on.write(any) };
        }
        Ok(())
    })
}

/// Makes a report of counts or durations since attach. The caller frees it by trapline_report_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_read(session: *mut Session, report: *mut *mut Report) -> Error {
    guard(|| {
        // SAFETY: the header demands null or a live session that nothing else uses.
        let session = unsafe { &mut of(session)?.0 };
        if report.is_null() {
            return Err(Fault::new(Error::NullPointer, "report is null"));
        }
        let made = Report::new(session.report(), session.take_notices());
        // SAFETY: `report` is not null, and the header demands that it may be written.
        unsafe { leave(report, Box::into_raw(Box::new(made)), "report") }
    })
}

/// Takes all patches out, and frees the session. `report`, if not null, is set to the last report, counted
/// after the last patch was out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_detach(session: *mut Session, report: *mut *mut Report) -> Error {
    guard(|| {
        if session.is_null() {
            return Err(Fault::new(Error::NullPointer, "session is null"));
        }
        // SAFETY: the header demands a live session: made by `start`, and not ended since.
        let Session(session) = *unsafe { Box::from_raw(session) };
        let finished = session.detach();
        if !report.is_null() {
            let made = Report::new(finished.reports, finished.summary.notices);
            // SAFETY: `report` is not null, and the header demands that it may be written.
            unsafe { report.write(Box::into_raw(Box::new(made))) };
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::{Growing as _, Options};
    use std::mem::{offset_of, size_of};

    /// Programs were compiled with these offsets, so they must stay.
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
