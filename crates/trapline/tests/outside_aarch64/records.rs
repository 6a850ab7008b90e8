//! LOSS-2: calls traced, each with its arguments and its returned value. Calls that were recorded and calls
//! that were lost are together as many as the victim made, and as the kernel's uprobes saw.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Command, Stdio};

use trapline::calls::{CallEnd, FieldRead};
use trapline::filter::Filter;
use trapline::{Call, Finished, Session};

use crate::by::passing;
use crate::command::{VARIABLE, patched};
use crate::kernel::Uprobe;
use crate::victim::{ENDLESS, OUTER, THREADS, TURNS, Victim, calls_of, of};

const TIMES: u64 = 300;
/// Threads then have no rseq area, so rings are locked.
pub(crate) const NO_RSEQ: [(&str, &str); 1] = [("GLIBC_TUNABLES", "glibc.pthread.rseq=0")];

fn record(victim: &Victim, probe: &str, arguments: u8, ring: u32) -> Session {
    let builder = Session::builder().pid(victim.pid()).probe(probe).expect("a probe");
    builder.ring(ring).record(arguments, true).expect("a session")
}

/// All calls, and the number of lost ones.
fn ended(session: Session, mut calls: Vec<Call>) -> (Vec<Call>, u64, Finished) {
    let mut finished = session.detach();
    calls.append(&mut finished.calls);
    let lost = finished.summary.missed;
    (calls, lost, finished)
}

/// Checks each call of the function of six arguments: as the victim makes them, with a value from 0 on.
fn assert_right(calls: &[Call]) {
    for call in calls {
        let first = call.arguments[0];
        assert_eq!(call.arguments[..6], [0, 1, 2, 3, 4, 5].map(|n| first + n), "{call:?}");
        if call.how == CallEnd::Returned {
            assert_eq!(call.returned, Some(2 * first + 5), "{call:?}");
            assert!(call.took.is_some_and(|took| took.as_secs() < 100), "{call:?}");
        }
    }
}

#[test]
fn calls_are_what_the_victim_passed_and_got() {
    for variables in [&[][..], &NO_RSEQ] {
        let Some(mut victim) = Victim::start_with(variables) else { return };
        let before = victim.text();
        let mut session = record(&victim, "victim_six", 6, 1 << 20);
        assert_ne!(victim.text(), before, "patched");
        let kernels = Uprobe::new("victim_six", 4);
        assert_eq!(victim.call(&format!("{TURNS}{OUTER}"), TIMES), TIMES * THREADS, "wrong values");
        let early = session.calls();
        let (calls, lost, finished) = ended(session, early);
        assert_eq!((calls.len() as u64, lost), (TIMES * THREADS, 0), "{:?}", finished.summary.notices);
        match kernels {
            Ok(uprobe) => assert_eq!(uprobe.hits(), TIMES * THREADS),
            Err(why) => println!("SKIP the kernel's uprobes: {why}"),
        }
        // Only now is the kernel's own word gone.
        assert!(victim.text() == before, "put back");
        assert_right(&calls);
        assert!(calls.iter().all(|call| call.how == CallEnd::Returned), "all had ended");
        // One thread after the other, each with the same values in the same order.
        let threads: BTreeSet<u32> = calls.iter().map(|call| call.tid).collect();
        println!("threads {threads:?}");
        assert_eq!(threads.len() as u64, THREADS);
        let mut by_thread: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        calls.iter().for_each(|call| by_thread.entry(call.tid).or_default().push(call.arguments[0]));
        assert!(by_thread.values().all(|values| values.iter().copied().eq(0..TIMES)), "{by_thread:?}");
        assert_eq!(of(&finished.reports[0], "victim_six"), TIMES * THREADS);
    }
}

/// Of entries alone: a record of each call that passes, and of one in so many of those.
#[test]
fn a_filter_decides_in_the_target_what_is_recorded() {
    for (variables, sample) in [(&[][..], 1), (&NO_RSEQ[..], 1), (&[][..], 4)] {
        let Some(mut victim) = Victim::start_with(variables) else { return };
        let before = victim.text();
        let filter = passing("arg0 % 3 == 1 && arg0 > 10").sample(sample);
        let builder = Session::builder().pid(victim.pid()).filters(vec![filter]).ring(1 << 20);
        let builder = builder.probe("victim_six").expect("a probe");
        let mut session = builder.record(6, false).expect("a session");
        assert_eq!(victim.call(OUTER, TIMES), TIMES * THREADS, "wrong values");
        let early = session.calls();
        let (calls, lost, finished) = ended(session, early);
        assert_right(&calls);
        let passes = |n: u64| n % 3 == 1 && n > 10;
        assert!(calls.iter().all(|call| passes(call.arguments[0])), "{calls:?}");
        let (recorded, all) =
            (calls.len() as u64, (0..TIMES).filter(|&n| passes(n)).count() as u64 * THREADS);
        let filtered = finished.reports[0].counts[0].filtered.expect("there is a filter").in_target;
        assert_eq!((recorded + filtered, lost), (TIMES * THREADS, 0));
        // Each CPU counts by itself.
        let sampled = all / u64::from(sample)..=all / u64::from(sample) + 8;
        assert!(
            if sample == 1 { recorded == all } else { sampled.contains(&recorded) },
            "{recorded} of {all}"
        );
        assert!(victim.text() == before, "put back");
    }
}

