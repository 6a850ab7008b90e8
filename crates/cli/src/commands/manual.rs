//! The verbs that make texts from the definitions of the command line: `completions` and `man`.
//!
//! In: [`Typed`], as clap knows it. Out: a completion script; a manual page for the command and one for each
//! verb. Does not: hold help texts of its own.

use std::io;
use std::iter::once;
use std::path::Path;

use clap::CommandFactory as _;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::{Failure, Outcome};
use crate::args::typed::Typed;
use crate::complete::Shell;
use crate::output::Output;

/// Writes a completion script to standard output.
pub(crate) fn completions(shell: Shell) -> Result<Outcome, Failure> {
    Output::Stdout.bytes(shell.script().as_bytes())?;
    Ok(Outcome::Done)
}

/// Writes a page for the command and for each verb into a directory. Makes the directory if it does not exist.
pub(crate) fn pages(directory: &Path) -> Result<Outcome, Failure> {
    let write = || {
        std::fs::create_dir_all(directory)?;
        commands().iter().try_for_each(|command| {
            std::fs::write(directory.join(format!("{}.1", name(command))), page(command)?)
        })
    };
    let failed = |why: io::Error| {
        Failure::Other(format!("cannot write manual pages to {}: {why}", directory.display()))
    };
    write().map(|()| Outcome::Done).map_err(failed)
}

/// The command, then its verbs.
fn commands() -> Vec<clap::Command> {
    let mut all = Typed::command().disable_help_subcommand(true);
    all.build();
    let shown = all.get_subcommands().filter(|verb| !verb.is_hide_set());
    once(&all).chain(shown).cloned().collect()
}

/// The name of a command's page: `trapline-count` for `count`.
fn name(command: &clap::Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

/// One manual page.
fn page(command: &clap::Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    // An empty date has to be quoted. Otherwise what follows would be taken for it.
    let source = concat!("trapline ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).date("\"\"").source(source).manual("Trapline");
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    let mut usage = Roff::new();
    usage.control("SH", ["SYNOPSIS"]);
    let line = command.clone().render_usage().to_string();
    usage.text([roman(line.trim_start_matches("Usage: "))]);
    usage.to_writer(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    let mut rest = Roff::new();
    verbs(&mut rest, command);
    sections(&mut rest, &command.get_after_long_help().map(ToString::to_string).unwrap_or_default());
    if !command.has_subcommands() {
        rest.control("SH", ["SEE ALSO"]);
        rest.text([bold("trapline"), roman("(1)")]);
    }
    rest.to_writer(&mut page)?;
    Ok(page)
}

/// The list of verbs, each with the name of its page.
fn verbs(to: &mut Roff, command: &clap::Command) {
    if command.has_subcommands() {
        to.control("SH", ["VERBS"]);
    }
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        to.control("TP", []);
        to.text([bold(name(verb)), roman("(1)")]);
        to.text([roman(verb.get_about().map(ToString::to_string).unwrap_or_default())]);
    }
}

/// The sections in which a long help ends: `Heading:`, then indented lines, which stay as they are.
fn sections(to: &mut Roff, text: &str) {
    for (heading, body) in text.split("\n\n").filter_map(|section| section.split_once(":\n")) {
        to.control("SH", [heading.to_uppercase().as_str()]);
        to.control("nf", []);
        for line in body.lines() {
            to.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
        }
        to.control("fi", []);
    }
}

#[cfg(test)]
mod tests {
    use super::{commands, name, page};

    #[test]
    fn each_verb_has_a_page_with_its_sections() {
        let commands = commands();
        assert!(commands.len() > 10 && commands.iter().any(|command| name(command) == "trapline-count"));
        for command in &commands {
            let page = String::from_utf8(page(command).expect("memory")).expect("text");
            let headings: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
            for wanted in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES", "\"EXIT STATUS\""] {
                assert_eq!(
                    headings.iter().filter(|heading| **heading == wanted).count(),
                    1,
                    "{wanted}: {page}"
                );
            }
            assert!(page.is_ascii(), "{page}");
        }
    }

    /// A long help ends in sections that fit into 80 columns; otherwise a part of it would be lost.
    #[test]
    fn long_helps_end_in_sections() {
        for command in commands() {
            let help = command.get_after_long_help().expect("sections").to_string();
            for section in help.split("\n\n") {
                let mut lines = section.lines();
                assert!(lines.next().is_some_and(|line| line.ends_with(':')), "{section}");
                assert!(lines.all(|line| line.starts_with("  ") && line.len() <= 75), "{section}");
            }
        }
    }
}
