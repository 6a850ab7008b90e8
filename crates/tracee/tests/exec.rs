//! Programs in which any thread may execute another program while the threads are being seized.
mod common;

use std::process::Command;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::Victim;
use trapline_tracee::{Batch, BatchOptions, Followed, Follower, Launched, Process, TargetError};

/// Starts threads, one of which executes the program again, for ever.
const AGAIN: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static char **args;
static void *sleeps(void *x) { pause(); return 0; }
static void *executes(void *x) { usleep(getpid() % 7 * 100 + 300); execv("/proc/self/exe", args); _exit(1); }
int main(int n, char **v) { args = (char *[]){ v[0], "again", 0 }; pthread_t t; pthread_attr_t a; pthread_attr_init(&a); pthread_attr_setstacksize(&a, 65536);
 if (n < 2) { puts("ready"); fflush(stdout); }
 for (int i = 0; i < 20; i++) pthread_create(&t, &a, i == 10 ? executes : sleeps, 0);
 for (;;) pause(); }
"#;

/// Ends the victim if `body` takes too long, which releases all that wait.
fn within_a_minute(mut victim: Victim, body: impl FnOnce(u32) + Send + 'static) {
    let pid = victim.pid();
    let (done, over) = channel();
    let worker = std::thread::spawn(move || {
        body(pid);
        done.send(()).unwrap_or_default();
    });
    let in_time = !matches!(
        over.recv_timeout(Duration::from_secs(60)),
        Err(std::sync::mpsc::RecvTimeoutError::Timeout)
    );
    assert!(victim.is_running());
    drop(victim);
    worker.join().expect("the tracer's own checks hold");
    assert!(in_time, "the tracer and its target waited for each other");
}

fn is_there(pid: u32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn a_batch_and_an_exec_do_not_wait_for_each_other() {
    within_a_minute(Victim::start(AGAIN), |pid| {
        let (mut tries, mut whole) = (0, 0);
        // On a busy machine it may execute each time, for a long while.
        while tries < 300 || whole == 0 && is_there(pid) {
            tries += 1;
            let Ok(process) = Process::open(pid) else { continue };
            match Batch::run(&process, BatchOptions::default(), |batch| batch.threads().len()) {
                Ok(threads) => whole += u32::from(threads > 10),
                Err(error) => assert!(matches!(error, TargetError::Gone { .. }), "{error}"),
            }
        }
        assert!(whole > 0, "no batch had all threads");
    });
}

#[test]
fn following_and_an_exec_do_not_wait_for_each_other() {
    within_a_minute(Victim::start(AGAIN), |pid| {
        let (mut tries, mut followed) = (0, 0);
        while tries < 300 || followed == 0 && is_there(pid) {
            tries += 1;
            let follower = Follower::start().expect("a thread");
            followed += u32::from(follower.follow(pid).is_ok());
        }
        assert!(followed > 0, "it was never followed");
    });
}

/// The same while it is followed: the thread that follows seizes what is missing, and serves the exec.
#[test]
fn a_batch_in_a_followed_process_and_an_exec_do_not_wait_for_each_other() {
    within_a_minute(Victim::start(AGAIN), |pid| {
        let follower = Follower::start().expect("a thread");
        let process = Process::open(pid).expect("ours").with_follower(follower.thread());
        // An exec may fall into it.
        while follower.follow(pid).is_err() {}
        let (mut programs, mut whole) = (0, 0);
        // A batch may stand between two programs, or be the first to find that the process is gone.
        while programs < 40 || whole == 0 {
            match Batch::run(&process, BatchOptions::default(), |batch| batch.threads().len()) {
                Ok(threads) => whole += u32::from(threads > 10),
                Err(error) => assert!(matches!(error, TargetError::Gone { .. }), "{error}"),
            }
            for event in follower.events() {
                if let Followed::AtEntry(parked) = event {
                    programs += 1;
                    follower.resume(parked).expect("it can be let go");
                }
            }
        }
    });
}

fn stop_all(process: &Process) -> Result<usize, TargetError> {
    Batch::run(process, BatchOptions::default(), |batch| Ok(batch.stop_all(&|_| None)?.threads().len()))?
}

/// TGT-17: each batch has the threads of a shell that starts programs all the time. Judge: the shell, which starts so
/// many.
#[test]
fn no_program_is_missed_while_batches_are_at_work() {
    const PROGRAMS: usize = 100;
    let script =
        format!("i=0; while [ $i -lt {PROGRAMS} ]; do /bin/true || exit 9; i=$((i+1)); done; exit 5");
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &script]);
    let (mut launched, parked) = Launched::start(command).expect("sh starts");
    let follower = Follower::start().expect("a thread");
    follower.resume(parked.expect("it gets to its start")).expect("it can be let go");
    let shell = Process::open(launched.pid()).expect("ours").with_follower(follower.thread());
    let (mut programs, mut stops) = (0, 0);
    let deadline = Instant::now() + Duration::from_secs(60);
    let status = loop {
        for event in follower.events() {
            match event {
                Followed::AtEntry(parked) => {
                    programs += 1;
                    follower.resume(parked).expect("it can be let go");
                }
                other => {
                    assert!(matches!(other, Followed::Born { .. } | Followed::Exited { .. }), "{other:?}")
                }
            }
        }
        if let Some(status) = launched.try_wait().expect("ours") {
            break status;
        }
        assert!(Instant::now() < deadline, "it hangs; {programs} programs, {stops} stops");
        match stop_all(&shell) {
            Ok(threads) => stops += threads,
            Err(error) => assert!(matches!(error, TargetError::Gone { .. }), "{error}"),
        }
    };
    assert_eq!((status.code(), programs), (Some(5), PROGRAMS), "{stops} stops");
    assert!(stops >= PROGRAMS, "the batches did not work beside it: {stops}");
}

/// Its main thread ends first, and never stops again. The kernel reports its end when the other thread has ended.
const MAIN_ENDS: &str = r#"
#include <pthread.h>
#include <unistd.h>
static void *last(void *x) { usleep(100000); return x; }
int main(void) { pthread_t t; pthread_create(&t, 0, last, 0); pthread_exit(0); }
"#;

/// TGT-17: if the end of a main thread were lost in a batch, the shell would wait for it for ever.
#[test]
fn the_end_of_a_main_thread_in_a_batch_reaches_its_parent() {
    let program = common::compile(MAIN_ENDS, &[]);
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "\"$0\"; exit 7"]).arg(&program);
    let (mut launched, parked) = Launched::start(command).expect("sh starts");
    let follower = Follower::start().expect("a thread");
    follower.resume(parked.expect("it gets to its start")).expect("it can be let go");
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut stops = 0;
    let status = loop {
        for event in follower.events() {
            let Followed::AtEntry(parked) = event else { continue };
            let pid = parked.pid();
            follower.resume(parked).expect("it can be let go");
            while let Ok(process) = Process::open(pid)
                && stop_all(&process.with_follower(follower.thread())).is_ok()
            {
                stops += 1;
            }
        }
        if let Some(status) = launched.try_wait().expect("ours") {
            break status;
        }
        if Instant::now() > deadline {
            launched.kill();
            panic!("the shell waits for a program that has ended; {stops} stops");
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(status.code(), Some(7));
    assert!(stops > 10, "{stops} stops while its main thread had ended");
    std::fs::remove_dir_all(program.parent().expect("a folder")).expect("ours");
}
