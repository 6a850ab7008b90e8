//! REC-3, SEL-1: what is shown of a recording, beside uftrace on the same program with the same options. SEL-2: parts of a
//! recording. What `diff` and `info` say is what `report` and the program say.

use std::collections::BTreeMap;
use std::process::Command;

use trapline_tests::recordings::{Both, Folder, calls};
use trapline_tests::{or_skip, skip, tracing, victims};

/// REC-3: uftrace's replay of the same program has the same calls, in the same order and nesting.
#[test]
fn rec_3_the_replay_is_uftraces() {
    let both = match Both::record("same") {
        Ok(both) => both,
        Err(why) => skip!("{why}"),
    };
    let (theirs, ours) = both.replays(&[]);
    assert!(theirs.len() > 100, "{theirs:?}");
    assert_eq!(ours, theirs);
    let (theirs, ours) = both.reports(&[]);
    assert!(theirs.len() == 6, "{theirs:?}");
    assert_eq!(ours, theirs);
}

/// SEL-1: with each option, and with several together.
#[test]
fn sel_1_what_is_chosen_is_what_uftrace_chooses() {
    let both = match Both::record("chosen") {
        Ok(both) => both,
        Err(why) => skip!("{why}"),
    };
    let whole = both.replays(&[]).1;
    for options in [
        &["-F", "tree"][..],
        &["-F", "tree", "-D", "1"],
        &["-F", "tree", "-D", "2"],
        &["-F", "odd", "-F", "leaf"],
        &["-F", "odd", "-N", "even"],
        &["-F", "even", "-D", "1"],
        &["-N", "tree", "-D", "2"],
        &["-N", "tree"],
        &["-N", "again", "-N", "leaf"],
        &["-C", "odd"],
        &["-C", "odd", "-C", "leaf"],
        &["-C", "odd", "-D", "1"],
        &["-C", "odd", "-N", "again"],
        &["-C", "even", "-F", "again"],
        &["-D", "1"],
        &["-D", "3"],
        &["-t", "1s"],
        &["-T", "again@depth=2"],
        &["-T", "again@depth=1,backtrace"],
        &["-T", "odd@backtrace"],
        &["-T", "leaf@backtrace", "-F", "again"],
        &["-T", "again@filter,depth=2"],
        &["-T", "tree@notrace"],
        &["-F", "again", "-T", "odd@depth=1"],
        &["-T", "tree@trace_off", "-T", "again@trace_on"],
    ] {
        let (theirs, ours) = both.replays(options);
        assert_eq!(ours, theirs, "{options:?}");
        assert_ne!(ours, whole, "{options:?}");
        if options[0] != "-C" && !options.contains(&"-T") {
            let (theirs, ours) = both.reports(options);
            assert_eq!(ours, theirs, "{options:?}");
        }
    }
}

/// SEL-1: behind `trace_off`, no call begins. Ours have their ends all the same.
#[test]
fn sel_1_what_is_switched_off_is_what_uftrace_switches_off() {
    let both = match Both::record("switched") {
        Ok(both) => both,
        Err(why) => skip!("{why}"),
    };
    for options in [&["-T", "even@trace_off"][..], &["-T", "odd@trace-off"], &["-T", "again@trace_off"]] {
        let (theirs, ours) = both.replays(options);
        let begins = |lines: &[String]| {
            let begins = lines.iter().filter(|line| !line.contains("} /* "));
            begins.map(|line| line.trim_end_matches([' ', '{', ';']).to_owned()).collect::<Vec<_>>()
        };
        assert!(begins(&theirs).len() > 50, "{options:?}");
        assert_eq!(begins(&ours), begins(&theirs), "{options:?}");
        let (begun, ended) = (
            ours.iter().filter(|line| line.ends_with('{')),
            ours.iter().filter(|line| line.contains("} /* ")),
        );
        assert_eq!(begun.count(), ended.count(), "each call has its end");
    }
}

