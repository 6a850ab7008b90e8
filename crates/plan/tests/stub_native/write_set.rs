//! COST-2: the lines that a hit stores to, for two CPUs, as an independent emulator sees them.
//!
//! Two threads hit the same stubs, each with an rseq area made by hand: one names CPU 0, the other CPU 1. Both
//! run under valgrind's `lackey`, which prints the address of every instruction and store. A line that both
//! CPUs' hits store to would travel between their caches at each hit. Beside them runs the same for what
//! COST-2 forbids: one counter for all. First hits are ignored: a thread finds its stack page's block, or its
//! row, once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use trapline_plan::x86_64::stub::{Latency, Liveness, Machine, Rseq, ThreadId, trampoline_code_len};
use trapline_record::trampolines::USUAL;

use crate::arena::{Arena, LINES, call, set, thread_pointer};
use crate::durations::{SPIN, timed};
use crate::{counts, return_trampolines, threads};

const LINE: u64 = 64;
const CPUS: usize = 2;
const HITS: u64 = 3;

/// The area that the kernel fills for a registered thread, filled by the test itself.
#[repr(C, align(32))]
struct Area {
    start: AtomicU32,
    cpu: AtomicU32,
    section: AtomicU64,
}
thread_local! {
    static AREA: Area =
        const { Area { start: AtomicU32::new(0), cpu: AtomicU32::new(0), section: AtomicU64::new(0) } };
}
fn area() -> u64 {
    AREA.with(|area| core::ptr::from_ref(area) as u64)
}

/// What is hit, and whether both CPUs store to one line.
const CASES: [(&str, bool); 9] = [
    ("count, flags dead", false),
    ("count, flags live", false),
    ("count by thread", false),
    ("latency, entry + exit", false),
    ("latency, outermost only", false),
    ("latency by slot, entry + landing", false),
    ("tail call, a slot over a slot", false),
    ("baseline: lock add by stack, no rseq", false),
    ("baseline: one counter, lock add", true),
];

/// Makes the code of each case. All call one function with the C convention.
fn build(arena: &mut Arena) -> Vec<u64> {
    let offset = area().wrapping_sub(thread_pointer()) as i64 as i32;
    let rseq = Some(Rseq { offset, signature: 0x5305_3053 });
    let machine = |rseq, lines| Machine { rseq, rdpid: false, lines };
    let (owned, hashed, one) = (machine(rseq, LINES), machine(None, LINES), machine(None, 1));
    let dead = Liveness { flags_dead: true, dead: 1 << 11, ..Liveness::default() };
    let live = Liveness::default();
    let rows = threads::threads(arena, ThreadId::Call, 64);
    let latency = arena.latency();
    let outermost = Latency { outermost: true, ..latency };
    let (armed, lent) = arena.armed(&owned, USUAL);
    println!("code {:#x} {:#x}", lent.code, lent.code + trampoline_code_len(&lent));
    println!("slots {:#x} {:#x}", lent.table, lent.table + lent.table_len());
    let inner = return_trampolines::armed(arena, &owned, &armed, 5, &return_trampolines::SAME);
    let outer = return_trampolines::armed(arena, &owned, &armed, 6, &return_trampolines::jump_to(inner));
    vec![
        counts::counted(arena, &owned, 0, &dead),
        counts::counted(arena, &owned, 1, &live),
        threads::counted(arena, &rows, 0),
        timed(arena, &owned, &latency, 3, &SPIN),
        timed(arena, &owned, &outermost, 4, &SPIN),
        inner,
        outer,
        counts::counted(arena, &hashed, 2, &live),
        counts::counted(arena, &one, 3, &live),
    ]
}

#[test]
#[ignore = "run by the other tests"]
fn hits_of_two_cpus() {
    let mut arena = Arena::new();
    let code = build(&mut arena);
    // A word for each (case, CPU): a store there announces which hits follow. One more behind them announces
    // none.
    let marks = vec![0_u64; (CASES.len() * CPUS + 1) * 8 + 8];
    let marker = (marks.as_ptr() as u64).next_multiple_of(LINE);
    println!("code {:#x} {:#x}", code[0], arena.next());
    println!("marker {marker:#x} 0");
    println!("counters {:#x} {:#x}", arena.word(0), arena.word(8));
    println!("latency {:#x} {:#x}", arena.latency().area, arena.rows());
    println!("rows {:#x} {:#x}", arena.rows(), arena.rows() + (1 << 20));
    println!("stamps {0:#x} {1:#x}", arena.stamps(), arena.stamps() + trapline_record::latency::STAMPS_LEN);
    let mark = |n: usize| set(marker + n as u64 * LINE, 1);
    let (code, turn) = (&code, &Barrier::new(CPUS));
    std::thread::scope(|scope| {
        for cpu in 0..CPUS {
            scope.spawn(move || {
                AREA.with(|area| area.cpu.store(cpu as u32, Ordering::SeqCst));
                println!("rseq-area {:#x} {:#x}", area() / LINE * LINE, area() + LINE);
                for (case, &code) in code.iter().enumerate() {
                    for turns in 0..CPUS {
                        turn.wait();
                        if turns != cpu {
                            continue;
                        }
                        let hit = || {
                            call(code, 1);
                        };
                        hit();
                        mark(case * CPUS + cpu);
                        (0..HITS).for_each(|_| hit());
                        mark(CASES.len() * CPUS);
                    }
                }
                turn.wait();
            });
        }
    });
}

