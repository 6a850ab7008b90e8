//! LOSS-1 with many threads; targets that block or own every signal.

use trapline_tests::counted::counted;
use trapline_tests::running::Running;
use trapline_tests::tracing::Tracing;
use trapline_tests::{or_skip, text, victims};

#[test]
fn five_hundred_threads() {
    let path = or_skip!(victims::plain("threads"));
    let seen = counted(&path, &["500"], &["shared", "through"], 200);
    println!("{}", seen.report.errors);
}

#[test]
fn eight_threads_on_the_same_functions() {
    let path = or_skip!(victims::plain("threads"));
    let _seen = counted(&path, &["8"], &["shared", "through"], 500_000);
}

#[test]
fn threads_that_block_every_signal() {
    let path = or_skip!(victims::plain("threads"));
    let seen = counted(&path, &["8", "block"], &["shared", "through", "calls", "worker"], 50_000);
    for (probe, why) in seen.report.refused() {
        println!("refused {probe}: {why}");
    }
}

#[test]
fn signals_and_thread_births_while_attached() {
    let path = or_skip!(victims::plain("threads"));
    let mut victim = Running::start(&path, &["4", "endless", "signals", "births"]);
    let before = text::signals(victim.pid()).first().cloned();
    let pid = victim.pid().to_string();
    let tracing = Tracing::start("count", &["-p", &pid, "shared", "handled", "newborn"]).expect("attaches");
    let (a, b) = (victim.run(200_000), victim.run(1_000_000));
    let report = tracing.stop();
    assert_eq!(b["wrong"], 0);
    for func in ["handled", "newborn"] {
        assert!(
            report.hits(func) >= b[func] - a[func],
            "{func}: {} of {}",
            report.hits(func),
            b[func] - a[func]
        );
        assert!(report.hits(func) <= victim.run(1)[func] + 1, "{func}");
    }
    assert_eq!(text::differences(victim.pid()), [""; 0]);
    assert_eq!(text::signals(victim.pid()).first().cloned(), before);
}