/// Where a filter leaves nothing, a note names it, and says how many functions there are.
#[test]
fn what_leaves_nothing_is_named() {
    or_skip!(victims::plain("recorded"));
    let folder = Folder::new("nothing");
    recorded(&folder, &["mid", "leaf"], &["1", "10"]).expect("a pid");
    for (options, says) in [
        (&["-F", "nosuch"][..], "--filter nosuch means none of the 2 recorded functions"),
        (&["-C", "nosuch"], "--caller nosuch means none of the 2"),
        (&["-T", "nosuch@backtrace"], "--trigger nosuch means none of the 2"),
        (&["-t", "1h"], "--time-filter leaves out all calls: the longest took "),
        (&["--tid", "1"], "--tid: no such thread made a call; recorded are "),
        (&["-F", "leaf", "-N", "leaf"], "no call passes all of the options together"),
    ] {
        let output = tracing::once(&[&["replay", folder.text()][..], options].concat());
        assert!(
            output.status.success() && tracing::errors(&output).contains(says),
            "{options:?}: {}",
            tracing::errors(&output)
        );
        let some = tracing::once(&["replay", folder.text(), "-F", "leaf"]);
        assert!(!tracing::errors(&some).contains("note:"), "{}", tracing::errors(&some));
    }
    let victim = victims::plain("recorded").expect("built before");
    let victim = victim.to_str().expect("plain");
    let other = Folder::new("nothing-recorded");
    for (options, says) in [
        (&["--size-filter", "10M"][..], "have less than 10485760 bytes of code (--size-filter)"),
        (&["-U", "*"], "are named by --unpatch"),
    ] {
        let words = [&["record", "-o", other.text()][..], options, &["leaf", "mid", "--", victim, "1", "10"]]
            .concat();
        let output = tracing::once(&words);
        let errors = tracing::errors(&output);
        assert_eq!(output.status.code(), Some(3), "{errors}");
        assert!(
            errors.contains("nothing to probe: leaf: all functions that it means are left out: 1 ")
                && errors.contains(says),
            "{errors}"
        );
        assert!(!errors.contains("--wait"), "{errors}");
        assert!(!other.0.exists(), "an empty folder is taken away");
    }
}

/// A duration in nanoseconds; up to a millisecond, it is shown without loss.
fn nanos(text: &str) -> Option<u64> {
    let (number, unit) = text.trim().split_once(' ')?;
    match unit {
        "ns" => number.parse().ok(),
        "us" => number.replace('.', "").parse().ok(),
        _ => Some(u64::MAX),
    }
}

/// Durations by function, of all calls.
fn durations(replay: &str) -> Vec<(String, u64)> {
    let call = |line: &str| {
        let (took, rest) = (nanos(line.split_once('[')?.0)?, line.split_once(" | ")?.1.trim());
        let name = rest.strip_prefix("} /* ").unwrap_or(rest);
        Some((name.split([' ', '(']).next()?.to_owned(), took))
    };
    replay.lines().skip(1).filter_map(call).collect()
}

/// SEL-1: the calls that are long are those which the whole replay shows to be.
#[test]
fn sel_1_short_calls_are_left_out_by_their_duration() {
    let both = match Both::record("long") {
        Ok(both) => both,
        Err(why) => skip!("{why}"),
    };
    let all = durations(&both.ours("replay", &[]));
    let mut times: Vec<u64> = all.iter().map(|(_, took)| *took).collect();
    times.sort_unstable();
    for least in [times[times.len() / 4], times[times.len() / 2], times[times.len() - 3]] {
        let option = format!("{least}ns");
        let long = durations(&both.ours("replay", &["--time-filter", &option]));
        let expected: Vec<_> = all.iter().filter(|(_, took)| *took >= least).cloned().collect();
        assert_eq!(long, expected, "{option}");
        let mut expected = BTreeMap::new();
        long.iter().for_each(|(name, _)| *expected.entry(name.clone()).or_insert(0) += 1);
        let reported = both.ours("report", &["--time-filter", &option]);
        assert_eq!(calls(&reported), expected.into_iter().collect::<Vec<_>>());
    }
}

