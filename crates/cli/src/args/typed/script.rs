//! `run`, as clap reads it: bpftrace's options.

use std::path::PathBuf;

use clap::Args;

use super::help::sections;
use super::{TypedAmong, TypedReturns};

/// Run a script in bpftrace's language
///
/// Compiles a script, attaches its probes, and runs its blocks: at hits of programs, at intervals, at the begin and
/// the end. The language and what is written are bpftrace's; probes of the kernel are refused. Neither root nor BPF
/// is needed. Blocks of numbers and maps run in the program itself, at some nanoseconds a hit; for others a record is
/// written at each hit (-v tells which).
#[derive(Args, Debug, Clone)]
#[command(after_long_help = sections(MORE, STATUSES))]
pub(crate) struct TypedScript {
    /// The script's file (- for standard input), then its parameters $1, $2; with -e all are parameters
    #[arg(value_name = "FILE")]
    pub(crate) words: Vec<String>,
    /// Run this program
    #[arg(short = 'e', value_name = "PROGRAM", allow_hyphen_values = true, help_heading = "Script")]
    pub(crate) programs: Vec<String>,
    /// Allow functions that change the system: system, signal
    #[arg(long = "unsafe", help_heading = "Script")]
    pub(crate) allow_unsafe: bool,
    /// Take constants from this header of the system; may be given more than once
    #[arg(short = 'I', long, value_name = "HEADER", help_heading = "Script")]
    pub(crate) include: Vec<String>,
    /// Use only probes whose names this regular expression matches
    #[arg(long, value_name = "REGEX", help_heading = "Script")]
    pub(crate) probe_filter: Option<String>,
    /// Probe this process alone
    #[arg(short = 'p', long = "pid", value_name = "PID", help_heading = "Targets")]
    pub(crate) pid: Option<String>,
    #[command(flatten)]
    pub(crate) among: TypedAmong,
    /// Run this command, and end with it
    #[arg(short = 'c', long = "cmd", value_name = "CMD", help_heading = "Targets")]
    pub(crate) command: Option<String>,
    /// Look for separate debug information in this folder too; may be given more than once
    #[arg(long, value_name = "FOLDER", help_heading = "Targets")]
    pub(crate) debuginfo: Vec<PathBuf>,
    /// Accepted, and changes nothing: all processes that map the file are probed, and their USDT probes activated
    #[arg(long, hide = true)]
    pub(crate) usdt_file_activation: bool,
    /// text or json
    #[arg(short = 'f', long = "format", value_name = "FORMAT", help_heading = "Output")]
    pub(crate) format: Option<String>,
    /// Write to FILE
    #[arg(short = 'o', long, value_name = "FILE", help_heading = "Output")]
    pub(crate) output: Option<PathBuf>,
    /// Buffer output: line, full or none
    #[arg(short = 'B', value_name = "MODE", value_parser = ["line", "full", "none"], help_heading = "Output")]
    pub(crate) buffer: Option<String>,
    /// Do not say how many probes are attached
    #[arg(short = 'q', long, help_heading = "Output")]
    pub(crate) quiet: bool,
    /// Say what is done; with -l, show arguments
    #[arg(short = 'v', long, help_heading = "Output")]
    pub(crate) verbose: bool,
    /// Write no warnings
    #[arg(long, help_heading = "Output")]
    pub(crate) no_warnings: bool,
    /// Warn where a map is read that does not have the key, or memory that could not be read
    #[arg(short = 'k', help_heading = "Output")]
    pub(crate) lookups: bool,
    /// List probes: those that match a pattern, or those of a script
    #[arg(short = 'l', long, value_name = "PATTERN", num_args = 0..=1, default_missing_value = "",
          help_heading = "Other modes")]
    pub(crate) list: Option<String>,
    /// How the end of a call is seen, for uretprobe [default: auto]
    #[arg(long, value_name = "FORM", value_enum, help_heading = "Targets")]
    pub(crate) ret: Option<TypedReturns>,
    /// Show a stage of the compiler: ast
    #[arg(short = 'd', value_name = "STAGE", value_parser = ["ast"], help_heading = "Other modes")]
    pub(crate) debug: Option<String>,
    /// Only check the script
    #[arg(long, help_heading = "Other modes")]
    pub(crate) dry_run: bool,
    /// Interpret all blocks, also those that could be counted in the target; -v tells which those are
    #[arg(long, help_heading = "Other modes")]
    pub(crate) interpret: bool,
    /// Measure the script's bench blocks, or run its test blocks
    #[arg(long, value_name = "MODE", value_parser = ["bench", "test"], help_heading = "Other modes")]
    pub(crate) mode: Option<String>,
    /// The same as --mode bench
    #[arg(long, help_heading = "Other modes")]
    pub(crate) bench: bool,
    /// Parameters by name, --NAME=VALUE, and more positional ones
    #[arg(last = true, value_name = "PARAMETER")]
    pub(crate) after: Vec<String>,
}

const MORE: &str = "\
Examples:
  How often does a program allocate, by size?
    trapline run -p PID -e 'uprobe:libc:malloc { @[arg0] = count(); }'
  How long do calls take?
    trapline run -p PID -e 'uprobe:libc:read { @s[tid] = nsecs; }
      uretprobe:libc:read /@s[tid]/ {
        @ns = hist(nsecs - @s[tid]); delete(@s, tid); }'
  Which fields has what an argument points to?
    trapline run -p PID -e 'uprobe:FILE:FUNC { @[args.req->n] = count(); }'
    trapline run -lv 'uprobe:FILE:FUNC'
  What does the language do?
    trapline run -e 'begin { for ($i : 1..4) { printf(\"%d\\n\", $i); } }'
  A script of a file, with parameters:
    trapline run script.bt 100 -- --name=value";

const STATUSES: &str = "\
Exit status:
  0  Done, also after Ctrl-C; or what exit() was called with.
  1  The script is wrong, names what cannot be probed, or failed.
  2  Wrong usage.";
