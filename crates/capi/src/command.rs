//! A run of the command `trapline`, whose JSON objects are read one by one.
//!
//! In: the command's words, as typed. Out: a value for each object that it writes, then how it ended. Invariants: CAP-4:
//! the pipe ends when the command does, whatever it launched; if the caller dies, the command detaches. Steps and other
//! processes: `docs/design/c-abi.md`. Does not: know what the words or the objects mean.
//!
//! Why a process and not code in this library: a tracer's death must not be the caller's, the kernel ties a tracer to
//! one thread, and `wait` for any child would take the tracer's events. The Python package does the same, for the same
//! reasons (`docs/design/python.md`).
#![allow(unsafe_code, reason = "the pipe is handed to the command between fork and exec")]

use std::ffi::{OsStr, OsString, c_char};
use std::fs::File;
use std::io::{ErrorKind, Read as _, Seek as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;
use rustix::io::{FdFlags, fcntl_dupfd_cloexec};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::error::{Error, Fault};
use crate::pointers::Growing;
use crate::value::Value;

/// The words launch a program (`--`, or `-c` of `run`). It keeps the standard streams, and the command ends with the
/// program's status.
pub const TRAPLINE_COMMAND_LAUNCHES: u32 = 1;

/// What the command is to do.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CommandOptions {
    /// sizeof; set by the caller.
    pub size: usize,
    /// Path of the command; null: what the environment's TRAPLINE names, else `trapline` in PATH.
    pub program: *const c_char,
    /// A verb that writes JSON, and its words: "trace", "-p", "4711", "libc:getenv(str name) -> str". The options
    /// `--json` and `-o` are added.
    pub words: *const *const c_char,
    /// Number of words.
    pub words_len: usize,
    /// TRAPLINE_COMMAND_LAUNCHES.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

impl Growing for CommandOptions {
    const NAME: &'static str = "trapline_command_options";
    const FIRST: usize = 40;
}

impl CommandOptions {
    /// Fails if it asks for what this version does not know.
    pub(crate) fn check_flags(&self) -> Result<(), Fault> {
        if self.flags & !TRAPLINE_COMMAND_LAUNCHES != 0 || self.reserved != 0 {
            let unknown = format!("flags {:#x}, reserved {:#x}", self.flags, self.reserved);
            return Err(Fault::new(
                Error::UnknownFlag,
                format!("trapline_command_options: unknown {unknown}"),
            ));
        }
        Ok(())
    }
    pub(crate) const fn launches(&self) -> bool {
        self.flags & TRAPLINE_COMMAND_LAUNCHES != 0
    }
}

/// A running command. To stop it takes no lock, since a signal's handler may do that while another call goes on.
#[derive(Debug)]
pub struct Command {
    /// Signals go to this very process, also after somebody else has waited for it.
    process: OwnedFd,
    run: Mutex<Run>,
}

/// What it writes, and how it ends.
#[derive(Debug)]
pub(crate) struct Run {
    child: Child,
    objects: File,
    /// What was read last: up to `taken` it was handed out, and from there to `looked` no line ends.
    held: Vec<u8>,
    taken: usize,
    looked: usize,
    /// There is nothing more to read.
    is_over: bool,
    /// An object came that is no error.
    had_any: bool,
    /// What it says on standard error; with a launched program that is the caller's own.
    said: Option<File>,
    /// The object that was handed out last.
    last: Option<Value>,
    /// The message of an `error` object.
    failed: Option<String>,
}

/// Bytes that are read at once.
const AT_ONCE: usize = 1 << 16;

/// The words with `--json` (`-f json` for scripts) and the output behind the verb.
fn words_of(words: &[OsString], output: i32) -> Result<Vec<OsString>, Fault> {
    let Some((verb, rest)) = words.split_first() else {
        return Err(Fault::new(Error::Usage, "trapline_command_options: there is no verb"));
    };
    let form: &[&str] = if verb == "run" { &["-f", "json"] } else { &["--json"] };
    let mut all = vec![verb.clone()];
    all.extend(form.iter().map(OsString::from));
    all.extend(["-o".into(), format!("/proc/self/fd/{output}").into()]);
    all.extend_from_slice(rest);
    Ok(all)
}

/// Where the command is.
fn program_of(named: Option<&OsStr>) -> OsString {
    let environment = || std::env::var_os("TRAPLINE").filter(|path| !path.is_empty());
    named.map(ToOwned::to_owned).or_else(environment).unwrap_or_else(|| "trapline".into())
}

fn system(what: &'static str) -> impl Fn(std::io::Error) -> Fault {
    move |error| Fault::new(Error::NoCommand, format!("{what}: {error}"))
}

impl Command {
    /// Starts the command.
    pub(crate) fn start(program: Option<&OsStr>, words: &[OsString], launches: bool) -> Result<Self, Fault> {
        let pipe = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
        // A caller may have closed its standard streams; the command gets others in their place.
        let pipe = pipe.and_then(|(objects, writing)| Ok((objects, fcntl_dupfd_cloexec(writing, 3)?)));
        let (objects, writing) = pipe.map_err(|error| system("a pipe")(error.into()))?;
        let program = program_of(program);
        let mut command = std::process::Command::new(&program);
        command.args(words_of(words, writing.as_raw_fd())?);
        let mut said = None;
        if !launches {
            let file = rustix::fs::memfd_create("trapline", MemfdFlags::CLOEXEC);
            let file = File::from(file.map_err(|error| system("memory for messages")(error.into()))?);
            let other = file.try_clone().map_err(system("memory for messages"))?;
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(other);
            said = Some(file);
        }
        // The closure owns the pipe's end: it is closed here once the command has been dropped.
        let hand_over = move || Ok(rustix::io::fcntl_setfd(&writing, FdFlags::empty())?);
        // SAFETY: between fork and exec it makes one system call, and neither allocates nor locks.
        let mut child = unsafe { command.pre_exec(hand_over) }.spawn().map_err(|error| {
            let remedy =
                "install it, or name it in trapline_command_options or in the environment's TRAPLINE";
            Fault::new(Error::NoCommand, format!("{}: {error}; {remedy}", program.display()))
        })?;
        drop(command);
        let process = Pid::from_raw(child.id().cast_signed())
            .ok_or(rustix::io::Errno::SRCH)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
        let process = process.map_err(|error| {
            // It has not been handed out, so nobody else could end it.
            drop(child.kill().and_then(|()| child.wait()));
            system("a descriptor of the command")(error.into())
        })?;
        Ok(Self { process, run: Mutex::new(Run::new(child, File::from(objects), said)) })
    }
    /// Asks the command to detach and to write what is left.
    pub(crate) fn stop(&self) {
        // It may have ended by itself; then there is nothing to ask.
        let _ = pidfd_send_signal(self.process.as_fd(), Signal::TERM);
    }
    /// For one call. A panic in another one has left a whole `Run`.
    pub(crate) fn run(&self) -> MutexGuard<'_, Run> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Ends the run, and waits for that. Exit status of the command; 128 and the signal, if it was killed.
    pub(crate) fn end(self) -> (i32, Option<Fault>) {
        if !self.run().is_over {
            self.stop();
        }
        self.run.into_inner().unwrap_or_else(PoisonError::into_inner).end()
    }
}

impl Run {
    const fn new(child: Child, objects: File, said: Option<File>) -> Self {
        Self {
            child,
            objects,
            held: Vec::new(),
            taken: 0,
            looked: 0,
            is_over: false,
            had_any: false,
            said,
            last: None,
            failed: None,
        }
    }
    /// The next object, when it has come; nothing when there is none any more.
    pub(crate) fn next(&mut self) -> Result<Option<&Value>, Fault> {
        self.last = None;
        while !self.has_line() {
            self.read()?;
        }
        if self.looked == self.held.len() {
            // What has no end of a line was cut off by the command's death.
            return Ok(None);
        }
        let line = &self.held[std::mem::replace(&mut self.taken, self.looked + 1)..self.looked];
        self.looked = self.taken;
        let object: serde_json::Value = serde_json::from_slice(line).map_err(|error| {
            let text = String::from_utf8_lossy(line);
            Fault::new(Error::Other, format!("the command wrote no JSON: {error}: {text:.200}"))
        })?;
        match object["type"] == "error" {
            true => self.failed = Some(object["message"].as_str().unwrap_or_default().to_owned()),
            false => self.had_any = true,
        }
        Ok(Some(self.last.insert(object.into())))
    }
    /// Whether [`Self::next`] would not wait. Waits for so many milliseconds at most; without an end if it is negative.
    pub(crate) fn is_ready(&mut self, milliseconds: i32) -> Result<bool, Fault> {
        let limit = u64::try_from(milliseconds).ok().map(Duration::from_millis);
        let end = limit.map(|limit| Instant::now() + limit);
        while !self.has_line() {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let left = left.map(|left| Timespec::try_from(left).unwrap_or_default());
            let mut one = [PollFd::new(&self.objects, PollFlags::IN)];
            match poll(&mut one, left.as_ref()) {
                Ok(0) => return Ok(false),
                Ok(_) => self.read()?,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(system("waiting for the command")(error.into())),
            }
        }
        Ok(true)
    }
    /// Reads to the end, and waits for the process.
    fn end(mut self) -> (i32, Option<Fault>) {
        // What is left is thrown away, but for the reason of a failure. A pipe that cannot be read is over.
        while !matches!(self.next(), Ok(None)) {}
        match self.child.wait() {
            Ok(status) => (number_of(status), self.fault(status)),
            Err(error) => {
                let text =
                    format!("how the command ended is unknown, since something else waited for it: {error}");
                (-1, Some(Fault::new(Error::Other, text)))
            }
        }
    }
    /// Why it failed, if it did. A number that a launched program may have ended with is that program's. A signal is not:
    /// the command ends with a number, whatever ended the program.
    fn fault(&mut self, status: ExitStatus) -> Option<Fault> {
        let launched = self.said.is_none() && self.had_any && self.failed.is_none();
        let number = number_of(status);
        if number == 0 || launched && status.code().is_some() {
            return None;
        }
        let error = match number {
            2 => Error::Usage,
            3 => Error::NothingProbed,
            _ => Error::Failed,
        };
        let text = self.failed.take().unwrap_or_else(|| self.messages());
        let text = text.strip_prefix("trapline: ").unwrap_or(&text);
        Some(Fault::new(error, if text.is_empty() { "it said nothing" } else { text }))
    }
    fn messages(&mut self) -> String {
        let Some(said) = &mut self.said else { return "what it said is on standard error".to_owned() };
        let mut bytes = Vec::new();
        // Messages that cannot be read leave the status, which is told in any case.
        drop(said.rewind().and_then(|()| said.read_to_end(&mut bytes)));
        String::from_utf8_lossy(&bytes).trim().to_owned()
    }
    /// Whether a whole line is there, up to `looked`, or the end.
    fn has_line(&mut self) -> bool {
        if let Some(at) = self.held[self.looked..].iter().position(|byte| *byte == b'\n') {
            self.looked += at;
            return true;
        }
        self.looked = self.held.len();
        self.is_over
    }
    /// Reads once; waits if there is nothing.
    fn read(&mut self) -> Result<(), Fault> {
        self.held.drain(..std::mem::take(&mut self.taken));
        let before = self.held.len();
        self.looked = before;
        self.held.resize(before + AT_ONCE, 0);
        let got = self.objects.read(&mut self.held[before..]);
        self.held.truncate(before + *got.as_ref().unwrap_or(&0));
        match got {
            Ok(0) => self.is_over = true,
            Err(error) if error.kind() != ErrorKind::Interrupted => {
                self.is_over = true;
                return Err(system("reading objects")(error));
            }
            _ => {}
        }
        Ok(())
    }
}

/// As a shell has it.
fn number_of(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}
