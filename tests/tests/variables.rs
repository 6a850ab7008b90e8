//! VAL-1: variables of a file at a function's entry are what a debugger shows there. Judge: gdb, which stops at the same
//! instruction of the same program with the same input.

use serde_json::Value;
use trapline_tests::debugger::printed;
use trapline_tests::running::Running;
use trapline_tests::tracing::{errors, once, traced};
use trapline_tests::{or_skip, victims};

const TIMES: u64 = 7;
/// Paths, and how gdb calls the same. Eight can be read by one probe.
const PATHS: [&[(&str, &str)]; 3] = [
    &[
        ("shop.sold", "shop.sold"),
        ("shop.first->id", "shop.first->id"),
        ("shop.first->name", "shop.first->name"),
        ("shop.place", "shop.place"),
        ("shop.weight", "shop.weight"),
        ("shop.mode", "shop.mode"),
        ("shop.few[1]", "shop.few[1]"),
        ("Shop::opened", "Shop::opened"),
    ],
    &[
        ("counter", "counter"),
        ("calls", "'sell(int)::calls'"),
        ("left", "stock::deep::left"),
        ("stock::deep::left", "stock::deep::left"),
        ("items[1].id", "items[1].id"),
        ("shop.first->next->name", "shop.first->next->name"),
        ("banner", "banner"),
        ("nothing", "nothing"),
    ],
    &[("desk.nth", "desk.nth"), ("desk.action", "desk.action")],
];

/// What is equal in both forms: a number, a text, or the last part of an enumeration's name.
fn plain(text: &str) -> String {
    // A function's address, and its name with what it takes.
    let function = text.strip_prefix("0x").and_then(|text| text.split_once(" <"));
    let text = function.map_or(text, |(_, name)| name.trim_end_matches('>'));
    let text = text.strip_suffix("(int)").unwrap_or(text);
    let text = text.split(" <").next().unwrap_or_default();
    let quoted = text.split_once('"').and_then(|(_, rest)| rest.split_once('"')).map(|(text, _)| text);
    let name = quoted.unwrap_or(text).trim();
    // A character as a number, and then itself; the bytes behind a text's end.
    let name = name.split(" '").next().unwrap_or_default();
    let name = name.split("\\000").next().unwrap_or_default().rsplit("::").next().unwrap_or_default();
    if name == "0x0" { "0".to_owned() } else { name.to_owned() }
}

fn same(ours: &str, theirs: &str) -> bool {
    let (ours, theirs) = (plain(ours), plain(theirs));
    let numbers = ours.parse::<f64>().ok().zip(theirs.parse::<f64>().ok());
    ours == theirs || numbers.is_some_and(|(a, b)| a == b)
}

#[test]
fn variables_are_what_gdb_shows() {
    let path = or_skip!(victims::cpp("variables"));
    for paths in PATHS {
        let [ours, theirs] = [|one: &(&str, &str)| one.0.to_owned(), |one: &(&str, &str)| one.1.to_owned()]
            .map(|which| paths.iter().map(which).collect::<Vec<String>>());
        let gdb = or_skip!(printed(&path, "*sell", &theirs, &format!("run {TIMES}\n")));
        let mut victim = Running::start(&path, &[]);
        let probe = format!("variables:sell({})", ours.join(", "));
        let (report, _) = traced(&mut victim, "trace", &[&probe], TIMES);
        let calls = report.calls_of("_Z4selli");
        assert_eq!((calls.len() as u64, gdb.len() as u64), (TIMES, TIMES), "{}", report.errors);
        for (call, gdb) in calls.iter().zip(&gdb) {
            let arguments = call["args"].as_array().expect("arguments");
            assert_eq!(arguments.len(), gdb.len());
            for ((one, theirs), path) in arguments.iter().zip(gdb).zip(&ours) {
                assert_eq!(one["name"], path.as_str());
                let here = match one.get("label").unwrap_or(&one["value"]) {
                    Value::String(text) => text.clone(),
                    // A null pointer on the way: gdb says that it cannot look there.
                    Value::Null => "Cannot".to_owned(),
                    other => other.to_string(),
                };
                let is_cut = here == "Cannot" && theirs.starts_with("Cannot access memory");
                assert!(is_cut || same(&here, theirs), "{path}: gdb {theirs}, and here {one}");
            }
        }
    }
}

#[test]
fn variables_decide_and_are_added_up() {
    let path = or_skip!(victims::cpp("variables"));
    let kept = |condition: &str| {
        // Its variables go on from one round to the next.
        let mut victim = Running::start(&path, &[]);
        let words = ["--if", condition, "variables:sell(amount)"];
        let (report, _) = traced(&mut victim, "trace", &words, TIMES);
        let amounts = report.calls_of("_Z4selli").into_iter().map(|call| call["args"][0]["value"].clone());
        amounts.map(|amount| amount.as_u64().expect("a number") / 3).collect::<Vec<u64>>()
    };
    assert_eq!(kept("shop.mode == 7"), [1, 3, 5]);
    assert_eq!(kept("stock::deep::left >= 0"), [3, 4, 5, 6]);
    assert_eq!(kept("counter < 32768 && amount != 9"), [1, 4, 6]);
    let mut victim = Running::start(&path, &[]);
    let (report, _) = traced(&mut victim, "hist", &["--top", "shop.few[1]", "variables:sell"], TIMES);
    let last = report.objects.iter().rev().find(|one| one["type"] == "hist").expect("a distribution");
    let rows = last["probes"][0]["parts"][0]["rows"].as_array().expect("rows");
    let mut values: Vec<(i64, i64)> =
        rows.iter().map(|row| (row[0].as_i64().expect("a value"), row[1].as_i64().expect("hits"))).collect();
    values.sort_unstable();
    assert_eq!(values, (0..TIMES as i64).map(|nth| (nth * 1000, 1)).collect::<Vec<_>>(), "{last}");
}

#[test]
fn what_has_no_name_is_refused_with_similar_ones() {
    let path = or_skip!(victims::cpp("variables"));
    let victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    for (probe, why) in [
        ("variables:sell(amont)", "there is no argument or variable `amont`; did you mean amount?"),
        ("variables:sell(countr)", "there is no argument or variable `countr`; did you mean counter?"),
        ("variables:sell(shop.sol)", "`shop` has no field `sol`; did you mean sold?"),
        ("variables:sell(shop.first->nam)", "`shop.first` has no field `nam`"),
    ] {
        let output = once(&["trace", "-d", "0.1", "-p", &pid, probe]);
        assert!(errors(&output).contains(why), "{probe}: {}", errors(&output));
    }
}
