//! Reports of a session, as rows that C reads.
//!
//! In: reports of the `trapline` crate. Out: rows by number, whose texts live as long as the report. Does
//! not: sum or sort.

use std::ffi::{CString, c_char};
use std::ptr::null;

use trapline::{Histogram, ProcessReport};

use crate::error::{Error, Fault, guard};
use crate::growing::{self, Growing};
use crate::inside::leave;

/// A session's report at one moment. Texts in its rows are valid until it is freed.
#[derive(Debug, Default)]
pub struct Report {
    counts: Vec<Count>,
    times: Vec<(Times, Histogram)>,
    refusals: Vec<Refusal>,
    notices: Vec<CString>,
    /// Texts to which the rows point.
    _texts: Vec<CString>,
}

/// Hits of one site in one process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Count {
    /// sizeof; set by the caller.
    pub size: usize,
    /// "uprobe:PATH:FUNCTION".
    pub probe: *const c_char,
    /// Short form, for tables.
    pub label: *const c_char,
    /// The file's path as the process sees it.
    pub file: *const c_char,
    /// Bytes from the start of the file to the probed instruction.
    pub offset: u64,
    /// Hits since attach.
    pub hits: u64,
    /// Hits since the last report.
    pub delta: u64,
    /// Hits of the whole process that could not be recorded.
    pub missed: u64,
    /// Process id.
    pub pid: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: `repr(C)`, a size, addresses and numbers without padding.
unsafe impl Growing for Count {
    const NAME: &'static str = "trapline_count_row";
    const FIRST: usize = 72;
}

/// Durations of one function in one process, in nanoseconds; see trapline_report_percentile.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// sizeof; set by the caller.
    pub size: usize,
    /// "uprobe:PATH:FUNCTION".
    pub probe: *const c_char,
    /// Short form, for tables.
    pub label: *const c_char,
    /// The file's path as the process sees it.
    pub file: *const c_char,
    /// Bytes from the start of the file to the function.
    pub offset: u64,
    /// Calls that ended and took at least as long as requested.
    pub calls: u64,
    /// Calls that had begun and not ended.
    pub in_flight: u64,
    /// Exits without a known entry: calls that were running at the attach.
    pub unpaired: u64,
    /// Entries without an exit: left by longjmp or an exception.
    pub unreturned: u64,
    /// Sum of durations.
    pub total_ns: u64,
    /// Shortest call; 0 without calls.
    pub min_ns: u64,
    /// Longest call.
    pub max_ns: u64,
    /// Process id.
    pub pid: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: `repr(C)`, a size, addresses and numbers without padding.
unsafe impl Growing for Times {
    const NAME: &'static str = "trapline_times_row";
    const FIRST: usize = 104;
}

/// A place that a probe means and that is not probed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Refusal {
    /// sizeof; set by the caller.
    pub size: usize,
    /// "uprobe:PATH:FUNCTION".
    pub probe: *const c_char,
    /// A stable word for the kind of reason.
    pub kind: *const c_char,
    /// The reason, with its numbers.
    pub reason: *const c_char,
    /// Process id.
    pub pid: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: `repr(C)`, a size, addresses and numbers without padding.
unsafe impl Growing for Refusal {
    const NAME: &'static str = "trapline_refusal_row";
    const FIRST: usize = 40;
}

/// Keeps texts, each on the heap, so their addresses stay.
#[derive(Default)]
struct Texts(Vec<CString>);

impl Texts {
    fn keep(&mut self, text: &str) -> *const c_char {
        self.0.push(c_string(text));
        self.0.last().map_or(null(), |text| text.as_ptr())
    }
}

fn c_string(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

impl Report {
    pub(crate) fn new(processes: Vec<ProcessReport>, notices: Vec<String>) -> Self {
        let mut texts = Texts::default();
        let mut report = Self::default();
        for process in processes {
            report.add(&process, &mut texts);
        }
        report.notices = notices.iter().map(|notice| c_string(notice)).collect();
        report._texts = texts.0;
        report
    }
    fn add(&mut self, process: &ProcessReport, texts: &mut Texts) {
        let pid = process.pid;
        for count in &process.counts {
            let site = &count.site;
            self.counts.push(Count {
                size: 0,
                probe: texts.keep(&site.probe),
                label: texts.keep(&site.label),
                file: texts.keep(&site.file),
                offset: site.offset,
                hits: count.hits,
                delta: count.delta,
                missed: process.missed,
                pid,
                reserved: 0,
            });
        }
        for times in &process.times {
            let Some(site) = &times.site else { continue };
            let row = Times {
                size: 0,
                probe: texts.keep(&site.probe),
                label: texts.keep(&site.label),
                file: texts.keep(&site.file),
                offset: site.offset,
                calls: times.calls,
                in_flight: times.in_flight,
                unpaired: times.unpaired,
                unreturned: times.unreturned,
                total_ns: times.total_ns,
                min_ns: times.min_ns,
                max_ns: times.max_ns,
                pid,
                reserved: 0,
            };
            self.times.push((row, times.histogram.clone()));
        }
        for refused in process.refused.iter() {
            let (probe, kind) = (texts.keep(&refused.probe), texts.keep(refused.kind));
            let reason = texts.keep(&refused.reason);
            self.refusals.push(Refusal { size: 0, probe, kind, reason, pid, reserved: 0 });
        }
    }
}

/// # Safety
/// `report` is null or alive.
unsafe fn of<'a>(report: *const Report) -> Result<&'a Report, Fault> {
    // SAFETY: the caller promises null or a live report.
    unsafe { report.as_ref() }.ok_or_else(|| Fault::new(Error::NullPointer, "report is null"))
}

fn nth<T>(rows: &[T], index: usize) -> Result<&T, Fault> {
    let none = || Fault::new(Error::NoRow, format!("row {index} of {}", rows.len()));
    rows.get(index).ok_or_else(none)
}

/// Number of counted sites.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_report_counts(report: *const Report) -> usize {
    // SAFETY: the header demands null or a live report.
    unsafe { report.as_ref() }.map_or(0, |report| report.counts.len())
}

