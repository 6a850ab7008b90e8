//! SAFE-4: replaced return addresses (`--ret=stack`): calls return to where they were called from, whatever
//! they do in between.

mod launched;
mod unwinders;

use serde_json::Value;
use trapline_tests::running::{Printed, Running};
use trapline_tests::tracing::{Report, Tracing, binary, once};
use trapline_tests::{or_skip, text, victims};

/// Functions that return as often as the victim prints.
const RETURN: [&str; 25] = [
    "leaf",
    "wide",
    "real",
    "extended",
    "recurse",
    "tail_a",
    "tail_b",
    "tail_c",
    "hooked",
    "jumper",
    "jumped",
    "thrower",
    "through",
    "caught",
    "tracer",
    "traced",
    "coroutines",
    "in_handler",
    "on_signal",
    "signalled",
    "joined",
    "forks",
    "forked",
    "child_leaf",
    "vforked",
];
/// Functions of which some or all calls never return.
const LEFT: [&str; 4] = ["yielding", "thread_body", "leaver", "leaves_at_once"];
const TIMES: u64 = 200;

fn victim() -> Result<std::path::PathBuf, String> {
    victims::cpp("returns")
}

fn attached(pid: u32, ret: &str, funcs: &[&str]) -> Result<Tracing, Report> {
    let (pid, ret) = (pid.to_string(), format!("--ret={ret}"));
    let words: Vec<&str> = ["-p", &pid, "-F", &ret].into_iter().chain(funcs.iter().copied()).collect();
    Tracing::start("lat", &words)
}

/// Names of functions that a report lists as refused.
fn refused(report: &Report) -> Vec<String> {
    report.refused().into_iter().filter_map(|(probe, _)| Some(probe.rsplit(':').next()?.to_owned())).collect()
}

fn assert_calls(report: &Report, reported: &Printed, funcs: &[&str]) {
    for func in funcs {
        let calls = report.field(func, "calls");
        assert_eq!(
            calls,
            reported[*func],
            "calls of {func}; refused: {:?}; {}",
            report.refused(),
            report.errors
        );
        assert_eq!(report.field(func, "unpaired"), 0, "{func}");
    }
}

#[test]
fn every_end_of_a_call_is_survived_and_counted() {
    let path = or_skip!(victim());
    let mut running = Running::start(&path, &[]);
    let bare = running.run(TIMES);
    let before = text::signals(running.pid());
    let all: Vec<&str> = RETURN.into_iter().chain(LEFT).collect();
    let tracing = attached(running.pid(), "stack", &all).expect("attaches");
    let armed = running.run(TIMES);
    assert_eq!(armed, bare, "the victim behaves differently");
    let report = tracing.stop();
    assert_eq!(report.status.code(), Some(0), "{}", report.errors);
    // A coroutine that is never resumed, a thread that ends, and a child that ends: only functions that
    // cannot return may be refused.
    assert!(refused(&report).iter().all(|func| LEFT.contains(&func.as_str())), "{:?}", report.refused());
    assert_calls(&report, &bare, &RETURN);
    assert_eq!(report.number("missed"), 0);
    // Calls that were left without a return count as in flight or unreturned: a third of the jumps, a quarter
    // of the throws.
    let left = |func: &str| report.field(func, "in_flight") + report.field(func, "unreturned");
    assert_eq!(left("jumper"), TIMES.div_ceil(3), "{}", report.errors);
    assert_eq!(left("thrower"), TIMES.div_ceil(4));
    assert_eq!(left("thread_body"), TIMES / 50, "its thread ended there");
    assert_eq!(left("leaf"), 0);
    text::assert_clean(running.pid(), &before);
    assert_eq!(running.run(TIMES), bare, "after detaching");
}

