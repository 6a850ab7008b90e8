//! SAFE-4: attaches and detaches again and again while threads run the functions all the time, with signals
//! and births.

mod common;

use std::time::{Duration, Instant};

use common::{Victim, compile, request};
use trapline_patch::{Options, attach, toggle};
use trapline_plan::Action;

const ALL: [&str; 9] = ["f0", "f1", "f2", "f3", "f4", "f5", "f6", "f7", "crossing"];

/// Number of rounds: few by default, 10,000 with TRAPLINE_CYCLES=10000.
fn rounds(few: u32) -> u32 {
    std::env::var("TRAPLINE_CYCLES").ok().and_then(|n| n.parse().ok()).unwrap_or(few)
}

#[test]
fn attached_and_detached_under_fire() {
    let mut victim = Victim::start(&compile("basic", &[]), &[]);
    let before = victim.caught();
    let mut guards = 0;
    assert_eq!(victim.ask("hot"), "hot");
    for round in 0..rounds(40) {
        // Different functions each time, so that stubs differ.
        let names: Vec<&str> = ALL.iter().copied().skip(round as usize % 3).collect();
        let requests = victim.requests(&names, Action::CountEntry);
        let modules = [victim.module(&requests)];
        let (mut attached, report) = attach(&victim.process, &request(&modules))
            .unwrap_or_else(|e| panic!("round {round}: {e}{}", victim.fate()));
        assert_eq!(report.refused, [], "round {round}");
        guards += report.batch.guards;
        let report = attached.detach(&victim.process, &Options::default());
        assert_eq!(report.untouched.len(), 0, "round {round}: {report:#?}");
        assert!(report.restored[0].left.is_empty(), "round {round}: {report:#?}");
        guards += report.restored[0].batch.guards;
        assert_eq!(victim.differences(), Vec::<String>::new());
    }
    eprintln!("{guards} guard traps served");
    assert_eq!(victim.ask("cool"), "cool");
    assert_eq!(victim.sums().1, 0);
    assert_eq!(victim.caught(), before);
    victim.quit();
}

#[test]
fn one_attach_toggled_under_fire() {
    /// Number of toggles in each seizure.
    const EACH: u64 = 1000;
    // Every other toggle takes the sites out. By default there are 4,000 (fewer where each takes core syncs
    // in a busy process), with TRAPLINE_TOGGLES=1000000 a million.
    let asked = std::env::var("TRAPLINE_TOGGLES").ok().and_then(|n| n.parse::<u64>().ok());
    let (begun, enough) = (Instant::now(), Duration::from_secs(20));
    let mut toggles = 0;
    let mut victim = Victim::start(&compile("basic", &[]), &[]);
    let before = victim.caught();
    assert_eq!(victim.ask("hot"), "hot");
    // f7 has boundaries inside its window.
    let requests = victim.requests(&["f0", "f3", "f7"], Action::CountEntry);
    let modules = [victim.module(&requests)];
    let (mut attached, report) = attach(&victim.process, &request(&modules)).expect("attached");
    assert_eq!(report.refused, []);
    let (mut guards, mut signals) = (0, 0);
    while toggles < asked.unwrap_or(4000) && (asked.is_some() || toggles == 0 || begun.elapsed() < enough) {
        let (undone, report) = toggle(&attached, &victim.process, EACH / 2)
            .unwrap_or_else(|e| panic!("after {toggles}: {e}{}", victim.fate()));
        assert_eq!(undone, 0, "after {toggles}");
        toggles += EACH;
        (guards, signals) = (guards + report.guards, signals + report.signals);
    }
    let report = attached.detach(&victim.process, &Options::default());
    assert!(report.restored[0].left.is_empty(), "{report:#?}");
    assert_eq!(victim.differences(), Vec::<String>::new());
    assert_eq!(victim.ask("cool"), "cool");
    let (calls, wrong) = victim.sums();
    assert_eq!(wrong, 0);
    eprintln!(
        "{toggles} toggles of 3 sites, {guards} guard traps and {signals} signals served, calls {calls:?}"
    );
    assert_eq!(victim.caught(), before);
    victim.quit();
}
