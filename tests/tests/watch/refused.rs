//! What cannot be watched is refused in one clear line, and nothing stays armed.

use serde_json::Value;
use trapline_tests::or_skip;
use trapline_tests::running::Running;
use trapline_tests::tracing::{Tracing, once};
use trapline_tests::victims::{self, Variant};

use super::{TIMES, accesses, available, exact, last};

/// What an older kernel, a machine without debug registers, or a stricter setting answers.
fn with_fault(fault: &str, victim: &Running) -> std::process::Output {
    let mut command = std::process::Command::new(trapline_tests::tracing::binary());
    command.args(["watch", "-d", "1ms", "-p", &victim.pid().to_string(), "own_count"]);
    command.env("TRAPLINE_PERF_FAULT", fault).output().expect("trapline starts")
}

#[test]
fn what_the_kernel_refuses_is_one_clear_line_and_nothing_stays_armed() {
    or_skip!(available());
    let path = or_skip!(victims::plain("writers"));
    let mut victim = Running::start(&path, &["threads"]);
    for (errno, says) in [
        (libc::ENODEV, "no debug registers"),
        (libc::EOPNOTSUPP, "no debug registers"),
        (libc::EACCES, "perf_event_paranoid is"),
        (libc::EPERM, "CAP_PERFMON"),
        (libc::ENOSPC, "no free debug register"),
    ] {
        let out = with_fault(&errno.to_string(), &victim);
        let output_text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{errno}: {output_text}");
        assert!(output_text.contains(says) && output_text.lines().count() == 1, "{errno}: {output_text}");
    }
    // Four watchpoints fit, so none was left armed; and the victim runs on.
    let pid = victim.pid().to_string();
    let fits = once(&["watch", "-d", "1ms", "-p", &pid, "turn[0]", "turn[1]", "turn[2]", "turn[3]"]);
    assert_eq!(fits.status.code(), Some(0), "{}", String::from_utf8_lossy(&fits.stderr));
    assert_eq!(victim.run(TIMES)["each"], TIMES);
}

#[test]
fn where_the_kernel_cannot_inherit_each_thread_is_armed_by_itself() {
    or_skip!(available());
    let path = or_skip!(victims::plain("writers"));
    let mut victim = Running::start(&path, &["threads"]);
    let pid = victim.pid().to_string();
    // Linux before 5.13 does not know the flag `inherit_thread`, bit 35.
    let fault = [("TRAPLINE_PERF_FAULT", "22:35")];
    let mut tracing = Tracing::spawn_with("watch", &["-p", &pid, "own_count", "shared_count"], &fault);
    tracing.wait_for("watch_start");
    let reported = victim.run(TIMES);
    let report = tracing.stop();
    let summary = last(&report);
    assert_eq!(
        summary["late"].as_u64().map(|n| n + summary["unwatched"].as_u64().unwrap_or(0)),
        Some(3),
        "{summary}"
    );
    assert!(report.errors.contains("threads cannot inherit here"), "{}", report.errors);
    // All writes of threads that were alive at the start, and a part of the writes of later threads.
    assert_eq!(exact(&accesses(&report, "own_count")), (0..TIMES as i64).collect::<Vec<_>>());
    let shared = accesses(&report, "shared_count").len() as u64;
    assert!((2 * TIMES..=reported["shared"]).contains(&shared), "{shared} of {reported:?}");
}

/// A command as a user without capabilities, with a copy of the program that any user may run.
fn as_nobody(program: &std::path::Path, args: &[&str]) -> Result<std::process::Command, String> {
    use std::os::unix::fs::MetadataExt as _;
    if std::fs::metadata("/proc/self").map_or(u32::MAX, |own| own.uid()) != 0 {
        return Err("only root may become nobody".into());
    }
    let name = program.file_name().and_then(std::ffi::OsStr::to_str).unwrap_or_default();
    let copy = std::env::temp_dir().join(format!("trapline-nobody-{}-{name}", std::process::id()));
    // Another process makes the copy. A file that is open for writing cannot be run, and a child of another
    // test may hold it open.
    let copied = std::process::Command::new("install").args(["-m", "755"]).arg(program).arg(&copy).status();
    copied.ok().filter(std::process::ExitStatus::success).ok_or("no copy could be made")?;
    let mut command = std::process::Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--"]);
    command.arg(copy).args(args);
    Ok(command)
}

