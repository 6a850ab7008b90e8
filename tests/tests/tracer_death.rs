//! SAFE-3: the tracer is killed between any two requests that change the target, and at random; then `detach
//! -p` runs. The target is alive and right, and its code is identical to the file. The target is in the same
//! state before one request as after the request before it, but for shared memory that was written in
//! between. So every fourth point after a request, and every fourth before one, two apart, cover half of all
//! states. (`TRAPLINE_FAULT_STRIDE=1`: all points on both sides.)

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use trapline_tests::running::Running;
use trapline_tests::tracing::{self, Tracing};
use trapline_tests::{or_skip, setting, text, victims};

/// More requests than a small batch can have. A tracer that gets this far finished by itself.
const MOST: u64 = 2000;

fn target() -> Result<Running, String> {
    // Its threads never rest. They take what the tracer leaves, which otherwise waits for them at each of 3,500 points.
    let mut command = Command::new("nice");
    command.args(["-n", "10"]).arg(victims::plain("threads")?).args(["4", "endless", "signals"]);
    let mut victim = Running::spawn(command);
    assert_eq!(victim.line(), "ready");
    // A thread that is being created blocks all signals for a moment; masks are compared later.
    victim.run(200_000);
    Ok(victim)
}

/// Checks that the target works, and that `detach` brings its code back.
fn right_and_cleaned(victim: &mut Running, signals: &[String], when: &str) {
    assert!(victim.alive(), "{when}: the target died");
    let (first, second) = (victim.run(1000), victim.run(1000));
    assert_eq!(second["wrong"], 0, "{when}");
    assert!(second["rounds"] >= first["rounds"], "{when}");
    let output = tracing::once(&["detach", "-q", "-p", &victim.pid().to_string()]);
    let output_text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{when}: detach: {}: {output_text}", output.status);
    assert_eq!(
        text::differences(victim.pid()),
        [""; 0],
        "{when}: text differs from disk after detach; {output_text}"
    );
    text::assert_signals(victim.pid(), signals);
    assert_eq!(victim.run(1000)["wrong"], 0, "{when}: after detach");
}

/// The first point of a side. Both sides together never leave out more than one state in a row.
fn first(side: &str) -> u64 {
    if side == "before" && stride() > 2 { 3 } else { 1 }
}

fn stride() -> usize {
    setting("TRAPLINE_FAULT_STRIDE", 4) as usize
}

/// A tracer that ends by itself when it is not killed.
type Traced = fn(pid: &str, fault: &str) -> (ExitStatus, String);

fn counted(pid: &str, fault: &str) -> (ExitStatus, String) {
    let words = ["-p", pid, "-d", "0.05", "shared", "through", "calls"];
    let report = Tracing::spawn_with("count", &words, &[("TRAPLINE_FAULT", fault)]).end();
    (report.status, report.errors)
}

/// A script with maps of threads and of values, and with lines.
fn script(pid: &str, then: &str) -> Command {
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).expect("the target lives");
    let adds = "uprobe:F:shared,uprobe:F:calls { @c[arg0 & 3] = count(); @s[tid] = nsecs }";
    let blocks = format!("{adds} uprobe:F:through {{ printf(\"%d\\n\", tid) }} {then}");
    let mut command = Command::new(tracing::binary());
    command.args(["run", "-p", pid, "-o", "/dev/null", "-e"]);
    command.arg(blocks.replace(":F:", &format!(":{}:", program.display())));
    command
}

fn scripted(pid: &str, fault: &str) -> (ExitStatus, String) {
    let output = script(pid, "interval:ms:50 { exit() }").env("TRAPLINE_FAULT", fault).output();
    let output = output.expect("trapline starts");
    (output.status, tracing::errors(&output))
}

fn every_point(side: &str, traced: Traced, stride: usize) {
    let mut victim = or_skip!(target());
    let signals = text::signals(victim.pid());
    let pid = victim.pid().to_string();
    for number in (first(side)..MOST).step_by(stride) {
        let fault = format!("{side}:{number}");
        let (status, errors) = traced(&pid, &fault);
        if status.signal() != Some(libc::SIGKILL) {
            assert!(status.success(), "{fault}: {errors}");
            println!("{side}: survived {} fault points, in steps of {}", number - 1, stride);
            assert!(number > 10, "a batch makes more than ten requests: are fault points built in?");
            return;
        }
        right_and_cleaned(&mut victim, &signals, &fault);
    }
    panic!("more than {MOST} requests in a batch of three functions");
}

