//! WCH-1…5: `trapline watch` on real programs: every access is reported once, with its thread and its value,
//! and no breakpoint is left.

use serde_json::Value;
use trapline_tests::or_skip;
use trapline_tests::running::{Printed, Running};
use trapline_tests::tracing::{Report, Tracing, once};
use trapline_tests::victims::{self, Variant};

const TIMES: u64 = 400;

/// Checks whether breakpoint events are available here at all.
fn available() -> Result<(), String> {
    let victim = Running::start(&victims::plain("writers")?, &[]);
    let out = once(&["watch", "-p", &victim.pid().to_string(), "-d", "1ms", "own_count"]);
    let output_text = String::from_utf8_lossy(&out.stderr).into_owned();
    if output_text.contains("no debug registers") { Err(output_text) } else { Ok(()) }
}

/// One run of the victim under watch.
fn watched(path: &std::path::Path, how: &str, args: &[&str]) -> (Printed, Report, u32) {
    let mut victim = Running::start(path, &[how]);
    let pid = victim.pid().to_string();
    let words: Vec<&str> = ["-p", &pid].into_iter().chain(args.iter().copied()).collect();
    let tracing = Tracing::start("watch", &words)
        .unwrap_or_else(|report| panic!("the tracer ended: {}\n{}", report.status, report.errors));
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    assert!(status.contains("TracerPid:\t0\n"), "it is traced");
    let reported = victim.run(TIMES);
    let report = tracing.stop();
    assert_eq!(report.status.code(), Some(0), "{}", report.errors);
    let pid = victim.pid();
    assert!(victim.finish().success());
    (reported, report, pid)
}

fn accesses<'a>(report: &'a Report, place: &str) -> Vec<&'a Value> {
    report.objects.iter().filter(|one| one["type"] == "watch" && one["place"] == place).collect()
}

fn last(report: &Report) -> &Value {
    let is_last = |one: &&Value| one["type"] == "watch_summary" && one["last"] == true;
    report.objects.iter().find(is_last).unwrap_or_else(|| panic!("no summary; {}", report.errors))
}

/// Values after each access, all of them exact.
fn exact(all: &[&Value]) -> Vec<i64> {
    let value = |one: &&Value| {
        assert_eq!(one["exact"], true, "{one}");
        one["after"].as_i64().unwrap_or_else(|| panic!("no value in {one}"))
    };
    all.iter().map(value).collect()
}

#[test]
fn every_write_is_reported_with_thread_function_and_value() {
    or_skip!(available());
    const FIELD: &str = "server.list[2].deep";
    for variant in [Variant::Plain, Variant::NonPie, Variant::O0, Variant::Static] {
        let path = or_skip!(victims::c("writers", variant));
        let places = ["shared_count", "own_count", FIELD, "server.small"];
        let (reported, report, pid) = watched(&path, "threads", &places);
        let times = TIMES as i64;
        let summary = last(&report);
        assert_eq!(
            (&summary["lost"], &summary["malformed"]),
            (&0.into(), &0.into()),
            "{variant:?}: {summary}"
        );
        let plain = accesses(&report, "own_count");
        assert!(plain.iter().all(|one| one["tid"] == pid
            && one["function"].as_str().is_some_and(|f| f.starts_with("plain_store+"))));
        assert!(plain.iter().all(
            |one| one["file"].as_str().is_some_and(|f| f.ends_with("writers.c")) && one["line"].is_u64()
        ));
        assert_eq!(exact(&plain), (0..times).collect::<Vec<_>>(), "{variant:?}");
        assert_eq!(
            exact(&accesses(&report, FIELD)),
            (0..times).map(|i| i * 3).collect::<Vec<_>>(),
            "{variant:?}"
        );
        let small: Vec<i64> = (0..times).map(|i| -(i % 100)).collect();
        assert_eq!(exact(&accesses(&report, "server.small")), small, "{variant:?}");
        let shared = accesses(&report, "shared_count");
        assert_eq!(shared.len() as u64, reported["shared"], "{variant:?}: as many as the program counted");
        let mut tids: Vec<u64> = shared.iter().filter_map(|one| one["tid"].as_u64()).collect();
        tids.sort_unstable();
        let each: Vec<usize> = tids.chunk_by(|a, b| a == b).map(<[u64]>::len).collect();
        assert_eq!(each, [TIMES as usize; 5], "{variant:?}: two threads that waited, three born later");
    }
}

