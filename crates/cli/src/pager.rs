//! A long text on a terminal goes through a pager.
//!
//! In: a text, and what the user says about pagers (`--no-pager`, `TRAPLINE_PAGER`, `PAGER`). Out: whether a pager showed
//! it. A pager that is left early has shown it. Invariant: PAGER-1 what is no terminal, and what fits on the screen, gets
//! no pager. Does not: print by itself where there is no pager.

use std::io::Write as _;
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
    let variable = |name| std::env::var(name).ok();
    let Some(program) = program(&[variable("TRAPLINE_PAGER"), variable("PAGER")], is_dumb()) else {
        return false;
    };
    start(&program).is_some_and(|pager| feed(pager, text))
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
fn start(program: &str) -> Option<Child> {
    let words = split_words(program).ok()?;
    let (name, options) = words.split_first()?;
    Command::new(name).args(options).stdin(Stdio::piped()).spawn().ok()
}

/// Gives a pager its text, and waits for its end.
fn feed(mut pager: Child, text: &[u8]) -> bool {
    // From here on Ctrl-C is the pager's, so that we do not end before it does. It would inherit what we block.
    let _interrupts = Interrupts::new();
    // A pager that was left early reads no more.
    drop(pager.stdin.take().map(|mut to| to.write_all(text)));
    // 127 is a shell's word for a program that is not there.
    pager.wait().is_ok_and(|status| status.code() != Some(127))
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
