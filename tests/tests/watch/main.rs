//! WCH-1…5: `trapline watch` on real programs: every access is reported once, with its thread and its value,
//! and no breakpoint is left.

mod dropped;
mod refused;
mod shielded;

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
    shielded::check_tracer(victim.pid());
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
    let holder = Tracing::start("watch", &["--no-shield", "-p", &pid, &turns[0], &turns[1]])
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

/// A program that is not position-independent holds its library's variable itself.
#[test]
fn a_variable_of_a_library_is_watched_where_the_program_holds_it() {
    or_skip!(available());
    for flags in [&["-no-pie"][..], &["-fPIE", "-pie"], &["-fPIC"]] {
        let path = or_skip!(victims::with_library("held", flags));
        for place in ["held_library:held_total", "held_total"] {
            let mut victim = Running::start(&path, &[]);
            let pid = victim.pid().to_string();
            let tracing = Tracing::start("watch", &["-p", &pid, place])
                .unwrap_or_else(|report| panic!("{flags:?}: {}", report.errors));
            let reported = victim.run(TIMES);
            let report = tracing.stop();
            let values = exact(&accesses(&report, place));
            assert_eq!(values.len() as u64, reported["writes"], "{flags:?}, {place}: {}", report.errors);
            assert_eq!(values.last().copied(), Some(reported["total"] as i64), "{flags:?}, {place}");
            assert!(victim.finish().success());
        }
    }
}
