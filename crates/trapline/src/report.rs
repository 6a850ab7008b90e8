//! Types of reports: plain values, with no process behind them. Times are nanoseconds. Counts are since
//! attach.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::containers::Workload;
use crate::histogram::Histogram;

pub use trapline_plan::Tactic;

/// A probed place in one process, as reports and calls refer to it. Two names for the same (file, offset) are
/// one site.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Site {
    /// `uprobe:PATH:func`, as bpftrace writes it.
    pub probe: String,
    /// The same for the function's other names.
    pub aliases: Vec<String>,
    /// The file's path as the process sees it.
    pub file: String,
    /// Bytes from the start of the file to the probed instruction.
    pub offset: u64,
    /// Short form for tables: `func`, or `lib:func` where the file is not the program.
    pub label: String,
    /// How the site is reached; where several instructions are patched, such as exits, the least preferred
    /// tactic of them.
    pub tactic: Tactic,
    /// Number of the probe that runs a program here, from 1 on ([`Builder::actions`](crate::Builder::actions));
    /// 0 for all others.
    pub slot: u32,
}

/// Hits of one site: a row of [`ProcessReport::counts`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Count {
    /// The site.
    pub site: Arc<Site>,
    /// Hits since attach.
    pub hits: u64,
    /// Hits since the last report.
    pub delta: u64,
    /// Hits by group, as requested by [`By`]. Empty if no grouping was requested, and for sites that the
    /// kernel counts.
    pub shares: Vec<Share>,
    /// Hits that did not pass the filter; they are not among `hits`. `None` without a filter.
    pub filtered: Option<Filtered>,
}

/// Hits that a filter kept out of a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Filtered {
    /// Rejected in the target: neither recorded nor counted as hits.
    pub in_target: u64,
    /// Recorded, and rejected by the reader.
    pub by_reader: u64,
    /// Calls to be decided at their return, which was not seen: they still run, or were left by a longjmp or
    /// an exception.
    pub unended: u64,
}

/// How hits are grouped; [`Builder::by`](crate::Builder::by) takes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// By CPU: one share for each CPU, in order, then one for threads that have no rseq area.
    Cpu,
    /// By thread: one share for each thread with hits, most hits first. This costs more per hit.
    Thread,
    /// By thread name: as by thread, with the threads of one name together.
    ThreadName,
}

/// Group that a share belongs to.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Group {
    /// Hits on this CPU.
    Cpu(u32),
    /// Hits of one thread. If two threads had the same number one after the other, hits of both.
    Thread {
        /// Thread number, as the tracer saw it while the thread lived.
        tid: u32,
        /// Thread name when it was last read; `None` if the thread ended before that.
        comm: Option<String>,
    },
    /// Hits of all threads of one name.
    Name {
        /// Name; `None` for threads that ended before their names were read.
        comm: Option<String>,
        /// Number of threads of that name.
        threads: u32,
    },
    /// All other hits: of threads without an rseq area, and of threads for which the table had no row left.
    Other,
}

/// A part of a site's hits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Share {
    /// Group of these hits.
    pub group: Group,
    /// Hits since attach.
    pub hits: u64,
    /// Hits since the last report.
    pub delta: u64,
}

/// A site that a probe means and that is not probed.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Refused {
    /// `uprobe:PATH:func`.
    pub probe: String,
    /// A stable word for the kind of reason.
    pub kind: &'static str,
    /// The reason, with its numbers.
    pub reason: String,
}

impl Refused {
    /// The first of those with the most frequent kind of reason.
    pub(crate) fn typical(all: &[Self]) -> Option<&Self> {
        let mut counts: HashMap<&str, usize> = HashMap::new();
        all.iter().for_each(|one| *counts.entry(one.kind).or_default() += 1);
        // The last of several greatest is taken, so the order is reversed.
        all.iter().rev().max_by_key(|one| counts.get(one.kind))
    }
}

