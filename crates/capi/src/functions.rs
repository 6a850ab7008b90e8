//! The functions for C, in the order in which the header has them.
//!
//! In: pointers from C. Out: what they lead to, in safe code's types, and results written back. Invariants:
//! CAP-1: every function that can fail runs inside [`guard`]; CAP-3: it writes its result last. What the
//! functions ask of pointers stands in the header, in C's words, and once here. Handles are alive. Structures
//! hold as many bytes as they state. Texts end in a zero. Results may be written, unless stated to be
//! optional.
//! Does not: decide anything.
#![allow(
    unsafe_code,
    clippy::missing_safety_doc,
    reason = "functions for C: what they ask of pointers stands in the header"
)]

use std::ffi::c_char;
use std::ptr::null;

use trapline::Builder;
use trapline::inside::{self, Consumer, Functions, Request, raw};

use crate::error::{Error, Fault, guard, last_errno, last_text, text_of};
use crate::inside::{Filter, Handler, Probe, Registration, TRAPLINE_PROBE_GENERAL_REGS_ONLY, Tally};
use crate::pointers::{self, Plain, alive, alone, leave, list, text};
use crate::report::{Count, Refusal, Report, Times, nth};
use crate::session::{Options, Session};

// SAFETY: `repr(C)`, a size, addresses and numbers without padding; functions are nullable.
unsafe impl Plain for Probe {}
// SAFETY: `repr(C)`, numbers of one size, so without padding.
unsafe impl Plain for Tally {}
// SAFETY: `repr(C)`, sizes, addresses and numbers without padding.
unsafe impl Plain for Options {}
// SAFETY: `repr(C)`, a size, addresses and numbers without padding.
unsafe impl Plain for Count {}
// SAFETY: as above.
unsafe impl Plain for Times {}
// SAFETY: as above.
unsafe impl Plain for Refusal {}

/// Number of a report's rows; 0 without a report.
///
/// # Safety
/// `report` is null or alive.
unsafe fn len<T>(report: *const Report, rows: fn(&Report) -> &[T]) -> usize {
    // SAFETY: the caller promises null or a live report.
    unsafe { report.as_ref() }.map_or(0, |report| rows(report).len())
}

/// Describes an error in a few words. Never null.
#[unsafe(no_mangle)]
pub extern "C" fn trapline_error_text(error: i32) -> *const c_char {
    text_of(error).as_ptr()
}

/// Describes the last failure in this thread, with names and numbers; empty if there was none. Valid until
/// the thread's next call that fails.
#[unsafe(no_mangle)]
pub extern "C" fn trapline_last_error() -> *const c_char {
    last_text()
}

/// What the kernel's uprobes would return in the case of this thread's last failure, as a positive errno; 0
/// if they have no such case.
#[unsafe(no_mangle)]
pub extern "C" fn trapline_last_errno() -> i32 {
    last_errno()
}

/// # Safety
/// What the header demands of a probe.
unsafe fn request(probe: *const Probe) -> Result<Request, Fault> {
    // SAFETY: the header demands a structure of the size that it states.
    let probe = unsafe { pointers::read(probe)? };
    probe.check_flags()?;
    // SAFETY: the header demands texts that end in a zero. This is for both texts.
    let file = unsafe { text(probe.file, "trapline_probe's file")? };
    let function = match probe.function.is_null() {
        true => None,
        // SAFETY: as above.
        false => Some(unsafe { text(probe.function, "trapline_probe's function")? }),
    };
    // SAFETY: the header demands that the functions are handlers.
    probe.request(file, function, unsafe { consumer(&probe) })
}

/// # Safety
/// The probe's functions are handlers, as the header describes them.
unsafe fn consumer(probe: &Probe) -> Consumer {
    // SAFETY: the types differ in names only. `Hit` and `Verdict` are laid out as the engine's (tests of
    // `inside` compare them), and the engine accepts any number for a verdict.
    let handler = |handler: Handler| unsafe { std::mem::transmute::<Handler, Option<raw::Handler>>(handler) };
    // SAFETY: as above.
    let filter = unsafe { std::mem::transmute::<Filter, Option<raw::Filter>>(probe.filter) };
    let (entry, returns) = (handler(probe.entry), handler(probe.returns));
    // SAFETY: the caller promises that the functions are handlers.
    let consumer = unsafe { Consumer::functions(Functions { entry, returns, filter, data: probe.data }) };
    if probe.has(TRAPLINE_PROBE_GENERAL_REGS_ONLY) {
        // SAFETY: by setting the flag, the C program makes that promise.
        unsafe { consumer.general_regs_only() }
    } else {
        consumer
    }
}

