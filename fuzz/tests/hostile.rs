//! Runs the driver as a test. It is here so that it is built with the same features as the workspace's other
//! tests.
//!
//! In: `TRAPLINE_FUZZ_SECONDS`, for all targets together. Out: the driver's own lines.

use std::process::Command;

#[test]
fn what_is_no_number_is_refused() {
    for more in [&["--seconds", "x"][..], &["--seconds"], &["--seconds", "1", "--seed", "-1"]] {
        let mut driver = Command::new(env!("CARGO_BIN_EXE_trapline-fuzz"));
        let output = driver.arg("all").args(more).output().expect("it runs");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), stderr.lines().count()), (Some(2), 1), "{stderr}");
        assert!(stderr.contains("takes a number"), "{stderr}");
    }
}

#[test]
fn every_target_holds() {
    let seconds = std::env::var("TRAPLINE_FUZZ_SECONDS").unwrap_or_else(|_| "1".to_owned());
    let mut driver = Command::new(env!("CARGO_BIN_EXE_trapline-fuzz"));
    let status = driver.args(["all", "--seconds", &seconds]).status().expect("it runs");
    assert!(status.success(), "{status}: its lines name the seed");
}
