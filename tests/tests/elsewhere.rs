//! VAL-1: values that are not where C puts them: arguments of Go and of its assembly, of C in a Go program,
//! and of USDT probes.

use serde_json::Value;
use trapline_tests::running::{Printed, Running};
use trapline_tests::tracing::{self, Report, Tracing, once};
use trapline_tests::victims::{self, Variant};
use trapline_tests::{native, or_skip, text};

const TIMES: u64 = 60;

/// Runs the victim under a verb.
fn reported(victim: &mut Running, verb: &str, words: &[&str]) -> (Report, Printed) {
    let (report, reported) = tracing::traced(victim, verb, words, TIMES);
    assert!(report.refused().is_empty(), "{words:?}: {}", report.errors);
    assert_eq!(reported["wrong"], 0);
    (report, reported)
}

/// Arguments of each call in the report, and what it returned.
fn calls(report: &Report) -> Vec<(Vec<Value>, Value)> {
    let of = report.calls().into_iter();
    let arguments = |call: &Value| {
        let all = call["args"].as_array().expect("arguments").iter();
        all.map(|one| one["value"].clone()).collect()
    };
    of.map(|call| (arguments(call), call["ret"].clone())).collect()
}

/// What a run that ends by itself prints.
fn output_text(words: &[&str]) -> String {
    let output = once(words);
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// `added` is a C function, `main.summed` a Go function; both take n and -2n.
#[test]
fn c_in_a_go_program_is_passed_as_c_does() {
    let mut victim = Running::start(&or_skip!(victims::go_with_libc("cgo")), &[]);
    let before = text::signals(victim.pid());
    for probe in ["added(int a, int b) -> int", "main.summed(i64 a, i64 b) -> i64"] {
        let (report, _) = reported(&mut victim, "trace", &[probe]);
        let calls = calls(&report);
        assert_eq!(calls.len() as u64 + report.number("missed"), TIMES, "{}", report.errors);
        for (arguments, returned) in calls {
            let n = arguments[0].as_i64().expect("a number");
            assert_eq!((arguments[1].as_i64(), returned.as_i64()), (Some(-2 * n), Some(-n)), "{probe}");
        }
        let name = probe.split_once('(').expect("a signature").0;
        let (report, _) = reported(&mut victim, "trace", &["--if", "a % 3 == 1 && b < -2", probe]);
        assert_eq!(report.hits(name), TIMES / 3 - 1, "{}", report.errors);
        let (report, reported) = reported(&mut victim, "hist", &["b", probe]);
        assert_eq!(report.hits(name), reported[name], "{}", report.errors);
    }
    text::assert_clean(victim.pid(), &before);
}

/// Go's assembly takes arguments on the stack, and Go's strings do not end with a 0. Conditions on the
/// former, sums of its values, and `str` for the latter are refused. Where only shown, such values are
/// unknown.
#[test]
fn what_cannot_be_known_of_go_is_refused() {
    let mut victim = Running::start(&or_skip!(victims::go("arguments")), &[]);
    let pid = victim.pid().to_string();
    for (words, says) in [
        (
            &["trace", "-d", "0.2", "--if", "n > 3", "runtime.memmove(ptr to, ptr from, u64 n)"][..],
            "on the stack",
        ),
        (&["hist", "-d", "0.2", "ret", "runtime.memmove() -> u64"], "on the stack"),
        (&["trace", "-d", "0.2", "main.said(i64, i64, i64, str text)"], "buf(len=n)"),
        (&["hist", "-d", "0.2", "text", "main.said(i64, i64, i64, str text)"], "buf(len=n)"),
    ] {
        let words: Vec<&str> = words.iter().copied().chain(["-p", &pid]).collect();
        let output_text = output_text(&words);
        assert!(output_text.contains(says), "{words:?}: {output_text}");
    }
    // Its exits lie behind loads that Go's handler of faults looks up, so they stay where they are.
    let words = ["--entry-only", "-p", &pid, "runtime.memmove(ptr to)"];
    let tracing = Tracing::start("trace", &words).expect("attaches");
    victim.run(10);
    let report = tracing.stop();
    let calls = calls(&report);
    assert!(!calls.is_empty(), "{}", report.errors);
    for (arguments, returned) in calls {
        assert_eq!((&arguments[0], &returned), (&Value::Null, &Value::Null));
    }
    assert_eq!(victim.run(10)["wrong"], 0);
}

fn marked() -> Result<Running, String> {
    if !native::READS_MARKS {
        return Err("no code reads a mark's arguments on this processor".to_owned());
    }
    Ok(Running::start(&victims::c("marked", Variant::Plain)?, &[]))
}

const REGISTERS: &str = "usdt:marked:marked:registers(u64 a, int b, str text, int c, ptr sp, ptr bp)";
const MEMORY: &str =
    "usdt:marked:marked:memory(u64 n, unsigned low, str text, int cell, u64 fault, u64 high)";

#[test]
fn arguments_of_marks_are_where_their_notes_say() {
    let mut victim = or_skip!(marked());
    let before = text::signals(victim.pid());
    let (report, _) = reported(&mut victim, "trace", &[REGISTERS]);
    let all = calls(&report);
    assert_eq!(all.len() as u64 + report.number("missed"), TIMES, "{}", report.errors);
    for (arguments, _) in all {
        let number = |nth: usize| arguments[nth].as_i64();
        let a = number(0).expect("a number");
        assert_eq!(
            (number(1), arguments[2].as_str(), number(3)),
            (Some(a + 1), Some("what is said"), Some(-7))
        );
        assert_eq!(number(5).zip(number(4)).map(|(bp, sp)| bp - sp), Some(48), "{arguments:?}");
    }
    let (report, _) = reported(&mut victim, "trace", &[MEMORY]);
    let all = calls(&report);
    assert_eq!(all.len() as u64 + report.number("missed"), TIMES, "{}", report.errors);
    for (nth, (arguments, _)) in (0_u64..).zip(all) {
        assert_eq!(arguments[..2], [Value::from(nth), Value::from(nth)], "{arguments:?}");
        assert_eq!((arguments[2].as_str(), arguments[3].as_i64()), (Some("what is said"), Some(70)));
        assert_eq!(arguments[4..], [Value::Null, Value::Null], "nothing can be read there");
    }
    text::assert_clean(victim.pid(), &before);
}

/// Two places belong to one USDT probe, and each has its arguments elsewhere. Conditions and sums must know
/// that.
#[test]
fn conditions_and_sums_know_marks() {
    let mut victim = or_skip!(marked());
    for (condition, probe, passes) in [
        ("a == 5", REGISTERS, 1),
        ("b % 3 == 1 && c == -7", REGISTERS, TIMES / 3),
        ("n % 3 == 1 && low < 10", MEMORY, 3),
        ("n % 3 == 1 && cell == 71", MEMORY, 0),
        ("fault == 0", MEMORY, 0),
        ("high == 0 || fault != 0", MEMORY, 0),
        ("high == 0 || n < 2", MEMORY, 2),
        ("n == 7", "usdt:marked:marked:twice(u64 n, int x)", 2),
        ("n < 7 && x == 5", "usdt:marked:marked:twice(u64 n, int x)", 7),
    ] {
        let (report, _) = reported(&mut victim, "trace", &["--if", condition, probe]);
        assert_eq!(calls(&report).len() as u64, passes, "{condition}: {}", report.errors);
    }
    let (report, _) =
        reported(&mut victim, "hist", &["n % 4", "usdt:marked:marked:twice(u64 n, int x)", "--top=9"]);
    let sums = report.objects.iter().rfind(|one| one["type"] == "hist").expect("a histogram");
    assert!(sums.to_string().contains("[[0,30],[1,30],[2,30],[3,30]]"), "{sums}");
    let pid = victim.pid().to_string();
    let output_text =
        output_text(&["stack", "-d", "0.2", "-p", &pid, "--if", "arg0 == 1", "usdt:marked:marked:twice"]);
    assert!(output_text.contains("with stacks, only arguments in registers decide"), "{output_text}");
}

/// Arguments are shown without a signature, as wide as the ELF note says.
#[test]
fn marks_show_their_arguments_unasked() {
    let mut victim = or_skip!(marked());
    let (report, _) = reported(&mut victim, "trace", &["usdt:marked:marked:*"]);
    let of = |name: &str| {
        let is_of = |call: &&Value| call["probe"].as_str().is_some_and(|probe| probe.ends_with(name));
        let call = report.calls().into_iter().find(is_of).expect("a call");
        let all = call["args"].as_array().expect("arguments").iter();
        all.map(|one| one["value"].as_i64()).collect::<Vec<_>>()
    };
    assert_eq!(of(":registers")[..2], [Some(1), Some(2)]);
    assert_eq!(of(":registers")[3], Some(-7));
    assert_eq!(of(":memory")[3..], [Some(70), None, None]);
    assert_eq!(of(":twice"), [Some(0), Some(1)]);
}

/// A recording of USDT probes shows the same when it is read back.
#[test]
fn recordings_know_marks() {
    let mut victim = or_skip!(marked());
    let pid = victim.pid().to_string();
    let file = std::env::temp_dir().join(format!("trapline-marks-{pid}.trapline"));
    let name = file.to_str().expect("UTF-8");
    let words = ["trace", "-o", name, "-p", &pid, "-d", "1", MEMORY].map(str::to_owned);
    let recording =
        std::thread::spawn(move || output_text(&words.iter().map(String::as_str).collect::<Vec<_>>()));
    while !recording.is_finished() {
        assert_eq!(victim.run(TIMES)["wrong"], 0);
    }
    let wrote = recording.join().expect("it ends");
    let read = output_text(&["trace", "--from", name, "--if", "n == 7 && low == 7"]);
    std::fs::remove_file(&file).ok();
    let lines: Vec<&str> = read.lines().filter(|line| line.contains("memory(")).collect();
    assert!(!lines.is_empty(), "{wrote}{read}");
    for line in lines {
        assert!(line.contains("(n=7, low=7, text=\"what is said\", cell=70, fault=?, high=?)"), "{line}");
    }
}