/// Registers a consumer on (file, offset). It is called in every executable, private, unwritable mapping of
/// the file that this process has or will have (see trapline_rescan), from the return of this function on.
/// trapline_unregister ends it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_register(
    probe: *const Probe,
    registration: *mut *mut Registration,
) -> Error {
    // SAFETY: the header demands one probe and room for one registration.
    unsafe { trapline_register_all(probe, 1, registration) }
}

/// Registers all, in their order, or none. `probes` is an array of structures, which all have the size of the
/// first one. `registrations` has room for as many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_register_all(
    probes: *const Probe,
    count: usize,
    registrations: *mut *mut Registration,
) -> Error {
    guard(|| {
        if registrations.is_null() {
            return Err(Fault::new(Error::NullPointer, "no room for registrations"));
        }
        // SAFETY: the header demands an array of `count` probes.
        let requests = unsafe { requests(probes, count)? };
        for (at, one) in inside::register_all(requests)?.into_iter().enumerate() {
            // SAFETY: the header demands room for `count` registrations, which is the number of requests.
            unsafe { registrations.add(at).write(Box::into_raw(Box::new(Registration::new(one)))) };
        }
        Ok(())
    })
}

/// # Safety
/// As [`trapline_register_all`].
unsafe fn requests(probes: *const Probe, count: usize) -> Result<Vec<Request>, Fault> {
    if count == 0 {
        return Err(inside::Error::Empty.into());
    }
    // The size of the first shows where the second begins. The first is read as a whole before that, so it is
    // not null and its size is possible. SAFETY: the caller promises an array with at least one probe.
    let (first, stride) = unsafe { (request(probes)?, probes.cast::<usize>().read_unaligned()) };
    let mut requests = vec![first];
    for at in 1..count {
        // SAFETY: the caller promises an array of `count` probes; its stride is the size of the first.
        let (probe, size) = unsafe {
            let probe = probes.byte_add(at * stride);
            (probe, probe.cast::<usize>().read_unaligned())
        };
        if size != stride {
            let text = format!("trapline_probe {at} of {size} bytes, the first of {stride}");
            return Err(Fault::new(Error::StructSize, text));
        }
        // SAFETY: the probe is within that array.
        requests.push(unsafe { request(probe)? });
    }
    Ok(requests)
}

/// Unregisters a consumer, and returns when no handler of it can still run. The registration is gone then,
/// unless a handler made this call. Null is allowed, and does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_unregister(registration: *mut Registration) -> Error {
    // SAFETY: the header demands null or a live registration.
    unsafe { trapline_unregister_all(&raw const registration, 1) }
}

/// Unregisters all, and waits once, until no handler of any of them can still run. Otherwise as
/// trapline_unregister.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_unregister_all(
    registrations: *const *mut Registration,
    count: usize,
) -> Error {
    guard(|| {
        if registrations.is_null() && count > 0 {
            return Err(Fault::new(Error::NullPointer, "registrations is null"));
        }
        if inside::is_inside_handler() {
            return Err(inside::Error::InsideHandler.into());
        }
        // SAFETY: the header demands an array of `count` registrations.
        let all = (0..count).map(|at| unsafe { registrations.add(at).read() }).filter(|one| !one.is_null());
        // SAFETY: the header demands live registrations: made by `trapline_register_all`, and not ended
        // since.
        let all: Vec<_> = all.map(|one| unsafe { Box::from_raw(one) }.into_inner()).collect();
        Ok(inside::unregister_all(all)?)
    })
}

/// Probes what was mapped since the last look (dlopen, mmap), and drops what was unmapped. `sites`, if not
/// null, is set to the number of sites that were patched.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_rescan(sites: *mut usize) -> Error {
    guard(|| {
        let patched = inside::rescan()?;
        if !sites.is_null() {
            // SAFETY: `sites` is not null, and the header demands that it may be written.
            unsafe { sites.write(patched) };
        }
        Ok(())
    })
}

/// Fills in what the registration's site has counted. The caller sets `tally->size`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_tally_of(registration: *const Registration, tally: *mut Tally) -> Error {
    guard(|| {
        // SAFETY: the header demands null or a live registration.
        let value = unsafe { alive(registration, "registration")? }.tally();
        // SAFETY: the header demands a structure of the size that it states, not in use elsewhere.
        unsafe { pointers::write(tally, &value) }
    })
}

