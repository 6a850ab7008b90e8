//! Text from which no `b` reaches room for a stub: all that is free within its reach is taken, but for a few pages.

use trapline::{Session, Symbols, Tactic, Unwinding};

use crate::command::patched;
use crate::stacks::names;
use crate::victim::{CROWDED, ENDLESS, FUNCTIONS, OUTER, THREADS, Victim, calls_of, of, times_of};

const TIMES: u64 = 100;

/// A victim that leaves so many single pages free near its code.
fn crowded(pages: &str) -> Option<Victim> {
    if std::env::var_os("TRAPLINE_ISLANDS").is_none() {
        println!(
            "SKIP islands are not gone over without TRAPLINE_ISLANDS in the environment (patch's `prepare` says why)"
        );
        return None;
    }
    Victim::start_with(&[(CROWDED, pages)])
}

/// All that was probed went over an island, and the text is what it was.
fn assert_over_islands(finished: &trapline::Finished, victim: &Victim, before: &[u8]) {
    let tactics: Vec<_> = finished.summary.patched.iter().collect();
    println!("{tactics:?}, {} bytes stay mapped", finished.summary.left_mapped);
    assert!(matches!(tactics[..], [(Tactic::Short, 1..)]), "{tactics:?}");
    assert!(victim.text() == before, "put back");
}

#[test]
fn counts_are_exact() {
    let Some(mut victim) = crowded("1") else { return };
    let before = victim.text();
    let session = victim.count("victim_*");
    assert!(patched(&before, &victim.text()) >= FUNCTIONS.len());
    assert_eq!(victim.call("all", TIMES), TIMES * THREADS * FUNCTIONS.len() as u64, "wrong values");
    let finished = session.detach();
    for (name, ..) in FUNCTIONS {
        let own = if name == "victim_loop" { 8 } else { calls_of(name) };
        assert_eq!(of(&finished.reports[0], name), own * TIMES * THREADS, "{name}");
    }
    assert_over_islands(&finished, &victim, &before);
    assert_eq!(victim.call("all", TIMES), TIMES * THREADS * FUNCTIONS.len() as u64, "wrong values");
    // The only page is had again.
    let session = victim.count("victim_nop");
    assert_eq!(victim.call("victim_nop", TIMES), TIMES * THREADS, "wrong values");
    let finished = session.detach();
    assert_eq!(of(&finished.reports[0], "victim_nop"), TIMES * THREADS);
    assert_over_islands(&finished, &victim, &before);
}

#[test]
fn each_call_is_timed() {
    let Some(mut victim) = crowded("1") else { return };
    let before = victim.text();
    let session = victim.time("victim_*");
    assert_eq!(victim.call("all", TIMES), TIMES * THREADS * FUNCTIONS.len() as u64, "wrong values");
    let finished = session.detach();
    for (name, ..) in FUNCTIONS {
        let times = times_of(&finished.reports[0], name);
        let unclear = (times.in_flight, times.unpaired, times.unreturned);
        assert_eq!((times.calls, unclear), (calls_of(name) * TIMES * THREADS, (0, 0, 0)), "{name}");
    }
    assert_over_islands(&finished, &victim, &before);
}

#[test]
fn records_and_stacks_are_what_they_are_elsewhere() {
    let Some(mut victim) = crowded("1") else { return };
    let before = victim.text();
    let pid = victim.pid();
    let builder = || Session::builder().pid(pid).probe("victim_six").expect("a probe");
    let session = builder().record(6, true).expect("a session");
    assert_eq!(victim.call(OUTER, TIMES), TIMES * THREADS, "wrong values");
    let finished = session.detach();
    assert_eq!((finished.calls.len() as u64, finished.summary.missed), (TIMES * THREADS, 0));
    for call in &finished.calls {
        let first = call.arguments[0];
        assert_eq!(call.arguments, [0, 1, 2, 3, 4, 5].map(|n| first + n), "{call:?}");
        assert_eq!(call.returned, Some(2 * first + 5), "{call:?}");
    }
    assert_over_islands(&finished, &victim, &before);
    let session = builder().stacks(Unwinding::FramePointers(16), false).expect("a session");
    assert_eq!(victim.call(OUTER, TIMES), TIMES * THREADS, "wrong values");
    let finished = session.detach();
    assert_eq!(finished.stacks.iter().map(|sum| sum.calls).sum::<u64>(), TIMES * THREADS);
    let mut symbols = Symbols::default();
    for sum in &finished.stacks {
        let names = names(&mut symbols, sum);
        assert_eq!(names[..3], ["victim_six", "victim_inner", "victim_outer"], "{names:?}");
    }
    assert_over_islands(&finished, &victim, &before);
}

/// Attached and detached while two threads call: each value is right.
#[test]
fn threads_that_call_meanwhile_are_not_harmed() {
    let Some(mut victim) = crowded("8") else { return };
    let before = victim.text();
    for name in ["victim_push", "victim_zero", "victim_loop"] {
        victim.begin(name, ENDLESS);
        let mut seen = 0;
        for _ in 0..8 {
            let session = victim.count(name);
            std::thread::sleep(std::time::Duration::from_millis(20));
            let finished = session.detach();
            seen += of(&finished.reports[0], name);
            assert_over_islands(&finished, &victim, &before);
        }
        // Any line ends it; then it tells how many values were wrong.
        victim.begin(name, ENDLESS);
        assert_eq!(victim.end(), 0, "{name}: wrong values");
        assert!(seen > 0, "{name}");
    }
}

/// Not even a page is free.
#[test]
fn where_no_island_is_in_reach_it_is_said() {
    let Some(mut victim) = crowded("0") else { return };
    let before = victim.text();
    let builder = Session::builder().pid(victim.pid()).probe("victim_push").expect("a probe");
    let error = builder.count().expect_err("refused").to_string();
    println!("{error}");
    assert!(error.contains("within 128 MiB of it there is no room"), "{error}");
    assert!(victim.text() == before);
    assert_eq!(victim.call("all", 1), THREADS * FUNCTIONS.len() as u64);
}
