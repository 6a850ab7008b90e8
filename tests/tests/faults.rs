//! SAFE-2, SAFE-5, LOSS-1: programs that catch faults and look at their context. Instructions that may fault are
//! displaced all the same, and the program's handlers see what they see in an unprobed run: address, registers,
//! flags, mask. The victim's checksum covers all of it.
#![cfg(target_arch = "x86_64")]

use std::io::Write as _;
use std::process::{Command, Stdio};

use trapline_tests::counted::tactic;
use trapline_tests::running::{Printed, Running};
use trapline_tests::tracing::{Tracing, binary, once};
use trapline_tests::victims::Variant;
use trapline_tests::{or_skip, text, victims};

/// The victim's functions. Each has an instruction that faults in half of its calls.
const SHAPES: [&str; 6] = ["at_head", "inside", "pushed", "stores", "compared", "at_exit"];
const TIMES: u64 = 9_600;
/// Calls of a shape, and those of them that the handler leaves by siglongjmp.
const CALLS: u64 = TIMES / 6;
const LEFT: u64 = CALLS / 4 / 2;

/// A victim, what it prints unprobed, and its signals.
fn victim(variant: Variant) -> Result<(Running, Printed, Vec<String>), String> {
    let mut victim = Running::start(&victims::c("faults", variant)?, &[]);
    // The first run binds symbols and fills pages.
    victim.run(TIMES);
    let bare = victim.run(TIMES);
    assert_eq!(victim.run(TIMES), bare, "an unprobed run is like any other");
    let signals = text::signals(victim.pid());
    Ok((victim, bare, signals))
}

fn start(verb: &str, victim: &Running, probes: &[&str]) -> Tracing {
    let pid = victim.pid().to_string();
    let words: Vec<&str> = ["-p", &pid].into_iter().chain(probes.iter().copied()).collect();
    Tracing::start(verb, &words)
        .unwrap_or_else(|report| panic!("{verb}: {}: {}", report.status, report.errors))
}

/// What the handlers see, and what is counted, for a build of the victim.
fn seen_as_unprobed(variant: Variant) {
    let (mut victim, bare, signals) = or_skip!(victim(variant));
    let probes: Vec<&str> = SHAPES.into_iter().chain(["on_fault"]).collect();
    let tracing = start("count", &victim, &probes);
    assert_eq!(victim.run(TIMES), bare, "{variant:?}");
    let report = tracing.stop();
    assert_eq!(report.refused(), [], "{}", report.errors);
    for shape in SHAPES {
        assert_eq!(report.hits(shape), bare[shape], "{variant:?}: {shape}: {}", report.errors);
        assert_ne!(tactic(&report, shape), "kernel", "{variant:?}: {shape}: {}", report.errors);
    }
    assert_eq!(report.hits("on_fault"), bare["caught"] + bare["sent"], "the handler is probed as well");
    text::assert_clean(victim.pid(), &signals);
    assert_eq!(victim.run(TIMES), bare, "{variant:?}: after tracing");
    assert!(victim.finish().success());
}

#[test]
fn handlers_see_the_addresses_and_registers_of_the_originals() {
    for variant in [Variant::Plain, Variant::O0, Variant::Cet, Variant::NonPie] {
        seen_as_unprobed(variant);
    }
}

#[test]
fn exits_and_durations_of_functions_that_fault() {
    let (mut victim, bare, signals) = or_skip!(victim(Variant::Plain));
    let returned = |shape: &str| CALLS - LEFT + if shape == "at_head" { bare["nested"] } else { 0 };
    for (verb, field) in [("count", "hits"), ("lat", "calls"), ("trace", "hits")] {
        let prefix = if verb == "count" { "uretprobe:" } else { "" };
        let probes = SHAPES.map(|shape| format!("{prefix}{shape}"));
        let words: Vec<&str> = probes.iter().map(String::as_str).collect();
        let tracing = start(verb, &victim, &words);
        assert_eq!(victim.run(TIMES), bare, "{verb}");
        let report = tracing.stop();
        assert_eq!(report.status.code(), Some(0), "{verb}: {}", report.errors);
        for shape in SHAPES.into_iter().filter(|shape| verb != "trace" && report.probe(shape).is_some()) {
            assert_eq!(report.field(shape, field), returned(shape), "{verb} {shape}: {}", report.errors);
        }
        text::assert_clean(victim.pid(), &signals);
    }
    assert_eq!(victim.run(TIMES), bare);
    assert!(victim.finish().success());
}

