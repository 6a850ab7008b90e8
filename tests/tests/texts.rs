//! VAL-1, SAFE-2: `str` and `buf(len=…)`: what arguments point to, at the edges of memory and of records. The
//! program is not disturbed, whatever they point to.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::process::Command;

use serde_json::{Value, json};
use trapline_record::control::at;
use trapline_record::pages;
use trapline_tests::fetched::Fetched;
use trapline_tests::programs::Own;
use trapline_tests::running::Running;
use trapline_tests::tracing::{Report, Tracing, once};
use trapline_tests::victims::Variant;
use trapline_tests::{or_skip, text, victims};

const TIMES: u64 = 20;

fn traced(victim: &mut Running, probe: &str, options: &[&str]) -> (Report, u64) {
    let pid = victim.pid().to_string();
    let words: Vec<&str> = ["-p", &pid, probe].into_iter().chain(options.iter().copied()).collect();
    let tracing = Tracing::start("trace", &words).expect("attaches");
    let check = victim.run(TIMES)["check"];
    let report = tracing.stop();
    assert!(report.status.success() && report.number("missed") == 0, "{}", report.errors);
    (report, check)
}

fn firsts(report: &Report) -> Vec<Value> {
    let calls = report.calls().into_iter();
    calls.map(|call| call["args"][0].clone()).collect()
}

fn named(mut argument: Value, name: &str) -> Value {
    argument["name"] = name.into();
    argument
}

#[test]
fn texts_are_what_the_program_could_read() {
    texts_are_there(Running::start(&or_skip!(victims::plain("strings")), &[]));
}

