//! Wrong words and targets that cannot be traced: one clear line each, the right exit status, and nothing
//! left behind.

mod common;

use common::scratch::Scratch;
use common::{Victim, copy_of_program, program, run, text, trapline};

/// Runs trapline, and checks exit status and message.
fn refused(args: &[&str], status: i32, says: &[&str]) {
    let output = run(args);
    let output_text = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{args:?}: {output_text}");
    for word in says {
        assert!(output_text.contains(word), "{args:?}: no `{word}` in: {output_text}");
    }
    let lines = output_text.lines().filter(|line| line.starts_with("trapline: ")).count();
    assert!(lines == 1 || status == 2, "{args:?}: not one line: {output_text}");
}

#[test]
fn usage() {
    refused(&["count", "-p", "1", "-c", "ls", "malloc"], 2, &["cannot be combined with -p"]);
    refused(&["count", "malloc"], 2, &["names no file", "-p"]);
    refused(&["count", "-p", "x", "malloc"], 2, &["invalid value"]);
    refused(&["count", "-p", "1", "kprobe:do_sys_open"], 2, &["cannot read probe", "uprobe"]);
    refused(&["lat", "-p", "1", "uretprobe:malloc"], 2, &["lat takes functions"]);
    refused(&["lat", "-p", "1", "--linear", "5", "malloc"], 2, &["MIN:MAX:STEP"]);
    assert_eq!(run(&["--help"]).status.code(), Some(0));
}

#[test]
fn processes_that_are_none() {
    refused(&["count", "-p", "4194303", "malloc"], 1, &["4194303", "no such process"]);
    refused(&["count", "-n", "no-such-name", "malloc"], 1, &["no process is named no-such-name"]);
    refused(&["count", "/no/such/file:f"], 1, &["no file `/no/such/file`"]);
    refused(&["count", "/etc/hostname:f"], 1, &["no process", "/etc/hostname"]);
    refused(
        &["count", "-c", "/no/such/program", "main"],
        1,
        &["cannot start /no/such/program", "No such file"],
    );
    refused(&["status", "-p", "4194303"], 1, &["no such process"]);
}

#[test]
fn functions_that_are_none() {
    let victim = Victim::start();
    let (before, pid) = (victim.text(), victim.pid());
    refused(
        &["trace", "-p", &pid, "--tid", "4194303", "plain"],
        2,
        &["--tid 4194303", &pid, "no such thread"],
    );
    refused(&["count", "-p", &pid, "recursiv"], 3, &["no function recursiv", "recursive"]);
    refused(&["graph", "-d", "30", "-p", &pid, "recursiv"], 3, &["no function recursiv", "recursive"]);
    refused(&["count", "-p", &pid, "nolib:f"], 3, &["no file nolib is mapped"]);
    refused(&["count", "-p", &pid, "plain+4000"], 3, &["only", "bytes long"]);
    refused(
        &["count", "-p", &pid, "usdt:trapline-victim:sample:tock"],
        3,
        &["no marker sample:tock", "sample:tick"],
    );
    refused(&["count", "-p", &pid, "trapline-victim:printf"], 3, &["PLT"]);
    assert_eq!(victim.text(), before);
}

#[test]
fn a_disk_that_is_full_and_a_reader_that_is_gone() {
    let mut victim = Victim::start();
    let (before, pid) = (victim.text(), victim.pid());
    refused(
        &["count", "-p", &pid, "-d", "0.1", "-o", "/dev/full", "plain"],
        1,
        &["/dev/full", "No space left"],
    );
    refused(&["count", "-p", &pid, "-o", "/no/such/dir/x", "plain"], 1, &["/no/such/dir/x"]);
    assert_eq!(victim.text(), before);
    let mut child = trapline()
        .args(["count", "-p", &pid, "-i", "20ms", "plain"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0), "a closed pipe is no failure");
    assert_eq!(victim.text(), before);
    assert_eq!(victim.rounds(10)[0], 20);
}

#[test]
fn a_file_replaced_on_disk_is_reported() {
    let copy = program().with_file_name(format!("trapline-victim-{}", std::process::id()));
    copy_of_program(&copy);
    let mut child = std::process::Command::new(&copy).stdin(std::process::Stdio::piped()).spawn().unwrap();
    std::fs::remove_file(&copy).unwrap();
    std::fs::write(&copy, "something else").unwrap();
    let output = run(&["count", "-d", "0.1", "-p", &child.id().to_string(), "plain"]);
    let output_text = text(&output.stderr);
    drop(child.stdin.take());
    child.wait().unwrap();
    std::fs::remove_file(&copy).unwrap();
    assert_eq!(output.status.code(), Some(0), "{output_text}");
    assert!(output_text.contains("was replaced on disk"), "{output_text}");
}

/// A mistyped word does not destroy an earlier report, and leaves no empty file.
#[test]
fn a_run_that_does_not_begin_leaves_the_file_of_its_report_alone() {
    let victim = Victim::start();
    let pid = victim.pid();
    let (old, new) = (Scratch::new("old.json"), Scratch::new("new.json"));
    std::fs::write(&old.0, "yesterday's").expect("written");
    for (verb, probe, status) in
        [("count", "recursiv", 3), ("trace", "recursiv", 3), ("watch", "no_such_variable", 3)]
    {
        for file in [&old, &new] {
            refused(&[verb, "-p", &pid, "-o", file.name(), probe], status, &[probe]);
        }
        assert_eq!(std::fs::read_to_string(&old.0).expect("still there"), "yesterday's", "{verb}");
        assert!(!new.0.exists(), "{verb}");
    }
    let output = run(&["count", "-p", &pid, "-d", "0.1", "-o", old.name(), "plain"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report = std::fs::read_to_string(&old.0).expect("written");
    assert!(report.starts_with('{') && !report.contains("yesterday"), "{report}");
}
