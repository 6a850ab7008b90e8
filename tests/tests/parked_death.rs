//! SAFE-3: the tracer is killed while it holds a program at its first instruction, launched or executed under
//! `-f`. The program goes on by itself. If it was not held yet, it ends with the tracer, in no other way; and
//! it never waits for ever.

use std::io::Read as _;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use trapline_tests::tracing::binary;
use trapline_tests::{or_skip, setting, victims};

/// Longest wait for a program that is no longer held.
const PATIENCE: Duration = Duration::from_secs(100);
const RIGHT: &str = "work=8 get=8 caught=0 ";

/// Kills the tracer at its Nth request. Returns whether it was killed, and what the program printed.
fn printed(verb: &str, words: &[&str], fault: &str) -> (bool, String) {
    let mut command = Command::new(binary());
    command.args([verb, "-q", "-o", "/dev/null"]).args(words).env("TRAPLINE_FAULT", fault);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let child = child.as_mut().expect("trapline starts");
    let mut out = child.stdout.take().expect("piped");
    let status = child.wait().expect("it ends");
    let (sender, output_text) = channel();
    // The pipe ends when the last program that holds it has ended.
    std::thread::spawn(move || {
        let mut text = String::new();
        drop(out.read_to_string(&mut text));
        drop(sender.send(text));
    });
    let output_text = output_text.recv_timeout(PATIENCE);
    (status.code().is_none(), output_text.unwrap_or_else(|_| panic!("{fault}: the program waits for ever")))
}

/// Kills the tracer at one point after the other. Returns how often the program went on, and how often it
/// ended with the tracer.
fn at_every_point(verb: &str, words: &[&str], right: &str) -> (u64, u64) {
    let (mut went_on, mut ended) = (0, 0);
    let mut number = 1;
    loop {
        let side = if number % 2 == 0 { "before" } else { "after" };
        let fault = format!("{side}:{number}");
        let (killed, output_text) = printed(verb, words, &fault);
        match output_text.as_str() {
            "" => ended += 1,
            text => {
                assert!(text.starts_with(right), "{fault}: {text}");
                went_on += u64::from(killed);
            }
        }
        if !killed {
            return (went_on, ended);
        }
        number += setting("TRAPLINE_PARKED_STRIDE", 11);
        assert!(number < 500, "a launch makes fewer requests");
    }
}

#[test]
fn a_launched_program_goes_on_without_its_tracer() {
    let path = or_skip!(victims::plain("changes"));
    let path = path.display().to_string();
    let (went_on, ended) = at_every_point("count", &["work", "--", &path, "nothing", "8"], RIGHT);
    println!("went on {went_on} times, ended with the tracer {ended} times");
    assert!(went_on >= 3, "it was held at few of the points");
}

#[test]
fn a_followed_program_goes_on_without_its_tracer() {
    let path = or_skip!(victims::plain("changes"));
    let script = format!("{} nothing 8; true", path.display());
    let (went_on, ended) = at_every_point("count", &["-f", "work", "--", "/bin/sh", "-c", &script], RIGHT);
    println!("went on {went_on} times, ended with the tracer {ended} times");
    assert!(went_on >= 3, "it was held at few of the points");
}

/// The parked thread informs the unwinder of return trampolines, so the tracer is killed in that call too.
/// What was patched by then stays, and exceptions pass it.
#[test]
fn a_program_goes_on_that_was_informing_its_unwinder() {
    let path = or_skip!(victims::cpp("throws"));
    let path = path.display().to_string();
    let words = ["--ret=stack", "passes", "--", &path, "30"];
    let (went_on, ended) = at_every_point("lat", &words, "early=97 sum=6270\n");
    println!("went on {went_on} times, ended with the tracer {ended} times");
    assert!(went_on >= 3, "it was held at few of the points");
}
