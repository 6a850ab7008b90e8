//! LOSS-1, LOSS-2: every call is timed once, exits are classified, and figures agree with each other.

use serde_json::Value;
use trapline_tests::running::Running;
use trapline_tests::tracing::{Report, Tracing, until_enough};
use trapline_tests::victims::{self, Variant};
use trapline_tests::{or_skip, text};

const ROUNDS: u64 = 20_000;
const FUNCS: [&str; 8] =
    ["leaf", "framed", "factorial", "tail_caller", "looper", "early", "many_args", "switcher"];

fn number(probe: &Value, field: &str) -> u64 {
    probe[field].as_u64().unwrap_or_else(|| panic!("no {field} in {probe}"))
}

/// Checks what must hold for any timed function.
fn consistent(probe: &Value) {
    let calls = number(probe, "calls");
    let rows = probe["log2_ns"].as_array().expect("log2_ns");
    let cell = |row: &Value, i: usize| row[i].as_u64().expect("three numbers to a row");
    assert_eq!(rows.iter().map(|row| cell(row, 2)).sum::<u64>(), calls, "rows add up to calls: {probe}");
    assert!(rows.iter().all(|row| cell(row, 0) < cell(row, 1)), "{probe}");
    if calls == 0 {
        return;
    }
    let order =
        ["min_ns", "p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns"].map(|field| number(probe, field));
    assert!(order.is_sorted(), "{order:?} in {probe}");
    let total = number(probe, "total_ns");
    assert!(total >= calls.saturating_mul(order[0]) && total <= calls.saturating_mul(order[5]), "{probe}");
    assert!(number(probe, "tail_exits") <= calls, "{probe}");
}

fn timed(variant: Variant) -> Result<Report, String> {
    let path = victims::c("counter", variant)?;
    let mut victim = Running::start(&path, &[]);
    let bare = victim.run(ROUNDS);
    let before = text::signals(victim.pid());
    let pid = victim.pid().to_string();
    let words: Vec<&str> = ["-p", &pid, "-F"].into_iter().chain(FUNCS).collect();
    let tracing = Tracing::start("lat", &words).expect("attaches");
    assert_eq!(victim.run(ROUNDS), bare, "the victim behaves differently while timed");
    let report = tracing.stop();
    assert_eq!(report.status.code(), Some(0), "{}", report.errors);
    text::assert_clean(victim.pid(), &before);
    let refused = report.refused();
    for func in FUNCS {
        if let Some((_, why)) = refused.iter().find(|(probe, _)| probe.ends_with(&format!(":{func}"))) {
            println!("{variant:?}: {func} refused: {why}");
            continue;
        }
        assert_eq!(
            report.field(func, "calls"),
            bare[func],
            "{variant:?}: calls of {func}; {}",
            report.errors
        );
        for field in ["unpaired", "unreturned", "in_flight"] {
            assert_eq!(report.field(func, field), 0, "{variant:?}: {field} of {func}");
        }
    }
    report.probes().for_each(consistent);
    // Without optimisation nothing is padded: a one-byte `ret` with code right behind it admits no jump.
    let most = if variant == Variant::O0 { FUNCS.len() / 2 } else { 1 };
    assert!(refused.len() <= most, "{refused:?}");
    Ok(report)
}

#[test]
fn every_call_is_timed_once() {
    let report = or_skip!(timed(Variant::Plain));
    assert_eq!(report.field("tail_caller", "tail_exits"), 0, "it is timed until what it jumps to returns");
    assert_eq!(report.field("framed", "tail_exits"), 0, "framed ends in ret");
}

#[test]
fn without_optimisation_and_with_endbr64() {
    for variant in [Variant::O0, Variant::O3, Variant::Cet, Variant::NonPie, Variant::Static] {
        or_skip!(timed(variant));
    }
}

#[test]
fn durations_are_real_time() {
    // `main` calls `block`, which sleeps for two seconds. The figure must be that duration, not a number of
    // clock ticks.
    let path = or_skip!(victims::plain("blocked"));
    let begun = std::time::Instant::now();
    let mut tracing = Tracing::spawn("lat", &["-c", &format!("{} nanosleep", path.display()), "main"]);
    let report = tracing.end();
    let whole = begun.elapsed().as_nanos();
    let probe = report.probe("main").unwrap_or_else(|| panic!("no main: {}", report.errors));
    consistent(probe);
    assert_eq!(number(probe, "calls"), 1, "{}", report.errors);
    let took = number(probe, "total_ns");
    assert!(took >= 1_990_000_000 && u128::from(took) < whole, "main took {took} of {whole} ns");
}