/// A file that a process mapped while it was traced; its code ran before it was probed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Late {
    /// Path of the file.
    pub file: String,
    /// How often it was mapped and then probed.
    pub loads: u64,
    /// Longest time from the mapping to the probes; calls in that time were not seen.
    pub longest: Duration,
    /// `longest` is exact; otherwise it is an upper bound.
    pub exact: bool,
    /// How often it was mapped, and then unmapped before it could be probed; also if the session ended first.
    pub passed: u64,
}

impl Late {
    /// Lines of text that report it.
    pub(crate) fn lines(&self, pid: u32) -> Vec<String> {
        let file = &self.file;
        let most = if self.exact { "" } else { "at most " };
        let ms = self.longest.as_secs_f64() * 1e3;
        let late = match self.loads {
            0 => None,
            1 => Some(format!(
                "{file} was mapped {most}{ms:.1} ms before it was probed in process {pid}; calls in that time were not seen"
            )),
            loads => Some(format!(
                "{file} was mapped {loads} times, {most}{ms:.1} ms at the longest before it was probed in process {pid}; calls in \
                 these times were not seen"
            )),
        };
        let passed = (self.passed > 0).then(|| {
            let times = self.passed;
            format!(
                "{file} was mapped, and unmapped or at the end before it could be probed, {times} times in process {pid}; calls \
                 meanwhile were not seen"
            )
        });
        late.into_iter().chain(passed).collect()
    }
}

/// A function that was taken out of a recording while it ran ([`Builder::budget`](crate::Builder::budget)).
#[derive(Clone, PartialEq, Debug)]
pub struct Thinned {
    /// Its process.
    pub pid: u32,
    /// Its name.
    pub function: String,
    /// Its calls until then.
    pub calls: u64,
    /// When it was taken out, from the session's start.
    pub at: Duration,
    /// The share of the process' time that recording cost before.
    pub share: f64,
}

/// A process that is not probed although a probe means something in it, or because it could not be looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unprobed {
    /// Process id.
    pub pid: u32,
    /// Process name, as far as it is known.
    pub name: String,
    /// Why it is not probed.
    pub reason: String,
}

impl Unprobed {
    /// The process with this pid. Its name comes from the kernel, and is empty once the process is gone.
    pub(crate) fn new(pid: u32, reason: impl Into<String>) -> Self {
        let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        let name = String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned();
        Self { pid, name, reason: reason.into() }
    }
    /// Notice about it.
    pub(crate) fn line(&self) -> String {
        let Self { pid, name, reason } = self;
        let name = if name.is_empty() { "a process" } else { name };
        format!("{name} ({pid}) is not probed: {reason}")
    }
}

/// Durations of one function, or of several together: a row of [`ProcessReport::times`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Times {
    /// The function; `None` for a sum of several.
    pub site: Option<Arc<Site>>,
    /// Calls that ended and took at least as long as requested, tail calls included.
    pub calls: u64,
    /// Of these, calls that ended by a jump into another function.
    pub tail_exits: u64,
    /// Calls that had begun and not ended.
    pub in_flight: u64,
    /// Exits without a known entry: calls that were running at the attach.
    pub unpaired: u64,
    /// Entries without an exit: left by longjmp, an exception, a killed coroutine.
    pub unreturned: u64,
    /// Negative durations, counted as 0.
    pub clamped: u64,
    /// Sum of durations.
    pub total_ns: u64,
    /// Shortest call; 0 without calls.
    pub min_ns: u64,
    /// Longest call.
    pub max_ns: u64,
    /// Calls by duration, 16 rows to an octave.
    pub histogram: Histogram,
}

