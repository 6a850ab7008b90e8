//! VAL-1: arguments without a typed signature: names, types and registers come from debug information. gdb
//! finds the same there.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use trapline_tests::fetched::Fetched;
use trapline_tests::programs::Own;
use trapline_tests::running::{Printed, Running};
use trapline_tests::tracing::{self, Report, Tracing};
use trapline_tests::victims::{self, Variant};
use trapline_tests::{debugger, or_skip};

const TIMES: u64 = 5;

fn traced(victim: &mut Running, words: &[&str]) -> (Report, Printed) {
    tracing::traced(victim, "trace", words, TIMES)
}

/// Whether gdb printed the same value as our report.
fn same(argument: &Value, gdb: &str) -> bool {
    let value = &argument["value"];
    let first = gdb.split(' ').next().unwrap_or_default();
    if let Some(label) = argument["label"].as_str() {
        return gdb == label;
    }
    match value {
        Value::String(text) if text == "NaN" => first.contains("nan"),
        Value::String(text) if ["inf", "-inf"].contains(&text.as_str()) => first == text,
        Value::String(text) => gdb.contains(&format!("{text:?}")),
        // By members: `by_value`.
        Value::Object(_) => gdb.starts_with('{'),
        Value::Null => argument["fault"] == json!(0) && first == "0x0" || gdb.starts_with('{'),
        Value::Number(number) => match (first, number.as_f64()) {
            ("true" | "false", _) => (first == "true") == (*number == 1.into()),
            (hex, _) if hex.starts_with("0x") => u64::from_str_radix(&hex[2..], 16).ok() == number.as_u64(),
            (real, Some(ours)) => real.parse::<f64>().is_ok_and(|real| {
                // A float is shown with as many digits as distinguish it from its neighbours.
                (real == ours || real as f32 == ours as f32)
                    && real.is_sign_negative() == ours.is_sign_negative()
            }),
            _ => false,
        },
        _ => false,
    }
}

#[test]
fn names_types_and_values_are_those_that_gdb_prints() {
    as_gdb_prints(&or_skip!(victims::plain("values")));
}

/// PRO-5.
#[test]
fn so_they_are_where_debug_information_is_split_off() {
    as_gdb_prints(&or_skip!(victims::c("values", Variant::Split)));
}

fn as_gdb_prints(path: &Path) {
    let mut victim = Running::start(path, &[]);
    for func in ["handle", "scale", "sums", "next_mode"] {
        let theirs = or_skip!(debugger::arguments(path, &format!("*{func}"), &format!("run {TIMES}\n")));
        let (report, reported) = traced(&mut victim, &[func]);
        let ours = report.calls_of(func);
        assert_eq!(
            (ours.len() as u64, theirs.len()),
            (reported[func], ours.len()),
            "{func}: {}",
            report.errors
        );
        for (ours, theirs) in ours.iter().zip(&theirs) {
            let args = ours["args"].as_array().expect("arguments");
            let names =
                |pairs: &[(String, String)]| pairs.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
            let named: Vec<String> =
                args.iter().map(|one| one["name"].as_str().unwrap_or_default().to_owned()).collect();
            assert_eq!(named, names(theirs), "{func}");
            for (argument, (name, value)) in args.iter().zip(theirs) {
                // Addresses differ between runs; the data at the address does not.
                let address = value.starts_with("0x") && !value.contains('"') && value != "0x0"
                    || value.starts_with("(");
                assert!(address || same(argument, value), "{func}: {name} = {value}, and here {argument}");
            }
        }
    }
}

/// The kernel fetches from the register that debug information names, and must find the same.
#[test]
fn the_kernel_finds_the_same_in_that_register() {
    let path = Own::of(&or_skip!(victims::plain("values")), "registers");
    let mut victim = Running::start(&path, &[]);
    for (nth, fetch) in [(1, "%si:s32"), (2, "%dx:u8"), (4, "%cx:s8"), (5, "%r8:u16")] {
        let kernel = or_skip!(Fetched::new(&path, "handle", victim.pid(), fetch));
        victim.run(TIMES);
        let theirs: Vec<i64> = kernel.read().iter().map(|text| text.parse().expect("a number")).collect();
        let (report, _) = traced(&mut victim, &["handle"]);
        let value = |call: &&Value| call["args"][nth]["value"].as_i64().expect("a number");
        let ours: Vec<i64> = report.calls_of("handle").iter().map(value).collect();
        assert_eq!(ours, theirs, "argument {nth}");
    }
}

