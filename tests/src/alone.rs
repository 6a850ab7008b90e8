//! Runs a test in a process of its own. That is for tests that threads of other tests would disturb, or that
//! fork a child which would inherit locks of such threads.
//!
//! In: the test's name as libtest prints it, and its body. Out: nothing; the test fails if the body fails. A
//! child that does not end is killed.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Environment variable that names the test for which this process was started.
const VARIABLE: &str = "TRAPLINE_ALONE";

/// Longer than any of these tests takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs `body` in a new process of this test program. If this process was started for that, runs it here.
///
/// # Panics
/// If the body panics or does not end.
pub fn alone(test: &str, body: impl FnOnce()) {
    if std::env::var(VARIABLE).is_ok_and(|name| name == test) {
        return body();
    }
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    // The child's own summary line would confuse the count of tests. What went wrong goes to standard error,
    // and into this test's own failure.
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
    // A process that the child left behind may hold the pipe open for ever, so only a failure waits for the
    // text.
    assert!(status.success(), "{test}: {status}\n{}", errors.join().unwrap_or_default());
}

/// A child that is killed when this value is dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // Fails if the child has ended already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
