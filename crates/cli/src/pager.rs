//! A long text on a terminal goes through a pager.
//!
//! In: a text, whole or in parts, and what the user says about pagers (`--no-pager`, `TRAPLINE_PAGER`, `PAGER`). Out:
//! whether a pager showed it. A pager that is left early has shown it. Invariant: PAGER-1 what is no terminal, and what fits on the screen, gets
//! no pager. Does not: print by itself where there is no pager.

use std::io::{self, Write as _};
use std::process::{Child, Command, Stdio};

use trapline::Interrupts;

use crate::args::ready::words::split_words;
use crate::output::Output;
use crate::top::screen::is_dumb;

/// The pager of those who chose none. It ends by itself if the text fits, shows colours, and leaves the text there.
const DEFAULT: &str = "less -FRX";

/// Shows a text by a pager, unless it fits on the terminal or there is no pager. Returns whether it was shown.
pub(crate) fn show(text: &[u8]) -> bool {
    if !Output::Stdout.size().is_some_and(|size| is_long(text, size)) {
        return false;
    }
    chosen().is_some_and(|mut pager| {
        // A pager that was left early reads no more.
        drop(pager.write(text));
        pager.wait()
    })
}

/// A text on the terminal that comes in parts. What there is of it waits until it is longer than the screen.
#[derive(Debug)]
pub(crate) enum Pages {
    /// It still fits on a screen of this many rows and columns.
    Held(Vec<u8>, (usize, usize)),
    /// A pager shows it.
    Shown(Pager),
    /// Nothing stands between it and standard output.
    Plain,
}

impl Pages {
    /// A text that a pager may show.
    pub(crate) fn new() -> Self {
        Output::Stdout.size().map_or(Self::Plain, |size| Self::Held(Vec::new(), size))
    }
    /// Takes a part. An error of kind `BrokenPipe` says that the user left the pager.
    pub(crate) fn write(&mut self, part: &[u8]) -> io::Result<()> {
        match self {
            Self::Held(held, size) => {
                held.extend_from_slice(part);
                if !is_long(held, *size) {
                    return Ok(());
                }
                let held = std::mem::take(held);
                *self = chosen().map_or(Self::Plain, Self::Shown);
                self.write(&held)
            }
            Self::Shown(pager) => pager.write(part),
            Self::Plain => plain(part),
        }
    }
    /// Ends the text: prints what fits on the screen, or waits until the user leaves the pager.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        match std::mem::replace(self, Self::Plain) {
            Self::Held(held, _) => plain(&held),
            Self::Shown(mut pager) => {
                pager.wait();
                Ok(())
            }
            Self::Plain => Ok(()),
        }
    }
}

fn plain(text: &[u8]) -> io::Result<()> {
    let mut to = io::stdout().lock();
    to.write_all(text)?;
    to.flush()
}

/// The user's pager, started; `None` if there is none.
fn chosen() -> Option<Pager> {
    let variable = |name| std::env::var(name).ok();
    start(&program(&[variable("TRAPLINE_PAGER"), variable("PAGER")], is_dumb())?)
}

/// Whether a text needs more than the terminal, of which the last row is the shell's.
fn is_long(text: &[u8], (rows, columns): (usize, usize)) -> bool {
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    let height =
        |line: &[u8]| String::from_utf8_lossy(line).trim_end().chars().count().div_ceil(columns).max(1);
    lines.map(height).sum::<usize>() >= rows
}

/// The pager: the first choice that was made. An empty one and `cat` mean none; so does a terminal that cannot scroll.
fn program(choices: &[Option<String>], is_dumb: bool) -> Option<String> {
    let chosen = choices.iter().flatten().next().map_or(DEFAULT, String::as_str).trim();
    (!is_dumb && !chosen.is_empty() && chosen != "cat").then(|| chosen.to_owned())
}

/// Starts a pager; `None` if it is not there.
fn start(program: &str) -> Option<Pager> {
    let words = split_words(program).ok()?;
    let (name, options) = words.split_first()?;
    let child = Command::new(name).args(options).stdin(Stdio::piped()).spawn().ok()?;
    // It would inherit what we block.
    Some(Pager { child, _interrupts: Interrupts::new().ok() })
}

/// A pager that runs.
#[derive(Debug)]
pub(crate) struct Pager {
    child: Child,
    /// Ctrl-C is the pager's, so that we do not end before it does.
    _interrupts: Option<Interrupts>,
}

impl Pager {
    fn write(&mut self, text: &[u8]) -> io::Result<()> {
        self.child.stdin.as_mut().map_or(Ok(()), |to| to.write_all(text))
    }
    /// Waits for its end, and returns whether it was there. 127 is a shell's word for a program that is not.
    fn wait(&mut self) -> bool {
        drop(self.child.stdin.take());
        self.child.wait().is_ok_and(|status| status.code() != Some(127))
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        self.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::{is_long, program};

    #[test]
    fn the_first_choice_counts() {
        let of = |choices: [Option<&str>; 2], is_dumb| {
            program(&choices.map(|one| one.map(str::to_owned)), is_dumb)
        };
        assert_eq!(of([None, None], false).as_deref(), Some("less -FRX"));
        assert_eq!(of([None, Some("more")], false).as_deref(), Some("more"));
        assert_eq!(of([Some("most -w"), Some("more")], false).as_deref(), Some("most -w"));
        for none in [of([Some(""), Some("more")], false), of([None, Some("cat")], false), of([None; 2], true)]
        {
            assert_eq!(none, None);
        }
    }

    #[test]
    fn a_text_is_long_that_does_not_fit_above_the_prompt() {
        assert!(!is_long(b"a\nb\n", (3, 10)) && is_long(b"a\nb\nc\n", (3, 10)));
        assert!(is_long(b"12345678901\nb\n", (3, 10)), "the first line takes two rows");
        assert!(!is_long("ö234567890\nb\n".as_bytes(), (3, 10)) && !is_long(b"", (1, 10)));
    }
}
