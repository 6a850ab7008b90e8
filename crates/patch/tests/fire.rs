//! Attach and detach again and again under threads that run the functions all the time, signals, births.

mod common;

use common::{Victim, compile, request};
use trapline_patch::{Options, attach};
use trapline_plan::Role;

const ALL: [&str; 9] = ["f0", "f1", "f2", "f3", "f4", "f5", "f6", "f7", "crossing"];

/// Rounds: few by default, 10,000 with TRAPLINE_CYCLES=10000.
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
        let wants = victim.wants(&names, Role::CountEntry);
        let modules = [victim.module(&wants)];
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
