//! SAFE-3 here: the command is killed before and after requests that reach the target; then `detach` runs.
//! The victim lives, its values are right, and its text is the file's.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};

use crate::command::VARIABLE;
use crate::victim::{FUNCTIONS, THREADS, Victim};

/// More requests than a small batch can have.
const MOST: usize = 2000;

fn some_points(side: &str, stride: usize) {
    let Some(mut victim) = Victim::start() else { return };
    let Some(command) = std::env::var_os(VARIABLE) else {
        println!("SKIP {VARIABLE} does not say where the command is");
        return;
    };
    let before = victim.text();
    let pid = victim.pid().to_string();
    let run = |words: &[&str], fault: &str| {
        let mut child = Command::new(&command);
        child.args(words).args(["-p", &pid]).env("TRAPLINE_FAULT", fault);
        let child = child.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
        let output = child.wait_with_output().expect("it ends");
        (output.status, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for number in (1..MOST).step_by(stride) {
        let fault = format!("{side}:{number}");
        let (status, output_text) = run(&["count", "-d", "0.01", "victim_push", "victim_address"], &fault);
        if status.signal() != Some(libc::SIGKILL) {
            assert!(status.success(), "{fault}: {output_text}");
            assert!(number > 10, "a batch makes more than ten requests: are fault points built in?");
            println!("{side}: died at every {stride}th of {} requests", number - 1);
            return;
        }
        let all = THREADS * FUNCTIONS.len() as u64;
        assert_eq!(victim.call("all", 20), 20 * all, "{fault}: wrong values");
        let (status, output_text) = run(&["detach", "-q"], "never");
        assert!(status.success(), "{fault}: detach: {output_text}");
        assert!(victim.text() == before, "{fault}: text differs; {output_text}");
        assert_eq!(victim.call("all", 1), all, "{fault}");
    }
    panic!("more than {MOST} requests");
}

#[test]
fn a_tracer_killed_after_a_request_leaves_a_victim_that_works() {
    some_points("after", 5);
}

#[test]
fn a_tracer_killed_before_a_request_leaves_a_victim_that_works() {
    some_points("before", 17);
}
