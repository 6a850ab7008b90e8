//! COST-2 for calls in the own process with a return that is waited for: the lines to which a call stores
//! from its entry to its return, for two CPUs. An emulator of another project sees them (valgrind's
//! `lackey`).
//!
//! Two threads, one after the other, call the same small functions. Each has an rseq area made by hand that
//! names its CPU. The calls go through stubs, gates and return trampolines from `plan`, with the code and
//! functions of `runtime` in them, put together as `inside` does. `inside` as a whole does not run there:
//! this valgrind has no pidfd, and no XSAVEC. So XSAVEC and XRSTOR are taken out of the gates; they store to
//! the thread's own stack. A trap begins in its handler: the kernel's frame is on the thread's stack as well.
//!
//! All stores between two marks count, whatever code makes them. First calls are left out: they find a line,
//! bind a place, take a return trampoline.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![allow(unsafe_code, reason = "generated code, marks in a trace")]

#[path = "write_set/calls.rs"]
mod calls;
#[path = "write_set/memory.rs"]
mod memory;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::process::Command;

use crate::calls::{CallCount, Cases};
use crate::memory::{LINE, zeroed};

const CPUS: usize = 2;
const CALLS: u64 = 3;

/// The call, the parts of the engine's memory to which one CPU's calls store, and the parts to which both
/// store.
const CASES: [(&str, &[&str], &[&str]); 14] = [
    ("ret, kept in its place", &["counts", "lines", "places", "stack"], &[]),
    ("baseline: one word for all", &["counts", "lines", "places", "stack", "word"], &["word"]),
    ("ret, an instance", &["counts", "instances", "lines", "places", "rseq-area", "stack"], &[]),
    ("ret, session", &["instances", "lines", "rseq-area", "stack"], &[]),
    ("ret, vectors saved", &["counts", "instances", "lines", "places", "rseq-area", "stack"], &[]),
    ("slot, kept in its entry", &["counts", "lines", "slots", "stack"], &[]),
    ("slot, session", &BY_DISPATCH, &[]),
    ("slot, vectors saved", &BY_DISPATCH, &[]),
    (
        "tail call, a slot over a slot",
        &["counts", "instances", "lines", "places", "rseq-area", "slots", "stack"],
        &[],
    ),
    ("no instance is free: missed", &["counts", "lines", "stack"], &[]),
    ("entry alone", &["counts", "lines", "stack"], &[]),
    ("entry alone, vectors saved", &["counts", "lines", "stack"], &[]),
    ("trap, entry alone", &["counts", "lines", "stack"], &[]),
    ("trap, session", &["counts", "instances", "lines", "places", "rseq-area", "stack"], &[]),
];
const BY_DISPATCH: [&str; 8] =
    ["counts", "instances", "lines", "places", "quick", "rseq-area", "slots", "stack"];

/// A store to this word shows which calls follow: those of (case, CPU), or none.
fn mark(marks: u64, number: usize) {
    // SAFETY: inside the words of the lines that are meant.
    unsafe { ((marks + number as u64 * LINE) as *mut u64).write_volatile(1) };
}

#[test]
#[ignore = "run by the other tests"]
fn calls_of_two_cpus() {
    // Ends the line that the test harness has begun.
    println!();
    let cases = &Cases::new();
    assert_eq!(cases.all.len(), CASES.len());
    let marks = zeroed::<std::sync::atomic::AtomicU64>((CASES.len() * CPUS + 1) * 8).as_ptr() as u64;
    println!("marks {marks:#x} 0");
    let here = 0_u8;
    let here = std::ptr::from_ref(&here) as u64;
    println!("spawner {:#x} {:#x}", here - (64 << 10), here + (4 << 10));
    for cpu in 0..CPUS {
        // The second stack is larger, or it would reuse the first one's memory.
        let builder = std::thread::Builder::new().stack_size(1 << (20 + cpu * 2));
        let run = move || {
            cases.on_cpu(cpu as u32);
            let calls_so_far = CallCount::default();
            println!(
                "stack {:#x} {:#x}",
                calls_so_far.address() - (512 << 10),
                calls_so_far.address() + (64 << 10)
            );
            for (case, (call, returns)) in cases.all.iter().enumerate() {
                // Bound by the first call, kept by the second, found through the quick hints by the third.
                (0..4).for_each(|_| call(&calls_so_far));
                calls_so_far.take();
                mark(marks, case * CPUS + cpu);
                (0..CALLS).for_each(|_| call(&calls_so_far));
                mark(marks, CASES.len() * CPUS);
                assert_eq!(calls_so_far.take(), returns * CALLS, "{}", CASES[case].0);
            }
        };
        std::thread::scope(|scope| {
            builder.spawn_scoped(scope, run).expect("a thread").join().expect("it ends");
        });
    }
}

