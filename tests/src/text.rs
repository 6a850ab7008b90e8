//! Compares a process's code with the files it was mapped from, and its signal state with an earlier one.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

/// Places where executable memory that a file backs differs from the file: `path+offset: n bytes`. An empty
/// list is right.
///
/// # Panics
/// If the process is gone, or may not be read.
#[must_use]
pub fn differences(pid: u32) -> Vec<String> {
    let memory = File::open(format!("/proc/{pid}/mem")).expect("the target's memory");
    let mut found = Vec::new();
    for line in std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("the target's maps").lines() {
        let mut fields = line.split_whitespace();
        let (Some(range), Some(perms), Some(offset)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let path = fields.nth(2).unwrap_or_default();
        if !perms.contains('x') || !path.starts_with('/') || path.starts_with("/memfd:") {
            continue;
        }
        let hex = |text: &str| u64::from_str_radix(text, 16).expect("maps are in hex");
        let (start, end) = range.split_once('-').map(|(a, b)| (hex(a), hex(b))).expect("a range");
        let len = usize::try_from(end - start).expect("a mapping's length");
        let (mut live, mut disk) = (vec![0; len], vec![0; len]);
        memory.read_exact_at(&mut live, start).expect("mapped memory is readable");
        let file = File::open(path).expect("the mapped file");
        let got = read_up_to(&file, &mut disk, hex(offset));
        let wrong = live[..got].iter().zip(&disk[..got]).filter(|(a, b)| a != b).count();
        if wrong > 0 {
            let first = live[..got].iter().zip(&disk[..got]).position(|(a, b)| a != b).unwrap_or(0);
            found.push(format!("{path}+{:#x}: {wrong} bytes", hex(offset) + first as u64));
        }
    }
    found
}

fn read_up_to(file: &File, buffer: &mut [u8], offset: u64) -> usize {
    let mut got = 0;
    while got < buffer.len() {
        match file.read_at(&mut buffer[got..], offset + got as u64) {
            Ok(0) | Err(_) => break,
            Ok(n) => got += n,
        }
    }
    got
}

/// Longest wait for differences that go away by themselves. A thread that gets no CPU takes its time.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(3);

/// For each thread: blocked, ignored and caught signals as /proc shows them. Waits until three looks in a row
/// agree and no thread is being created. Equal lists before and after are right.
///
/// # Panics
/// If the process is gone.
#[must_use]
pub fn signals(pid: u32) -> Vec<String> {
    let begun = Instant::now();
    let mut last = look(pid);
    let mut same = 0;
    while (same < 3 || last.iter().any(|thread| is_being_born(thread))) && begun.elapsed() < PATIENCE {
        std::thread::sleep(PAUSE);
        let now = look(pid);
        same = if now == last { same + 1 } else { 0 };
        last = now;
    }
    last
}

/// Whether a thread is beginning or ending, or creates another. The C library blocks all signals then, its
/// two own ones included, which it lets no program block.
fn is_being_born(thread: &str) -> bool {
    let mask = thread.split_once("SigBlk: ").and_then(|(_, rest)| rest.split_whitespace().next());
    mask.and_then(|hex| u64::from_str_radix(hex, 16).ok()).is_some_and(|mask| mask >> 31 & 3 == 3)
}

fn look(pid: u32) -> Vec<String> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the target's threads");
    let mut all: Vec<String> = threads
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("status")).ok())
        .map(|status| {
            let expected = ["Pid:", "SigBlk:", "SigIgn:", "SigCgt:", "TracerPid:"];
            let lines = status.lines().filter(|line| expected.iter().any(|w| line.starts_with(w)));
            lines.map(without_alarm).collect::<Vec<_>>().join(" ")
        })
        .collect();
    all.sort();
    all
}

/// Removes SIGALRM from the mask: it is blocked while a victim's timer handler runs.
fn without_alarm(line: &str) -> String {
    let alarm = 1_u64 << (libc::SIGALRM - 1);
    let mask = line.strip_prefix("SigBlk:").and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    mask.map_or_else(|| line.to_owned(), |mask| format!("SigBlk: {:x}", mask & !alarm))
}

/// Asserts that dispositions and masks are as they were. A thread inside a handler has its signal blocked
/// meanwhile, so only a difference that stays counts. Threads that the program started or ended meanwhile, as
/// Go does, are not compared.
///
/// # Panics
/// If they are not.
pub fn assert_signals(pid: u32, before: &[String]) {
    let begun = Instant::now();
    loop {
        let now = look(pid);
        let (left, right) = (of_both(&now, before), of_both(before, &now));
        if !left.is_empty() && left == right {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "dispositions or masks differ after detach: {left:?}; {right:?}");
        std::thread::sleep(PAUSE);
    }
}

/// The lines of those threads that `others` has a line of, too.
fn of_both<'a>(lines: &'a [String], others: &[String]) -> Vec<&'a String> {
    let thread = |line: &String| line.split(' ').next().map(str::to_owned);
    let others: Vec<_> = others.iter().map(thread).collect();
    lines.iter().filter(|line| others.contains(&thread(line))).collect()
}

/// Asserts that nothing of ours is left in the target but mapped code: code as on disk, signals as before.
///
/// # Panics
/// If anything differs.
pub fn assert_clean(pid: u32, signals_before: &[String]) {
    assert_eq!(differences(pid), [""; 0], "text differs from disk after detach");
    assert_signals(pid, signals_before);
}

#[cfg(test)]
mod tests {
    use super::of_both;

    #[test]
    fn what_differs_is_seen_and_a_line_that_was_there_once_is_not() {
        let lines = |all: &[&str]| all.iter().map(|&line| line.to_owned()).collect::<Vec<_>>();
        let before = lines(&["Pid:\t1 SigBlk: 0", "Pid:\t2 SigBlk: 0"]);
        let now = lines(&["Pid:\t1 SigBlk: 0", "Pid:\t12 SigBlk: 0"]);
        assert_eq!(of_both(&now, &before), of_both(&before, &now));
        assert_eq!(of_both(&now, &before), [&now[0]]);
        let now = lines(&["Pid:\t1 SigBlk: 4"]);
        assert_ne!(of_both(&now, &before), of_both(&before, &now));
    }
}
