//! The command itself, as a user types it.

use std::process::Command;

use crate::kernel::Uprobe;
use crate::victim::{THREADS, TURNS, Victim};

/// Path of the command; set by the program that made the system.
pub(crate) const VARIABLE: &str = "TRAPLINE_COMMAND";

/// Output of the command about the victim's function, and what `beside` made before. Once this many words
/// differ, each thread calls the function 50 times. The threads take turns, because the kernel's own counts
/// are not atomic. `None` if the command's path is not given.
pub(crate) fn said<T>(
    verb: &[&str],
    (name, words): (&str, usize),
    beside: impl FnOnce() -> T,
) -> Option<(String, T)> {
    let mut victim = Victim::start()?;
    let Some(command) = std::env::var_os(VARIABLE) else {
        println!("SKIP {VARIABLE} does not say where the command is");
        return None;
    };
    let (pid, before) = (victim.pid().to_string(), victim.text());
    let mut command = Command::new(command);
    command.args(verb).args(["-p", &pid, "--json", name]).stdout(std::process::Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    while patched(&before, &victim.text()) < words && child.try_wait().expect("ours").is_none() {
        std::thread::yield_now();
    }
    let made = beside();
    assert_eq!(victim.call(&format!("{TURNS}{name}"), 50), 50 * THREADS);
    // SAFETY: a child of ours that was not waited for, so the PID is its own.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let output = child.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{text}");
    assert!(output.status.success(), "{text}");
    Some((text, made))
}

#[test]
fn trapline_count_counts_a_process() {
    let kernels = || Uprobe::new("victim_push", 4);
    let Some((text, kernels)) = said(&["count", "victim_sub"], ("victim_push", 2), kernels) else { return };
    assert!(text.contains("\"hits\":100"), "{text}");
    match kernels {
        Ok(probe) => assert_eq!(probe.hits(), 100),
        Err(why) => println!("SKIP the kernel's uprobes: {why}"),
    }
}

/// Number of words that differ.
pub(crate) fn patched(before: &[u8], now: &[u8]) -> usize {
    before.chunks_exact(4).zip(now.chunks_exact(4)).filter(|(a, b)| a != b).count()
}
