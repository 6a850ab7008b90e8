//! Runs gdb as a user does: backtraces of a process that continues afterwards.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// One frame of a backtrace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// The frame's address, where gdb shows one.
    pub pc: Option<u64>,
    /// The frame's function, or `??`.
    pub function: String,
}

/// Whether gdb can run our script.
///
/// # Errors
/// gdb is not installed, or has no Python.
pub fn ready() -> Result<(), String> {
    let output = Command::new("gdb").args(["-nx", "-batch", "-ex", "python print(6 * 7)"]).output();
    let output_text = output.map_err(|error| format!("no gdb: {error}"))?.stdout;
    if output_text.starts_with(b"42") { Ok(()) } else { Err("this gdb has no Python".into()) }
}

/// Names and values of a function's arguments at each call, as gdb prints them where it stops: at `*func`, the first
/// instruction, or at `func`, where arguments that the function copies into its own frame are there. `input`: what the
/// program reads.
///
/// # Errors
/// As [`ready`].
///
/// # Panics
/// If gdb stops nowhere.
pub fn arguments(path: &Path, place: &str, input: &str) -> Result<Vec<Vec<(String, String)>>, String> {
    let pairs = |hit: &String| {
        let lines = hit.lines().map_while(|line| line.split_once(" = "));
        lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect::<Vec<_>>()
    };
    Ok(hits(path, place, "info args", input)?.iter().map(pairs).collect())
}

/// What gdb prints of these expressions at each hit of a place, as [`arguments`] names it. One that has no value there is
/// gdb's message.
///
/// # Errors
/// As [`ready`].
///
/// # Panics
/// If gdb stops nowhere.
pub fn printed(
    path: &Path,
    place: &str,
    expressions: &[String],
    input: &str,
) -> Result<Vec<Vec<String>>, String> {
    // Several commands would end at the first that fails.
    let one = |text: &String| {
        format!("python\ntry: print(gdb.parse_and_eval({text:?}))\nexcept Exception as e: print(e)\nend")
    };
    let commands: Vec<String> = expressions.iter().map(one).collect();
    let whole = "set print repeats unlimited\nset print elements unlimited\n";
    let all = hits(path, place, &(whole.to_owned() + &commands.join("\n")), input)?;
    let lines = |hit: &String| hit.lines().take(expressions.len()).map(str::to_owned).collect();
    Ok(all.iter().map(lines).collect())
}

/// What gdb prints by these commands at each hit of a place.
fn hits(path: &Path, place: &str, commands: &str, input: &str) -> Result<Vec<String>, String> {
    ready()?;
    // Tests of one process run side by side.
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let own = NEXT.fetch_add(1, Ordering::Relaxed);
    let file = std::env::temp_dir().join(format!("trapline-gdb-{}-{own}", std::process::id()));
    std::fs::write(&file, input).map_err(|error| error.to_string())?;
    let script = format!(
        "set pagination off\nset confirm off\nbreak {place}\ncommands\nsilent\nprintf \"HIT\\n\"\n{commands}\ncontinue\nend\nrun < {}\n",
        file.display()
    );
    let commands = file.with_extension("gdb");
    std::fs::write(&commands, script).map_err(|error| error.to_string())?;
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-x"]).arg(&commands).arg(path).stdin(std::process::Stdio::null());
    let output = gdb.output().map_err(|error| format!("no gdb: {error}"))?;
    [file, commands].iter().for_each(|file| std::fs::remove_file(file).unwrap_or_default());
    let output_text = String::from_utf8_lossy(&output.stdout).into_owned();
    let hits: Vec<String> = output_text.split("HIT\n").skip(1).map(str::to_owned).collect();
    assert!(!hits.is_empty(), "{output_text}\n{}", String::from_utf8_lossy(&output.stderr));
    Ok(hits)
}

/// Backtraces of all threads, innermost frame first, with or without our script for return trampolines.
///
/// # Errors
/// As [`ready`].
pub fn backtraces(pid: u32, with_script: bool) -> Result<Vec<Vec<Frame>>, String> {
    ready()?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/gdb/trapline_return_trampolines.py");
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-p", &pid.to_string(), "-ex", "set pagination off"]);
    if with_script {
        gdb.args(["-ex", &format!("source {}", script.display())]);
    }
    let output = gdb.args(["-ex", "thread apply all bt -frame-arguments none"]).output();
    let output = output.map_err(|error| format!("no gdb: {error}"))?;
    let output_text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output_text.contains("#0"), "{output_text}\n{errors}");
    let threads =
        output_text.split("\nThread ").map(|thread| thread.lines().filter_map(frame).collect::<Vec<_>>());
    Ok(threads.filter(|frames| !frames.is_empty()).collect())
}

/// Parses `#1  0x0000555555555189 in inner ()`, or the same without an address.
fn frame(line: &str) -> Option<Frame> {
    let (number, rest) = line.strip_prefix('#')?.split_once(char::is_whitespace)?;
    number.parse::<u32>().ok()?;
    let rest = rest.trim_start();
    let (pc, rest) = match rest.strip_prefix("0x").and_then(|rest| rest.split_once(" in ")) {
        Some((pc, rest)) => (u64::from_str_radix(pc, 16).ok(), rest),
        None => (None, rest),
    };
    let function = rest.split(" (").next().unwrap_or(rest).to_owned();
    Some(Frame { pc, function })
}

/// Names of the functions of a backtrace.
#[must_use]
pub fn names(frames: &[Frame]) -> Vec<&str> {
    frames.iter().map(|frame| frame.function.as_str()).collect()
}
