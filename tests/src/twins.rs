//! A process with our tracer beside it, and its twin with the kernel's, at the same time and with the same script.
//!
//! In: a script's name, a way to start a process, the lines that both get. Out: what both tracers wrote. Does not:
//! judge; tests compare with what the process says, and the two tracers with each other.

use std::any::Any;
use std::path::Path;
use std::process::Command;

use crate::programs;
use crate::running::{Printed, Running};
use crate::scripts::{Copies, Ran, Tracer, bpftrace};

/// A process that answers lines, the process that is traced, and what both need.
#[derive(Debug)]
pub struct Started {
    /// It gets lines, and answers them.
    pub running: Running,
    /// It is traced.
    pub pid: u32,
    /// Dropped last.
    pub kept: Vec<Box<dyn Any>>,
}

impl From<Running> for Started {
    fn from(running: Running) -> Self {
        Self { pid: running.pid(), running, kept: Vec::new() }
    }
}

/// A process with our tracer beside it; and its twin with the kernel's, where that runs.
#[derive(Debug)]
pub struct Both {
    ours: (Tracer, Started),
    theirs: Option<(Tracer, Started, Copies)>,
}

impl Both {
    /// Starts both. `start` gets the twin's copies. `words` are the script's parameters; a name of `files` among them
    /// stands for the file.
    ///
    /// # Panics
    /// If anything does not start.
    #[must_use]
    pub fn start<S: Into<Started>>(
        name: &str,
        words: &[&str],
        files: &[(&str, &str)],
        start: impl Fn(Option<&Copies>) -> S,
    ) -> Self {
        let original = |word: &&str| {
            let file = files.iter().find(|(name, _)| name == word);
            file.map_or(*word, |(_, path)| *path).to_owned()
        };
        let mut both = Self::alone(name, &words.iter().map(original).collect::<Vec<_>>(), start(None));
        both.theirs = bpftrace().ok().map(|()| {
            let copies = Copies::of(files);
            let copied =
                |word: &&str| copies.get(word).map_or((*word).to_owned(), |path| path.display().to_string());
            let started = start(Some(&copies)).into();
            let words: Vec<String> = words.iter().map(copied).collect();
            let tracer = Tracer::kernels(name, started.pid, &words, &copies);
            (tracer, started, copies)
        });
        both
    }
    /// One process with our tracer alone.
    ///
    /// # Panics
    /// If it does not attach.
    #[must_use]
    pub fn alone(name: &str, words: &[String], started: impl Into<Started>) -> Self {
        let started = started.into();
        Self { ours: (Tracer::ours(name, started.pid, words), started), theirs: None }
    }
    /// Two of Debian's Python, which run the lines that they get; this one first.
    ///
    /// # Errors
    /// It is not installed.
    pub fn python(name: &str, words: &[&str], files: &[(&str, &str)], first: &str) -> Result<Self, String> {
        let python = programs::python()?;
        Ok(Self::start(name, words, files, |copies| {
            let copy = copies.and_then(|copies| copies.get("/usr/bin/python3.11"));
            let mut command = Command::new(copy.unwrap_or(&python));
            command.env("PYTHONHASHSEED", "0").env("PYTHONHOME", "/usr");
            interpreter(command, copies, "lines.py", first)
        }))
    }
    /// Sends both a line, and gives what each prints up to `done`.
    ///
    /// # Panics
    /// If one does not answer.
    pub fn run(&mut self, line: &str) -> Vec<Vec<String>> {
        let mut all = self.processes();
        all.iter_mut().for_each(|running| running.send(line));
        let printed = |running: &&mut Running| {
            std::iter::repeat_with(|| running.line()).take_while(|line| line != "done").collect()
        };
        all.iter().map(printed).collect()
    }
    fn processes(&mut self) -> Vec<&mut Running> {
        let theirs = self.theirs.as_mut().map(|theirs| &mut theirs.1.running);
        std::iter::once(&mut self.ours.1.running).chain(theirs).collect()
    }
    /// Has both victims run so often, and gives what ours printed.
    ///
    /// # Panics
    /// If one does not answer.
    pub fn victims(&mut self, times: u64) -> Printed {
        let mut all = self.processes();
        all.iter_mut().for_each(|running| running.begin(times));
        let mut printed: Vec<Printed> = all.iter().map(|running| running.reported()).collect();
        printed.swap_remove(0)
    }
    /// What our process needs, by its type.
    #[must_use]
    pub fn kept<T: 'static>(&self) -> Option<&T> {
        self.ours.1.kept.iter().find_map(|kept| kept.downcast_ref())
    }
    /// The PID of ours.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.ours.1.pid
    }
    /// Ends both tracers, and then both processes.
    #[must_use]
    pub fn stop(self) -> Twice {
        let ours = self.ours.0.stop();
        let theirs = self.theirs.map(|(tracer, _started, _copies)| tracer.stop());
        Twice { ours, theirs }
    }
}

/// Starts an interpreter with a driver of `victims`, which runs the lines that it gets; this one first.
///
/// # Panics
/// If it does not answer.
#[must_use]
pub fn interpreter(mut command: Command, copies: Option<&Copies>, driver: &str, first: &str) -> Running {
    if let Some(copies) = copies {
        command.env("LD_LIBRARY_PATH", copies.folder());
    }
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("victims").join(driver));
    let mut running = Running::spawn(command);
    assert_eq!(running.line(), "ready");
    running.send(first);
    assert_eq!(running.line(), "done");
    running
}

/// What both tracers wrote.
#[derive(Debug)]
pub struct Twice {
    /// Ours.
    pub ours: Ran,
    theirs: Option<Ran>,
}

impl Twice {
    /// Asserts that both wrote the same, as far as this looks at it.
    ///
    /// # Errors
    /// bpftrace does not run here.
    ///
    /// # Panics
    /// If they did not.
    pub fn equal<T: PartialEq + std::fmt::Debug>(&self, seen: impl Fn(&Ran) -> T) -> Result<(), String> {
        let theirs = self.theirs.as_ref().ok_or("the kernel's bpftrace does not run here")?;
        assert_eq!(seen(&self.ours), seen(theirs), "ours; the kernel's: {}", theirs.messages);
        Ok(())
    }
    /// Asserts that all maps are equal.
    ///
    /// # Errors
    /// bpftrace does not run here.
    pub fn equal_maps(&self) -> Result<(), String> {
        self.equal(|ran| ran.maps.clone())
    }
}
