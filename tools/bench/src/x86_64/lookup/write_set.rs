//! COST-2: the lines that a lookup stores to, for two CPUs, as an independent emulator sees them (valgrind's
//! `lackey`). Method and form are those of the stubs' write set.
#![cfg(test)]
#![allow(unsafe_code, reason = "marks in a trace")]

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::Barrier;

use super::How;
use super::operations::{Lookup, Mapped, PAGE};
use super::ours::Ours;

const LINE: u64 = 64;
const CPUS: usize = 2;
const LOOKS: usize = 3;
/// Each way to look up, and the number of lines that both CPUs store to.
const CASES: [(&str, usize); 5] =
    [("ours", 0), ("ours, with the hit", 0), ("mm-wide", 0), ("rwlock", 1), ("mutex", 1)];

/// Stores to the mark that announces which stores follow: one line for each (case, CPU), and one behind them
/// for none.
fn mark(marks: u64, number: usize) {
    // SAFETY: the address lies inside the vector; its lines are the marks.
    unsafe { ((marks + number as u64 * LINE) as *mut u64).write_volatile(1) };
}

#[test]
#[ignore = "run by the other tests"]
fn looks_of_two_cpus() {
    let ours = Ours::new(4);
    let others = [How::MmWide, How::Rwlock, How::Mutex].map(|how| how.lookup(4, 4).expect("it looks up"));
    let lookups: Vec<&dyn Lookup> =
        std::iter::once(&ours as &dyn Lookup).chain(others.iter().map(|o| &**o)).collect();
    for lookup in &lookups {
        lookup.map(Mapped { start: 500 * PAGE, end: 504 * PAGE, file: 1, offset: 0 });
        lookup.register(1, 8);
    }
    let addr = 500 * PAGE + 8;
    let look = |case: usize| match case {
        1 => assert!(ours.hit(addr)),
        0 => assert!(ours.find(addr).is_some()),
        _ => assert!(lookups[case - 1].find(addr).is_some()),
    };
    let marks = vec![0_u64; (CASES.len() * CPUS + 2) * 8];
    let marks = (marks.as_ptr() as u64).next_multiple_of(LINE);
    let (look, turn) = (&look, &Barrier::new(CPUS));
    println!("marks {marks:#x}");
    // A thread that waits for its turn may still be entering the barrier while the other one looks up.
    println!("turns {:#x}", std::ptr::from_ref(turn) as u64);
    std::thread::scope(|scope| {
        for cpu in 0..CPUS {
            scope.spawn(move || {
                for case in 0..CASES.len() {
                    for marked_case in 0..CPUS {
                        turn.wait();
                        if marked_case == cpu {
                            look(case);
                            mark(marks, case * CPUS + cpu);
                            (0..LOOKS).for_each(|_| look(case));
                            mark(marks, CASES.len() * CPUS);
                        }
                    }
                }
                turn.wait();
            });
        }
    });
}

/// Lines stored to by each (case, CPU), without those of the barrier.
fn stores(trace: &str, marks: u64, turns: u64) -> BTreeMap<usize, BTreeSet<u64>> {
    let mut stores = BTreeMap::<usize, BTreeSet<u64>>::new();
    let mut marked_case = CASES.len() * CPUS;
    for line in trace.lines() {
        let Some((kind @ ("S" | "M"), rest)) = line.trim_start().split_once(' ') else { continue };
        let Some((at, len)) = rest.trim().split_once(',') else { continue };
        let (Ok(at), Ok(len)) = (u64::from_str_radix(at, 16), len.parse::<u64>()) else { continue };
        if at.wrapping_sub(turns) < size_of::<Barrier>() as u64 {
            continue;
        }
        let marked = at.wrapping_sub(marks) / LINE;
        if kind == "S" && marked <= (CASES.len() * CPUS) as u64 {
            marked_case = marked as usize;
        } else {
            stores.entry(marked_case).or_default().extend(at / LINE..=(at + len - 1) / LINE);
        }
    }
    stores
}

/// Most times that the lookups are traced.
const TRACES: usize = 4;

/// For each case: the lines that the first CPU stores to, and the number that both store to.
fn traced() -> Vec<(usize, usize)> {
    let log = std::env::temp_dir().join(format!("trapline-look-write-set-{}", std::process::id()));
    let mut command = Command::new("/usr/bin/valgrind");
    command.args(["--tool=lackey", "--trace-mem=yes"]).arg(format!("--log-file={}", log.display()));
    command.arg(std::env::current_exe().expect("our own path"));
    command.args(["--exact", "x86_64::lookup::write_set::looks_of_two_cpus", "--ignored", "--nocapture"]);
    let output = command.output().expect("valgrind starts");
    let trace = std::fs::read_to_string(&log);
    std::fs::remove_file(&log).ok();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    let reported = |what: &str| {
        let number = stdout.lines().find_map(|line| line.split_once(what)).expect("where it is").1;
        u64::from_str_radix(number, 16).expect("a number")
    };
    let stores = stores(&trace.expect("a trace"), reported("marks 0x"), reported("turns 0x"));
    let of = |case: usize| {
        let [first, second] = [0, 1].map(|cpu| &stores[&(case * CPUS + cpu)]);
        (first.len(), first.intersection(second).count())
    };
    (0..CASES.len()).map(of).collect()
}

/// No lookup may store to a line that another CPU stores to. A thread that waits for its turn may still be
/// entering the barrier while the other one looks up, and its stores then count as the other's. Stores of the
/// lookup itself appear in every trace, so the least of several traces counts.
#[test]
fn no_look_stores_to_a_line_of_another_cpu() {
    if !std::path::Path::new("/usr/bin/valgrind").exists() {
        println!("SKIP: no valgrind (package valgrind)");
        return;
    }
    let mut least = traced();
    let expected: Vec<usize> = CASES.iter().map(|case| case.1).collect();
    for _ in 1..TRACES {
        if least.iter().map(|found| found.1).eq(expected.iter().copied()) {
            break;
        }
        least = least.iter().zip(traced()).map(|(a, b)| (a.0.min(b.0), a.1.min(b.1))).collect();
    }
    println!("{:24} {:>12} {:>12}", "lines stored to", "on one CPU", "on both");
    for ((name, shared), (one, both)) in CASES.iter().zip(least) {
        println!("{name:24} {one:>12} {both:>12}");
        assert_eq!(both, *shared, "{name}");
    }
}
