//! Replaced return addresses in `trace`, `graph`, `hist` and `stack --time`, on request and where
//! `--ret=auto` uses them. Calls that end by a jump last until their callee returns. Functions with exits
//! that leave no room for a jump are seen.

use serde_json::Value;
use trapline_tests::running::Running;
use trapline_tests::tracing::{Report, Tracing, once, until_enough};
use trapline_tests::victims::{self, Variant};
use trapline_tests::{or_skip, text};

const FUNCS: [&str; 7] = ["leaf", "framed", "factorial", "tail_caller", "early", "many_args", "switcher"];

/// The calls of one function that were seen to end.
fn ended<'a>(report: &'a Report, func: &str) -> Vec<&'a Value> {
    let of = |object: &&Value| {
        let probe = object["probe"].as_str().unwrap_or_default();
        object["type"] == "call" && probe.rsplit(':').next() == Some(func) && object["how"] != "unfinished"
    };
    report.objects.iter().filter(of).collect()
}

/// `slow` ends by a jump to a function that sleeps for 3 ms, and returns its argument.
#[test]
fn a_call_that_ends_by_a_jump_lasts_until_its_callee_returns() {
    let path = or_skip!(victims::plain("naps"));
    let victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    for condition in [
        &["--ret=stack"][..],
        &["--ret=auto"],
        &[],
        &["--if", "dur > 1ms"],
        &["--if", "ret == 3000"],
        &["--if", "us == 3000"],
    ] {
        let words = [&["-p", &pid], condition, &["slow(int us) -> int"]].concat();
        let report = until_enough("trace", &words, |report| ended(report, "slow").len() > 20);
        let calls = ended(&report, "slow");
        assert!(calls.len() > 20, "{condition:?}: {} calls: {}", calls.len(), report.errors);
        for call in calls {
            assert_eq!((&call["how"], call["ret"].as_u64()), (&"returned".into(), Some(3000)), "{call}");
            assert!(call["dur_ns"].as_u64().is_some_and(|ns| ns >= 3_000_000), "{condition:?}: {call}");
        }
    }
    for condition in ["dur < 1ms", "ret != 3000", "us == 7"] {
        let words = ["-d", "0.5", "-p", &pid, "--if", condition, "slow(int us) -> int"];
        let report = Tracing::spawn("trace", &words).end();
        assert_eq!(ended(&report, "slow"), Vec::<&Value>::new(), "{condition}: {}", report.errors);
    }
}

#[test]
fn a_tree_holds_the_time_of_what_a_function_ends_in() {
    let path = or_skip!(victims::plain("naps"));
    let victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let graph = |report: &Report| {
        report.objects.iter().find(|object| object["type"] == "graph").expect("a graph").clone()
    };
    let has_enough = |report: &Report| graph(report)["trees"][0]["below"][0]["calls"].as_u64() > Some(20);
    let graph = graph(&until_enough("graph", &["-p", &pid, "handle", "slow"], has_enough));
    let (handle, slow) = (&graph["trees"][0], &graph["trees"][0]["below"][0]);
    let number = |of: &Value, field: &str| of[field].as_u64().unwrap_or_else(|| panic!("{field}: {graph}"));
    assert_eq!((&handle["function"], &slow["function"]), (&"handle".into(), &"slow".into()), "{graph}");
    // One of the two is patched before the other.
    let both = [number(handle, "calls"), number(slow, "calls")];
    assert!(both[1] > 20 && both[0].abs_diff(both[1]) <= 1, "{graph}");
    assert!(number(slow, "total_ns") >= 3_000_000 * number(slow, "calls"), "{graph}");
    // Nearly all of it: the caller's own part is a few instructions, and whatever interrupts them.
    assert!(number(slow, "total_ns") > number(handle, "total_ns") / 2, "{graph}");
}

/// The last histogram of a report.
fn sums(report: &Report) -> Option<&Value> {
    report.objects.iter().rfind(|one| one["type"] == "hist" || one["type"] == "lat")
}