#[test]
fn a_call_that_blocks_returns_to_its_caller_after_a_detach() {
    let path = or_skip!(victims::cpp("returning"));
    for kill in [false, true] {
        let mut running = Running::start(&path, &[]);
        let bare = running.run(1);
        let mut tracing = attached(running.pid(), "stack", &["outer", "inner", "blocked"]).expect("attaches");
        running.begin(2);
        assert_eq!(running.line(), "blocking", "two calls deep");
        let pid = running.pid().to_string();
        if kill {
            tracing.signal(libc::SIGKILL);
            let _killed = tracing.end();
            let cleaned = once(&["detach", "-p", &pid, "--json"]);
            let line: Value = serde_json::from_slice(&cleaned.stdout).expect("one object");
            assert_eq!(line["returns"], 3, "{line}");
        } else {
            let report = tracing.stop();
            assert_eq!(report.status.code(), Some(0), "{}", report.errors);
            assert_eq!(report.field("outer", "in_flight"), 1, "{}", report.errors);
        }
        // No stack leads into executable memory of ours any more.
        assert_eq!(armed_words(running.pid()), 0, "killed: {kill}");
        running.send("go");
        assert_eq!(running.reported(), bare);
        assert_eq!(running.run(1), bare);
        running.send("quit");
        assert!(running.finish().success());
    }
}

/// The same in six threads at once, on stacks of all kinds, one of which no thread runs on at that moment.
#[test]
fn calls_that_block_on_many_stacks_return_to_their_callers_after_a_detach() {
    const FUNCS: [&str; 5] = ["above", "held", "tail_start", "tail_end", "leaves_for_a_while"];
    let path = or_skip!(victims::cpp("blocked_many"));
    for kill in [false, true] {
        let mut running = Running::start(&path, &[]);
        let bare = running.run(1);
        let mut tracing = attached(running.pid(), "stack", &FUNCS).expect("attaches");
        running.begin(2);
        assert_eq!(running.line(), "blocking");
        // Four stacks with two calls each, a chain of two, and the one that was left.
        assert_eq!(trampolines(running.pid()).0, 11);
        let pid = running.pid().to_string();
        if kill {
            tracing.signal(libc::SIGKILL);
            let _killed = tracing.end();
            let cleaned = once(&["detach", "-p", &pid, "--json"]);
            let line: Value = serde_json::from_slice(&cleaned.stdout).expect("one object");
            // Two of them share one stack word.
            assert_eq!(line["returns"], 10, "{line}");
        } else {
            let report = tracing.stop();
            assert_eq!(report.status.code(), Some(0), "{}", report.errors);
            let in_flight = FUNCS.map(|func| report.field(func, "in_flight"));
            assert_eq!(in_flight, [4, 4, 1, 1, 1], "{}", report.errors);
        }
        running.send("go");
        assert_eq!(running.reported(), bare, "killed: {kill}");
        assert_eq!(running.run(1), bare);
        running.send("quit");
        assert!(running.finish().success());
    }
}

/// Return trampolines run short while calls block. Only those of calls that were left are reused. Neither
/// trampoline of a chain is, although the stack names only one of them.
#[test]
fn trampolines_of_calls_that_block_are_not_given_back() {
    const FUNCS: [&str; 5] = ["above", "held", "tail_start", "tail_end", "leaves_for_good"];
    let path = or_skip!(victims::cpp("blocked_many"));
    let mut running = Running::start(&path, &[]);
    let bare = running.run(1);
    let pid = running.pid().to_string();
    let words = ["-p", &pid, "-F", "--ret=stack", "--maxactive=64"];
    let tracing = Tracing::start("lat", &[&words[..], &FUNCS].concat()).expect("attaches");
    running.begin(2);
    assert_eq!(running.line(), "blocking");
    assert_eq!(trampolines(running.pid()), (10, 64));
    let leave = |running: &mut Running, times: u64| {
        running.send(&format!("leave {times}"));
        assert_eq!(running.line(), "left");
    };
    // First half of the trampolines are in use, and those of calls that were left are reused. Then all are in
    // use; one that was wrongly given back would now belong to another call.
    leave(&mut running, 22);
    while trampolines(running.pid()).0 >= 32 {
        assert!(running.alive());
        std::thread::yield_now();
    }
    leave(&mut running, 60);
    running.send("go");
    assert_eq!(running.reported(), bare);
    let report = tracing.stop();
    assert!(report.refused().is_empty(), "{:?}", report.refused());
    let calls = FUNCS.map(|func| report.field(func, "calls"));
    assert_eq!(calls, [4, 4, 1, 1, 0], "{}", report.errors);
    let field = |field: &str| report.field("leaves_for_good", field);
    assert_eq!(field("in_flight") + field("unreturned") + report.number("missed"), 82, "{}", report.errors);
    assert!(field("unreturned") > 0, "none was reused: {}", report.errors);
    running.send("quit");
    assert!(running.finish().success());
}