#[test]
fn texts_are_there_without_restartable_sequences_too() {
    texts_are_there(Running::start(&or_skip!(victims::c("strings", Variant::Musl)), &[]));
    let mut command = Command::new(or_skip!(victims::plain("strings")));
    command.env("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
    let victim = Running::spawn(command);
    assert_eq!(victim.line(), "ready");
    texts_are_there(victim);
}

fn texts_are_there(mut victim: Running) {
    let before = text::signals(victim.pid());
    let check = victim.run(TIMES)["check"];
    let (report, same) = traced(&mut victim, "say(str s, u64 n) -> u64", &[]);
    assert_eq!(check, same, "the program computes the same");
    let seen = firsts(&report);
    assert_eq!(seen.len() as u64, TIMES * 13);
    for round in seen.chunks(13) {
        let whole = |text: &str| json!({"name": "s", "value": text});
        assert_eq!(round[0], whole(""));
        assert_eq!(round[1], whole("hello, \"world\"\n"));
        assert_eq!(round[2], whole(&"u".repeat(63)));
        // What lies behind these 64 bytes is not in the record, not even whether the text ends there.
        assert_eq!(round[3], json!({"name": "s", "value": "x".repeat(64), "cut": true}));
        assert_eq!(round[4], json!({"name": "s", "value": "l".repeat(64), "cut": true}));
        assert_eq!(round[5], whole("grüß"));
        for (nth, at) in [(6, 0), (7, 1), (8, 1 << 63), (9, u64::MAX)] {
            assert_eq!(round[nth], json!({"name": "s", "value": null, "fault": at}), "{nth}");
        }
        let end = round[12]["fault"].as_u64().expect("the page behind the last");
        assert_eq!(round[10], json!({"name": "s", "value": "eee", "fault": end}));
        assert_eq!(round[11], json!({"name": "s", "value": "e", "fault": end}));
        assert_eq!(round[12], json!({"name": "s", "value": null, "fault": end}));
    }
    text::assert_clean(victim.pid(), &before);
}

/// SAFE-3: handlers of faults stay when the tracer is killed, continue to work, and are removed by a later
/// `detach`.
#[test]
fn a_tracer_that_is_killed_leaves_handlers_that_can_be_taken_back() {
    let path = or_skip!(victims::plain("strings"));
    let mut victim = Running::start(&path, &[]);
    let before = text::signals(victim.pid());
    let check = victim.run(TIMES)["check"];
    let pid = victim.pid().to_string();
    let mut tracing = Tracing::spawn("trace", &["-p", &pid, "say(str s, u64 n) -> u64"]);
    while text::differences(victim.pid()).is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // The first word of code that changes is not the last one. The tracer is not done until pages are noted.
    let mut runs = 0..1000;
    while noted(victim.pid()).1 == 0 {
        assert!(runs.next().is_some(), "no page is noted");
        assert_eq!(victim.run(TIMES)["check"], check);
    }
    tracing.signal(libc::SIGKILL);
    drop(tracing.end());
    let left = text::signals(victim.pid());
    assert!(left.iter().any(|thread| caught(thread) & SERVED == SERVED), "{left:?}");
    assert_eq!(victim.run(TIMES)["check"], check, "no reader is left");
    let (handler, tables) = noted(victim.pid());
    assert!(handler != 0 && tables > 0, "pages were noted, and no tracer is left to forget them");
    let output = once(&["detach", "-q", "-p", &pid]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(noted(victim.pid()), (0, 0), "nothing is loaded any more when the handler is gone");
    text::assert_clean(victim.pid(), &before);
    assert_eq!(victim.run(TIMES)["check"], check);
}

/// Address of the handler for faults of our loads, and the number of tables that name pages to load from,
/// read from the process' memory.
fn noted(pid: u32) -> (u64, usize) {
    let memory = File::open(format!("/proc/{pid}/mem")).expect("readable");
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("alive");
    let block = maps.lines().find(|l| l.contains("rw-s 00000000") && l.contains("/memfd:trapline "));
    let start = block.and_then(|line| line.split_once('-')).expect("a control block").0;
    let start = u64::from_str_radix(start, 16).expect("an address");
    let word = |offset: u64| {
        let mut word = [0; 8];
        memory.read_exact_at(&mut word, start + offset).expect("mapped");
        u64::from_le_bytes(word)
    };
    let tables = (0..word(at::PAGES_TABLES)).map(|n| word(at::PAGES_OFF) + (n << pages::STRIDE_BITS));
    let filled = |table: &u64| (0..=pages::ENTRIES).any(|n| word(table + n * 8) != 0);
    (word(at::FAULT_HANDLER), tables.filter(filled).count())
}

/// Signal mask of SIGSEGV and SIGBUS.
const SERVED: u64 = 1 << (libc::SIGSEGV - 1) | 1 << (libc::SIGBUS - 1);

fn caught(thread: &str) -> u64 {
    let hex = thread.split_once("SigCgt:\t").and_then(|(_, rest)| rest.split_whitespace().next());
    hex.and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0)
}

#[test]
fn buffers_are_as_long_as_their_argument_says() {
    let path = or_skip!(victims::plain("strings"));
    let mut victim = Running::start(&path, &[]);
    let (report, _) = traced(&mut victim, "say(buf(len=n) data, u64 n)", &["--entry-only"]);
    let seen = firsts(&report);
    assert_eq!(seen.len() as u64, TIMES * 13);
    for round in seen.chunks(13) {
        let is = |nth: usize, expected: Value| assert_eq!(round[nth], named(expected, "data"), "{nth}");
        is(0, json!({"name": "", "value": ""}));
        is(1, json!({"name": "", "value": "hello, \"world\"\n"}));
        is(3, json!({"name": "", "value": "x".repeat(64)}));
        is(4, json!({"name": "", "value": "l".repeat(64), "cut": true}));
        // As long as requested, although memory ends there.
        is(10, json!({"name": "", "value": "eee"}));
        is(11, json!({"name": "", "value": "e"}));
        is(7, json!({"name": "", "value": null, "fault": 1}));
    }
}

/// The kernel's own probe fetches the string of the same calls in a second run. Both must agree.
#[test]
fn the_kernel_reads_the_same_texts() {
    let path = Own::of(&or_skip!(victims::plain("strings")), "texts");
    let mut victim = Running::start(&path, &[]);
    let kernel = or_skip!(Fetched::new(&path, "say", victim.pid(), "+0(%di):string"));
    victim.run(TIMES);
    let fetched = kernel.read();
    assert_eq!(fetched.len() as u64, TIMES * 13);
    // Texts without the quotes at their ends. The kernel's text ends at the first newline, with or without a
    // quote.
    let bare = |text: &str| text.trim_end_matches('"').to_owned();
    let expected: Vec<Option<String>> = fetched.iter().map(|text| text.strip_prefix('"').map(bare)).collect();
    let (report, _) = traced(&mut victim, "say(str s, u64 n)", &["--entry-only"]);
    let ours = firsts(&report);
    assert_eq!(ours.len(), expected.len());
    let mut compared = 0;
    for (ours, kernel) in ours.iter().zip(&expected) {
        let text = ours["value"].as_str().and_then(|text| text.split('\n').next()).map(bare);
        match (ours.get("cut"), ours.get("fault")) {
            // Too long for our records; the kernel has limits of its own.
            (Some(_), _) => continue,
            // Bytes without a readable end are no text for the kernel.
            (_, Some(_)) => assert_eq!(*kernel, None, "{ours}"),
            _ => assert_eq!(*kernel, text, "{ours}"),
        }
        compared += 1;
    }
    assert_eq!(compared, TIMES * 11);
}

/// Other arguments beside two texts, and a filter in front of them.
#[test]
fn texts_stand_beside_the_other_arguments() {
    let path = or_skip!(victims::plain("strings"));
    let mut victim = Running::start(&path, &[]);
    let probe = "both(int a, str first, size_t n, buf(len=n) second, long b, hex c) -> u64";
    for (condition, lines) in [("b == 5 && n", TIMES), ("b == 6", 0), ("ret == 46", TIMES)] {
        let (report, _) = traced(&mut victim, probe, &["--if", condition]);
        let calls: Vec<&Value> = report.calls();
        assert_eq!(calls.len() as u64, lines, "{condition}");
        for call in calls {
            let args: Vec<&Value> =
                call["args"].as_array().expect("args").iter().map(|one| &one["value"]).collect();
            assert_eq!(json!(args), json!([1, "one", 3, "two", 5, 6]));
            assert_eq!((&call["ret"], &call["how"]), (&json!(46), &json!("returned")));
        }
    }
}

#[test]
fn what_cannot_be_text_is_refused_by_name() {
    for (probe, output_text) in [
        ("f(int n) -> strn", "`strn` is no type"),
        ("f(int n) -> buf(len=n)", "is no type"),
        ("f(str[0] s)", "is no text that trace shows"),
        ("f(int n) -> str[5000]", "is no text that trace shows"),
        ("usdt:f:f(str[200] s)", "is for arguments in registers of a function"),
        ("f(buf(len=m) p, int n)", "`m` is no argument"),
        ("f(buf(len=arg6) p)", "`arg6` is no argument"),
        ("f(buf p)", "`buf` is no type"),
    ] {
        let output = once(&["trace", "-p", "1", probe]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && error.contains(output_text), "{probe}: {error}");
    }
}
