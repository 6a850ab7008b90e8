//! VAL-1, PRO-7: arguments and values of Go's functions, by their debug information. The victim's source says what they
//! are; `cargo xtask values go` compares a real program's with gdb.

use serde_json::{Value, json};
use trapline_tests::running::Running;
use trapline_tests::tracing::{self, Report};
use trapline_tests::victims;
use trapline_tests::{native, or_skip, skip};

/// Names and values of the arguments of a function's last call: with too little stack, a function begins once more.
fn arguments(report: &Report, function: &str) -> Vec<(String, Value)> {
    let calls = report.calls_of(function);
    let call = calls.last().unwrap_or_else(|| panic!("{function}: {}", report.errors));
    let all = call["args"].as_array().expect("arguments").iter();
    all.map(|one| (one["name"].as_str().unwrap_or_default().to_owned(), one["value"].clone())).collect()
}

fn values(report: &Report, function: &str) -> Vec<Value> {
    arguments(report, function).into_iter().map(|(_, value)| value).collect()
}

fn is_address(value: &Value) -> bool {
    value.as_u64().is_some_and(|address| address > 4096)
}

#[test]
fn go_passes_values_in_registers_of_its_own_and_on_the_stack() {
    if !native::KNOWS_GO {
        skip!("Go's arguments are not known on this processor");
    }
    let mut paths = vec![or_skip!(victims::go("go_values")), or_skip!(victims::go_unoptimized("go_values"))];
    paths.extend(
        victims::go_before_1_22("go_values").inspect_err(|why| println!("without an older Go: {why}")),
    );
    for path in paths {
        let mut victim = Running::start(&path, &[]);
        let probe = format!("{}:main.*", path.display());
        let (report, reported) = tracing::traced(&mut victim, "trace", &[&probe], 1);
        assert_eq!(reported["wrong"], 0);
        let numbers = values(&report, "main.numbers");
        assert_eq!(numbers[..4], [json!(-1), json!(200), json!(1), json!(2.5)], "{}", report.errors);
        assert!(is_address(&numbers[4]) && numbers[5] == json!(-7), "{numbers:?}");
        assert_eq!(values(&report, "main.texts"), ["short", "named", "bytes"]);
        let parts = values(&report, "main.parts");
        assert_eq!(parts[0], json!({ "X": -3, "Y": 0.5 }));
        assert_eq!((&parts[1]["Name"]["len"], &parts[1]["Count"]), (&json!(4), &json!(9)));
        assert!(is_address(&parts[2]), "{parts:?}");
        let many: Vec<Value> = (1..=11).map(Value::from).collect();
        assert_eq!(values(&report, "main.many"), many, "nine registers and two words of the stack");
        assert_eq!(values(&report, "main.stacked"), [json!({ "Items": [1, 2, 3, 4] }), json!(6)]);
        assert_eq!(arguments(&report, "main.blank").last(), Some(&("last".to_owned(), json!(3))));
        let (name, second) = arguments(&report, "main.unused").pop().expect("an argument");
        let is_told = report.calls_of("main.first[...]").is_empty();
        assert!(name == "second" && (second == 71 || !is_told && second.is_null()), "{name}: {second}");
        // Before 1.21 the types of a generic function are not named, and so its calls are not told apart.
        for (types, or, n) in [("string", json!("or"), json!(7)), ("float64", json!(1.5), json!(8))] {
            let name = format!("main.first[go.shape.{types}]");
            if report.calls_of(&name).is_empty() {
                assert!(!report.calls_of("main.first[...]").is_empty(), "{}", report.errors);
                continue;
            }
            let mut all = arguments(&report, &name);
            all.retain(|(name, _)| ["or", "unused", "n"].contains(&&**name));
            let expected = [("or", or), ("unused", json!(1)), ("n", n)];
            assert_eq!(all, expected.map(|(name, value)| (name.to_owned(), value)), "{name}");
        }
        what_was_returned(&report);
        // Where returns decide, both records of a call wait for its return.
        let mut victim = Running::start(&path, &[]);
        let (report, _) = tracing::traced(&mut victim, "trace", &[&probe, "--if", "dur >= 0"], 1);
        what_was_returned(&report);
    }
}

