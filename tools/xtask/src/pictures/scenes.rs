//! The pictures: what is run for each, and how it is shown.
//!
//! In: a stage with a folder and the command. Out: a picture's bytes. Each shows one run of a real program; the line that
//! was typed stands in it, as it was run.
//! Does not: choose where pictures lie, or judge them.

use std::ffi::OsString;
use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use super::draw::{self, Line, draw, plain};
use super::private;
use super::programs::{Folder, Redis, shop};
use super::terminal::{self, Keys};
use crate::browser;

/// One picture.
pub(super) struct Scene {
    pub(super) file: &'static str,
    /// The packages without which it cannot be made.
    pub(super) needs: &'static [&'static str],
    pub(super) make: fn(&Stage) -> Result<Vec<u8>>,
}

pub(super) const SCENES: &[Scene] = &[
    Scene { file: "demo.svg", needs: &[], make: demo },
    Scene { file: "top.svg", needs: &[REDIS], make: top },
    Scene { file: "lat.svg", needs: &[REDIS], make: lat },
    Scene { file: "trace.svg", needs: &["gcc"], make: trace },
    Scene { file: "flame.svg", needs: &[REDIS], make: flame },
    Scene { file: "record.svg", needs: &[REDIS], make: record },
    Scene { file: "report.png", needs: &[REDIS, browser::PACKAGE], make: report },
];

const REDIS: &str = "redis-tools";
/// How many seconds of rates the table of `top` shows.
const SECONDS: u64 = 12;
/// Pixels of the page that is drawn.
const PAGE: (u32, u32) = (1100, 900);

/// Where commands run: a folder of their own, where `trapline` is the command that was just built.
pub(super) struct Stage {
    pub(super) folder: Folder,
    pub(super) path: OsString,
}

impl Stage {
    /// A line as a shell runs it.
    fn line(&self, line: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", line]).env("PATH", &self.path).current_dir(self.folder.path());
        shell
    }
    /// Runs a line whose output is not shown. What it left in this file.
    fn file(&self, line: &str, file: &str) -> Result<String> {
        let output = self.line(line).stdin(Stdio::null()).output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{line}: {}: {errors}", output.status);
        fs::read_to_string(self.folder.path().join(file)).with_context(|| format!("{line} left no {file}"))
    }
    /// The picture of a line that was typed, and of what it printed.
    fn typed(&self, label: &str, line: &str) -> Result<Vec<u8>> {
        let screen = terminal::run(&self.line(line), (60, 120), None)?;
        let shown = draw::lines(&screen);
        let lines: Vec<Line> = [plain(&format!("$ {line}"))].into_iter().chain(shown).collect();
        Ok(draw("", label, &lines).into_bytes())
    }
}

fn demo(stage: &Stage) -> Result<Vec<u8>> {
    let screen = terminal::run(&stage.line("trapline demo"), (100, 110), None)?;
    let mut lines = draw::lines(&screen);
    // Its second half is more of the same.
    let half = lines.iter().position(|line| draw::text(line) == "Function = commit");
    lines.truncate(half.context("trapline demo prints something else")?);
    lines.push(plain("…"));
    Ok(draw("", "trapline demo in a terminal", &lines).into_bytes())
}

fn top(stage: &Stage) -> Result<Vec<u8>> {
    let redis = Redis::start(stage.folder.path())?;
    let line = format!("trapline top --lat -p {} 'redis-server:*Command'", redis.server.pid());
    let keys = Keys { keys: "q", when: |text| seconds(text).is_some_and(|seconds| seconds >= SECONDS) };
    let screen = terminal::run(&stage.line(&format!("exec {line}")), (20, 100), Some(&keys))?;
    let label = "trapline top in a terminal: a table of redis-server's functions with rates and percentiles";
    Ok(draw(&line, label, &draw::lines(&screen)).into_bytes())
}

/// For how long `top` has run, as its first line says: `trapline top: NAME (PID), 8 s, …`.
fn seconds(text: &str) -> Option<u64> {
    let title = text.lines().find(|line| line.starts_with("trapline top: "))?;
    title.split(", ").nth(1)?.strip_suffix(" s")?.parse().ok()
}

fn lat(stage: &Stage) -> Result<Vec<u8>> {
    let redis = Redis::start(stage.folder.path())?;
    let label = "trapline lat in a terminal: histograms of how long two functions of redis-server take";
    let pid = redis.server.pid();
    stage.typed(label, &format!("trapline lat -q -F -d 3 -p {pid} getCommand lrangeCommand"))
}

fn trace(stage: &Stage) -> Result<Vec<u8>> {
    let shop = shop(stage.folder.path())?;
    let label = "trapline trace in a terminal: calls with arguments, results and durations";
    stage.typed(label, &format!("trapline trace -q --max 14 -p {} handle price store", shop.pid()))
}

fn flame(stage: &Stage) -> Result<Vec<u8>> {
    let redis = Redis::start(stage.folder.path())?;
    let line = format!(
        "trapline stack -d 3 --unwind dwarf -o flame.svg -p {} libc:malloc libc:memcpy libc:write",
        redis.server.pid()
    );
    Ok(stage.file(&line, "flame.svg")?.into_bytes())
}

fn record(stage: &Stage) -> Result<Vec<u8>> {
    let redis = Redis::start(stage.folder.path())?;
    stage.file(&format!("trapline record -d 1 -p {} -o rec", redis.server.pid()), "rec/info").ok();
    stage.file("trapline dump --flame rec -o redis.folded", "redis.folded")?;
    let line = "trapline dump --flame redis.folded --unit ns -o record.svg";
    Ok(stage.file(line, "record.svg")?.into_bytes())
}

fn report(stage: &Stage) -> Result<Vec<u8>> {
    let redis = Redis::start(stage.folder.path())?;
    let functions = "processCommand getCommand setCommand incrCommand zaddCommand lrangeCommand";
    let line = format!("trapline lat -d 6 -o report.html -p {} {functions}", redis.server.pid());
    let page = stage.file(&line, "report.html")?;
    drop(redis);
    let faults = private::faults(&page, &private::names());
    ensure!(faults.is_empty(), "the page has {}", faults.join(", "));
    let folder = stage.folder.path();
    let picture = folder.join("report.png");
    let address = format!("file://{}", folder.join("report.html").display());
    browser::picture(&address, &folder.join("profile"), PAGE, &picture)?;
    fs::read(picture).context("the browser left no picture")
}

#[cfg(test)]
mod tests {
    use super::seconds;

    #[test]
    fn the_first_line_of_top_has_the_seconds() {
        let text = "trapline top: redis-server (42), 12 s, 1,200 calls/s, 9 functions\n ▼CALLS/S";
        assert_eq!(seconds(text), Some(12));
        assert_eq!(seconds("trapline top: redis-server (42), attaching"), None);
    }
}
