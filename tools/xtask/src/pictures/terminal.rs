//! A command on a terminal of its own, and what is to be seen there.
//!
//! In: a command, a size, keys and when to press them. Out: the screen, as a terminal emulator shows it: at the end of a
//! command that ends by itself, or before the keys are pressed.
//! Invariant: a screen is taken when it is whole: nothing more was written for a while.
//! Does not: know what the command is, or draw.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZeroU16;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// Longest run of a command.
const PATIENCE: Duration = Duration::from_secs(120);
/// A program that draws its table each second writes all of it at once; it has done so after this long.
const WHOLE: Duration = Duration::from_millis(200);

/// Rows and columns.
pub(super) type Size = (u16, u16);

/// Keys that end a command, and whether the text on the screen is what they wait for.
pub(super) struct Keys {
    pub(super) keys: &'static str,
    pub(super) when: fn(&str) -> bool,
}

/// Runs a command. What it shows, before the keys are pressed if there are any.
pub(super) fn run(command: &Command, (rows, columns): Size, end: Option<&Keys>) -> Result<vt100::Screen> {
    let some = |n| NonZeroU16::new(n).context("a terminal without a cell");
    let (mut master, slave) = open((rows, columns))?;
    let mut child = on(&slave, command)?.spawn().context("setsid does not run")?;
    drop(slave);
    let mut parser = vt100::Parser::new(some(rows)?, some(columns)?, 0);
    let written = read(master.try_clone()?);
    let mut taken = follow(&written, &mut parser, end);
    if let (Ok(_), Some(end)) = (&taken, end) {
        master.write_all(end.keys.as_bytes())?;
        taken = follow(&written, &mut parser, None).and(taken);
    }
    if taken.is_err() {
        child.kill().ok();
    }
    let status = child.wait()?;
    let screen = taken?;
    ensure!(status.success(), "{command:?}: {status}, on its screen:\n{}", screen.contents());
    Ok(screen)
}

/// A new terminal's two ends.
fn open((ws_row, ws_col): Size) -> Result<(File, File)> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&master).and_then(|()| unlockpt(&master))?;
    let name = ptsname(&master, Vec::new())?.into_string()?;
    tcsetwinsize(&master, Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 })?;
    let slave = File::options().read(true).write(true).open(name)?;
    Ok((master.into(), slave))
}

/// The command as the leader of a session on this terminal.
fn on(slave: &File, command: &Command) -> Result<Command> {
    let mut leader = Command::new("setsid");
    leader.arg("--ctty").arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        leader.env(name, value.unwrap_or_default());
    }
    leader.env("TERM", "xterm-256color").env("LC_ALL", "C.UTF-8");
    if let Some(folder) = command.get_current_dir() {
        leader.current_dir(folder);
    }
    let stdio = || slave.try_clone().map(Stdio::from);
    leader.stdin(stdio()?).stdout(stdio()?).stderr(stdio()?);
    Ok(leader)
}

/// What is written to the terminal, until no process has it open.
fn read(mut master: File) -> Receiver<Vec<u8>> {
    let (sender, written) = channel();
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(n @ 1..) = master.read(&mut bytes)
            && sender.send(bytes[..n].to_vec()).is_ok()
        {}
    });
    written
}

/// Shows what is written, until the command has ended, or the keys are to be pressed.
fn follow(
    written: &Receiver<Vec<u8>>,
    parser: &mut vt100::Parser,
    end: Option<&Keys>,
) -> Result<vt100::Screen> {
    let begun = Instant::now();
    loop {
        let is_due = end.is_some_and(|end| (end.when)(&parser.screen().contents()));
        let patience = PATIENCE.saturating_sub(begun.elapsed());
        match written.recv_timeout(if is_due { WHOLE } else { patience }) {
            Ok(bytes) => parser.process(&bytes),
            Err(RecvTimeoutError::Timeout) if is_due => return Ok(parser.screen().clone()),
            Err(RecvTimeoutError::Disconnected) if end.is_none() => return Ok(parser.screen().clone()),
            Err(error) => bail!("the command {error}, on its screen:\n{}", parser.screen().contents()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Keys, run};
    use std::process::Command;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_command_that_ends_is_shown_as_it_left_the_screen() {
        let screen = run(&shell("stty size; echo a; printf '\\033[31mred\\033[m'"), (5, 40), None);
        let screen = screen.expect("it ends well");
        assert_eq!(screen.contents(), "5 40\na\nred");
        assert_eq!(screen.cell(2, 0).expect("there").fgcolor(), vt100::Color::Idx(1));
        let error = run(&shell("echo why; exit 3"), (5, 40), None).expect_err("it fails");
        assert!(format!("{error:#}").contains("why"), "{error:#}");
    }

    #[test]
    fn keys_are_pressed_once_the_screen_is_whole() {
        let script = "stty -echo; echo one; read a; echo \"[$a]\"; read b; echo bye";
        let keys = Keys { keys: "x\ny\n", when: |text| text.contains("one") };
        let screen = run(&shell(script), (5, 40), Some(&keys)).expect("it ends well");
        assert_eq!(screen.contents(), "one");
        let never = Keys { keys: "", when: |_| false };
        assert!(run(&shell("echo one"), (5, 40), Some(&never)).is_err(), "it ended before");
    }
}
