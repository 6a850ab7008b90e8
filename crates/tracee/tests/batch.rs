//! Stops that are served between writes: guard traps, signals, births, deaths; and all threads stopped at
//! once.
mod common;

use std::cell::Cell;
use std::io::Write;
use std::time::{Duration, Instant};

use common::Victim;
use trapline_record::RemoteAddr;
use trapline_tracee::{
    Batch, BatchOptions, Event, Handler, Process, RemoteOptions, TargetError, ThreadStatus,
};

fn none(_: u64) -> Option<u64> {
    None
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap()
}

fn tell(victim: &mut Victim, what: &[u8]) {
    victim.stdin.as_mut().unwrap().write_all(what).unwrap();
}

/// Traps (int3, ud2) with all signals blocked, and prints the result; `ours` is a handler that must stay in
/// place.
const TRAPPER: &str = r#"
#include <stdio.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>
static void ours(int s) { _exit(7); }
extern char trap[], illegal[], after[];
int main() { struct sigaction sa = { .sa_handler = ours, .sa_flags = SA_RESTART }, now; sigaction(SIGTRAP, &sa, 0); sigaction(SIGILL, &sa, 0);
 sigset_t all, seen; sigfillset(&all); sigprocmask(SIG_SETMASK, &all, 0);
 struct { void *handler; unsigned long flags; void *restorer; unsigned long mask; } k;
 __asm__ volatile("syscall" : : "a"(13), "D"(5), "S"(0), "d"(&k), "r"((long)8) : "rcx", "r11", "memory");
 register long r10 __asm__("r10") = 8; __asm__ volatile("syscall" : : "a"(13), "D"(5), "S"(0), "d"(&k), "r"(r10) : "rcx", "r11", "memory");
 printf("ready\n%p %p %p %p %lx %p %lx\n", trap, illegal, after, k.handler, k.flags, k.restorer, k.mask); fflush(stdout);
 char c; while (read(0, &c, 1) == 1) { long way = 0;
  __asm__ volatile("trap: int3\n jmp 1f\n illegal: ud2\n jmp 1f\n after: add $1, %0\n cmp $1, %0\n je illegal\n 1:" : "+r"(way));
  sigprocmask(0, 0, &seen); sigaction(SIGTRAP, 0, &now);
  printf("%ld %d %d %d\n", way, sigismember(&seen, SIGTRAP), now.sa_handler == ours, (now.sa_flags | 0x04000000) == (SA_RESTART | 0x04000000)); fflush(stdout); } }
"#;

#[test]
fn guard_traps_are_served_with_all_signals_blocked() {
    let mut victim = Victim::start(TRAPPER);
    let line = victim.line();
    let words: Vec<u64> = line.split(' ').map(hex).collect();
    let [trap, illegal, after, handler, flags, restorer, mask] = words[..] else { panic!("{line}") };
    let process = Process::open(victim.pid()).unwrap();
    let blocked = process.status().unwrap().blocked;
    assert!(ThreadStatus::has(blocked, libc::SIGTRAP));
    let report = Batch::run(&process, BatchOptions::default(), |batch| {
        batch.set_trap_handler(Some(Handler { handler, flags, restorer, mask }));
        batch.set_illegal_handler(Some(Handler { handler, flags, restorer, mask }));
        let guard = |addr: u64| (addr == trap || addr == illegal).then_some(after);
        for _ in 0..5 {
            tell(&mut victim, b"x");
            let start = batch.report().guards;
            let both =
                batch.serve_until(&guard, Duration::from_secs(60), &mut |b| b.report().guards == start + 2);
            assert!(both.unwrap());
            assert_eq!(
                victim.line(),
                "2 1 1 1",
                "both traps passed, SIGTRAP blocked, handler and flags kept"
            );
        }
        batch.report()
    })
    .unwrap();
    assert_eq!((report.guards, report.dispositions_restored, report.signals), (10, 10, 0));
    assert_eq!(process.status().unwrap().blocked, blocked);
}

