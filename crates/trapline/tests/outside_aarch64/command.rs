//! The command itself, as a person types it.

use std::process::Command;

use crate::kernel::Uprobe;
use crate::victim::{THREADS, TURNS, Victim};

/// Where the command is: only who made the system knows.
pub(crate) const VARIABLE: &str = "TRAPLINE_COMMAND";

#[test]
fn trapline_count_counts_a_process() {
    let Some(mut victim) = Victim::start() else { return };
    let Some(command) = std::env::var_os(VARIABLE) else {
        println!("SKIP {VARIABLE} does not say where the command is");
        return;
    };
    let (pid, before) = (victim.pid().to_string(), victim.text());
    let mut child = Command::new(command)
        .args(["count", "-p", &pid, "--json", "victim_push", "victim_sub"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    while patched(&before, &victim.text()) < 2 && child.try_wait().expect("ours").is_none() {
        std::thread::yield_now();
    }
    let kernels = Uprobe::new("victim_push", 4);
    // One thread after the other, as the kernel's own counts are no atomic ones.
    assert_eq!(victim.call(&format!("{TURNS}victim_push"), 50), 50 * THREADS);
    // SAFETY: a child of ours, not waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let output = child.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{text}");
    assert!(output.status.success(), "{text}");
    assert!(text.contains("\"hits\":100"), "{text}");
    match kernels {
        Ok(probe) => assert_eq!(probe.hits(), 100),
        Err(why) => println!("SKIP the kernel's uprobes: {why}"),
    }
}

/// Words that differ.
pub(crate) fn patched(before: &[u8], now: &[u8]) -> usize {
    before.chunks_exact(4).zip(now.chunks_exact(4)).filter(|(a, b)| a != b).count()
}
