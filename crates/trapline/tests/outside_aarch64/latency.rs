//! As many calls timed as the kernel's uretprobes see return, and as the victim made.

use trapline::Finished;

use crate::command::output_text;
use crate::kernel::Uprobe;
use crate::load::come_and_go;
use crate::victim::{FUNCTIONS, THREADS, TURNS, Victim, calls_of, times_of};

const TIMES: u64 = 100;
/// Words at which the kernel's probe sees a function's calls return. At such a word the link register still
/// holds the return address, and it is none that Trapline patches during the session. For functions where
/// each such word is patched, the kernel counts after the session. There is none for `victim_signed`: the
/// kernel does not accept its first word, and after that the register is signed. There is none for the loop
/// either: its first word runs eight times.
const MEANWHILE: [(&str, u64); 5] =
    [("victim_nop", 4), ("victim_sub", 4), ("victim_branch", 8), ("victim_zero", 4), ("victim_address", 4)];
const AFTERWARDS: [(&str, u64); 5] =
    [("victim_push", 0), ("victim_ret", 0), ("victim_pad", 4), ("victim_tail", 0), ("victim_deep", 0)];

fn probes(at: &[(&'static str, u64)]) -> Result<Vec<(&'static str, Uprobe)>, String> {
    at.iter().map(|&(name, past)| Ok((name, Uprobe::of_returns(name, past)?))).collect()
}

#[test]
fn the_kernels_uretprobes_count_the_same() {
    let Some(mut victim) = Victim::start() else { return };
    let before = victim.text();
    let mut session = victim.time("victim_*");
    assert_ne!(victim.text(), before, "patched");
    let all = format!("{TURNS}all");
    let together = probes(&MEANWHILE);
    // One thread after the other, as the kernel's own counts are not atomic.
    assert_eq!(victim.call(&all, TIMES), TIMES * THREADS * FUNCTIONS.len() as u64, "wrong values");
    assert!(session.poll());
    let finished = session.detach();
    let report = finished.reports.first().expect("the victim");
    let mut counted = Vec::new();
    if let Ok(probes) = &together {
        counted.extend(probes.iter().map(|(name, probe)| (*name, probe.returns())));
    }
    let missing = together.err();
    // Only now are the kernel's own words gone.
    assert!(victim.text() == before, "put back");
    let group_by = missing.map_or_else(|| probes(&AFTERWARDS), Err);
    assert_eq!(victim.call(&all, TIMES), TIMES * THREADS * FUNCTIONS.len() as u64, "wrong values");
    match &group_by {
        Ok(probes) => counted.extend(probes.iter().map(|(name, probe)| (*name, probe.returns()))),
        Err(why) => println!("SKIP the kernel's uretprobes: {why}"),
    }
    for (name, ..) in FUNCTIONS {
        let times = times_of(report, name);
        assert_eq!(times.calls, calls_of(name) * TIMES * THREADS, "{name}");
        assert_eq!(
            (times.in_flight, times.unpaired, times.unreturned, times.clamped),
            (0, 0, 0, 0),
            "{name}"
        );
        // `victim_tail` ends by a jump, and is timed to its callee's end (RET-3).
        assert_eq!(times.tail_exits, 0, "{name}");
        assert!(times.min_ns <= times.max_ns && times.max_ns <= times.total_ns, "{name}: {times:?}");
    }
    for (name, returns) in counted {
        let ours = times_of(report, name).calls;
        println!("{name}: {ours} calls timed by us, {returns} returns by the kernel");
        assert_eq!(ours, returns, "{name}");
    }
    println!("refused: {:?}", report.refused);
    assert!(report.refused.iter().all(|refused| refused.kind != "exits-unknown"), "by its return address");
}

/// Eight nested calls are one.
#[test]
fn outermost_calls_alone_are_timed() {
    let Some(mut victim) = Victim::start() else { return };
    let builder = trapline::Session::builder().pid(victim.pid()).outermost(true);
    let session = builder.probe("victim_*").and_then(trapline::Builder::latency).expect("a session");
    assert_eq!(victim.call("all", TIMES), TIMES * THREADS * FUNCTIONS.len() as u64, "wrong values");
    let finished = session.detach();
    for (name, ..) in FUNCTIONS {
        let times = times_of(&finished.reports[0], name);
        // Others call this function, one after the other.
        let wanted = if name == "victim_deep" { 1 } else { calls_of(name) };
        println!("{name}: {} of {}", times.calls, calls_of(name) * TIMES * THREADS);
        assert_eq!(times.calls, wanted * TIMES * THREADS, "{name}");
        assert_eq!((times.unpaired, times.unreturned, times.clamped), (0, 0, 0), "{name}");
    }
}

/// A caller's time includes its callee's.
#[test]
fn outer_calls_take_longer_than_inner_ones() {
    let Some(mut victim) = Victim::start() else { return };
    let session = victim.time("victim_*");
    assert_eq!(victim.call("victim_push", TIMES), TIMES * THREADS);
    let finished = session.detach();
    let of = |name: &str| times_of(&finished.reports[0], name).total_ns;
    println!("victim_push {} ns, victim_nop {} ns in it", of("victim_push"), of("victim_nop"));
    assert!(of("victim_nop") <= of("victim_push"));
}

/// Attached and detached while two threads call.
#[test]
fn threads_that_call_meanwhile_are_not_harmed() {
    let Some(mut victim) = Victim::start() else { return };
    for name in ["victim_push", "victim_deep", "victim_tail"] {
        come_and_go(&mut victim, name, 6, |victim| victim.time(name), |done| timed(done, name));
    }
}

/// Number of calls timed; none may be timed wrongly.
pub(crate) fn timed(done: &Finished, name: &str) -> u64 {
    let times = times_of(&done.reports[0], name);
    assert_eq!((times.unreturned, times.clamped), (0, 0), "{name}");
    times.calls
}

/// `trapline lat` as a user types it: it times as many calls as the kernel's uretprobe counts.
#[test]
fn trapline_lat_times_a_process() {
    // Its entry and its return.
    let kernels = || Uprobe::of_returns("victim_nop", 4);
    let Some((text, kernels)) = output_text(&["lat"], ("victim_nop", 2), kernels) else { return };
    assert!(text.contains("\"calls\":100"), "{text}");
    match kernels {
        Ok(probe) => assert_eq!(probe.returns(), 100),
        Err(why) => println!("SKIP the kernel's uretprobes: {why}"),
    }
}
