//! What the command line promises: exit statuses, dry runs, lists, status, JSON, and that standard output
//! belongs to the traced command where there is one.

use std::process::Command;

use serde_json::Value;
use trapline_tests::running::Running;
use trapline_tests::tracing::{Tracing, binary, once};
use trapline_tests::{or_skip, programs, text, victims};

fn lines(output: &[u8]) -> Vec<Value> {
    String::from_utf8_lossy(output).lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[test]
fn a_launched_commands_status_is_the_exit_status() {
    for (script, status) in [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 128 + 15)] {
        let mut command = Command::new(binary());
        let output =
            command.args(["count", "-q", "libc:malloc", "--", "sh", "-c", script]).output().expect("runs");
        let output_text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{script}: {output_text}");
    }
    let missing = once(&["count", "libc:malloc", "--", "/no/such/program"]);
    assert!(!missing.status.success());
    assert!(String::from_utf8_lossy(&missing.stderr).contains("/no/such/program"));
}

#[test]
fn a_launched_command_is_probed_before_its_first_instruction() {
    let path = or_skip!(victims::plain("counter"));
    let mut tracing =
        Tracing::spawn("count", &["-c", &path.display().to_string(), "main", "victim_serve", "_start"]);
    let report = tracing.end();
    assert_eq!(report.hits("main"), 1, "{}", report.errors);
    assert_eq!(report.hits("_start"), 1, "{}", report.errors);
}

#[test]
fn dry_run_and_list_change_nothing() {
    let path = or_skip!(victims::plain("shapes"));
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    let dry = once(&["count", "--dry-run", "-p", &pid, "*_*"]);
    assert!(dry.status.success(), "{}", String::from_utf8_lossy(&dry.stderr));
    let shown = String::from_utf8_lossy(&dry.stdout);
    assert!(shown.contains("branch_back") && shown.contains("jump"), "{shown}");
    let list = once(&["list", "--json", "-p", &pid, "*_*"]);
    let rows = lines(&list.stdout);
    assert!(rows.len() >= 10, "{rows:?}");
    for row in &rows {
        assert_eq!((row["type"].as_str(), row["schema"].as_u64()), (Some("list"), Some(1)));
        assert!(row["tactic"].is_string() != row["reason"].is_string(), "a tactic or a reason: {row}");
    }
    assert_eq!(std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps"), maps);
    assert_eq!(text::differences(victim.pid()), [""; 0]);
    victim.run(10);
}

#[test]
fn the_json_is_as_documented() {
    let path = or_skip!(victims::plain("counter"));
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let tracing = Tracing::start("count", &["-p", &pid, "leaf", "just*", "framed"]).expect("attaches");
    victim.run(100);
    let report = tracing.stop();
    for object in report.objects.iter().filter(|o| o["type"] == "count") {
        assert_eq!((object["schema"].as_u64(), object["pid"].as_u64()), (Some(1), Some(victim.pid().into())));
        assert!(object["seconds"].is_f64() && object["refused"].is_array());
        for number in ["missed", "interrupted_syscalls", "restarted_timeouts"] {
            assert!(object[number].is_u64(), "{number} in {object}");
        }
        for probe in object["probes"].as_array().expect("probes") {
            assert!(probe["probe"].as_str().is_some_and(|p| p.starts_with("uprobe:/")), "{probe}");
            assert!(probe["aliases"].is_array() && probe["file"].is_string() && probe["offset"].is_u64());
            let tactic = probe["tactic"].as_str().expect("a tactic");
            assert!(["jump", "short", "pun", "trap", "kernel"].contains(&tactic), "{tactic}");
            assert!(probe["hits"].is_u64() && probe["delta"].is_u64());
        }
    }
    let deltas: u64 = report
        .objects
        .iter()
        .flat_map(|o| o["probes"].as_array().into_iter().flatten())
        .filter(|p| p["probe"].as_str().is_some_and(|p| p.ends_with(":leaf")))
        .filter_map(|p| p["delta"].as_u64())
        .sum();
    assert_eq!(deltas, report.hits("leaf"), "deltas add up to hits");
    let offset = trapline_tests::oracle::offsets(&path, &["leaf"]);
    assert_eq!(report.probe("leaf").and_then(|p| p["offset"].as_u64()), Some(offset[0]));
}

#[test]
fn splitting_by_cpu_and_by_thread() {
    let path = or_skip!(victims::plain("threads"));
    let mut victim = Running::start(&path, &["4"]);
    let pid = victim.pid().to_string();
    let tracing = Tracing::start("count", &["--by", "cpu", "-p", &pid, "shared"]).expect("attaches");
    let reported = victim.run(1000);
    let report = tracing.stop();
    assert_eq!(report.hits("shared"), reported["shared"]);
    let cpus = report.probe("shared").and_then(|probe| probe["cpus"].as_array()).expect("cpus");
    assert_eq!(cpus.iter().filter_map(Value::as_u64).sum::<u64>(), reported["shared"], "CPUs add up");
}

/// LOSS-2: the summary says how many hits were missed. The victim calls until a line ends it.
#[test]
fn a_regular_run_prints_a_table_and_a_summary() {
    let path = or_skip!(victims::plain("threads"));
    let mut victim = Running::start(&path, &["2", "endless"]);
    let pid = victim.pid().to_string();
    let output = once(&["count", "-d", "0.5", "-p", &pid, "shared", "through"]);
    let (table, rest) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{rest}");
    assert!(table.contains("shared") && table.contains("through"), "{table}");
    let summary = format!("{table}{rest}");
    for word in ["matched", "probed", "refused", "missed", "stop"] {
        assert!(summary.contains(word), "no `{word}` in {summary}");
    }
    println!("{summary}");
    assert_eq!(victim.run(0)["wrong"], 0);
}

#[test]
fn every_process_of_a_name_and_every_process_that_maps_a_file() {
    let path = or_skip!(victims::plain("counter"));
    let copy = path.with_file_name(format!("cnt{}", std::process::id() % 1_000_000));
    programs::copy(&path, &copy).expect("a copy with a name of its own");
    let mut victims = [Running::start(&copy, &[]), Running::start(&copy, &[])];
    let name = copy.file_name().and_then(|n| n.to_str()).expect("a name").to_owned();
    for words in [vec!["-n", &name, "leaf"], vec![&format!("{}:leaf", copy.display())[..]]] {
        let tracing = Tracing::start("count", &words).expect("attaches");
        let reported: u64 = victims.iter_mut().map(|victim| victim.run(50)["leaf"]).sum();
        let report = tracing.stop();
        assert_eq!(report.totals().len(), 2, "{words:?}: {}", report.errors);
        assert_eq!(report.hits("leaf"), reported, "{words:?}");
    }
    std::fs::remove_file(&copy).ok();
}