/// The same with replaced return addresses: return trampolines are mapped, and frames are registered with an
/// unwinder by a call of its own function.
fn every_point_of_trampolines(side: &str) {
    let mut victim = Running::start(&or_skip!(victims::cpp("returns")), &[]);
    let bare = victim.run(60);
    let signals = text::signals(victim.pid());
    let pid = victim.pid().to_string();
    let funcs = ["leaf", "recurse", "tail_a", "tail_b", "thrower", "through", "caught", "tracer", "traced"];
    let words: Vec<&str> = ["-p", &pid, "-d", "0.05", "-F", "--ret=stack"].into_iter().chain(funcs).collect();
    for number in (first(side)..MOST).step_by(stride()) {
        let fault = format!("{side}:{number}");
        let report = Tracing::spawn_with("lat", &words, &[("TRAPLINE_FAULT", &fault)]).end();
        if report.status.signal() != Some(libc::SIGKILL) {
            assert!(report.status.success(), "{fault}: {}", report.errors);
            println!("{side}, slots: survived {} fault points, in steps of {}", number - 1, stride());
            assert!(number > 10, "a batch makes more than ten requests: are fault points built in?");
            return;
        }
        assert!(victim.alive(), "{fault}: the target died");
        assert_eq!(victim.run(60), bare, "{fault}");
        let output = tracing::once(&["detach", "-q", "-p", &pid]);
        let output_text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{fault}: detach: {}: {output_text}", output.status);
        assert_eq!(text::differences(victim.pid()), [""; 0], "{fault}: {output_text}");
        text::assert_signals(victim.pid(), &signals);
        assert_eq!(victim.run(60), bare, "{fault}: after detach");
    }
    panic!("more than {MOST} requests in a batch");
}

#[test]
fn killed_before_each_request_for_trampolines() {
    every_point_of_trampolines("before");
}

#[test]
fn killed_after_each_request_for_trampolines() {
    every_point_of_trampolines("after");
}

#[test]
fn killed_before_each_request() {
    every_point("before", counted, stride());
}

#[test]
fn killed_after_each_request() {
    every_point("after", counted, stride());
}

/// Of a script's points every fourth of the others' is tried: it makes the same requests, and some for its maps.
const FEWER: usize = 4;

#[test]
fn killed_before_each_request_for_a_script() {
    every_point("before", scripted, FEWER * stride());
}

#[test]
fn killed_after_each_request_for_a_script() {
    every_point("after", scripted, FEWER * stride());
}

#[test]
fn killed_at_random() {
    let mut victim = or_skip!(target());
    let signals = text::signals(victim.pid());
    let pid = victim.pid().to_string();
    let kills = setting("TRAPLINE_RANDOM_KILLS", 60);
    // A fixed generator: the moments differ from run to run anyway.
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    for kill in 0..kills {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let moment = Duration::from_micros(seed % 150_000);
        if kill % 4 == 3 {
            let mut tracing =
                script(&pid, "").stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
            std::thread::sleep(moment);
            tracing.kill().expect("it runs");
            tracing.wait().expect("it ends");
        } else {
            let verb = if kill % 4 == 2 { "lat" } else { "count" };
            let mut tracing =
                Tracing::spawn(verb, &["-p", &pid, "-d", "0.03", "shared", "through", "calls", "libc:*"]);
            std::thread::sleep(moment);
            tracing.signal(libc::SIGKILL);
            drop(tracing.end());
        }
        right_and_cleaned(&mut victim, &signals, &format!("random kill {kill}"));
    }
    println!("{kills} random kills survived");
}

#[test]
fn status_names_a_dead_tracer() {
    let mut victim = or_skip!(target());
    let signals = text::signals(victim.pid());
    let pid = victim.pid().to_string();
    let mut tracing = Tracing::start("count", &["-p", &pid, "shared"]).expect("attaches");
    let tracer = tracing.pid();
    tracing.signal(libc::SIGKILL);
    drop(tracing.end());
    assert_ne!(text::differences(victim.pid()), [""; 0], "the dead tracer's patches are in place");
    let output = tracing::once(&["status", "-p", &pid]);
    let output_text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output_text.contains(&tracer.to_string()), "status names the tracer {tracer}: {output_text}");
    right_and_cleaned(&mut victim, &signals, "after status");
}
