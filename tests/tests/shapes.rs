//! SAFE-1, SAFE-2, SAFE-5: code that breaks tools. Each victim checks itself; in addition, counts are exact.

use trapline_tests::counted::{self, counted};
use trapline_tests::running::Running;
use trapline_tests::tracing::Tracing;
use trapline_tests::{or_skip, victims};

#[test]
fn machine_state_is_bit_identical_at_entries() {
    let path = or_skip!(victims::plain("registers"));
    let seen = counted(&path, &[], &["state_*"], 20_000);
    println!("{} states compared, vector level {}", seen.reported["checked"], seen.reported["wide"]);
    assert_eq!(seen.reported["wrong"], 0);
}

#[test]
fn machine_state_is_bit_identical_at_exits() {
    let path = or_skip!(victims::plain("registers"));
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    for verb in ["lat", "count"] {
        let probe = if verb == "lat" { "state_*" } else { "uretprobe:state_*" };
        let tracing = Tracing::start(verb, &["-p", &pid, probe]).expect("attaches");
        let reported = victim.run(20_000);
        let report = tracing.stop();
        assert_eq!(reported["wrong"], 0, "{verb}: {}", report.errors);
        let field = if verb == "lat" { "calls" } else { "hits" };
        assert_eq!(report.field("state_push", field), 20_000, "{verb}: {}", report.errors);
    }
}

#[test]
fn machine_state_is_bit_identical_inside() {
    // The second instruction of each function: the red zone is in use there.
    let path = or_skip!(victims::plain("registers"));
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let tracing =
        Tracing::start("count", &["-p", &pid, "state_redzone+10", "state_flags+3"]).expect("attaches");
    let reported = victim.run(20_000);
    let report = tracing.stop();
    assert_eq!(reported["wrong"], 0, "{}", report.errors);
    println!("{} hits, refused {:?}", report.total_hits(), report.refused());
    assert_eq!(report.total_hits() / 20_000 + report.refused().len() as u64, 2);
}

#[test]
fn short_functions_and_branches_into_the_first_five_bytes() {
    let path = or_skip!(victims::plain("shapes"));
    let seen = counted(&path, &[], &["*_*"], 20_000);
    for (probe, why) in seen.report.refused() {
        println!("refused {probe}: {why}");
        assert!(!why.is_empty(), "a refusal has a reason");
    }
    for probe in seen.report.probes() {
        println!("{} {}", probe["tactic"], probe["probe"]);
    }
}

#[test]
fn exceptions_pass_through_probed_frames() {
    let path = or_skip!(victims::cpp("unwind"));
    let seen = counted(&path, &[], &["*"], 20_000);
    println!("{} hits", seen.report.total_hits());
}

#[test]
fn exceptions_pass_through_timed_frames() {
    let path = or_skip!(victims::cpp("unwind"));
    let mut victim = Running::start(&path, &[]);
    let bare = victim.run(20_000);
    let pid = victim.pid().to_string();
    let tracing = Tracing::start("lat", &["-p", &pid, "*thrower*", "*catcher*"]).expect("attaches");
    assert_eq!(victim.run(20_000), bare);
    let report = tracing.stop();
    assert_eq!(report.field("catcher", "calls"), bare["catcher"], "{}", report.errors);
    assert_eq!(report.field("thrower", "calls"), 0, "an exception is not a return");
    assert!(report.field("thrower", "unreturned") > 0, "left by exception: counted as unreturned");
}

#[test]
fn rust_panics_unwind_through_probed_frames() {
    let path = or_skip!(victims::rust("panics"));
    let seen = counted(&path, &[], &["*panics*"], 20_000);
    println!("{} hits", seen.report.total_hits());
}

#[test]
fn longjmp_coroutines_and_alternate_stacks() {
    let path = or_skip!(victims::plain("jumps"));
    let seen = counted(&path, &[], &["*"], 20_000);
    println!("{} hits", seen.report.total_hits());
}

#[test]
fn longjmp_coroutines_and_alternate_stacks_under_lat() {
    let path = or_skip!(victims::plain("jumps"));
    let mut victim = Running::start(&path, &[]);
    let bare = victim.run(5_000);
    let pid = victim.pid().to_string();
    let funcs = ["leaver", "stayer", "yielder", "resumer", "in_handler", "signalled"];
    let words: Vec<&str> = ["-p", &pid].into_iter().chain(funcs).collect();
    let tracing = Tracing::start("lat", &words).expect("attaches");
    assert_eq!(victim.run(5_000), bare);
    let report = tracing.stop();
    assert_eq!(report.field("stayer", "calls"), 5_000, "{}", report.errors);
    assert_eq!(report.field("resumer", "calls"), 5_000, "coroutines: the switch is inside the call");
    assert_eq!(report.field("signalled", "calls"), 5_000);
}

#[test]
fn a_program_that_catches_its_own_faults() {
    let path = or_skip!(victims::plain("segv"));
    let seen = counted(&path, &[], &["checked_load", "guarded_load", "in_handler"], 20_000);
    assert!(seen.reported["in_handler"] > 0);
    assert_eq!(counted::tactic(&seen.report, "guarded_load"), "short");
}

#[test]
fn what_may_fault_is_moved() {
    let path = or_skip!(victims::plain("segv"));
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let tactic = |flags: &[&str]| {
        let words = [flags, &["-p", &pid, "guarded_load"]].concat();
        let report = Tracing::start("count", &words).expect("attaches").stop();
        (report.probe("guarded_load").expect("probed")["tactic"].clone(), report.errors)
    };
    let (plain, output_text) = tactic(&[]);
    assert_eq!(plain, "short", "faults are delivered at the original address: {output_text}");
    // The program does not run while this is in place, because its handler does look addresses up.
    let (moved, output_text) = tactic(&["--faults-are-fatal"]);
    assert_eq!(moved, "short", "{output_text}");
    assert!(victim.run(1_000)["in_handler"] > 0, "as it was, after a detach");
}
