//! VAL-1: strings, vectors, bit-fields and whole structures of C++ behind pointers, references, and as they are passed by
//! value. gdb stops at the same functions, and prints each part of them.

use serde_json::{Value, json};
use trapline_tests::debugger::printed;
use trapline_tests::running::Running;
use trapline_tests::tracing::{self, Report};
use trapline_tests::{or_skip, victims};

const TIMES: u64 = 9;
/// Most of a text, and of elements, that a record holds.
const SHOWN: usize = 64;

fn traced(path: &std::path::Path, probe: &str) -> Report {
    let mut victim = Running::start(path, &[]);
    tracing::traced(&mut victim, "trace", &[probe], TIMES).0
}

/// Values of each call's arguments.
fn values(report: &Report) -> Vec<Vec<Value>> {
    let of = |call: &Value| {
        let all = call["args"].as_array().expect("arguments");
        all.iter().map(|one| one["value"].clone()).collect()
    };
    report.calls().into_iter().map(of).collect()
}

/// What gdb prints, as JSON has it: a number, or a text in quotes, which may have an address in front.
fn number_or_text(gdb: &str) -> Value {
    match gdb.split_once('"') {
        Some((_, text)) => json!(text.trim_end_matches('"').split("\\000").next()),
        None => {
            let word = gdb.split(' ').next().unwrap_or_default();
            let whole = word.parse::<i64>().map(Value::from);
            whole.or_else(|_| word.parse::<f64>().map(Value::from)).unwrap_or_else(|_| json!(word))
        }
    }
}

/// Compares parts of what we show of `function` with what gdb prints of expressions in the same calls. `parts`: for an
/// argument of the probe, a JSON pointer into it, and an expression.
fn as_gdb_prints(path: &std::path::Path, (function, probe): (&str, &str), parts: &[(usize, &str, &str)]) {
    let expressions: Vec<String> = parts.iter().map(|part| part.2.to_owned()).collect();
    // Behind the function's own first instructions nothing has been changed yet.
    let theirs = printed(path, &format!("*{function}"), &expressions, &format!("run {TIMES}\n"));
    let theirs = or_skip!(theirs);
    let report = traced(path, probe);
    let ours = values(&report);
    assert_eq!((ours.len(), theirs.len()), (TIMES as usize, TIMES as usize), "{}", report.errors);
    for (nth, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        for ((argument, pointer, expression), gdb) in parts.iter().zip(theirs) {
            let here = ours[*argument].pointer(pointer).cloned().unwrap_or(Value::Null);
            let there = match number_or_text(gdb) {
                number if here.is_f64() => json!(number.as_f64()),
                Value::String(text) => json!(text.chars().take(SHOWN).collect::<String>()),
                number => number,
            };
            assert_eq!(here, there, "call {nth}: {expression} = {gdb}: {:?}", ours[*argument]);
        }
    }
}

#[test]
fn fields_of_cplusplus_are_what_gdb_prints() {
    let path = or_skip!(victims::cpp("orders"));
    let probe = "order(of->name, of->kind, *of->note, of->numbers)";
    as_gdb_prints(
        &path,
        ("order", probe),
        &[
            (0, "", "of->name._M_dataplus._M_p"),
            (1, "", "of->kind._M_str"),
            (2, "", "of->note->_M_dataplus._M_p"),
            (3, "/len", "of->numbers._M_impl._M_finish - of->numbers._M_impl._M_start"),
        ],
    );
    let probe = "order(of->small, of->below, of->wide, of->named, of->at, *point, of->code, of->at[2].y)";
    as_gdb_prints(
        &path,
        ("order", probe),
        &[
            (0, "", "of->small"),
            (1, "", "of->below"),
            (2, "", "of->wide"),
            (3, "", "(int)of->named"),
            (4, "/0/x", "of->at[0].x"),
            (4, "/2/x", "of->at[2].x"),
            (4, "/2/y", "of->at[2].y"),
            (5, "/x", "point.x"),
            (5, "/y", "point.y"),
            (6, "", "of->code"),
            (7, "", "of->at[2].y"),
        ],
    );
    as_gdb_prints(
        &path,
        ("order", "order(large->packed.first, large->packed.second, large->packed.third)"),
        &[(0, "", "large->packed.first"), (1, "", "large->packed.second"), (2, "", "large->packed.third")],
    );
    // A structure of 184 bytes is read in three pieces.
    as_gdb_prints(
        &path,
        ("order", "order(*large, *of->note)"),
        &[
            (0, "/all/0", "large->all[0]"),
            (0, "/all/8", "large->all[8]"),
            (0, "/all/19", "large->all[19]"),
            (0, "/last/x", "large->last.x"),
            (0, "/half", "large->half"),
            (1, "", "of->note->_M_dataplus._M_p"),
        ],
    );
}

