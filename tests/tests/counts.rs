//! LOSS-1, SAFE-1, SAFE-4: exact counts in every variant of a C program, and the same counts as the kernel's
//! uprobes.

use trapline_tests::counted::{assert_hits, counted, functions, tactic};
use trapline_tests::running::Running;
use trapline_tests::tracing::Tracing;
use trapline_tests::victims::{self, Variant};
use trapline_tests::{or_skip, oracle};

const ROUNDS: u64 = 20_000;

/// Probes every function of the program, those of the C library included where it is linked in.
fn whole_program(variant: Variant) -> Result<(), String> {
    let path = victims::c("counter", variant)?;
    let seen = counted(&path, &[], &[&format!("{}:*", path.display())], ROUNDS);
    let patched = seen.report.probes().count();
    let refused = seen.report.refused().len();
    println!("{variant:?}: {patched} patched, {refused} refused, {} hits", seen.report.total_hits());
    assert_eq!(tactic(&seen.report, "framed"), "jump");
    assert!(refused * 100 <= patched + 100, "over 1 % (and one) refused: {:?}", seen.report.refused());
    Ok(())
}

#[test]
fn plain() {
    or_skip!(whole_program(Variant::Plain));
}
#[test]
fn unoptimised() {
    or_skip!(whole_program(Variant::O0));
}
#[test]
fn without_frame_pointers() {
    or_skip!(whole_program(Variant::O3));
}
#[test]
fn with_endbr64_everywhere() {
    or_skip!(whole_program(Variant::Cet));
}
#[test]
fn at_a_fixed_address() {
    or_skip!(whole_program(Variant::NonPie));
}
#[test]
fn static_glibc() {
    or_skip!(whole_program(Variant::Static));
}
#[test]
fn static_musl() {
    or_skip!(whole_program(Variant::Musl));
}

#[test]
fn stripped_functions_go_by_their_place() {
    let path = or_skip!(victims::c("counter", Variant::Stripped));
    let mut victim = Running::start(&path, &[]);
    let bare = victim.run(ROUNDS);
    let pid = victim.pid().to_string();
    let tracing = Tracing::start("count", &["-p", &pid, "*"]).expect("attaches");
    assert_eq!(victim.run(ROUNDS), bare);
    let report = tracing.stop();
    let hits: Vec<u64> = report.probes().filter_map(|probe| probe["hits"].as_u64()).collect();
    for (name, calls) in functions(&bare).filter(|(_, calls)| *calls > 0) {
        assert!(hits.contains(&calls), "no function was hit {calls} times, as {name} was: {hits:?}");
    }
    let named = |probe: &serde_json::Value| probe["probe"].as_str().is_some_and(|p| p.contains("counter+0x"));
    assert!(report.probes().any(named), "stripped functions are called counter+0x…");
}

#[test]
fn the_same_figures_as_the_kernels_uprobes() {
    let path = or_skip!(victims::plain("counter"));
    let seen = counted(&path, &[], &[&format!("{}:*", path.display())], ROUNDS);
    let funcs: Vec<&str> = functions(&seen.reported).map(|(name, _)| name).collect();
    // Few rounds: a hit of a site that the kernel single-steps takes ten microseconds.
    let rounds = 500;
    let small = counted(&path, &[], &funcs, rounds);
    let mut victim = Running::start(&path, &[]);
    let kernel = or_skip!(oracle::attach(&path, &funcs, victim.pid()));
    let reported = victim.run(rounds);
    let counts = kernel.counts();
    drop(kernel);
    assert_eq!(reported, small.reported);
    for (func, count) in funcs.iter().zip(counts) {
        println!("{func}: kernel {count}, trapline {}", small.report.hits(func));
        assert_eq!(small.report.hits(func), count, "{func} against the kernel");
    }
}

#[test]
fn two_tracers_runs_in_a_row_start_from_zero() {
    let path = or_skip!(victims::plain("counter"));
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    for rounds in [100, 7, 0, 1000] {
        let tracing = Tracing::start("count", &["-p", &pid, "leaf", "framed"]).expect("attaches");
        let reported = victim.run(rounds);
        assert_hits_of(&tracing.stop(), &reported, &["leaf", "framed"]);
    }
}

fn assert_hits_of(
    report: &trapline_tests::tracing::Report,
    reported: &trapline_tests::running::Printed,
    funcs: &[&str],
) {
    let only =
        reported.iter().filter(|(name, _)| funcs.contains(&name.as_str())).map(|(n, v)| (n.clone(), *v));
    assert_hits(report, &only.collect());
}

#[test]
fn returns_and_offsets_and_whole_libraries() {
    let path = or_skip!(victims::plain("counter"));
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let tracing =
        Tracing::start("count", &["-p", &pid, "uretprobe:framed", "uprobe:libc:*"]).expect("attaches");
    let reported = victim.run(ROUNDS);
    let report = tracing.stop();
    assert_eq!(report.status.code(), Some(0), "{}", report.errors);
    assert_eq!(report.hits("framed"), reported["framed"]);
    assert!(report.probes().count() > 1500, "libc has over two thousand functions");
}

#[test]
fn ten_thousand_functions() {
    let path = or_skip!(victims::many(10_000));
    let mut victim = Running::start(&path, &[]);
    let bare = victim.run(50);
    let pid = victim.pid().to_string();
    let tracing = Tracing::start("count", &["-p", &pid, "many_*"]).expect("attaches");
    assert_eq!(victim.run(50), bare);
    let report = tracing.stop();
    assert_eq!(report.probes().count() + report.refused().len(), 10_000);
    assert!(report.refused().len() <= 50, "over 0.5 % refused");
    assert!(report.probes().all(|probe| probe["hits"] == 50), "each is hit once a round");
    assert_eq!(trapline_tests::text::differences(victim.pid()), [""; 0]);
}
