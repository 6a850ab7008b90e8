//! Recordings of everything in tests: a folder for one, and the same program recorded by uftrace.
//!
//! In: a name. Out: folders that go away, the lines that either of the two shows. Does not: run under a tracer what is not
//! its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::tracing;

/// A folder for a recording, which is removed at the end.
#[derive(Debug)]
pub struct Folder(pub PathBuf);

impl Folder {
    /// One that is not there yet.
    ///
    /// # Panics
    /// Never, where temporary folders can be removed.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("trapline-record-{name}-{}", std::process::id()));
        std::fs::remove_dir_all(&path).ok();
        Self(path)
    }
    /// Its path.
    ///
    /// # Panics
    /// If it is no text.
    #[must_use]
    pub fn text(&self) -> &str {
        self.0.to_str().expect("a plain name")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Functions, and how often each was called.
pub type Calls = Vec<(String, u64)>;

/// A program that was recorded by uftrace and by trapline.
#[derive(Debug)]
pub struct Both {
    folder: Folder,
    ours: String,
    theirs: PathBuf,
}

/// The functions of the program.
pub const FUNCTIONS: [&str; 6] = ["main", "tree", "odd", "even", "leaf", "again"];

impl Both {
    /// A program that calls functions of libraries, which call others, and which call back.
    ///
    /// # Errors
    /// As [`Self::record`].
    ///
    /// # Panics
    /// As [`Self::record`].
    pub fn libcalls(name: &str) -> Result<Self, &'static str> {
        // A program built with -pg calls it itself.
        let ours = ["--libcall", "-U", "mcount", "main", "work", "compare"];
        Self::of(name, CALLS_LIBRARIES, &[], &ours)
    }
    /// Builds the program, and records it with both.
    ///
    /// # Errors
    /// What is not there.
    ///
    /// # Panics
    /// If one of them fails.
    pub fn record(name: &str) -> Result<Self, &'static str> {
        Self::record_with(name, &[])
    }
    /// The same, with options that both have.
    ///
    /// # Errors
    /// As [`Self::record`].
    ///
    /// # Panics
    /// As [`Self::record`].
    pub fn record_with(name: &str, options: &[&str]) -> Result<Self, &'static str> {
        Self::of(name, PROGRAM, &[options, &["--no-libcall"]].concat(), &[options, &FUNCTIONS].concat())
    }
    fn of(name: &str, program: &str, theirs: &[&str], ours: &[&str]) -> Result<Self, &'static str> {
        let (their_options, our_options, text) = (theirs, ours, program);
        if Command::new("uftrace").arg("--version").output().is_err() {
            return Err("uftrace is not installed");
        }
        let folder = Folder::new(name);
        std::fs::create_dir(&folder.0).expect("a folder");
        let (program, source) = (folder.0.join("program"), folder.0.join("program.c"));
        std::fs::write(&source, text).expect("written");
        let built = Command::new("cc")
            .args(["-O1", "-g", "-pg", "-fno-inline", "-fno-builtin", "-o"])
            .arg(&program)
            .arg(&source)
            .output();
        match built {
            Ok(output) if output.status.success() => {}
            _ => return Err("cc does not build with -pg"),
        }
        let theirs = folder.0.join("theirs");
        let recorded =
            uftrace("record", &theirs).args(their_options).arg(&program).current_dir(&folder.0).output();
        let recorded = recorded.expect("it runs");
        assert!(recorded.status.success(), "{}", tracing::errors(&recorded));
        let ours = folder.0.join("ours").to_str().expect("plain").to_owned();
        // A program built with -pg leaves a file where it runs.
        let mut command = Command::new(tracing::binary());
        command.args(["record", "-q", "--lossless", "-o", &ours]).args(our_options).arg("--").arg(program);
        let recorded = command.current_dir(&folder.0).output().expect("it runs");
        assert!(recorded.status.success(), "{}", tracing::errors(&recorded));
        Ok(Self { folder, ours, theirs })
    }
    /// Lines of uftrace's replay, and of ours.
    ///
    /// # Panics
    /// If one of them fails.
    #[must_use]
    pub fn replays(&self, options: &[&str]) -> (Vec<String>, Vec<String>) {
        let theirs = uftrace("replay", &self.theirs).args(["-f", "none"]).args(options).output();
        let theirs = tracing::out(&theirs.expect("it runs"));
        let ours = self.ours("replay", options);
        let ours: Vec<&str> =
            ours.lines().skip(1).filter_map(|line| Some(line.split_once(" | ")?.1)).collect();
        (shape(&theirs), shape(&ours.join("\n")))
    }
    /// Functions with their calls, as uftrace reports them, and as we do.
    ///
    /// # Panics
    /// If one of them fails.
    #[must_use]
    pub fn reports(&self, options: &[&str]) -> (Calls, Calls) {
        let theirs = uftrace("report", &self.theirs).args(options).output().expect("it runs");
        (calls(&tracing::out(&theirs)), calls(&self.ours("report", options)))
    }
    /// What a verb of ours shows.
    ///
    /// # Panics
    /// If it fails.
    #[must_use]
    pub fn ours(&self, verb: &str, options: &[&str]) -> String {
        let output = tracing::once(&[&[verb, &self.ours][..], options].concat());
        assert!(output.status.success(), "{verb} {options:?}: {}", tracing::errors(&output));
        tracing::out(&output)
    }
    /// Its folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.folder.0
    }
}

