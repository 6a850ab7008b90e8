//! VAL-1: structures, unions and integers of 16 bytes that are passed by value. gdb stops at the same functions, where
//! they have copied what they copy, and shows the same; what is returned is what the program returns.

use serde_json::{Value, json};
use trapline_tests::debugger::arguments;
use trapline_tests::running::Running;
use trapline_tests::victims::{self, Variant};
use trapline_tests::{or_skip, tracing};

const TIMES: u64 = 6;
const FUNCTIONS: [&str; 4] = ["pairs", "bigs", "wides", "behind"];

/// The numbers and texts in what gdb printed, in their order.
fn tokens(gdb: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut rest = gdb;
    while let Some(first) = rest.chars().next() {
        let end = match first {
            '"' => rest[1..].find('"').map_or(rest.len(), |end| end + 2),
            '-' | '0'..='9' => rest.find([',', '}', ' ']).unwrap_or(rest.len()),
            'A'..='Z' => rest.find([',', '}']).unwrap_or(rest.len()),
            // A member's name, up to its value.
            'a'..='z' => rest.find(" = ").map_or(rest.len(), |end| end + 3),
            _ => 1,
        };
        let token = rest[..end].trim_matches('"');
        if first == '"' || first == '-' || first.is_ascii_digit() || first.is_ascii_uppercase() {
            // A byte of a text that is 0 and all behind it; a number with a letter behind it.
            all.push(token.split("\\000").next().unwrap_or_default().to_owned());
        }
        rest = &rest[end..];
    }
    all
}

/// The same of a value as JSON has it; numbers of enumerations by name.
fn flat(value: &Value, all: &mut Vec<String>) {
    match value {
        Value::Object(members) => members.values().for_each(|one| flat(one, all)),
        Value::Array(values) => values.iter().for_each(|one| flat(one, all)),
        Value::String(text) => all.push(text.clone()),
        Value::Number(number) => all.push(number.to_string()),
        other => all.push(other.to_string()),
    }
}

fn same(ours: &str, theirs: &str) -> bool {
    let names = [("OFF", "0"), ("ON", "7")];
    let numbers = ours.parse::<f64>().ok().zip(theirs.parse::<f64>().ok());
    ours == theirs
        || names.contains(&(theirs, ours))
        || numbers.is_some_and(|(a, b)| a == b && ours.len() < 17)
}

fn as_gdb_shows(path: &std::path::Path, by_clang: bool) {
    let mut victim = Running::start(path, &[]);
    let (report, printed) = tracing::traced(&mut victim, "trace", &FUNCTIONS, TIMES);
    for function in FUNCTIONS {
        let theirs = or_skip!(arguments(path, function, &format!("run {TIMES}\n")));
        let ours = report.calls_of(function);
        assert_eq!((ours.len() as u64, theirs.len() as u64), (printed["calls"], TIMES), "{}", report.errors);
        for (ours, theirs) in ours.iter().zip(&theirs) {
            for (argument, (name, gdb)) in ours["args"].as_array().expect("arguments").iter().zip(theirs) {
                assert_eq!(argument["name"], name.as_str(), "{function}");
                let (mut here, mut there) = (Vec::new(), tokens(gdb));
                flat(&argument["value"], &mut here);
                // JSON's members have no order here.
                let number = |text: &String| (text.parse::<f64>().unwrap_or(0.0) * 1024.0) as i128;
                here.sort_by_key(number);
                there.sort_by_key(|text| if text == "ON" { 7 * 1024 } else { number(text) });
                // gdb does not know it, or clang says of a part that it is in no register.
                if gdb.contains('<') || by_clang && argument["value"].is_null() {
                    continue;
                }
                assert!(
                    here.len() == there.len() && here.iter().zip(&there).all(|(a, b)| same(a, b)),
                    "{function}: {name} = {gdb}, and here {argument}: {here:?} {there:?}"
                );
            }
        }
    }
}

