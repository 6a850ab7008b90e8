//! Hits by thread, hits that pass a condition, and values: as many as the victim made, by its own figures.

use std::collections::BTreeMap;
use std::process::{Command, Output, Stdio};

use trapline::filter::{Filter, GroupBy, Int, Known, Sort, Symbol, Tally, Tree, parse};
use trapline::{By, Group, Read, Session, Tallied};

use crate::command::{VARIABLE, patched};
use crate::records::NO_RSEQ;
use crate::victim::{ENDLESS, THREADS, Victim, of};

const TIMES: u64 = 200;

fn counting_by_thread(victim: &Victim, probe: &str) -> Session {
    let builder = Session::builder().pid(victim.pid()).by(Some(By::Thread));
    builder.probe(probe).and_then(trapline::Builder::count).expect("a session")
}

/// Thread numbers and hits, in order.
fn by_thread(report: &trapline::ProcessReport, name: &str) -> Vec<(u32, u64)> {
    let count = report.counts.iter().find(|count| count.site.label.contains(name)).expect("it is probed");
    let of_thread = |share: &trapline::Share| match share.group {
        Group::Thread { tid, .. } => (tid, share.hits),
        _ => panic!("{share:?}"),
    };
    let mut all: Vec<_> = count.shares.iter().map(of_thread).filter(|share| share.1 > 0).collect();
    all.sort_unstable();
    all
}

/// Each thread has the calls that it made itself, and a later thread those that it made later.
#[test]
fn threads_have_their_hits() {
    let Some(mut victim) = Victim::start() else { return };
    let before = victim.text();
    let mut session = counting_by_thread(&victim, "victim_*");
    let mut wanted: BTreeMap<u32, u64> = BTreeMap::new();
    for times in [TIMES, 3 * TIMES] {
        assert_eq!(victim.call("victim_push", times), times * THREADS);
        victim.called().iter().for_each(|&(tid, calls)| *wanted.entry(tid).or_default() += calls);
        assert!(session.poll());
    }
    let finished = session.detach();
    let report = &finished.reports[0];
    let wanted: Vec<_> = wanted.into_iter().collect();
    println!("{wanted:?}");
    assert_eq!(wanted.iter().map(|one| one.1).sum::<u64>(), 4 * TIMES * THREADS);
    // It calls the other function once.
    for name in ["victim_push", "victim_nop"] {
        assert_eq!(by_thread(report, name), wanted, "{name}");
        assert_eq!(of(report, name), 4 * TIMES * THREADS, "{name}");
    }
    assert_eq!(victim.text(), before, "put back");
}

/// Threads run meanwhile, and none is harmed.
#[test]
fn threads_that_call_meanwhile_are_not_harmed() {
    let Some(mut victim) = Victim::start() else { return };
    let before = victim.text();
    for name in ["victim_push", "victim_loop"] {
        victim.begin(name, ENDLESS);
        let (mut counted, mut tallied) = (0, 0);
        for _ in 0..4 {
            let session = counting_by_thread(&victim, name);
            std::thread::sleep(std::time::Duration::from_millis(20));
            counted += of(&session.detach().reports[0], name);
            let mut session = tallying(&victim, name, None, tally(argument(), Sort::Each), false);
            std::thread::sleep(std::time::Duration::from_millis(20));
            tallied += session.tallies()[0].hits();
            drop(session.detach());
        }
        victim.begin(name, ENDLESS);
        assert_eq!(victim.end(), 0, "{name}: wrong values");
        println!("{name}: {counted} hits by thread, {tallied} tallied");
        assert!(counted > 0 && tallied > 0, "{name}");
        assert_eq!(victim.text(), before, "{name}");
    }
}

fn argument() -> Tree {
    Tree::Known(Known::Argument(0, Int::U64))
}

fn tally(value: Tree, sort: Sort) -> Tally {
    Tally { value, sort, group_by: GroupBy::Nothing }
}