/// The other verbs take the same options.
#[test]
fn sel_1_graph_and_dump_choose_as_replay_does() {
    let both = match Both::record("verbs") {
        Ok(both) => both,
        Err(why) => skip!("{why}"),
    };
    let of = |verb: &str, options: &[&str], line: &str| both.ours(verb, options).matches(line).count();
    let leaves = of("replay", &["-F", "tree"], "leaf();");
    assert!(leaves > 5);
    assert_eq!(of("dump", &["--chrome", "-F", "tree"], "\"leaf\""), leaves);
    assert_eq!(of("dump", &["--flame", "-F", "tree"], "main"), 0);
    assert!(of("dump", &["--flame", "-F", "tree"], "tree;leaf ") > 0);
    let output = tracing::once(&[
        "graph",
        "--from",
        both.path().join("ours").to_str().expect("plain"),
        "-N",
        "odd",
        "main",
    ]);
    let graph = tracing::out(&output);
    assert!(graph.contains(") tree") && graph.contains(") even") && !graph.contains("odd"), "{graph}");
    // Without a recording there is nothing to choose from.
    let output = tracing::once(&["graph", "-N", "odd", "main", "--", "true"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(tracing::errors(&output).contains("--notrace chooses among the calls of a recording"));
    for (options, says) in [
        (["-F", "f+3"], "--filter: `f+3` is no function; write a name or a pattern"),
        (["-t", "x"], "--time-filter"),
    ] {
        let output = tracing::once(&[&["replay"][..], &options].concat());
        assert_eq!(output.status.code(), Some(2));
        assert!(tracing::errors(&output).contains(says), "{}", tracing::errors(&output));
    }
}

/// Records a victim that calls functions; returns its pid.
fn recorded(folder: &Folder, options: &[&str], words: &[&str]) -> Option<String> {
    let victim = victims::plain("recorded").ok()?;
    let victim = victim.to_str().expect("plain");
    let words =
        [&["record", "-q", "--lossless", "-o", folder.text()][..], options, &["--", victim], words].concat();
    let output = tracing::once(&words);
    assert!(output.status.success(), "{}", tracing::errors(&output));
    let text = tracing::out(&output);
    Some(text.lines().next()?.strip_prefix("pid=")?.to_owned())
}

fn shown(words: &[&str]) -> String {
    let output = tracing::once(words);
    assert!(output.status.success(), "{words:?}: {}", tracing::errors(&output));
    tracing::out(&output)
}

/// Changes a byte of a recording, at so many tenths of it.
fn damage(folder: &Folder, tenths: usize) {
    let file = folder.0.join("calls.trapline");
    let mut bytes = std::fs::read(&file).expect("written");
    let at = bytes.len() * tenths / 10;
    bytes[at] ^= 1;
    std::fs::write(&file, &bytes).expect("ours");
}

/// SEL-2: calls between two times are those of the timeline. Blocks outside are not read: damage there is not met.
#[test]
fn sel_2_a_part_is_read_without_the_rest() {
    or_skip!(victims::plain("recorded"));
    let folder = Folder::new("part");
    // Long enough that the reader writes many blocks, on a busy machine too: the part must not lie in a damaged one.
    recorded(&folder, &[], &["1", "600000"]).expect("a pid");
    let timeline = shown(&["dump", "--chrome", folder.text()]);
    let begin = |line: &str| line.split_once("\"ts\":")?.1.split(',').next()?.parse::<f64>().ok();
    let mids = timeline.lines().filter(|line| line.ends_with("\"mid\"},") || line.ends_with("\"mid\"}"));
    let times: Vec<f64> = mids.filter_map(begin).collect();
    assert_eq!(times.len(), 600_000);
    let at = |part: usize| times[times.len() * part / 10];
    let (since, until) = (at(4), at(6));
    let options = [format!("--since={since}us"), format!("--until={until}us")];
    let words = ["report", folder.text(), &options[0], &options[1]];
    let mid_calls =
        |text: &str| calls(text).into_iter().find(|(name, _)| name == "mid").map_or(0, |row| row.1);
    let whole = shown(&words);
    let expected = times.iter().filter(|time| (since..=until).contains(*time)).count() as u64;
    assert!(mid_calls(&whole).abs_diff(expected) < 6000, "{whole}\n{expected}");
    damage(&folder, 1);
    damage(&folder, 9);
    assert_eq!(shown(&words), whole);
    for options in [&[][..], &[options[0].as_str()], &[options[1].as_str()]] {
        let output = tracing::once(&[&["report", folder.text()], options].concat());
        let errors = tracing::errors(&output);
        assert!(output.status.code() == Some(1) && errors.contains("checksum"), "{options:?}: {errors}");
    }
    let output = tracing::once(&["report", "--since", "2s", "--until", "1s", folder.text()]);
    assert_eq!(output.status.code(), Some(2));
}

/// `replay -f elapsed` says when each call began, in the words of `--since`; `-f none` says names alone.
#[test]
fn fields_are_those_that_are_asked_for() {
    let both = match Both::record("fields") {
        Ok(both) => both,
        Err(why) => skip!("{why}"),
    };
    let plain = both.ours("replay", &[]);
    let bare: Vec<&str> = plain.lines().skip(1).filter_map(|line| Some(line.split_once(" | ")?.1)).collect();
    assert_eq!(both.ours("replay", &["-f", "none"]), bare.join("\n") + "\n");
    let timed = both.ours("replay", &["-f", "elapsed,duration,tid"]);
    let plain: Vec<&str> = plain.lines().skip(1).collect();
    let mut times = Vec::new();
    for (line, plain) in timed.lines().skip(1).zip(&plain) {
        let (time, rest) = line.split_at(16);
        times.push(time.trim().parse::<f64>().expect("seconds"));
        assert_eq!(rest, *plain);
    }
    assert!(times.len() == plain.len() && times.is_sorted(), "{times:?}");
    // What begins at that time is the first that is shown from then on.
    let nth = plain.iter().position(|line| line.contains("again() {")).expect("a call");
    let since = format!("{:.9}", times[nth] - 5e-9);
    let part = both.ours("replay", &["-f", "none", "--since", &since]);
    assert_eq!(part.lines().next(), Some("again() {"), "{part}");
    let output = tracing::once(&["replay", "-f", "none,tid"]);
    assert_eq!(output.status.code(), Some(2));
}

/// Each row of `diff` is the difference of what `report` says.
#[test]
fn the_difference_is_that_of_two_reports() {
    or_skip!(victims::plain("recorded"));
    let folders = [Folder::new("base"), Folder::new("other")];
    recorded(&folders[0], &[], &["1", "1000"]).expect("a pid");
    recorded(&folders[1], &["mid", "leaf", "handled", "main"], &["2", "1500", "signals"]).expect("a pid");
    let reports = folders.each_ref().map(|folder| shown(&["report", folder.text()]));
    let diff = shown(&["diff", "--full", folders[0].text(), folders[1].text()]);
    let mut rows = 0;
    for line in diff.lines().skip(7) {
        let words: Vec<&str> = line.split_whitespace().collect();
        // Six times with their units, and their differences' ones.
        let name = words[words.len() - 1];
        let of = |report: &str| {
            let row = report.lines().find(|line| line.ends_with(&format!("  {name}")));
            let columns = |row: &str| row.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            row.map_or_else(|| ["0", "ns", "0", "ns", "0", name].map(str::to_owned).to_vec(), columns)
        };
        let [a, b] = reports.each_ref().map(|report| of(report));
        assert_eq!((words[0], words[1], words[2], words[3]), (&*a[0], &*a[1], &*b[0], &*b[1]), "{line}");
        assert_eq!((words[6], words[7], words[8], words[9]), (&*a[2], &*a[3], &*b[2], &*b[3]), "{line}");
        assert_eq!((words[12], words[13]), (&*a[4], &*b[4]), "{line}");
        let number = |text: &str| text.parse::<i64>().expect("a number");
        assert_eq!(number(words[14]), number(words[13]) - number(words[12]), "{line}");
        rows += 1;
    }
    assert!(rows > 6, "{diff}");
    let calls_of = |options: &[&str]| {
        let text = shown(&[&["diff", folders[0].text(), folders[1].text()], options].concat());
        text.lines()
            .find(|line| line.ends_with("  mid"))
            .map(|line| line.split_whitespace().nth(4).expect("calls").to_owned())
    };
    assert_eq!(calls_of(&["-s", "call"]).as_deref(), Some("+2000"));
    assert_eq!(calls_of(&["-F", "leaf"]), None);
}

/// `info` says what the program and the other verbs say, and reads no calls.
#[test]
fn info_says_what_was_recorded() {
    or_skip!(victims::plain("recorded"));
    let folder = Folder::new("info");
    let pid = recorded(&folder, &["mid", "leaf", "work"], &["2", "50000"]).expect("a pid");
    damage(&folder, 5);
    let text = shown(&["info", folder.text()]);
    let value = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(&format!("# {name} ")));
        line.and_then(|line| Some(line.split_once(": ")?.1.to_owned())).unwrap_or_default()
    };
    assert_eq!(
        (value("pid"), value("functions"), value("name")),
        (pid.clone(), "3".into(), "recorded".into())
    );
    assert!(value("threads").starts_with("2: ") && !value("threads").contains(&format!("{pid}(")), "{text}");
    assert!(
        value("command").contains("recorded 2 50000") && value("hits").starts_with("300,002 recorded, 0"),
        "{text}"
    );
    assert!(value("file").ends_with(" bytes, whole") && value("full buffers") == "threads waited", "{text}");
    let file = folder.0.join("calls.trapline");
    let bytes = std::fs::read(&file).expect("written");
    std::fs::write(&file, &bytes[..bytes.len() / 2]).expect("ours");
    let output = tracing::once(&["info", folder.text()]);
    let says = format!("ends at byte {} without", bytes.len() / 2);
    assert!(
        output.status.code() == Some(1) && tracing::out(&output).contains(&says),
        "{}",
        tracing::out(&output)
    );
}