#[test]
fn every_type_is_shown_as_it_is() {
    let path = or_skip!(victims::plain("values"));
    let mut victim = Running::start(&path, &[]);
    let (report, reported) = traced(&mut victim, &["handle", "sums", "made", "next_mode", "single"]);
    let values = |call: &Value| -> Vec<Value> {
        call["args"].as_array().expect("arguments").iter().map(|one| one["value"].clone()).collect()
    };
    let handled = report.calls_of("handle");
    assert_eq!(handled.len() as u64, reported["handle"]);
    assert_eq!(
        values(handled[0])[1..],
        [json!(0), json!(1), json!(0.5), json!(-128), json!(65535), json!("because")]
    );
    assert_eq!(handled[0]["args"][1]["label"], json!("MODE_FAST"));
    assert_eq!(
        (values(handled[2])[1].clone(), handled[2]["args"][6]["fault"].clone()),
        (json!(-1), json!(0))
    );
    assert_eq!([&handled[0]["ret"], &handled[1]["ret"]], [&json!(-128), &json!(7)]);
    // Arguments that no single register holds are shown by their parts.
    let summed = report.calls_of("sums");
    let expected = json!([
        { "a": 1, "b": -2 },
        -(1_i64 << 40),
        { "d": 0.5, "n": 7 },
        { "v": [1, 2, 3, 4] },
        -1.5
    ]);
    assert_eq!((json!(values(summed[0])), &summed[0]["ret"]), (expected, &json!(-(1_i64 << 40) + 11)));
    let made = report.calls_of("made");
    assert_eq!((json!(values(made[0])), &made[0]["ret"]), (json!([-5]), &Value::Null));
    let modes = report.calls_of("next_mode");
    let named = |call: &&Value| (call["args"][0]["label"].clone(), call["ret_name"].clone());
    let expected =
        [("MODE_OFF", json!("MODE_FAST")), ("MODE_FAST", json!("MODE_SAFE")), ("MODE_SAFE", json!(null))];
    assert_eq!(modes.iter().take(3).map(named).collect::<Vec<_>>(), expected.map(|(a, r)| (json!(a), r)));
    assert_eq!(report.calls_of("single").len() as u64, reported["single"]);
}

#[test]
fn conditions_and_distributions_know_the_names() {
    let path = or_skip!(victims::plain("values"));
    let mut victim = Running::start(&path, &[]);
    for (func, condition, per_run) in [
        ("handle", "mode == MODE_SAFE && !urgent", 1),
        ("handle", "small < 0 && port > 60000 && share == 0.5", 1),
        ("next_mode", "ret == MODE_SAFE", 1),
        ("next_mode", "mode != MODE_OFF", 2),
        ("sums", "n < 0 && x < 0", 1),
    ] {
        let (report, _) = traced(&mut victim, &["--if", condition, func]);
        assert_eq!(report.calls_of(func).len() as u64, TIMES * per_run, "{condition}");
    }
    let pid = victim.pid().to_string();
    let tracing = Tracing::start("hist", &["-p", &pid, "--top", "port", "handle"]).expect("attaches");
    victim.run(TIMES);
    let report = tracing.stop();
    assert!(report.status.success(), "{}", report.errors);
    assert_eq!(report.hits("handle"), 3 * TIMES);
}

/// A glob selects functions with signatures of their own. A typed signature is not overruled. Without debug
/// information no argument is known.
#[test]
fn each_function_has_its_own() {
    let path = or_skip!(victims::plain("values"));
    let mut victim = Running::start(&path, &[]);
    let (report, reported) = traced(&mut victim, &["values:s*"]);
    let mut names = BTreeMap::new();
    for func in ["scale", "single", "sums"] {
        let all = report.calls_of(func);
        assert_eq!(all.len() as u64, reported[func], "{func}");
        let args = all[0]["args"].as_array().expect("arguments").iter();
        names.insert(func, args.map(|one| one["name"].clone()).collect::<Vec<_>>());
    }
    let expected = BTreeMap::from([
        ("scale", json!(["x", "x_there", "s", "n", "s_there"])),
        ("single", json!(["s", "x"])),
        ("sums", json!(["p", "n", "m", "b", "x"])),
    ]);
    assert_eq!(json!(names), json!(expected));
    let (report, _) = traced(&mut victim, &["sums(hex first)"]);
    assert_eq!(
        report.calls_of("sums")[0]["args"],
        json!([{"name": "first", "value": 0xffff_fffe_0000_0001_u64}])
    );
    let bare = or_skip!(victims::many(4));
    let mut victim = Running::start(&bare, &[]);
    let (report, _) = traced(&mut victim, &["many_0"]);
    let call = report.calls_of("many_0")[0];
    assert_eq!((&call["args"], &call["ret"]), (&json!([]), &json!(1)));
}

/// A call's arguments and value as reported, without addresses. Signs of enumerations are left out too, which
/// GCC before 13 does not note in BTF.
fn without_addresses(call: &Value) -> Value {
    let mut args = call["args"].clone();
    for one in args.as_array_mut().expect("arguments") {
        let is_address = one["value"].as_u64().is_some_and(|value| value > 1 << 40);
        if is_address || one["value"].is_object() || !one["label"].is_null() {
            one["value"] = Value::Null;
        }
    }
    let value = if call["ret_name"].is_null() { call["ret"].clone() } else { Value::Null };
    json!([args, value, call["ret_name"]])
}

/// With BTF instead of DWARF everything but fields and structures is known. For a field, the report says that it needs debug
/// information.
#[test]
fn types_without_debug_information_tell_the_same() {
    let reported = |path: &Path, func: &str| {
        let mut victim = Running::start(path, &[]);
        let (report, _) = traced(&mut victim, &[func]);
        report.calls_of(func).into_iter().map(without_addresses).collect::<Vec<_>>()
    };
    let plain = or_skip!(victims::plain("values"));
    let btf = or_skip!(victims::c("values", victims::Variant::Btf));
    for func in ["scale", "single", "eight", "handle", "sums", "next_mode", "made"] {
        let expected = reported(&plain, func);
        assert!(!expected.is_empty() && expected[0][0] != json!([]), "{func}");
        assert_eq!(reported(&btf, func), expected, "{func}");
    }
    let victim = Running::start(&btf, &[]);
    let pid = victim.pid().to_string();
    let Err(refused) = Tracing::start("trace", &["-p", &pid, "handle(req->len)"]) else { panic!("accepted") };
    assert!(refused.errors.contains("no debug information"), "{}", refused.errors);
}