#[test]
fn calls_that_run_at_attach_and_at_detach_are_distinguished() {
    // `main` and `victim_serve` run all the time: they were entered before the attach, and never return.
    let path = or_skip!(victims::plain("threads"));
    let mut victim = Running::start(&path, &["2", "endless"]);
    let pid = victim.pid().to_string();
    let tracing = Tracing::start("lat", &["-p", &pid, "calls", "shared"]).expect("attaches");
    let begun = victim.run(0)["rounds"];
    // Two rounds may have begun before, and all others are seen.
    let reported = victim.run_until(100_000, |now| now["rounds"] > begun + 2);
    let report = tracing.stop();
    assert_eq!(reported["wrong"], 0);
    assert!(report.field("shared", "calls") > 0, "{}", report.errors);
    // Exits are patched before entries. Calls that end in between find no stamp, and are counted as such.
    println!("{} exits without an entry", report.field("shared", "unpaired"));
    assert!(report.field("shared", "in_flight") <= 2, "at most one call a thread ran at detach");
}

#[test]
fn recursion_and_the_outermost_call() {
    let path = or_skip!(victims::plain("counter"));
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let tracing = Tracing::start("lat", &["-p", &pid, "--outermost", "factorial"]).expect("attaches");
    let reported = victim.run(900);
    let report = tracing.stop();
    // Each round calls factorial(5) once; every ninth round calls factorial(3) once more.
    assert_eq!(reported["factorial"], 900 * 5 + 100 * 3);
    assert_eq!(report.field("factorial", "calls"), 900 + 100, "{}", report.errors);
}

/// `slow` ends by a jump to a function that sleeps for 3 ms. With a replaced return address, its time
/// includes that.
#[test]
fn replaced_return_addresses_time_a_tail_call_until_its_callee_returns() {
    let path = or_skip!(victims::plain("naps"));
    let victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let has_enough =
        |report: &Report, func: &str| report.probe(func).is_some_and(|probe| number(probe, "calls") > 20);
    let words = ["-p", &pid, "-F", "--ret=stack", "slow", "handle"];
    let report =
        until_enough("lat", &words, |report| ["slow", "handle"].iter().all(|func| has_enough(report, func)));
    for func in ["slow", "handle"] {
        let probe = report.probe(func).unwrap_or_else(|| panic!("no {func}: {}", report.errors));
        consistent(probe);
        assert!(number(probe, "calls") > 20, "{probe}: {}", report.errors);
        assert!(number(probe, "min_ns") >= 3_000_000 && number(probe, "tail_exits") == 0, "{probe}");
    }
    // Patched exits see only the jump, and the report counts such calls separately.
    let words = ["-p", &pid, "-F", "--ret=exits", "slow"];
    let report = until_enough("lat", &words, |report| has_enough(report, "slow"));
    let probe = report.probe("slow").unwrap_or_else(|| panic!("no slow: {}", report.errors));
    let calls = number(probe, "calls");
    assert!(calls > 20 && calls == number(probe, "tail_exits"), "{probe}");
}

/// Two functions without padding: the byte behind the `ret` of one is the entry of the other. Both are timed.
#[test]
fn neighbours_without_padding_are_both_timed() {
    let path = or_skip!(victims::c("counter", Variant::O0));
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let words: Vec<&str> = ["-p", &pid, "-F"].into_iter().chain(FUNCS).collect();
    let tracing = Tracing::start("lat", &words).expect("attaches");
    let reported = victim.run(ROUNDS);
    let report = tracing.stop();
    assert_eq!(report.refused(), [], "{}", report.errors);
    FUNCS.iter().for_each(|func| assert_eq!(report.field(func, "calls"), reported[*func], "{func}"));
}

/// The loader's code that finds a function at its first call has two more words on the stack than at its end.
#[test]
fn what_is_not_entered_by_a_call_is_counted_and_not_timed() {
    let words = [
        "ld-linux-x86-64:_dl_runtime_resolve_*",
        "ld-linux-x86-64:_dl_fixup",
        "--",
        "/usr/bin/gcc",
        "--version",
    ];
    let count = Tracing::spawn("count", &words).end();
    let resolved = count.hits("_dl_fixup");
    assert!(resolved > 0 && count.total_hits() == 2 * resolved, "{}", count.errors);
    for verb in ["lat", "trace"] {
        let report = Tracing::spawn(verb, &words).end();
        assert!(report.errors.contains(" not-called; "), "{verb}: {}", report.errors);
        if verb == "lat" {
            assert_eq!(report.field("_dl_fixup", "calls"), resolved, "{}", report.errors);
        }
    }
}
