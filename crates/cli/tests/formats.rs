//! `-o FILE` in the format of its suffix: the numbers are those that the victim counted.

mod common;

use common::scratch::Scratch;
use common::{Victim, program, run, text};

/// Traces the calls of `plain` in a victim that makes `rounds` rounds, with the words in `more`, into a file.
/// Returns the file's content.
fn traced(verb: &str, more: &[&str], file: &Scratch, rounds: &str) -> String {
    let victim = program().display().to_string();
    let before = [verb, "-i", "1ms", "-o", file.name()];
    let output = run(&[&before, more, &["plain", "--", &victim, rounds]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("sites: "), "the summary is not in the file");
    std::fs::read_to_string(&file.0).expect("written")
}

#[test]
fn csv_has_a_row_for_each_report_and_the_last_is_the_total() {
    let file = Scratch::new("count.csv");
    let table = traced("count", &[], &file, "200000");
    let mut lines = table.lines().map(|line| line.split(',').collect::<Vec<_>>());
    assert_eq!(lines.next().expect("a header")[6..], ["hits", "delta"]);
    let rows: Vec<(u64, u64)> =
        lines.map(|line| (line[6].parse().expect("hits"), line[7].parse().expect("delta"))).collect();
    assert_eq!(rows.last().expect("a row").0, 200_000, "{table}");
    assert_eq!(rows.iter().map(|row| row.1).sum::<u64>(), 200_000, "deltas add up: {table}");

    let file = Scratch::new("lat.csv");
    let table = traced("lat", &[], &file, "5000");
    let (first, last) = (table.lines().next().expect("a header"), table.lines().last().expect("a row"));
    let column = first.split(',').position(|name| name == "calls").expect("calls");
    assert_eq!(last.split(',').nth(column), Some("5000"), "{table}");
}

#[test]
fn json_needs_no_word_more() {
    let file = Scratch::new("count.json");
    let lines = traced("count", &[], &file, "300");
    let last: serde_json::Value = serde_json::from_str(lines.lines().last().expect("a line")).expect("JSON");
    assert_eq!(common::field(&last, ":plain", "hits"), 300);
}

#[test]
fn a_format_that_a_command_does_not_write_is_refused_before_anything_is_touched() {
    let file = Scratch::new("list.csv");
    for args in
        [&["list", "-o", file.name(), "plain"][..], &["count", "--json", "-o", file.name(), "-p", "1", "f"]]
    {
        let output = run(args);
        let output_text = text(&output.stderr);
        assert_eq!((output.status.code(), output_text.lines().count()), (Some(2), 1), "{output_text}");
        assert!(!file.0.exists(), "{output_text}");
    }
}

#[test]
fn a_reader_of_json_is_told_why_nothing_was_begun() {
    let victim = Victim::start();
    let pid = victim.pid();
    let output = run(&["count", "--json", "-p", &pid, "nosuch*"]);
    let object: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!((output.status.code(), &object["type"]), (Some(3), &"error".into()), "{object}");
    let message = object["message"].as_str().expect("words");
    assert!(text(&output.stderr).contains(message) && message.contains("nosuch*"), "{object}");
    assert_eq!(object["refused"], serde_json::json!([]));
    // A file keeps what it holds.
    let file = Scratch::new("refused.json");
    std::fs::write(&file.0, "yesterday's").expect("written");
    assert_eq!(run(&["count", "-o", file.name(), "-p", &pid, "nosuch*"]).status.code(), Some(3));
    assert_eq!(std::fs::read_to_string(&file.0).expect("it is there"), "yesterday's");
}

#[test]
fn folded_stacks_become_a_flame_graph() {
    let (folded, svg) = (Scratch::new("calls.folded"), Scratch::new("calls.svg"));
    std::fs::write(&folded.0, "main;work 3\nmain;rest 1\n").expect("written");
    let words = ["dump", "--flame", folded.name(), "--unit", "eggs", "-o", svg.name()];
    let output = run(&words);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let drawn = std::fs::read_to_string(&svg.0).expect("written");
    assert!(drawn.contains("work (3 eggs, 75.00%)") && drawn.contains("calls.folded"), "{drawn}");
    let output = run(&["dump", "--flame", "--unit", "ns", "/nonexistent.folded"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot read /nonexistent.folded"));
}