/// Fills in the row of one counted site.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_report_count(
    report: *const Report,
    index: usize,
    row: *mut Count,
) -> Error {
    // SAFETY: the header demands null or a live report, and a row of the size that it states.
    guard(|| unsafe { growing::write(row, nth(&of(report)?.counts, index)?) })
}

/// Number of timed functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_report_times(report: *const Report) -> usize {
    // SAFETY: the header demands null or a live report.
    unsafe { report.as_ref() }.map_or(0, |report| report.times.len())
}

/// Fills in the row of one timed function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_report_time(report: *const Report, index: usize, row: *mut Times) -> Error {
    // SAFETY: the header demands null or a live report, and a row of the size that it states.
    guard(|| unsafe { growing::write(row, &nth(&of(report)?.times, index)?.0) })
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
    guard(|| unsafe { leave(ns, nth(&of(report)?.times, index)?.1.percentile(share), "ns") })
}

/// Number of places that are not probed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_report_refusals(report: *const Report) -> usize {
    // SAFETY: the header demands null or a live report.
    unsafe { report.as_ref() }.map_or(0, |report| report.refusals.len())
}

/// Fills in the row of one place that is not probed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_report_refusal(
    report: *const Report,
    index: usize,
    row: *mut Refusal,
) -> Error {
    // SAFETY: the header demands null or a live report, and a row of the size that it states.
    guard(|| unsafe { growing::write(row, nth(&of(report)?.refusals, index)?) })
}

/// What else a user should know: one sentence for each `index`, and null after the last.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_report_notice(report: *const Report, index: usize) -> *const c_char {
    // SAFETY: the header demands null or a live report.
    let report = unsafe { report.as_ref() };
    report.and_then(|report| report.notices.get(index)).map_or(null(), |notice| notice.as_ptr())
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
mod tests {
    use super::{Count, Growing as _, Refusal, Times};
    use std::mem::{offset_of, size_of};

    /// Programs were compiled with these offsets, so they must stay.
    #[test]
    fn the_first_versions_fields_stay_where_they_are() {
        let count = [
            offset_of!(Count, probe),
            offset_of!(Count, label),
            offset_of!(Count, file),
            offset_of!(Count, offset),
            offset_of!(Count, hits),
            offset_of!(Count, delta),
            offset_of!(Count, missed),
            offset_of!(Count, pid),
            offset_of!(Count, reserved),
            Count::FIRST,
        ];
        assert_eq!(count, [8, 16, 24, 32, 40, 48, 56, 64, 68, 72]);
        let times = [
            offset_of!(Times, probe),
            offset_of!(Times, label),
            offset_of!(Times, file),
            offset_of!(Times, offset),
            offset_of!(Times, calls),
            offset_of!(Times, in_flight),
            offset_of!(Times, unpaired),
            offset_of!(Times, unreturned),
            offset_of!(Times, total_ns),
            offset_of!(Times, min_ns),
            offset_of!(Times, max_ns),
            offset_of!(Times, pid),
            offset_of!(Times, reserved),
            Times::FIRST,
        ];
        assert_eq!(times, [8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 100, 104]);
        let refusal = [
            offset_of!(Refusal, probe),
            offset_of!(Refusal, kind),
            offset_of!(Refusal, reason),
            offset_of!(Refusal, pid),
            offset_of!(Refusal, reserved),
            Refusal::FIRST,
        ];
        assert_eq!(refusal, [8, 16, 24, 32, 36, 40]);
        assert!(size_of::<Count>() >= Count::FIRST && size_of::<Times>() >= Times::FIRST);
        assert!(size_of::<Refusal>() >= Refusal::FIRST);
    }
}