fn names() -> Vec<(String, Symbol)> {
    let known = [
        ("arg0", Known::Argument(0, Int::U64)),
        ("ret", Known::Returned(Int::U64)),
        ("dur", Known::Took),
        ("field", Known::Field(0, Int::U64)),
    ];
    known.map(|(name, known)| (name.to_owned(), Symbol::Known(known))).into()
}

pub(crate) fn tree(text: &str) -> Tree {
    parse(text, &names()).expect("reads")
}

pub(crate) fn passing(condition: &str) -> Filter {
    Filter::default().condition(condition, &names()).expect("reads")
}

fn tallying(victim: &Victim, probe: &str, condition: Option<&str>, tally: Tally, exits: bool) -> Session {
    let by = (tally.group_by == GroupBy::Thread).then_some(By::Thread);
    let filter = condition.map_or_else(Filter::default, passing).tally(tally, exits).expect("in the target");
    let builder = Session::builder().pid(victim.pid()).by(by).filters(vec![filter]);
    builder.probe(probe).and_then(|builder| builder.tally(exits)).expect("a session")
}

/// Hits that do not pass are counted too.
#[test]
fn counts_are_of_hits_that_pass() {
    let Some(mut victim) = Victim::start() else { return };
    let builder = Session::builder().pid(victim.pid()).filters(vec![passing("arg0 % 3 == 1 && arg0 > 10")]);
    let session = builder.probe("store_plain").and_then(trapline::Builder::count).expect("a session");
    assert_eq!(victim.call("store_plain", TIMES), TIMES * THREADS);
    let finished = session.detach();
    let report = &finished.reports[0];
    let wanted = (0..TIMES).filter(|n| n % 3 == 1 && *n > 10).count() as u64 * THREADS;
    assert_eq!(of(report, "store_plain"), wanted);
    let filtered = report.counts[0].filtered.expect("there is a filter");
    assert_eq!((filtered.in_target, filtered.by_reader), (TIMES * THREADS - wanted, 0));
}

/// All parts of a site's aggregation.
fn hits(tallied: &[Tallied]) -> BTreeMap<u64, u64> {
    let [one] = tallied else { panic!("{tallied:?}") };
    assert_eq!((one.overflow, one.unseen), (0, 0));
    let mut all = BTreeMap::new();
    for (&cell, &hits) in one.parts.iter().flat_map(|part| &part.hits) {
        *all.entry(cell).or_default() += hits;
    }
    all
}

/// The values with which the victim called, and those that it returned, which are equal.
#[test]
fn values_are_those_that_the_victim_had() {
    let Some(mut victim) = Victim::start() else { return };
    let returned = Tree::Known(Known::Returned(Int::U64));
    for (value, exits, condition, passes) in [
        (argument(), false, None, (|_| true) as fn(u64) -> bool),
        (argument(), false, Some("arg0 / 7 != 3"), |n| n / 7 != 3),
        (returned.clone(), true, None, |_| true),
        (returned, true, Some("ret >= 100"), |n| n >= 100),
    ] {
        for sort in [Sort::Each, Sort::Log2, Sort::Linear { min: 5, step: 9, count: 12 }] {
            let tally = tally(value.clone(), sort);
            let mut session = tallying(&victim, "store_plain", condition, tally.clone(), exits);
            assert_eq!(victim.call("store_plain", TIMES), TIMES * THREADS);
            let mut wanted: BTreeMap<u64, u64> = BTreeMap::new();
            (0..TIMES)
                .filter(|&n| passes(n))
                .for_each(|n| *wanted.entry(tally.key(n)).or_default() += THREADS);
            let tallied = session.tallies();
            assert_eq!(hits(&tallied), wanted, "{sort:?} {condition:?}");
            let filtered = (0..TIMES).filter(|&n| !passes(n)).count() as u64 * THREADS;
            assert_eq!(tallied[0].filtered, filtered, "{sort:?} {condition:?}");
            drop(session.detach());
        }
    }
}

