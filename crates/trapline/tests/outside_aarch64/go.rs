//! A Go program, probed from outside: goroutines that grow their stacks inside probed calls, and go on in
//! other threads. As many calls as the program reports.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use trapline::calls::{CallEnd, FieldRead};
use trapline::filter::{Filter, GroupBy, Sort, Tally};
use trapline::stacks::Symbols;
use trapline::{Builder, Session, Unwinding};

use crate::by::{passing, tree};
use crate::stacks::names;
use crate::victim::{hits, times_of};

/// Path of the program; set by whatever built the system.
const VARIABLE: &str = "TRAPLINE_GO_VICTIM";
const TIMES: u64 = 200;
const ALL: [&str; 4] = ["main.outer", "main.deep", "main.leaf", "main.recovers"];

struct Grows {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Grows {
    fn start() -> Option<Self> {
        let program = std::env::var_os(VARIABLE).filter(|path| std::path::Path::new(path).exists());
        let Some(program) = program else {
            println!("SKIP {VARIABLE} does not say where a Go program is: see cargo xtask arm64-system");
            return None;
        };
        let mut command = Command::new(program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let to = child.stdin.take().expect("a pipe");
        let from = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut grows = Self { child, to, from };
        assert_eq!(grows.line(), "ready");
        Some(grows)
    }
    fn line(&mut self) -> String {
        let mut line = String::new();
        assert_ne!(self.from.read_line(&mut line).expect("it talks"), 0, "it ended");
        line.trim().to_owned()
    }
    /// Runs so many rounds; returns how often it called each function, and how often all was right.
    fn run(&mut self, times: u64) -> BTreeMap<String, u64> {
        writeln!(self.to, "run {times}").and_then(|()| self.to.flush()).expect("it listens");
        let line = self.line();
        let word =
            |word: &str| Some((word.split_once('=')?.0.to_owned(), word.split_once('=')?.1.parse().ok()?));
        let reported: BTreeMap<String, u64> = line.split(' ').filter_map(word).collect();
        assert_eq!(reported.get("right"), Some(&times), "{line}");
        reported
    }
    fn builder(&self) -> Builder {
        let builder = Session::builder().pid(self.child.id());
        ALL.iter().fold(builder, |builder, name| builder.probe(name).expect("a probe"))
    }
}

impl Drop for Grows {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Entries: one more where a function begins anew on a larger stack, as the kernel's uprobes count; the leaf
/// function does not check its stack.
#[test]
fn entries_are_counted() {
    let Some(mut grows) = Grows::start() else { return };
    let session = grows.builder().count().expect("a session");
    let reported = grows.run(TIMES);
    let finished = session.detach();
    let report = &finished.reports[0];
    assert!(report.refused.is_empty(), "{:?}", report.refused);
    println!("{:?} of {reported:?}", hits(report));
    for name in ALL {
        let found = crate::victim::of(report, name);
        let exact = name == "main.leaf" || name == "main.recovers";
        assert!(
            if exact {
                found == reported[name]
            } else {
                found >= reported[name] && found < 2 * reported[name]
            },
            "{name}: {found}"
        );
    }
    grows.run(TIMES);
}

#[test]
fn calls_are_timed_wherever_their_stack_goes() {
    let Some(mut grows) = Grows::start() else { return };
    let session = grows.builder().latency().expect("a session");
    let reported = grows.run(TIMES);
    let finished = session.detach();
    let report = &finished.reports[0];
    assert!(report.refused.is_empty(), "{:?}", report.refused);
    for name in ALL {
        let times = times_of(report, name);
        println!("{name}: {} calls timed of {}", times.calls, reported[name]);
        assert_eq!(times.calls, reported[name], "{name}: {times:?}");
        assert_eq!((times.in_flight, times.unpaired, times.unreturned), (0, 0, 0), "{name}");
    }
    grows.run(TIMES);
}

/// Of calls within a call of the same function, only the outermost is timed, even if the goroutine's stack
/// grows during it.
#[test]
fn outermost_calls_are_timed() {
    let Some(mut grows) = Grows::start() else { return };
    let session = grows.builder().outermost(true).latency().expect("a session");
    let reported = grows.run(TIMES);
    let finished = session.detach();
    let report = &finished.reports[0];
    assert!(report.refused.is_empty(), "{:?}", report.refused);
    for name in ALL {
        // `outer` calls it once; all other calls of it are its own.
        let calls = if name == "main.deep" { reported["main.outer"] } else { reported[name] };
        let times = times_of(report, name);
        println!("{name}: {} outermost calls timed of {}", times.calls, reported[name]);
        assert_eq!(times.calls, calls, "{name}: {times:?}");
        assert_eq!((times.in_flight, times.unpaired, times.unreturned), (0, 0, 0), "{name}");
    }
    grows.run(TIMES);
}

/// Callers by frame pointers, up to where the goroutine began.
#[test]
fn callers_are_reported() {
    let Some(mut grows) = Grows::start() else { return };
    for name in ["main.leaf", "main.deep"] {
        let builder = Session::builder().pid(grows.child.id()).ring(8 << 20).probe(name).expect("a probe");
        let session = builder.stacks(Unwinding::FramePointers(100), false).expect("a session");
        let reported = grows.run(TIMES);
        let finished = session.detach();
        assert_eq!(finished.summary.missed, 0, "{:?}", finished.summary.notices);
        let (mut symbols, mut hits, mut depths) = (Symbols::default(), 0, BTreeMap::new());
        for sum in &finished.stacks {
            let all = names(&mut symbols, sum);
            let own = all.iter().take_while(|one| *one == name).count();
            let rest: Vec<&str> = all[own..].iter().map(String::as_str).collect();
            let [first, .., begun, last] = rest[..] else { panic!("{all:?}") };
            assert_eq!((first, last, sum.cut), ("main.outer", "runtime.goexit", false), "{all:?}");
            assert!(begun.starts_with("main.main."), "{all:?}");
            hits += sum.calls;
            *depths.entry(own).or_insert(0) += sum.calls;
        }
        println!("{name}: {hits} stacks of {}; by depth {depths:?}", reported[name]);
        // One more where a function begins anew on a larger stack.
        assert!(
            hits >= reported[name] && (name == "main.deep" || hits == reported[name]),
            "{hits} {reported:?}"
        );
        if name == "main.deep" {
            assert_eq!(depths.len(), 60, "{depths:?}");
        }
    }
    grows.run(TIMES);
}

#[test]
fn calls_are_recorded_with_what_they_return() {
    let Some(mut grows) = Grows::start() else { return };
    // Nothing is read meanwhile, so all of it must fit into the one ring of threads without a control block.
    let session = grows.builder().ring(8 << 20).record(1, true).expect("a session");
    let reported = grows.run(TIMES);
    let mut finished = session.detach();
    let calls = std::mem::take(&mut finished.calls);
    assert_eq!(finished.summary.missed, 0, "{:?}", finished.summary.notices);
    for name in ALL {
        let ended: Vec<_> = calls
            .iter()
            .filter(|call| call.site.label.contains(name) && call.how == CallEnd::Returned)
            .map(|call| (call.arguments[0], call.returned.unwrap_or_default()))
            .collect();
        println!("{name}: {} calls recorded of {}", ended.len(), reported[name]);
        assert_eq!(ended.len() as u64, reported[name], "{name}: {:?}", finished.summary.notices);
        let wanted = |n: u64| match name {
            "main.outer" => n % 60 + 3 * n + 1,
            "main.leaf" => 3 * n + 1,
            "main.recovers" if n % 2 == 0 => n.wrapping_neg(),
            _ => n,
        };
        assert!(ended.iter().all(|&(given, returned)| returned == wanted(given)), "{name}: {ended:?}");
    }
    assert!(!finished.summary.notices.iter().any(|notice| notice.contains("without a recorded entry")));
    grows.run(TIMES);
}

/// What decides about calls, at their entry and at their return, and what is aggregated: a goroutine's own
/// values, wherever its stack is by then.
#[test]
fn calls_are_decided_about_and_added_up_at_their_returns() {
    let Some(mut grows) = Grows::start() else { return };
    let returned = |name: &str, n: u64| if name == "main.outer" { n % 60 + 3 * n + 1 } else { 3 * n + 1 };
    for name in ["main.outer", "main.leaf"] {
        let builder = |filter| Session::builder().pid(grows.child.id()).filters(vec![filter]).ring(8 << 20);
        let mut sessions = Vec::new();
        for (condition, passes) in [
            ("arg0 % 3 == 1", (|n, _| n % 3 == 1) as fn(u64, u64) -> bool),
            ("arg0 > 10 && ret % 2", |n, ret| n > 10 && ret % 2 == 1),
        ] {
            let wanted: Vec<u64> = (0..TIMES).filter(|&n| passes(n, returned(name, n))).collect();
            sessions.push((builder(passing(condition)), condition, wanted));
        }
        for (builder, condition, wanted) in sessions {
            let session = builder.probe(name).and_then(|builder| builder.record(1, true)).expect("a session");
            grows.run(TIMES);
            let finished = session.detach();
            assert_eq!(finished.summary.missed, 0, "{:?}", finished.summary.notices);
            let ended = finished.calls.iter().filter(|call| call.how == CallEnd::Returned);
            let mut ended: Vec<_> =
                ended.map(|call| (call.arguments[0], call.returned.unwrap_or_default())).collect();
            ended.sort_unstable();
            let wanted: Vec<_> = wanted.into_iter().map(|n| (n, returned(name, n))).collect();
            println!("{name}, {condition}: {} calls recorded", ended.len());
            assert_eq!(ended, wanted, "{name}, {condition}: {:?}", finished.reports[0].counts[0].filtered);
        }
        let value = tree("ret - arg0 * 2");
        let tally = Tally { value, sort: Sort::Each, group_by: GroupBy::Nothing };
        let filter = passing("dur < 100000000000 && arg0 != 7").tally_calls(tally).expect("in the target");
        let builder = Session::builder().pid(grows.child.id()).filters(vec![filter]);
        let mut session = builder.probe(name).and_then(|builder| builder.tally(true)).expect("a session");
        grows.run(TIMES);
        let tallied = session.tallies();
        let mut wanted = BTreeMap::new();
        for n in (0..TIMES).filter(|&n| n != 7) {
            *wanted.entry(returned(name, n) - 2 * n).or_insert(0) += 1;
        }
        assert_eq!(tallied[0].parts[0].hits, wanted, "{name}: {tallied:?}");
        assert_eq!((tallied[0].overflow, tallied[0].unseen), (0, 0));
        drop(session.detach());
    }
    grows.run(TIMES);
}

/// What arguments point to, copied onto the goroutine's own stack: texts and fields in records, and
/// conditions and aggregations of them. Every stack has room here, or the hit is counted.
#[test]
fn what_arguments_lead_to_is_read() {
    let Some(mut grows) = Grows::start() else { return };
    let read = |offset| FieldRead { register: 0, offsets: vec![offset], bytes: 8 };
    let pid = grows.child.id();
    let builder = |filter| {
        let builder = Session::builder().pid(pid).filters(vec![filter]).ring(8 << 20);
        builder.probe("main.reads").expect("a probe")
    };
    let text = |call: &trapline::Call| {
        call.texts.first().map(|text| String::from_utf8_lossy(&text.bytes).into_owned())
    };
    let session = builder(Filter::default()).texts(vec![0b10]).record(2, true).expect("a session");
    let reported = grows.run(TIMES);
    let finished = session.detach();
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    finished.calls.iter().filter_map(text).for_each(|text| *found.entry(text).or_insert(0) += 1);
    let missed = finished.summary.missed;
    println!("{} texts of {} calls, {missed} missed", found.len(), reported["main.reads"]);
    // A function that begins anew on a larger stack is entered twice, with the same text.
    assert!(found.iter().all(|(text, &calls)| text.starts_with("round ") && calls <= 2), "{found:?}");
    assert_eq!(found.values().sum::<u64>(), finished.calls.len() as u64, "{found:?}");
    assert!(found.len() as u64 + missed >= reported["main.reads"], "{:?}", finished.summary.notices);
    assert!(found.len() as u64 > TIMES / 2, "{}", found.len());
    // The second number is twice the first.
    let session = builder(passing("field % 4 == 2").reads(vec![read(8)])).record(2, true).expect("a session");
    grows.run(TIMES);
    let finished = session.detach();
    let odd: BTreeSet<u64> = finished.calls.iter().filter_map(|call| call.returned).collect();
    println!("{} calls pass, {} missed", finished.calls.len(), finished.summary.missed);
    let returned = |n: u64| n + u64::from(b'r');
    assert!(odd.is_subset(&(0..TIMES).filter(|n| n % 2 == 1).map(returned).collect()), "{odd:?}");
    assert!(odd.len() as u64 + finished.summary.missed >= TIMES / 2, "{}", odd.len());
    let tally = Tally { value: tree("field"), sort: Sort::Each, group_by: GroupBy::Nothing };
    let filter = Filter::default().reads(vec![read(8)]).tally(tally, false).expect("in the target");
    let mut session = builder(filter).tally(false).expect("a session");
    grows.run(TIMES);
    let tallied = session.tallies();
    let hits = &tallied[0].parts[0].hits;
    println!("{} values, {} unseen", hits.len(), tallied[0].unseen);
    // A function that begins anew on a larger stack is entered twice.
    let is_reported = |(&value, &hits): (&u64, &u64)| hits <= 2 && value % 2 == 0 && value < 2 * TIMES;
    assert!(hits.iter().all(is_reported), "{hits:?}");
    assert!(hits.len() as u64 + tallied[0].unseen >= TIMES && tallied[0].overflow == 0, "{tallied:?}");
    assert!(hits.len() as u64 > TIMES / 2, "{tallied:?}");
    drop(session.detach());
    grows.run(TIMES);
}

/// Attached and detached while goroutines call.
#[test]
fn goroutines_that_call_meanwhile_are_not_harmed() {
    let Some(mut grows) = Grows::start() else { return };
    for _ in 0..4 {
        writeln!(grows.to, "run {}", 4 * TIMES).and_then(|()| grows.to.flush()).expect("it listens");
        let finished = grows.builder().latency().expect("a session").detach();
        assert!(finished.reports.iter().all(|report| report.refused.is_empty()));
        let line = grows.line();
        assert!(line.ends_with(&format!("right={}", 4 * TIMES)), "{line}");
    }
}
