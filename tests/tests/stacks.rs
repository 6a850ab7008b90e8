//! SAFE-2: `stack`: the same callers as the kernel reports for the same hits. Whatever rbp and the stack
//! hold, the program is not disturbed.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use trapline_tests::running::Running;
use trapline_tests::stacks::{addresses, all as stacks, names};
use trapline_tests::tracing::{Report, Tracing, once};
use trapline_tests::victims::{self, Variant};
use trapline_tests::{or_skip, oracle, text};

const TIMES: u64 = 40;

fn framed() -> Result<std::path::PathBuf, String> {
    victims::c("stacks", Variant::Framed)
}

/// Every stack as addresses, and how often it occurred.
fn by_address(report: &Report) -> BTreeMap<Vec<u64>, u64> {
    let mut all = BTreeMap::new();
    for stack in stacks(report) {
        *all.entry(addresses(stack)).or_default() += stack["hits"].as_u64().expect("hits");
    }
    all
}

/// The kernel's stacks of both threads, of one run.
fn kernels(path: &Path, victim: &mut Running, offset: u64) -> Result<BTreeMap<Vec<u64>, u64>, String> {
    let worker = u32::try_from(victim.run(0)["worker"]).expect("a thread");
    let events = [victim.pid(), worker].map(|tid| oracle::stacks(path, offset, tid));
    let [main, worker] = events;
    let events = [main?, worker?];
    victim.run(TIMES);
    let mut all = BTreeMap::new();
    events.iter().flat_map(oracle::Sampled::chains).for_each(|chain| *all.entry(chain).or_default() += 1);
    Ok(all)
}

fn traced(victim: &mut Running, options: &[&str]) -> (Report, BTreeMap<String, u64>) {
    let pid = victim.pid().to_string();
    let words: Vec<&str> = ["-p", &pid, "probed"].into_iter().chain(options.iter().copied()).collect();
    let tracing = Tracing::start("stack", &words).expect("attaches");
    let reported = victim.run(TIMES);
    let report = tracing.stop();
    assert!(report.status.success() && report.number("missed") == 0, "{}", report.errors);
    let hits: u64 = stacks(&report).filter_map(|stack| stack["hits"].as_u64()).sum();
    assert_eq!((hits, report.hits("probed")), (reported["probed"], reported["probed"]), "{}", report.errors);
    (report, reported)
}

#[test]
fn the_kernel_walks_the_same_stacks() {
    let path = or_skip!(framed());
    let mut victim = Running::start(&path, &[]);
    let before = text::signals(victim.pid());
    let offset = oracle::offsets(&path, &["probed"])[0];
    let expected = or_skip!(kernels(&path, &mut victim, offset));
    let (report, reported) = traced(&mut victim, &[]);
    assert_eq!(expected.values().sum::<u64>(), reported["probed"], "the kernel saw each hit");
    // The longest that both can hold: the kernel's has 127 addresses, ours 122 callers.
    let cut = |all: BTreeMap<Vec<u64>, u64>| -> BTreeMap<Vec<u64>, u64> {
        let mut cut = BTreeMap::new();
        all.into_iter().for_each(|(stack, hits)| {
            *cut.entry(stack.into_iter().take(123).collect()).or_default() += hits;
        });
        cut
    };
    let (expected, ours) = (cut(expected), cut(by_address(&report)));
    assert!(
        expected.keys().any(|stack| stack.len() == 123) && expected.len() > 15,
        "{} stacks",
        expected.len()
    );
    assert_eq!(ours, expected);
    text::assert_clean(victim.pid(), &before);
}