/// The rows with hits of a probe's histogram: their lower bounds, and their hits.
fn rows(probe: &Value) -> Vec<(i64, i64)> {
    let parts = probe["parts"].as_array().into_iter().flatten().map(|part| &part["rows"]);
    let rows = parts.chain([&probe["log2_ns"]]).filter_map(Value::as_array).flatten();
    let hits = |row: &Value| row.as_array().and_then(|row| row.last()?.as_i64()).unwrap_or(0);
    rows.map(|row| (row[0].as_i64().unwrap_or(0), hits(row))).filter(|&(_, hits)| hits > 0).collect()
}

/// The same in sums: of the target's aggregation, of records, and of stacks. Stacks show the real return
/// addresses.
#[test]
fn sums_hold_the_time_of_what_a_function_ends_in() {
    let path = or_skip!(victims::plain("naps"));
    let victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let probe = "slow(int us) -> int";
    for form in [&["--ret=stack"][..], &["--ret=auto"], &[]] {
        for (verb, words) in [
            ("hist", &["dur", "--by=us", probe][..]),
            ("hist", &["dur", "--if", "us == 3000", probe]),
            ("hist", &["ret", "--top", probe]),
            ("hist", &["dur", probe]),
            ("hist", &["dur", "--by=us", "--comm=naps", probe]),
        ] {
            let words = [&["-p", &pid], form, words].concat();
            let report = until_enough(verb, &words, |report| {
                sums(report)
                    .is_some_and(|sums| rows(&sums["probes"][0]).iter().map(|row| row.1).sum::<i64>() > 20)
            });
            let sums = sums(&report).unwrap_or_else(|| panic!("{words:?}: {}", report.errors));
            let one = &sums["probes"][0];
            let rows = rows(one);
            let calls: i64 = rows.iter().map(|&(_, hits)| hits).sum();
            // The lower bound of the row: a power of two below 3 ms.
            let least = if words.contains(&"ret") { 3000 } else { 1 << 21 };
            assert!(calls > 20 && rows.iter().all(|&(low, _)| low >= least), "{words:?}: {sums}");
            // Of calls that are recorded one by one, the last one may not have ended.
            let unseen = one["unseen"].as_u64().unwrap_or(0);
            assert!(unseen <= u64::from(words.contains(&"--comm=naps")), "{words:?}: {sums}");
        }
    }
    for form in [&["--ret=stack"][..], &["--ret=auto"], &["--unwind=dwarf"]] {
        let words = [&["--time", "-p", &pid], form, &["handle", "slow"]].concat();
        let report = until_enough("stack", &words, |report| {
            let of_slow = |one: &&Value| one["frames"][0]["functions"][0]["name"] == "slow";
            let all = report.objects.iter().filter(|object| object["type"] == "stack");
            all.filter(of_slow).all(|one| one["hits"].as_u64() > Some(20)) && report.hits("slow") > 20
        });
        let all = report.objects.iter().filter(|object| object["type"] == "stack");
        let stacks: Vec<(Vec<String>, &Value)> = all
            .map(|one| {
                let frames = one["frames"].as_array().expect("frames").iter();
                let names = frames.map(|frame| frame["functions"][0]["name"].as_str().unwrap_or("?"));
                (names.map(str::to_owned).collect(), one)
            })
            .collect();
        let of_slow: Vec<_> = stacks.iter().filter(|(frames, _)| frames[0] == "slow").collect();
        assert_eq!(of_slow.len(), 1, "{form:?}: {stacks:?}");
        let (frames, one) = of_slow[0];
        // It has no frame pointers, so only unwind tables find all callers.
        let known = if form == ["--unwind=dwarf"] { 3 } else { 2 };
        assert_eq!(frames[..known], ["slow", "handle", "main"][..known], "{form:?}: {one}");
        let number = |field: &str| one[field].as_u64().unwrap_or_else(|| panic!("{field}: {one}"));
        assert!(
            number("hits") > 20 && number("time_ns") >= 3_000_000 * (number("hits") - 1),
            "{form:?}: {one}"
        );
    }
}

