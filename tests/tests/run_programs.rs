//! SAFE-1, HIT-1: a script at all functions of programs that make threads without glibc: a Go server, and static programs
//! with musl. They answer and print what they do without, and counts are the programs' own.

use trapline_tests::running::Running;
use trapline_tests::script::Script;
use trapline_tests::victims::{self, Variant};
use trapline_tests::{native, or_skip, skip};

const TIMES: u64 = 500;

/// Runs the program's rounds bare and under the script, which shows its maps. Its counted functions, with what it printed.
fn same(path: &std::path::Path, functions: &[&str]) {
    let mut victim = Running::start(path, &[]);
    let bare = victim.run(TIMES);
    let (pid, file) = (victim.pid().to_string(), path.display());
    let script = format!("uprobe:{file}:* {{ @[func] = count(); @s[tid] = nsecs }}");
    let tracing = Script::start(&["-p", &pid, "-e", &script]);
    let printed = victim.run(TIMES);
    let (lines, told) = tracing.end();
    assert_eq!(printed, bare, "{file}: {told}");
    assert!(victim.finish().success(), "{file}: {told}");
    for function in functions {
        let expected = format!("@[{function}]: {}", printed[*function]);
        assert!(lines.contains(&expected), "{file}: no {expected}; {told}\n{}", lines.join("\n"));
    }
    assert!(lines.iter().any(|line| line.starts_with("@s[")), "{file}: {told}");
}

#[test]
fn a_go_server_answers_under_a_script_at_all_of_its_functions() {
    if !native::KNOWS_GO {
        skip!("Go's calls are not known on this processor");
    }
    same(&or_skip!(victims::go("http")), &["main.handle", "main.countedWork"]);
}

#[test]
fn programs_with_musl_compute_the_same_under_a_script_at_all_of_their_functions() {
    for (name, functions) in [
        ("counter", &["leaf", "framed", "switcher"][..]),
        ("threads", &["shared", "through"]),
        ("strings", &["say"]),
    ] {
        same(&or_skip!(victims::c(name, Variant::Musl)), functions);
    }
}
