//! `churn`: how much of its speed a lookup keeps while an address space changes as fast as it can.
//!
//! Cases: `none`, `same-process` and `other-process`. In `same-process` a sibling thread on another CPU maps,
//! touches and unmaps 64 KiB, and removes and restores the right to write, where no region is. In
//! `other-process` another process does so.
//!
//! `how` is one of:
//! - `none`: the loop alone. It shows what interprocessor interrupts leave of the speed of any code.
//! - `pages`: a loop that touches as many pages as a lookup. Then the ways of the bench `lookup`.
//! - `sigtrap`: a bare SIGTRAP: its time is all the kernel's; `trap`: one of ours, as in the bench `trap`.
//! - `kernel`: the kernel's uprobe on a `nop`, which looks up by the mm-wide sequence.
//!
//! `kept` is the speed as a share of the same `how` without churn. Both are measured one right after the
//! other. A baseline is notified of each change, as the system would notify it: its writer's lock is held
//! around the call. Ours needs no notification, because no region of ours changes.
#![allow(unsafe_code, reason = "mmap, munmap and mprotect of memory of its own")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::{Case, How, Subject};
use crate::x86_64::hits::Effort;
use crate::x86_64::kernel::Kernel;
use crate::x86_64::row::{Figures, Row, quartiles};
use crate::x86_64::trap::Bed;
use crate::x86_64::victim::Sites;
use trapline_bench::functions::{Work, pin_to};

const LEN: usize = 1 << 16;
const CASES: [&str; 3] = ["none", "same-process", "other-process"];
/// The case with a uprobe on its function.
const PROBED: &str = "nop";

/// Maps, touches and unmaps one mapping, and changes the access rights of another.
fn change_once(also: *mut libc::c_void, elsewhere: &dyn Fn(&mut dyn FnMut())) {
    use libc::{MAP_ANONYMOUS, MAP_PRIVATE, PROT_READ, PROT_WRITE};
    let mut fresh = std::ptr::null_mut();
    // SAFETY: a new mapping, touched, unmapped and not used after; `also` is a mapping of LEN bytes that no
    // code reads.
    unsafe {
        elsewhere(&mut || {
            fresh = libc::mmap(
                std::ptr::null_mut(),
                LEN,
                PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS,
                -1,
                0,
            );
        });
        if fresh != libc::MAP_FAILED {
            fresh.cast::<u8>().write_volatile(1);
            elsewhere(&mut || {
                libc::munmap(fresh, LEN);
            });
        }
        elsewhere(&mut || {
            libc::mprotect(also, LEN, PROT_READ);
        });
        elsewhere(&mut || {
            libc::mprotect(also, LEN, PROT_READ | PROT_WRITE);
        });
    }
}

/// Changes the address space until `stop` is set. Returns the number of changes.
fn change(stop: &AtomicBool, elsewhere: &dyn Fn(&mut dyn FnMut())) -> u64 {
    pin_to(1);
    // SAFETY: a new mapping at an address that the kernel chooses.
    let also = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), LEN, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    if also == libc::MAP_FAILED {
        return 0;
    }
    // SAFETY: the memory was mapped just now, writable.
    unsafe { also.cast::<u8>().write_volatile(1) };
    let mut changes = 0;
    while !stop.load(Relaxed) {
        change_once(also, elsewhere);
        changes += 4;
    }
    // SAFETY: the mapping made above, of which no other code has the address.
    unsafe { libc::munmap(also, LEN) };
    changes
}

/// The other process' side. It prints a line when it has begun.
pub(crate) fn churner() {
    let begun = Cell::new(false);
    change(&AtomicBool::new(false), &|change| {
        change();
        if !begun.replace(true) {
            println!("begun");
        }
    });
}

/// The other process; killed when dropped.
#[derive(Debug)]
struct Other(Child);