/// Where exits are patched, such calls are timed until the jump, and the report says so.
#[test]
fn calls_that_end_by_a_jump_are_reported_where_they_are_timed_until_it() {
    let path = or_skip!(victims::plain("naps"));
    let victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    for (verb, words) in [
        ("trace", &["slow"][..]),
        ("graph", &["handle", "slow"]),
        ("lat", &["slow"]),
        ("stack", &["--time", "slow"]),
        ("hist", &["dur", "--if", "us > 0", "slow(int us)"]),
    ] {
        let output_text = |form: &str| {
            let words = [&["-d", "0.1", "-p", &pid, form], words].concat();
            Tracing::spawn(verb, &words).end().errors
        };
        let (exits, auto) = (output_text("--ret=exits"), output_text("--ret=auto"));
        assert!(
            exits.contains("naps:slow that end by a jump") && exits.contains("--ret=stack"),
            "{verb}: {exits}"
        );
        assert!(!auto.contains("end by a jump"), "{verb}: {auto}");
    }
}

/// Two functions without padding: the byte behind the `ret` of one is the entry of the other.
#[test]
fn neighbours_without_padding_are_both_traced() {
    const ROUNDS: u64 = 300;
    let path = or_skip!(victims::c("counter", Variant::O0));
    let mut victim = Running::start(&path, &[]);
    let before = text::signals(victim.pid());
    let pid = victim.pid().to_string();
    for form in [&["--ret=stack"][..], &["--ret=auto"], &[]] {
        let words: Vec<&str> = [&["-p", &pid], form, &FUNCS].concat();
        let tracing = Tracing::start("trace", &words).expect("attaches");
        let reported = victim.run(ROUNDS);
        let report = tracing.stop();
        assert_eq!(report.refused(), [], "{form:?}: {}", report.errors);
        for func in FUNCS {
            let calls = ended(&report, func);
            assert_eq!(calls.len() as u64, reported[func], "{form:?} {func}: {}", report.errors);
            assert!(calls.iter().all(|call| call["how"] != "entered"), "{form:?} {func}");
        }
        assert_eq!(text::signals(victim.pid()), before, "{form:?}");
    }
    victim.run(10);
    assert!(victim.finish().success());
}

/// Calls are in flight at each attach and each detach. They return to where they were called from.
#[test]
fn calls_that_are_under_way_at_a_detach_return_where_they_were_called_from() {
    let path = or_skip!(victims::plain("naps"));
    let mut victim = Running::start(&path, &["nap"]);
    let pid = victim.pid().to_string();
    for round in 0..20 {
        let run = once(&["trace", "-q", "-d", "0.03", "-p", &pid, "--ret=stack", "nap", "rest"]);
        assert!(run.status.success(), "{round}: {}", String::from_utf8_lossy(&run.stderr));
        assert!(victim.alive(), "round {round}");
    }
    // At most the last session's memory is left there, not that of twenty sessions.
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("alive");
    let left = maps.lines().filter(|line| line.contains("/memfd:trapline")).count();
    assert!(left < 40, "{left} mappings stay: {maps}");
    let report = until_enough("count", &["-p", &pid, "nap"], |report| report.hits("nap") > 20);
    assert!(report.hits("nap") > 20, "{}", report.errors);
}

/// `dlsym` finds its caller by the return address: that of the function that jumps to it.
#[test]
fn a_jump_to_what_looks_for_its_caller_leaves_the_address_alone() {
    let path = or_skip!(victims::plain("finds"));
    for (ret, says) in [("auto", "hits: 1,000 recorded"), ("stack", "reads the return address")] {
        let output = once(&["lat", &format!("--ret={ret}"), "find_next", "--", &path.to_string_lossy()]);
        let output_text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "0 wrong\n", "{ret}: {output_text}");
        assert!(output_text.contains(says), "{ret}: {output_text}");
    }
}