/// Of calls with recorded returns: by their arguments, by their returned value, and by their duration. The
/// kernel counts all of them.
#[test]
fn a_filter_decides_in_the_target_which_calls_are_recorded() {
    type Passes = fn(u64) -> bool;
    let conditions: [(&str, Passes); 4] = [
        ("arg0 % 3 == 1 && arg0 > 10", |n| n % 3 == 1 && n > 10),
        ("arg0 % 3 == 1 && ret > 105", |n| n % 3 == 1 && 2 * n + 5 > 105),
        ("dur < 100000000000 && arg0 > 10 || ret == 5", |n| n > 10 || n == 0),
        ("dur > 100000000000", |_| false),
    ];
    for (variables, (condition, passes)) in
        [&[][..], &NO_RSEQ].into_iter().flat_map(|variables| conditions.map(|one| (variables, one)))
    {
        let Some(mut victim) = Victim::start_with(variables) else { return };
        let before = victim.text();
        let builder = Session::builder().pid(victim.pid()).filters(vec![passing(condition)]).ring(1 << 20);
        let builder = builder.probe("victim_six").expect("a probe");
        let mut session = builder.record(6, true).expect("a session");
        let kernels = Uprobe::new("victim_six", 4);
        assert_eq!(victim.call(&format!("{TURNS}{OUTER}"), TIMES), TIMES * THREADS, "wrong values");
        let early = session.calls();
        let (calls, lost, finished) = ended(session, early);
        let what = format!("{condition} {variables:?} {:?}", finished.summary.notices);
        assert_right(&calls);
        assert!(
            calls.iter().all(|call| call.how == CallEnd::Returned && passes(call.arguments[0])),
            "{what}"
        );
        let wanted = (0..TIMES).filter(|&n| passes(n)).count() as u64 * THREADS;
        let count = &finished.reports[0].counts[0];
        let filtered = count.filtered.expect("there is a filter");
        println!("{what}: {} calls, {filtered:?}", calls.len());
        assert_eq!(
            (calls.len() as u64, filtered.in_target, lost),
            (wanted, TIMES * THREADS - wanted, 0),
            "{what}"
        );
        assert_eq!((filtered.by_reader, filtered.unended), (0, 0), "{what}");
        match kernels {
            Ok(uprobe) => assert_eq!(uprobe.hits(), calls.len() as u64 + filtered.in_target, "{what}"),
            Err(why) => println!("SKIP the kernel's uprobes: {why}"),
        }
        assert!(victim.text() == before, "put back");
    }
}

/// Fields of what an argument points to, and filters by them. What the program writes to its output begins
/// with its answer.
#[test]
fn fields_are_read_and_decide() {
    let Some(mut victim) = Victim::start() else { return };
    let right = u64::from_le_bytes(*b"right 60");
    let read = FieldRead { register: 1, offsets: vec![0], bytes: 8 };
    for (condition, returns, passes) in [
        (format!("field == {right}"), false, true),
        (format!("field == {right} && ret > 0"), true, true),
        (format!("field != {right}"), true, false),
    ] {
        let filter = passing(&condition).reads(vec![read.clone()]);
        let builder = Session::builder().pid(victim.pid()).filters(vec![filter]);
        let session = builder.probe("libc:write").and_then(|builder| builder.record(3, returns));
        let session = session.expect("a session");
        assert_eq!(victim.call(OUTER, TIMES), TIMES * THREADS);
        let (calls, lost, finished) = ended(session, Vec::new());
        let answers = calls.iter().filter(|call| {
            let field = call.fields.first().expect("a field");
            field.bytes.get(..8) == Some(&right.to_le_bytes()[..])
        });
        println!("{condition}: {} calls, {:?}", calls.len(), finished.reports[0].counts[0].filtered);
        assert_eq!((answers.count(), lost), (usize::from(passes), 0), "{condition} {calls:?}");
        let filtered = finished.reports[0].counts[0].filtered.expect("there is a filter");
        assert!(filtered.by_reader == 0 && (passes || filtered.in_target > 0), "{filtered:?}");
    }
}

