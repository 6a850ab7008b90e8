//! The command itself, as a user types it.

use std::process::Command;

use crate::kernel::Uprobe;
use crate::victim::{THREADS, TURNS, Victim};

/// Path of the command; set by whatever built the system.
pub(crate) const VARIABLE: &str = "TRAPLINE_COMMAND";

/// Runs the command on the victim's function. Once so many words differ, each thread calls it 50 times, one
/// thread after the other, as the kernel's own counts are not atomic. Returns the output, and what `beside`
/// made before. `None` if the command's path is not known.
pub(crate) fn output_text<T>(
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
    // SAFETY: this process' own child, not waited for.
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
    let Some((text, kernels)) = output_text(&["count", "victim_sub"], ("victim_push", 2), kernels) else {
        return;
    };
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