#[test]
fn before_is_what_was_there() {
    or_skip!(available());
    let path = or_skip!(victims::plain("writers"));
    let (_, report, _) = watched(&path, "threads", &["own_count"]);
    let all = accesses(&report, "own_count");
    for (index, one) in all.iter().enumerate().skip(1) {
        assert_eq!(
            (&one["before"], &one["before_exact"]),
            (&(index as u64 - 1).into(), &true.into()),
            "{one}"
        );
    }
}

#[test]
fn forked_children_are_watched_when_asked_for() {
    or_skip!(available());
    let path = or_skip!(victims::plain("writers"));
    let (reported, report, pid) = watched(&path, "fork", &["-f", "child_count"]);
    let all = accesses(&report, "child_count");
    let (child, parent): (Vec<&Value>, Vec<&Value>) =
        all.into_iter().partition(|one| one["pid"] == reported["child"]);
    assert!(parent.iter().all(|one| one["pid"] == pid));
    assert_eq!(exact(&child), (1..=TIMES as i64).collect::<Vec<_>>());
    assert_eq!(exact(&parent), (0..TIMES as i64).map(|i| i + 1_000_000).collect::<Vec<_>>());
    let (_, report, pid) = watched(&path, "fork", &["child_count"]);
    let all = accesses(&report, "child_count");
    assert!(all.len() as u64 == TIMES && all.iter().all(|one| one["pid"] == pid), "{}", report.errors);
}

/// The one program that was run by exec.
fn program(report: &Report) -> &Value {
    let all: Vec<&Value> = report.objects.iter().filter(|one| one["type"] == "watch_exec").collect();
    assert_eq!(all.len(), 1, "{all:?} {}", report.errors);
    all[0]
}

#[test]
fn a_process_that_runs_itself_anew_is_watched_on() {
    or_skip!(available());
    let path = or_skip!(victims::plain("writers"));
    let mut victim = Running::start(&path, &["exec"]);
    let pid = victim.pid().to_string();
    let mut tracing = Tracing::start("watch", &["-f", "-p", &pid, "own_count", "shared_count"])
        .unwrap_or_else(|report| panic!("{}", report.errors));
    victim.begin(7);
    assert_eq!(victim.line(), "ready", "it runs anew");
    tracing.wait_for("watch_exec");
    let reported = victim.run(TIMES);
    let report = tracing.stop();
    let exec = program(&report);
    assert_eq!((&exec["pid"], &exec["misses"]), (&victim.pid().into(), &Value::Array(Vec::new())), "{exec}");
    let values: Vec<i64> = (0..7).chain(0..TIMES as i64).collect();
    assert_eq!(exact(&accesses(&report, "own_count")), values, "before it, and after");
    assert_eq!(accesses(&report, "shared_count").len() as u64, reported["shared"], "its threads too");
    let addr = |place: &Value| place["addr"].as_u64();
    let places = |of: &Value| of["places"].as_array().map(|all| all.iter().map(addr).collect::<Vec<_>>());
    let (first, second) = (places(&report.objects[0]), places(exec));
    assert!(first != second, "the program lies elsewhere now: {first:?}");
    assert_eq!(last(&report)["places"].as_array().map(Vec::len), Some(4));
}

#[test]
fn a_child_s_new_program_is_watched_or_reported_as_not_watched() {
    or_skip!(available());
    let path = or_skip!(victims::plain("writers"));
    let mut victim = Running::start(&path, &["spawn"]);
    let pid = victim.pid().to_string();
    let mut tracing = Tracing::start("watch", &["-f", "-p", &pid, "own_count"])
        .unwrap_or_else(|report| panic!("{}", report.errors));
    victim.begin(1);
    assert_eq!(victim.line(), "ready", "the child, which has our end of the pipes now");
    tracing.wait_for("watch_exec");
    let in_child = victim.run(TIMES);
    assert_eq!(in_child["plain"], TIMES);
    victim.send("quit");
    let reported = victim.reported();
    let report = tracing.stop();
    assert_eq!(program(&report)["pid"], reported["child"]);
    let all = accesses(&report, "own_count");
    assert_eq!(exact(&all), (0..TIMES as i64).collect::<Vec<_>>(), "{}", report.errors);
    assert!(all.iter().all(|one| one["pid"] == reported["child"]));

    let mut victim = Running::start(&path, &["other"]);
    let pid = victim.pid().to_string();
    let mut tracing = Tracing::start("watch", &["-f", "-p", &pid, "own_count"])
        .unwrap_or_else(|report| panic!("{}", report.errors));
    let reported = victim.run(1);
    tracing.wait_for("watch_exec");
    let report = tracing.stop();
    let exec = program(&report);
    assert_eq!(
        (&exec["pid"], &exec["places"]),
        (&reported["child"].into(), &Value::Array(Vec::new())),
        "{exec}"
    );
    assert!(!exec["misses"][0].is_null(), "{exec}");
}

