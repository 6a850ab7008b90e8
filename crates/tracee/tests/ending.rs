//! A process that is killed loses its memory first. How it ended is known once its end was waited for.
mod common;

use std::time::{Duration, Instant};

use common::Victim;
use trapline_tracee::Process;

/// Longest wait in these tests.
const PATIENCE: Duration = Duration::from_secs(120);

/// Much memory in small pages and some threads, so that it takes a while to end.
const SPINS: &str = r#"
#include <stdio.h>
#include <string.h>
#include <pthread.h>
#include <unistd.h>
#include <sys/mman.h>
static void *spin(void *a) { for (volatile long i = 0;; i++); return a; }
int main(void) { pthread_t t; const size_t n = 128 << 20;
 char *m = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
 madvise(m, n, MADV_NOHUGEPAGE); memset(m, 1, n);
 for (int i = 0; i < 3; i++) pthread_create(&t, 0, spin, 0);
 puts("ready"); fflush(stdout); for (;;) pause(); }
"#;

#[test]
fn the_signal_is_known_once_the_end_was_waited_for() {
    for _ in 0..5 {
        let mut victim = Victim::start(SPINS);
        let process = Process::open(victim.pid()).unwrap();
        assert!(!process.ends_within(Duration::from_millis(5)), "it lives");
        // SAFETY: kill takes plain numbers, here of a child that was not waited for.
        assert_eq!(unsafe { libc::kill(victim.pid().cast_signed(), libc::SIGKILL) }, 0);
        let begun = Instant::now();
        while process.maps().is_ok() {
            assert!(begun.elapsed() < PATIENCE, "it keeps its memory");
        }
        assert!(process.ends_within(PATIENCE), "it was killed");
        assert_eq!(process.ended_by(), Some(9), "a zombie");
        victim.wait();
        assert!(process.ends_within(Duration::ZERO), "it was reaped");
    }
}

/// Reads and writes meet a process that was killed and has not ended yet, at any moment of its end. They find
/// it gone, and never memory that cannot be read or written.
#[test]
fn a_process_that_loses_its_memory_is_gone() {
    for _ in 0..10 {
        let victim = Victim::start(SPINS);
        let process = Process::open(victim.pid()).unwrap();
        let text = process.maps().unwrap().into_iter().find(|map| map.perms.exec).unwrap().start;
        let mut word = [0; 8];
        process.read(text, &mut word).unwrap();
        assert!(!process.has_lost_memory() && !process.loses_memory(PATIENCE), "it lives");
        // SAFETY: kill takes plain numbers, here of a child that was not waited for.
        assert_eq!(unsafe { libc::kill(victim.pid().cast_signed(), libc::SIGKILL) }, 0);
        let begun = Instant::now();
        let error = loop {
            assert!(begun.elapsed() < PATIENCE, "it keeps its memory");
            if let Err(error) = process.write_text(text, &word).and_then(|()| process.read(text, &mut word)) {
                break error;
            }
        };
        assert!(error.is_gone(), "{error}");
        assert!(process.has_lost_memory(), "{error}");
    }
}

/// A process that was killed and has its memory still is known to be about to lose it.
#[test]
fn a_process_that_was_killed_is_known_to_lose_its_memory() {
    for _ in 0..10 {
        let victim = Victim::start(SPINS);
        let process = Process::open(victim.pid()).unwrap();
        // SAFETY: kill takes plain numbers, here of a child that was not waited for.
        assert_eq!(unsafe { libc::kill(victim.pid().cast_signed(), libc::SIGKILL) }, 0);
        assert!(process.loses_memory(PATIENCE), "it was killed");
    }
}
