//! Completion of a command line in a shell: what a user may mean who presses TAB.
//!
//! In: the line as far as it is typed. Out: what may stand at the cursor, in the form that the shell's script reads. The
//! line is taken apart by the definitions that clap has, so options and verbs are those of the help. Invariants: OFFER-1
//! nothing is printed but candidates; no process is attached to or changed. Does not: quote for zsh and fish, which do
//! that by themselves.
//!
//! What the scripts read: a line that says what is wanted (`words`, `files`, `directories`, `commands`), then a candidate
//! a line; behind a tab its description, but not for bash.

mod line;
mod offered;
mod shell;
mod wanted;

use std::fmt::Write as _;

use clap::CommandFactory as _;

use crate::args::typed::Typed;
use crate::output::{Output, OutputError};
use line::Line;
use offered::{Offered, offered};
pub(crate) use shell::Shell;
use wanted::wanted;

/// Prints what may stand at the cursor. For bash, `words` are the line up to the cursor and the part that bash
/// replaces; else the words up to the cursor without the first one.
pub(crate) fn run(shell: Shell, words: &[String]) -> Result<(), OutputError> {
    let line = match (shell, words) {
        (Shell::Bash, [line, replaced]) => Line::of_bash(line, replaced),
        (Shell::Bash, _) => Line::default(),
        _ => Line::of_words(words),
    };
    Output::Stdout.bytes(text(shell, &line).as_bytes())
}

fn text(shell: Shell, line: &Line) -> String {
    let mut command = Typed::command();
    command.build();
    let wanted = wanted(&command, &line.before, &line.current);
    let (kind, words) = match offered(&wanted, &line.current[wanted.head.len()..]) {
        Offered::Files => ("files", Vec::new()),
        Offered::Directories => ("directories", Vec::new()),
        Offered::Commands => ("commands", Vec::new()),
        Offered::Words(words) => ("words", words),
    };
    let mut text = format!("{kind}\n");
    for (word, about) in words.iter().filter(|(word, _)| !word.contains(char::is_control)) {
        let word = format!("{}{word}", wanted.head);
        if !word.starts_with(&line.current) {
            continue;
        }
        // A `String` takes all that is written to it.
        let _ = match (shell, about.lines().next()) {
            (Shell::Bash, _) => writeln!(text, "{}", line.for_bash(&word)),
            (_, Some(about)) => writeln!(text, "{word}\t{}", about.replace('\t', " ")),
            (_, None) => writeln!(text, "{word}"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Line, Shell, text};

    /// What zsh is offered behind these words, without descriptions.
    fn offers(words: &str) -> Vec<String> {
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        let text = text(Shell::Zsh, &Line::of_words(&words));
        text.lines().map(|line| line.split('\t').next().unwrap_or_default().to_owned()).collect()
    }
    fn has(words: &str, wanted: &str) -> bool {
        offers(words).iter().any(|one| one == wanted)
    }

    #[test]
    fn verbs_and_options_are_offered() {
        assert!(has("", "count") && has("", "help") && !has("", "complete"));
        assert_eq!(offers("cou"), ["words", "count"]);
        assert_eq!(offers("count --maxac"), ["words"]);
        assert_eq!(offers("lat --maxac"), ["words", "--maxactive"]);
        assert!(has("count -", "-p") && has("count -", "--pid") && has("help ", "count"));
        assert_eq!(offers("-"), ["words", "--help", "--version", "-h", "-V"]);
    }

    #[test]
    fn values_are_offered_where_they_stand() {
        assert_eq!(offers("lat --ret "), ["words", "auto", "exits", "stack"]);
        assert_eq!(offers("lat --ret=e"), ["words", "--ret=exits"]);
        assert_eq!(offers("completions "), ["words", "bash", "fish", "zsh"]);
        assert_eq!(offers("count -o "), ["files"]);
        assert_eq!(offers("record -o "), ["directories"]);
        assert_eq!(offers("count malloc -- "), ["commands"]);
        assert_eq!(offers("count malloc -- ls "), ["files"]);
        assert_eq!(offers("count -d "), ["words"], "any number may stand there");
        assert_eq!(offers("run "), ["files"]);
        assert!(has("count libc:mallo", "libc:malloc"));
        let me = std::process::id();
        assert!(has(&format!("count -qp {me} libc:mallo"), "libc:malloc"), "-qp takes a value");
    }

    #[test]
    fn bash_replaces_what_is_behind_a_colon() {
        let of = |line: &str, replaced: &str| text(Shell::Bash, &Line::of_bash(line, replaced));
        assert!(of("trapline count libc:mallo", "mallo").lines().any(|line| line == "malloc"));
        assert!(of("trapline count libc:", "").lines().any(|line| line == "malloc"));
        assert!(of("trapline count 'libc:mallo", "'libc:mallo").lines().any(|line| line == "libc:malloc"));
        assert!(of("trapline lat --ret=", "").lines().any(|line| line == "exits"));
    }
}
