//! A test in a process of its own: where other tests' threads would be in the way, and a forked child would inherit their locks.
//!
//! In: the test's name as libtest prints it, and its body. Out: nothing; the test fails as the body does. A child that does not end is killed.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Names the test that this process was started for.
const VARIABLE: &str = "TRAPLINE_ALONE";

/// Longer than any of them takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs `body` in a new process of this test program, which is this one if it was started for that.
///
/// # Panics
/// If the body does, or does not end.
pub fn alone(test: &str, body: impl FnOnce()) {
    if std::env::var(VARIABLE).is_ok_and(|name| name == test) {
        return body();
    }
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    // Its closing line is not one of ours; what went wrong goes to standard error, and into this test's own failure.
    command.args(["--exact", test, "--nocapture"]).env(VARIABLE, test).stdout(Stdio::null());
    let mut process = Ended(command.stderr(Stdio::piped()).spawn().expect("a process"));
    let errors = process.0.stderr.take().expect("a pipe");
    let errors = std::thread::spawn(move || {
        let mut all = String::new();
        for line in BufReader::new(errors).lines().map_while(Result::ok) {
            eprintln!("{line}");
            all = all + &line + "\n";
        }
        all
    });
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = process.0.try_wait().expect("a child of ours") {
            break status;
        }
        assert!(begun.elapsed() < PATIENCE, "{test} did not end in {} s", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_millis(10));
    };
    // A child that it left behind may hold the pipe for ever: only a failure is worth waiting for.
    assert!(status.success(), "{test}: {status}\n{}", errors.join().unwrap_or_default());
}

/// A child that is ended with its test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // One that has ended already cannot be.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
