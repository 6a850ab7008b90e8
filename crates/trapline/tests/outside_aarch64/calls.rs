//! System calls in which threads are when all threads are stopped: none of them is disturbed.

use std::time::{Duration, Instant};

/// Milliseconds for which threads wait in calls of each kind.
const WAITS: u64 = 20_000;
const VARIABLE: &str = "TRAPLINE_WAITER";

/// The waiter: a thread in each call, for [`WAITS`] ms; it prints a line for each that did not wait to the
/// end.
#[test]
fn run() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    let ms = WAITS as i32;
    let waits: [(&str, fn(i32) -> i64); 4] = [
        // SAFETY: descriptors of this process, and memory that outlives each call.
        ("epoll_pwait", |ms| unsafe {
            let fd = libc::epoll_create1(0);
            let mut event = libc::epoll_event { events: 0, u64: 0 };
            i64::from(libc::epoll_wait(fd, &raw mut event, 1, ms))
        }),
        // SAFETY: as above.
        ("ppoll", |ms| i64::from(unsafe { libc::poll(std::ptr::null_mut(), 0, ms) })),
        ("clock_nanosleep", |ms| {
            let time =
                libc::timespec { tv_sec: i64::from(ms) / 1000, tv_nsec: i64::from(ms) % 1000 * 1_000_000 };
            // SAFETY: as above.
            i64::from(unsafe { libc::nanosleep(&raw const time, std::ptr::null_mut()) })
        }),
        ("futex", |ms| {
            let word = 0u32;
            let time =
                libc::timespec { tv_sec: i64::from(ms) / 1000, tv_nsec: i64::from(ms) % 1000 * 1_000_000 };
            // SAFETY: as above.
            let result = unsafe {
                libc::syscall(libc::SYS_futex, &raw const word, libc::FUTEX_WAIT, 0, &raw const time)
            };
            let error = std::io::Error::last_os_error().raw_os_error();
            if result == -1 && error == Some(libc::ETIMEDOUT) { 0 } else { -1 }
        }),
    ];
    let threads = waits.map(|(name, wait)| {
        std::thread::spawn(move || {
            let start = Instant::now();
            let result = wait(ms);
            (name, result, std::io::Error::last_os_error(), start.elapsed())
        })
    });
    println!("waiting");
    for thread in threads {
        let (name, result, error, took) = thread.join().expect("it ends");
        if result != 0 || took < Duration::from_millis(WAITS) {
            println!("broken: {name} gave {result}, {error}, after {took:?}");
        }
    }
    println!("waited");
    std::process::exit(0);
}

#[test]
fn no_call_is_broken_off_by_a_stop() {
    use std::io::{BufRead as _, BufReader};
    if trapline_tracee::is_emulated() {
        println!("SKIP no ptrace in an emulator of user mode: see cargo xtask arm64-system");
        return;
    }
    let mut child = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "calls::run", "--nocapture", "--test-threads=1"])
        .env(VARIABLE, "1")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("waiting")));
    let waiting = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id())).expect("its threads");
        let calls = tasks
            .flatten()
            .map(|task| std::fs::read_to_string(task.path().join("syscall")).unwrap_or_default());
        calls
            .filter(|call| [22, 73, 98, 101, 115].iter().any(|nr| call.starts_with(&format!("{nr} "))))
            .count()
    };
    let start = Instant::now();
    while waiting() < 5 && start.elapsed() < Duration::from_millis(WAITS / 2) {
        std::thread::yield_now();
    }
    for _ in 0..3 {
        let builder = trapline::Session::builder().pid(child.id()).probe("victim_nop").expect("a probe");
        let finished = builder.count().expect("a session").detach();
        println!("{:?}", finished.summary);
    }
    let rest: Vec<String> = lines.collect();
    child.wait().expect("it ends");
    let broken: Vec<&String> = rest.iter().filter(|line| line.starts_with("broken")).collect();
    assert!(broken.is_empty() && rest.iter().any(|line| line.contains("waited")), "{rest:?}");
}
