//! SAFE-5: a program is refused before any call is made if its seccomp filter would kill it for one of our
//! calls. If the filter lets them fail, the program is traced with the filter suspended. Both live on as
//! before.

use std::process::{Command, Output};

use trapline_tests::running::Running;
use trapline_tests::tracing::{Tracing, binary, once};
use trapline_tests::{or_skip, skip, text, victims};

/// Filters, and the call that each one kills for.
const FILTERS: [(&str, Option<&str>); 4] =
    [("kill", Some("memfd_create")), ("sigreturn", Some("rt_sigreturn")), ("errno", None), ("allow", None)];
const CALLS: usize = 20;

/// Calls `leaf` `CALLS` times.
fn exercise(victim: &mut Running) {
    for _ in 0..CALLS {
        victim.send("");
        assert_eq!(victim.line(), "alive", "the target lives on");
    }
}

/// Whether this process has CAP_SYS_ADMIN, which is needed to suspend a filter.
fn may_suspend() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let caps = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    caps.and_then(|caps| u64::from_str_radix(caps.trim(), 16).ok()).is_some_and(|caps| caps >> 21 & 1 == 1)
}

/// Asserts that an attach was refused with these words, and left nothing behind.
fn assert_refused(victim: &mut Running, before: &[String], output: &Output, words: &[&str]) {
    let output_text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{output_text}");
    for word in words {
        assert!(output_text.contains(word), "no {word} in: {output_text}");
    }
    exercise(victim);
    text::assert_clean(victim.pid(), before);
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", victim.pid())).expect("its maps");
    assert!(!maps.contains("/memfd:"), "a call was made: {maps}");
}

#[test]
fn a_filter_is_an_obstacle_if_it_kills() {
    let path = or_skip!(victims::plain("filtered"));
    if !may_suspend() {
        skip!("reading a seccomp filter takes CAP_SYS_ADMIN");
    }
    for (filter, kills_for) in FILTERS {
        let mut victim = Running::start(&path, &[filter]);
        let before = text::signals(victim.pid());
        let pid = victim.pid().to_string();
        if let Some(call) = kills_for {
            let output = once(&["count", "-d", "0.2", "-p", &pid, "leaf"]);
            assert_refused(&mut victim, &before, &output, &["seccomp filter may kill it for", call]);
            continue;
        }
        let tracing = Tracing::start("count", &["-p", &pid, "leaf"])
            .unwrap_or_else(|report| panic!("{filter}: {}: {}", report.status, report.errors));
        exercise(&mut victim);
        let report = tracing.stop();
        assert_eq!((report.status.code(), report.hits("leaf")), (Some(0), CALLS as u64), "{}", report.errors);
        exercise(&mut victim);
        text::assert_clean(victim.pid(), &before);
    }
}

#[test]
fn a_filter_that_cannot_be_read_is_refused() {
    let path = or_skip!(victims::plain("filtered"));
    if !may_suspend() {
        skip!("only root can be without CAP_SYS_ADMIN and still be allowed to trace");
    }
    for (filter, _) in FILTERS {
        let mut victim = Running::start(&path, &[filter]);
        let before = text::signals(victim.pid());
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]).arg(binary());
        command.args(["count", "-d", "0.2", "-p", &victim.pid().to_string(), "leaf"]);
        let output = or_skip!(command.output().map_err(|error| format!("setpriv: {error}")));
        assert_refused(&mut victim, &before, &output, &["seccomp filter", "CAP_SYS_ADMIN"]);
    }
}

#[test]
fn strict_mode_is_refused() {
    let path = or_skip!(victims::plain("filtered"));
    let mut victim = Running::start(&path, &["strict"]);
    let before = text::signals(victim.pid());
    let output = once(&["count", "-d", "0.2", "-p", &victim.pid().to_string(), "leaf"]);
    assert_refused(&mut victim, &before, &output, &["seccomp strict mode"]);
}

/// Rights belong to a thread: what the main thread may do says nothing about the others.
#[test]
fn what_another_thread_may_not_do_is_refused() {
    let path = or_skip!(victims::plain("restricted"));
    let texts = "work(u64 x, str s)";
    let refused: [(&str, &[&str], &str); 9] = [
        ("tsc", &["lat", "work"], "may not read the time-stamp counter (PR_SET_TSC)"),
        ("tsc", &["trace", "work"], "may not read the time-stamp counter (PR_SET_TSC)"),
        ("tsc", &["stack", "--time", "work"], "may not read the time-stamp counter (PR_SET_TSC)"),
        ("filter", &["trace", texts], "filters its system calls (seccomp)"),
        ("filter", &["hist", "--top", "s", texts], "filters its system calls (seccomp)"),
        ("strict", &["lat", "work"], "may not read the time-stamp counter (seccomp strict mode)"),
        ("strict", &["trace", texts], "filters its system calls (seccomp)"),
        ("dispatch", &["trace", texts], "gets its system calls back as signals"),
        ("dispatch", &["hist", "--top", "s", texts], "gets its system calls back as signals"),
    ];
    for (how, words, output_text) in refused {
        let mut victim = Running::start(&path, &[how]);
        let before = text::signals(victim.pid());
        let pid = victim.pid().to_string();
        let output = once(&[&words[..1], &["-d", "0.2", "-p", &pid], &words[1..]].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && errors.contains(output_text), "{how} {words:?}: {errors}");
        assert_eq!(victim.run(10)["work"], 20, "{how} {words:?}: the target lives on");
        text::assert_clean(victim.pid(), &before);
    }
}

/// What a restricted thread may do is done in that thread as well.
#[test]
fn what_a_restricted_thread_may_do_is_probed() {
    let path = or_skip!(victims::plain("restricted"));
    for (how, verb, probe) in [
        ("tsc", "count", "work"),
        ("filter", "lat", "work"),
        ("filter", "trace", "work(u64 x, ptr s)"),
        ("strict", "count", "work"),
        ("plain", "trace", "work(u64 x, str s)"),
    ] {
        let mut victim = Running::start(&path, &[how]);
        let tracing = Tracing::start(verb, &["-p", &victim.pid().to_string(), probe])
            .unwrap_or_else(|report| panic!("{how} {verb}: {}: {}", report.status, report.errors));
        assert_eq!(victim.run(10)["work"], 20, "{how} {verb}");
        let report = tracing.stop();
        assert_eq!(report.status.code(), Some(0), "{how} {verb}: {}", report.errors);
        assert!(report.errors.contains("hits: 20 recorded, 0 missed"), "{how} {verb}: {}", report.errors);
        assert_eq!(victim.run(10)["work"], 40, "{how} {verb}");
    }
}