/// Many threads that sleep, spin or take signals.
const CROWD: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <errno.h>
#include <signal.h>
#include <unistd.h>
#include <pthread.h>
#include <sys/epoll.h>
static volatile long signals; static void h(int s) { __sync_fetch_and_add(&signals, 1); }
static void *sleeper(void *a) { struct epoll_event e; int ep = epoll_create1(0); long r = epoll_wait(ep, &e, 1, -1);
 printf("BAD epoll %ld %d\n", r, errno); fflush(stdout); _exit(9); }
static void *spinner(void *a) { for (;;) __asm__ volatile("pause"); }
static void *nothing(void *a) { return 0; }
int main(int c, char **v) { signal(SIGUSR1, h); pthread_attr_t a; pthread_attr_init(&a); pthread_attr_setstacksize(&a, 65536);
 pthread_t t; for (int i = 0; i < atoi(v[1]); i++) pthread_create(&t, &a, sleeper, 0);
 for (int i = 0; i < atoi(v[2]); i++) pthread_create(&t, &a, spinner, 0);
 usleep(200000); puts("ready"); fflush(stdout);
 char k; while (read(0, &k, 1) == 1) { 
  if (k == 's') for (int i = 0; i < 100; i++) raise(SIGUSR1);
  if (k == 't') for (int i = 0; i < 20; i++) { pthread_create(&t, &a, nothing, 0); pthread_join(t, 0); }
  if (k == 'f' && !fork()) { puts("child"); fflush(stdout); pause(); }
  if (k == 'v' && !vfork()) _exit(0);
  if (k == 'e') { execl("/bin/sleep", "sleep", "30", (char*)0); }
  if (k == 'q') exit(3);
  printf("done %ld\n", signals); fflush(stdout); } }
"#;

#[test]
fn five_hundred_threads_stop_and_go_on_without_eintr() {
    let mut victim = Victim::start_with(CROWD, &["496", "4"]);
    let process = Process::open(victim.pid()).unwrap();
    assert_eq!(process.threads().unwrap().len(), 501);
    let (seize, reports) = Batch::run(&process, BatchOptions::default(), |batch| {
        assert_eq!(batch.threads().len(), 501);
        let start = Instant::now();
        let round = |_| {
            let mut stopped = batch.stop_all(&none).unwrap();
            let tids = stopped.threads();
            assert!(tids.iter().all(|&tid| stopped.regs(tid).unwrap().pc() != 0));
            let caller = stopped.remote(&RemoteOptions::default());
            assert_eq!(
                caller.unwrap().call("getpid", libc::SYS_getpid, [0; 6]).unwrap(),
                u64::from(victim.pid())
            );
            stopped.resume().unwrap()
        };
        let reports: Vec<_> = (0..3).map(round).collect();
        (start.elapsed(), reports)
    })
    .unwrap();
    println!("501 threads, three stops in {seize:?}: {reports:?}");
    assert!(reports.iter().all(|r| (r.threads, r.interrupted, r.restarted_timeouts) == (501, 0, 0)));
    assert_eq!(process.status().unwrap().tracer, 0);
    tell(&mut victim, b"s");
    assert_eq!(victim.line(), "done 100");
}

#[test]
fn signals_and_births_pass_through_a_batch() {
    let mut victim = Victim::start_with(CROWD, &["3", "1"]);
    let process = Process::open(victim.pid()).unwrap();
    let report = Batch::run(&process, BatchOptions::default(), |batch| {
        tell(&mut victim, b"st");
        let until = |b: &Batch<'_>| b.report().signals >= 100 && b.report().threads >= 25;
        assert!(batch.serve_until(&none, Duration::from_secs(60), &mut { until }).unwrap());
        batch.report()
    })
    .unwrap();
    assert_eq!(report.interrupted_syscalls, 0);
    assert_eq!(victim.line(), "done 100");
    assert_eq!(victim.line(), "done 100");
}

