//! A running victim, and its protocol: `ready`, `run N`, a line of `name=value` pairs.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Longest wait for any answer. A victim that is silent for longer is stuck.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a victim printed about one run.
pub type Printed = BTreeMap<String, u64>;

/// A child process that is killed when dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Running {
    /// Starts a victim and waits until it is ready.
    ///
    /// # Panics
    /// If it does not start, or prints something else.
    #[must_use]
    pub fn start(path: &Path, args: &[&str]) -> Self {
        let mut command = Command::new(path);
        command.args(args);
        let running = Self::spawn(command);
        assert_eq!(running.line(), "ready", "{}", path.display());
        running
    }

    /// Starts any command, with pipes for its standard input and output.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn spawn(mut command: Command) -> Self {
        let name = command.get_program().to_owned();
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let begun = Instant::now();
        let mut child = loop {
            match command.spawn() {
                Ok(child) => break child,
                // The file was just written, and a child that another thread made meanwhile has it open until its exec.
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy && begun.elapsed() < PATIENCE => {
                    std::thread::yield_now();
                }
                Err(error) => panic!("{name:?}: {error}"),
            }
        };
        let stdin = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { child, stdin, lines }
    }

    /// PID of the process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends one line, by one write.
    ///
    /// # Panics
    /// If the process no longer reads.
    pub fn send(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("not yet closed");
        let line = format!("{line}\n");
        stdin.write_all(line.as_bytes()).expect("the victim reads its standard input");
    }

    /// The next line that it prints.
    ///
    /// # Panics
    /// If there is none in time, or the process ended; the message says how.
    #[must_use]
    pub fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).unwrap_or_else(|error| {
            let pid = self.pid();
            let state = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let state: String =
                state.lines().filter(|l| l.starts_with("State") || l.starts_with("Sig")).collect();
            panic!("victim {pid} says nothing more ({error}); {state}")
        })
    }

    /// The next line if it was printed already.
    #[must_use]
    pub fn output_text(&self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    /// Sends `run times`, and returns what the victim prints about it.
    ///
    /// # Panics
    /// See [`Running::line`].
    pub fn run(&mut self, times: u64) -> Printed {
        self.begin(times);
        self.reported()
    }

    /// Runs again and again until what the victim prints is enough. A thread gets few turns on a busy machine.
    ///
    /// # Panics
    /// If that takes too long; see also [`Running::line`].
    pub fn run_until(&mut self, times: u64, is_enough: impl Fn(&Printed) -> bool) -> Printed {
        let begun = Instant::now();
        loop {
            let reported = self.run(times);
            if is_enough(&reported) {
                return reported;
            }
            assert!(begun.elapsed() < PATIENCE, "it makes no progress: {reported:?}");
        }
    }

    /// Sends `run times` without waiting.
    ///
    /// See [`Running::send`].
    pub fn begin(&mut self, times: u64) {
        self.send(&format!("run {times}"));
    }

    /// Waits for the line at the end of a run that `begin` started.
    ///
    /// # Panics
    /// See [`Running::line`].
    #[must_use]
    pub fn reported(&self) -> Printed {
        let line = self.line();
        line.split_whitespace()
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.parse().unwrap_or_else(|_| panic!("{line}"))))
            .collect()
    }

    /// Whether it still runs.
    pub fn alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Closes its input and waits for its end.
    ///
    /// # Panics
    /// If it does not end in time.
    pub fn finish(&mut self) -> ExitStatus {
        drop(self.stdin.take());
        let begun = Instant::now();
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "victim {} does not end", self.pid());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Killed first: at the end of its input it would exit by itself. It was started here and is not yet
        // reaped, so the PID cannot belong to another process.
        self.child.kill().ok();
        drop(self.stdin.take());
        self.child.wait().ok();
    }
}
