//! The tracer is killed at random moments; what it left is found and undone from the process alone (SAFE-3).

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{FileOnDisk, Victim, action_request, compile, place, request};
use trapline_patch::{Options, PatchError, attach, recover, status};
use trapline_plan::Action;
use trapline_tracee::Process;

const ALL: [&str; 9] = ["f0", "f1", "f2", "f3", "f4", "f5", "f6", "f7", "crossing"];

/// Not a test of its own: the tracer that is killed. It runs in a process of its own, which `tracer_killed_anywhere`
/// starts with the victim's pid.
#[test]
fn doomed_tracer() {
    let Ok(pid) = std::env::var("TRAPLINE_DOOMED") else { return };
    let process = Process::open(pid.parse().expect("a pid")).expect("traceable");
    let file = FileOnDisk::new(&compile("basic", &[]));
    let (bias, id) = place(&process, &file);
    let requests: Vec<_> = ALL
        .iter()
        .enumerate()
        .map(|(n, name)| action_request(&file, n as u32, name, Action::CountEntry))
        .collect();
    println!("doomed");
    loop {
        let (mut attached, _) =
            attach(&process, &request(&[common::module(&file, bias, id, &requests)])).expect("attached");
        attached.detach(&process, &Options::default());
    }
}

/// Starts the doomed tracer on a victim and waits until it is at work.
fn start_tracer(victim: &Victim, fault: Option<&str>) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("our own path"));
    command.args(["--exact", "doomed_tracer", "--nocapture"]);
    command.env("TRAPLINE_DOOMED", victim.process.pid().to_string()).stdout(Stdio::piped());
    if let Some(fault) = fault {
        command.env("TRAPLINE_FAULT", fault);
    }
    let mut tracer = command.spawn().expect("started");
    let mut out = BufReader::new(tracer.stdout.take().expect("piped"));
    let mut line = String::new();
    while !line.contains("doomed\n") {
        line.clear();
        assert_ne!(out.read_line(&mut line).expect("readable"), 0, "no tracer");
    }
    tracer
}

/// After a tracer's death: the target lives, and a later tracer makes it what it was. Returns how many processes had
/// something to be undone.
fn undone(victim: &Victim, before: (u64, u64), what: &str) -> usize {
    let free = Options { free: true, ..Options::default() };
    let report = recover(&victim.process, &free).unwrap_or_else(|e| panic!("{what}: {e}{}", victim.fate()));
    assert!(report.restored.iter().all(|r| r.left.is_empty()), "{what}: {report:#?}");
    assert_eq!(victim.differences(), Vec::<String>::new(), "{what}");
    assert_eq!(victim.caught(), before, "{what}");
    report.restored.len()
}

fn rounds(few: u64) -> u64 {
    std::env::var("TRAPLINE_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(few)
}

#[test]
fn tracer_killed_anywhere() {
    let mut victim = Victim::start(&compile("basic", &[]), &[]);
    let before = victim.caught();
    victim.ask("hot");
    let mut left = 0;
    for round in 0..rounds(15) {
        let mut tracer = start_tracer(&victim, None);
        // A moment without a pattern: multiples of the golden ratio.
        std::thread::sleep(Duration::from_micros(round * 61_803 % 600_000));
        tracer.kill().expect("ours");
        tracer.wait().expect("ours");
        left += undone(&victim, before, &format!("round {round}"));
    }
    assert!(left > 0, "no tracer died with patches in place");
    victim.ask("cool");
    assert_eq!(victim.sums().1, 0);
    victim.quit();
}

/// A tracer that was killed stays in /proc until its parent reaps it, which may take for ever. It is dead all the same.
#[test]
fn a_tracer_that_no_parent_has_reaped_is_dead() {
    let victim = Victim::start(&compile("basic", &[]), &[]);
    let before = victim.caught();
    // It dies when it has published some sites.
    let mut tracer = start_tracer(&victim, Some("after:40"));
    let proc = format!("/proc/{}", tracer.id());
    let is_over = || {
        let stat = std::fs::read_to_string(format!("{proc}/stat")).expect("not reaped");
        // The main thread is shown as ended before the others are.
        stat.contains(") Z ") && std::fs::read_dir(format!("{proc}/task")).expect("not reaped").count() == 1
    };
    while !is_over() {
        std::thread::yield_now();
    }
    let found = status(&victim.process).expect("readable");
    assert_eq!((found.len(), found[0].tracer), (1, tracer.id()), "{found:#?}");
    assert_eq!(found[0].tracer_comm, None, "it runs no more");
    assert_eq!(undone(&victim, before, "a zombie"), 1);
    tracer.wait().expect("ours");
    victim.quit();
}

/// Fault points by number: once before and once after each of the first requests that reach the target. All of an
/// attach and a detach with TRAPLINE_FAULTS=300.
#[test]
fn tracer_killed_at_each_request() {
    let most = std::env::var("TRAPLINE_FAULTS").ok().and_then(|n| n.parse().ok()).unwrap_or(12);
    let mut victim = Victim::start(&compile("basic", &[]), &[]);
    let before = victim.caught();
    victim.ask("hot");
    for number in 1..=most {
        // By default the points are spread over a whole attach and detach.
        let point = if most < 100 { number * 17 } else { number };
        for side in ["before", "after"] {
            let fault = format!("{side}:{point}");
            let mut tracer = start_tracer(&victim, Some(&fault));
            tracer.wait().expect("ours");
            undone(&victim, before, &fault);
        }
    }
    victim.ask("cool");
    assert_eq!(victim.sums().1, 0);
    victim.quit();
}

#[test]
fn a_living_tracer_is_not_disturbed() {
    let victim = Victim::start(&compile("basic", &[]), &[]);
    let requests = victim.requests(&ALL, Action::CountEntry);
    let (mut attached, _) = attach(&victim.process, &request(&[victim.module(&requests)])).expect("attached");
    let found = status(&victim.process).expect("readable");
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].sites, found[0].in_place), (9, 9));
    assert_eq!(found[0].tracer, std::process::id());
    assert!(matches!(recover(&victim.process, &Options::default()), Err(PatchError::InUse { .. })));
    let again = attach(&victim.process, &request(&[victim.module(&requests)]));
    assert!(matches!(again, Err(PatchError::InUse { .. })));
    let freed = attached.detach(&victim.process, &Options { free: true, ..Options::default() });
    assert_eq!(freed.restored[0].stays_mapped, 0, "{freed:#?}");
    assert_eq!(status(&victim.process).expect("readable"), []);
    victim.quit();
}