/// Threads that are born all the time, and signals of a timer between them.
const NURSERY: &str = r#"
#include <stdio.h>
#include <signal.h>
#include <pthread.h>
#include <unistd.h>
#include <sys/time.h>
static void h(int s) {}
static void *nothing(void *a) { return 0; }
static void *mother(void *a) { pthread_t t; for (;;) if (!pthread_create(&t, 0, nothing, 0)) pthread_join(t, 0); }
int main() { struct sigaction sa = { .sa_handler = h, .sa_flags = SA_RESTART }; sigaction(SIGALRM, &sa, 0);
 struct itimerval every = { { 0, 300 }, { 0, 300 } }; setitimer(ITIMER_REAL, &every, 0);
 pthread_t t; for (int i = 0; i < 4; i++) pthread_create(&t, 0, mother, 0);
 puts("ready"); fflush(stdout); char k; for (;;) if (read(0, &k, 1) == 1) { puts("done"); fflush(stdout); } }
"#;

#[test]
fn no_order_to_stop_is_used_up_by_a_birth() {
    let mut victim = Victim::start(NURSERY);
    let process = Process::open(victim.pid()).unwrap();
    let born = Batch::run(&process, BatchOptions::default(), |batch| {
        let mut born = 0;
        for _ in 0..500 {
            born += batch.serve(&none).unwrap().threads;
            // A lost order would show as a thread that does not stop.
            batch.stop_all(&none).unwrap().resume().unwrap();
        }
        // A thread may be born and end before its parent's stop is seen. It must not count as a child process
        // then.
        assert_eq!(batch.events(), []);
        born
    })
    .unwrap();
    assert!(born > 0);
    tell(&mut victim, b"x");
    assert_eq!(victim.line(), "done");
}

#[test]
fn a_forked_child_is_held_until_released_and_a_vfork_child_is_not() {
    let mut victim = Victim::start_with(CROWD, &["1", "0"]);
    let process = Process::open(victim.pid()).unwrap();
    let pid = victim.pid();
    let child = Cell::new(0);
    Batch::run(&process, BatchOptions { hold_children: true }, |batch| {
        tell(&mut victim, b"f");
        let mut seen = Vec::new();
        while seen.is_empty() {
            batch.serve(&none).unwrap();
            seen = batch.events();
        }
        let [Event::Forked { parent, child: born, shares_memory: false }] = seen[..] else {
            panic!("{seen:?}")
        };
        assert_eq!(parent, pid);
        assert_eq!(victim.line(), "done 0");
        let state = || std::fs::read_to_string(format!("/proc/{born}/stat")).unwrap();
        assert!(
            batch.serve_until(&none, Duration::from_secs(60), &mut |_| state().contains(") t ")).unwrap()
        );
        std::thread::sleep(Duration::from_millis(20));
        batch.serve(&none).unwrap();
        assert!(state().contains(") t "), "held: {}", state());
        batch.release(born, false).unwrap();
        assert_eq!(victim.line(), "child");
        tell(&mut victim, b"v");
        let mut births = 0;
        while births == 0 {
            let served = batch.serve(&none);
            let events = batch.events();
            served.unwrap_or_else(|e| panic!("{e}: {events:?} {:?}", victim.lines.next()));
            births = events.iter().filter(|e| matches!(e, Event::Forked { shares_memory: true, .. })).count();
        }
        assert!(batch.serve_until(&none, Duration::from_secs(60), &mut |b| b.threads().len() == 2).unwrap());
        // The vfork child's end must be served before its parent goes on.
        drop(batch.serve_until(&none, Duration::from_millis(200), &mut |_| false));
        assert_eq!(victim.line(), "done 0");
        born
    })
    .map(|born| child.set(born))
    .unwrap();
    std::process::Command::new("kill").arg("-9").arg(child.get().to_string()).status().unwrap();
}