fn uftrace(verb: &str, data: &Path) -> Command {
    let mut command = Command::new("uftrace");
    command.args([verb, "--no-pager", "--no-event", "-d"]).arg(data);
    command
}

/// Functions and calls of a report, by name.
#[must_use]
pub fn calls(report: &str) -> Calls {
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, _, _, _, calls, name] = words[..] else { return None };
        Some((name.to_owned(), calls.parse().ok()?))
    };
    let mut rows: Vec<_> = report.lines().filter_map(row).collect();
    rows.sort();
    rows
}

/// Names and nesting, without what uftrace writes besides.
fn shape(text: &str) -> Vec<String> {
    let lines = text.lines().map(str::trim_end).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let bare = |line: &str| {
        let call = line.trim_start();
        let depth = (line.len() - call.len()) / 2;
        format!("{depth} {}", call.replace("; /*", " /*"))
    };
    let all: Vec<String> = lines.map(bare).collect();
    let least =
        all.iter().filter_map(|line| line.split_once(' ')?.0.parse::<usize>().ok()).min().unwrap_or(0);
    let moved = |line: &String| {
        let (depth, call) = line.split_once(' ')?;
        Some(format!("{} {call}", depth.parse::<usize>().ok()? - least))
    };
    all.iter().filter_map(moved).collect()
}

const CALLS_LIBRARIES: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int compare(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }
void work(int n) { char *p = malloc(n); memset(p, 1, n); free(strdup("abc")); free(p); }
int main(void) {
    const char *all[] = {"c", "a", "b"};
    for (int n = 1; n < 4; n++) { work(n * 100); }
    qsort(all, 3, sizeof *all, compare);
    puts(all[0]);
    return atoi("0");
}
"#;

const PROGRAM: &str = r#"
#define KEEP __asm__ volatile("" ::: "memory")
int even(int n);
int leaf(int n) { KEEP; return n + 1; }
int odd(int n) { int got = n == 0 ? 0 : even(n - 1); KEEP; return got; }
int even(int n) { int got = n == 0 ? 1 : odd(n - 1); KEEP; return got; }
int tree(int n) { int got = n == 0 ? leaf(n) : tree(n - 1) + leaf(n) + tree(n - 1); KEEP; return got; }
int again(int n) { for (int nth = 0; nth < n; nth++) { leaf(nth); odd(nth); } KEEP; return n; }
int main(void) { int sum = tree(5) + again(9) + even(6); KEEP; return sum == 0; }
"#;
