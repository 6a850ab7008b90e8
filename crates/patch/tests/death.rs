//! The tracer is killed at random moments; what it left is found and undone from the process alone (SAFE-3).

mod common;

use std::process::{Command, Stdio};
use std::time::Duration;

use common::{FileOnDisk, Victim, compile, place, request, want};
use trapline_patch::{Options, PatchError, attach, recover, status};
use trapline_plan::Role;
use trapline_target::Process;

const ALL: [&str; 9] = ["f0", "f1", "f2", "f3", "f4", "f5", "f6", "f7", "crossing"];

/// Not a test of its own: the tracer that is killed. It runs in a process of its own, which `tracer_killed_anywhere`
/// starts with the victim's pid.
#[test]
fn doomed_tracer() {
    let Ok(pid) = std::env::var("TRAPLINE_DOOMED") else { return };
    let process = Process::open(pid.parse().expect("a pid")).expect("traceable");
    let file = FileOnDisk::new(&compile("basic", &[]));
    let (bias, id) = place(&process, &file);
    let wants: Vec<_> =
        ALL.iter().enumerate().map(|(n, name)| want(&file, n as u32, name, Role::CountEntry)).collect();
    println!("doomed");
    loop {
        let (mut attached, _) =
            attach(&process, &request(&[common::module(&file, bias, id, &wants)])).expect("attached");
        attached.detach(&process, &Options::default());
    }
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
        let mut tracer = Command::new(std::env::current_exe().expect("our own path"))
            .args(["--exact", "doomed_tracer", "--nocapture"])
            .env("TRAPLINE_DOOMED", victim.process.pid().to_string())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let mut out = std::io::BufReader::new(tracer.stdout.take().expect("piped"));
        let mut line = String::new();
        while !line.contains("doomed\n") {
            line.clear();
            assert_ne!(
                std::io::BufRead::read_line(&mut out, &mut line).expect("readable"),
                0,
                "round {round}"
            );
        }
        // A moment without a pattern: multiples of the golden ratio.
        std::thread::sleep(Duration::from_micros(round * 61_803 % 200_000));
        tracer.kill().expect("ours");
        tracer.wait().expect("ours");
        let free = Options { free: true, ..Options::default() };
        let report =
            recover(&victim.process, &free).unwrap_or_else(|e| panic!("round {round}: {e}{}", victim.fate()));
        left += report.restored.len();
        assert!(report.restored.iter().all(|r| r.left.is_empty()), "round {round}: {report:#?}");
        assert_eq!(victim.differences(), Vec::<String>::new(), "round {round}");
        assert_eq!(victim.caught(), before, "round {round}");
    }
    assert!(left > 0, "no tracer died with patches in place");
    victim.ask("cool");
    assert_eq!(victim.sums().1, 0);
    victim.quit();
}

#[test]
fn a_living_tracer_is_not_disturbed() {
    let victim = Victim::start(&compile("basic", &[]), &[]);
    let wants = victim.wants(&ALL, Role::CountEntry);
    let (mut attached, _) = attach(&victim.process, &request(&[victim.module(&wants)])).expect("attached");
    let found = status(&victim.process).expect("readable");
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].sites, found[0].in_place), (9, 9));
    assert_eq!(found[0].tracer, std::process::id());
    assert!(matches!(recover(&victim.process, &Options::default()), Err(PatchError::InUse { .. })));
    let again = attach(&victim.process, &request(&[victim.module(&wants)]));
    assert!(matches!(again, Err(PatchError::InUse { .. })));
    let freed = attached.detach(&victim.process, &Options { free: true, ..Options::default() });
    assert_eq!(freed.restored[0].stays_mapped, 0, "{freed:#?}");
    assert_eq!(status(&victim.process).expect("readable"), []);
    victim.quit();
}
