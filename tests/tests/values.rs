//! VAL-1: floats and doubles, as arguments, values and in conditions. What is shown is what the registers
//! held, to the bit.

use serde_json::{Value, json};
use trapline_tests::fetched::Fetched;
use trapline_tests::programs::Own;
use trapline_tests::running::{Printed, Running};
use trapline_tests::tracing::{self, Report, once};
use trapline_tests::{or_skip, victims};

const TIMES: u64 = 20;
const EDGES: usize = 12;

/// A comparison with a number.
type Holds = fn(f64) -> bool;

fn traced(victim: &mut Running, words: &[&str]) -> (Report, Printed) {
    tracing::traced(victim, "trace", words, TIMES)
}

/// The number that a JSON value shows. Numbers that are not finite stand in quotes.
fn real(value: &Value) -> f64 {
    let text = |text: &str| text.parse().unwrap_or_else(|_| panic!("{text}"));
    value.as_f64().or_else(|| value.as_str().map(text)).unwrap_or_else(|| panic!("no float: {value}"))
}

/// The bits of a number; all NaNs give the same bits.
fn bits(real: f64) -> u64 {
    if real.is_nan() { f64::NAN.to_bits() } else { real.to_bits() }
}

/// The kernel reads no vector registers. In a second run of the same calls it reads the copies that the
/// caller left in memory.
#[test]
fn floats_are_those_that_the_kernel_finds_in_memory() {
    let path = Own::of(&or_skip!(victims::plain("values")), "floats");
    let mut victim = Running::start(&path, &[]);
    let mut fetched = |fetch: &str| -> Result<Vec<u64>, String> {
        let kernel = Fetched::new(&path, "scale", victim.pid(), fetch)?;
        victim.run(TIMES);
        let number =
            |text: &String| u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("a number");
        Ok(kernel.read().iter().map(number).collect())
    };
    let doubles = or_skip!(fetched("+0(%di):x64"));
    let singles = or_skip!(fetched("+0(%dx):x32"));
    let (report, reported) =
        traced(&mut victim, &["scale(double x, ptr xp, float s, int n, ptr sp) -> double"]);
    let calls = report.calls();
    assert_eq!(
        (calls.len() as u64, doubles.len(), singles.len()),
        (reported["scale"], calls.len(), calls.len())
    );
    for ((call, double), single) in calls.iter().zip(doubles).zip(singles) {
        let value = |n: usize| real(&call["args"][n]["value"]);
        let expected = f64::from_bits(double);
        assert_eq!(bits(value(0)), bits(expected), "{call}");
        let wanted_single = f32::from_bits(u32::try_from(single).expect("32 bits"));
        assert_eq!(bits(f64::from(value(2) as f32)), bits(f64::from(wanted_single)), "{call}");
        let returned = if wanted_single == 0.0 { expected } else { -expected };
        assert_eq!(bits(real(&call["ret"])), bits(returned), "{call}");
    }
    let integers: Vec<i64> = calls.iter().filter_map(|call| call["args"][3]["value"].as_i64()).collect();
    let expected: Vec<i64> = (0..TIMES).flat_map(|_| -3..EDGES as i64 - 3).collect();
    assert_eq!(integers, expected, "integers are numbered apart");
}

