//! COST-2 for pools: the lines that take and put store to, for eight CPUs, as an independent emulator sees
//! them.
//!
//! Eight threads take and put in turns. Each has an rseq area made by hand that says which CPU it is on. All
//! run under valgrind's `lackey`, which prints the address of every store. A line that several CPUs store to
//! travels between their caches at each hit. So this shows how a pool scales beyond the CPUs at hand. First
//! turns are ignored, because objects find their places then.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::process::Command;
use std::ptr::NonNull;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use anyhow::Result;

use super::cpu_area::CpuArea;
use super::instances::Instances;
use super::kind::{Job, PoolKind};

const LINE: u64 = 64;
const CPUS: usize = 8;
const MAXACTIVE: [u32; 3] = [10, 20, 40];
const PAIRS: usize = 3;

fn pools() -> impl Iterator<Item = PoolKind> {
    PoolKind::ALL.into_iter().filter(|how| how.is_pool() && *how != PoolKind::OursApart)
}

/// The area that the kernel fills for a registered thread, filled by the test itself.
#[derive(Default)]
#[repr(C, align(64))]
struct Area {
    start: AtomicU32,
    cpu: AtomicU32,
    section: AtomicU64,
}

/// A store to a mark shows which stores follow: those of one (pool, CPU), or none.
#[derive(Default)]
#[repr(align(64))]
struct Mark(AtomicU64);

/// The turns of all CPUs on one pool.
struct Turns<'a> {
    marks: &'a [Mark],
    no_case: &'a Mark,
}

impl Job for Turns<'_> {
    type Out = ();
    fn with<P: Instances>(&self, pool: &P) -> Result<()> {
        for (name, range) in pool.memory() {
            println!("{} {:#x} {:#x}", name.replace(' ', "-"), range.start, range.end);
        }
        let turn = &Barrier::new(CPUS);
        std::thread::scope(|scope| {
            for cpu in 0..CPUS {
                scope.spawn(move || {
                    let area = Area { cpu: AtomicU32::new(cpu as u32), ..Area::default() };
                    let cpu_area = CpuArea::on(NonNull::from(&area).cast(), cpu);
                    let pair = || {
                        let object = pool.get(&cpu_area).expect("one is free");
                        pool.put(&cpu_area, object);
                    };
                    for (round, now) in (0..2).flat_map(|round| (0..CPUS).map(move |now| (round, now))) {
                        turn.wait();
                        if now != cpu {
                            continue;
                        }
                        if round == 0 {
                            pair();
                            continue;
                        }
                        self.marks[cpu].0.store(1, SeqCst);
                        (0..PAIRS).for_each(|_| pair());
                        self.no_case.0.store(1, SeqCst);
                    }
                });
            }
        });
        Ok(())
    }
}

#[test]
#[ignore = "run by the other tests"]
fn turns_of_eight_cpus() {
    let cases = pools().count() * MAXACTIVE.len();
    // Never freed: that would store to them.
    let marks: &[Mark] = (0..=cases * CPUS).map(|_| Mark::default()).collect::<Vec<_>>().leak();
    println!(
        "marks {:#x} {:#x}",
        marks[0].0.as_ptr() as u64,
        marks[0].0.as_ptr() as u64 + marks.len() as u64 * LINE
    );
    let (marks, no_case) = marks.split_at(cases * CPUS);
    for (case, (how, maxactive)) in pools().flat_map(|how| MAXACTIVE.map(|n| (how, n))).enumerate() {
        println!("case {case:#x} {case:#x}");
        let marks = &marks[case * CPUS..(case + 1) * CPUS];
        how.make(CPUS as u32, CPUS, maxactive, &Turns { marks, no_case: &no_case[0] }).expect("it runs");
    }
}

/// Named ranges of one case.
type Ranges = Vec<(String, u64, u64)>;

/// The ranges of all cases, in order. The first element holds what precedes the first case.
fn parse(text: &str) -> Vec<Ranges> {
    let number = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
    let mut all = vec![Ranges::new()];
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, start, end] = words[..] else { continue };
        let (Some(start), Some(end)) = (number(start), number(end)) else { continue };
        if name == "case" {
            all.push(Ranges::new());
        } else if let Some(last) = all.last_mut() {
            last.push((name.to_owned(), start, end));
        }
    }
    all
}

