//! USDT probes: counted whichever way they are reached. Their semaphores are raised only while they are
//! traced.

use serde_json::Value;
use trapline_tests::running::Running;
use trapline_tests::tracing::{Tracing, once};
use trapline_tests::victims::{self, Variant};
use trapline_tests::{or_skip, programs, text};

const ROUNDS: u64 = 50;
const BY_KERNEL: &str = "--kernel-uprobes";

/// Starts the victim. Fails if the kernel's probes cannot reach the USDT probe `kernel` here.
fn target() -> Result<Running, String> {
    let victim = Running::start(&victims::c("markers", Variant::NonPie)?, &[]);
    let listed =
        once(&["list", "--json", BY_KERNEL, "-p", &victim.pid().to_string(), "usdt:markers:markers:kernel"]);
    let text = String::from_utf8_lossy(&listed.stdout);
    if text.contains("\"tactic\":\"kernel\"") {
        Ok(victim)
    } else {
        Err(format!("no kernel uprobe here: {text}"))
    }
}

fn is_raised(victim: &mut Running, name: &str) -> bool {
    let rounds = victim.run(ROUNDS)[&format!("{name}_raised")];
    assert!(rounds == 0 || rounds == ROUNDS, "{name}: raised in {rounds} of {ROUNDS} rounds");
    rounds > 0
}

#[test]
fn a_marker_that_only_the_kernel_reaches() {
    let mut victim = or_skip!(target());
    let before = text::signals(victim.pid());
    let pid = victim.pid().to_string();
    let tracing =
        Tracing::start("count", &[BY_KERNEL, "-p", &pid, "usdt:markers:markers:kernel"]).expect("attaches");
    let reported = victim.run(ROUNDS);
    let report = tracing.stop();
    assert_eq!((reported["kernel_raised"], reported["jumped_raised"]), (ROUNDS, 0));
    assert_eq!(report.hits("kernel"), reported["kernel"], "{}", report.errors);
    assert!(!is_raised(&mut victim, "kernel"), "not lowered: {}", report.errors);
    text::assert_clean(victim.pid(), &before);
}

/// A kernel uprobe is set only if the user asks for it. Without it the site is refused, and the user learns how to ask.
#[test]
fn a_marker_that_only_the_kernel_reaches_is_refused_unless_asked_for() {
    let mut victim = or_skip!(target());
    let pid = victim.pid().to_string();
    let probes = ["usdt:markers:markers:kernel", "usdt:markers:markers:jumped"];
    let tracing = Tracing::start("count", &[&["-p", &pid][..], &probes].concat()).expect("attaches");
    let reported = victim.run(ROUNDS);
    let report = tracing.stop();
    assert_eq!((reported["kernel_raised"], reported["jumped_raised"]), (0, ROUNDS));
    let refused = report.refused();
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(refused[0].0.ends_with(":kernel") && refused[0].1.ends_with(": --kernel-uprobes"), "{refused:?}");
    let notice = format!("no jump fits at 1 site of process {pid}");
    assert!(report.errors.contains(&notice), "{}", report.errors);
    let listed = once(&["list", "--json", "-p", &pid, probes[0]]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains(": --kernel-uprobes"), "{listed:?}");
}

/// The kernel takes a path. If the path leads to another file by now, a probe there would count nothing.
#[test]
fn a_marker_in_a_file_that_was_replaced() {
    let path = or_skip!(victims::c("markers", Variant::NonPie));
    let copy = path.with_file_name(format!("markers-replaced-{}", std::process::id()));
    programs::copy(&path, &copy).expect("a copy");
    let victim = Running::start(&copy, &[]);
    std::fs::remove_file(&copy).expect("removed");
    programs::copy(&path, &copy).expect("replaced");
    let pid = victim.pid().to_string();
    let probe = format!("usdt:{}:markers:kernel", copy.display());
    let output = once(&["count", "-d", "0.1", BY_KERNEL, "-p", &pid, &probe]);
    std::fs::remove_file(&copy).ok();
    let output_text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(matches!(output.status.code(), Some(1 | 3)), "counted in another file: {output_text}");
    println!("{output_text}");
}

/// SAFE-3 for semaphores, both of USDT probes that jumps reach, and of those that only the kernel's probes
/// reach.
#[test]
fn semaphores_are_lowered_after_a_tracer_was_killed() {
    let mut victim = or_skip!(target());
    let before = text::signals(victim.pid());
    let pid = victim.pid().to_string();
    for probes in [&["kernel"][..], &["jumped"], &["jumped", "kernel"]] {
        let probes: Vec<String> = probes.iter().map(|name| format!("usdt:markers:markers:{name}")).collect();
        let words: Vec<&str> =
            [BY_KERNEL, "-p", &pid].into_iter().chain(probes.iter().map(String::as_str)).collect();
        let mut tracing = Tracing::start("count", &words).expect("attaches");
        for name in ["jumped", "kernel"] {
            assert_eq!(is_raised(&mut victim, name), probes.iter().any(|p| p.ends_with(name)), "{name}");
        }
        tracing.signal(libc::SIGKILL);
        drop(tracing.end());
        let output = once(&["detach", "-p", &pid]);
        assert!(output.status.success(), "{probes:?}: {}", String::from_utf8_lossy(&output.stderr));
        for name in ["jumped", "kernel"] {
            assert!(!is_raised(&mut victim, name), "{probes:?}: {name} is still raised");
        }
        text::assert_clean(victim.pid(), &before);
    }
}

#[test]
fn a_site_that_the_kernel_refuses_takes_no_other_with_it() {
    let mut victim = or_skip!(target());
    let before = text::signals(victim.pid());
    let pid = victim.pid().to_string();
    let tracing =
        Tracing::start("count", &[BY_KERNEL, "-p", &pid, "usdt:markers:markers:*"]).expect("attaches");
    let reported = victim.run(ROUNDS);
    let report = tracing.stop();
    for name in ["jumped", "kernel"] {
        assert_eq!(report.hits(name), reported[name], "{name}: {}", report.errors);
    }
    let refused = report.refused();
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(refused[0].0.ends_with(":unprobed") && refused[0].1.contains("os error"), "{refused:?}");
    assert_eq!(reported["unprobed_raised"], 0, "raised for a probe that is not there");
    text::assert_clean(victim.pid(), &before);
}

/// A listing of a file that no process has mapped shows the tactics that its USDT probes would get, not those
/// of their functions' entries.
#[test]
fn a_listing_of_a_file_foresees_what_its_markers_get() {
    let path = or_skip!(victims::c("markers", Variant::NonPie));
    let victim = Running::start(&path, &[]);
    let tactics = |words: &[&str]| -> Vec<(u64, String)> {
        let listed = once(&[&["list", "--json", BY_KERNEL], words].concat());
        let text = String::from_utf8_lossy(&listed.stdout).into_owned();
        let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let row = |row: Value| Some((row["offset"].as_u64()?, row["tactic"].as_str()?.to_owned()));
        let mut all: Vec<_> = rows.filter_map(row).collect();
        all.sort();
        all
    };
    let of_file = tactics(&[&format!("usdt:{}:*", path.display())]);
    let of_process = tactics(&["-p", &victim.pid().to_string(), "usdt:markers:*"]);
    assert!(of_file.len() > 1, "{of_file:?}");
    assert_eq!(of_file, of_process);
}
