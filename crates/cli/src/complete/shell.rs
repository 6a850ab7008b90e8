//! The shells that have completions, and the script of each.
//!
//! In: a shell. Out: its script, which asks the command itself at each TAB (`trapline complete`). Does not: know verbs
//! and options.

use clap::ValueEnum;

/// A shell.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shell {
    Bash,
    Fish,
    Zsh,
}

impl Shell {
    /// Its script.
    pub(crate) const fn script(self) -> &'static str {
        match self {
            Self::Bash => include_str!("trapline.bash"),
            Self::Fish => include_str!("trapline.fish"),
            Self::Zsh => include_str!("trapline.zsh"),
        }
    }
}