/// Return trampolines that are in use, and all that there are, read from the process' own memory.
fn trampolines(pid: u32) -> (usize, usize) {
    use std::os::unix::fs::FileExt as _;
    use trapline_record::control::at;
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("alive");
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).expect("readable");
    let word = |addr: u64| {
        let mut bytes = [0; 8];
        memory.read_exact_at(&mut bytes, addr).expect("mapped");
        u64::from_le_bytes(bytes)
    };
    let blocks = maps.lines().filter(|l| l.contains("rw-s 00000000") && l.contains("/memfd:trapline "));
    let starts =
        blocks.filter_map(|line| u64::from_str_radix(line.split_once('-')?.0, 16).ok()).collect::<Vec<_>>();
    let block = starts
        .into_iter()
        .find(|block| word(block + at::TRAMPOLINES_COUNT) != 0)
        .expect("a segment with return trampolines");
    let mut lent = vec![0; word(block + at::TRAMPOLINES_COUNT) as usize];
    let first = word(block + at::TRAMPOLINES_TABLE) + trapline_record::trampolines::Trampolines::LENT_OFF;
    memory.read_exact_at(&mut lent, first).expect("mapped");
    (lent.iter().filter(|byte| **byte != 0).count(), lent.len())
}

/// Words on the process' stacks that lead into code of ours. There must be none once that is unmapped.
fn armed_words(pid: u32) -> usize {
    use std::io::{Read as _, Seek as _};
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("alive");
    let range = |line: &str| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
    };
    let ours: Vec<_> = maps
        .lines()
        .filter(|l| l.contains("r-xs") && l.contains("/memfd:trapline"))
        .filter_map(range)
        .collect();
    let stack = maps.lines().find(|l| l.ends_with("[stack]")).and_then(range).expect("a stack");
    let status = std::fs::read_to_string(format!("/proc/{pid}/syscall")).expect("alive");
    let sp = status.split_whitespace().rev().nth(1).expect("a stack pointer").trim_start_matches("0x");
    let sp = u64::from_str_radix(sp, 16).expect("hexadecimal");
    assert!(stack.contains(&sp), "{status}");
    let mut bytes = vec![0; (stack.end - sp) as usize];
    let mut memory = std::fs::File::open(format!("/proc/{pid}/mem")).expect("readable");
    memory.seek(std::io::SeekFrom::Start(sp)).expect("there");
    memory.read_exact(&mut bytes).expect("its stack");
    let words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
    words.filter(|word| ours.iter().any(|code| code.contains(word))).count()
}

/// There are as many return trampolines as were asked for, and calls beyond that number are missed. The
/// report says all of this.
#[test]
fn trampolines_are_as_many_as_were_asked_for() {
    let path = or_skip!(victim());
    let mut running = Running::start(&path, &[]);
    let bare = running.run(TIMES);
    let pid = running.pid().to_string();
    let words = ["-p", &pid, "-F", "--ret=stack", "--maxactive=100", "recurse"];
    let tracing = Tracing::start("lat", &words).expect("attaches");
    assert_eq!(trampolines(running.pid()), (0, 128), "rounded up to a power of two");
    assert_eq!(running.run(TIMES), bare);
    let report = tracing.stop();
    assert_eq!(report.field("recurse", "calls") + report.number("missed"), bare["recurse"]);
}

/// No address space for return trampolines: an error says so, and nothing is changed.
#[test]
fn no_memory_for_trampolines() {
    let path = or_skip!(victim());
    let mut running = Running::start(&path, &[]);
    let bare = running.run(TIMES);
    let before = text::signals(running.pid());
    let status = std::fs::read_to_string(format!("/proc/{}/status", running.pid())).expect("alive");
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).expect("a size");
    let kib: u64 = size.trim().trim_end_matches(" kB").trim().parse().expect("a number");
    set_limit(running.pid(), (kib << 10) + (8 << 20));
    let pid = running.pid().to_string();
    let words = ["-p", &pid, "-F", "--ret=stack", "--maxactive=4194304", "leaf"];
    let report = Tracing::start("lat", &words).expect_err("refused");
    assert!(report.errors.contains("memory"), "{}", report.errors);
    assert_eq!(running.run(TIMES), bare);
    text::assert_clean(running.pid(), &before);
}