/// All functions at once: entries, returns, jumps into another function, recursion.
#[test]
fn every_way_out_ends_a_call() {
    let Some(mut victim) = Victim::start() else { return };
    // Nothing is read meanwhile, and one CPU may have all records.
    let mut session = record(&victim, "victim_*", 1, 4 << 20);
    assert_eq!(victim.call("all", TIMES), TIMES * THREADS * crate::victim::FUNCTIONS.len() as u64);
    let early = session.calls();
    let (calls, lost, finished) = ended(session, early);
    assert_eq!(lost, 0);
    let of = |name: &str| calls.iter().filter(|call| call.site.label.contains(name)).collect::<Vec<_>>();
    for (name, .., becomes) in crate::victim::FUNCTIONS {
        // The word to which the loop jumps back is its entry.
        let each = if name == "victim_loop" { 8 } else { calls_of(name) };
        let all = of(name);
        assert_eq!(all.len() as u64, each * TIMES * THREADS, "{name}: {:?}", finished.summary.notices);
        let ended =
            all.iter().filter(|call| matches!(call.how, CallEnd::Returned | CallEnd::TailCall)).count()
                as u64;
        assert_eq!(ended, calls_of(name) * TIMES * THREADS, "{name}");
        let tails = all.iter().filter(|call| call.how == CallEnd::TailCall).count() as u64;
        assert_eq!(tails, if name == "victim_tail" { ended } else { 0 }, "{name}");
        if calls_of(name) == 1 && !["victim_tail", "victim_loop"].contains(&name) {
            assert!(
                all.iter().all(|call| (call.arguments[0], call.returned) == (8, Some(becomes))),
                "{name}"
            );
        }
    }
    // Eight nested calls, from 8 to 0; each returns twice its argument.
    let mut depths: BTreeMap<u64, u64> = BTreeMap::new();
    for call in of("victim_deep") {
        assert_eq!(call.returned, Some(2 * call.arguments[0]), "{call:?}");
        *depths.entry(call.arguments[0]).or_default() += 1;
    }
    assert_eq!(depths, (0..=8).map(|n| (n, TIMES * THREADS)).collect());
}

/// Nothing is read, and rings have room for a few records: what does not fit is counted.
#[test]
fn what_is_lost_is_counted() {
    for variables in [&[][..], &NO_RSEQ] {
        let Some(mut victim) = Victim::start_with(variables) else { return };
        let session = record(&victim, "victim_six", 6, 4096);
        assert_eq!(victim.call(OUTER, 5 * TIMES), 5 * TIMES * THREADS);
        let (calls, lost, finished) = ended(session, Vec::new());
        println!("{} calls, {lost} records lost", calls.len());
        assert_right(&calls);
        // Two records for each call, each of them written or lost; a call with a lost entry is not reported.
        let (entries, exits) =
            (calls.len() as u64, calls.iter().filter(|call| call.took.is_some()).count() as u64);
        let unpaired: u64 = finished
            .summary
            .notices
            .iter()
            .filter(|notice| notice.contains("without a recorded entry"))
            .filter_map(|notice| notice.split(' ').next()?.parse::<u64>().ok())
            .sum();
        assert_eq!(
            entries + exits + unpaired + lost,
            2 * 5 * TIMES * THREADS,
            "{:?}",
            finished.summary.notices
        );
        assert!(lost > 0 && entries > 0);
    }
}

/// What pointers point to, as far as the program could read it; and the C library's own functions.
#[test]
fn texts_are_what_the_victim_wrote() {
    for variables in [&[][..], &NO_RSEQ] {
        let Some(mut victim) = Victim::start_with(variables) else { return };
        let builder =
            Session::builder().pid(victim.pid()).probe("libc:write").and_then(|b| b.probe("victim_six"));
        let builder = builder.expect("probes").texts(vec![0b10, 0b100]);
        let session = builder.record(3, true).expect("a session");
        assert_eq!(victim.call(OUTER, TIMES), TIMES * THREADS);
        let (calls, lost, finished) = ended(session, Vec::new());
        assert_eq!(lost, 0, "{:?}", finished.summary.notices);
        let of = |name: &'static str| calls.iter().filter(move |call| call.site.label.contains(name));
        // The answer that the victim gave.
        let answer = format!("right {}\n", TIMES * THREADS);
        let reported = of("write").find(|call| {
            call.texts.iter().any(|text| text.argument == 1 && text.bytes.starts_with(answer.as_bytes()))
        });
        let reported = reported.unwrap_or_else(|| panic!("{calls:?}"));
        assert_eq!(
            (reported.arguments[2], reported.returned),
            (answer.len() as u64, Some(answer.len() as u64))
        );
        // A number is not an address: nothing could be read there, and that had no other effect.
        assert_eq!(of("victim_six").count() as u64, TIMES * THREADS);
        for call in of("victim_six") {
            let [text] = &call.texts[..] else { panic!("{call:?}") };
            assert_eq!(
                (text.argument, text.reading, text.bytes.len()),
                (2, trapline::calls::ReadOutcome::Fault, 0),
                "{call:?}"
            );
            assert_eq!(call.arguments[2], call.arguments[0] + 2);
        }
    }
}

