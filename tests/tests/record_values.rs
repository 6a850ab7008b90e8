//! REC-5: arguments and returned values in recordings, beside the program's own rules, `trace`, and uftrace.

use std::collections::BTreeMap;
use std::path::Path;

use trapline_tests::recordings::{Both, Folder};
use trapline_tests::{or_skip, skip, tracing, victims};

const SIGNATURES: [&str; 5] = [
    "product(long a, u8 b) -> long",
    "sum(a, b, c, d, e, f, g)",
    "text(str s, long n) -> long",
    "half(double of, float by) -> double",
    "unsaid(str s) -> void",
];

fn record(folder: &Folder, victim: &Path, options: &[&str], words: &[&str]) -> String {
    let victim = victim.to_str().expect("plain");
    let words =
        [&["record", "--lossless", "-o", folder.text()][..], options, &["--", victim], words].concat();
    let output = tracing::once(&words);
    assert!(output.status.success(), "{}", tracing::errors(&output));
    tracing::errors(&output)
}

fn shown(words: &[&str]) -> String {
    let output = tracing::once(words);
    assert!(output.status.success(), "{words:?}: {}", tracing::errors(&output));
    tracing::out(&output)
}

/// What a thread's rules are: the round that its last call was of.
#[derive(Default)]
struct Checked {
    next: BTreeMap<String, i64>,
    calls: BTreeMap<String, u64>,
}

impl Checked {
    /// Checks one whole call, such as `product(a=8, b=3) = 24;`, or the begin of one.
    fn check(&mut self, thread: &str, call: &str) {
        let (name, rest) = call.split_once('(').unwrap_or_else(|| panic!("{call}"));
        let (values, end) = rest.rsplit_once(')').unwrap_or_else(|| panic!("{call}"));
        let values: Vec<&str> = if values.is_empty() {
            Vec::new()
        } else {
            values.split(", ").map(|one| one.split_once('=').expect("a name").1).collect()
        };
        let number = |text: &str| text.parse::<i64>().unwrap_or_else(|_| panic!("{call}"));
        let next = self.next.entry(thread.to_owned()).or_default();
        *self.calls.entry(name.to_owned()).or_default() += 1;
        let returned = end.strip_prefix(" = ").and_then(|end| end.strip_suffix(';'));
        match name {
            "product" if values == ["1", "2"] => assert_eq!(returned, Some("2")),
            "product" => {
                assert_eq!((number(values[0]) / 8, values[1]), (*next, "3"), "{call}");
                assert_eq!(returned.map(number), Some(number(values[0]) * 3), "{call}");
            }
            "sum" => {
                let all: Vec<i64> = values.iter().map(|one| number(one)).collect();
                assert_eq!((all.len(), all[0], all[6]), (7, *next, -*next), "{call}");
                assert_eq!(returned.map(number), Some(all.iter().sum()), "{call}");
            }
            "text" => {
                assert_eq!(values, [format!("{:?}", next.to_string()), next.to_string()], "{call}");
                assert_eq!(returned.map(number), Some(*next + 1), "{call}");
            }
            "half" => {
                let of = *next as f64;
                assert_eq!((values[0], values[1]), (&*format!("{of:?}"), "0.5"), "{call}");
                assert_eq!(returned, Some(&*format!("{:?}", of / 2.0)), "{call}");
            }
            "unsaid" => {
                assert_eq!((values[0], end), (&*format!("{:?}", next.to_string()), " {"), "{call}");
                *next += 1;
            }
            other => panic!("{other}"),
        }
    }
}

/// REC-5: with threads that move, the smallest buffer, and a large one, of which several blocks are taken at once; nothing is
/// lost.
#[test]
fn rec_5_values_are_the_programs_own() {
    let victim = or_skip!(victims::plain("valued"));
    for buffer in ["4k", "16M"] {
        values_are_the_programs_own(&victim, buffer);
    }
}

fn values_are_the_programs_own(victim: &Path, buffer: &str) {
    let folder = Folder::new("valued");
    let (threads, rounds) = (3, 40_000);
    let options = [&["--buffer", buffer][..], &SIGNATURES].concat();
    let errors = record(&folder, victim, &options, &[&threads.to_string(), &rounds.to_string()]);
    assert!(errors.contains(" 0 missed"), "{errors}");
    let (mut checked, mut ends) = (Checked::default(), 0);
    for line in shown(&["replay", folder.text()]).lines().skip(1) {
        let (head, call) = line.split_once(" | ").unwrap_or_else(|| panic!("{line}"));
        let thread = head.split_once('[').expect("a thread").1;
        match call.trim_start() {
            "} /* unsaid */" => ends += 1,
            call => checked.check(thread, call),
        }
    }
    let all = threads * rounds;
    let expected = [("half", all), ("product", 2 * all), ("sum", all), ("text", all), ("unsaid", all)];
    assert_eq!(checked.calls, expected.map(|(name, calls)| (name.to_owned(), calls)).into());
    assert_eq!((checked.next.len() as u64, ends), (threads, all));
    assert!(checked.next.values().all(|next| *next == rounds as i64), "{:?}", checked.next);

    // The same numbers of calls without values.
    let report = shown(&["report", "-s", "func", folder.text()]);
    for (name, calls) in expected {
        let row = report.lines().find(|line| line.ends_with(&format!("  {name}")));
        assert!(row.is_some_and(|row| row.split_whitespace().nth(4) == Some(&calls.to_string())), "{report}");
    }
}