#[test]
fn floats_are_shown_as_they_are() {
    let path = or_skip!(victims::plain("values"));
    let mut victim = Running::start(&path, &[]);
    let (report, reported) = traced(&mut victim, &["single(float s, double) -> float"]);
    let seen = report.calls();
    assert_eq!(seen.len() as u64, reported["single"]);
    let shown = |call: &Value| json!([call["args"][0]["value"], call["args"][1]["value"], call["ret"]]);
    let first: Vec<Value> = seen.iter().take(EDGES).map(|call| shown(call)).collect();
    let (single, double) = (f64::from(f32::MAX), f64::MAX);
    assert_eq!(first[4], json!([0.1, 0.1, -0.1]));
    assert_eq!((real(&first[5][0]) as f32, real(&first[5][1])), (single as f32, double));
    assert_eq!(
        first[8..],
        [
            json!(["inf", "inf", "-inf"]),
            json!(["-inf", "-inf", "inf"]),
            json!(["NaN", "NaN", "NaN"]),
            json!(["NaN", "NaN", "NaN"]),
        ]
    );
    assert!(first[1][0].as_f64().is_some_and(|zero| zero == 0.0 && zero.is_sign_negative()), "{}", first[1]);
    let (report, _) = traced(
        &mut victim,
        &["eight(double a, double b, double c, double d, double e, double f, double g, double h) -> double"],
    );
    let call = report.calls()[0];
    let all: Vec<f64> = (0..8).map(|n| real(&call["args"][n]["value"])).collect();
    assert_eq!((all, real(&call["ret"])), (vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.5], 36.5));
}

/// Conditions must agree with the host's own comparisons. The target decides them, at the entry or at the
/// return.
#[test]
fn conditions_on_floats_say_what_comparisons_say() {
    const ALL: [f64; EDGES] = [
        0.0,
        -0.0,
        1.5,
        -2.25,
        0.1,
        f64::MAX,
        -f64::MIN_POSITIVE,
        5e-324,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        f64::NAN,
    ];
    let path = or_skip!(victims::plain("values"));
    let mut victim = Running::start(&path, &[]);
    let cases: [(&str, Holds); 9] = [
        ("x < 0.5", |x| x < 0.5),
        ("x >= -2.25 && x != 1.5", |x| x >= -2.25 && x != 1.5),
        ("x == 0", |x| x == 0.0),
        ("!(x > 0)", |x| x <= 0.0 || x.is_nan()),
        ("x != x", |x| x.is_nan()),
        ("x", |x| x != 0.0),
        ("x > 1e300 || x <= -INFINITY", |x| x > 1e300 || x == f64::NEG_INFINITY),
        ("x < 0.5 || dur > 100s", |x| x < 0.5),
        ("s < 0.1", |x| f64::from(x as f32) < 0.1),
    ];
    for (condition, holds) in cases {
        let (report, reported) =
            traced(&mut victim, &["--if", condition, "scale(double x, ptr, float s) -> double"]);
        let expected = TIMES * ALL.iter().filter(|x| holds(**x)).count() as u64;
        let seen = report.calls();
        assert_eq!(seen.len() as u64, expected, "{condition}");
        assert!(seen.iter().all(|call| call["ret"] != Value::Null), "{condition}");
        let kept_back = reported["scale"] - expected;
        let counted = (report.field("scale", "filtered"), report.field("scale", "left_out"));
        assert_eq!(counted, (kept_back, 0), "{condition}");
    }
    let by_value: [(&str, Holds); 2] = [("ret < 0", |x| -x < 0.0), ("ret > x", |x| -x > x)];
    for (condition, holds) in by_value {
        let (report, _) = traced(&mut victim, &["--if", condition, "single(float x) -> float"]);
        let expected = TIMES * ALL.iter().filter(|x| holds(**x)).count() as u64;
        assert_eq!(report.calls().len() as u64, expected, "{condition}");
    }
}

#[test]
fn what_floats_cannot_be_is_reported() {
    for (words, output_text) in [
        (
            &["trace", "-p", "1", "--if", "x + 1 > 2", "f(double x)"][..],
            "may be compared, and no more\n    x + 1 > 2\n    ^",
        ),
        (&["trace", "-p", "1", "--if", "n > 0.5", "f(int n)"], "only a float or double"),
        (&["trace", "-p", "1", "--if", "x > n", "f(double x, int n)"], "compared with a constant or another"),
        (&["trace", "-p", "1", "--if", "x > y", "f(double x, float y)"], "floats of different widths"),
        (&["hist", "-p", "1", "x", "f(double x)"], "`x` is a float"),
    ] {
        let output = once(words);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && error.contains(output_text), "{words:?}: {error}");
    }
}
