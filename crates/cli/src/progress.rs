//! One line on the terminal that says how far long work is. It is overwritten, and erased in the end.
//!
//! In: steps, from a session that begins. Out: nothing for a second; then the present step, on standard error if that is
//! a terminal. Invariants: PROG-1 when a [`ProgressLine`] is dropped, and before a launched command runs, the line is
//! gone and its thread writes no more. Does not: show anything with `-q`. It has to be dropped before signals are caught
//! (READY-2), or begun after that.

use std::io::{self, IsTerminal as _, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use trapline::Builder;
use trapline::progress::Step;

use crate::report::number::grouped;
use crate::report::visible;
use crate::top::screen::is_dumb;

/// Work that takes less is not worth a line.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often the line is drawn anew.
const AGAIN: Duration = Duration::from_millis(100);
/// Back to the begin of the line, and what stands there is erased.
const ERASE: &str = "\r\x1b[K";

/// The line; nothing where there is no terminal.
#[derive(Debug, Default)]
pub(crate) struct ProgressLine(Option<(Arc<Shared>, JoinHandle<()>)>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// What is done as a whole.
    whole: String,
    /// What is read for it just now.
    reading: String,
    /// What stands on the terminal.
    shown: String,
    has_ended: bool,
}

impl ProgressLine {
    /// Begins, unless the user wants to see nothing.
    pub(crate) fn begin(quiet: bool) -> Self {
        if quiet || is_dumb() || !io::stderr().is_terminal() {
            return Self::default();
        }
        Self::on(io::stderr(), PATIENCE)
    }
    /// Begins on an output, which shows nothing for a while.
    fn on(mut output: impl Write + Send + 'static, patience: Duration) -> Self {
        let shared = Arc::new(Shared::default());
        let drawn = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("progress".to_owned());
        let thread = thread.spawn(move || drawn.draw(&mut output, patience));
        Self(thread.ok().map(|thread| (shared, thread)))
    }
    /// A builder that says its steps here.
    pub(crate) fn of(&self, builder: Builder) -> Builder {
        let Some((shared, _)) = &self.0 else { return builder };
        let shared = Arc::clone(shared);
        builder.on_progress(move |step| shared.step(step))
    }
    /// Shows a text. Returns whether there is a line for it.
    pub(crate) fn say(&self, text: String) -> bool {
        self.0.iter().for_each(|(shared, _)| shared.state().whole.clone_from(&text));
        self.0.is_some()
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if let Some((shared, thread)) = self.0.take() {
            shared.end();
            drop(thread.join());
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn step(&self, step: Step<'_>) {
        let name = |file: &str| file.rsplit('/').next().unwrap_or_default().to_owned();
        match step {
            Step::Attaching { done, of } => self.state().whole = attaching(done, of),
            Step::Planning { functions } => {
                self.state().whole = format!("planning {} functions", grouped(functions as u64));
            }
            Step::Symbols { file } => self.state().reading = format!("reading symbols of {}", name(file)),
            Step::DebugInformation { file } => {
                self.state().reading = format!("reading debug information of {}", name(file));
            }
            Step::Read => self.state().reading.clear(),
            Step::Released => self.end(),
        }
    }
    /// Ends the drawing, and waits until the line is erased.
    fn end(&self) {
        let mut state = self.state();
        state.has_ended = true;
        self.ended.notify_all();
        drop(self.ended.wait_while(state, |state| !state.shown.is_empty()));
    }
    /// Draws until the end.
    fn draw(&self, output: &mut impl Write, patience: Duration) {
        let mut state = self.state();
        let mut wait = patience;
        while !state.has_ended {
            let waited = self.ended.wait_timeout_while(state, wait, |state| !state.has_ended);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            wait = AGAIN;
            let text = if state.reading.is_empty() { &state.whole } else { &state.reading };
            if !state.has_ended && !text.is_empty() && *text != state.shown {
                let text = text.clone();
                // A terminal that is gone shows nothing.
                drop(write!(output, "{ERASE}{}", fitting(&text)).and_then(|()| output.flush()));
                state.shown = text;
            }
        }
        if !state.shown.is_empty() {
            drop(write!(output, "{ERASE}").and_then(|()| output.flush()));
            state.shown.clear();
        }
        self.ended.notify_all();
    }
}

fn attaching(done: usize, of: usize) -> String {
    match of {
        1 => "attaching to 1 process".to_owned(),
        of => format!("attaching: {} of {} processes", grouped(done as u64), grouped(of as u64)),
    }
}

/// The line, cut to the width of the terminal: a longer one could not be erased.
fn fitting(text: &str) -> String {
    let columns = rustix::termios::tcgetwinsize(io::stderr()).map_or(80, |size| usize::from(size.ws_col));
    let most = if columns > 1 { columns - 1 } else { 79 };
    visible::lines(&format!("trapline: {text}")).chars().take(most).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use trapline::progress::Step;

    use super::{ERASE, ProgressLine, attaching};

    /// Sends on what is written.
    struct Written(Sender<String>);

    impl Write for Written {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            self.0.send(String::from_utf8_lossy(text).into_owned()).map_err(io::Error::other)?;
            Ok(text.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What is written while steps are taken, each after the text of the one before was seen.
    fn written(patience: Duration, steps: &[(Step<'_>, &str)]) -> String {
        let (to, from) = channel();
        let line = ProgressLine::on(Written(to), patience);
        let mut all = String::new();
        for (step, text) in steps {
            line.0.as_ref().expect("a thread").0.step(*step);
            while !all.ends_with(text) {
                all.push_str(&from.recv().expect("something is drawn"));
            }
        }
        drop(line);
        all.extend(from.iter());
        all
    }

    #[test]
    fn steps_overwrite_each_other_and_are_erased() {
        let seen = written(
            Duration::ZERO,
            &[
                (Step::Attaching { done: 312, of: 1000 }, "attaching: 312 of 1,000 processes"),
                (Step::DebugInformation { file: "/usr/lib/cc1plus" }, "reading debug information of cc1plus"),
                (Step::Read, "attaching: 312 of 1,000 processes"),
            ],
        );
        assert_eq!(seen.matches(ERASE).count(), 4, "{seen:?}");
        assert!(seen.ends_with(ERASE) && !seen.contains('\n'), "{seen:?}");
    }

    #[test]
    fn short_work_shows_nothing() {
        let hour = Duration::from_secs(3600);
        assert_eq!(written(hour, &[(Step::Attaching { done: 0, of: 2 }, "")]), "");
    }

    #[test]
    fn a_command_that_is_released_has_the_terminal_for_itself() {
        let step = Step::Attaching { done: 0, of: 1 };
        let seen = written(Duration::ZERO, &[(step, "1 process"), (Step::Released, ERASE), (step, "")]);
        assert!(seen.ends_with(&format!("{}{ERASE}", attaching(0, 1))), "{seen:?}");
    }
}
