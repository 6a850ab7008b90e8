//! What makes recordings smaller: texts that take as much as they are long (REC-5), functions that are taken out while it runs
//! (THIN-1, PATCH-16), and triggers that a recording notes (SEL-1).

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Output;

use trapline_tests::recordings::{self, Folder};
use trapline_tests::{or_skip, tracing, victims};

/// Records a program of ours; returns what it printed and what trapline said.
fn record(
    folder: &Folder,
    victim: &Path,
    options: &[&str],
    words: &[&str],
) -> (BTreeMap<String, u64>, String) {
    let victim = victim.to_str().expect("plain");
    let words =
        [&["record", "--lossless", "-o", folder.text()][..], options, &["--", victim], words].concat();
    let output = tracing::once(&words);
    assert!(output.status.success(), "{}", tracing::errors(&output));
    let text = tracing::out(&output);
    let pairs = text.split_whitespace().filter_map(|pair| pair.split_once('='));
    let printed = pairs.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect();
    (printed, tracing::errors(&output))
}

fn shown(words: &[&str]) -> Output {
    let output = tracing::once(words);
    assert!(output.status.success(), "{words:?}: {}", tracing::errors(&output));
    output
}

fn info(folder: &Folder) -> serde_json::Value {
    serde_json::from_str(&tracing::out(&shown(&["info", "--json", folder.text()]))).expect("an object")
}

/// REC-5: a text of up to 7 bytes is one word: four words a call, with the entry, the argument and the exit.
#[test]
fn rec_5_a_short_text_is_a_word() {
    let victim = or_skip!(victims::plain("valued"));
    let folder = Folder::new("short");
    let rounds = "20000";
    record(&folder, &victim, &["unsaid(str s) -> void"], &["1", rounds]);
    let words = info(&folder)["words"].as_u64().expect("a number");
    assert!((80_000..81_000).contains(&words), "{words}");
    let text = tracing::out(&shown(&["replay", "-f", "none", folder.text()]));
    for (nth, line) in text.lines().enumerate() {
        assert_eq!(line, format!("unsaid(s=\"{nth}\");"));
    }
    assert_eq!(text.lines().count(), 20_000);
}

/// THIN-1: the leaf that is called most goes first, and then what called nothing else. The program is as ever, and the table, the
/// report and the JSON say the same.
#[test]
fn thin_1_the_most_called_leaves_are_taken_out_and_said() {
    let victim = or_skip!(victims::plain("recorded"));
    let folder = Folder::new("thin");
    let rounds = 300_000_000;
    let options = ["--budget", "5%"];
    let (printed, errors) = record(&folder, &victim, &options, &["1", &rounds.to_string()]);
    assert_eq!((printed["mid"], printed["leaf"]), (rounds, 2 * rounds));
    let info = info(&folder);
    let out = info["taken_out"].as_array().expect("a list");
    let names: Vec<&str> = out.iter().filter_map(|one| one["function"].as_str()).collect();
    assert!(
        names.first() == Some(&"leaf") && names.iter().all(|name| ["leaf", "mid"].contains(name)),
        "{info}"
    );
    assert!((info["budget"].as_f64(), info["missing"].as_u64()) == (Some(0.05), Some(0)), "{info}");
    let report = shown(&["report", "-s", "func", folder.text()]);
    let calls: BTreeMap<String, u64> = recordings::calls(&tracing::out(&report)).into_iter().collect();
    for one in out {
        let (name, before) =
            (one["function"].as_str().expect("text"), one["calls"].as_u64().expect("a number"));
        // Words were in the rings when it was taken out.
        assert!(calls[name] >= before && calls[name] < printed[name] / 2, "{name}: {calls:?} {info}");
        let (cost, record) =
            (one["cost"].as_f64().expect("a share"), one["record_ns"].as_f64().expect("a time"));
        assert!(cost > 0.05 && record > 1.0 && record < 1000.0, "{info}");
        assert!(errors.lines().any(|line| line.ends_with(&format!("  {name}"))), "{errors}");
    }
    let said = tracing::errors(&report);
    assert!(said.contains("taken out while recording"), "{said}");
    assert!(!said.contains("returns are left out"), "{said}");
    // Calls around it are whole.
    let text = tracing::out(&report);
    let work = text.lines().find(|line| line.ends_with("  work")).expect("a row");
    assert!(work.contains(" s "), "{work}");
}

/// THIN-2: what is within its budget stays, though it runs for several windows and has leaves that are called most.
#[test]
fn thin_2_nothing_is_taken_out_within_the_budget() {
    let victim = or_skip!(victims::plain("recorded"));
    let folder = Folder::new("within");
    let rounds = 8_000_000;
    let (printed, errors) =
        record(&folder, &victim, &["--budget", "100%", "-q"], &["1", &rounds.to_string()]);
    assert_eq!(printed["leaf"], 2 * rounds);
    assert_eq!(info(&folder)["taken_out"].as_array().map(Vec::len), Some(0));
    assert!(errors.is_empty(), "{errors}");
}

/// SEL-1: what a recording notes is as if it was given when it is shown.
#[test]
fn sel_1_a_recordings_own_triggers_count_when_it_is_shown() {
    let victim = or_skip!(victims::plain("recorded"));
    let folder = Folder::new("noted");
    let options = ["-T", "mid@depth=1", "-T", "work@backtrace"];
    record(&folder, &victim, &options, &["1", "50"]);
    let dir = folder.text();
    let of = |words: &[&str]| tracing::out(&shown(&[words, &["-f", "none", dir][..]].concat()));
    let (own, all) = (of(&["replay"]), of(&["replay", "--all-calls"]));
    let given = of(&["replay", "--all-calls", "-T", "mid@depth=1", "-T", "work@backtrace"]);
    assert_eq!(own, given);
    assert!(!own.contains("leaf()") && all.contains("leaf()"), "{own}");
    let calls = |words: &[&str]| -> BTreeMap<String, u64> {
        recordings::calls(&tracing::out(&shown(&[words, &[dir][..]].concat()))).into_iter().collect()
    };
    assert_eq!(calls(&["report"]).get("leaf"), None);
    assert_eq!(calls(&["report", "--all-calls"])["leaf"], 100);
    assert_eq!(info(&folder)["triggers"], serde_json::json!(["mid@depth=1", "work@backtrace"]));
    let output = tracing::once(&["record", "-T", "mid@read=proc/statm", "-o", dir, "--", "true"]);
    assert!(!output.status.success() && tracing::errors(&output).contains("`read`"));
}
