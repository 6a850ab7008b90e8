//! Births, program changes and semaphores while patches come and go.

mod common;

use common::{Victim, compile, request};
use trapline_patch::{Options, Semaphore, attach, status};
use trapline_plan::Action;
use trapline_record::Svma;
use trapline_tracee::Process;

const ALL: [&str; 9] = ["f0", "f1", "f2", "f3", "f4", "f5", "f6", "f7", "crossing"];

#[test]
fn children_born_during_batches_are_whole() {
    let mut victim = Victim::start(&compile("basic", &[]), &[]);
    let requests = victim.requests(&ALL, Action::CountEntry);
    let (mut children, mut rounds) = (0, 0);
    // It is chance whether a birth falls into a batch, so this goes on until one did.
    while rounds < 4 || (children == 0 && rounds < 400) {
        rounds += 1;
        victim.tell("forks");
        for _ in 0..10 {
            let (mut attached, report) =
                attach(&victim.process, &request(&[victim.module(&requests)])).expect("attached");
            children += report.children;
            assert_eq!(report.refused, []);
            attached.detach(&victim.process, &Options::default());
        }
        assert_eq!(victim.answer(), "forked");
    }
    assert!(children > 0, "no child was born during a batch");
    assert_eq!(victim.differences(), Vec::<String>::new());
    assert_eq!(victim.sums().1, 0, "every child ran right");
    victim.quit();
}

#[test]
fn another_program_ends_a_batch_cleanly() {
    let mut victim = Victim::start(&compile("basic", &[]), &[]);
    for round in 0..20 {
        let requests = victim.requests(&ALL, Action::CountEntry);
        victim.tell("exec");
        match attach(&victim.process, &request(&[victim.module(&requests)])) {
            Ok((mut attached, _)) => {
                attached.detach(&victim.process, &Options::default());
            }
            // It is gone, or between two programs: neither mapped as before nor with its threads.
            Err(error) => eprintln!("round {round}: {error}"),
        }
        assert_eq!(victim.answer(), "ready");
        victim.process = Process::open(victim.child.id()).expect("traceable");
        (victim.bias, victim.id) = common::place(&victim.process, &victim.file);
        assert_eq!(victim.differences(), Vec::<String>::new());
        assert!(status(&victim.process).expect("readable").iter().all(|s| s.in_place == 0));
    }
    victim.ask("run 1000");
    assert_eq!(victim.sums().1, 0);
    victim.quit();
}

#[test]
fn semaphores_are_raised_and_lowered() {
    let program = compile("basic", &[]);
    let out = std::process::Command::new("nm").arg(&program).output().expect("nm").stdout;
    let text = String::from_utf8_lossy(&out).into_owned();
    let line = text.lines().find(|l| l.ends_with(" semaphore")).expect("a symbol");
    let at = Svma(u64::from_str_radix(line.split(' ').next().expect("an address"), 16).expect("hex"));
    let mut victim = Victim::start(&program, &[]);
    let requests = victim.requests(&ALL, Action::CountEntry);
    let [first, .., last] = &requests[..] else { panic!("several wants") };
    let marker = |probe| Semaphore { probe, at };
    // Two USDT probes with one semaphore raise it once; one that gets no patch does not raise it.
    let other = Semaphore { probe: u32::MAX, at: at + 2 };
    let semaphores = [marker(first.probe), marker(last.probe), other];
    let mut module = victim.module(&requests);
    module.semaphores = &semaphores;
    let (mut attached, report) = attach(&victim.process, &request(&[module])).expect("attached");
    assert_eq!(report.semaphores, 1);
    assert!(victim.ask("sums").ends_with("semaphore 4"));
    let report = attached.detach(&victim.process, &Options::default());
    assert_eq!(report.restored[0].semaphores, 1);
    assert!(victim.ask("sums").ends_with("semaphore 3"));
    victim.quit();
}
