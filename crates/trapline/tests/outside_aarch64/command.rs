//! The command itself, as a person types it.

use std::process::Command;

use crate::victim::{THREADS, Victim};

/// Where the command is: only who made the system knows.
pub(crate) const VARIABLE: &str = "TRAPLINE_COMMAND";

#[test]
fn trapline_count_counts_a_process() {
    let Some(mut victim) = Victim::start() else { return };
    let Some(command) = std::env::var_os(VARIABLE) else {
        println!("SKIP {VARIABLE} does not say where the command is");
        return;
    };
    let pid = victim.pid().to_string();
    let mut child = Command::new(command)
        .args(["count", "-p", &pid, "--json", "victim_push", "victim_sub"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    // It has attached when the text has changed.
    let before = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    let mut now = before.clone();
    while !now.contains("memfd:trapline") && child.try_wait().expect("ours").is_none() {
        std::thread::yield_now();
        now = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    }
    // One call more than is counted, perhaps: the sites are written behind the mapping.
    while patched(&victim) < 2 && child.try_wait().expect("ours").is_none() {
        std::thread::yield_now();
    }
    assert_eq!(victim.call("victim_push", 50), 50 * THREADS);
    // SAFETY: a child of ours, not waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let output = child.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{text}");
    assert!(output.status.success(), "{text}");
    assert!(text.contains("\"hits\":100"), "{text}");
}

/// Words of our functions that are not the file's.
fn patched(victim: &Victim) -> usize {
    let file = std::fs::read(std::env::current_exe().expect("this program")).expect("its bytes");
    let text = victim.text();
    let head = &text[..64];
    let at = file.windows(64).position(|bytes| bytes == head).unwrap_or(0);
    let pairs = text.chunks_exact(4).zip(file[at..].chunks_exact(4));
    pairs.filter(|(a, b)| a != b).count()
}
