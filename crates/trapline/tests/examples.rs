//! The Rust examples run, and print what they must. Those in C are tested in `capi`.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use std::process::Command;

use trapline_tests::{examples, or_skip};

fn example(name: &str) -> Command {
    let exe = std::env::current_exe().expect("own path");
    let profile = exe.ancestors().nth(2).expect("PROFILE/deps/TEST");
    let path = profile.join("examples").join(name);
    assert!(
        path.exists(),
        "cargo builds the examples for `cargo test`, but not for `cargo test --test examples` alone"
    );
    Command::new(path)
}

#[test]
fn self_trace() {
    examples::self_trace(example("self_trace"));
}

#[test]
fn count() {
    or_skip!(examples::count(example("count")));
}

#[test]
fn latency() {
    or_skip!(examples::latency(example("latency")));
}