#[test]
fn frames_have_names_and_lines() {
    let path = or_skip!(framed());
    let mut victim = Running::start(&path, &[]);
    let (report, _) = traced(&mut victim, &[]);
    let shortest = stacks(&report).map(names).min_by_key(Vec::len).expect("stacks");
    assert_eq!(shortest, ["probed", "hit", "work", "tl_base"]);
    let deep = ["probed", "hit", "left", "right", "deep", "deep", "work", "tl_base"];
    let deep = stacks(&report).find(|stack| names(stack) == deep).expect("deep(1)");
    // Both threads take this path.
    assert_eq!((deep["hits"].as_u64(), &deep["cut"]), (Some(2 * TIMES), &false.into()), "{deep}");
    let source =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/victims/stacks.c")).expect("source");
    let function = &deep["frames"][1]["functions"];
    let (hit, left) = (&function[0], &function[1]);
    let line = |function: &Value| {
        let nth = function["line"].as_u64().unwrap_or_else(|| panic!("no line: {deep}"));
        source.lines().nth(nth as usize - 1).unwrap_or_default().to_owned()
    };
    assert!(hit["inlined"] == true && line(hit).contains("static void hit"), "{hit}");
    assert!(left.get("inlined").is_none() && line(left).contains("void left"), "{left}");
    assert!(left["file"].as_str().is_some_and(|file| file.ends_with("stacks.c")), "{left}");
    // A stack deeper than a record holds.
    let cut = stacks(&report).filter(|stack| stack["cut"] == true).map(names).max_by_key(Vec::len);
    assert!(cut.is_some_and(|names| names.len() >= 123 && !names.contains(&"work")), "deep(200) is cut");
    // No deeper than `--depth` asks for.
    let (report, _) = traced(&mut victim, &["--depth", "2"]);
    let frames = |stack: &Value| stack["frames"].as_array().map_or(0, Vec::len);
    assert!(stacks(&report).all(|stack| frames(stack) <= 3) && stacks(&report).count() > 2);
}

/// Stacks that were copied and unwound by tables: the same as by frame pointers where there are some, and as
/// good where there are none.
#[test]
fn unwind_tables_find_the_same_stacks() {
    let path = or_skip!(framed());
    let mut victim = Running::start(&path, &[]);
    let (walked, _) = traced(&mut victim, &[]);
    let (copied, _) = traced(&mut victim, &["--unwind", "dwarf"]);
    let whole = |report: &Report| -> BTreeMap<Vec<u64>, u64> {
        by_address(report).into_iter().filter(|(stack, _)| stack.len() < 100).collect()
    };
    assert!(whole(&walked).len() > 15);
    assert_eq!(whole(&copied), whole(&walked));
    // 200 frames deep, more than the record of a walk holds.
    let deepest = stacks(&copied).map(names).max_by_key(Vec::len).expect("stacks");
    assert!(deepest.len() > 200 && deepest.ends_with(&["work", "tl_base"]), "{deepest:?}");
    let path = or_skip!(victims::c("stacks", Variant::O3));
    let mut victim = Running::start(&path, &[]);
    let (copied, reported) = traced(&mut victim, &["--unwind", "dwarf"]);
    let main = stacks(&copied).filter(|stack| names(stack).ends_with(&["work", "tl_base"]));
    let hits: u64 = main.filter_map(|stack| stack["hits"].as_u64()).sum();
    assert_eq!(hits, reported["probed"], "each came from there");
}

/// A linker that wastes no bytes ends one segment and begins the next in one page of the file, at other distances
/// between address and offset. Judge: the maps of the process. A return address is an address of code.
#[test]
fn segments_that_share_a_page_of_the_file_are_told_apart() {
    let path = or_skip!(victims::rust("panics"));
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let words = ["-p", &pid, "--unwind", "dwarf", "--stack-bytes", "16000", "*panicker*"];
    let tracing = Tracing::start("stack", &words).expect("attaches");
    let printed = victim.run(TIMES);
    let code = executable(&std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs"));
    let report = tracing.stop();
    let hits: u64 = stacks(&report).filter_map(|stack| stack["hits"].as_u64()).sum();
    assert_eq!(hits, printed["panicker"], "{}", report.errors);
    for stack in stacks(&report) {
        let (addresses, names) = (addresses(stack), names(stack));
        // The first one is the probed function itself.
        let stray = addresses.iter().find(|at| !code.iter().any(|range| range.contains(*at)));
        assert_eq!(stray, None, "{addresses:x?} {names:?}");
        let at = |name: &str| names.iter().position(|one| one.contains(name));
        assert!(at("catcher").is_some() && at("catcher") < at("main"), "{names:?}");
    }
}

/// Ranges of executable memory, from the text of a maps file.
fn executable(maps: &str) -> Vec<std::ops::Range<u64>> {
    let range = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let perms = rest.split(' ').next()?;
        perms.contains('x').then_some(number(start)?..number(end)?)
    };
    maps.lines().filter_map(range).collect()
}

