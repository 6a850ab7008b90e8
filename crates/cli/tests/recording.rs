//! `trace -o FILE.trapline` and `trace --from FILE`. What is read back is what the live command shows
//! (DEC-1). Lost and written records together are all hits (LOSS-2). A file that anyone may have written is
//! read as far as it is valid (SAV-1, SAV-2).

mod common;

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::scratch::Scratch;
use common::{Victim, field, program, run, text};
use serde_json::Value;

const PROBES: [&str; 2] = ["plain(int x) -> int", "main(int argc)"];
const PATIENCE: Duration = Duration::from_secs(120);

/// A tracer that records; killed when the test ends.
struct Tracer(Child);

impl Tracer {
    /// Starts to record a victim's calls of `plain`.
    fn start(file: &Scratch, pid: &str) -> Self {
        let mut command = common::trapline();
        command.args(["trace", "--entry-only", "-o", file.name(), "-p", pid, "plain(int x)"]);
        let mut tracer = Self(command.stderr(Stdio::piped()).spawn().expect("trapline starts"));
        while !text(&run(&["status", "--json", "-p", pid]).stdout).contains("\"armed\"") {
            assert_eq!(tracer.0.try_wait().expect("ours"), None, "the tracer ended");
        }
        // A thread that it still holds would wait for it while the tracer is stopped.
        let status = format!("/proc/{pid}/status");
        while !std::fs::read_to_string(&status).expect("it lives").contains("TracerPid:\t0\n") {
            std::thread::yield_now();
        }
        tracer
    }
    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.0.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
    }
    /// Its exit status and messages, once it has ended.
    fn end(mut self) -> (Option<i32>, String) {
        let mut output_text = String::new();
        let mut from = self.0.stderr.take().expect("piped");
        std::io::Read::read_to_string(&mut from, &mut output_text).expect("text");
        (self.0.wait().expect("it ends").code(), output_text)
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Reads a recording.
fn from(file: &Scratch, more: &[&str]) -> Output {
    run(&[&["trace", "--from", file.name()], more].concat())
}

/// Traces a launched victim into a file.
fn traced(file: &Scratch, probes: &[&str]) -> Output {
    let victim = program().display().to_string();
    let output = run(&[&["trace", "-o", file.name()], probes, &["--", &victim, "3000"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    output
}

fn contents(file: &Scratch) -> String {
    std::fs::read_to_string(&file.0).expect("written")
}

/// A line without what differs between two runs of one program.
fn alike(line: &str) -> String {
    if let Ok(mut object) = serde_json::from_str::<Value>(line) {
        for name in ["time_ns", "pid", "tid", "dur_ns", "seconds", "delta_seconds"] {
            object.as_object_mut().expect("an object").remove(name);
        }
        return object.to_string();
    }
    match line.split(',').collect::<Vec<_>>()[..] {
        [_, _, _, probe, how, ret, _, arg] => format!("{probe} {how} {ret} {arg}"),
        _ => {
            let behind = |text: &str| {
                let text = text.trim_start();
                text.split_once(' ').map_or("", |(_, rest)| rest).trim_start().to_owned()
            };
            behind(&behind(line)).split(" <0.").next().expect("a line").to_owned()
        }
    }
}

fn calls(shown: &str) -> Vec<String> {
    let reported = |line: &&str| line.contains("plain") || line.contains("main");
    shown.lines().filter(reported).map(alike).collect()
}

#[test]
fn a_recording_shows_what_the_live_command_shows() {
    let recording = Scratch::new("calls.trapline");
    let output_text = text(&traced(&recording, &PROBES).stderr);
    assert!(output_text.contains("hits: 3,001 recorded, 0 missed"), "{output_text}");
    for suffix in ["txt", "csv", "json"] {
        let (live, read) = (Scratch::new(&format!("live.{suffix}")), Scratch::new(&format!("read.{suffix}")));
        traced(&live, &PROBES);
        let output = from(&recording, &["-o", read.name()]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let (live, read) = (contents(&live), contents(&read));
        let (live, shown) = (calls(&live), calls(&read));
        let least = if suffix == "json" { 3002 } else { 3001 };
        assert!(shown.len() >= least, "{suffix}: {} calls", shown.len());
        assert_eq!(shown, live, "{suffix}");
        if suffix == "txt" {
            assert!(read.contains("hits: 3,001 recorded, 0 missed"), "the summary is in the file");
        }
    }
    // On standard output, as the live command writes it.
    let output = from(&recording, &[]);
    assert_eq!(calls(&text(&output.stdout)).len(), 3001);
    assert!(text(&output.stderr).contains("hits: 3,001 recorded"), "{}", text(&output.stderr));
}

/// A thread that lives when its first record is read has a name.
#[test]
fn threads_can_be_chosen_by_name() {
    let (recording, mut victim) = (Scratch::new("named.trapline"), Victim::start());
    let tracer = Tracer::start(&recording, &victim.pid());
    let [plain, ..] = victim.rounds(50);
    tracer.signal("-INT");
    assert_eq!(tracer.end().0, Some(0));
    for (name, calls) in [("trapline-victim", plain), ("another", 0)] {
        let output = from(&recording, &["-q", "--comm", name]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout).lines().count() as u64, calls, "{name}");
    }
}

#[test]
fn what_is_read_can_be_chosen() {
    let recording = Scratch::new("chosen.trapline");
    traced(&recording, &PROBES[..1]);
    let lines = |more: &[&str]| {
        let output = from(&recording, more);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        (text(&output.stdout).lines().count(), text(&output.stderr))
    };
    assert_eq!(lines(&["--max", "7", "-q"]).0, 7);
    // The returned value is three times the argument plus one.
    let (some, output_text) = lines(&["--if", "x >= 2990 && ret != 8971"]);
    assert_eq!(
        (some, output_text.contains("note: 2,991 calls are left out here")),
        (9, true),
        "{output_text}"
    );
    for (condition, says) in [("y > 1", "`y` is unknown"), ("arg5 > 1", "argument that was not recorded")] {
        let output = from(&recording, &["--if", condition]);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(says), "{}", text(&output.stderr));
    }
}

/// More hits than the rings hold, while the tracer takes none. Every hit is either in the file or lost.
#[test]
fn lost_and_written_are_all_hits() {
    let recording = Scratch::new("lost.trapline");
    let mut victim = Victim::start();
    let tracer = Tracer::start(&recording, &victim.pid());
    let [few, ..] = victim.rounds(100);
    tracer.signal("-STOP");
    // More than the rings of all CPUs hold together, since the victim may run on each CPU.
    let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let [many, ..] = victim.rounds(200_000 * cpus);
    tracer.signal("-CONT");
    // Some more, which find space again or do not.
    let [more, ..] = victim.rounds(1000);
    tracer.signal("-INT");
    let (status, output_text) = tracer.end();
    assert_eq!(status, Some(0), "{output_text}");
    let read = Scratch::new("lost.json");
    let output = from(&recording, &["-o", read.name()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let shown = contents(&read);
    let objects: Vec<Value> = shown.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let written = objects.iter().filter(|object| object["type"] == "call").count() as u64;
    let count = objects.iter().find(|object| object["type"] == "count").expect("a report");
    let lost = count["missed"].as_u64().expect("a number");
    assert_eq!(written + lost, few + many + more, "{output_text}");
    assert_eq!(field(count, ":plain", "hits"), written);
    assert!(lost > 0 && written > 200_000, "{written} written, {lost} lost");
}

#[test]
fn what_a_killed_tracer_wrote_is_shown() {
    let (recording, read) = (Scratch::new("killed.trapline"), Scratch::new("killed.csv"));
    let mut victim = Victim::start();
    let pid = victim.pid();
    let tracer = Tracer::start(&recording, &pid);
    let [plain, ..] = victim.rounds(1000);
    let begun = Instant::now();
    let rows = || {
        let output = from(&recording, &["-o", read.name()]);
        (contents(&read).lines().count() as u64, output)
    };
    while rows().0 < plain + 1 {
        assert!(begun.elapsed() < PATIENCE, "the tracer does not write");
    }
    tracer.signal("-KILL");
    tracer.end();
    // Append a block that is cut off.
    let mut cut = std::fs::read(&recording.0).expect("written");
    cut.extend_from_slice(b"\x03\0\0\0\0\0\0\0\0\x10");
    std::fs::write(&recording.0, &cut).expect("ours");
    let (rows, output) = rows();
    let output_text = text(&output.stderr);
    assert_eq!(
        (rows, output.status.code(), output_text.lines().count()),
        (plain + 1, Some(1), 1),
        "{output_text}"
    );
    let ends = format!("ends at byte {} without its end mark", cut.len());
    assert!(
        output_text.contains(&ends) && output_text.contains("2,000 hits recorded, 0 missed"),
        "{output_text}"
    );
    assert_eq!(run(&["detach", "-p", &pid]).status.code(), Some(0));
    assert_eq!(victim.rounds(10)[0], 20);
}

#[test]
fn what_cannot_be_read_or_written_is_reported_in_one_line() {
    let refused = |args: &[&str], status: i32, says: &str| {
        let output = run(args);
        let output_text = text(&output.stderr);
        assert_eq!(
            (output.status.code(), output_text.lines().count()),
            (Some(status), 1),
            "{args:?}: {output_text}"
        );
        assert!(output_text.contains(says), "{args:?}: {output_text}");
    };
    let recording = Scratch::new("bad.trapline");
    let name = recording.name();
    traced(&recording, &PROBES);
    let whole = std::fs::read(&recording.0).expect("written");
    refused(&["trace", "--from", "/no/such/file"], 1, "cannot read /no/such/file: No such file");
    refused(&["trace", "--from", "/etc"], 1, "cannot read /etc: Is a directory");
    refused(&["trace", "--from", "/etc/passwd"], 1, "it is no recording of trapline's");
    refused(&["trace", "--from", "/dev/null"], 1, "it ends at byte 0 without its end mark");
    let same = Scratch::new("bad.txt");
    std::fs::hard_link(&recording.0, &same.0).expect("a link");
    refused(&["trace", "--from", name, "-o", same.name()], 2, "are the same file");
    refused(&["trace", "--from", name, "-o", "/no/such/dir/x"], 1, "cannot write to /no/such/dir/x");
    refused(&["trace", "-q", "--from", name, "-o", "/dev/full"], 1, "No space left");
    assert_eq!(std::fs::read(&recording.0).expect("there"), whole, "it is left as it was");
    for (at, byte, says) in [
        (8, 9, "it is a recording of version 9, and this trapline reads version 6"),
        (16, 10, "the block at byte 16 is of no kind that there is"),
        (60, 0xff, "the block at byte 16 has another checksum than it says"),
    ] {
        let mut bytes = whole.clone();
        bytes[at] = byte;
        std::fs::write(&recording.0, &bytes).expect("ours");
        refused(&["trace", "--from", name], 1, says);
    }
    std::fs::write(&recording.0, &whole[..20]).expect("ours");
    refused(
        &["trace", "--from", name],
        1,
        "it ends at byte 20 without its end mark, before it says what it is of",
    );

    let mut victim = Victim::start();
    let (before, pid) = (victim.text(), victim.pid());
    refused(&["trace", "-o", "/no/such/dir/x.trapline", "-p", &pid, "plain"], 1, "/no/such/dir/x.trapline");
    let full = Scratch::new("full.trapline");
    std::os::unix::fs::symlink(Path::new("/dev/full"), &full.0).expect("a link");
    refused(&["trace", "-q", "-o", full.name(), "-p", &pid, "plain"], 1, "No space left on device");
    assert_eq!(victim.text(), before, "text was not restored");
    assert_eq!(victim.rounds(10)[0], 20);
}