#[test]
fn a_user_without_capabilities_watches_only_their_own_processes() {
    or_skip!(available());
    let binary = trapline_tests::tracing::binary();
    let path = or_skip!(victims::plain("writers"));
    let roots = Running::start(&path, &["rotate"]);
    let pid = roots.pid().to_string();
    let out = or_skip!(as_nobody(&binary, &["watch", "-d", "1ms", "-p", &pid, "sum"])).output();
    let out = out.expect("setpriv runs it");
    let output_text = String::from_utf8_lossy(&out.stderr);
    assert!(
        out.status.code() == Some(1) && output_text.lines().count() == 1,
        "{:?} {output_text}",
        out.status
    );
    assert!(output_text.contains(&pid) && output_text.contains("CAP_SYS_PTRACE"), "{output_text}");

    let mut victim = Running::spawn(or_skip!(as_nobody(&path, &["rotate"])));
    assert_eq!(victim.line(), "ready");
    let pid = victim.pid().to_string();
    let end = format!("value == {}", 1000 + TIMES);
    let words = ["watch", "--json", "--until", &end, "-p", &pid, "sum"];
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    if paranoid.trim().parse::<i32>().is_ok_and(|level| level > 2) {
        let out = or_skip!(as_nobody(&binary, &words)).output().expect("setpriv runs it");
        let output_text = String::from_utf8_lossy(&out.stderr);
        assert!(
            out.status.code() == Some(1) && output_text.contains("perf_event_paranoid is"),
            "{output_text}"
        );
        return;
    }
    let tracing = Running::spawn(or_skip!(as_nobody(&binary, &words)));
    assert!(tracing.line().contains("watch_start"));
    let reported = victim.run(TIMES);
    let mut lines = Vec::new();
    while !lines.last().is_some_and(|line: &Value| line["type"] == "watch_summary") {
        lines.push(serde_json::from_str(&tracing.line()).expect("JSON"));
    }
    let writes: Vec<&Value> = lines.iter().filter(|one| one["type"] == "watch").collect();
    // Without a program at the trap: the value at the start was known, and the rest is derived from it.
    let expected: Vec<i64> = (1001..=1000 + TIMES as i64).collect();
    assert_eq!((exact(&writes), reported["sum"]), (expected, 1000 + TIMES));
    assert!(writes.iter().all(|one| one["how"] == "derived" && one["before_exact"] == true));
}

#[test]
fn a_launched_command_that_cannot_be_watched_does_not_run() {
    let path = or_skip!(victims::plain("writers"));
    let file = path.display().to_string();
    let out = once(&["watch", "no_such_variable", "--", &file]);
    assert_eq!(out.status.code(), Some(3));
    assert!(!String::from_utf8_lossy(&out.stdout).contains("ready"), "it ran");
}

#[test]
fn bad_places_are_one_clear_line() {
    or_skip!(available());
    let path = or_skip!(victims::plain("writers"));
    let victim = Running::start(&path, &["threads"]);
    let pid = victim.pid().to_string();
    let stripped = Running::start(&or_skip!(victims::c("writers", Variant::Stripped)), &["threads"]);
    let other = stripped.pid().to_string();
    for (pid, place, status, says) in [
        (&pid, "shared_cuont", 3, "did you mean shared_count"),
        (&pid, "server.lst", 3, "did you mean list"),
        (&pid, "server.list[4].deep", 3, "has 4 elements"),
        (&pid, "server.self.small", 3, "is a pointer"),
        (&pid, "server", 2, "bytes long; name a field"),
        (&pid, "server.list[0]:16", 2, "holds 1, 2, 4 or 8 bytes"),
        (&pid, "server+3:2", 2, "at a multiple of 2"),
        (&pid, "mine", 3, "each thread has its own"),
        (&pid, "no_such_lib:counter", 3, "no file no_such_lib is mapped"),
        (&pid, "0x10:8", 3, "is not mapped"),
        (&pid, "no_such_function:x", 3, "no function no_such_function"),
        (&other, "shared_count", 3, "no variable shared_count"),
    ] {
        let out = once(&["watch", "-p", pid, place]);
        let output_text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(status), "{place}: {output_text}");
        assert!(output_text.contains(says), "{place}: no `{says}` in {output_text}");
        assert_eq!(output_text.lines().count(), 1, "{place}: {output_text}");
    }
}
