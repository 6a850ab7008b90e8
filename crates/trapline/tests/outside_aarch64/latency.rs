//! As many calls timed as the kernel's uretprobes see return, and as the victim made.

use std::process::Command;

use crate::command::{VARIABLE, patched};
use crate::kernel::Uprobe;
use crate::victim::{ENDLESS, FUNCTIONS, THREADS, TURNS, Victim, calls_of, times_of};

const TIMES: u64 = 100;
/// Where the kernel's probe stands that sees a function's calls return: at a word before which the link register still says where to, and which is none of ours while
/// we are there. Where each such word is ours, it counts when we are gone. None for `victim_signed`, whose first word the kernel does not take and behind which
/// that register is signed, and for the loop, whose first word runs eight times.
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
    // One after the other, as the kernel's own counts are no atomic ones.
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
    let apart = missing.map_or_else(|| probes(&AFTERWARDS), Err);
    assert_eq!(victim.call(&all, TIMES), TIMES * THREADS * FUNCTIONS.len() as u64, "wrong values");
    match &apart {
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
        assert_eq!(times.tail_exits, if name == "victim_tail" { times.calls } else { 0 }, "{name}");
        assert!(times.min_ns <= times.max_ns && times.max_ns <= times.total_ns, "{name}: {times:?}");
    }
    for (name, returns) in counted {
        let ours = times_of(report, name).calls;
        println!("{name}: {ours} calls timed by us, {returns} returns by the kernel");
        assert_eq!(ours, returns, "{name}");
    }
    let refused: Vec<&str> = report.refused.iter().map(|refused| refused.kind).collect();
    println!("refused: {:?}", report.refused);
    assert!(refused.contains(&"exits-unknown"), "{refused:?}");
}

/// Eight calls in one another are one.
#[test]
fn outermost_calls_alone_are_timed() {
    let Some(mut victim) = Victim::start() else { return };
    let builder = trapline::Session::builder().pid(victim.pid()).outermost(true);
    let session = builder.probe("victim_*").and_then(trapline::Builder::latency).expect("a session");
    assert_eq!(victim.call("all", TIMES), TIMES * THREADS * FUNCTIONS.len() as u64, "wrong values");
    let finished = session.detach();
    for (name, ..) in FUNCTIONS {
        let times = times_of(&finished.reports[0], name);
        // Others call this one, one after the other.
        let wanted = if name == "victim_deep" { 1 } else { calls_of(name) };
        println!("{name}: {} of {}", times.calls, calls_of(name) * TIMES * THREADS);
        assert_eq!(times.calls, wanted * TIMES * THREADS, "{name}");
        assert_eq!((times.unpaired, times.unreturned, times.clamped), (0, 0, 0), "{name}");
    }
}

/// A caller's time holds its callee's.
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

/// Attached and detached while two threads call: each value is right, and the text is the file's in the end.
#[test]
fn threads_that_call_meanwhile_are_not_harmed() {
    let Some(mut victim) = Victim::start() else { return };
    let before = victim.text();
    for name in ["victim_push", "victim_deep", "victim_tail"] {
        victim.begin(name, ENDLESS);
        let mut seen = 0;
        for _ in 0..6 {
            let session = victim.time(name);
            std::thread::sleep(std::time::Duration::from_millis(20));
            let finished = session.detach();
            assert!(finished.reports.iter().all(|report| report.refused.is_empty()));
            let times = times_of(&finished.reports[0], name);
            assert_eq!((times.unreturned, times.clamped), (0, 0), "{name}");
            seen += times.calls;
        }
        // Any line ends it; then it tells how many values were wrong.
        victim.begin(name, ENDLESS);
        assert_eq!(victim.end(), 0, "{name}: wrong values");
        println!(
            "{name}: {seen} calls timed in 6 sessions, with {THREADS} threads that call it all the time"
        );
        assert!(seen > 0, "{name}");
        assert_eq!(victim.text(), before, "{name}");
    }
}

/// The command itself.
#[test]
fn trapline_lat_times_a_process() {
    let Some(mut victim) = Victim::start() else { return };
    let Some(command) = std::env::var_os(VARIABLE) else {
        println!("SKIP {VARIABLE} does not say where the command is");
        return;
    };
    let (pid, before) = (victim.pid().to_string(), victim.text());
    let mut child = Command::new(command)
        .args(["lat", "-p", &pid, "--json", "victim_nop"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    // Its entry and its return.
    while patched(&before, &victim.text()) < 2 && child.try_wait().expect("ours").is_none() {
        std::thread::yield_now();
    }
    let kernels = Uprobe::of_returns("victim_nop", 4);
    assert_eq!(victim.call(&format!("{TURNS}victim_nop"), 50), 50 * THREADS);
    // SAFETY: a child of ours, not waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let output = child.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{text}");
    assert!(output.status.success(), "{text}");
    assert!(text.contains("\"calls\":100"), "{text}");
    match kernels {
        Ok(probe) => assert_eq!(probe.returns(), 100),
        Err(why) => println!("SKIP the kernel's uretprobes: {why}"),
    }
}