/// Of calls: what they were called with, what they returned, and how long they took.
#[test]
fn what_is_known_at_returns_is_tallied() {
    let Some(mut victim) = Victim::start() else { return };
    for (value, condition, key, passes) in [
        (Known::Argument(0, Int::U64), Some("ret >= 100"), None, (|n| n >= 100) as fn(u64) -> bool),
        (Known::Took, Some("arg0 % 3 == 1 && dur < 100000000000"), Some(()), |n| n % 3 == 1),
        (Known::Took, None, Some(()), |_| true),
    ] {
        let tally = tally(Tree::Known(value), Sort::Log2);
        let filter = condition.map_or_else(Filter::default, passing).tally_calls(tally.clone());
        let builder = Session::builder().pid(victim.pid()).filters(vec![filter.expect("in the target")]);
        let builder = builder.probe("store_plain").expect("a probe");
        let mut session = builder.tally(true).expect("a session");
        assert_eq!(victim.call("store_plain", TIMES), TIMES * THREADS);
        let passing: Vec<u64> = (0..TIMES).filter(|&n| passes(n)).collect();
        let tallied = session.tallies();
        let found = hits(&tallied);
        println!("{condition:?}: {found:?}");
        assert_eq!(found.values().sum::<u64>(), passing.len() as u64 * THREADS, "{condition:?}");
        assert_eq!(tallied[0].filtered, (TIMES - passing.len() as u64) * THREADS, "{condition:?}");
        if key.is_none() {
            let mut wanted: BTreeMap<u64, u64> = BTreeMap::new();
            passing.iter().for_each(|&n| *wanted.entry(tally.key(n)).or_default() += THREADS);
            assert_eq!(found, wanted);
        }
        drop(session.detach());
    }
}

/// By thread; and calls that leave by a jump have no value yet.
#[test]
fn values_are_reported_by_thread() {
    let Some(mut victim) = Victim::start() else { return };
    let by_thread = Tally { value: argument(), sort: Sort::Log2, group_by: GroupBy::Thread };
    let mut session = tallying(&victim, "store_plain", None, by_thread, false);
    assert_eq!(victim.call("store_plain", 8), 8 * THREADS);
    let mut wanted: Vec<u32> = victim.called().iter().map(|one| one.0).collect();
    let tallied = session.tallies();
    let mut found = Vec::new();
    for part in &tallied[0].parts {
        assert_eq!(part.hits, BTreeMap::from([(1, 1), (2, 1), (3, 2), (4, 4)]));
        let Some(Group::Thread { tid, .. }) = part.group else { panic!("{part:?}") };
        found.push(tid);
    }
    wanted.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, wanted);
    drop(session.detach());
    // Each value has a row for each of its threads.
    let each = Tally { value: argument(), sort: Sort::Each, group_by: GroupBy::Thread };
    let mut session = tallying(&victim, "store_plain", Some("arg0 != 5"), each, false);
    assert_eq!(victim.call("store_plain", 8), 8 * THREADS);
    let wanted: Vec<u32> = victim.called().iter().map(|one| one.0).collect();
    let tallied = session.tallies();
    assert_eq!((tallied[0].parts.len(), tallied[0].filtered), (wanted.len(), THREADS));
    for part in &tallied[0].parts {
        assert_eq!(part.hits, (0..8).filter(|&n| n != 5).map(|n| (n, 1)).collect::<BTreeMap<_, _>>());
        assert!(matches!(part.group, Some(Group::Thread { tid, .. }) if wanted.contains(&tid)), "{part:?}");
    }
    drop(session.detach());
    let returned = Tree::Known(Known::Returned(Int::U64));
    let mut session = tallying(&victim, "victim_tail", None, tally(returned, Sort::Each), true);
    assert_eq!(victim.call("victim_tail", 5), 5 * THREADS);
    assert_eq!((session.tallies()[0].unseen, session.tallies()[0].hits()), (5 * THREADS, 5 * THREADS));
    drop(session.detach());
}

