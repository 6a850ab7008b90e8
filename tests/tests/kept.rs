//! TXT-2 and VAL-1 for texts that a call keeps for its return: what a returned pointer leads to, buffers that a call
//! fills, and long texts; cut ones say so. The judge is what the program returns and passes.

use std::path::PathBuf;

use serde_json::{Value, json};
use trapline_tests::running::Running;
use trapline_tests::tracing::{Report, once, unchanged};
use trapline_tests::victims::{self, Variant};
use trapline_tests::{or_skip, text};

const TIMES: u64 = 60;

fn builds() -> Result<Vec<PathBuf>, String> {
    let all = [Variant::O0, Variant::Plain, Variant::O3, Variant::Static, Variant::Musl];
    all.into_iter().map(|variant| victims::c("kept", variant)).collect()
}

fn reported(victim: &mut Running, words: &[&str]) -> Report {
    unchanged(victim, "trace", words, TIMES)
}

#[test]
fn returned_texts_are_what_was_returned() {
    for path in or_skip!(builds()) {
        let shown = path.display();
        let mut victim = Running::start(&path, &[]);
        let before = text::signals(victim.pid());
        // By its exits, and by replaced return addresses.
        for how in [&["--ret=exits"][..], &["--ret=stack"]] {
            let report = reported(&mut victim, &[how, &["named(int n) -> str"]].concat());
            let named: Vec<&Value> =
                report.calls().into_iter().filter(|call| call["how"] != "tail").collect();
            assert_eq!(named.len() as u64, 2 * TIMES, "{shown} {how:?}: {}", report.errors);
            for call in named {
                let n = call["args"][0]["value"].as_u64().expect("a number");
                let expected = if n % 5 == 4 { Value::Null } else { json!(format!("name {n}")) };
                assert_eq!(call["ret"], expected, "{shown} {how:?}: {call}");
                assert_eq!(call["ret_fault"].as_u64(), (n % 5 == 4).then_some(0), "{call}");
            }
        }
        for (probe, room) in [("lengthy(int n) -> str", 64), ("lengthy(int n) -> str[3000]", 3000)] {
            let report = reported(&mut victim, &[probe]);
            let all = report.calls();
            assert_eq!(all.len() as u64, TIMES, "{shown}: {}", report.errors);
            for (n, call) in (0_usize..).zip(all) {
                let len = n * 97 % 4999;
                let letter = char::from(b'a' + (n % 26) as u8).to_string();
                assert_eq!(call["ret"], json!(letter.repeat(len.min(room))), "{shown}: {probe}");
                assert_eq!(call["ret_cut"].as_bool().unwrap_or(false), len >= room, "{shown}: {call}");
            }
        }
        text::assert_clean(victim.pid(), &before);
    }
}

#[test]
fn buffers_have_what_the_call_left_in_them() {
    for path in or_skip!(builds()) {
        let shown = path.display();
        let mut victim = Running::start(&path, &[]);
        let probe = "filled(int n, buf(len=ret)[256] data, int room) -> int";
        let report = reported(&mut victim, &[probe]);
        let all = report.calls();
        assert_eq!(all.len() as u64, TIMES, "{shown}: {}", report.errors);
        for (n, call) in (0_i64..).zip(all) {
            let ret = if n % 7 == 6 { -1 } else { n % 250 };
            let data = (n % 10).to_string().repeat(ret.max(0) as usize);
            assert_eq!((&call["ret"], &call["args"][1]["value"]), (&json!(ret), &json!(data)), "{shown}");
        }
        // Conditions go by the entry and by the return, as ever.
        for (condition, passes) in [("ret < 0", 8), ("n >= 50 && ret > 55", 4), ("n < 3 && room == 250", 3)] {
            let report = reported(&mut victim, &["--if", condition, probe]);
            assert_eq!(report.calls().len(), passes, "{shown}: {condition}: {}", report.errors);
        }
    }
}

#[test]
fn long_texts_are_those_of_the_entry() {
    for path in or_skip!(builds()) {
        let shown = path.display();
        let mut victim = Running::start(&path, &[]);
        let report = reported(&mut victim, &["takes(str[600] text, buf(len=n)[2000] bytes, long n)"]);
        let all = report.calls();
        assert_eq!(all.len() as u64, TIMES, "{shown}: {}", report.errors);
        for (n, call) in (0_usize..).zip(all) {
            let (text, bytes) = (n * 17 % 699, 1 + n * 71 % 2999);
            assert_eq!(call["args"][0]["value"], json!("x".repeat(text.min(600))), "{shown}");
            assert_eq!(call["args"][0]["cut"].as_bool().unwrap_or(false), text >= 600, "{shown}: {call}");
            assert_eq!(call["args"][1]["value"], json!("b".repeat(bytes.min(2000))), "{shown}");
            assert_eq!(call["args"][1]["cut"].as_bool().unwrap_or(false), bytes > 2000, "{shown}: {call}");
        }
        let pid = victim.pid().to_string();
        let output = once(&[
            "trace",
            "-d",
            "0.1",
            "-p",
            &pid,
            "takes(str[3000] text, buf(len=n)[2000] bytes, long n)",
        ]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains("a record of more than 4,096 bytes"), "{error}");
    }
}

/// A call that ends as another function has returned nothing that could be shown.
#[test]
fn a_tail_call_has_no_text() {
    let path = or_skip!(victims::c("kept", Variant::Plain));
    let mut victim = Running::start(&path, &[]);
    let report = reported(&mut victim, &["--ret=exits", "passes_on(int n) -> str"]);
    let all = report.calls();
    assert_eq!(all.len() as u64, TIMES, "{}", report.errors);
    assert!(all.iter().all(|call| call["how"] == "tail" && call["ret"].is_null()), "{}", all[0]);
}

/// A recording has the same texts when it is read back.
#[test]
fn recordings_have_them() {
    let path = or_skip!(victims::c("kept", Variant::Plain));
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let file = std::env::temp_dir().join(format!("trapline-kept-{pid}.trapline"));
    let name = file.to_str().expect("UTF-8");
    let words = ["trace", "-o", name, "-p", &pid, "-d", "1", "named(int n) -> str[100]"].map(str::to_owned);
    let recording = std::thread::spawn(move || once(&words.iter().map(String::as_str).collect::<Vec<_>>()));
    while !recording.is_finished() {
        victim.run(TIMES);
    }
    let wrote = recording.join().expect("it ends");
    let read = once(&["trace", "--from", name, "--if", "n == 7"]);
    std::fs::remove_file(&file).ok();
    let text = String::from_utf8_lossy(&read.stdout).into_owned();
    assert!(
        text.lines().next().is_some_and(|line| line.contains("named(n=7) = \"name 7\" <")),
        "{text}{wrote:?}"
    );
}