/// Functions that `record` leaves out by size are those that binutils says are smaller; a named one is left out, too.
#[test]
fn small_functions_are_not_recorded() {
    let victim = or_skip!(victims::plain("recorded"));
    let output = Command::new("nm").args(["-S", "--defined-only"]).arg(&victim).output().expect("nm runs");
    let of = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, bytes, "t" | "T", name] = words[..] else { return None };
        Some((name.to_owned(), u64::from_str_radix(bytes, 16).ok()?))
    };
    let sizes: BTreeMap<String, u64> = tracing::out(&output).lines().filter_map(of).collect();
    let recorded = |options: &[&str]| {
        let folder = Folder::new("small");
        self::recorded(&folder, options, &["1", "100"]).expect("a pid");
        let names = calls(&shown(&["report", folder.text()])).into_iter().map(|(name, _)| name);
        names.collect::<Vec<_>>()
    };
    let all = recorded(&[]);
    let mut of_all: Vec<u64> = all.iter().filter_map(|name| sizes.get(name).copied()).collect();
    of_all.sort_unstable();
    let least = of_all[of_all.len() / 2];
    assert!(least > of_all[0] && sizes["leaf"] > 0, "{sizes:?}");
    for least in [least, least + 1] {
        let left = recorded(&["--size-filter", &least.to_string()]);
        let is_large = |name: &&String| sizes.get(*name).is_none_or(|bytes| *bytes >= least);
        let expected: Vec<&String> = all.iter().filter(is_large).collect();
        // A symbol without a size has one all the same: up to the next symbol.
        let left: Vec<&String> = left.iter().filter(|name| sizes.contains_key(*name)).collect();
        let expected: Vec<&String> = expected.into_iter().filter(|name| sizes.contains_key(*name)).collect();
        assert_eq!(left, expected, "{least}");
    }
    let left = recorded(&["-U", "leaf", "-U", "ha*"]);
    let expected: Vec<String> =
        all.iter().filter(|name| *name != "leaf" && *name != "handled").cloned().collect();
    assert_eq!(left, expected);
    let output = tracing::once(&["record", "--size-filter", "x", "--", "true"]);
    assert!(output.status.code() == Some(2) && tracing::errors(&output).contains("--size-filter `x`"));
}
