//! The verbs that make texts from these definitions: `completions`, `complete` and `man`, as clap reads them.
//!
//! In: words, through clap. Out: text. Does not: make the texts.

use std::path::PathBuf;

use clap::Args;

use super::help::{ONCE, sections};
use crate::complete::Shell;

/// Write a completion script for a shell to standard output
///
/// The script asks trapline at each TAB. It completes verbs, options and their values, numbers and names of processes,
/// files, libraries, and functions: libc:mal, then TAB. With -p it offers the functions of that process, too.
#[derive(Args, Debug, Clone)]
#[command(after_long_help = sections(COMPLETIONS, ONCE))]
pub(crate) struct TypedCompletions {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub(crate) shell: Shell,
}

/// What may stand at the cursor of a shell
///
/// The scripts of trapline completions call this.
#[derive(Args, Debug, Clone)]
#[command(hide = true, after_long_help = sections(COMPLETE, ONCE))]
pub(crate) struct TypedComplete {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub(crate) shell: Shell,
    /// The words up to the cursor
    #[arg(last = true, value_name = "WORD")]
    pub(crate) words: Vec<String>,
}

/// Write the manual pages to a directory
///
/// Writes trapline.1 and a page for each verb, such as trapline-count.1. The directory is made if it does not
/// exist. Packages put the pages into a directory such as /usr/share/man/man1.
#[derive(Args, Debug, Clone)]
#[command(after_long_help = sections(MAN, ONCE))]
pub(crate) struct TypedMan {
    /// The directory
    #[arg(value_name = "DIR")]
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

const COMPLETE: &str = "\
Examples:
  What may stand behind these words?
    trapline complete zsh -- count libc:mal";

const MAN: &str = "\
Examples:
  For this user:
    trapline man ~/.local/share/man/man1
  To look at one without installing it:
    trapline man pages && man -l pages/trapline-count.1";
