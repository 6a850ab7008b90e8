//! `record`: the cost of a hit that leaves a record, in interleaved rounds of: bare, control, and the ways of
//! each case.
//!
//! - `nop`, `push`, `generic`: entries with three arguments, and whole calls (three arguments, value,
//!   duration: two records). The same two behind a filter that lets nothing pass, and calls that their return
//!   rejects (`filtered-late`).
//! - The same in a process without rseq, where rings are locked (`locked`).
//! - Log2 histograms of an argument (`hist`) and of durations of whole calls (`hist-dur`). Each also for each
//!   of eight values of an argument (`hist-by`, `hist-dur-by`).
//! - `deep`: stacks of sixteen callers by frame pointers.
//! - `heap`: the live heap as a script: three hits for each pair of calls.
//! - `mark`: a USDT probe with three operands (`usdt`). `sub`: an argument on the stack (`stack-argument`).
//! - `returned`: the text that a returned pointer leads to, and a text of 200 bytes (`text-200`).
//! - `text`: a text of 31 characters. `edge`: the same where the kernel has to copy it.
//!
//! Beside them run bpftrace and uftrace, where they are installed, and bpftrace's scripts by `trapline run`: those
//! that the target runs (`run-count`, `run-by`, `run-hist`, `run-pair`, `run-ustack`), and one that is interpreted
//! over records (`run-printf`).
//!
//! The victim runs for a millisecond at a time, so that the rings hold all records, and they are read in
//! between. So the bench measures writing records, not dropping them; every round checks that none was
//! dropped. The first bursts touch fresh memory and are not counted.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use trapline::Unwinding;
use trapline::calls::{KeptPointer, KeptText, TEXT_BYTES};

use crate::x86_64::hits::Effort;
use crate::x86_64::others::{Bpftrace, Script, uftrace};
use crate::x86_64::ours::{End, Ours, RING};
use crate::x86_64::row::{Figures, Row, quartiles};
use crate::x86_64::victim::{Load, Victim};
use trapline_bench::functions::{COPIES, DEPTH, TEXT};

/// A condition that no call of the victim fulfils.
const NEVER: Option<&str> = Some("arg0 == 0x7e57ab1e7e57ab1e");
/// The same, where only the return can decide: it uses the returned value and the duration.
const NEVER_LATE: Option<&str> = Some("dur > 3600s && ret != arg0");
/// The group-by key.
const KEY: Option<&str> = Some("arg0 & 7");
const ARGUMENTS: u8 = 3;
/// Bytes of a long text.
const LONG: u16 = 200;
/// Frames that fit into a record of 256 bytes.
const SHORT: u8 = 26;
/// Bursts of one figure, a millisecond each.
const BURSTS: usize = 24;
/// Least number of bursts before that. The rings are written once in them, at the speed of memory that is
/// touched for the first time. That may be a tenth of the later speed, so for large records their number
/// counts (`Ours::fresh`), not the time.
const WARM: usize = 48;

