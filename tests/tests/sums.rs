//! LOSS-1 for `hist --sum`, `--min`, `--max`, `--avg` and `--stats`: what eight threads of a program added up for
//! themselves is what is reported, for all calls and for each group; with and without restartable sequences, at
//! entries, at returns and by the reader. And each report of a run is whole.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use trapline_tests::histograms::{last, number};
use trapline_tests::running::{Printed, Running};
use trapline_tests::text;
use trapline_tests::tracing::{Report, Tracing};
use trapline_tests::victims::{self, Variant};
use trapline_tests::{or_skip, skip};

const ADD: &str = "add(i64 value, i64 group, str name) -> i64";
const TIMES: u64 = 20_000;
const GROUPS: [&str; 5] = ["zero", "one", "two", "three", "four"];

/// Number of calls, sum, least and greatest value.
type Sums = (u64, i64, i64, i64);

/// What the program printed about a group.
fn printed(all: &Printed, name: &str) -> Sums {
    let word = |what: &str| all[&format!("{name}.{what}")].cast_signed();
    assert_eq!(word("high"), word("low") >> 63, "the test's sums fit into a word");
    (word("hits").cast_unsigned(), word("low"), word("min"), word("max"))
}
/// What was reported about a group; its average is its sum by its hits.
fn reported(part: &Value) -> Sums {
    let word = |what: &str| part[what].as_i64().unwrap_or_else(|| panic!("no {what}: {part}"));
    let (hits, sum) = (number(part, "hits"), word("sum"));
    let average = part["avg"].as_f64().expect("a number");
    assert!((average - sum as f64 / hits as f64).abs() <= 1e-9 * average.abs(), "{part}");
    (hits, sum, word("min"), word("max"))
}
/// The group that a part is of.
fn group(part: &Value) -> String {
    match &part["key"] {
        Value::String(name) => name.clone(),
        Value::Number(nth) => GROUPS[nth.as_u64().expect("small") as usize].to_owned(),
        _ => "all".to_owned(),
    }
}

