//! What a session tells: plain values, no process behind them. Times are nanoseconds, counts are since attach.

use std::sync::Arc;
use std::time::Duration;

use crate::traced::Returns;

pub use trapline_plan::Tactic;

/// A probed place in one process. Two names for the same (file, offset) are one site.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Site {
    /// `uprobe:PATH:func`, as bpftrace writes it.
    pub probe: String,
    /// The same for the function's other names.
    pub aliases: Vec<String>,
    /// The file's path as the process sees it.
    pub file: String,
    /// Where in the file the probed instruction lies.
    pub offset: u64,
    /// Short form for tables: `func`, or `lib:func` where the file is not the program.
    pub label: String,
    /// How it is reached; for exits, the least preferred of them.
    pub tactic: Tactic,
}

/// Hits of one site.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Count {
    /// Where.
    pub site: Arc<Site>,
    /// Hits since attach.
    pub hits: u64,
    /// Hits since the last report.
    pub delta: u64,
    /// Hits split as asked for; empty if not asked for, and for sites that the kernel counts. See [`By`].
    pub shares: Vec<Share>,
    /// Hits that did not pass a filter, besides; `None` without one.
    pub filtered: Option<Filtered>,
}

/// Hits that are not told because of a filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Filtered {
    /// Rejected in the target: not recorded, and not among the hits.
    pub in_target: u64,
    /// Recorded, and left out by the reader.
    pub by_reader: u64,
    /// Calls that their return would have decided about, had it come: they run still, or were left by a longjmp or an exception.
    pub unended: u64,
}

/// How hits are split.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// By CPU: a share for each, in order, then one for threads that have no per-CPU area.
    Cpu,
    /// By thread: a share for each thread with hits, most hits first. Costs more per hit.
    Thread,
    /// By thread name: as by thread, threads of one name together.
    ThreadName,
}

/// Whose hits a share counts.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Whose {
    /// Those on a CPU.
    Cpu(u32),
    /// A thread's. Of two threads that had the same number one after the other, both.
    Thread {
        /// Its number, as we see it while it lives.
        tid: u32,
        /// Its name when it was last looked at; `None` if it had ended before.
        comm: Option<String>,
    },
    /// Those of all threads of a name.
    Name {
        /// The name; `None` for threads that ended before they were looked at.
        comm: Option<String>,
        /// How many threads.
        threads: u32,
    },
    /// All others: threads without a per-CPU area, threads for which the table had no row left.
    Other,
}

/// A part of a site's hits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Share {
    /// Whose.
    pub whose: Whose,
    /// Hits since attach.
    pub hits: u64,
    /// Hits since the last report.
    pub delta: u64,
}

/// A place that was asked for and is not probed.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Refused {
    /// `uprobe:PATH:func`.
    pub probe: String,
    /// A stable word for the kind of reason.
    pub kind: &'static str,
    /// The reason, with its numbers.
    pub reason: String,
}

/// A file that a process mapped while it was traced, and that ran before it was probed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Late {
    /// Its path.
    pub file: String,
    /// How often it was mapped and then probed.
    pub loads: u64,
    /// The longest time from the mapping to the probes: calls in that time were not seen.
    pub longest: Duration,
    /// That is the time, and no upper bound of it.
    pub exact: bool,
    /// How often it was mapped, and unmapped or at the session's end before it could be probed.
    pub passed: u64,
}

/// A process in which something was wanted, or that could not be asked, and that is not probed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unprobed {
    /// Its pid.
    pub pid: u32,
    /// Its name, as far as it is known.
    pub name: String,
    /// Why not.
    pub reason: String,
}

/// Durations of one function, or of several together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Times {
    /// Where; `None` for the sum of several.
    pub site: Option<Arc<Site>>,
    /// Calls that ended, tail calls included, and took at least as long as asked for.
    pub calls: u64,
    /// Of these, calls that ended by a jump into another function.
    pub tail_exits: u64,
    /// Calls that had begun and not ended.
    pub in_flight: u64,
    /// Exits without a known entry: calls that ran when we attached.
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
    pub spread: crate::Spread,
}