fn what_was_returned(report: &Report) {
    // A call that begins once more on a larger stack has not returned the first time.
    let returned = |function| {
        let mut calls = report.calls_of(function);
        calls.retain(|call| call["how"] == "returned");
        calls
    };
    let results = returned("main.results");
    let [results] = results[..] else { panic!("one call: {results:?}") };
    let ret = &results["ret"];
    assert_eq!([&ret["a"], &ret["half"], &ret["last"]], [&json!(4), &json!(2.0), &json!(1)], "{ret}");
    assert_eq!((&ret["name"]["len"], &ret["list"]["len"]), (&json!(4), &json!(4)), "{ret}");
    assert!(ret["list"]["cap"].as_u64() >= Some(5) && is_address(&ret["err"]["data"]), "{ret}");
    let either = returned("main.either");
    let either: Vec<_> =
        either.iter().map(|call| (&call["ret"]["~r0"], &call["ret"]["~r1"]["tab"])).collect();
    let [(nine, none), (three, failed)] = either[..] else { panic!("two calls: {either:?}") };
    assert_eq!((nine, none, three), (&json!(9), &json!(0), &json!(3)));
    assert!(is_address(failed), "{failed}");
}

/// A method's name has a star, which is no wildcard; conditions and fields know Go's registers.
#[test]
fn methods_conditions_and_fields_of_go() {
    if !native::KNOWS_GO {
        skip!("Go's arguments are not known on this processor");
    }
    let mut victim = Running::start(&or_skip!(victims::go_unoptimized("go_values")), &[]);
    let (report, _) = tracing::traced(&mut victim, "trace", &["main.(*counter).add(c->hits, by)"], 1);
    assert_eq!(values(&report, "main.(*counter).add"), [json!(40), json!(2)], "{}", report.errors);
    let texts = "main.(*counter).add(c->label, c->raw, c->empty, c.next.label)";
    let (report, _) = tracing::traced(&mut victim, "trace", &[texts], 1);
    assert_eq!(values(&report, "main.(*counter).add"), ["label", "raw", "", "next"], "{}", report.errors);
    let (report, _) = tracing::traced(&mut victim, "trace", &["main.seventh(in->hits, in->label, f)"], 1);
    assert_eq!(values(&report, "main.seventh"), [json!(41), json!("seventh"), json!(6)], "{}", report.errors);
    for (condition, hits) in [("g == 7 && k > 10 && i < 10", 1), ("g == 8", 0), ("k == 10", 0)] {
        let words = ["--if", condition, "main.many"];
        let (report, _) = tracing::traced(&mut victim, "trace", &words, 1);
        assert_eq!(report.hits("main.many"), hits, "{condition}: {}", report.errors);
    }
    let (report, _) = tracing::traced(&mut victim, "hist", &["h", "main.many"], 1);
    assert_eq!(report.hits("main.many"), 1, "{}", report.errors);
}

/// Without lists of locations, debug information names the place of a parameter that the function fills later. What
/// lies there at the first instruction is an earlier call's.
#[test]
fn a_place_that_is_filled_later_is_not_read() {
    if !native::KNOWS_GO {
        skip!("Go's arguments are not known on this processor");
    }
    for path in [
        or_skip!(victims::go_without_lists("go_values")),
        or_skip!(victims::go_old_without_lists("go_values")),
    ] {
        let mut victim = Running::start(&path, &[]);
        let functions = ["numbers", "texts", "many", "unused", "stacked"];
        let probes = functions.map(|name| format!("{}:main.{name}", path.display()));
        let probes: Vec<&str> = probes.iter().map(String::as_str).collect();
        let (report, _) = tracing::traced(&mut victim, "trace", &probes, 3);
        let [mut numbers, texts, many, unused, stacked] =
            functions.map(|name| values(&report, &format!("main.{name}")));
        let address = numbers.remove(4);
        assert!(address.is_null() || is_address(&address), "{address}");
        let expected = [json!(-1), json!(200), json!(1), json!(2.5), json!(-7)];
        let many_are = (1..=11).map(Value::from).collect();
        for (all, expected) in [
            (numbers, expected.to_vec()),
            (texts, ["short", "named", "bytes"].map(Value::from).to_vec()),
            (many, many_are),
            (unused[unused.len() - 1..].to_vec(), vec![json!(71)]),
            (stacked, vec![json!({ "Items": [1, 2, 3, 4] }), json!(6)]),
        ] {
            let is_right = |(value, expected): (&Value, &Value)| value.is_null() || value == expected;
            assert!(all.iter().zip(&expected).all(is_right), "{all:?} {expected:?}");
        }
    }
}
