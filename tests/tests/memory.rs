//! SAFE-7: we do not make a target with a memory limit reach that limit. If a target is killed, the report
//! says how it ended.

use std::process::{Command, Output, Stdio};

use trapline_tests::groups::Group;
use trapline_tests::running::Running;
use trapline_tests::tracing::{Tracing, binary, errors};
use trapline_tests::{or_skip, victims};

const MIB: u64 = 1 << 20;
const PROBE: &str = "work(u64 x, str s)";

/// Runs trapline to its end, as a member of a group if one is given.
fn trapline(group: Option<&Group>, verb: &str, pid: u32, more: &[&str]) -> Output {
    let mut command = match group {
        Some(group) => {
            let mut shell = Command::new("sh");
            shell.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(group.members()).arg(binary());
            shell
        }
        None => Command::new(binary()),
    };
    command.args([verb, "-d", "1", "-p", &pid.to_string()]).args(more);
    command.stdin(Stdio::null()).output().expect("trapline starts")
}

fn hungry(group: &Group) -> Result<Running, String> {
    let victim = Running::start(&victims::plain("hungry")?, &[]);
    group.take(victim.pid());
    Ok(victim)
}

/// Each verb that brings memory, where the target's group has less room than the rings take. The target is
/// not charged for them.
#[test]
fn what_probes_write_is_not_charged_to_the_target() {
    let base = std::env::temp_dir().join(format!("trapline-memory-{}", std::process::id()));
    let file = |suffix: &str| base.with_extension(suffix).display().to_string();
    let (saved, folded, csv) = (file("trapline"), file("folded"), file("csv"));
    let runs: [(&str, Vec<&str>); 7] = [
        ("trace", vec!["-o", &saved, PROBE]),
        ("trace", vec!["-o", &csv, PROBE]),
        ("stack", vec!["--unwind", "dwarf", "-o", &folded, "work"]),
        ("stack", vec!["-o", &folded, "work"]),
        ("count", vec!["work"]),
        ("lat", vec!["work"]),
        ("hist", vec!["x", "work(u64 x)"]),
    ];
    for (verb, more) in &runs {
        let group = or_skip!(Group::with_limit(24 * MIB));
        let mut victim = or_skip!(hungry(&group));
        let run = trapline(None, verb, victim.pid(), more);
        assert!(victim.alive(), "{verb} {more:?}: the target lives on: {}", errors(&run));
        assert_eq!((run.status.code(), group.killed()), (Some(0), 0), "{verb} {more:?}: {}", errors(&run));
        assert!(group.used() < 2 * MIB, "{verb} {more:?}: {} bytes are the target's", group.used());
        drop(victim);
    }
    for path in [saved, folded, csv] {
        std::fs::remove_file(path).expect("it was written");
    }
}

/// Rings that the tracer pays for count against the same limit, since it is in the same group.
#[test]
fn rings_take_a_share_of_a_limit_that_we_have_too() {
    let group = or_skip!(Group::with_limit(96 * MIB));
    let mut victim = or_skip!(hungry(&group));
    let file = std::env::temp_dir().join(format!("trapline-share-{}.trapline", std::process::id()));
    let run = trapline(Some(&group), "trace", victim.pid(), &["-o", &file.display().to_string(), PROBE]);
    assert!(victim.alive(), "{}", errors(&run));
    assert_eq!((run.status.code(), group.killed()), (Some(0), 0), "{}", errors(&run));
    assert!(errors(&run).contains("rings of records have"), "{}", errors(&run));
    std::fs::remove_file(file).expect("it was written");
}

/// Tables too large to be paid for at once are charged to the target as they are used. They are given up
/// before they use too much.
#[test]
fn tables_that_grow_beyond_their_share_are_given_up() {
    let (group, ours) = (or_skip!(Group::with_limit(8 * MIB)), or_skip!(Group::with_limit(32 * MIB)));
    let mut victim = or_skip!(hungry(&group));
    let run = trapline(Some(&ours), "lat", victim.pid(), &["many_*"]);
    assert!(victim.alive(), "{}", errors(&run));
    assert_eq!((group.killed(), ours.killed()), (0, 0), "{}", errors(&run));
    assert!(
        errors(&run).contains("more than an eighth of what its memory control group"),
        "{}",
        errors(&run)
    );
    assert!(group.used() < 2 * MIB, "{} bytes stay", group.used());
}

#[test]
fn a_target_at_its_limit_is_refused() {
    let group = or_skip!(Group::with_limit(24 * MIB));
    let mut victim = or_skip!(hungry(&group));
    while group.used() < 24 * MIB - 300 * 1024 {
        victim.send("eat 64");
        assert_eq!(victim.line(), "eaten");
    }
    let run = trapline(None, "count", victim.pid(), &["work"]);
    assert!(victim.alive());
    assert_eq!((run.status.code(), group.killed()), (Some(1), 0), "{}", errors(&run));
    assert!(errors(&run).contains("KiB left of its 24576"), "{}", errors(&run));
}

#[test]
fn what_ended_the_target_is_reported() {
    let group = or_skip!(Group::with_limit(24 * MIB));
    let mut victim = or_skip!(hungry(&group));
    let mut tracing =
        Tracing::start("count", &["-p", &victim.pid().to_string(), "work"]).expect("it attaches");
    victim.send("eat 40000");
    let report = tracing.end();
    assert!(!victim.alive() && group.killed() == 1);
    assert_eq!(report.status.code(), Some(1), "{}", report.errors);
    assert!(report.errors.contains("the kernel's out-of-memory killer"), "{}", report.errors);

    let path = or_skip!(victims::plain("hungry"));
    for (signal, status, text) in
        [(libc::SIGSEGV, 1, "by signal 11 (SIGSEGV)"), (libc::SIGTERM, 0, "1 of them ended")]
    {
        let victim = Running::start(&path, &[]);
        let mut tracing =
            Tracing::start("count", &["-p", &victim.pid().to_string(), "work"]).expect("it attaches");
        // SAFETY: plain numbers; the child is not reaped, so the PID is its own.
        unsafe { libc::kill(victim.pid().cast_signed(), signal) };
        let report = tracing.end();
        assert_eq!(report.status.code(), Some(status), "{}", report.errors);
        assert!(report.errors.contains(text), "{}", report.errors);
    }
}