#[test]
fn what_is_passed_by_value_is_what_gdb_shows() {
    as_gdb_shows(&or_skip!(victims::plain("by_value")), false);
}

#[test]
fn so_it_is_where_clang_compiled() {
    as_gdb_shows(&or_skip!(victims::clang("by_value")), true);
}

/// gcc says that these are in the frame, where the function never puts them, so gdb shows something else. The program
/// knows what it passes.
#[test]
fn what_the_function_copies_late_is_what_the_program_passes() {
    for (by_clang, path) in [(false, victims::plain("by_value")), (true, victims::clang("by_value"))] {
        let mut victim = Running::start(&or_skip!(path), &[]);
        let (report, _) = tracing::traced(&mut victim, "trace", &["threes"], TIMES);
        let calls = report.calls_of("threes");
        assert_eq!(calls.len() as u64, TIMES);
        for (nth, call) in calls.iter().enumerate() {
            let i = nth as i64 + 1;
            let half = ((i as u64) << 32) | (i as u64 * 77);
            let expected = [
                json!({ "x": i as f64, "y": 2.0 * i as f64, "z": i as f64 / 2.0 }),
                json!({ "a": i % 8, "b": i * 100, "c": -i % 16, "d": i * 5 }),
                json!({ "n": half, "half": [i * 77, i] }),
                json!(i),
                json!({ "tag": i, "low": -3, "high": -i }),
            ];
            for (argument, expected) in call["args"].as_array().expect("arguments").iter().zip(expected) {
                // clang cuts some into parts of which it says no register.
                let is_known = !argument["value"].is_null();
                assert!(is_known || by_clang, "{argument}");
                assert!(!is_known || argument["value"] == expected, "{argument} {expected}");
            }
        }
    }
}

#[test]
fn small_structures_that_are_returned_are_shown() {
    let path = or_skip!(victims::c("by_value", Variant::Plain));
    let mut victim = Running::start(&path, &[]);
    let (report, _) = tracing::traced(&mut victim, "trace", &["one_register", "one_vector"], TIMES);
    for (nth, call) in report.calls_of("one_register").iter().enumerate() {
        assert_eq!(call["ret"], json!({ "a": nth + 1, "b": -(nth as i64) - 1 }), "{call}");
    }
    for (nth, call) in report.calls_of("one_vector").iter().enumerate() {
        let n = nth as f64 + 1.0;
        assert_eq!(call["ret"], json!({ "x": n, "y": -n / 2.0 }), "{call}");
    }
    assert_eq!(report.calls_of("one_vector").len() as u64, TIMES);
}

#[test]
fn structures_that_several_registers_return_are_shown() {
    let path = or_skip!(victims::c("by_value", Variant::Plain));
    let functions = [
        "two_registers",
        "vector_first",
        "three_ints",
        "letter_first",
        "three_floats",
        "longs_float",
        "wide_result",
    ];
    // The second way: both records of a call wait for the return, which decides.
    for condition in [&[][..], &["--if", "dur >= 0"]] {
        let mut victim = Running::start(&path, &[]);
        let words = [&functions[..], condition].concat();
        let (report, _) = tracing::traced(&mut victim, "trace", &words, TIMES);
        for nth in 0..TIMES {
            let n = nth as i64 + 1;
            let letter = i64::from(b'a') + n;
            let real = |of: f64| json!(of);
            let expected = [
                json!({ "first": n, "second": -n }),
                json!({ "d": n as f64 / 2.0, "n": n }),
                json!({ "a": n, "b": -n, "c": n * 2 }),
                json!({ "c": letter, "n": n }),
                json!({ "x": real(n as f64), "y": real(-n as f64), "z": real(n as f64 / 2.0) }),
                json!({ "n": n, "f": real(n as f64 / 4.0) }),
                json!((-i128::from(n) << 70).to_string()),
            ];
            for (function, expected) in functions.iter().zip(expected) {
                assert_eq!(report.calls_of(function)[nth as usize]["ret"], expected, "{function}");
            }
        }
    }
}
