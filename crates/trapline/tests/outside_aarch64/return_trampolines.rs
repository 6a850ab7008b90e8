//! SAFE-4, LOSS-1: return addresses replaced from outside (`--ret=stack`): each call returns to its caller
//! and is timed once, in all circumstances.

use trapline::{ProcessReport, Returns, Session};
use trapline_record::trampolines::{CODE, RETURN};

use crate::command::{output_text, patched};
use crate::latency::timed;
use crate::load::come_and_go;
use crate::unwound::{THROWS, UNWOUND, WAITS};
use crate::victim::{ENDLESS, FUNCTIONS, THREADS, Victim, calls_of, times_of};

const TIMES: u64 = 100;
/// Its first word runs eight times, so each turn would take a return trampoline.
const LOOP: &str = "victim_loop";

fn session(victim: &Victim, probe: &str) -> Session {
    let builder = Session::builder().pid(victim.pid()).returns(Returns::Stack);
    builder.probe(probe).and_then(trapline::Builder::latency).expect("a session")
}

fn kinds(report: &ProcessReport) -> Vec<&'static str> {
    report.refused.iter().map(|refused| refused.kind).collect()
}

#[test]
fn every_call_returns_to_its_caller_and_is_timed_once() {
    let Some(mut victim) = Victim::start() else { return };
    let before = victim.text();
    let session = session(&victim, "victim_*");
    // Only one word of each function.
    let words = patched(&before, &victim.text());
    let all = THREADS * FUNCTIONS.len() as u64;
    assert_eq!(victim.call("all", TIMES), TIMES * all, "wrong values");
    let finished = session.detach();
    let report = &finished.reports[0];
    println!("{words} words, refused {:?}, notices {:?}", report.refused, finished.summary.notices);
    assert!(victim.text() == before, "put back");
    assert_eq!(victim.call("all", TIMES), TIMES * all, "wrong values");
    for (name, ..) in FUNCTIONS.into_iter().filter(|one| one.0 != LOOP) {
        let times = times_of(report, name);
        assert_eq!(times.calls, calls_of(name) * TIMES * THREADS, "{name}");
        let others = (times.in_flight, times.unpaired, times.unreturned, times.clamped, times.tail_exits);
        assert_eq!(others, (0, 0, 0, 0, 0), "{name}");
        assert!(times.min_ns <= times.max_ns && times.max_ns <= times.total_ns, "{name}: {times:?}");
    }
    assert!(kinds(report).contains(&"no-slot"), "{:?}", report.refused);
    assert!(words >= FUNCTIONS.len() - 1);
}

/// A caller that signs its return address, and the functions that it calls.
#[test]
fn calls_with_signed_return_addresses_return_to_their_callers() {
    let Some(mut victim) = Victim::start() else { return };
    for probe in ["victim_outer", "victim_inner"] {
        let session = session(&victim, probe);
        assert_eq!(victim.call("victim_outer", TIMES), TIMES * THREADS);
        assert_eq!(times_of(&session.detach().reports[0], probe).calls, TIMES * THREADS);
    }
}

/// Attached and detached while two threads are in the calls: each returns, by the real address or through its
/// trampoline.
#[test]
fn calls_in_flight_return_to_their_callers_when_the_session_ends() {
    let Some(mut victim) = Victim::start() else { return };
    for name in ["victim_push", "victim_deep", "victim_tail", "victim_signed", "victim_nop"] {
        come_and_go(&mut victim, name, 6, |victim| session(victim, name), |done| timed(done, name));
    }
}

/// Two threads are in a call that waits. It returns, by `ret` or an exception, before the session ends or
/// after that. If it is signed, it returns through its trampoline.
#[test]
fn a_call_that_waits_returns_to_its_caller_before_a_detach_and_after() {
    for (name, _) in WAITS {
        for (throws, first) in [(false, false), (true, false), (false, true), (true, true)] {
            let Some(mut victim) = Victim::start() else { return };
            let before = victim.text();
            let session = session(&victim, name);
            victim.begin(&format!("{}{name}", if throws { THROWS } else { "" }), ENDLESS);
            while armed_words(victim.pid()) < THREADS {
                std::thread::yield_now();
            }
            let go = |victim: &mut Victim| {
                victim.begin("", ENDLESS);
                assert_eq!(victim.end(), 0, "{name}, {throws}, {first}: wrong values");
            };
            if first {
                go(&mut victim);
            }
            let finished = session.detach();
            let times = times_of(&finished.reports[0], name);
            let found = (times.calls, times.in_flight + times.unreturned);
            let returned = if first && !throws { THREADS } else { 0 };
            assert_eq!(found, (returned, THREADS - returned), "{name}, {throws}, {first}");
            assert!(victim.text() == before && finished.summary.notices.is_empty());
            if !first {
                let left = if name == "waits_plain" { 0 } else { THREADS };
                assert_eq!(armed_words(victim.pid()), left, "{name}, {throws}");
                go(&mut victim);
            }
        }
    }
}

