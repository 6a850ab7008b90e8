//! `-o FILE` in the format of its suffix: the numbers are those that the victim counted.

mod common;

use common::scratch::Scratch;
use common::{program, run, text};

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
