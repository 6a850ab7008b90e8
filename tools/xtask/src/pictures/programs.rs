//! The real programs that pictures show at work.
//!
//! In: a folder for their files. Out: running processes; all of them end, and their files are removed, when they are
//! dropped. Each is waited for until it says that it is ready.
//! Does not: trace.

use std::fs;
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use trapline_tests::programs;

use crate::tree;

/// Longest time until a program is ready.
const PATIENCE: Duration = Duration::from_secs(30);
/// What redis-benchmark does, all at once and over and over: each asks for some commands, at its own rate.
const LOAD: &[&[&str]] = &[
    &["-c", "2", "-P", "4", "-t", "get"],
    &["-c", "1", "-t", "set"],
    &["-c", "1", "-t", "incr"],
    &["-c", "1", "-t", "zadd"],
    // Its lists grow in turn with questions for them.
    &["-c", "1", "-t", "lrange_100", "-n", "2000"],
];

/// A folder under `/tmp` that is removed at the end. Its name may be in pictures, so it says nothing of this machine.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new() -> Result<Self> {
        let path = PathBuf::from(format!("/tmp/trapline-pictures-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| path.display().to_string())?;
        Ok(Self(path))
    }
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// A process that ends when it is dropped.
pub(super) struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Result<Self> {
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn();
        Ok(Self(child.with_context(|| format!("{command:?}"))?))
    }
    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// The distribution's redis-server, asked by its own benchmark without a pause.
pub(super) struct Redis {
    pub(super) server: Running,
    _load: Vec<Running>,
}

impl Redis {
    pub(super) fn start(folder: &Path) -> Result<Self> {
        // The package may have it under another name only, and it looks at its name.
        let program = programs::find(&["/usr/bin/redis-server", "/usr/bin/redis-check-rdb"]);
        let ours = folder.join("redis-server");
        programs::copy(&program.map_err(anyhow::Error::msg)?, &ours)?;
        let socket = folder.join("redis.sock");
        let mut command = Command::new(ours);
        command.args(["--port", "0", "--save", "", "--unixsocket"]).arg(&socket).current_dir(folder);
        let mut server = Running::start(command.stdout(Stdio::piped()))?;
        let lines = BufReader::new(server.0.stdout.take().context("piped")?).lines();
        is_said("ready to accept connections", lines)?;
        let load = LOAD.iter().map(|words| {
            let mut command = Command::new("redis-benchmark");
            command.args(["-l", "-q", "-r", "10000"]).args(*words).arg("-s").arg(&socket);
            Running::start(command.stdout(Stdio::null()))
        });
        Ok(Self { server, _load: load.collect::<Result<_>>()? })
    }
}

/// Waits until a program says this. What it says later is read too, so that it never waits for a reader.
fn is_said(
    what: &'static str,
    lines: impl Iterator<Item = io::Result<String>> + Send + 'static,
) -> Result<()> {
    let (sender, said) = channel();
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok).filter(|line| line.to_lowercase().contains(what)) {
            sender.send(line).ok();
        }
    });
    said.recv_timeout(PATIENCE).map(drop).with_context(|| format!("a program does not say `{what}`"))
}

/// The program of the guide's examples.
pub(super) fn shop(folder: &Path) -> Result<Running> {
    let source = tree::root().join("docs/guide/shop.c");
    fs::copy(source, folder.join("shop.c")).context("docs/guide/shop.c")?;
    let flags = ["-O2", "-g", "-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer", "-pthread"];
    let status = Command::new("cc").args(flags).args(["-o", "shop", "shop.c"]).current_dir(folder).status();
    ensure!(status.context("cc")?.success(), "shop.c cannot be compiled");
    Running::start(Command::new(folder.join("shop")).current_dir(folder).stdout(Stdio::null()))
}
