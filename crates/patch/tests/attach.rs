//! A live process: patched, counted, and as it was.

mod common;

use common::{Victim, compile, request};
use trapline_patch::{Options, attach};
use trapline_plan::Role;

const ALL: [&str; 9] = ["f0", "f1", "f2", "f3", "f4", "f5", "f6", "f7", "crossing"];

#[test]
fn counts_are_the_victims_own() {
    let mut victim = Victim::start(&compile("basic", &[]), &[]);
    let before = victim.caught();
    victim.ask("run 1000");
    let (start, _) = victim.sums();
    let wants = victim.wants(&ALL, Role::CountEntry);
    let modules = [victim.module(&wants)];
    let (mut attached, report) = attach(&victim.process, &request(&modules)).expect("attached");
    drop(modules);
    eprintln!("{:#?} {:#?}", report.timings, report.batch);
    assert_eq!(report.refused, []);
    assert_eq!(report.placed.len(), ALL.len());
    assert!(victim.differences().len() >= ALL.len() * 4);
    victim.ask("run 100000");
    let (end, wrong) = victim.sums();
    assert_eq!(wrong, 0);
    let segment = &attached.segments()[0];
    let counts: Vec<u64> = (0..9).map(|n| segment.counters().read(segment.view(), n)).collect();
    let own: Vec<u64> = end.iter().zip(&start).map(|(e, s)| e - s).collect();
    assert_eq!(counts, own);
    assert_eq!(own[0], 800_000);
    let report = attached.detach(&victim.process, &Options::default());
    eprintln!("{report:#?}");
    assert_eq!(report.untouched.len(), 0);
    assert_eq!(report.restored[0].left, []);
    assert_eq!(report.restored[0].sites, 9);
    assert_eq!(victim.differences(), Vec::<String>::new());
    assert_eq!(victim.caught(), before);
    victim.ask("run 1000");
    assert_eq!(victim.sums().1, 0);
    victim.quit();
}
