//! One run of a command, where it can harm nothing.
//!
//! In: words, standard input, and a scratch folder. Out: what it printed and how it ended. Does not: compare.
//!
//! The run has its own process numbers, network, mounts and System V objects; everything that it started ends with it.
//! The whole file system is read-only to it but for its scratch folder, which holds the samples, and `/var/tmp`.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// A bare run that takes longer is ended, and its job left out.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// A traced run that takes longer is ended as one that hangs. On a busy machine an attach alone takes seconds.
pub(super) const TRACED_PATIENCE: Duration = Duration::from_secs(100);

/// Of what a run prints, what is kept.
const KEPT_BYTES: u64 = 4 << 20;

/// Files that jobs find in their folder.
pub(super) const SAMPLES: [(&str, &str); 4] = [
    ("words.txt", include_str!("../../world/words.txt")),
    ("data.csv", "name,count,share\nalpha,3,0.25\nbeta,17,1.5\ngamma,8,-2\n"),
    (
        "data.json",
        "{\"name\": \"sample\", \"values\": [1, 2.5, null, true, \"text\"], \"nested\": {\"a\": {\"b\": []}}}\n",
    ),
    (
        "hello.c",
        "#include <stdio.h>\nint main(void) { for (int i = 0; i < 3; i++) printf(\"%d\\n\", i * i); return 0; }\n",
    ),
];

/// How a run ended, and what it printed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Ran {
    /// The exit status, or 128 and the signal.
    pub(super) status: i32,
    pub(super) output: Vec<u8>,
    pub(super) errors: Vec<u8>,
    /// It was ended because it took too long.
    pub(super) timed_out: bool,
    pub(super) took: Duration,
}

/// A folder that is removed at the end.
#[derive(Debug)]
pub(super) struct Scratch(PathBuf);

impl Scratch {
    /// A new one with the samples in it, at the same path for all runs of one lane: programs print where they are.
    pub(super) fn new() -> Result<Self> {
        // A lane runs one job at a time, so its thread's number is a name for it.
        let lane = format!("trapline-world-{}-{:?}", std::process::id(), std::thread::current().id());
        let folder = std::env::temp_dir().join(lane.replace(['(', ')'], ""));
        let scratch = Self(folder);
        std::fs::remove_dir_all(&scratch.0).ok();
        std::fs::create_dir_all(scratch.work()).context("scratch folder")?;
        for folder in [scratch.0.clone(), scratch.work()] {
            // Another user may write there, too.
            std::fs::set_permissions(folder, Permissions::from_mode(0o777)).context("scratch folder")?;
        }
        for (name, text) in SAMPLES {
            std::fs::write(scratch.work().join(name), text).context("sample")?;
        }
        Ok(scratch)
    }

    /// The folder that the run is in.
    fn work(&self) -> PathBuf {
        self.0.join("work")
    }

    /// A file beside it, which the run may write.
    pub(super) fn beside(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Prepares the run's mounts, uses up as many process numbers as requested, and starts the command.
const SETUP: &str = r#"
scratch=$1 numbers=$2; shift 2
mount --bind "$scratch" "$scratch" && mount -t tmpfs none /var/tmp && mount -o remount,bind,ro / || exit 125
cd "$scratch/work" || exit 125
while [ "$numbers" -gt 0 ]; do /bin/true; numbers=$((numbers - 1)); done
ulimit -c 0
exec 3>&2 2>/dev/null
"$@" 2>&3 3>&-
exit $?
"#;

/// Runs a command as a child, and ends as it did. Programs behave otherwise as process 1, or as its children; with this
/// before a bare run, its parent is no more process 1 than the tracer is before a traced one. The shell's own words
/// about a signal go nowhere.
pub(super) const PARENT: [&str; 4] =
    ["sh", "-c", "exec 3>&2 2>/dev/null; \"$@\" 2>&3 3>&-; exit $?", "world"];

/// Runs the words. `numbers` process numbers are used up first, so that two runs can differ by their numbers alone.
pub(super) fn run(
    scratch: &Scratch,
    words: &[String],
    input: Option<&str>,
    numbers: u32,
    patience: Duration,
) -> Result<Ran> {
    let (out, err) = (scratch.beside("out"), scratch.beside("err"));
    let create = |path: &Path| File::create(path).with_context(|| path.display().to_string());
    let mut command = Command::new("unshare");
    command
        .args([
            "--net",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "--ipc",
            "--uts",
            "sh",
            "-c",
            SETUP,
            "world",
        ])
        .arg(&scratch.0)
        .arg(numbers.to_string())
        .args(words)
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin:/usr/games")
        .env("HOME", scratch.work())
        .env("LANG", "C.UTF-8")
        .env("TERM", "dumb")
        .env("TZ", "UTC")
        .env("COLUMNS", "80")
        // It prints the name of its parent, which is the tracer in a traced run.
        .env("LVM_SUPPRESS_FD_WARNINGS", "1")
        .stdin(match input {
            Some(name) => {
                Stdio::from(File::open(scratch.work().join(name)).with_context(|| name.to_string())?)
            }
            None => Stdio::null(),
        })
        .stdout(create(&out)?)
        .stderr(create(&err)?);
    let begun = Instant::now();
    let mut child = command.spawn().context("unshare")?;
    let (status, timed_out) = loop {
        if let Some(status) = child.try_wait().context("unshare")? {
            break (status, false);
        }
        if begun.elapsed() > patience {
            // Its first process dies with it, and all others with that one.
            child.kill().ok();
            break (child.wait().context("unshare")?, true);
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let status = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    let errors = without_signal(kept(&err)?, status);
    Ok(Ran { status, output: kept(&out)?, errors, timed_out, took: begun.elapsed() })
}

/// What a shell prints about a child that a signal ended. Some do so wherever their own errors go.
const SIGNALS: [&str; 8] = [
    "Aborted\n",
    "Bus error\n",
    "Floating point exception\n",
    "Hangup\n",
    "Illegal instruction\n",
    "Killed\n",
    "Segmentation fault\n",
    "Trace/breakpoint trap\n",
];

/// The same without the shell's last line about a signal: a traced program is no child of a shell.
fn without_signal(mut errors: Vec<u8>, status: i32) -> Vec<u8> {
    let line = SIGNALS.iter().find(|line| status > 128 && errors.ends_with(line.as_bytes()));
    errors.truncate(errors.len() - line.map_or(0, |line| line.len()));
    errors
}

fn kept(path: &Path) -> Result<Vec<u8>> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    File::open(path).context("output")?.take(KEPT_BYTES).read_to_end(&mut bytes).context("output")?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::without_signal;

    #[test]
    fn only_the_shells_line_about_a_signal_goes() {
        let left = |text: &str, status| without_signal(text.into(), status);
        assert_eq!(left("failed\nAborted\n", 134), b"failed\n");
        assert_eq!(left("failed\nAborted\n", 1), b"failed\nAborted\n");
        assert_eq!(left("Aborted, as asked\n", 134), b"Aborted, as asked\n");
    }
}
