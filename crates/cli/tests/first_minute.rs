//! `trapline` alone and `doctor`: what is shown was tried, and what is suggested works.

mod common;

use std::process::{Command, Stdio};

use common::{run, text, trapline};

/// The findings, one object each.
fn findings(output: &[u8]) -> Vec<serde_json::Value> {
    text(output).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn verdict<'a>(findings: &'a [serde_json::Value], name: &str) -> &'a str {
    let one = findings.iter().find(|one| one["name"] == name).unwrap_or_else(|| panic!("no {name}"));
    one["verdict"].as_str().expect("a word")
}

#[test]
fn each_suggested_command_works() {
    let output = run(&[]);
    let shown = text(&output.stdout);
    assert!(output.status.success() && output.stderr.is_empty(), "{shown}{}", text(&output.stderr));
    let commands: Vec<&str> = shown
        .lines()
        .filter_map(|line| line.strip_prefix("  "))
        .filter(|line| line.starts_with("trapline"))
        .collect();
    assert_eq!(commands.len(), 5, "{shown}");
    let own = env!("CARGO_BIN_EXE_trapline");
    for command in commands {
        // A process that runs may have ended since. It is another's, so it is only looked at here.
        let words = match command.split_once(" count -d 2 -p ") {
            Some(_) => format!("{own} --version"),
            None => command.replacen("trapline", own, 1),
        };
        let ended = Command::new("sh").args(["-c", &words]).stdin(Stdio::null()).output().expect("a shell");
        let printed = text(&[ended.stdout, ended.stderr].concat());
        assert!(ended.status.success(), "{command}: {printed}");
        // What starts a program sees calls there.
        let sees = printed.contains(" recorded, ") && !printed.contains("hits: 0 recorded");
        assert!(!command.contains(" -- ") || sees, "{command}: {printed}");
    }
}

#[test]
fn doctor_tries_what_the_other_verbs_need() {
    let output = run(&["doctor", "--json"]);
    let findings = findings(&output.stdout);
    let prevented = findings.iter().any(|one| one["needed"] == true && one["verdict"] == "no");
    assert_eq!(output.status.code(), Some(i32::from(prevented)), "{findings:?}");
    for finding in &findings {
        assert_eq!(finding["verdict"] == "no", finding["remedy"].is_string(), "{finding}");
        assert_eq!((&finding["type"], &finding["schema"]), (&"doctor".into(), &1.into()));
    }
    // These tests trace, so they could not have begun without it.
    for name in ["kernel", "proc", "launch", "shared-code"] {
        assert_eq!(verdict(&findings, name), "yes", "{findings:?}");
    }
    let shown = text(&run(&["doctor"]).stdout);
    assert!(findings.iter().all(|one| shown.contains(one["name"].as_str().expect("a name"))), "{shown}");
    assert!(shown.contains("can be traced here"), "{shown}");
}

/// Held by another tracer, it can hold nothing itself; and it says so.
#[test]
fn doctor_fails_where_nothing_can_be_traced() {
    if !std::path::Path::new("/usr/bin/strace").exists() {
        println!("SKIP: no strace");
        return;
    }
    let mut held = Command::new("strace");
    held.args(["-f", "-qq", "-e", "trace=none", "-o", "/dev/null", env!("CARGO_BIN_EXE_trapline"), "doctor"]);
    let output = held.stdin(Stdio::null()).output().expect("strace runs");
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{shown}");
    assert!(shown.contains("NO  launch") && shown.contains("Nothing can be traced here"), "{shown}");
    assert!(shown.contains("strace"), "the tracer is not named: {shown}");
}

#[test]
fn a_user_without_rights_learns_what_is_missing() {
    let copy = std::env::temp_dir().join(format!("trapline-doctor-{}", std::process::id()));
    common::copy_to(env!("CARGO_BIN_EXE_trapline"), &copy);
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"]).arg(&copy);
    let output = command.args(["doctor", "--json"]).stdin(Stdio::null()).output();
    std::fs::remove_file(&copy).expect("removed");
    let Ok(output) = output.as_ref().map_err(|error| println!("SKIP: setpriv: {error}")) else { return };
    if output.stdout.is_empty() {
        println!("SKIP: not permitted to become another user: {}", text(&output.stderr));
        return;
    }
    let findings = findings(&output.stdout);
    for name in ["other-users", "bpf"] {
        let one = findings.iter().find(|one| one["name"] == name).expect("tried");
        assert_eq!(one["verdict"], "no", "{one}");
        assert!(one["remedy"].as_str().is_some_and(|remedy| remedy.contains("root")), "{one}");
    }
    assert_eq!(verdict(&findings, "launch"), "yes");
}

#[test]
fn a_wrong_word_is_still_wrong_usage() {
    assert_eq!(run(&["nonsense"]).status.code(), Some(2));
    assert_eq!(trapline().arg("doctor").arg("x").output().expect("it runs").status.code(), Some(2));
}