/// Named ranges of addresses; an address gets the name of the first range that contains it.
struct Ranges(Vec<(String, u64, u64)>);

impl Ranges {
    fn parse(text: &str) -> Self {
        let number = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
        let range = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [name, start, end] = words[..] else { return None };
            Some((name.to_owned(), number(start)?, number(end)?))
        };
        Self(text.lines().filter_map(range).collect())
    }
    fn name(&self, line: u64) -> &str {
        let holds = |range: &&(String, u64, u64)| range.1 < (line + 1) * LINE && range.2 > line * LINE;
        self.0.iter().find(holds).map_or("elsewhere", |range| &range.0)
    }
    fn marks(&self) -> u64 {
        self.0.iter().find(|range| range.0 == "marks").expect("marks").1
    }
}

/// Lines to which each (case, CPU) stores.
fn stores(trace: impl BufRead, marks: u64) -> BTreeMap<usize, BTreeSet<u64>> {
    let mut stores = BTreeMap::<usize, BTreeSet<u64>>::new();
    let mut marked_case = CASES.len() * CPUS;
    for line in trace.lines().map_while(Result::ok) {
        let Some((kind @ ("S" | "M"), rest)) = line.trim_start().split_once(' ') else { continue };
        let Some((at, len)) = rest.trim().split_once(',') else { continue };
        let (Ok(at), Ok(len)) = (u64::from_str_radix(at, 16), len.parse::<u64>()) else { continue };
        let marked = at.wrapping_sub(marks) / LINE;
        if kind == "S" && marked <= (CASES.len() * CPUS) as u64 {
            marked_case = marked as usize;
        } else {
            stores.entry(marked_case).or_default().extend(at / LINE..=(at + len - 1) / LINE);
        }
    }
    stores
}

#[test]
fn no_call_stores_to_a_line_of_another_cpu() {
    if !std::path::Path::new("/usr/bin/valgrind").exists() {
        println!("SKIP: no valgrind (package valgrind)");
        return;
    }
    let log = std::env::temp_dir().join(format!("trapline-call-write-set-{}", std::process::id()));
    let mut command = Command::new("/usr/bin/valgrind");
    command.args(["--tool=lackey", "--trace-mem=yes"]).arg(format!("--log-file={}", log.display()));
    command.arg(std::env::current_exe().expect("our own path"));
    // Symbols for a backtrace would take minutes there.
    command.env("RUST_BACKTRACE", "0");
    command.args(["--exact", "calls_of_two_cpus", "--ignored", "--nocapture", "--test-threads=1"]);
    let output = command.output().expect("valgrind starts");
    let trace = std::fs::File::open(&log);
    std::fs::remove_file(&log).ok();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    let ranges = Ranges::parse(&stdout);
    let stores = stores(BufReader::new(trace.expect("a trace")), ranges.marks());
    let mut text = format!("{:32} {:86} {:>7}\n", "lines stored to per call", "on one CPU", "on both");
    let mut wrong = String::new();
    for (case, (name, stored, shared)) in CASES.iter().enumerate() {
        let [first, second] = [0, 1].map(|cpu| &stores[&(case * CPUS + cpu)]);
        let mut kinds = BTreeMap::<&str, u32>::new();
        first.iter().for_each(|&l| *kinds.entry(ranges.name(l)).or_default() += 1);
        kinds.remove("spawner");
        let both: BTreeSet<&str> =
            first.intersection(second).map(|&l| ranges.name(l)).filter(|&name| name != "spawner").collect();
        let calls_so_far: Vec<String> = kinds.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
        writeln!(text, "{name:32} {:86} {:>7}", calls_so_far.join(", "), both.len()).expect("a string grows");
        if !both.iter().eq(shared.iter()) || !kinds.keys().eq(stored.iter()) {
            writeln!(wrong, "{name}: {kinds:?}, both: {both:?}").expect("a string grows");
        }
    }
    print!("{text}");
    assert_eq!(wrong, "");
}
