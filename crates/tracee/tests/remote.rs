//! Remote calls in threads that run, and that sleep in every kind of call: none of them notices.
mod common;

use std::ops::Range;
use std::time::{Duration, Instant};

use common::Victim;
use trapline_record::RemoteAddr;
use trapline_tracee::{Batch, BatchOptions, Process, RemoteOptions, RemoteReport, SharedMap};

/// Calls getpid, maps a memfd and unmaps it.
fn session(pid: u32) -> RemoteReport {
    let process = Process::open(pid).unwrap();
    Batch::run(&process, BatchOptions::default(), |batch| {
        let mut caller = batch.remote(&RemoteOptions::default(), &|_| None).unwrap();
        assert_eq!(caller.call("getpid", libc::SYS_getpid, [0; 6]).unwrap(), u64::from(pid));
        let (remote, local) = caller.memfd("trapline", true).unwrap();
        let map = SharedMap::new(local, 8192).unwrap();
        let flags = libc::MAP_SHARED;
        let rx = libc::PROT_READ | libc::PROT_EXEC;
        let at = caller.mmap(Default::default(), 8192, rx, flags, remote, 0).unwrap();
        caller.close(remote).unwrap();
        assert!(map.view().set(4096, 0x1122_3344));
        assert_eq!(process.read_u64(at + 4096).unwrap(), 0x1122_3344);
        let seen = process.maps().unwrap();
        let mapped = seen.iter().find(|m| m.start == at).unwrap();
        assert_eq!((mapped.path.as_str(), mapped.file), ("/memfd:trapline", Some(map.id())));
        assert!(trapline_tracee::users_of(map.id()).contains(&pid));
        assert!(caller.tsc_allowed().unwrap());
        assert!(caller.rseq().unwrap().is_some(), "glibc registers rseq");
        caller.sync_cores().unwrap();
        caller.munmap(at, 8192).unwrap();
        let error = caller.close(777).unwrap_err();
        assert!(error.to_string().contains("close failed in the process: Bad file descriptor"), "{error}");
        caller.finish().unwrap()
    })
    .unwrap()
}

/// A victim. Its `main` makes one call `CALL`, then prints its result, errno and duration in milliseconds. In
/// the code, `T` is the timeout in milliseconds, and `ts` the same as a timespec.
fn sleeper(setup: &str, call: &str, timeout: i64) -> Victim {
    Victim::start(&format!(
        r#"
#include <stdio.h>
#include <stdlib.h>
#include <errno.h>
#include <time.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <linux/futex.h>
#define T {timeout}
int main() {{ puts("ready"); fflush(stdout); struct timespec a, b; long r; char c; int p[2]; pipe(p);
 struct timespec ts = {{T / 1000, T % 1000 * 1000000}};
 {setup}
 clock_gettime(CLOCK_MONOTONIC, &a); errno = 0; r = {call}; int e = errno; clock_gettime(CLOCK_MONOTONIC, &b);
 printf("%ld %d %ld\n", r, e, (b.tv_sec-a.tv_sec)*1000+(b.tv_nsec-a.tv_nsec)/1000000); fflush(stdout);
 pause(); }}"#
    ))
}

/// Timeouts of the victims' calls, in milliseconds. A busy machine needs the longer ones.
const TIMEOUTS: [i64; 6] = [700, 1400, 2800, 5600, 11200, 22400];

/// Runs a session at three sevenths of a call; returns the report, and the call's result and errno. Repeats
/// this with a longer timeout on a machine that is too busy to be half-way in time.
fn interrupted(setup: &str, call: &str, nr: i64, wake: bool) -> (RemoteReport, i64, i64) {
    let (report, r, e, _) = TIMEOUTS
        .into_iter()
        .find_map(|timeout| try_interrupted(setup, call, nr, wake, timeout))
        .expect("a session takes seconds");
    (report, r, e)
}

/// Does the same for a call whose duration must lie in `range`, in percent of its timeout. A busy machine wakes
/// threads late, never early. So a call that lasts too long is made again, with a longer timeout. If every call
/// lasts too long, something has made it longer.
fn on_time(setup: &str, call: &str, nr: i64, range: Range<i64>) -> (RemoteReport, i64, i64) {
    let mut late = Vec::new();
    for timeout in TIMEOUTS {
        let Some((report, r, e, ms)) = try_interrupted(setup, call, nr, false, timeout) else { continue };
        // The clock of the timeout and that of the victim may differ by a millisecond.
        let percent = (ms + 1) * 100 / timeout;
        assert!(percent >= range.start, "{call} ended early: {ms} ms of {timeout}");
        if range.contains(&percent) {
            return (report, r, e);
        }
        late.push((ms, timeout));
    }
    panic!("{call} ended late, or a session takes seconds: {late:?} ms");
}