/// The program with restartable sequences, and without: threads have no areas.
fn victims() -> Result<Vec<Running>, String> {
    let path = victims::plain("sums")?;
    let without = |path: &Path| {
        let mut command = Command::new(path);
        command.env("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
        Running::spawn(command)
    };
    let mut all = vec![Running::start(&path, &[]), without(&path)];
    all.iter().skip(1).for_each(|victim| assert_eq!(victim.line(), "ready"));
    if let Ok(path) = victims::c("sums", Variant::Musl) {
        all.push(Running::start(&path, &[]));
    }
    Ok(all)
}

/// One run under `hist`: what is reported, and what the program printed.
fn run(victim: &mut Running, words: &[&str]) -> (Report, Printed) {
    let (pid, before) = (victim.pid().to_string(), text::signals(victim.pid()));
    let words: Vec<&str> = ["-p", &pid].into_iter().chain(words.iter().copied()).chain([ADD]).collect();
    let tracing = Tracing::start("hist", &words).unwrap_or_else(|report| panic!("{}", report.errors));
    let all = victim.run(TIMES);
    let report = tracing.stop();
    assert!(report.status.success(), "{words:?} {}", report.errors);
    text::assert_clean(victim.pid(), &before);
    assert_eq!(all["wrong"], 0);
    (report, all)
}

#[test]
fn the_target_and_the_program_say_the_same() {
    for mut victim in or_skip!(victims()) {
        for words in [
            &["--stats", "value"][..],
            &["--sum", "--by", "group", "value"],
            &["--avg", "--by", "name", "value"],
            &["--stats", "ret - group"],
            &["--max", "--by", "ret - value", "ret - group"],
            &["--min", "--by", "name", "value + 0 * ret"],
            &["--stats", "--by", "group", "--if", "dur < 3600s", "value"],
        ] {
            let (report, all) = run(&mut victim, words);
            assert!(!report.errors.contains("added up here"), "{words:?} {}", report.errors);
            let probe = last(&report, "add");
            let [hits, overflow, unseen, filtered] =
                ["hits", "overflow", "unseen", "filtered"].map(|field| number(probe, field));
            assert_eq!((hits, overflow, unseen, filtered), (all["add"], 0, 0, 0), "{words:?}");
            let parts = probe["parts"].as_array().expect("parts");
            assert_eq!(parts.len(), if words.contains(&"--by") { 5 } else { 1 }, "{probe}");
            for part in parts {
                assert_eq!(reported(part), printed(&all, &group(part)), "{words:?}");
            }
            assert_eq!(reported(&probe["total"]), printed(&all, "all"), "{words:?}");
        }
    }
}

#[test]
fn filters_and_groups_that_are_no_values_add_up() {
    for mut victim in or_skip!(victims()) {
        for words in [&["--by=tid"][..], &["--by=cpu"], &[]] {
            let words = [&["--stats", "value"][..], words].concat();
            let (report, all) = run(&mut victim, &[&words[..], &["--if", "value > 1000"]].concat());
            let probe = last(&report, "add");
            let (hits, filtered) = (number(probe, "hits"), number(probe, "filtered"));
            assert_eq!((hits + filtered, number(probe, "overflow")), (all["add"], 0), "{words:?}");
            let parts = probe["parts"].as_array().expect("parts").len();
            assert!(parts == 8 || words[2..] != ["--by=tid"], "{probe}");
            assert_eq!(reported(&probe["total"]), printed(&all, "positive"), "{words:?}");
        }
    }
}

/// By thread name the reader adds up. It must give what the target gives.
#[test]
fn the_reader_says_the_same() {
    let Some(mut victim) = or_skip!(victims()).into_iter().next() else { return };
    for words in [&["--by=comm"][..], &["--by=group", "--comm=sums"]] {
        let (report, all) = run(&mut victim, &[&["--stats", "value"][..], words].concat());
        assert!(report.errors.contains("added up here"), "{}", report.errors);
        let probe = last(&report, "add");
        if report.number("missed") > 0 {
            skip!("{} calls found no room in a ring", report.number("missed"));
        }
        for part in probe["parts"].as_array().expect("parts") {
            assert_eq!(reported(part), printed(&all, &group(part)), "{words:?}");
        }
        assert_eq!(reported(&probe["total"]), printed(&all, "all"), "{words:?}");
    }
}

/// Reports while threads run: n hits of 7 have the sum 7 n.
#[test]
fn each_report_is_whole() {
    for mut victim in or_skip!(victims()) {
        let pid = victim.pid().to_string();
        let words = ["-p", &pid, "--stats", "7 + 0 * value", ADD];
        let tracing = Tracing::start("hist", &words).unwrap_or_else(|report| panic!("{}", report.errors));
        let mut all = 0;
        while tracing.objects().len() < 10 {
            all += victim.run(10 * TIMES)["add"];
        }
        let report = tracing.stop();
        let mut hits = Vec::new();
        for object in report.objects.iter().filter(|object| object["type"] == "hist") {
            assert_eq!((&object["sort"], &object["schema"]), (&Value::from("sums"), &Value::from(1)));
            for part in object["probes"][0]["parts"].as_array().expect("parts") {
                let (more, sum, min, max) = reported(part);
                assert_eq!((sum, min, max), (7 * more.cast_signed(), 7, 7), "{part}");
                hits.push(more);
            }
        }
        assert!(hits.len() > 5 && hits.is_sorted(), "{hits:?}");
        assert_eq!(hits.last(), Some(&all));
    }
}

/// Several processes have a total over all of them.
#[test]
fn processes_have_a_total() {
    let mut all: Vec<Running> = or_skip!(victims()).into_iter().take(2).collect();
    let pids: Vec<String> = all.iter().map(|victim| victim.pid().to_string()).collect();
    let words = ["-p", &pids[0], "-p", &pids[1], "--stats", "value", "--by=group", ADD];
    let tracing = Tracing::start("hist", &words).unwrap_or_else(|report| panic!("{}", report.errors));
    let [one, two] = [0, 1].map(|nth| printed(&all[nth].run(TIMES), "all"));
    let report = tracing.stop();
    let total = report.objects.iter().rfind(|object| object["type"] == "hist_total").expect("a total");
    assert_eq!(total["processes"], 2);
    let expected = (one.0 + two.0, one.1 + two.1, one.2.min(two.2), one.3.max(two.3));
    assert_eq!(reported(&total["probes"][0]), expected, "{total}");
}

/// In a Go program the value and the key are the entry's, however the stack has moved.
#[test]
fn calls_of_goroutines_add_up() {
    for path in [or_skip!(victims::go("arguments")), or_skip!(victims::go_with_libc("arguments"))] {
        let mut victim = Running::start(&path, &[]);
        victim.run(1);
        let pid = victim.pid().to_string();
        let probe = "main.moved(i64 a, i64 b, i64 c, i64 n) -> i64";
        let words = ["-p", &pid, "--stats", "--by", "n % 2", "ret - n + (dur > 0)", probe];
        let tracing = Tracing::start("hist", &words).unwrap_or_else(|report| panic!("{}", report.errors));
        let all = victim.run(TIMES / 10)["main.moved"];
        let report = tracing.stop();
        assert!(!report.errors.contains("added up here"), "{}", report.errors);
        let probe = last(&report, "main.moved");
        let parts = probe["parts"].as_array().expect("parts");
        let found: Vec<(String, Sums)> =
            parts.iter().map(|part| (part["key"].to_string(), reported(part))).collect();
        let half = (all / 2, 4 * all.cast_signed(), 8, 8);
        assert_eq!(found.len(), 2, "{probe}");
        assert!(
            ["0", "1"].map(str::to_owned).iter().all(|key| found.contains(&(key.clone(), half))),
            "{probe}"
        );
    }
}