/// What is done at a hit.
#[derive(Clone, Copy)]
enum What {
    Bare,
    Control,
    /// Whether exits are recorded too, and the condition.
    Record(bool, Option<&'static str>),
    /// The same in a process without rseq.
    Locked(bool),
    /// Whether exits are recorded too.
    Text(bool),
    /// The text that a call keeps for its return.
    Kept(KeptText),
    /// An argument on the stack.
    OnStack,
    /// The operands of a USDT probe.
    Mark,
    /// Frames at most, and whether times are taken too.
    Stack(u8, bool),
    /// The aggregated value, and the group-by key.
    Log2(&'static str, Option<&'static str>),
    Bpftrace(Script),
    /// The same script by `trapline run`.
    Run(Script),
    Uftrace,
}

/// Name of the row, and what is done.
type Way = (&'static str, What);

const BARE: [Way; 2] = [("none", What::Bare), ("control", What::Control)];
const NUMBERS: [Way; 11] = [
    ("entry", What::Record(false, None)),
    ("call", What::Record(true, None)),
    ("filtered-entry", What::Record(false, NEVER)),
    ("filtered-call", What::Record(true, NEVER)),
    ("filtered-late", What::Record(true, NEVER_LATE)),
    ("locked-entry", What::Locked(false)),
    ("locked-call", What::Locked(true)),
    ("hist", What::Log2("arg0", None)),
    ("hist-by", What::Log2("arg0", KEY)),
    ("hist-dur", What::Log2("dur", None)),
    ("hist-dur-by", What::Log2("dur", KEY)),
];
const TEXTS: [Way; 2] = [("text-entry", What::Text(false)), ("text-call", What::Text(true))];
const KEPT: [Way; 2] = [
    (
        "text-returned",
        What::Kept(KeptText { pointer: KeptPointer::Returned, at_return: true, bytes: TEXT_BYTES as u16 }),
    ),
    ("text-200", What::Kept(KeptText { pointer: KeptPointer::Argument(0), at_return: false, bytes: LONG })),
];
const MARKS: [Way; 1] = [("usdt", What::Mark)];
const ON_STACK: [Way; 1] = [("stack-argument", What::OnStack)];
const STACKS: [Way; 3] = [
    ("stack", What::Stack(Unwinding::DEEPEST, false)),
    ("stack-26", What::Stack(SHORT, false)),
    ("stack-time", What::Stack(Unwinding::DEEPEST, true)),
];

/// The cases, each with our own ways and those of other tracers.
const CASES: [(&str, &[Way], &[Way]); 10] = [
    ("nop", &NUMBERS, &[]),
    (
        "push",
        &NUMBERS,
        &[
            ("bpftrace-count", What::Bpftrace(Script::Count)),
            ("bpftrace-printf", What::Bpftrace(Script::Arguments)),
            ("bpftrace-by", What::Bpftrace(Script::By)),
            ("bpftrace-hist", What::Bpftrace(Script::Log2)),
            ("bpftrace-pair", What::Bpftrace(Script::Pair)),
            ("run-count", What::Run(Script::Count)),
            ("run-by", What::Run(Script::By)),
            ("run-hist", What::Run(Script::Log2)),
            ("run-pair", What::Run(Script::Pair)),
            ("run-printf", What::Run(Script::Arguments)),
        ],
    ),
    ("generic", &NUMBERS, &[("uftrace", What::Uftrace)]),
    (
        "deep",
        &STACKS,
        &[("bpftrace-ustack", What::Bpftrace(Script::Stack)), ("run-ustack", What::Run(Script::Stack))],
    ),
    ("heap", &[], &[("bpftrace-heap", What::Bpftrace(Script::Heap)), ("run-heap", What::Run(Script::Heap))]),
    ("text", &TEXTS, &[("bpftrace-str", What::Bpftrace(Script::Text))]),
    ("edge", &TEXTS, &[]),
    ("returned", &KEPT, &[]),
    ("mark", &MARKS, &[]),
    ("sub", &ON_STACK, &[]),
];

/// Nanoseconds of a call for each round, or the reason why there are none.
type Samples = BTreeMap<(usize, &'static str), Result<Vec<f64>, String>>;

/// Emits all rows, or those of one case, each as soon as it is ready.
pub(crate) fn run(
    effort: Effort,
    only: Option<&str>,
    mut emit: impl FnMut(&Row) -> Result<()>,
) -> Result<()> {
    for (case, ours, others) in CASES.into_iter().filter(|one| only.is_none_or(|only| only == one.0)) {
        let (victim, without_rseq) = (Victim::start(true)?, Victim::start(false)?);
        let mut bench = Bench { case, victim, without_rseq, traced: None };
        let mut samples = Samples::new();
        let threads = effort.threads.map_or_else(|| vec![1, 2], |only| vec![only]);
        for _ in 0..effort.rounds {
            for &threads in &threads {
                // uftrace and bpftrace are given one function, which one thread calls. So are scripts that write lines.
                let with_many = |what: What| matches!(what, What::Run(script) if script != Script::Arguments);
                let others = others.iter().filter(|(_, what)| threads == 1 || with_many(*what));
                for &(how, what) in BARE.iter().chain(ours).chain(others) {
                    let one = samples.entry((threads, how)).or_insert_with(|| Ok(Vec::new()));
                    let Ok(list) = one else { continue };
                    match (bench.ns(what, Load { threads, own: false }), what) {
                        (Ok(ns), _) => list.push(ns),
                        (Err(error), What::Bpftrace(_) | What::Run(_) | What::Uftrace) => {
                            eprintln!("SKIPPED {case} {how}: {error:#}");
                            *one = Err(format!("{error:#}"));
                        }
                        (Err(error), _) => return Err(error.context(format!("{case} {how}"))),
                    }
                }
            }
        }
        for row in rows(case, &samples) {
            emit(&row)?;
        }
    }
    Ok(())
}

fn rows(case: &str, samples: &Samples) -> Vec<Row> {
    let median = |threads, how| {
        let list = samples.get(&(threads, how)).and_then(|list| list.as_ref().ok());
        list.map_or(f64::NAN, |list| quartiles(list).1)
    };
    let row = |(&(threads, how), list): (&(usize, &'static str), &Result<Vec<f64>, String>)| {
        let figures = match list {
            Err(why) => Figures::Skipped { skipped: why.clone() },
            Ok(list) => {
                let (low_ns, ns, high_ns) = quartiles(list);
                let (added_ns, mops) = (ns - median(threads, "none"), threads as f64 * 1e3 / ns);
                Figures::Hit { ns, added_ns, mops, low_ns, high_ns, rounds: list.len() }
            }
        };
        Row::new("record", case, how, threads, false, figures)
    };
    samples.iter().map(row).collect()
}

/// The processes of one case.
struct Bench {
    case: &'static str,
    victim: Victim,
    without_rseq: Victim,
    /// A victim that uftrace has started, and the folder that uftrace writes.
    traced: Option<(Victim, Written)>,
}

/// A folder that is removed when this value is dropped.
struct Written(PathBuf);

impl Drop for Written {
    fn drop(&mut self) {
        // If this fails, the remains lie among temporary files.
        drop(std::fs::remove_dir_all(&self.0));
    }
}

impl Bench {
    /// Median nanoseconds per call.
    fn ns(&mut self, what: What, load: Load) -> Result<f64> {
        let (pid, case) = (self.victim.pid(), self.case);
        match what {
            What::Bare | What::Control => {
                let control = matches!(what, What::Control);
                self.bursts(load, control, &mut |_| Ok(()))
            }
            What::Record(returns, filter) => {
                let ours = Ours::record(pid, case, COPIES, ARGUMENTS, (returns, filter, RING))?;
                let filtered = filter.is_some();
                let is = |end: &End| if filtered { (end.filtered, end.hits) } else { (end.hits, 0) };
                self.recorded(ours, load, 0, is)
            }
            What::Locked(returns) => {
                // Half of a CPU's share is its first ring.
                let (pid, what) = (self.without_rseq.pid(), (returns, None, 2 * RING));
                let mut ours = Ours::record(pid, case, COPIES, ARGUMENTS, what)?;
                let ns = bursts(&mut self.without_rseq, case, load, false, &mut |_| ours.drain())?;
                ours.drain()?;
                let end = ours.finish()?;
                ensure!(end.missed == 0 && end.hits > 0, "{end:?}");
                Ok(ns)
            }
            What::Stack(frames, time) => {
                let ours = Ours::stacks(pid, case, COPIES, (frames, time))?;
                let deep = DEPTH as usize + 1;
                let fresh = Ours::fresh(frames);
                self.recorded(ours, load, fresh, |end| (end.hits, u64::from(end.deepest != deep)))
            }
            What::Text(returns) => {
                let mut ours = Ours::texts(pid, case, COPIES, returns)?;
                let ns = self.bursts(load, false, &mut |_| ours.drain())?;
                self.victim.measure(case, load, false, Duration::from_millis(1))?;
                let (reported, all) = ours.reported(TEXT - 1);
                ensure!(reported == all && all > 0, "{reported} of {all} texts are as they are");
                let end = ours.finish()?;
                ensure!(end.missed == 0 && end.hits > 0, "{} records, {} dropped", end.hits, end.missed);
                Ok(ns)
            }
            What::Kept(text) => {
                let mut ours = Ours::kept(pid, case, COPIES, text)?;
                let ns = self.bursts(load, false, &mut |_| ours.drain())?;
                self.victim.measure(case, load, false, Duration::from_millis(1))?;
                let (whole, all) = ours.reported_kept(text.bytes.into());
                ensure!(whole == all && all > 0, "{whole} of {all} texts are whole");
                let end = ours.finish()?;
                ensure!(end.missed == 0 && end.hits > 0, "{} records, {} dropped", end.hits, end.missed);
                Ok(ns)
            }
            What::OnStack => self.recorded(Ours::on_stack(pid, case, COPIES)?, load, 0, |end| (end.hits, 0)),
            What::Mark => self.recorded(Ours::marks(pid)?, load, 0, |end| (end.hits, 0)),
            What::Log2(value, key) => {
                let mut ours = Ours::log2(pid, case, COPIES, (value, key))?;
                let ns = self.bursts(load, false, &mut |_| Ok(()))?;
                let (hits, cells) = ours.tallied();
                let all = ours.finish()?.hits;
                // For each of the eight values, all durations may be of one magnitude.
                let least = match (value, key) {
                    ("dur", None) => 1,
                    ("dur", _) => 8,
                    _ => 10,
                };
                ensure!(hits == all && cells >= least, "{hits} of {all} hits in {cells} cells");
                Ok(ns)
            }
            What::Bpftrace(script) | What::Run(script) => {
                let tracer = match what {
                    What::Run(_) => Bpftrace::ours(pid, case, script)?,
                    _ => Bpftrace::start(pid, case, script)?,
                };
                // Of what is written for each call, all is written before the next run.
                let (each, mut written) = (matches!(what, What::Run(Script::Arguments)), 0);
                let mut between = |calls: u64| {
                    written += if each { calls } else { 0 };
                    tracer.wait(written)
                };
                let ns = self.bursts(load, false, &mut between)?;
                // A hundred keys are left, each with its stack.
                let least = if script == Script::Heap { 100 * (DEPTH + 1) } else { 1 };
                let lines = tracer.finish()?;
                ensure!(lines >= least, "it wrote {lines} lines of {least}");
                Ok(ns)
            }
            What::Uftrace => {
                if self.traced.is_none() {
                    let (command, dir) = uftrace(case)?;
                    self.traced = Some((Victim::by(command)?, Written(dir)));
                }
                let Some((victim, written)) = &mut self.traced else { return Ok(f64::NAN) };
                let ns = bursts(victim, case, load, false, &mut |_| Ok(()))?;
                let files = std::fs::read_dir(&written.0)?.filter_map(Result::ok);
                let len = |file: std::fs::DirEntry| file.metadata().map_or(0, |data| data.len());
                let data = files.filter(|file| file.file_name().to_string_lossy().ends_with(".dat"));
                ensure!(data.map(len).sum::<u64>() > 1 << 20, "it wrote next to nothing");
                Ok(ns)
            }
        }
    }
    /// Measures with records that are read between bursts. The first `fresh` records do not count. `is`: the
    /// number of hits that there must be, and the number that there must not be.
    fn recorded(
        &mut self,
        mut ours: Ours,
        load: Load,
        fresh: u64,
        is: impl Fn(&End) -> (u64, u64),
    ) -> Result<f64> {
        let mut drain = |_| ours.drain();
        let mut written = 0.0;
        while written < fresh as f64 {
            written += 1e6 / self.victim.measure(self.case, load, false, Duration::from_millis(1))?;
            drain(0)?;
        }
        let ns = self.bursts(load, false, &mut drain)?;
        ours.drain()?;
        let end = ours.finish()?;
        let (some, none) = is(&end);
        ensure!(none == 0 && some > 0 && end.missed == 0, "{end:?}");
        Ok(ns)
    }
    fn bursts(
        &mut self,
        load: Load,
        control: bool,
        between: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<f64> {
        bursts(&mut self.victim, self.case, load, control, between)
    }
}

/// Median nanoseconds per call over short runs; `between` is called after each, with the number of calls.
fn bursts(
    victim: &mut Victim,
    case: &str,
    load: Load,
    control: bool,
    between: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<f64> {
    let mut times = Vec::with_capacity(BURSTS);
    for nth in 0..WARM + BURSTS {
        let (ns, calls) = victim.measure_calls(case, load, control, Duration::from_millis(1))?;
        between(calls)?;
        if nth >= WARM {
            times.push(ns);
        }
    }
    Ok(quartiles(&times).1)
}