/// Lines stored to by each (case, CPU).
fn stores(trace: &str, marks: (u64, u64)) -> BTreeMap<usize, BTreeSet<u64>> {
    let mut stores = BTreeMap::<usize, BTreeSet<u64>>::new();
    let mut marked_case = usize::MAX;
    for line in trace.lines() {
        let Some((kind, rest)) = line.trim_start().split_once(' ') else { continue };
        let Some((at, len)) = rest.trim().split_once(',') else { continue };
        let (Ok(at), Ok(len)) = (u64::from_str_radix(at, 16), len.parse::<u64>()) else { continue };
        if !matches!(kind, "S" | "M") {
            continue;
        }
        if (marks.0..marks.1).contains(&at) {
            marked_case = ((at - marks.0) / LINE) as usize;
        } else {
            stores.entry(marked_case).or_default().extend(at / LINE..=(at + len - 1) / LINE);
        }
    }
    stores
}

/// What the turns of one pool store to.
struct Set {
    /// Number of the pool's lines that the first CPU stores to, by name.
    one: BTreeMap<String, usize>,
    /// Lines that two or more CPUs store to, and the largest number of CPUs on one line.
    shared: usize,
    most: usize,
}

fn set(case: usize, stores: &BTreeMap<usize, BTreeSet<u64>>, ranges: &Ranges) -> Set {
    let name = |line: u64| ranges.iter().find(|range| range.1 < (line + 1) * LINE && range.2 > line * LINE);
    let mut by = BTreeMap::<u64, usize>::new();
    let mut one = BTreeMap::new();
    for cpu in 0..CPUS {
        let lines = stores.get(&(case * CPUS + cpu)).expect("each CPU stores somewhere");
        for (line, range) in lines.iter().filter_map(|&line| Some((line, name(line)?))) {
            *by.entry(line).or_default() += 1;
            if cpu == 0 {
                *one.entry(range.0.clone()).or_default() += 1;
            }
        }
    }
    let shared = by.values().filter(|&&cpus| cpus > 1).count();
    Set { one, shared, most: by.values().copied().max().unwrap_or(0) }
}

#[test]
fn lines_that_several_cpus_store_to() {
    if !std::path::Path::new("/usr/bin/valgrind").exists() {
        println!("SKIP: no valgrind (package valgrind)");
        return;
    }
    let log = std::env::temp_dir().join(format!("trapline-pool-write-set-{}", std::process::id()));
    let mut command = Command::new("/usr/bin/valgrind");
    command.args(["--tool=lackey", "--trace-mem=yes"]).arg(format!("--log-file={}", log.display()));
    command.arg(std::env::current_exe().expect("our own path"));
    command.args(["--exact", "x86_64::pool::write_set::turns_of_eight_cpus", "--ignored", "--nocapture"]);
    let output = command.output().expect("valgrind starts");
    let trace = std::fs::read_to_string(&log);
    std::fs::remove_file(&log).ok();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    let ranges = parse(&stdout);
    let marks = ranges[0].iter().find(|range| range.0 == "marks").expect("marks");
    let stores = stores(&trace.expect("a trace"), (marks.1, marks.2));
    let mut text = format!(
        "{:18} {:>9} {:40} {:>12} {:>9}\n",
        "lines stored to", "maxactive", "by one CPU of eight", "by several", "by most"
    );
    for (case, (how, maxactive)) in pools().flat_map(|how| MAXACTIVE.map(|n| (how, n))).enumerate() {
        let set = set(case, &stores, &ranges[case + 1]);
        let one: Vec<String> = set.one.iter().map(|(name, lines)| format!("{lines} {name}")).collect();
        let (shared, most) = (set.shared, set.most);
        writeln!(text, "{:18} {maxactive:>9} {:40} {shared:>12} {most:>9}", how.name(), one.join(", "))
            .expect("a string grows");
        assert!(!one.is_empty(), "{}: where does it keep what is free?", how.name());
        match how {
            PoolKind::Ours | PoolKind::OursSets | PoolKind::PerThread => {
                assert_eq!(shared, 0, "{}: {one:?}", how.name())
            }
            PoolKind::Freelist | PoolKind::Circular => assert_eq!(most, CPUS, "{}", how.name()),
            _ => {}
        }
    }
    print!("{text}");
}