impl Other {
    /// Starts it, and returns once it changes its address space.
    fn start() -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("churner").stdin(Stdio::null()).stdout(Stdio::piped());
        let mut other = Self(command.spawn().context("the other process does not start")?);
        let mut line = String::new();
        BufReader::new(other.0.stdout.take().context("piped")?).read_line(&mut line)?;
        ensure!(line == "begun\n", "the other process says `{line}`");
        Ok(other)
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // The child is ours and not yet reaped.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// One way that is measured.
enum Measured {
    Look(Box<Subject>),
    Sigtrap(Bed),
    Trap(Bed),
    Kernel,
}

impl Measured {
    fn name(&self) -> &'static str {
        match self {
            Self::Look(subject) => subject.how.name(),
            Self::Sigtrap(_) => "sigtrap",
            Self::Trap(_) => "trap",
            Self::Kernel => "kernel",
        }
    }
    /// Nanoseconds of one operation.
    fn timed(&self, time: Duration) -> Result<f64> {
        match self {
            Self::Look(subject) => Ok(subject.timed(Case::Hot, 0, time)),
            Self::Sigtrap(bed) => Ok(bed.bare(time)),
            Self::Trap(bed) => bed.ours(time),
            Self::Kernel => {
                let kernel = Kernel::count(std::process::id(), &Sites::own(PROBED, 1)?)?;
                let work = Work::of(PROBED, 0).context("a function")?;
                let (begun, mut calls) = (Instant::now(), 0);
                while begun.elapsed() < time {
                    work.run();
                    calls += work.batch();
                }
                let took = begun.elapsed();
                ensure!(kernel.hits()? >= calls, "the kernel did not see all hits");
                Ok(took.as_secs_f64() * 1e9 / calls as f64)
            }
        }
    }
    /// The same while a sibling thread changes the address space.
    fn timed_beside(&self, time: Duration) -> Result<f64> {
        let (stop, begun, changes) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
        let elsewhere = |change: &mut dyn FnMut()| {
            begun.store(true, Relaxed);
            match self {
                Self::Look(subject) if subject.lookup.is_some() => {
                    subject.lookup.iter().for_each(|lookup| lookup.elsewhere(change));
                }
                _ => change(),
            }
        };
        let ns = std::thread::scope(|scope| {
            let (stop, changes, elsewhere) = (&stop, &changes, &elsewhere);
            let churning = || changes.store(change(stop, &|one| elsewhere(one)), Relaxed);
            // The threads share a lookup, which is made for that, and atomic words.
            let sibling = scope.spawn(churning);
            while !begun.load(Relaxed) {
                std::thread::yield_now();
            }
            let ns = self.timed(time);
            stop.store(true, Relaxed);
            sibling.join().ok();
            ns
        });
        ensure!(changes.load(Relaxed) > 100, "nothing was changed");
        ns
    }
}

/// Median of the rounds' shares. A disturbance of a whole round cancels out.
fn kept(without: Option<&Result<Vec<f64>, String>>, with: &Result<Vec<f64>, String>) -> Option<f64> {
    let (without, with) = (without?.as_ref().ok()?, with.as_ref().ok()?);
    let shares: Vec<f64> = without.iter().zip(with).map(|(without, with)| without / with).collect();
    Some(quartiles(&shares).1)
}

/// Emits all rows, or those of one `how`.
pub(crate) fn run(
    effort: Effort,
    only: Option<&str>,
    mut emit: impl FnMut(&Row) -> Result<()>,
) -> Result<()> {
    let subjects = How::ALL.into_iter().filter(|how| *how != How::Control);
    let subjects = subjects.chain([How::Pages]).map(Subject::new);
    let mut measured: Vec<Measured> = subjects.map(|subject| Measured::Look(Box::new(subject))).collect();
    let bed = Bed::new()?;
    measured.extend([Measured::Sigtrap(bed), Measured::Trap(bed), Measured::Kernel]);
    // The first one is what `added` is relative to.
    let is_wanted = |name: &str| name == How::None.name() || only.is_none_or(|only| only == name);
    measured.retain(|one| is_wanted(one.name()));
    ensure!(measured.len() > 1, "`churn` has no {}", only.unwrap_or_default());
    for one in &measured {
        if let Measured::Look(subject) = one
            && subject.how != How::Pages
        {
            subject.check()?;
        }
    }
    let time = Duration::from_secs_f64(effort.seconds / effort.rounds as f64);
    let mut samples = BTreeMap::<(usize, usize), Result<Vec<f64>, String>>::new();
    pin_to(0);
    for _ in 0..effort.rounds {
        // The machine's own speed changes within seconds, so figures that are compared are measured together.
        for (how, one) in measured.iter().enumerate() {
            for (case, name) in CASES.iter().enumerate() {
                let _other = (*name == "other-process").then(Other::start).transpose()?;
                let ns = if *name == "same-process" { one.timed_beside(time) } else { one.timed(time) };
                let list = samples.entry((case, how)).or_insert_with(|| Ok(Vec::new()));
                match (ns, list) {
                    (Ok(ns), Ok(list)) => list.push(ns),
                    (Err(error), list) => *list = Err(format!("{error:#}")),
                    (Ok(_), Err(_)) => {}
                }
            }
        }
    }
    for (&(case, how), list) in &samples {
        let ns = |case, how| samples.get(&(case, how))?.as_ref().ok().map(|list| quartiles(list).1);
        let figures = match list {
            Err(why) => Figures::Skipped { skipped: why.clone() },
            Ok(list) => {
                let (low_ns, median, high_ns) = quartiles(list);
                let added_ns = median - ns(case, 0).unwrap_or(f64::NAN);
                Figures::Hit { ns: median, added_ns, mops: 1e3 / median, low_ns, high_ns, rounds: list.len() }
            }
        };
        let mut row = Row::new("churn", CASES[case], measured[how].name(), 1, false, figures);
        row.kept = kept(samples.get(&(0, how)), list);
        emit(&row)?;
    }
    Ok(())
}
