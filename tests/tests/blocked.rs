//! SAFE-4: by default, a target that is blocked in a call sees neither EINTR nor a longer timeout.

use std::time::Duration;

use trapline_tests::running::Running;
use trapline_tests::tracing::{Report, Tracing};
use trapline_tests::{or_skip, victims};

/// Result and errno of an undisturbed call, by kind of call.
fn undisturbed(how: &str) -> (i64, i64) {
    match how {
        "epoll_wait" | "read" => (1, 0),
        "futex_timeout" => (-1, i64::from(libc::ETIMEDOUT)),
        "recv_timeout" => (-1, i64::from(libc::EAGAIN)),
        _ => (0, 0),
    }
}

fn fields(line: &str) -> std::collections::BTreeMap<String, i64> {
    let pairs = line.split_whitespace().filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.parse().expect(line))).collect()
}

/// Milliseconds for which calls block. A busy machine needs the longer times.
const TIMES: [u64; 6] = [2000, 2000, 4000, 8000, 16000, 32000];

/// Attaches while the call blocks, and detaches before it ends. Returns the report, and how the call ended.
/// `None` if the call ended first.
fn attach_during(how: &str, ms: u64, args: &[&str], words: &[&str]) -> Option<(Report, String)> {
    let path = victims::plain("blocked").expect("gcc");
    let time = ms.to_string();
    let args: Vec<&str> = [how, &time].into_iter().chain(args.iter().copied()).collect();
    let mut victim = Running::start(&path, &args);
    let pause = Duration::from_millis(ms * 3 / 20);
    std::thread::sleep(pause);
    let pid = victim.pid().to_string();
    let words: Vec<&str> = ["-p", &pid].into_iter().chain(words.iter().copied()).collect();
    let report = match Tracing::start("count", &words) {
        Ok(tracing) => {
            std::thread::sleep(pause);
            tracing.stop()
        }
        Err(report) => report,
    };
    let early = victim.output_text();
    let line = early.clone().unwrap_or_else(|| victim.line());
    victim.send("");
    assert!(victim.finish().success(), "{how}: {line}");
    early.is_none().then_some((report, line))
}

/// If another thread can make the remote calls, the blocked one must not be disturbed at all.
fn not_noticed(how: &str) {
    on_time(how, |ms| {
        let (report, line) = attach_during(how, ms, &[], &["busy"]).ok_or("it ended before the detach")?;
        let seen = fields(&line);
        assert_eq!((seen["result"], seen["errno"]), undisturbed(how), "{how}: {line}");
        assert!(report.hits("busy") > 0, "{how}: {}", report.errors);
        assert_eq!(report.number("interrupted_syscalls") + report.number("restarted_timeouts"), 0, "{how}");
        // The waker starts before the sleeper. A timeout that began anew would last for 115 percent.
        (750..1145).contains(&thousandths(&seen, ms)).then_some(()).ok_or(line)
    });
}

/// How long the call took, in thousandths of its time.
fn thousandths(seen: &std::collections::BTreeMap<String, i64>, ms: u64) -> i64 {
    seen["took_ms"] * 1000 / ms.cast_signed()
}

/// On a busy machine threads wake late, and a call may take longer than it asked for. So the attempt is
/// repeated, with a longer call. A call that takes longer each time was made longer by us.
fn on_time(how: &str, attempt: impl Fn(u64) -> Result<(), String>) {
    let late: Vec<String> = TIMES.into_iter().map_while(|ms| attempt(ms).err()).collect();
    assert!(late.len() < TIMES.len(), "{how}: not on time: {late:?}");
}

/// The only thread is blocked. Its call must be resumed without EINTR. A timeout may start over, and that is
/// then reported.
fn alone(how: &str) {
    on_time(how, |ms| {
        let during = attach_during(how, ms, &["alone"], &["busy"]);
        let (report, line) = during.ok_or("it ended before the detach")?;
        let seen = fields(&line);
        assert_eq!((seen["result"], seen["errno"]), undisturbed(how), "{how}: {line} {}", report.errors);
        let restarted = report.number("restarted_timeouts");
        println!("{how}: {line}, restarted_timeouts {restarted}");
        // A longer timeout is reported.
        let at_most = if restarted > 0 { 2250 } else { 1100 };
        (thousandths(&seen, ms) <= at_most).then_some(()).ok_or(line)
    });
}

const CALLS: [&str; 9] = [
    "epoll_wait",
    "epoll_wait_timeout",
    "nanosleep",
    "futex",
    "futex_timeout",
    "read",
    "recv_timeout",
    "poll_timeout",
    "select_timeout",
];

#[test]
fn a_blocked_thread_beside_a_running_one_notices_nothing() {
    or_skip!(victims::plain("blocked"));
    std::thread::scope(|scope| {
        CALLS
            .map(|how| scope.spawn(move || not_noticed(how)))
            .map(|t| t.join().expect("see the message above"))
    });
}

#[test]
fn the_only_thread_is_blocked() {
    or_skip!(victims::plain("blocked"));
    std::thread::scope(|scope| {
        CALLS.map(|how| scope.spawn(move || alone(how))).map(|t| t.join().expect("see the message above"))
    });
}

#[test]
fn a_batch_that_stops_everybody_says_what_it_did() {
    or_skip!(victims::plain("blocked"));
    let during = |ms| attach_during("recv_timeout", ms, &[], &["--strict", "busy"]);
    let (report, line) = TIMES.into_iter().find_map(during).expect("an attach takes seconds");
    let seen = fields(&line);
    println!("{line}; {}", report.errors);
    assert_eq!((seen["result"], seen["errno"]), undisturbed("recv_timeout"), "{line}");
}

#[test]
fn detach_does_not_wait_for_a_blocked_call() {
    let path = or_skip!(victims::plain("blocked"));
    // On a busy machine the call may end before the tracer gets this far.
    let before_it_ended = TIMES.into_iter().any(|ms| {
        let victim = Running::start(&path, &["epoll_wait", &ms.to_string()]);
        std::thread::sleep(Duration::from_millis(100));
        let pid = victim.pid().to_string();
        let tracing = Tracing::start("count", &["-p", &pid, "busy", "block"]).expect("attaches");
        let report = tracing.stop();
        let blocked = victim.output_text().is_none();
        assert_eq!(report.status.code(), Some(0), "{}", report.errors);
        assert!(!blocked || victim.line().starts_with("result=1 "));
        blocked
    });
    assert!(before_it_ended, "detaching waits for the call");
}
