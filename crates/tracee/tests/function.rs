//! A function of the target that allocates is called only in a thread outside the allocator and the loader.
mod common;

use std::ops::Range;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use common::{Victim, compile};
use trapline_record::RemoteAddr;
use trapline_tracee::{Batch, BatchOptions, Launched, Parked, Process, TargetError};

/// One thread, which does for good what the argument names; `called` allocates, and notes its argument. With
/// `q` the program ends with the sum of what was noted.
const VICTIM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <unistd.h>
#include <sys/syscall.h>
static volatile long sum, one, times;
void slow(long x) { sleep(12); sum += x; }
void called(long x) { void *p = malloc(100000); memset(p, 1, 100000); free(p); sum += x; }
static void handler(int s) { for (;;) pause(); }
extern char spin[], spun[];
int main(int c, char **v) { printf("ready\n%p %p %p %p %p\n", called, (void*)&sum, spin, spun, slow); fflush(stdout);
 switch (v[1][0]) {
  case 'q': return sum;
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
        let [called, reported, spin, spun, _] = line.split(' ').map(number).collect::<Vec<_>>()[..] else {
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

/// A program that waits at its entry point, and two functions of it.
struct AtEntry {
    launched: Launched,
    parked: Parked,
    process: Process,
    called: RemoteAddr,
    slow: RemoteAddr,
}

impl AtEntry {
    fn start() -> Self {
        let program = compile(VICTIM, &["-no-pie"]);
        // The addresses are the same in each run.
        let printed = Command::new(&program).arg("q").output().unwrap();
        let line = String::from_utf8_lossy(&printed.stdout).into_owned();
        let words = line.split_whitespace().skip(1);
        let words: Vec<u64> =
            words.map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap()).collect();
        let mut command = Command::new(&program);
        command.arg("q").stdout(Stdio::null());
        let (launched, parked) = Launched::start(command).unwrap();
        let parked = parked.expect("it gets to its entry point");
        std::fs::remove_dir_all(program.parent().unwrap()).unwrap();
        let process = parked.process().unwrap();
        Self { launched, parked, process, called: RemoteAddr(words[0]), slow: RemoteAddr(words[4]) }
    }
    fn call(&self, function: RemoteAddr, own: &[Range<u64>]) -> Result<(), TargetError> {
        Batch::run(&self.process, BatchOptions::default(), |batch| {
            batch.call_function(function, 7, own, PATIENCE, &|_| None)
        })
        .unwrap()
    }
    /// Lets the program run. Returns whether it was still waiting, and how it ended.
    fn end(mut self) -> (bool, ExitStatus) {
        let waited = self.parked.release().unwrap();
        loop {
            match self.launched.try_wait().unwrap() {
                Some(status) => return (waited, status),
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}

/// A program at its entry point holds no lock. It runs the function in the code in which it waits, and goes on
/// waiting.
#[test]
fn a_thread_that_waits_at_its_entry_point_is_taken_where_that_is_named() {
    let one = AtEntry::start();
    let code = one.process.entry_wait().unwrap().clone();
    for _ in 0..3 {
        one.call(one.called, std::slice::from_ref(&code)).unwrap();
    }
    let (waited, status) = one.end();
    assert_eq!((waited, status.code()), (true, Some(3 * 7)), "{status}");
}

/// No patience: it stays there until it is released.
#[test]
fn a_thread_that_waits_at_its_entry_point_is_refused_at_once_elsewhere() {
    let one = AtEntry::start();
    let error = one.call(one.called, &[]).expect_err("refused").to_string();
    assert!(error.contains("at its entry point its C library may not be ready"), "{error}");
    let (waited, status) = one.end();
    assert_eq!((waited, status.code()), (true, Some(0)), "{status}");
}

/// The function outlasts the tracer's wait for it. It is left to end by itself, and then the program goes to
/// its entry point by itself.
#[test]
fn a_program_goes_on_after_a_function_that_did_not_end_in_time() {
    let one = AtEntry::start();
    let code = one.process.entry_wait().unwrap().clone();
    let error = one.call(one.slow, &[code]).expect_err("it takes too long");
    assert!(matches!(error, TargetError::Stuck { .. }), "{error}");
    let (waited, status) = one.end();
    assert_eq!((waited, status.code()), (false, Some(7)), "{status}");
}