/// REC-5: `trace` shows the same values of the same program, in the same form.
#[test]
fn rec_5_values_are_those_of_trace() {
    let victim = or_skip!(victims::plain("valued"));
    let folder = Folder::new("values-traced");
    record(&folder, &victim, &SIGNATURES, &["1", "200"]);
    let victim = victim.to_str().expect("plain");
    // The program has the standard output.
    let traced = tracing::once(&[&["trace", "-q"][..], &SIGNATURES, &["--", victim, "1", "200"]].concat());
    let traced = tracing::errors(&traced);
    // A line of trace has the time and the thread, and the duration.
    let call = |line: &str| {
        let rest = line.trim_start().splitn(3, ' ').nth(2)?.trim_start();
        let (call, _) =
            rest.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start().rsplit_once(" <")?;
        Some(call.to_owned())
    };
    let mut theirs: Vec<String> = traced.lines().filter(|line| line.contains('(')).filter_map(call).collect();
    let replay = shown(&["replay", "-f", "none", folder.text()]);
    let whole = |line: &str| {
        let line = line.trim();
        let call = line.strip_suffix(';').or_else(|| line.strip_suffix(" {"))?;
        (!call.starts_with('}')).then(|| call.to_owned())
    };
    let mut ours: Vec<String> = replay.lines().filter_map(whole).collect();
    theirs.sort();
    ours.sort();
    assert_eq!(ours.len(), 1200, "{replay}");
    assert_eq!(ours, theirs);
}

/// REC-5: uftrace's replay of the same program with `-a`, too. It shows no names of arguments.
#[test]
fn rec_5_values_are_uftraces() {
    let both = match Both::record_with("values", &["-a"]) {
        Ok(both) => both,
        Err(why) => skip!("{why}"),
    };
    let (theirs, ours) = both.replays(&[]);
    let unnamed: Vec<String> = ours.iter().map(|line| line.replace("n=", "")).collect();
    assert!(theirs.len() > 100 && theirs.iter().any(|line| line.contains("tree(5)")), "{theirs:?}");
    assert_eq!(unnamed, theirs);
}

/// A timeline has the values as `args`.
#[test]
fn rec_5_a_timeline_has_the_values() {
    let victim = or_skip!(victims::plain("valued"));
    let folder = Folder::new("values-dumped");
    record(&folder, &victim, &SIGNATURES, &["1", "7"]);
    let json: serde_json::Value =
        serde_json::from_str(&shown(&["dump", "--chrome", folder.text()])).expect("JSON");
    let events = json["traceEvents"].as_array().expect("a list");
    let of = |name: &str| {
        let named = events.iter().filter(|event| event["name"] == name);
        named.map(|event| event["args"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(
        of("text"),
        (0..7).map(|n| serde_json::json!({"s": n.to_string(), "n": n, "return": n + 1})).collect::<Vec<_>>()
    );
    assert_eq!(of("half")[3], serde_json::json!({"of": 3.0, "by": 0.5, "return": 1.5}));
    assert_eq!(of("unsaid")[2], serde_json::json!({"s": "2"}));
}

/// What records have no room for is refused.
#[test]
fn texts_that_calls_keep_are_refused() {
    let victim = or_skip!(victims::plain("valued"));
    let victim = victim.to_str().expect("plain");
    for signature in ["text(str[200] s)", "text(buf(len=ret) s)"] {
        let output = tracing::once(&["record", "--dry-run", signature, "--", victim]);
        assert!(!output.status.success(), "{signature}");
        assert!(tracing::errors(&output).contains("64 bytes"), "{}", tracing::errors(&output));
    }
}

/// `--libcall`: uftrace's replay has the same calls from the program into its libraries.
#[test]
fn rec_3_calls_into_libraries_are_uftraces() {
    let both = match Both::libcalls("libcalls") {
        Ok(both) => both,
        Err(why) => skip!("{why}"),
    };
    let (theirs, ours) = both.replays(&["-F", "main"]);
    for name in ["malloc()", "strdup()", "qsort()", "strcmp()", "puts()", "free()"] {
        assert!(theirs.iter().any(|line| line.contains(name)), "{name}: {theirs:?}");
    }
    assert_eq!(ours, theirs);
}