/// Calls the program `prlimit`, as this crate has no unsafe code.
fn set_limit(pid: u32, bytes: u64) {
    let limit = format!("--as={bytes}:unlimited");
    let done = std::process::Command::new("prlimit").args(["--pid", &pid.to_string(), &limit]).status();
    assert!(done.is_ok_and(|status| status.success()), "prlimit of util-linux");
}

#[test]
fn exits_are_patched_where_they_can_be() {
    let path = or_skip!(victim());
    let mut running = Running::start(&path, &[]);
    let bare = running.run(TIMES);
    // Exits of the last function cannot all be found.
    let all = ["leaf", "recurse", "caught", "hooked"];
    let tracing = attached(running.pid(), "auto", &all).expect("attaches");
    assert_eq!(running.run(TIMES), bare);
    assert_calls(&tracing.stop(), &bare, &all);
    let list = |ret: &str, func: &str| -> Value {
        let pid = running.pid().to_string();
        let output_text = once(&["list", "--lat", &format!("--ret={ret}"), "--json", "-p", &pid, func]);
        serde_json::from_slice(&output_text.stdout)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output_text.stderr)))
    };
    assert_eq!(list("auto", "leaf")["returns"], "exits");
    assert_eq!(list("exits", "leaf")["returns"], "exits");
    for (ret, func) in [("stack", "leaf"), ("stack", "hooked"), ("auto", "hooked")] {
        assert_eq!(list(ret, func)["returns"], "stack", "{func}");
    }
    for (ret, func, why) in [
        ("stack", "libc:setjmp", "reads the return address"),
        ("stack", "libc:_exit", "no exit"),
        ("stack", "_start", "begins here"),
        ("exits", "libc:_exit", "no exit"),
        ("auto", "libc:_exit", "no exit"),
        ("exits", "hooked", "exits unknown: the indirect jump"),
    ] {
        let one = list(ret, func);
        assert!(one["reason"].as_str().is_some_and(|reason| reason.contains(why)), "{func}: {one}");
        assert!(one.get("returns").is_none(), "{one}");
    }
    for (ret, func, why) in [("exits", "hooked", "exits unknown"), ("exits", "libc:_exit", "no exit")] {
        let report = attached(running.pid(), ret, &[func]).expect_err("refused");
        assert!(report.errors.contains(why), "{func}: {}", report.errors);
    }
    assert_eq!(running.run(TIMES), bare);
}

#[test]
fn go_is_refused_and_its_stacks_may_grow_while_exits_are_patched() {
    let path = or_skip!(victims::go("http"));
    let mut running = Running::start(&path, &[]);
    assert_eq!(running.run(200)["wrong"], 0);
    let report = attached(running.pid(), "stack", &["main.growing"]).expect_err("refused");
    assert!(report.errors.contains("Go moves its stacks"), "{}", report.errors);
    let tracing = attached(running.pid(), "auto", &["main.handle", "main.growing"]).expect("attaches");
    assert_eq!(running.run(200)["wrong"], 0);
    let report = tracing.stop();
    assert_eq!(report.field("main.handle", "calls"), 200, "{}", report.errors);
    assert!(report.field("main.growing", "calls") > 0, "{}", report.errors);
}

#[test]
fn usage() {
    let wrong = |args: &[&str], says: &str| {
        let out = once(args);
        let output_text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{output_text}");
        assert!(output_text.contains(says), "{output_text}");
    };
    assert!(binary().exists());
    wrong(&["lat", "-p", "1", "--ret=both", "malloc"], "auto, exits, stack");
    wrong(&["lat", "-p", "1", "--ret=stack", "--outermost", "malloc"], "cannot go together");
    wrong(
        &["lat", "-p", "1", "--ret=stack", "--maxactive=0", "malloc"],
        "--maxactive 0: possible are 1 to 4194304",
    );
    wrong(&["lat", "-p", "1", "--ret=stack", "--maxactive=5000000", "malloc"], "--maxactive 5000000");
    wrong(&["lat", "-p", "1", "--ret=exits", "--maxactive=10", "malloc"], "cannot go together");
    wrong(&["list", "-p", "1", "--ret=stack", "malloc"], "--lat");
}