/// Threads with other names than requested are rejected in the target, once the reader has noted them. Before
/// that, the reader rejects their calls.
#[test]
fn threads_that_are_called_otherwise_are_passed_over() {
    let Some(mut victim) = Victim::start() else { return };
    victim.begin("victim_nop", ENDLESS);
    let tasks = std::fs::read_dir(format!("/proc/{}/task", victim.pid())).expect("its threads");
    let called: BTreeSet<String> = tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .map(|comm| comm.trim_end().to_owned())
        .collect();
    for (names, are_reported) in [(vec!["elsewhere".to_owned()], false), (called.into_iter().collect(), true)]
    {
        println!("{names:?}");
        let builder = Session::builder().pid(victim.pid()).filters(vec![Filter::default().named(names)]);
        let builder = builder.probe("victim_nop").expect("a probe");
        let mut session = builder.ring(1 << 16).record(1, false).expect("a session");
        let (mut reported, mut over) = (0, 0);
        while reported.max(over) < 1000 {
            reported += session.calls().len();
            let report = session.report();
            over = report[0].counts[0].filtered.map_or(0, |filtered| filtered.in_target) as usize;
        }
        assert_eq!(
            (reported > 0, over > 0),
            (are_reported, !are_reported),
            "{reported} reported, {over} passed over"
        );
        drop(session.detach());
    }
    victim.begin("victim_nop", ENDLESS);
    assert_eq!(victim.end(), 0, "wrong values");
}

/// An instruction that is not an entry: a record without arguments.
#[test]
fn any_instruction_is_recorded() {
    let Some(mut victim) = Victim::start() else { return };
    let builder = Session::builder().pid(victim.pid()).probe("victim_six+8").expect("a probe");
    let session = builder.record(0, false).expect("a session");
    assert_eq!(victim.call(OUTER, TIMES), TIMES * THREADS);
    let (calls, lost, _) = ended(session, Vec::new());
    assert_eq!((calls.len() as u64, lost), (TIMES * THREADS, 0));
    assert!(calls.iter().all(|call| call.how == CallEnd::Entered && call.tid != 0));
}

/// Runs the command on a victim until it is interrupted.
pub(crate) fn command(victim: &Victim, verb: &str, words: &[&str]) -> Option<Child> {
    let Some(command) = std::env::var_os(VARIABLE) else {
        println!("SKIP {VARIABLE} does not say where the command is");
        return None;
    };
    let before = victim.text();
    let mut child = Command::new(command)
        .args([verb, "-p", &victim.pid().to_string(), "--json"])
        .args(words)
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    while patched(&before, &victim.text()) == 0 && child.try_wait().expect("ours").is_none() {
        std::thread::yield_now();
    }
    Some(child)
}

/// Output of the command.
pub(crate) fn output(child: Child) -> String {
    // SAFETY: this process' own child, not waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let output = child.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    text
}

#[test]
fn trapline_trace_tells_calls() {
    let Some(mut victim) = Victim::start() else { return };
    let probe = "victim_six(u64 a, u64 b, u64 c, u64 d, u64 e, u64 f) -> u64";
    let Some(child) = command(&victim, "trace", &[probe]) else { return };
    let kernels = Uprobe::new("victim_six", 4);
    assert_eq!(victim.call(&format!("{TURNS}{OUTER}"), 50), 50 * THREADS);
    let text = output(child);
    let calls: Vec<&str> = text.lines().filter(|line| line.contains("\"type\":\"call\"")).collect();
    println!("{}", calls.first().unwrap_or(&"none"));
    assert_eq!(calls.len() as u64, 50 * THREADS, "{text}");
    let with =
        |n: u64| calls.iter().filter(|call| call.contains(&format!("\"ret\":{},", 2 * n + 5))).count() as u64;
    assert!((0..50).all(|n| with(n) == THREADS), "{text}");
    match kernels {
        Ok(probe) => assert_eq!(probe.hits(), 50 * THREADS),
        Err(why) => println!("SKIP the kernel's uprobes: {why}"),
    }
}
