//! Names that mean one thing of several, and values that are where the compiler put them: never another function's, another class's, or
//! what a register holds by chance.

use serde_json::{Value, json};
use trapline_tests::running::Running;
use trapline_tests::tracing::{Report, Tracing, once};
use trapline_tests::{or_skip, victims};

const TIMES: u64 = 5;

fn traced(victim: &mut Running, verb: &str, words: &[&str]) -> Report {
    let pid = victim.pid().to_string();
    let all: Vec<&str> = ["-p", &pid].into_iter().chain(words.iter().copied()).collect();
    let tracing = Tracing::start(verb, &all).unwrap_or_else(|report| panic!("{}", report.errors));
    victim.run(TIMES);
    let report = tracing.stop();
    assert!(report.status.success(), "{}", report.errors);
    report
}

fn of_type<'a>(report: &'a Report, kind: &str) -> Vec<&'a Value> {
    report.objects.iter().filter(|one| one["type"] == kind).collect()
}

/// clang removes a parameter; the others' registers are those that their locations say, and the value is not known.
#[test]
fn removed_parameters_are_unknown_and_the_others_are_right() {
    let path = or_skip!(victims::clang("removed"));
    let mut victim = Running::start(&path, &[]);
    let report = traced(&mut victim, "trace", &["put"]);
    let calls = of_type(&report, "call");
    assert_eq!(calls.len() as u64, TIMES);
    for call in calls {
        let values: Vec<&Value> =
            call["args"].as_array().expect("arguments").iter().map(|one| &one["value"]).collect();
        assert_eq!(values, [&Value::Null, &json!("alice"), &json!(5)], "{call}");
        assert_eq!(call["ret"], Value::Null, "{call}");
    }
}

/// The type of the value is the same in each form of a probe.
#[test]
fn the_value_has_its_type_in_every_form() {
    let path = or_skip!(victims::plain("values"));
    let mut victim = Running::start(&path, &[]);
    let mut values = |probe: &str| -> Vec<Value> {
        let report = traced(&mut victim, "trace", &[probe]);
        of_type(&report, "call").iter().map(|call| json!([call["ret"], call["ret_name"]])).collect()
    };
    for func in ["handle", "scale", "next_mode"] {
        let wanted = values(func);
        assert!(!wanted.is_empty() && wanted[0][0] != Value::Null, "{func}");
        assert_eq!(values(&format!("ur:values:{func}")), wanted, "{func}");
        assert_eq!(values(&format!("{func}(first)")), wanted, "{func}");
    }
}

/// Types in brackets are the overload's where there is one.
#[test]
fn one_overload_is_traced() {
    let path = or_skip!(victims::cpp("overloads"));
    let mut victim = Running::start(&path, &[]);
    let report = traced(&mut victim, "trace", &["Cart::add(int)"]);
    let calls = of_type(&report, "call");
    assert_eq!(calls.len() as u64, TIMES, "{}", report.errors);
    for call in &calls {
        let names: Vec<&Value> =
            call["args"].as_array().expect("arguments").iter().map(|one| &one["name"]).collect();
        assert_eq!(names, [&json!("this"), &json!("id")]);
        assert_eq!(call["args"][1]["value"], json!(7));
    }
    let report = traced(&mut victim, "stack", &["Cart::add(int)"]);
    let stacks = report.objects.iter().filter(|one| one["type"] == "stack");
    assert_eq!(stacks.filter_map(|one| one["hits"].as_u64()).sum::<u64>(), TIMES);
}

/// Names of classes decide which variable is meant.
#[test]
fn what_is_not_the_variable_is_not_watched() {
    let path = or_skip!(victims::cpp("overloads"));
    let victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let out = once(&["watch", "-p", &pid, "-d", "10ms", "NoSuch::count"]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && said.contains("no variable NoSuch::count"), "{said}");
}
