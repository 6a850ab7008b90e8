//! Starting a command so that it can be probed before its first own instruction.
//!
//! Input: a command. Output: a child parked at its entry point. Invariants: TGT-9 the launcher traces the
//! command only until it is parked. Does not: probe.

use std::io;
use std::process::{Child, Command, ExitStatus};

use crate::park::{Parked, in_own_thread, wait_stop};
use crate::permission;
use crate::sys::{ptrace, wait};

/// A command that we started.
#[derive(Debug)]
pub struct Launched {
    child: Child,
}

impl Launched {
    /// Starts a command and parks it at its program's entry point. Returns `None` if it ended before, as a
    /// program does that lacks a library.
    ///
    /// # Errors
    /// When starting it would fail without tracing too, or when it is not a program for this machine.
    pub fn start(mut command: Command) -> io::Result<(Self, Option<Parked>)> {
        permission::check_command(&command)?;
        in_own_thread(move || {
            let mut launched = Self { child: ptrace::start_traced(&mut command)? };
            match park(launched.pid()) {
                Ok(parked) => Ok((launched, parked)),
                Err(error) => {
                    // It has run nothing of its own yet, so it is ended rather than left stopped.
                    launched.kill();
                    Err(error)
                }
            }
        })
    }
    /// Starts a command that cannot be held ([`crate::why_not_held`]); it runs at once.
    ///
    /// # Errors
    /// When the command cannot be started.
    pub fn unheld(mut command: Command) -> io::Result<Self> {
        Ok(Self { child: ptrace::start_untraced(&mut command)? })
    }
    /// Its pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
    /// Ends it, for a launcher that could not do its work.
    pub fn kill(&mut self) {
        // It may have ended by itself; then there is nothing to do.
        drop(self.child.kill());
        drop(self.child.wait());
    }
    /// Its exit status, if it has ended.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        // waitpid would take ptrace stops from a thread of ours that follows it. So the end alone is looked
        // for first.
        if wait::ended(self.pid())? { self.child.try_wait() } else { Ok(None) }
    }
}

fn park(pid: u32) -> io::Result<Option<Parked>> {
    wait_stop(pid)?;
    ptrace::set_options(pid, libc::PTRACE_O_EXITKILL)?;
    Parked::from_exec(pid, &|| true)
}

#[cfg(test)]
mod tests {
    use super::Launched;
    use std::process::{Command, Stdio};

    #[test]
    fn a_command_is_parked_with_its_libraries_and_runs_on_unharmed() {
        let mut command = Command::new("/bin/echo");
        command.arg("hello").stdout(Stdio::piped());
        let (mut launched, parked) = Launched::start(command).expect("echo starts");
        let parked = parked.expect("it gets to its entry point");
        assert_eq!(parked.pid(), launched.pid());
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", parked.pid())).expect("it runs");
        assert!(maps.contains("libc.so"), "libraries are not mapped yet:\n{maps}");
        let status = std::fs::read_to_string(format!("/proc/{}/status", parked.pid())).expect("it runs");
        assert!(status.contains("TracerPid:\t0"), "still traced");
        assert_eq!(launched.try_wait().expect("it is ours"), None);
        parked.release().expect("it can be let go");
        let mut output = String::new();
        let mut out = launched.child.stdout.take().expect("it is piped");
        std::io::Read::read_to_string(&mut out, &mut output).expect("it is text");
        assert_eq!(output, "hello\n");
        assert!(launched.child.wait().expect("it is ours").success());
    }

    /// If it were given to the C library, a shell would run it.
    #[test]
    fn a_program_for_another_machine_is_named() {
        let path = std::env::temp_dir().join(format!("trapline-foreign-{}", std::process::id()));
        for (class, data, machine, what) in [
            (2, 2, [0, 183], "a big-endian program"),
            (1, 1, [40, 0], "a 32-bit (AArch32) program"),
            (2, 1, [243, 0], "a foreign (ELF machine 243) program"),
        ] {
            let mut file = [0; 64];
            file[..7].copy_from_slice(&[0x7F, b'E', b'L', b'F', class, data, 1]);
            file[18..20].copy_from_slice(&machine);
            std::fs::write(&path, file).expect("a temporary file");
            let runs = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(&path, runs).expect("ours");
            let error =
                Launched::start(Command::new(&path)).expect_err("it is not for this machine").to_string();
            assert!(error.contains(what) && error.contains("trapline-foreign"), "{error}");
        }
        std::fs::remove_file(&path).expect("ours");
    }

    /// As a program does that lacks a library.
    #[test]
    fn one_that_ends_before_its_entry_point_keeps_its_status() {
        let mut command = Command::new("/bin/true");
        command.env("LD_TRACE_LOADED_OBJECTS", "1").stdout(Stdio::null());
        let (mut launched, parked) = Launched::start(command).expect("it starts");
        assert_eq!(parked, None, "the loader lists the libraries and ends");
        let status = launched.child.wait().expect("it is ours");
        assert_eq!(status.code(), Some(0));
    }

    #[test]
    fn what_cannot_be_started_is_an_error() {
        let error = Launched::start(Command::new("/nonexistent/program")).expect_err("there is none");
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    }
}