fn try_interrupted(
    setup: &str,
    call: &str,
    nr: i64,
    wake: bool,
    timeout: i64,
) -> Option<(RemoteReport, i64, i64, i64)> {
    let mut victim = sleeper(setup, call, timeout);
    victim.until_in_call(victim.pid(), nr);
    let start = Instant::now();
    let seventh = Duration::from_millis(timeout.cast_unsigned()) / 7;
    std::thread::sleep(3 * seventh);
    let report = session(victim.pid());
    if start.elapsed() > 5 * seventh {
        return None;
    }
    if wake {
        use std::io::Write;
        victim.stdin.as_mut().unwrap().write_all(b"x").unwrap();
    }
    let line = victim.line();
    let mut numbers = line.split(' ').map(|n| n.parse::<i64>().unwrap());
    Some((report, numbers.next()?, numbers.next()?, numbers.next()?))
}

const TIMED: [(&str, &str, &str, i64, i64, i64); 6] = [
    ("nanosleep", "", "nanosleep(&ts, 0)", libc::SYS_clock_nanosleep, 0, 0),
    ("poll", "", "poll(0, 0, T)", libc::SYS_poll, 0, 0),
    ("ppoll", "", "ppoll(0, 0, &ts, 0)", libc::SYS_ppoll, 0, 0),
    ("select", "struct timeval tv = {T / 1000, T % 1000 * 1000};", "select(0, 0, 0, 0, &tv)", 270, 0, 0),
    (
        "futex",
        "int f = 0;",
        "syscall(SYS_futex, &f, FUTEX_WAIT_PRIVATE, 0, &ts, 0, 0)",
        libc::SYS_futex,
        -1,
        110,
    ),
    (
        "clock_nanosleep absolute",
        "struct timespec until; clock_gettime(CLOCK_MONOTONIC, &until); until.tv_sec += ts.tv_sec; \
         until.tv_nsec += ts.tv_nsec; if (until.tv_nsec >= 1000000000) { until.tv_sec++; until.tv_nsec -= 1000000000; }",
        "clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, 0)",
        libc::SYS_clock_nanosleep,
        0,
        0,
    ),
];

#[test]
fn timeouts_neither_end_early_nor_late() {
    for (name, setup, call, nr, result, errno) in TIMED {
        let (report, r, e) = on_time(setup, call, nr, 100..141);
        assert_eq!((r, e), (result, errno), "{name}");
        assert!(!report.interrupted && !report.restarted_timeout, "{name}: {report:?}");
    }
}

#[test]
fn endless_calls_go_on() {
    let cases = [
        ("read", "", "read(0, &c, 1)", libc::SYS_read),
        (
            "epoll_wait for ever",
            "int ep = epoll_create1(0); struct epoll_event ev = {EPOLLIN}; epoll_ctl(ep, EPOLL_CTL_ADD, 0, &ev);",
            "epoll_wait(ep, &ev, 1, -1)",
            libc::SYS_epoll_wait,
        ),
    ];
    for (name, setup, call, nr) in cases {
        let (report, r, e) = interrupted(setup, call, nr, true);
        assert_eq!((r, e), (1, 0), "{name}");
        assert!(!report.interrupted && !report.restarted_timeout, "{name}: {report:?}");
    }
}

#[test]
fn a_finite_epoll_wait_is_left_alone_when_another_thread_is_fit() {
    let setup = "pthread_t t; pthread_create(&t, 0, (void*(*)(void*))pause, 0);";
    let epoll = "epoll_wait(epoll_create1(0), (struct epoll_event*)&ts, 1, T)";
    let (report, r, e) = on_time(setup, epoll, libc::SYS_epoll_wait, 100..141);
    assert_eq!((r, e), (0, 0));
    assert!(!report.restarted_timeout);
}

#[test]
fn when_all_wait_with_timeouts_one_is_restarted_and_reported() {
    let epoll = "epoll_wait(epoll_create1(0), (struct epoll_event*)&ts, 1, T)";
    // Three sevenths, and then all of it.
    let (report, r, e) = on_time("", epoll, libc::SYS_epoll_wait, 142..243);
    assert_eq!((r, e), (0, 0), "no EINTR");
    assert!(report.restarted_timeout && !report.interrupted);
}

