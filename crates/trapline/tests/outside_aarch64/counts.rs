//! LOSS-1: as many hits as the kernel's own uprobes see, and as the victim made.

use crate::kernel::Uprobe;
use crate::victim::{FUNCTIONS, THREADS, TURNS, Victim, calls_of, of};

const TIMES: u64 = 200;

/// The kernel's probe is on another word of the same function, at the same time.
#[test]
fn the_kernels_uprobes_count_the_same() {
    let Some(mut victim) = Victim::start() else { return };
    let before = victim.text();
    let mut session = victim.count("victim_*");
    assert_ne!(victim.text(), before, "patched");
    let both = FUNCTIONS.iter().filter(|one| one.2 != 0);
    let kernels: Result<Vec<_>, _> =
        both.map(|one| Ok((one.0, Uprobe::new(one.0, one.2)?))).collect::<Result<_, String>>();
    // One thread after the other: the kernel's own count of a probe's hits is not atomic before 6.10.
    let right = victim.call(&format!("{TURNS}all"), TIMES);
    assert_eq!(right, TIMES * THREADS * FUNCTIONS.len() as u64, "wrong values");
    assert!(session.poll());
    let finished = session.detach();
    let report = finished.reports.first().expect("the victim");
    for (name, ..) in FUNCTIONS {
        let own = if name == "victim_loop" { 8 } else { calls_of(name) };
        assert_eq!(of(report, name), own * TIMES * THREADS, "{name}");
    }
    match kernels {
        Ok(kernels) => {
            for (name, uprobe) in kernels {
                println!("{name}: {} hits by us, {} by the kernel", of(report, name), uprobe.hits());
                assert_eq!(of(report, name), uprobe.hits(), "{name}");
            }
        }
        Err(why) => println!("SKIP the kernel's uprobes: {why}"),
    }
    assert_eq!(victim.text(), before, "put back");
    assert_eq!(victim.call("all", 1), THREADS * FUNCTIONS.len() as u64);
}

/// Each word by which a function returns.
#[test]
fn returns_are_counted_at_every_return() {
    let Some(mut victim) = Victim::start() else { return };
    let session = victim.count("uretprobe:victim_zero");
    assert_eq!(victim.call("victim_zero", TIMES), TIMES * THREADS);
    let finished = session.detach();
    assert_eq!(of(&finished.reports[0], "victim_zero"), TIMES * THREADS);
}

/// Entry and return of a function that is one word: both counters are there.
#[test]
fn one_word_may_have_two_counters() {
    let Some(mut victim) = Victim::start() else { return };
    let builder = trapline::Session::builder().pid(victim.pid());
    let builder = builder.probe("victim_ret").and_then(|b| b.probe("uretprobe:victim_ret")).expect("probes");
    let session = builder.count().expect("a session");
    assert_eq!(victim.call("victim_ret", TIMES), TIMES * THREADS);
    let finished = session.detach();
    let hits: Vec<u64> = finished.reports[0].counts.iter().map(|count| count.hits).collect();
    assert_eq!(hits, [TIMES * THREADS; 2]);
}