impl Times {
    /// The duration that a share `of` (0 to 1) of the calls did not exceed, in nanoseconds: [`Spread::percentile`](crate::Spread), and
    /// between the shortest and the longest call.
    #[must_use]
    pub fn percentile(&self, of: f64) -> u64 {
        self.spread.percentile(of).max(self.min_ns).min(self.max_ns)
    }
    /// Nothing was seen of it.
    pub(crate) const fn are_none(&self) -> bool {
        self.calls | self.in_flight | self.unpaired | self.unreturned | self.clamped | self.total_ns == 0
    }
    /// All of them together.
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
            spread: sum.spread.plus(&one.spread),
        })
    }
}

/// A function that a pattern found, and what would be done with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// In which process; `None` when only the file was looked at.
    pub pid: Option<u32>,
    /// `uprobe:PATH:func`.
    pub probe: String,
    /// The same for its other names.
    pub aliases: Vec<String>,
    /// The file.
    pub file: String,
    /// Its name alone.
    pub function: String,
    /// Where in the file it begins.
    pub offset: u64,
    /// Bytes of its main body.
    pub size: u64,
    /// How it would be reached, or why not.
    pub tactic: Result<Tactic, Refused>,
    /// In which form its calls would be timed: [`Returns::Exits`] or [`Returns::Stack`]; `None` when they would not be.
    pub returns: Option<Returns>,
}

/// How a process ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ended {
    /// It exited, or was ended as people end processes, or it is not known how.
    Exited,
    /// A signal ended it that is sent for a fault or to kill, while it was probed or just after.
    Killed {
        /// Which, where that is known.
        signal: Option<i32>,
        /// By the kernel's out-of-memory killer.
        by_memory: bool,
    },
    /// It runs another program now.
    Exec,
}

/// One process, one interval.
#[derive(Clone, PartialEq, Debug)]
pub struct ProcessReport {
    /// Its pid.
    pub pid: u32,
    /// Its number in the session: a process that executes another program has another one then.
    pub nth: u32,
    /// Its name (comm).
    pub name: String,
    /// Seconds since attach.
    pub seconds: f64,
    /// Seconds since the last report.
    pub delta_seconds: f64,
    /// Counted sites.
    pub counts: Vec<Count>,
    /// Timed functions; beside counts, where stacks are summed with what calls took.
    pub times: Vec<Times>,
    /// Sites without a hit that are not listed: where programs are followed, a process that has ended keeps only those that were hit.
    pub quiet: u64,
    /// What is not probed.
    pub refused: Arc<Vec<Refused>>,
    /// Files that were mapped meanwhile, and ran before they were probed.
    pub late: Vec<Late>,
    /// Hits that could not be recorded.
    pub missed: u64,
    /// Calls that returned EINTR to the program because of us.
    pub interrupted_syscalls: u64,
    /// Calls with a finite timeout that were restarted in full.
    pub restarted_timeouts: u64,
    /// It is no more.
    pub ended: Option<Ended>,
}

/// How many sites have each tactic.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ByTactic(pub [u64; Tactic::ALL.len()]);

impl ByTactic {
    /// Counts one more site.
    pub const fn add(&mut self, tactic: Tactic) {
        self.0[tactic as usize] += 1;
    }
    /// Sites with some tactic.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
    /// Tactics in use, preferred ones first, with their number of sites.
    pub fn iter(&self) -> impl Iterator<Item = (Tactic, u64)> + '_ {
        Tactic::ALL.iter().map(|&tactic| (tactic, self.0[tactic as usize])).filter(|&(_, n)| n > 0)
    }
}

/// Sites that another tool changed while they were probed: hits there are not seen while they are so.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Overwritten {
    /// How many.
    pub sites: u64,
    /// The longest time that one of them may have been changed for.
    pub longest: Duration,
}