#[test]
fn a_socket_without_timeout_restarts_and_one_with_timeout_is_known() {
    let setup = "socketpair(AF_UNIX, SOCK_STREAM, 0, p); struct timeval tv = {T / 1000, T % 1000 * 1000}; \
                 setsockopt(p[0], SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);";
    let (report, r, e) = interrupted(setup, "recv(p[0], &c, 1, 0)", libc::SYS_recvfrom, false);
    assert_eq!((r, e), (-1, libc::EAGAIN.into()), "the timeout, not EINTR");
    assert!(report.restarted_timeout);
    let setup = "socketpair(AF_UNIX, SOCK_STREAM, 0, p); if (!fork()) { read(0, &c, 1); write(p[1], &c, 1); _exit(0); }";
    let (report, r, e) = interrupted(setup, "recv(p[0], &c, 1, 0)", libc::SYS_recvfrom, true);
    assert_eq!((r, e), (1, 0));
    assert!(!report.restarted_timeout);
}

#[test]
fn a_running_thread_is_stopped_for_less_than_a_millisecond_or_so() {
    let victim = Victim::start(
        r#"#include <stdio.h>
        int main() { puts("ready"); fflush(stdout); for (;;) __asm__ volatile(""); }"#,
    );
    let process = Process::open(victim.pid()).unwrap();
    let lean = |_| {
        Batch::run(&process, BatchOptions::default(), |batch| {
            let mut caller = batch.remote(&RemoteOptions::default(), &|_| None).unwrap();
            for _ in 0..8 {
                caller.call("getpid", libc::SYS_getpid, [0; 6]).unwrap();
            }
            caller.finish().unwrap().stopped
        })
        .unwrap()
    };
    // A busy machine may give the CPU to others at each stop.
    let best = (0..500).map(lean).find(|stopped| *stopped < Duration::from_millis(5));
    println!("stopped for {best:?} by 8 remote calls");
    assert!(best.is_some());
}

#[test]
fn a_thread_with_a_child_that_has_not_executed_its_program_yet_is_waited_for() {
    const VFORKS: &str = r#"
#include <stdio.h>
#include <unistd.h>
#include <sys/wait.h>
int main() { puts("ready"); fflush(stdout);
 for (;;) { pid_t child = vfork(); if (!child) { usleep(150000); _exit(0); } waitpid(child, 0, 0); } }
"#;
    let mut victim = Victim::start(VFORKS);
    for _ in 0..3 {
        // The vfork lasts longer than the patience of these calls, and that patience is of no use: a thread
        // inside it cannot be stopped.
        victim.until_in_call(victim.pid(), libc::SYS_vfork);
        session(victim.pid());
    }
    assert!(victim.is_running());
}

/// The thread makes one such child after the other, and runs for microseconds in between. It makes calls at the
/// end of the wait that it is in, however seldom it is seen outside of one. An order to stop that is used up by
/// the birth of the next child, which is seized at its birth and stops there, is given again.
#[test]
fn a_thread_that_is_hardly_ever_outside_vfork_makes_calls_between_two() {
    const VFORKS: &str = r#"
#include <stdio.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>
static volatile long made;
int main() { signal(SIGCHLD, SIG_IGN); struct sched_param first = {1}; sched_setscheduler(0, SCHED_FIFO, &first);
 printf("ready\n%lu\n", (unsigned long)&made); fflush(stdout);
 for (;;) { made++; if (!vfork()) { usleep(900000); _exit(0); } } }
"#;
    let mut victim = Victim::start(VFORKS);
    let process = Process::open(victim.pid()).unwrap();
    let counter = RemoteAddr(victim.line().parse().unwrap());
    let made = || process.read_u64(counter).unwrap();
    for _ in 0..5 {
        let before = made();
        while made() == before {
            std::thread::sleep(Duration::from_millis(1));
        }
        victim.until_in_call(victim.pid(), libc::SYS_vfork);
        let present = made();
        let waited_for = Batch::run(&process, BatchOptions::default(), |batch| {
            let mut caller = batch.remote(&RemoteOptions::default(), &|_| None).unwrap();
            let seen = made();
            assert_eq!(caller.call("getpid", libc::SYS_getpid, [0; 6]).unwrap(), u64::from(victim.pid()));
            caller.finish().unwrap();
            seen - present
        });
        assert_eq!(waited_for.unwrap(), 0, "it made more children while it was to stop");
    }
    assert!(victim.is_running());
}
