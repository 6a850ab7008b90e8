//! The verbs that make texts from these definitions: `completions` and `man`, as clap reads them.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap::{Args, ValueHint};
use clap_complete::Shell;

use super::help::{ONCE, sections};

/// The shells that get completions.
const SHELLS: [&str; 3] = ["bash", "fish", "zsh"];

/// Write a completion script for a shell to standard output
///
/// The script completes verbs, options, the values of options, and files.
#[derive(Args, Debug, Clone)]
#[command(after_long_help = sections(COMPLETIONS, ONCE))]
pub(crate) struct TypedCompletions {
    /// The shell
    #[arg(value_name = "SHELL", value_parser = PossibleValuesParser::new(SHELLS).try_map(|name| name.parse::<Shell>()))]
    pub(crate) shell: Shell,
}

/// Write the manual pages to a directory
///
/// Writes trapline.1 and a page for each verb, such as trapline-count.1. The directory is made if it does not
/// exist. Packages put the pages into a directory such as /usr/share/man/man1.
#[derive(Args, Debug, Clone)]
#[command(after_long_help = sections(MAN, ONCE))]
pub(crate) struct TypedMan {
    /// The directory
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) directory: PathBuf,
}

const COMPLETIONS: &str = "\
Examples:
  For bash, for this user:
    trapline completions bash \\
      > ~/.local/share/bash-completion/completions/trapline
  For zsh, into a directory of $fpath:
    trapline completions zsh > ~/.zfunc/_trapline
  For fish:
    trapline completions fish > ~/.config/fish/completions/trapline.fish";

const MAN: &str = "\
Examples:
  For this user:
    trapline man ~/.local/share/man/man1
  To look at one without installing it:
    trapline man pages && man -l pages/trapline-count.1";