/// What the victim writes to its output, which begins with its answer: as a text, and as a number that an
/// argument points to.
#[test]
fn what_arguments_lead_to_is_tallied() {
    const ROUNDS: u64 = 3;
    let text = Tally { value: Tree::Number(0, false), sort: Sort::Text(1), group_by: GroupBy::Nothing };
    let right = u64::from_le_bytes(*b"right 40");
    let read = Read { register: 1, offsets: vec![0], bytes: 8 };
    let number = tally(Tree::Known(Known::Field(0, Int::U64)), Sort::Each);
    let reading = |condition: &str| passing(condition).reads(vec![read.clone()]);
    let group = |tally: &Tally| (tally.group_by == GroupBy::Thread).then_some(By::Thread);
    let early = |filter: Filter, tally: &Tally| (filter.tally(tally.clone(), false), false, group(tally));
    let late = |filter: Filter, tally: &Tally| (filter.tally_calls(tally.clone()), true, group(tally));
    for (filter, exits, by) in [
        early(Filter::default(), &text),
        late(passing("ret > 0"), &text),
        late(passing("ret > 0"), &Tally { group_by: GroupBy::Thread, ..text.clone() }),
        early(Filter::default().reads(vec![read.clone()]), &number),
        early(reading(&format!("field == {right}")), &number),
        late(reading("ret > 0 && field"), &number),
    ] {
        for variables in [&[][..], &NO_RSEQ] {
            let Some(mut victim) = Victim::start_with(variables) else { return };
            let filter = filter.clone().expect("in the target");
            let what = format!("{filter:?} {variables:?}");
            let builder = Session::builder().pid(victim.pid()).by(by).filters(vec![filter]);
            let session = builder.probe("libc:write").and_then(|builder| builder.tally(exits));
            let mut session = session.unwrap_or_else(|error| panic!("{what}: {error}"));
            (0..ROUNDS).for_each(|_| assert_eq!(victim.call("store_plain", TIMES), TIMES * THREADS));
            // When the victim accepts the next line, it has returned from writing.
            assert_eq!(victim.call("store_plain", 5), 5 * THREADS);
            let tallied = session.tallies();
            let [one] = &tallied[..] else { panic!("{tallied:?}") };
            let is_answer = |key: u64| match one.texts.get(&key) {
                Some(text) => text.starts_with("right 400\n"),
                None => key == right,
            };
            let answers = one.parts.iter().flat_map(|part| &part.hits).filter(|(key, _)| is_answer(**key));
            assert_eq!(answers.map(|(_, hits)| hits).sum::<u64>(), ROUNDS, "{what}: {tallied:?}");
            assert_eq!((one.overflow, one.unseen), (0, 0), "{what}");
            drop(session.detach());
        }
    }
}

/// Runs the command, until both threads have called `store_plain` so often.
fn typed(victim: &mut Victim, arguments: &[&str], times: u64) -> Option<Output> {
    let Some(command) = std::env::var_os(VARIABLE) else {
        println!("SKIP {VARIABLE} does not say where the command is");
        return None;
    };
    let (pid, before) = (victim.pid().to_string(), victim.text());
    let mut child = Command::new(command)
        .args(arguments)
        .args(["-p", &pid, "store_plain"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    while patched(&before, &victim.text()) < 1 && child.try_wait().expect("ours").is_none() {
        std::thread::yield_now();
    }
    assert_eq!(victim.call("store_plain", times), times * THREADS);
    // SAFETY: this process' own child, not waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    Some(child.wait_with_output().expect("it ends"))
}

#[test]
fn trapline_count_and_hist_say_the_same() {
    let Some(mut victim) = Victim::start() else { return };
    let Some(output) = typed(&mut victim, &["count", "--json", "--by", "tid"], 70) else { return };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{text}");
    assert!(output.status.success(), "{text}");
    for (tid, calls) in victim.called() {
        assert!(
            text.contains(&format!("\"tid\":{tid}")) && text.contains(&format!("\"hits\":{calls}")),
            "{tid}: {text}"
        );
    }
    let arguments = ["hist", "--json", "arg0", "--if", "arg0 >= 32"];
    let Some(output) = typed(&mut victim, &arguments, 70) else { return };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{text}");
    assert!(output.status.success(), "{text}");
    // 32 to 63, and 64 to 69, of both threads; and the others.
    assert!(text.contains("\"rows\":[[32,64,64],[64,128,12]]") && text.contains("\"filtered\":64"), "{text}");
}