#[test]
fn without_following_an_exec_ends_the_watch_and_says_so() {
    or_skip!(available());
    let path = or_skip!(victims::plain("writers"));
    let mut victim = Running::start(&path, &["exec"]);
    let pid = victim.pid().to_string();
    let mut tracing = Tracing::start("watch", &["-p", &pid, "own_count"])
        .unwrap_or_else(|report| panic!("{}", report.errors));
    victim.begin(7);
    assert_eq!(victim.line(), "ready", "it runs anew");
    tracing.wait_for("watch_exec");
    let _reported = victim.run(TIMES);
    let report = tracing.stop();
    assert!(
        program(&report)["misses"][0].as_str().is_some_and(|why| why.contains("-f")),
        "{}",
        report.errors
    );
    assert_eq!(exact(&accesses(&report, "own_count")), (0..7).collect::<Vec<_>>());
}

/// What an older kernel, a machine without debug registers, or a stricter setting answers.
fn with_fault(fault: &str, victim: &Running) -> std::process::Output {
    let mut command = std::process::Command::new(trapline_tests::tracing::binary());
    command.args(["watch", "-d", "1ms", "-p", &victim.pid().to_string(), "own_count"]);
    command.env("TRAPLINE_PERF_FAULT", fault).output().expect("trapline starts")
}

#[test]
fn what_the_kernel_refuses_is_one_clear_line_and_nothing_stays_armed() {
    or_skip!(available());
    let path = or_skip!(victims::plain("writers"));
    let mut victim = Running::start(&path, &["threads"]);
    for (errno, says) in [
        (libc::ENODEV, "no debug registers"),
        (libc::EOPNOTSUPP, "no debug registers"),
        (libc::EACCES, "perf_event_paranoid is"),
        (libc::EPERM, "CAP_PERFMON"),
        (libc::ENOSPC, "no free debug register"),
    ] {
        let out = with_fault(&errno.to_string(), &victim);
        let output_text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{errno}: {output_text}");
        assert!(output_text.contains(says) && output_text.lines().count() == 1, "{errno}: {output_text}");
    }
    // Four watchpoints fit, so none was left armed; and the victim runs on.
    let pid = victim.pid().to_string();
    let fits = once(&["watch", "-d", "1ms", "-p", &pid, "turn[0]", "turn[1]", "turn[2]", "turn[3]"]);
    assert_eq!(fits.status.code(), Some(0), "{}", String::from_utf8_lossy(&fits.stderr));
    assert_eq!(victim.run(TIMES)["each"], TIMES);
}

#[test]
fn where_the_kernel_cannot_inherit_each_thread_is_armed_by_itself() {
    or_skip!(available());
    let path = or_skip!(victims::plain("writers"));
    let mut victim = Running::start(&path, &["threads"]);
    let pid = victim.pid().to_string();
    // Linux before 5.13 does not know the flag `inherit_thread`, bit 35.
    let fault = [("TRAPLINE_PERF_FAULT", "22:35")];
    let mut tracing = Tracing::spawn_with("watch", &["-p", &pid, "own_count", "shared_count"], &fault);
    tracing.wait_for("watch_start");
    let reported = victim.run(TIMES);
    let report = tracing.stop();
    let summary = last(&report);
    assert_eq!(
        summary["late"].as_u64().map(|n| n + summary["unwatched"].as_u64().unwrap_or(0)),
        Some(3),
        "{summary}"
    );
    assert!(report.errors.contains("threads cannot inherit here"), "{}", report.errors);
    // All writes of threads that were alive at the start, and a part of the writes of later threads.
    assert_eq!(exact(&accesses(&report, "own_count")), (0..TIMES as i64).collect::<Vec<_>>());
    let shared = accesses(&report, "shared_count").len() as u64;
    assert!((2 * TIMES..=reported["shared"]).contains(&shared), "{shared} of {reported:?}");
}

