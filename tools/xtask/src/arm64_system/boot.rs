//! One boot: files in, console lines out.
//!
//! In: the kernel, an archive of files. Out: each line of the console, as it comes, and kept in a log. Nothing limits
//! how long a boot takes, as a busy machine makes it ten times as long; one that has printed nothing for long is ended
//! ([`PATIENCE`]). Does not: know tests.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context as _, Result};

/// The longest silence: of tests that say nothing while they work, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(900);

/// What all boots share.
pub(super) struct System {
    pub(super) folder: PathBuf,
    pub(super) kernel: PathBuf,
    pub(super) shell: PathBuf,
}

/// Ends the emulator however its watcher ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl System {
    /// An emulated machine with these files; the same for all boots. Pointers are signed by a quick function of the
    /// emulator's own: the architected one takes it longer than all the rest. No network card: its ROM is part of
    /// another package, and no test uses a network.
    pub(super) fn emulator(&self, initrd: &Path) -> Command {
        let mut command = Command::new("qemu-system-aarch64");
        command.args(["-M", "virt", "-cpu", "max,pauth-impdef=on", "-m", "1G", "-nographic", "-no-reboot"]);
        command.args(["-nic", "none"]);
        command.arg("-kernel").arg(&self.kernel).arg("-initrd").arg(initrd);
        command.args(["-append", "console=ttyAMA0 rdinit=/init panic=-1 quiet"]).stdin(Stdio::null());
        command
    }
    /// Boots; its console is shown, kept in `NAME.log` and handed on. False: it was ended, as it had printed nothing
    /// for too long.
    pub(super) fn boot(&self, mut emulator: Command, name: &str, mut each: impl FnMut(&str)) -> Result<bool> {
        let child = emulator.stdout(Stdio::piped()).spawn().context("the emulator")?;
        let mut child = Running(child);
        let mut log = fs::File::create(self.folder.join(format!("{name}.log")))?;
        let console = BufReader::new(child.0.stdout.take().context("a pipe")?);
        let (lines_in, lines) = channel();
        std::thread::spawn(move || {
            for line in console.split(b'\n').map_while(Result::ok) {
                if lines_in.send(line).is_err() {
                    return;
                }
            }
        });
        loop {
            let line = match lines.recv_timeout(PATIENCE) {
                Ok(line) => String::from_utf8_lossy(line.trim_ascii_end()).into_owned(),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    println!("{name}: nothing was printed for {} s: ended", PATIENCE.as_secs());
                    return Ok(false);
                }
            };
            println!("{line}");
            writeln!(log, "{line}")?;
            each(&line);
        }
        child.0.wait()?;
        Ok(true)
    }
}
