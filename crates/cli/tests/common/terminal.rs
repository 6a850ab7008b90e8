//! A pseudo-terminal: an emulator, and a program that runs on it.
//!
//! In: a program, keys. Out: what is to be seen, and the modes that the program left. Does not: know the program.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZeroU16;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const SIZE: Size = size(24, 100);

/// Rows and columns.
pub(crate) type Size = (NonZeroU16, NonZeroU16);

pub(crate) const fn size(rows: u16, columns: u16) -> Size {
    (NonZeroU16::new(rows).expect("some"), NonZeroU16::new(columns).expect("some"))
}

/// A terminal emulator, and a program that runs on it as the leader of its session.
pub(crate) struct Terminal {
    pub(crate) master: Option<File>,
    pub(crate) slave: File,
    pub(crate) modes: String,
    pub(crate) child: Child,
    pub(crate) emulator: Arc<Mutex<vt100::Parser>>,
    /// Set when the terminal's window is closed.
    pub(crate) gone: Arc<AtomicBool>,
}

pub(crate) fn modes(terminal: &File) -> String {
    format!("{:?}", tcgetattr(terminal).expect("a terminal"))
}

impl Terminal {
    /// Runs a program on a new terminal.
    pub(crate) fn run(program: &Path, args: &[&str]) -> Self {
        Self::run_with(program, args, &[])
    }
    /// The same, with changes of the environment.
    pub(crate) fn run_with(program: &Path, args: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::run_sized(program, args, environment, SIZE)
    }
    /// The same, on a terminal of this size.
    pub(crate) fn run_sized(program: &Path, args: &[&str], environment: &[(&str, &str)], size: Size) -> Self {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("a terminal");
        let name = ptsname(&master, Vec::new()).expect("its name").into_string().expect("text");
        let slave = File::options().read(true).write(true).open(name).expect("a terminal");
        let master = File::from(master);
        resize(&master, size);
        let stdio = || Stdio::from(slave.try_clone().expect("a descriptor"));
        let mut command = Command::new("setsid");
        command
            .arg("--ctty")
            .arg(program)
            .args(args)
            .env("TERM", "xterm-256color")
            .env("LC_ALL", "C.UTF-8")
            .env("RUST_BACKTRACE", "0")
            .envs(environment.iter().copied());
        // Before the program can change them.
        let modes = modes(&slave);
        let child = command.stdin(stdio()).stdout(stdio()).stderr(stdio()).spawn().expect("setsid runs");
        let emulator = Arc::new(Mutex::new(vt100::Parser::new(size.0, size.1, 1000)));
        let gone = Arc::new(AtomicBool::new(false));
        let (mut from, seen, leave) =
            (master.try_clone().expect("a descriptor"), emulator.clone(), gone.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while !leave.load(Ordering::Relaxed) {
                has_more(&from, None);
                // What was read is on the screen before anybody else looks at it.
                let mut seen = seen.lock().expect("no panic");
                // Ends with EIO when no process has the terminal open any more.
                let Ok(n @ 1..) = from.read(&mut bytes) else { break };
                seen.process(&bytes[..n]);
            }
        });
        Self { master: Some(master), slave, modes, child, emulator, gone }
    }
    /// The text on the screen.
    pub(crate) fn contents(&self) -> String {
        self.emulator.lock().expect("no panic").screen().contents()
    }
    /// Whether the alternate screen is shown.
    pub(crate) fn is_taken(&self) -> bool {
        self.emulator.lock().expect("no panic").screen().alternate_screen()
    }
    pub(crate) fn wait_for(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            assert!(begun.elapsed() < PATIENCE, "no {what} in:\n{}", self.contents());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    pub(crate) fn wait_for_text(&mut self, text: &str) {
        self.wait_for(text, |terminal| terminal.contents().contains(text));
    }
    pub(crate) fn press(&mut self, keys: &str) {
        self.master.as_mut().expect("there").write_all(keys.as_bytes()).expect("there");
    }
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.child.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
    }
    /// Waits for the end. All that the program wrote is on the screen then.
    pub(crate) fn status(&mut self) -> Option<i32> {
        let begun = Instant::now();
        let mut status = None;
        loop {
            status = status.or(self.child.try_wait().expect("ours"));
            let seen = self.emulator.lock().expect("no panic");
            // The kernel hands on what was written before it answers.
            let is_shown =
                self.master.as_ref().is_none_or(|master| !has_more(master, Some(&Timespec::default())));
            drop(seen);
            if let Some(status) = status.filter(|_| is_shown) {
                return status.code();
            }
            assert!(begun.elapsed() < PATIENCE, "it does not end:\n{}", self.contents());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    /// Waits for the end, and checks that the terminal is as before.
    pub(crate) fn end(&mut self) -> Option<i32> {
        let status = self.status();
        self.wait_for("its own screen", |terminal| !terminal.is_taken());
        self.wait_for("cursor", |terminal| {
            !terminal.emulator.lock().expect("no panic").screen().hide_cursor()
        });
        assert_eq!(modes(&self.slave), self.modes, "modes");
        status
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Whether there is something to read; waits for it at most so long, or without end. The end of all is nothing.
fn has_more(master: &File, patience: Option<&Timespec>) -> bool {
    let mut polled = [PollFd::new(master, PollFlags::IN)];
    poll(&mut polled, patience).is_ok_and(|_| polled[0].revents().contains(PollFlags::IN))
}

pub(crate) fn resize(master: &File, (rows, columns): Size) {
    let size = Winsize { ws_row: rows.get(), ws_col: columns.get(), ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(master, size).expect("a terminal");
}