/// A command as a user without capabilities, with a copy of the program that any user may run.
fn as_nobody(program: &std::path::Path, args: &[&str]) -> Result<std::process::Command, String> {
    use std::os::unix::fs::MetadataExt as _;
    if std::fs::metadata("/proc/self").map_or(u32::MAX, |own| own.uid()) != 0 {
        return Err("only root may become nobody".into());
    }
    let name = program.file_name().and_then(std::ffi::OsStr::to_str).unwrap_or_default();
    let copy = std::env::temp_dir().join(format!("trapline-nobody-{}-{name}", std::process::id()));
    // Another process makes the copy. A file that is open for writing cannot be run, and a child of another
    // test may hold it open.
    let copied = std::process::Command::new("install").args(["-m", "755"]).arg(program).arg(&copy).status();
    copied.ok().filter(std::process::ExitStatus::success).ok_or("no copy could be made")?;
    let mut command = std::process::Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--"]);
    command.arg(copy).args(args);
    Ok(command)
}

#[test]
fn a_user_without_capabilities_watches_only_their_own_processes() {
    or_skip!(available());
    let binary = trapline_tests::tracing::binary();
    let path = or_skip!(victims::plain("writers"));
    let roots = Running::start(&path, &["rotate"]);
    let pid = roots.pid().to_string();
    let out = or_skip!(as_nobody(&binary, &["watch", "-d", "1ms", "-p", &pid, "sum"])).output();
    let out = out.expect("setpriv runs it");
    let output_text = String::from_utf8_lossy(&out.stderr);
    assert!(
        out.status.code() == Some(1) && output_text.lines().count() == 1,
        "{:?} {output_text}",
        out.status
    );
    assert!(output_text.contains(&pid) && output_text.contains("CAP_SYS_PTRACE"), "{output_text}");

    let mut victim = Running::spawn(or_skip!(as_nobody(&path, &["rotate"])));
    assert_eq!(victim.line(), "ready");
    let pid = victim.pid().to_string();
    let end = format!("value == {}", 1000 + TIMES);
    let words = ["watch", "--json", "--until", &end, "-p", &pid, "sum"];
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    if paranoid.trim().parse::<i32>().is_ok_and(|level| level > 2) {
        let out = or_skip!(as_nobody(&binary, &words)).output().expect("setpriv runs it");
        let output_text = String::from_utf8_lossy(&out.stderr);
        assert!(
            out.status.code() == Some(1) && output_text.contains("perf_event_paranoid is"),
            "{output_text}"
        );
        return;
    }
    let tracing = Running::spawn(or_skip!(as_nobody(&binary, &words)));
    assert!(tracing.line().contains("watch_start"));
    let reported = victim.run(TIMES);
    let mut lines = Vec::new();
    while !lines.last().is_some_and(|line: &Value| line["type"] == "watch_summary") {
        lines.push(serde_json::from_str(&tracing.line()).expect("JSON"));
    }
    let writes: Vec<&Value> = lines.iter().filter(|one| one["type"] == "watch").collect();
    // Without a program at the trap: the value at the start was known, and the rest is derived from it.
    let expected: Vec<i64> = (1001..=1000 + TIMES as i64).collect();
    assert_eq!((exact(&writes), reported["sum"]), (expected, 1000 + TIMES));
    assert!(writes.iter().all(|one| one["how"] == "derived" && one["before_exact"] == true));
}

#[test]
fn a_launched_command_is_watched_from_before_main() {
    or_skip!(available());
    let path = or_skip!(victims::plain("writers"));
    let file = path.display().to_string();
    // Its input is at its end: it begins, serves no request, and ends.
    let out = once(&["watch", "--json", "server.self", "--", &file]);
    let output_text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(0), "{output_text}");
    let objects: Vec<Value> =
        output_text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let writes: Vec<&Value> = objects.iter().filter(|one| one["type"] == "watch").collect();
    assert_eq!(writes.len(), 1, "{output_text}");
    assert!(writes[0]["function"].as_str().is_some_and(|name| name.starts_with("main+")), "{output_text}");
    let start = &objects[0]["places"][0];
    let server = start["addr"].as_u64().expect("an address") & !0xfff;
    assert_eq!(writes[0]["after"].as_u64().map(|to| to & !0xfff), Some(server), "{output_text}");
}

