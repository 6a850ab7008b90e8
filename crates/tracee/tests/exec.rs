//! Programs in which any thread may execute another program while the threads are being seized.
mod common;

use std::sync::mpsc::channel;
use std::time::Duration;

use common::Victim;
use trapline_tracee::{Batch, BatchOptions, Follower, Process, TargetError};

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
            let follower = Follower::start(None).expect("a thread");
            followed += u32::from(follower.follow(pid).is_ok());
        }
        assert!(followed > 0, "it was never followed");
    });
}