/// # Safety
/// What the header demands of options.
unsafe fn builder(options: *const Options) -> Result<Builder, Fault> {
    // SAFETY: the header demands a structure of the size that it states.
    let options = unsafe { pointers::read(options)? };
    options.check_flags()?;
    // SAFETY: the header demands arrays of the stated lengths. This is for both.
    let (pids, probes) = unsafe {
        let pids = list(options.pids, options.pids_len, "trapline_options' pids")?;
        (pids, list(options.probes, options.probes_len, "trapline_options' probes")?)
    };
    // SAFETY: the header demands texts that end in a zero.
    options.builder(pids, probes.iter().map(|&probe| unsafe { text(probe, "a probe") }))
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
        unsafe { leave(session, Box::into_raw(Box::new(Session::new(started))), "session") }
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

/// Looks for new libraries, executed programs and processes that ended. Call it a few times a second.
/// `goes_on`, if not null, is set to false when nothing is left to trace, else to true.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_poll(session: *mut Session, goes_on: *mut bool) -> Error {
    guard(|| {
        // SAFETY: the header demands null or a live session that nothing else uses.
        let any = unsafe { alone(session, "session")? }.poll();
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
        let session = unsafe { alone(session, "session")? };
        if report.is_null() {
            return Err(Fault::new(Error::NullPointer, "report is null"));
        }
        let made = session.report();
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
        let last = unsafe { Box::from_raw(session) }.detach();
        if !report.is_null() {
            let made = last();
            // SAFETY: `report` is not null, and the header demands that it may be written.
            unsafe { report.write(Box::into_raw(Box::new(made))) };
        }
        Ok(())
    })
}

/// Number of counted sites.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_report_counts(report: *const Report) -> usize {
    // SAFETY: the header demands null or a live report.
    unsafe { len(report, Report::counts) }
}

/// Fills in the row of one counted site.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_report_count(
    report: *const Report,
    index: usize,
    row: *mut Count,
) -> Error {
    // SAFETY: the header demands null or a live report, and a row of the size that it states.
    guard(|| unsafe { pointers::write(row, nth(alive(report, "report")?.counts(), index)?) })
}

/// Number of timed functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_report_times(report: *const Report) -> usize {
    // SAFETY: the header demands null or a live report.
    unsafe { len(report, Report::times) }
}

/// Fills in the row of one timed function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_report_time(report: *const Report, index: usize, row: *mut Times) -> Error {
    // SAFETY: the header demands null or a live report, and a row of the size that it states.
    guard(|| unsafe { pointers::write(row, &nth(alive(report, "report")?.times(), index)?.0) })
}

/// Sets `ns` to the duration that a share (0 to 1) of a timed function's calls did not exceed, in
/// nanoseconds. It is off by at most 1/32.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_report_percentile(
    report: *const Report,
    index: usize,
    share: f64,
    ns: *mut u64,
) -> Error {
    // SAFETY: the header demands null or a live report, and that `ns` may be written.
    guard(|| unsafe { leave(ns, nth(alive(report, "report")?.times(), index)?.1.percentile(share), "ns") })
}

/// Number of sites that are not probed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_report_refusals(report: *const Report) -> usize {
    // SAFETY: the header demands null or a live report.
    unsafe { len(report, Report::refusals) }
}

/// Fills in the row of one site that is not probed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_report_refusal(
    report: *const Report,
    index: usize,
    row: *mut Refusal,
) -> Error {
    // SAFETY: the header demands null or a live report, and a row of the size that it states.
    guard(|| unsafe { pointers::write(row, nth(alive(report, "report")?.refusals(), index)?) })
}

/// What else a user should know: one sentence for each `index`, and null after the last.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_report_notice(report: *const Report, index: usize) -> *const c_char {
    // SAFETY: the header demands null or a live report.
    let report = unsafe { report.as_ref() };
    report.and_then(|report| report.notices().get(index)).map_or(null(), |notice| notice.as_ptr())
}

/// Frees a report. Null is allowed, and does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_report_free(report: *mut Report) {
    if !report.is_null() {
        // SAFETY: the header demands a live report, made by `trapline_read` or `trapline_detach`.
        drop(unsafe { Box::from_raw(report) });
    }
}

#[cfg(test)]
mod tests;