#[test]
fn executions_are_counted() {
    or_skip!(available());
    let path = or_skip!(victims::plain("writers"));
    let (_, report, _) = watched(&path, "threads", &["--count", "plain_store:x"]);
    assert_eq!(last(&report)["accesses"], TIMES);
    assert!(accesses(&report, "plain_store:x").is_empty(), "--count prints no line for each");
    assert_eq!(last(&report)["writers"][0]["function"], "plain_store+0x0");
}

#[test]
fn conditions_filter_and_end() {
    or_skip!(available());
    let path = or_skip!(victims::plain("writers"));
    let (_, report, _) = watched(&path, "threads", &["--if", "value >= 10 && value % 2 == 0", "own_count"]);
    let values = exact(&accesses(&report, "own_count"));
    assert_eq!(values, (10..TIMES as i64).filter(|value| value % 2 == 0).collect::<Vec<_>>());
    let mut victim = Running::start(&path, &["threads"]);
    let pid = victim.pid().to_string();
    let words = ["--until", "value == 20", "-p", &pid, "own_count"];
    let mut tracing = Tracing::start("watch", &words).unwrap_or_else(|report| panic!("{}", report.errors));
    let _reported = victim.run(TIMES);
    let report = tracing.end();
    assert_eq!(exact(&accesses(&report, "own_count")), (0..=20).collect::<Vec<_>>(), "{}", report.errors);
}

#[test]
fn too_many_places_arm_nothing_or_take_turns() {
    or_skip!(available());
    let path = or_skip!(victims::plain("writers"));
    let mut victim = Running::start(&path, &["rotate"]);
    let pid = victim.pid().to_string();
    let turns: Vec<String> = (0..6).map(|k| format!("turn[{k}]")).collect();
    let words: Vec<&str> =
        ["watch", "-p", &pid].into_iter().chain(turns.iter().map(String::as_str)).collect();
    let out = once(&words);
    let output_text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{output_text}");
    for word in ["6 wanted", "4 in each CPU", "4 free for thread", "--rotate"] {
        assert!(output_text.contains(word), "no `{word}` in {output_text}");
    }
    // The message names the process that holds debug registers, and we do not take them from it.
    let holder = Tracing::start("watch", &["-p", &pid, &turns[0], &turns[1]])
        .unwrap_or_else(|r| panic!("{}", r.errors));
    let out = once(&["watch", "-p", &pid, &turns[2], &turns[3], &turns[4]]);
    let output_text = String::from_utf8_lossy(&out.stderr);
    assert!(
        output_text.contains("2 free") && output_text.contains(&format!("trapline ({})", holder.pid())),
        "{output_text}"
    );
    let _report = holder.stop();
    let words: Vec<&str> =
        ["-p", &pid, "--rotate=20ms"].into_iter().chain(turns.iter().map(String::as_str)).collect();
    let tracing = Tracing::start("watch", &words).unwrap_or_else(|report| panic!("{}", report.errors));
    // Until the rotation has gone round: each run takes some milliseconds.
    let begun = std::time::Instant::now();
    while begun.elapsed() < std::time::Duration::from_secs(2) {
        let _reported = victim.run(TIMES);
    }
    let report = tracing.stop();
    let summary = last(&report);
    for (index, turn) in turns.iter().enumerate() {
        let place = &summary["places"][index];
        assert_eq!(place["place"], *turn);
        assert!(place["covered_ns"].as_u64().is_some_and(|ns| ns > 0), "{summary}");
    }
    let covered: u64 = (0..6).filter_map(|index| summary["places"][index]["covered_ns"].as_u64()).sum();
    let whole = 4e9 * summary["seconds"].as_f64().unwrap_or(0.0);
    assert!((covered as f64 / whole - 1.0).abs() < 1e-6, "{covered} of {whole}");
    // Nothing is left armed: four watchpoints fit again.
    let out = once(&["watch", "-d", "1ms", "-p", &pid, &turns[0], &turns[1], &turns[2], &turns[3]]);
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn a_launched_command_that_cannot_be_watched_does_not_run() {
    let path = or_skip!(victims::plain("writers"));
    let file = path.display().to_string();
    let out = once(&["watch", "no_such_variable", "--", &file]);
    assert_eq!(out.status.code(), Some(3));
    assert!(!String::from_utf8_lossy(&out.stdout).contains("ready"), "it ran");
}

#[test]
fn bad_places_are_one_clear_line() {
    or_skip!(available());
    let path = or_skip!(victims::plain("writers"));
    let victim = Running::start(&path, &["threads"]);
    let pid = victim.pid().to_string();
    let stripped = Running::start(&or_skip!(victims::c("writers", Variant::Stripped)), &["threads"]);
    let other = stripped.pid().to_string();
    for (pid, place, status, says) in [
        (&pid, "shared_cuont", 3, "did you mean shared_count"),
        (&pid, "server.lst", 3, "did you mean list"),
        (&pid, "server.list[4].deep", 3, "has 4 elements"),
        (&pid, "server.self.small", 3, "is a pointer"),
        (&pid, "server", 2, "bytes long; name a field"),
        (&pid, "server.list[0]:16", 2, "holds 1, 2, 4 or 8 bytes"),
        (&pid, "server+3:2", 2, "at a multiple of 2"),
        (&pid, "mine", 3, "each thread has its own"),
        (&pid, "no_such_lib:counter", 3, "no file no_such_lib is mapped"),
        (&pid, "0x10:8", 3, "is not mapped"),
        (&pid, "no_such_function:x", 3, "no function no_such_function"),
        (&other, "shared_count", 3, "no variable shared_count"),
    ] {
        let out = once(&["watch", "-p", pid, place]);
        let output_text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(status), "{place}: {output_text}");
        assert!(output_text.contains(says), "{place}: no `{says}` in {output_text}");
        assert_eq!(output_text.lines().count(), 1, "{place}: {output_text}");
    }
}

