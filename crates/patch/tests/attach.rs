//! SAFE-4: a live process is patched, counted, and restored.

mod common;

use common::{Victim, compile, request};
use trapline_patch::{Attached, Options, attach};
use trapline_plan::Action;

const ALL: [&str; 9] = ["f0", "f1", "f2", "f3", "f4", "f5", "f6", "f7", "crossing"];

fn counts(attached: &Attached, segment: usize, n: u32) -> Vec<u64> {
    let segment = &attached.segments()[segment];
    (0..n).map(|probe| segment.counters().read(segment.view(), probe)).collect()
}

fn detach(victim: &Victim, attached: &mut Attached) {
    let report = attached.detach(&victim.process, &Options::default());
    assert_eq!(report.untouched.len(), 0, "{report:#?}");
    assert!(report.restored.iter().all(|r| r.left.is_empty()), "{report:#?}");
    assert_eq!(victim.differences(), Vec::<String>::new());
}

#[test]
fn counts_are_the_victims_own() {
    let mut victim = Victim::start(&compile("basic", &[]), &[]);
    let before = victim.caught();
    victim.ask("run 1000");
    let (start, _) = victim.sums();
    let requests = victim.requests(&ALL, Action::CountEntry);
    let (mut attached, report) =
        attach(&victim.process, &request(&[victim.module(&requests)])).expect("attached");
    assert_eq!(report.refused, []);
    assert_eq!(report.placed.len(), ALL.len());
    assert!(!report.stopped_all);
    assert_eq!(report.batch.interrupted_syscalls, 0);
    assert!(victim.differences().len() >= ALL.len() * 4);
    victim.ask("run 100000");
    let (end, wrong) = victim.sums();
    assert_eq!(wrong, 0);
    let own: Vec<u64> = end.iter().zip(&start).map(|(e, s)| e - s).collect();
    assert_eq!(counts(&attached, 0, 9), own);
    assert_eq!(own[0], 800_000);
    assert_ne!(victim.caught(), before, "SIGTRAP is ours");
    detach(&victim, &mut attached);
    assert_eq!(victim.caught(), before);
    victim.ask("run 1000");
    assert_eq!(victim.sums().1, 0);
    assert_eq!(counts(&attached, 0, 9), own, "nothing counts after detach, and counts can still be read");
    victim.quit();
}

#[test]
fn returns_and_durations() {
    let mut victim = Victim::start(&compile("basic", &[]), &[]);
    let exits = victim.requests(&ALL, Action::CountExits);
    let (mut attached, report) =
        attach(&victim.process, &request(&[victim.module(&exits)])).expect("attached");
    assert_eq!(report.refused, []);
    victim.ask("run 10000");
    assert_eq!(counts(&attached, 0, 9), [80_000; 9]);
    detach(&victim, &mut attached);

    let timed = victim.requests(&ALL, Action::Latency);
    let (mut attached, report) =
        attach(&victim.process, &request(&[victim.module(&timed)])).expect("attached");
    assert_eq!(report.refused, []);
    victim.ask("run 10000");
    let segment = &attached.segments()[0];
    for function in 0..9 {
        let returns = (0..u64::from(segment.counters().lines)).map(|line| {
            segment.view().get(segment.layout().latency(function) + line * trapline_record::latency::STRIDE)
        });
        assert_eq!(returns.sum::<u64>(), 80_000, "function {function}");
    }
    detach(&victim, &mut attached);
    assert_eq!(victim.sums().1, 0);
    victim.quit();
}

#[test]
fn a_second_batch_counts_beside_the_first() {
    let mut victim = Victim::start(&compile("basic", &[]), &[]);
    let first = victim.requests(&ALL[..4], Action::CountEntry);
    let second = victim.requests(&ALL[4..], Action::CountEntry);
    let (mut attached, _) = attach(&victim.process, &request(&[victim.module(&first)])).expect("attached");
    let report = attached.add(&victim.process, &request(&[victim.module(&second)])).expect("attached");
    assert_eq!(report.refused, []);
    victim.ask("run 1000");
    assert_eq!(counts(&attached, 0, 4), [8000; 4]);
    assert_eq!(counts(&attached, 1, 5), [8000; 5]);
    detach(&victim, &mut attached);
    victim.quit();
}

#[test]
fn bytes_that_differ_from_the_file_are_refused() {
    let victim = Victim::start(&compile("basic", &[]), &[]);
    let requests = victim.requests(&ALL, Action::CountEntry);
    // Its window begins behind its first instruction, a push of one byte.
    let f7 = requests[7].function.expect("found");
    let at = victim.bias.live(victim.file.image.function(f7).start + 1);
    let mut byte = [0];
    victim.process.read(at, &mut byte).expect("readable");
    victim.process.write_text(at, &[0xcc]).expect("writable");
    let (mut attached, report) =
        attach(&victim.process, &request(&[victim.module(&requests)])).expect("attached");
    assert_eq!(report.refused.len(), 1);
    let text = report.refused[0].why.to_string();
    assert!(text.contains("bytes differ from the file") && text.contains("breakpoint"), "{text}");
    let mut still = [0];
    victim.process.read(at, &mut still).expect("readable");
    assert_eq!(still, [0xcc], "left alone");
    victim.process.write_text(at, &byte).expect("writable");
    detach(&victim, &mut attached);
    victim.quit();
}

