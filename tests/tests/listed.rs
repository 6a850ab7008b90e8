//! VAL-1, PRO-1: `list -v` says what functions take and return. Judge: gdb, which reads the same debug information.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use trapline_tests::tracing::{once, out};
use trapline_tests::{debugger, or_skip, victims};

/// The objects of `list -v --json`.
fn listed(probe: &str) -> Vec<Value> {
    let output = once(&["list", "-v", "--json", probe]);
    assert!(output.status.success(), "{output:?}");
    out(&output).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// What gdb prints for each command.
fn gdb(path: &Path, commands: &[String]) -> Vec<String> {
    const MARK: &str = "----";
    let each =
        commands.iter().flat_map(|one| ["-ex".into(), one.clone(), "-ex".into(), format!("echo {MARK}")]);
    let output =
        Command::new("gdb").args(["-nx", "-batch"]).args(each).arg(path).output().expect("gdb starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split(MARK).map(|one| one.trim().to_owned()).collect()
}

fn without_spaces(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace()).collect()
}

/// gcc calls integers `short unsigned int`, gdb `unsigned short`.
fn as_gdb_spells(of: &str) -> String {
    const SPELLED: [(&str, &str); 6] = [
        ("long long unsigned int", "unsigned long long"),
        ("long long int", "long long"),
        ("long unsigned int", "unsigned long"),
        ("short unsigned int", "unsigned short"),
        ("long int", "long"),
        ("short int", "short"),
    ];
    SPELLED.iter().fold(of.to_owned(), |of, (ours, theirs)| of.replace(ours, theirs))
}

/// The function of an object, with its types as gdb prints those of a function.
fn types(one: &Value) -> String {
    let of = |one: &Value| one["type"].as_str().expect("a type").to_owned();
    let arguments: Vec<String> = one["args"].as_array().expect("arguments").iter().map(of).collect();
    let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments.join(",") };
    let value = one["value"].as_str().expect("a value's type");
    without_spaces(&as_gdb_spells(&format!("type={value}({arguments})")))
}

#[test]
fn types_and_lines_are_those_that_gdb_names() {
    or_skip!(debugger::ready());
    let mut compared = 0;
    for name in ["values", "by_value", "pointers", "recorded", "valued", "locals", "sums"] {
        let path = or_skip!(victims::plain(name));
        let noted: Vec<Value> = listed(&format!("{}:*", path.display()))
            .into_iter()
            .filter(|one| one["value"].is_string())
            .collect();
        let function = |one: &Value| {
            one["probe"].as_str().and_then(|probe| probe.rsplit(':').next()).expect("a name").to_owned()
        };
        let commands = noted.iter().flat_map(|one| {
            let function = function(one);
            [format!("whatis {function}"), format!("python f = '{function}'; print((gdb.lookup_global_symbol(f) or gdb.lookup_static_symbol(f)).line)")]
        });
        let answers = gdb(&path, &commands.collect::<Vec<_>>());
        for (one, answer) in noted.iter().zip(answers.chunks(2)) {
            assert_eq!(types(one), without_spaces(&answer[0]), "{name}: {one}");
            assert_eq!(answer[1], one["line"].to_string(), "{name}: {one}");
            compared += 1;
        }
    }
    assert!(compared > 40, "{compared} functions are noted");
}

/// The places are those of the calling convention; what the compiler dropped is unknown, and so is all where nothing is
/// noted.
#[test]
fn places_are_named_or_unknown() {
    let path = or_skip!(victims::clang("removed"));
    let text = out(&once(&["list", "-v", &format!("{}:*", path.display())]));
    assert!(text.contains(": unknown"), "clang drops a parameter: {text}");
    assert!(text.contains(": rdi") || text.contains(": x0"), "{text}");
    assert!(text.contains("nothing is known of what it takes"), "_start has none: {text}");
}
