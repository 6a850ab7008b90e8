//! Reports of a session, as rows that C reads.
//!
//! In: reports of the `trapline` crate. Out: rows by number; their texts live as long as the report. Does
//! not: sum or sort.

use std::ffi::{CString, c_char};
use std::ptr::null;

use trapline::{Histogram, ProcessReport};

use crate::error::{Error, Fault};
use crate::pointers::Growing;

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

impl Growing for Count {
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

impl Growing for Times {
    const NAME: &'static str = "trapline_times_row";
    const FIRST: usize = 104;
}

/// A site that a probe means and that is not probed.
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

impl Growing for Refusal {
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
    /// Counted sites.
    pub(crate) fn counts(&self) -> &[Count] {
        &self.counts
    }
    /// Timed functions, each with its histogram.
    pub(crate) fn times(&self) -> &[(Times, Histogram)] {
        &self.times
    }
    /// Sites that are not probed.
    pub(crate) fn refusals(&self) -> &[Refusal] {
        &self.refusals
    }
    /// What else a user should know.
    pub(crate) fn notices(&self) -> &[CString] {
        &self.notices
    }
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
        self.counts.extend(process.counts.iter().map(|count| counted(process, count, texts)));
        for times in &process.times {
            let Some(site) = &times.site else { continue };
            self.times.push((timed(pid, times, site, texts), times.histogram.clone()));
        }
        for refused in process.refused.iter() {
            let (probe, kind) = (texts.keep(&refused.probe), texts.keep(refused.kind));
            let reason = texts.keep(&refused.reason);
            self.refusals.push(Refusal { size: 0, probe, kind, reason, pid, reserved: 0 });
        }
    }
}

fn counted(process: &ProcessReport, count: &trapline::Count, texts: &mut Texts) -> Count {
    let site = &count.site;
    Count {
        size: 0,
        probe: texts.keep(&site.probe),
        label: texts.keep(&site.label),
        file: texts.keep(&site.file),
        offset: site.offset,
        hits: count.hits,
        delta: count.delta,
        missed: process.missed,
        pid: process.pid,
        reserved: 0,
    }
}

fn timed(pid: u32, times: &trapline::Times, site: &trapline::Site, texts: &mut Texts) -> Times {
    Times {
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
    }
}

/// One of a report's rows.
pub(crate) fn nth<T>(rows: &[T], index: usize) -> Result<&T, Fault> {
    let none = || Fault::new(Error::NoRow, format!("row {index} of {}", rows.len()));
    rows.get(index).ok_or_else(none)
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
