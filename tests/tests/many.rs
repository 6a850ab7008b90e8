//! VAL-1: arguments that no register holds, from signatures and from debug information; and arguments of copies that
//! compilers make of functions. The judge is what the program passes.

use std::path::PathBuf;

use serde_json::{Value, json};
use trapline_tests::running::Running;
use trapline_tests::tracing::{Report, unchanged};
use trapline_tests::victims::{self, Variant};
use trapline_tests::{or_skip, text};

const TIMES: u64 = 40;
const NINE: &str = "nine(int a, long b, u8 c, short d, unsigned e, long f, i8 g, str text, u16 i) -> long";

fn builds() -> Result<Vec<PathBuf>, String> {
    let gcc = [Variant::O0, Variant::Plain, Variant::O3, Variant::Cet, Variant::NonPie];
    let mut all =
        gcc.into_iter().map(|variant| victims::c("many", variant)).collect::<Result<Vec<_>, _>>()?;
    all.extend(victims::clang("many"));
    Ok(all)
}

fn reported(victim: &mut Running, verb: &str, words: &[&str]) -> Report {
    unchanged(victim, verb, words, TIMES)
}

fn values(call: &Value) -> Vec<Value> {
    call["args"].as_array().expect("arguments").iter().map(|one| one["value"].clone()).collect()
}

/// What the program passes in round `n`.
fn nine(n: u64) -> Vec<Value> {
    let i = n as i64;
    vec![
        json!(-i),
        json!(i << 40),
        json!((250 + i) as u8),
        json!(-i),
        json!((i - 5) as u32),
        json!(i),
        json!((100 + i) as i8),
        json!(format!("text {n}")),
        json!((65530 + i) as u16),
    ]
}

#[test]
fn arguments_on_the_stack_are_what_was_passed() {
    for path in or_skip!(builds()) {
        let mut victim = Running::start(&path, &[]);
        let before = text::signals(victim.pid());
        // By debug information, and by a signature.
        for probe in ["nine", NINE] {
            let report = reported(&mut victim, "trace", &[probe]);
            let all = report.calls();
            assert_eq!(all.len() as u64 + report.number("missed"), TIMES, "{probe}: {}", report.errors);
            for (n, call) in (0..).zip(all) {
                assert_eq!(values(call), nine(n), "{}: {probe}", path.display());
            }
        }
        let report = reported(&mut victim, "trace", &["reals"]);
        for (n, call) in (0_i32..).zip(report.calls()) {
            let of = f64::from(n);
            let expected = json!([of / 4.0, f64::from(n as f32 * -0.5), n]);
            assert_eq!(json!(values(call)[8..]), expected, "{}: {call}", path.display());
        }
        let report = reported(&mut victim, "trace", &["around"]);
        for (n, call) in (0..).zip(report.calls()) {
            let all = values(call);
            // clang does not say where on the stack they are, and the structure may be aligned.
            let shown = path.display().to_string();
            let is_clang = shown.contains("Clang");
            let structure = json!({"v": [n, n, n, 7]});
            assert!(all[6] == structure || is_clang && all[6] == Value::Null, "{shown}: {call}");
            let is_unknown = is_clang && all[7..] == [Value::Null, Value::Null];
            assert!(is_unknown || all[7..] == [json!(-n), json!(format!("text {n}"))], "{shown}: {call}");
        }
        text::assert_clean(victim.pid(), &before);
    }
}

/// Conditions and sums by them, in the target, also at returns.
#[test]
fn arguments_on_the_stack_decide() {
    for path in or_skip!(builds()) {
        let mut victim = Running::start(&path, &[]);
        for (condition, passes) in [
            ("g == -128", 1),
            ("i > 65530 || g == 110", 6),
            ("i < 10 && ret != 0 && b >= 0", 10),
            ("g == 100 && dur > 100s", 0),
        ] {
            for probe in ["nine", NINE] {
                let report = reported(&mut victim, "trace", &["--if", condition, probe]);
                let shown = path.display();
                assert_eq!(report.calls().len(), passes, "{shown}: {condition}: {}", report.errors);
            }
        }
        for expression in ["i % 10", "i % 10 + ret * 0"] {
            let report = reported(&mut victim, "hist", &[expression, NINE, "--top=20"]);
            let sums =
                report.objects.iter().rfind(|one| one["type"] == "hist").expect("a histogram").to_string();
            // 65530 to 65535, then 0 to 33.
            assert!(
                sums.contains("[0,5]") && sums.contains("[3,5]") && sums.contains("[8,3]"),
                "{expression}: {sums}"
            );
        }
    }
}

/// A register that is no argument: whatever it holds is shown, and the arguments beside it keep their places.
#[test]
fn a_register_is_shown_beside_arguments() {
    let path = or_skip!(victims::c("many", Variant::Plain));
    let mut victim = Running::start(&path, &[]);
    let probe = "nine(int a, reg(rsi) second, long b, reg(rsp), reg(rdx) third)";
    let report = reported(&mut victim, "trace", &[probe]);
    assert_eq!(report.calls().len() as u64, TIMES, "{}", report.errors);
    for (n, call) in (0_i64..).zip(report.calls()) {
        let all = values(call);
        assert_eq!((&all[0], &all[2]), (&json!(-n), &json!(n << 40)), "{call}");
        assert_eq!(all[1], all[2], "the second argument is in rsi");
        assert_eq!(all[3].as_u64().map(|sp| sp % 16), Some(8), "a return address was pushed");
        assert_eq!(all[4].as_u64().map(|dx| dx as u8), Some((250 + n) as u8), "{call}");
    }
    let report = reported(&mut victim, "trace", &["--if", "second == 5 << 40", probe]);
    assert_eq!(report.calls().len(), 1, "{}", report.errors);
}

/// A copy of a function takes what its locations say; what it no longer takes is unknown.
#[test]
fn copies_show_what_they_still_take() {
    for path in or_skip!(builds()) {
        let mut victim = Running::start(&path, &[]);
        let report = reported(&mut victim, "trace", &["/^copied/"]);
        let all = report.calls();
        assert_eq!(all.len() as u64, TIMES, "{}", report.errors);
        let shown = path.display();
        for (n, call) in (0..).zip(all) {
            let all = values(call);
            assert!(all.len() == 4, "{shown}: {call}");
            let expected = [json!(n), json!(3), json!(n + 1), json!(format!("text {n}"))];
            for (one, expected) in all.iter().zip(&expected) {
                assert!(one.is_null() || one == expected, "{shown}: {call}");
            }
            // gcc may pass the text's first character in place of the text.
            assert!(all[0] == expected[0], "{shown}: {call}");
            let is_copy = call["probe"].as_str().is_some_and(|probe| !probe.ends_with(":copied"));
            assert!(is_copy || all == expected || shown.to_string().contains("Clang"), "{shown}: {call}");
        }
    }
}