/// The program sets another handler while it is probed, and its first one again. The thread waits; afterwards both
/// handlers see original addresses, and the functions are still reached by jumps.
#[test]
fn a_handler_that_is_set_later_sees_the_originals() {
    let (mut victim, bare, signals) = or_skip!(victim(Variant::Plain));
    let probes: Vec<&str> = SHAPES.into_iter().chain(["on_fault", "on_other"]).collect();
    let tracing = start("count", &victim, &probes);
    assert_eq!(victim.run(TIMES), bare);
    for (name, others) in [("other", bare["caught"]), ("first", 0), ("other", bare["caught"])] {
        victim.send(name);
        assert_eq!(victim.line(), "done");
        let changed = victim.run(TIMES);
        assert_eq!((changed["others"], changed["check"]), (others, bare["check"]), "{name}");
    }
    let report = tracing.stop();
    for shape in SHAPES {
        assert_eq!(report.hits(shape), 4 * bare[shape], "{shape}: {}", report.errors);
        assert_ne!(tactic(&report, shape), "kernel", "{shape}: {}", report.errors);
    }
    let signals_of_all = bare["caught"] + bare["sent"];
    assert_eq!(report.hits("on_other"), 2 * signals_of_all, "{}", report.errors);
    assert_eq!(report.hits("on_fault"), 2 * signals_of_all, "{}", report.errors);
    text::assert_clean(victim.pid(), &signals);
    assert_eq!(victim.run(TIMES)["check"], bare["check"], "after tracing");
    assert!(victim.finish().success());
}

/// A program that is probed from its start sets its handler later than that. It ends itself if it does not know the
/// address of a fault.
#[test]
fn a_launched_programs_handler_sees_the_originals() {
    launched(&[], &[]);
}

/// The same where the program handles SIGILL as well, so that no guard is served. Two functions are left to the kernel:
/// their second instruction faults.
#[test]
fn a_launched_program_that_handles_traps_too() {
    launched(&["traps"], &["inside", "pushed"]);
}

/// Runs the victim under a tracer. `kernel`: functions that a kernel uprobe may reach.
fn launched(words: &[&str], kernel: &[&str]) {
    let path = or_skip!(victims::c("faults", Variant::Plain));
    let file =
        std::env::temp_dir().join(format!("trapline-faults-{}-{}.json", std::process::id(), words.len()));
    let mut command = Command::new(binary());
    command
        .args(["count", "-q", "--kernel-uprobes", "-o"])
        .arg(&file)
        .args(SHAPES)
        .arg("--")
        .arg(&path)
        .args(words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("runs");
    let lines = format!("run {TIMES}\nrun {TIMES}\nquit\n");
    child.stdin.take().expect("a pipe").write_all(lines.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let reported = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {reported}", output.status);
    let expected = |name: &str| -> u64 {
        let values = reported.split_whitespace().filter_map(|pair| pair.split_once('='));
        values.filter(|(of, _)| *of == name).map(|(_, value)| value.parse::<u64>().expect("a number")).sum()
    };
    assert!(expected("caught") > TIMES / 2, "{reported}");
    let text = std::fs::read_to_string(&file).expect("the report");
    std::fs::remove_file(&file).expect("ours");
    let report: serde_json::Value = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
    for shape in SHAPES {
        let is_it = |probe: &&serde_json::Value| {
            probe["probe"].as_str().is_some_and(|name| name.ends_with(&format!(":{shape}")))
        };
        let probe = report["probes"].as_array().and_then(|all| all.iter().find(is_it)).expect("probed");
        assert_eq!(probe["hits"], expected(shape), "{shape}: {text}");
        assert!(probe["tactic"] != "kernel" || kernel.contains(&shape), "{shape}: {text}");
    }
}

/// Attach and detach, again and again, while the program faults.
#[test]
fn attached_and_detached_while_faults_are_handled() {
    let (mut victim, bare, signals) = or_skip!(victim(Variant::Plain));
    let pid = victim.pid().to_string();
    let rounds = 20 * TIMES;
    let long = victim.run(rounds);
    for _ in 0..4 {
        victim.begin(rounds);
        for duration in ["0.02", "0.05", "0.1"] {
            let words = [&["count", "-q", "-p", &pid, "-d", duration], &SHAPES[..]].concat();
            let output = once(&words);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        assert_eq!(victim.reported(), long);
    }
    text::assert_clean(victim.pid(), &signals);
    assert_eq!(victim.run(TIMES), bare);
    assert!(victim.finish().success());
}

/// The tracer is killed; the program's handlers see the originals on. `detach` puts all of it back.
#[test]
fn a_dead_tracer_leaves_handlers_that_see_the_originals() {
    let (mut victim, bare, signals) = or_skip!(victim(Variant::Plain));
    let mut tracing = start("count", &victim, &SHAPES);
    tracing.signal(libc::SIGKILL);
    drop(tracing.end());
    assert_eq!(victim.run(TIMES), bare, "patched by a dead tracer");
    let output = once(&["detach", "-q", "-p", &victim.pid().to_string()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    text::assert_clean(victim.pid(), &signals);
    assert_eq!(victim.run(TIMES), bare);
    assert!(victim.finish().success());
}