#[test]
fn exec_and_exit_end_a_batch() {
    for (what, how) in [(b"e", "executed another program"), (b"q", "it ended")] {
        let mut victim = Victim::start_with(CROWD, &["2", "0"]);
        let process = Process::open(victim.pid()).unwrap();
        let error = Batch::run(&process, BatchOptions::default(), |batch| {
            tell(&mut victim, what);
            batch.serve_until(&none, Duration::from_secs(60), &mut |_| false).unwrap_err()
        })
        .unwrap();
        assert!(error.is_gone() && error.to_string().contains(how), "{error}");
        if how == "it ended" {
            assert_eq!(victim.wait().code(), Some(3), "its parent reaps it, not the batch");
        }
    }
}

#[test]
fn text_is_written_where_it_is_not_writable() {
    let mut victim = Victim::start(TRAPPER);
    let line = victim.line();
    let trap = RemoteAddr(hex(line.split(' ').next().unwrap()));
    let process = Process::open(victim.pid()).unwrap();
    let mut byte = [0];
    process.read(trap, &mut byte).unwrap();
    assert_eq!(byte, [0xcc]);
    process.write_text(trap, &[0x90]).unwrap();
    process.read(trap, &mut byte).unwrap();
    assert_eq!(byte, [0x90]);
    let error = process.write_text(RemoteAddr(0x10), &[0]).unwrap_err();
    assert!(matches!(error, TargetError::Memory { .. }), "{error}");
}

/// Four threads that trap all the time.
const TRAPPERS: &str = r#"
#include <stdio.h>
#include <pthread.h>
#include <unistd.h>
extern char trap[], after[]; void trapper(void);
__asm__(".globl trapper\n trapper: trap: int3\n ud2\n after: ret");
static void *work(void *a) { for (;;) trapper(); }
int main() { printf("ready\n%p %p\n", trap, after); fflush(stdout); char k; read(0, &k, 1);
 pthread_t t; for (int i = 0; i < 4; i++) pthread_create(&t, 0, work, 0);
 pause(); }
"#;

#[test]
fn a_trap_taken_before_an_ordered_stop_waits_behind_it() {
    let mut victim = Victim::start(TRAPPERS);
    let line = victim.line();
    let words: Vec<u64> = line.split(' ').map(hex).collect();
    let [trap, after] = words[..] else { panic!("{line}") };
    let process = Process::open(victim.pid()).unwrap();
    let guard = |addr: u64| (addr == trap).then_some(after);
    let waits = |tid| ThreadStatus::has(process.thread_status(tid).unwrap().pending, libc::SIGTRAP);
    Batch::run(&process, BatchOptions::default(), |batch| {
        tell(&mut victim, b"x");
        let mut waiting = 0;
        // About one stop in twenty finds such a thread.
        while waiting < 20 {
            batch.serve(&guard).unwrap();
            let stopped = batch.stop_all(&guard).unwrap();
            for tid in stopped.threads().into_iter().filter(|&tid| waits(tid)) {
                waiting += 1;
                assert_eq!(stopped.regs(tid).unwrap().pc(), trap + 1, "not sent on yet");
            }
            stopped.resume().unwrap();
        }
    })
    .unwrap();
}

/// A tracer's thread can be joined before the kernel has detached it from its tracees.
#[test]
fn a_process_that_another_thread_of_ours_still_holds_is_waited_for() {
    let victim = Victim::start_with(CROWD, &["2", "0"]);
    let pid = victim.pid();
    let process = Process::open(pid).unwrap();
    let (seized, begin) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for tid in Process::open(pid).unwrap().threads().unwrap() {
                // SAFETY: seizes a thread of a process that this test started; nothing is read or written.
                assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SEIZE, tid, 0, 0) }, 0);
            }
            seized.send(()).unwrap();
            // The sleep lets the other thread find it held. If the other one comes later, it still sees the
            // same result.
            std::thread::sleep(Duration::from_millis(100));
        });
        begin.recv().unwrap();
        let threads = Batch::run(&process, BatchOptions::default(), |batch| batch.threads().len());
        assert_eq!(threads.unwrap(), process.threads().unwrap().len());
    });
}
