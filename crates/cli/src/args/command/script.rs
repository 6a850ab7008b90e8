//! What `run` is asked for.

use std::path::PathBuf;

use trapline::{Among, Returns};

/// Where a script comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Input {
    /// `-e`
    Text(String),
    /// Standard input.
    Stdin,
    /// A file.
    File(PathBuf),
    /// There is none.
    Nothing,
}

/// `run`, ready.
#[derive(Debug)]
pub(crate) struct Script {
    /// The script.
    pub(crate) input: Input,
    /// `$1`, `$2` and so on.
    pub(crate) positional: Vec<String>,
    /// Parameters by name, without dashes.
    pub(crate) named: Vec<String>,
    /// Headers from which constants are taken.
    pub(crate) headers: Vec<String>,
    /// Whether the script may change the system.
    pub(crate) allow_unsafe: bool,
    /// Which probes are used.
    pub(crate) probe_filter: Option<String>,
    /// Without a process and a command: which of all processes are probed.
    pub(crate) among: Among,
    /// The process, as typed.
    pub(crate) pid: Option<String>,
    /// The command that is run, in words.
    pub(crate) command: Option<Vec<String>>,
    /// Folders in which separate debug information is looked for.
    pub(crate) debug_folders: Vec<PathBuf>,
    /// The format, as typed.
    pub(crate) format: Option<String>,
    /// The file for output.
    pub(crate) output: Option<PathBuf>,
    /// Whether output waits until there is much of it.
    pub(crate) buffered: bool,
    /// Whether to leave out how many probes are attached.
    pub(crate) quiet: bool,
    /// Whether to say what is done.
    pub(crate) verbose: bool,
    /// Whether to leave out warnings.
    pub(crate) no_warnings: bool,
    /// Whether to warn of keys that are not there.
    pub(crate) lookups: bool,
    /// A pattern, if probes are listed.
    pub(crate) list: Option<String>,
    /// Whether the tree is shown.
    pub(crate) shows_tree: bool,
    /// Whether the script is only checked.
    pub(crate) dry_run: bool,
    /// How the ends of calls are seen.
    pub(crate) returns: Returns,
    /// Whether all blocks are interpreted, also those that the target could count by itself.
    pub(crate) interpret: bool,
    /// Whether `bench` blocks are measured.
    pub(crate) bench: bool,
    /// Whether `test` blocks are run.
    pub(crate) test: bool,
}