/// Stacks on the heap, alternate signal stacks, and all kinds of invalid frame pointers: counts are exact,
/// and the program computes the same.
#[test]
fn a_walk_never_leaves_the_stack() {
    let path = or_skip!(framed());
    let mut victim = Running::start(&path, &["wild"]);
    let check = victim.run(TIMES)["check"];
    let (report, reported) = traced(&mut victim, &[]);
    assert_eq!(reported["check"], check);
    // The return address at the top of every stack is known, even if nothing else is.
    let known = ["tl_garbage", "hit"];
    assert!(stacks(&report).all(|stack| names(stack).get(1).is_some_and(|name| known.contains(name))));
    let ends = |name: &str| stacks(&report).filter(|stack| names(stack).last() == Some(&name)).count();
    assert!(
        ends("tl_garbage") > 0 && ends("coroutine") > 0,
        "{:?}",
        stacks(&report).map(names).collect::<Vec<_>>()
    );
    assert_eq!(victim.run(TIMES)["check"], check);
    let (report, reported) = traced(&mut victim, &["--unwind", "dwarf", "--stack-bytes", "4096"]);
    assert_eq!(reported["check"], check);
    assert!(stacks(&report).all(|stack| names(stack).get(1).is_some_and(|name| known.contains(name))));
}

/// The time of calls is summed by stack.
#[test]
fn time_is_summed_by_stack() {
    let path = or_skip!(framed());
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let tracing = Tracing::start("stack", &["--time", "-p", &pid, "right", "probed"]).expect("attaches");
    let reported = victim.run(TIMES);
    let report = tracing.stop();
    assert!(report.status.success() && report.number("missed") == 0, "{}", report.errors);
    let sum = |func: &str, field: &str| -> u64 {
        let of = stacks(&report)
            .filter(|stack| stack["probe"].as_str().is_some_and(|probe| probe.ends_with(func)));
        of.filter_map(|stack| stack[field].as_u64()).sum()
    };
    assert_eq!((sum(":probed", "hits"), report.hits("probed")), (reported["probed"], reported["probed"]));
    assert_eq!(sum(":right", "hits"), report.hits("right"));
    // Each `right` takes longer than the two calls of `probed` in it; the stacks below them have some time of
    // their own.
    let (right, probed) = (sum(":right", "time_ns"), sum(":probed", "time_ns"));
    assert!(right > 0 && probed > 0, "{right} {probed}");
    let inside =
        stacks(&report).filter(|stack| stack["probe"].as_str().is_some_and(|p| p.ends_with(":probed")));
    let inside: u64 = inside
        .filter(|stack| names(stack).contains(&"right"))
        .filter_map(|stack| stack["time_ns"].as_u64())
        .sum();
    assert!(right > inside, "{right} > {inside}");
}

/// Conditions on arguments and threads are decided in the target before a stack is walked or copied.
#[test]
fn stacks_of_calls_that_pass_are_summed() {
    let path = or_skip!(victims::c("counter", Variant::Framed));
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let cases: [(&[&str], bool); 4] = [
        (&["--if", "a % 3 == 1"], true),
        (&["--if", "a % 3 == 1", "--unwind", "dwarf"], true),
        (&["--if", "a % 3 == 1", "--time"], true),
        (&["--if", "a % 3 == 1 && tid == 1"], false),
    ];
    for (options, passes) in cases {
        let mut words = vec!["-p", &pid, "many_args(u64 a, int b)"];
        words.extend(options);
        let tracing = Tracing::start("stack", &words).expect("attaches");
        let reported = victim.run(TIMES);
        let report = tracing.stop();
        assert!(report.status.success() && report.number("missed") == 0, "{}", report.errors);
        let hits: u64 = stacks(&report).filter_map(|stack| stack["hits"].as_u64()).sum();
        let expected = if passes { (0..reported["many_args"]).filter(|a| a % 3 == 1).count() } else { 0 };
        assert_eq!(hits, expected as u64, "{options:?}: {}", report.errors);
    }
    for unknown in ["c", "a && ret", "dur > 1ms"] {
        let output = once(&["stack", "--time", "-p", &pid, "--if", unknown, "many_args(u64 a)"]);
        let output_text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && output_text.contains("is unknown"), "{output_text}");
    }
}

/// `--depth` is the number of callers that are recorded, from one up.
#[test]
fn as_many_callers_as_were_asked_for() {
    let path = or_skip!(framed());
    let mut victim = Running::start(&path, &[]);
    for depth in 1..=3 {
        let (report, _) = traced(&mut victim, &["--depth", &depth.to_string()]);
        let most = stacks(&report).map(|stack| addresses(stack).len()).max();
        assert_eq!(most, Some(1 + depth), "--depth {depth}: {}", report.errors);
    }
}