#[test]
fn a_program_with_its_own_trap_handler_keeps_it() {
    let mut victim = Victim::start(&compile("basic", &[]), &["own-trap"]);
    let before = victim.caught();
    let requests = victim.requests(&ALL, Action::CountEntry);
    let (mut attached, report) =
        attach(&victim.process, &request(&[victim.module(&requests)])).expect("attached");
    assert!(report.stopped_all, "its own traps leave no room for ours while code changes");
    assert_eq!(victim.ask("trap"), "trapped");
    assert!(victim.ask("sums").contains("traps 2"));
    victim.ask("run 1000");
    assert_eq!(counts(&attached, 0, 9), [8000; 9]);
    detach(&victim, &mut attached);
    assert_eq!(victim.caught(), before);
    assert_eq!(victim.ask("trap"), "trapped");
    assert!(victim.ask("sums").contains("traps 4"));
    victim.quit();
}

#[test]
fn where_a_thread_blocks_the_trap_all_are_stopped() {
    let mut victim = Victim::start(&compile("basic", &[]), &["blocked"]);
    let before = victim.caught();
    let requests = victim.requests(&ALL, Action::CountEntry);
    for _ in 0..50 {
        let (mut attached, report) =
            attach(&victim.process, &request(&[victim.module(&requests)])).expect("attached");
        assert!(report.stopped_all && report.no_traps.is_some());
        assert_eq!(victim.caught(), before, "no handler where it could not run");
        victim.ask("run 100");
        for placed in report.placed.iter().filter(|p| p.probe != 7) {
            assert_eq!(counts(&attached, 0, 9)[placed.probe as usize], 800);
        }
        // The planner looks for windows without an interior boundary. The others are refused by name, since
        // traps cannot be served.
        for refused in &report.refused {
            let why = refused.why.to_string();
            assert!(
                why.contains("crosses a cache line") || why.contains("was interrupted right there"),
                "{why}"
            );
        }
        assert!(report.placed.len() >= 7, "{:?}", report.refused);
        detach(&victim, &mut attached);
    }
    assert_eq!(victim.caught(), before);
    assert_eq!(victim.sums().1, 0);
    victim.quit();
}

#[test]
fn strict_stops_all_and_counts_the_same() {
    let mut victim = Victim::start(&compile("basic", &[]), &[]);
    let requests = victim.requests(&ALL, Action::CountEntry);
    let modules = [victim.module(&requests)];
    let mut strict = request(&modules);
    strict.options.strict = true;
    let (mut attached, report) = attach(&victim.process, &strict).expect("attached");
    assert!(report.stopped_all && report.no_traps.is_none());
    assert_eq!(report.placed.len(), 9);
    victim.ask("run 1000");
    assert_eq!(counts(&attached, 0, 9), [8000; 9]);
    let report = attached.detach(&victim.process, &Options { strict: true, ..Options::default() });
    assert_eq!(report.restored[0].sites, 9);
    assert_eq!(victim.differences(), Vec::<String>::new());
    victim.quit();
}

#[test]
fn children_count_into_the_same_table_and_are_cleaned_up_too() {
    let mut victim = Victim::start(&compile("basic", &[]), &[]);
    let requests = victim.requests(&ALL, Action::CountEntry);
    let (mut attached, _) = attach(&victim.process, &request(&[victim.module(&requests)])).expect("attached");
    assert_eq!(victim.ask("forks"), "forked");
    assert_eq!(counts(&attached, 0, 9), [400_000; 9]);
    let child: u32 = victim.ask("fork").parse().expect("a pid");
    let process = trapline_tracee::Process::open(child).expect("alive");
    while counts(&attached, 0, 9)[8] < 401_000 {
        std::thread::yield_now();
    }
    let report = attached.detach(&victim.process, &Options::default());
    assert_eq!(report.restored.len(), 2, "{report:#?}");
    assert_eq!(report.restored[1].pid, child);
    assert_eq!(report.restored[1].sites, 9);
    assert_eq!(report.restored[1].actions, 1);
    assert_eq!(common::differences(&process, &victim.file, victim.bias), Vec::<String>::new());
    assert_eq!(victim.differences(), Vec::<String>::new());
    // The child is ours to end.
    drop(std::process::Command::new("kill").args(["-9", &child.to_string()]).status());
    victim.quit();
}

#[test]
fn a_target_that_ends_leaves_its_counts() {
    let mut victim = Victim::start(&compile("basic", &[]), &[]);
    let requests = victim.requests(&ALL, Action::CountEntry);
    let (mut attached, _) = attach(&victim.process, &request(&[victim.module(&requests)])).expect("attached");
    victim.ask("run 1000");
    victim.child.kill().expect("ours");
    victim.child.wait().expect("ours");
    let report = attached.detach(&victim.process, &Options::default());
    assert!(report.gone, "{report:#?}");
    assert_eq!(counts(&attached, 0, 9), [8000; 9]);
}