/// What a whole session says at its end.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Summary {
    /// Processes that were probed.
    pub processes: u64,
    /// Of these, processes that had ended, or ran another program, before we detached.
    pub ended: u64,
    /// Of the ended ones that were asked for, those that were killed: see [`Ended::Killed`].
    pub killed: u64,
    /// Forked children that counted into their parent's table.
    pub children: u64,
    /// Places that the probes meant, over all processes.
    pub matched: u64,
    /// Places probed.
    pub patched: ByTactic,
    /// Places not probed.
    pub refused: Vec<Refused>,
    /// Processes that are not probed as a whole: their batch failed, or they could not be looked at.
    pub unprobed: Vec<Unprobed>,
    /// Hits recorded.
    pub hits: u64,
    /// Hits that could not be recorded.
    pub missed: u64,
    /// Hits that a filter kept back.
    pub filtered: Option<Filtered>,
    /// See [`ProcessReport::interrupted_syscalls`].
    pub interrupted_syscalls: u64,
    /// See [`ProcessReport::restarted_timeouts`].
    pub restarted_timeouts: u64,
    /// Threads that stood inside a window and were sent on, served by us and by the process' own handler.
    pub guard_traps: u64,
    /// Longest time that any thread was stopped.
    pub longest_stop: Duration,
    /// Time from known offsets to the last patch, map of branch targets included, all processes together.
    pub attach_time: Duration,
    /// Time that it took to detach.
    pub detach_time: Duration,
    /// Bytes of the processes' memory that the probes took: code, journal and guards of all sites.
    pub memory_sites: u64,
    /// The same for counters and latency areas, for each CPU that hits them.
    pub memory_per_cpu: u64,
    /// Bytes of address space that stay mapped for code and data in processes that still run.
    pub left_mapped: u64,
    /// Bytes of memory behind them.
    pub left_resident: u64,
    /// Sites that no longer held our bytes and were left alone.
    pub foreign_sites: u64,
    /// Sites that another tool changed for a time while they were probed.
    pub overwritten: Overwritten,
    /// Processes that could not be rid of all that is ours: patches, or a signal handler. The notices say which and why.
    pub undone: u64,
    /// Things that went wrong without ending the session.
    pub notices: Vec<String>,
}

impl Summary {
    /// Adds what is said of another process.
    pub(crate) fn add(&mut self, more: &Self) {
        self.processes += more.processes;
        self.ended += more.ended;
        self.killed += more.killed;
        self.children += more.children;
        self.matched += more.matched;
        self.patched.0.iter_mut().zip(more.patched.0).for_each(|(sum, sites)| *sum += sites);
        self.refused.extend_from_slice(&more.refused);
        self.unprobed.extend_from_slice(&more.unprobed);
        self.hits += more.hits;
        self.missed += more.missed;
        if let Some(more) = more.filtered {
            let sum = self.filtered.get_or_insert_default();
            sum.in_target += more.in_target;
            sum.by_reader += more.by_reader;
            sum.unended += more.unended;
        }
        self.interrupted_syscalls += more.interrupted_syscalls;
        self.restarted_timeouts += more.restarted_timeouts;
        self.guard_traps += more.guard_traps;
        self.longest_stop = self.longest_stop.max(more.longest_stop);
        self.attach_time += more.attach_time;
        self.detach_time += more.detach_time;
        self.memory_sites += more.memory_sites;
        self.memory_per_cpu += more.memory_per_cpu;
        self.left_mapped += more.left_mapped;
        self.left_resident += more.left_resident;
        self.foreign_sites += more.foreign_sites;
        self.overwritten.sites += more.overwritten.sites;
        self.overwritten.longest = self.overwritten.longest.max(more.overwritten.longest);
        self.undone += more.undone;
        self.notices.extend_from_slice(&more.notices);
    }
}
