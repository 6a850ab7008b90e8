//! SAFE-5 here: a program changes what its probes rely on, by its C library's functions, by system calls of its own,
//! or by Go's. The call is held until the patches are out, so the program lives on and computes the same.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use trapline::{Builder, Finished, Session};

/// The folder with the programs; set by whatever built the system.
const VARIABLE: &str = "TRAPLINE_CHANGES_VICTIMS";
const TIMES: u64 = 8;
/// How `own_calls` makes a call.
const HOWS: [&str; 4] = ["inline", "wrapped", "stack", "hidden"];
/// Emulated, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

struct Changing {
    child: Child,
    to: ChildStdin,
    lines: Receiver<String>,
}

impl Changing {
    fn start(name: &str) -> Option<Self> {
        let program = std::env::var_os(VARIABLE).map(|folder| PathBuf::from(folder).join(name));
        let Some(program) = program.filter(|program| program.exists()) else {
            println!("SKIP {VARIABLE} does not say where {name} is: see cargo xtask arm64-system");
            return None;
        };
        let mut command = Command::new(program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let to = child.stdin.take().expect("a pipe");
        let from = BufReader::new(child.stdout.take().expect("a pipe"));
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            from.lines().map_while(Result::ok).take_while(|line| tell.send(line.clone()).is_ok()).count()
        });
        let changing = Self { child, to, lines };
        assert_eq!(changing.lines.recv().as_deref(), Ok("ready"));
        Some(changing)
    }
    /// Sends a line, and returns the answer. The session looks for calls that are held meanwhile.
    fn say(&mut self, session: Option<&mut Session>, line: &str) -> String {
        writeln!(self.to, "{line}").and_then(|()| self.to.flush()).expect("it listens");
        let Some(session) = session else {
            return self.lines.recv_timeout(PATIENCE).expect("it lives on");
        };
        let begun = Instant::now();
        loop {
            session.poll();
            match self.lines.recv_timeout(Duration::from_millis(5)) {
                Ok(answer) => return answer,
                Err(_) => assert!(begun.elapsed() < PATIENCE, "{line}: no answer"),
            }
        }
    }
    fn builder(&self, probe: &str) -> Builder {
        Session::builder().pid(self.child.id()).ring(8 << 20).probe(probe).expect("a probe")
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Whether the kernel takes the clock away on request: on arm64 from Linux 6.12 on.
fn denies_clocks() -> bool {
    // SAFETY: allows this thread what it may do already.
    let is_there = unsafe { libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_ENABLE) } == 0;
    if !is_there {
        println!("SKIP no PR_SET_TSC in this kernel");
    }
    is_there
}

/// The change was held, and what relied on the fact is reported.
fn assert_closed(case: &str, finished: &Finished) {
    let notices = finished.summary.notices.join("; ");
    let closed = notices.contains("had to be probed anew") || notices.contains("not probed any more");
    // A call that is found late might have been fatal.
    assert!(closed && !notices.contains("in the moment before"), "{case}: {notices}");
}

fn changes(name: &str, line: &str) {
    let what = line.split('-').next().expect("a word");
    let Some(mut victim) = Changing::start(name) else { return };
    let session = match what {
        "segv" => victim.builder("get").count(),
        "tsc" => victim.builder("work").latency(),
        _ => victim.builder("work").texts(vec![0b10]).record(2, true),
    };
    let mut session = session.expect("a session");
    let run = format!("run {TIMES}");
    let answer = victim.say(Some(&mut session), &run);
    assert!(answer.contains("work=8 get=8 caught=0 "), "{name} {line}: {answer}");
    assert_eq!(victim.say(Some(&mut session), line), "done", "{name} {line}");
    let caught = if what == "segv" { TIMES / 4 } else { 0 };
    let answer = victim.say(Some(&mut session), &run);
    assert!(answer.contains(&format!("work=8 get=8 caught={caught} ")), "{name} {line}: {answer}");
    assert_closed(&format!("{name} {line}"), &session.detach());
    victim.say(None, &run);
}

#[test]
fn a_program_that_changes_by_its_c_library_lives_on() {
    for line in ["segv", "filter", "seccomp"] {
        changes("changes", line);
    }
}

#[test]
fn a_program_that_changes_by_its_own_calls_lives_on() {
    for what in ["segv", "filter"] {
        for how in HOWS {
            changes("own_calls", &format!("{what}-{how}"));
        }
    }
}

#[test]
fn a_program_that_takes_the_clock_from_its_threads_lives_on() {
    if !denies_clocks() {
        return;
    }
    changes("changes", "tsc");
    for how in HOWS {
        changes("own_calls", &format!("tsc-{how}"));
    }
    changes_of_go("tsc");
}

/// Handlers of Go's own come before anything is probed.
fn changes_of_go(line: &str) {
    let Some(mut victim) = Changing::start("raw_calls") else { return };
    let session = match line {
        "tsc" => victim.builder("main.Work").latency(),
        _ => victim.builder("main.Work").texts(vec![0b1]).record(2, true),
    };
    let mut session = session.expect("a session");
    for line in ["run 8", line, "run 8"] {
        assert_eq!(victim.say(Some(&mut session), line), "done", "{line}");
    }
    assert_closed(line, &session.detach());
    victim.say(None, "run 8");
}

#[test]
fn a_program_of_gos_that_changes_lives_on() {
    changes_of_go("filter");
}

/// No tracer answers: the thread goes on by itself, and later calls go on at once.
#[test]
fn a_thread_whose_tracer_does_not_look_goes_on() {
    let Some(mut victim) = Changing::start("changes") else { return };
    let session = victim.builder("get").count().expect("a session");
    for _ in 0..2 {
        assert_eq!(victim.say(None, "segv"), "done");
    }
    drop(session.detach());
    let answer = victim.say(None, "run 8");
    assert!(answer.contains("work=8 get=8 caught=2 "), "{answer}");
}