impl Times {
    /// Duration that a share `of` (0 to 1) of the calls did not exceed, in nanoseconds. This is
    /// [`Histogram::percentile`], limited to the range from the shortest to the longest
    /// call.
    #[must_use]
    pub fn percentile(&self, of: f64) -> u64 {
        self.histogram.percentile(of).max(self.min_ns).min(self.max_ns)
    }
    /// Whether nothing was seen.
    pub(crate) const fn are_none(&self) -> bool {
        self.calls | self.in_flight | self.unpaired | self.unreturned | self.clamped | self.total_ns == 0
    }
    /// Sum of several.
    #[must_use]
    pub fn sum<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut all = all.into_iter();
        let Some(first) = all.next() else { return Self::default() };
        let start = Self { site: None, ..first.clone() };
        all.fold(start, |sum, one| Self {
            site: None,
            calls: sum.calls + one.calls,
            tail_exits: sum.tail_exits + one.tail_exits,
            in_flight: sum.in_flight + one.in_flight,
            unpaired: sum.unpaired + one.unpaired,
            unreturned: sum.unreturned + one.unreturned,
            clamped: sum.clamped + one.clamped,
            total_ns: sum.total_ns + one.total_ns,
            min_ns: match (sum.calls, one.calls) {
                (0, _) => one.min_ns,
                (_, 0) => sum.min_ns,
                _ => sum.min_ns.min(one.min_ns),
            },
            max_ns: sum.max_ns.max(one.max_ns),
            histogram: sum.histogram.plus(&one.histogram),
        })
    }
}

/// How a process ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ended {
    /// It exited, or a signal that is usually sent to end a process ended it; also if the reason is not
    /// known.
    Exited,
    /// A signal ended it, while it was probed or just after. Only signals that are sent for a fault or to
    /// kill count here.
    Killed {
        /// Signal number, if it is known.
        signal: Option<i32>,
        /// Whether the kernel's out-of-memory killer ended it.
        by_memory: bool,
    },
    /// It runs another program now.
    Exec,
}

/// Report of one process for one interval. [`Session::report`](crate::Session::report) returns one for each
/// process, and so does [`Finished::reports`](crate::Finished::reports).
#[derive(Clone, PartialEq, Debug)]
pub struct ProcessReport {
    /// Process id.
    pub pid: u32,
    /// Number of the process in the session. A process that executes another program gets a new one.
    pub nth: u32,
    /// Number of processes that this is about: 1, or those that were [`merged`](crate::merged()).
    pub processes: u64,
    /// Process name (comm).
    pub name: String,
    /// The container and the service that the process is a part of.
    pub workload: Workload,
    /// Seconds since attach.
    pub seconds: f64,
    /// Seconds since the last report.
    pub delta_seconds: f64,
    /// Hits of each site.
    pub counts: Vec<Count>,
    /// Durations of each function. Where stacks are summed with the time of calls, these are there beside
    /// `counts`.
    pub times: Vec<Times>,
    /// Number of sites without a hit that are not listed. Where programs are followed, a process that has
    /// ended keeps only the sites that were hit.
    pub quiet: u64,
    /// Sites that are not probed.
    pub refused: Arc<Vec<Refused>>,
    /// Files that were mapped while the process was traced, and ran before they were probed.
    pub late: Vec<Late>,
    /// Hits that could not be recorded.
    pub missed: u64,
    /// Calls that returned EINTR to the program because of the tracer.
    pub interrupted_syscalls: u64,
    /// Calls with a finite timeout that were restarted in full.
    pub restarted_timeouts: u64,
    /// How the process ended, if it has.
    pub ended: Option<Ended>,
}

#[cfg(test)]
mod tests {
    use super::Refused;

    #[test]
    fn the_most_frequent_reason_is_typical() {
        let refuse = |(probe, kind): &(&str, &'static str)| Refused {
            probe: (*probe).to_owned(),
            kind,
            reason: String::new(),
        };
        let all = [
            ("a", "no-code"),
            ("b", "no-unwinder"),
            ("c", "no-unwinder"),
            ("d", "no-code"),
            ("e", "no-room"),
        ];
        let all: Vec<Refused> = all.iter().map(refuse).collect();
        assert_eq!(
            Refused::typical(&all).map(|one| &*one.probe),
            Some("a"),
            "the first of equally frequent ones"
        );
        assert_eq!(Refused::typical(&all[1..]).map(|one| &*one.probe), Some("b"));
        assert_eq!(Refused::typical(&[]), None);
    }
}
