//! A function of the target that allocates is called only in a thread outside the allocator and the loader.
mod common;

use std::ops::Range;
use std::time::Duration;

use common::Victim;
use trapline_record::RemoteAddr;
use trapline_tracee::{Batch, BatchOptions, Process, TargetError};

/// One thread, which does for good what the argument names; `called` allocates, and notes its argument.
const VICTIM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <unistd.h>
#include <sys/syscall.h>
static volatile long sum, one, times;
void called(long x) { void *p = malloc(100000); memset(p, 1, 100000); free(p); sum += x; }
static void handler(int s) { for (;;) pause(); }
extern char spin[], spun[];
int main(int c, char **v) { printf("ready\n%p %p %p %p\n", called, (void*)&sum, spin, spun); fflush(stdout);
 switch (v[1][0]) {
  case 's': for (;;) pause();
  case 'r': { char k; for (;;) read(0, &k, 1); }
  case 'b': for (one = 1;;) syscall(SYS_futex, &one, 9 /* FUTEX_WAIT_BITSET */, 1, 0, 0, -1);
  case 'f': for (one = 1;;) syscall(SYS_futex, &one, 0 /* FUTEX_WAIT, as locks do */, 1, 0, 0, 0);
  case 'h': signal(SIGUSR1, handler); raise(SIGUSR1);
  case 'm': for (;;) { free(malloc(100)); times++; }
  default: __asm__ volatile("spin: pause\n jmp spin\n spun:"); } }
"#;

struct One {
    victim: Victim,
    process: Process,
    called: RemoteAddr,
    reported: RemoteAddr,
    spin: Range<u64>,
}

impl One {
    fn start(does: &str) -> Self {
        let mut victim = Victim::start_with(VICTIM, &[does]);
        let line = victim.line();
        let number = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap();
        let [called, reported, spin, spun] = line.split(' ').map(number).collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let process = Process::open(victim.pid()).unwrap();
        Self { victim, process, called: RemoteAddr(called), reported: RemoteAddr(reported), spin: spin..spun }
    }
    fn call(&self, argument: u64, own: &[Range<u64>], patience: Duration) -> Result<(), TargetError> {
        Batch::run(&self.process, BatchOptions::default(), |batch| {
            batch.call_function(self.called, argument, own, patience, &|_| None)
        })
        .unwrap()
    }
    fn reported(&self) -> u64 {
        let mut word = [0; 8];
        self.process.read(self.reported, &mut word).unwrap();
        u64::from_le_bytes(word)
    }
}

const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn a_thread_that_waits_outside_is_taken_and_goes_on_waiting() {
    for (does, nr) in [("s", libc::SYS_pause), ("r", libc::SYS_read), ("b", libc::SYS_futex)] {
        let mut one = One::start(does);
        for n in 1..=3 {
            one.victim.until_in_call(one.victim.pid(), nr);
            one.call(7, &[], PATIENCE).unwrap();
            assert_eq!(one.reported(), 7 * n, "{does}");
        }
        one.victim.until_in_call(one.victim.pid(), nr);
        assert!(one.victim.is_running());
    }
}

/// The thread waits for a lock, is in the allocator or anywhere else in its code, or is in a signal handler
/// that may have interrupted either.
#[test]
fn a_thread_that_may_hold_a_lock_is_not_taken() {
    let lock = "every thread may hold a lock of the allocator or the loader";
    for (does, nr, says) in [
        ("f", Some(libc::SYS_futex), lock),
        ("m", None, lock),
        ("x", None, lock),
        ("h", Some(libc::SYS_pause), "every thread may be in a signal handler"),
    ] {
        let mut one = One::start(does);
        if let Some(nr) = nr {
            one.victim.until_in_call(one.victim.pid(), nr);
        }
        for _ in 0..20 {
            let error = one.call(7, &[], Duration::ZERO).expect_err("refused");
            assert!(
                matches!(error, TargetError::NoCaller { .. }) && error.to_string().contains(says),
                "{does}: {error}"
            );
        }
        assert_eq!(one.reported(), 0, "{does}");
        assert!(one.victim.is_running());
    }
}

/// Code that neither the allocator nor the loader calls while it holds a lock.
#[test]
fn a_thread_in_code_that_is_named_is_taken() {
    let one = One::start("x");
    one.call(9, std::slice::from_ref(&one.spin), PATIENCE).unwrap();
    assert_eq!(one.reported(), 9);
}