/// The program knows what it passes.
#[test]
fn references_and_values_are_shown_by_what_they_hold() {
    let path = or_skip!(victims::cpp("orders"));
    for (nth, call) in values(&traced(&path, "by_reference")).iter().enumerate() {
        let name = if nth == 2 { String::new() } else { format!("order {nth}") };
        let shown = if nth % 2 == 1 { "x".repeat(SHOWN) } else { name.clone() };
        let first = vec![nth as f64 / 4.0; (nth * 5).min(SHOWN / 8)];
        let all = json!({ "len": nth * 5, "first": first });
        assert_eq!(*call, [json!(shown), json!(format!("moved {name}")), all, json!(nth)], "{nth}");
    }
    for (nth, call) in values(&traced(&path, "by_value")).iter().enumerate() {
        let all = json!({ "len": nth, "first": vec![-(nth as i64); nth] });
        let view = &"a view of it"[..nth % 12];
        assert_eq!(*call, [json!(format!("value {nth}")), json!(view), all, json!(nth)], "{nth}");
    }
    // A list of names selects among them, in any order.
    for (nth, call) in values(&traced(&path, "by_value(n, all, name)")).iter().enumerate() {
        assert_eq!(
            (&call[0], &call[1]["len"], &call[2]),
            (&json!(nth), &json!(nth), &json!(format!("value {nth}")))
        );
    }
    for (nth, call) in values(&traced(&path, "order(of->numbers, of->points)")).iter().enumerate() {
        let numbers: Vec<usize> = (0..(nth * 7).min(SHOWN / 4)).map(|k| k * nth).collect();
        let point = |k: usize| json!({ "x": -(k as i64), "y": k * 1000 });
        let points: Vec<Value> = (0..nth.min(SHOWN / 8)).map(point).collect();
        assert_eq!(call[0], json!({ "len": nth * 7, "first": numbers }));
        assert_eq!(call[1], json!({ "len": nth, "first": points }));
    }
}

#[test]
fn conditions_and_histograms_know_bit_fields() {
    let path = or_skip!(victims::cpp("orders"));
    let mut victim = Running::start(&path, &[]);
    let hits = |victim: &mut Running, condition: &str| {
        let (report, _) = tracing::traced(victim, "trace", &["--if", condition, "order(of->below)"], TIMES);
        report.calls().len()
    };
    for (condition, expected) in [
        ("of->below == -4", 1),
        ("of->below < 0", TIMES as usize - 1),
        ("of->small == 3", 1),
        ("of->small > 5", 2),
        ("of->wide == 1 << 33", 1),
        ("of->named == 5", TIMES as usize / 2),
        ("of->named == 5 && of->below <= -3", 3),
    ] {
        assert_eq!(hits(&mut victim, condition), expected, "{condition}");
    }
    let (report, _) = tracing::traced(&mut victim, "hist", &["--top", "of->below * 2", "order"], TIMES);
    let text = serde_json::to_string(&report.objects).expect("JSON");
    for nth in 0..TIMES as i64 {
        assert!(text.contains(&format!("{}", -2 * nth)), "{text}");
    }
}

/// A string is text, wherever it is: never a number.
#[test]
fn histograms_count_strings() {
    let path = or_skip!(victims::cpp("orders"));
    let mut victim = Running::start(&path, &[]);
    for words in [&["name", "by_reference"][..], &["of->name", "order"], &["name", "by_value"]] {
        let (report, _) = tracing::traced(&mut victim, "hist", words, TIMES);
        let text = serde_json::to_string(&report.objects).expect("JSON");
        let shown = |nth: usize| match (words[1], nth) {
            ("by_value", nth) => format!("value {nth}"),
            ("by_reference", nth) if nth % 2 == 1 => "x".repeat(SHOWN),
            (_, 2) => String::new(),
            (_, nth) => format!("order {nth}"),
        };
        for nth in 0..TIMES as usize {
            assert!(text.contains(&format!("\"{}\"", shown(nth))), "{words:?} {nth}: {text}");
        }
    }
    let (report, _) = tracing::traced(&mut victim, "hist", &["--by", "of->name", "n", "order"], TIMES);
    let text = serde_json::to_string(&report.objects).expect("JSON");
    assert!(text.contains("\"order 8\""), "{text}");
    // Nothing of what an argument refers to is read, if only its number is asked for.
    let (report, _) = tracing::traced(&mut victim, "hist", &["n", "by_reference"], TIMES);
    assert!(!report.errors.contains("added up here"), "{}", report.errors);
    let pid = victim.pid().to_string();
    for (option, probe) in
        [("name > 3", "by_reference"), ("of->name > 3", "order"), ("of->numbers > 3", "order")]
    {
        let Err(report) = tracing::Tracing::start("trace", &["-p", &pid, "--if", option, probe]) else {
            panic!("{option} was accepted");
        };
        let reason = if option.contains("numbers") { "this is no number" } else { "this is text" };
        assert!(report.errors.contains(reason), "{option}: {}", report.errors);
    }
}

#[test]
fn what_cannot_be_shown_is_refused_with_its_reason() {
    let path = or_skip!(victims::cpp("orders"));
    let victim = Running::start(&path, &[]);
    for (probe, reason, mark) in [
        ("order(*n)", "`n` is no pointer", "    *n\n    ^\n"),
        ("order(*of->at)", "`of->at` is no pointer", "    *of->at\n    ^\n"),
        ("order(*of->nam)", "has no field `nam`", "    *of->nam\n         ^^^\n"),
        ("order(*off)", "there is no argument or variable `off`", "    *off\n     ^^^\n"),
        ("order(*large, *large, *large)", "this is one field too many", "    *large\n    ^^^^^^\n"),
    ] {
        let pid = victim.pid().to_string();
        let Err(report) = tracing::Tracing::start("trace", &["-p", &pid, probe]) else {
            panic!("{probe} was accepted");
        };
        assert!(report.errors.contains(reason) && report.errors.contains(mark), "{probe}: {}", report.errors);
    }
}