/// Words of a process' private memory that point to second words of trampolines, signed (above 48 bits, on
/// that kernel) or not. Unwinders remember the start of their information, which is none of them.
fn armed_words(pid: u32) -> u64 {
    use std::os::unix::fs::FileExt as _;
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("alive");
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).expect("readable");
    let ranges = |is: fn(&str) -> bool| {
        let range = |line: &str| {
            let (start, end) = line.split_once(' ')?.0.split_once('-')?;
            Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
        };
        maps.lines().filter(|line| is(line)).filter_map(range).collect::<Vec<_>>()
    };
    let ours = ranges(|line| line.contains(" r-x") && line.contains("/memfd:trapline"));
    let mut armed = 0;
    for (start, end) in ranges(|line| line.contains(" rw-p ")) {
        let mut bytes = vec![0; (end - start) as usize];
        if memory.read_exact_at(&mut bytes, start).is_ok() {
            let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word) << 16 >> 16);
            let is_trampoline = |word: &u64| {
                word % CODE == RETURN && ours.iter().any(|(from, to)| (from..to).contains(&word))
            };
            armed += words.filter(is_trampoline).count();
        }
    }
    armed as u64
}

/// The program's own unwinder is set up for return trampolines: exceptions go through armed calls, and find
/// their handler. Calls that they leave are not calls that returned.
#[test]
fn exceptions_go_through_armed_calls() {
    let Some(mut victim) = Victim::start() else { return };
    let session = session(&victim, "unwound_*");
    assert_eq!(victim.call(UNWOUND, TIMES), TIMES * THREADS, "wrong values");
    let finished = session.detach();
    let report = &finished.reports[0];
    println!("refused {:?}, notices {:?}", report.refused, finished.summary.notices);
    assert!(
        report.refused.is_empty()
            && !finished.summary.notices.iter().any(|notice| notice.contains("unwinder"))
    );
    // Each second call throws, through both others.
    for (name, returns) in
        [("unwound_catches", TIMES), ("unwound_through", TIMES / 2), ("unwound_throws", TIMES / 2)]
    {
        let times = times_of(report, name);
        let left = times.in_flight + times.unreturned;
        assert_eq!((times.calls, left), (returns * THREADS, (TIMES - returns) * THREADS), "{name}");
    }
    assert_eq!(victim.call(UNWOUND, TIMES), TIMES * THREADS, "wrong values");
}

/// Exceptions leave more calls than there are return trampolines. Some trampolines are reused, as often as
/// all threads may be stopped for that; calls that find none are counted.
#[test]
fn trampolines_of_calls_that_were_left_are_had_again() {
    let Some(mut victim) = Victim::start() else { return };
    let builder = Session::builder().pid(victim.pid()).returns(Returns::Stack).maxactive(Some(64));
    let mut session =
        builder.probe("unwound_throws").and_then(trapline::Builder::latency).expect("a session");
    let mut calls = 0;
    for _ in 0..40 {
        assert_eq!(victim.call(UNWOUND, 20), 20 * THREADS, "wrong values");
        calls += 20 * THREADS;
        assert!(session.poll());
    }
    let finished = session.detach();
    let times = times_of(&finished.reports[0], "unwound_throws");
    let found = (times.calls, times.in_flight, times.unreturned, finished.summary.missed);
    println!("{calls} calls: {found:?}");
    assert!(times.unreturned > 0, "none was reused: {found:?}");
    assert!(times.calls <= calls / 2);
    assert_eq!(found.0 + found.1 + found.2 + found.3, calls, "{found:?}");
}

/// A function with a jump through a register (so its exits cannot be known) is timed by its return address by
/// default.
#[test]
fn where_exits_are_not_known_return_addresses_are_replaced() {
    let Some(mut victim) = Victim::start() else { return };
    let session = victim.time("victim_jumps");
    assert_eq!(victim.call("victim_jumps", TIMES), TIMES * THREADS);
    let finished = session.detach();
    assert_eq!(times_of(&finished.reports[0], "victim_jumps").calls, TIMES * THREADS);
}

/// `trapline lat --ret=stack` as a user types it.
#[test]
fn trapline_lat_replaces_return_addresses() {
    let Some((text, ())) = output_text(&["lat", "--ret=stack"], ("victim_push", 1), || ()) else { return };
    assert!(text.contains("\"calls\":100"), "{text}");
}