/// Named ranges of addresses.
#[derive(Default)]
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
    fn start(&self, name: &str) -> u64 {
        self.0.iter().find(|range| range.0 == name).unwrap_or_else(|| panic!("no {name}")).1
    }
    fn name(&self, at: u64) -> &str {
        self.0.iter().find(|range| (range.1..range.2).contains(&at)).map_or("stack", |range| &range.0)
    }
}

/// Lines stored to by each (case, CPU), from `lackey`'s trace.
fn stores(trace: &str, ranges: &Ranges) -> BTreeMap<usize, BTreeSet<u64>> {
    let marker = ranges.start("marker");
    let mut stores = BTreeMap::<usize, BTreeSet<u64>>::new();
    let (mut in_stub, mut marked_case) = (false, None);
    for line in trace.lines() {
        let Some((kind, rest)) = line.trim_start().split_once(' ') else { continue };
        let Some((at, len)) = rest.trim().split_once(',') else { continue };
        let (Ok(at), Ok(len)) = (u64::from_str_radix(at, 16), len.parse::<u64>()) else { continue };
        match kind {
            "I" => in_stub = ranges.name(at) == "code",
            "S" | "M" if (marker..marker + (CASES.len() * CPUS + 1) as u64 * LINE).contains(&at) => {
                marked_case = Some((at - marker) as usize / LINE as usize);
            }
            "S" | "M" if in_stub => {
                let lines = at / LINE..=(at + len - 1) / LINE;
                stores.entry(marked_case.unwrap_or(usize::MAX)).or_default().extend(lines);
            }
            _ => {}
        }
    }
    stores
}

#[test]
fn no_hit_stores_to_a_line_of_another_cpu() {
    if !std::path::Path::new("/usr/bin/valgrind").exists() {
        println!("SKIP: no valgrind (package valgrind)");
        return;
    }
    let log = std::env::temp_dir().join(format!("trapline-write-set-{}", std::process::id()));
    let mut command = Command::new("/usr/bin/valgrind");
    command.args(["--tool=lackey", "--trace-mem=yes"]).arg(format!("--log-file={}", log.display()));
    command.arg(std::env::current_exe().expect("our own path"));
    command.args(["--exact", "write_set::hits_of_two_cpus", "--ignored", "--nocapture"]);
    let output = command.output().expect("valgrind starts");
    let trace = std::fs::read_to_string(&log);
    std::fs::remove_file(&log).ok();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    let ranges = Ranges::parse(&stdout);
    let stores = stores(&trace.expect("a trace"), &ranges);
    print!("{}", table(&stores, &ranges));
    for (case, (name, is_shared)) in CASES.iter().enumerate() {
        let [first, second] = [0, 1].map(|cpu| &stores[&(case * CPUS + cpu)]);
        let shared: Vec<String> =
            first.intersection(second).map(|l| ranges.name(l * LINE).to_owned()).collect();
        assert_eq!(shared, if *is_shared { vec!["counters"] } else { vec![] }, "{name}");
        let kept = ["counters", "latency", "rows", "slots"];
        for lines in [first, second] {
            assert!(
                lines.iter().any(|l| kept.contains(&ranges.name(l * LINE))),
                "{name}: what is counted where?"
            );
        }
    }
}

/// The write set as a table: what each hit stores to, by kind of memory, and the number of lines that both
/// CPUs store to.
fn table(stores: &BTreeMap<usize, BTreeSet<u64>>, ranges: &Ranges) -> String {
    let mut text = format!("{:36} {:46} {:>7}\n", "lines stored to per hit", "on one CPU", "on both");
    for (case, (name, _)) in CASES.iter().enumerate() {
        let [first, second] = [0, 1].map(|cpu| &stores[&(case * CPUS + cpu)]);
        let mut kinds = BTreeMap::<&str, u32>::new();
        first.iter().for_each(|l| *kinds.entry(ranges.name(l * LINE)).or_default() += 1);
        let kinds: Vec<String> = kinds.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
        let both = first.intersection(second).count();
        writeln!(text, "{name:36} {:46} {both:>7}", kinds.join(", ")).expect("a string grows");
    }
    text
}