/// A redis-server with debug information, built from the distribution's source package: its path is in
/// TRAPLINE_REDIS_DEBUG.
#[test]
fn a_real_program_s_own_counter_agrees() {
    use std::io::{BufRead as _, BufReader, Write as _};
    or_skip!(available());
    let path = or_skip!(
        std::env::var("TRAPLINE_REDIS_DEBUG")
            .map_err(|_| "TRAPLINE_REDIS_DEBUG names no redis-server with debug information")
    );
    let socket = std::env::temp_dir().join(format!("trapline-redis-{}", std::process::id()));
    let mut command = std::process::Command::new(path);
    command.args(["--port", "0", "--save", "", "--unixsocket"]).arg(&socket);
    let redis = Running::spawn(command);
    while !redis.line().contains("ready to accept connections at") {}
    let connection = std::os::unix::net::UnixStream::connect(&socket).expect("it listens");
    let mut replies = BufReader::new(connection.try_clone().expect("a descriptor"));
    let mut ask = |text: &str, lines: usize| {
        (&connection).write_all(text.as_bytes()).expect("redis reads");
        let mut output_text = String::new();
        (0..lines).for_each(|_| assert!(replies.read_line(&mut output_text).is_ok(), "redis answers"));
        output_text
    };
    const PLACE: &str = "server.stat_numcommands";
    let pid = redis.pid().to_string();
    let tracing =
        Tracing::start("watch", &["-p", &pid, PLACE]).unwrap_or_else(|report| panic!("{}", report.errors));
    const ROUNDS: u64 = 500;
    const BATCH: usize = 20;
    for _ in 0..ROUNDS {
        let output_text = ask(&"PING\r\n".repeat(BATCH), BATCH);
        assert_eq!(output_text.matches("+PONG").count(), BATCH);
    }
    let report = tracing.stop();
    let all = accesses(&report, PLACE);
    let values = exact(&all);
    assert_eq!(values, (1..=(ROUNDS * BATCH as u64) as i64).collect::<Vec<_>>(), "{}", report.errors);
    assert!(
        all.iter().all(|one| one["tid"] == redis.pid()
            && one["function"].as_str().is_some_and(|f| f.starts_with("call+")))
    );
    // The server's own counter, from the lines of its answer up to that one.
    let mut output_text = ask("INFO stats\r\n", 4);
    while !output_text.contains("total_commands_processed") {
        output_text = ask("", 1);
    }
    assert!(output_text.contains(&format!("total_commands_processed:{}", values.len())), "{output_text}");
}
