//! The verbs that look or act once: `list`, `status`, `detach`, `demo`, `doctor`, as clap reads them.

use clap::Args;

use super::help::{DOCTORED, LISTED, ONCE, sections};
use super::shared::{TypedReturns, TypedSink};

/// Functions with file, offset, size, and the tactic that each would get
///
/// Shows which functions a pattern means, where they lie, and how each would be probed. Nothing is changed.
/// Without -p and -n the files themselves are looked at.
#[derive(Args, Debug, Clone)]
#[command(after_long_help = sections(LIST, LISTED))]
pub(crate) struct TypedList {
    /// Functions or patterns, for example '/usr/bin/git:cmd_*'
    #[arg(value_name = "PATTERN", required = true)]
    pub(crate) probes: Vec<String>,
    /// Also show what each function takes and returns, where its arguments are at the entry, and its source line
    #[arg(short = 'v', long)]
    pub(crate) verbose: bool,
    /// Also say how the end of a call would be seen, as lat would
    #[arg(long)]
    pub(crate) lat: bool,
    /// The same for lat --ret=FORM
    #[arg(long, value_name = "FORM", value_enum, requires = "lat")]
    pub(crate) ret: Option<TypedReturns>,
    /// Look at this process; may be given more than once
    #[arg(short = 'p', long = "pid", value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pids: Vec<u32>,
    /// Look at all processes of this name; may be given more than once
    #[arg(short = 'n', long = "name", value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Show the tactics of a run with --strict
    #[arg(long)]
    pub(crate) strict: bool,
    /// Show the tactics of a run with --faults-are-fatal
    #[arg(long)]
    pub(crate) faults_are_fatal: bool,
    /// Show the tactics of a run with --kernel-uprobes
    #[arg(long)]
    pub(crate) kernel_uprobes: bool,
    #[command(flatten)]
    pub(crate) pager: TypedPager,
    #[command(flatten)]
    pub(crate) sink: TypedSink,
}

/// `status` and `detach`
#[derive(Args, Debug, Clone)]
pub(crate) struct TypedPids {
    /// The process; may be given more than once
    #[arg(short = 'p', long = "pid", value_name = "PID", required = true,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pids: Vec<u32>,
    #[command(flatten)]
    pub(crate) sink: TypedSink,
}

/// What `status` takes: processes, and how a long text is shown.
#[derive(Args, Debug, Clone)]
pub(crate) struct TypedStatus {
    #[command(flatten)]
    pub(crate) of: TypedPids,
    #[command(flatten)]
    pub(crate) pager: TypedPager,
}

/// Whether a long text goes through a pager.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct TypedPager {
    /// Print a long text as it is, not through a pager.
    ///
    /// TRAPLINE_PAGER or PAGER names the pager; cat means none. Without them it is less, if that is there.
    #[arg(long, help_heading = "Output")]
    pub(crate) no_pager: bool,
}

/// Trace a sample program, and show what a hit costs
///
/// Runs a small program that lies in the command, counts and times its functions, and measures what a hit adds to a
/// call on this machine, beside a uprobe of the kernel. No other process is touched.
#[derive(Args, Debug, Clone)]
#[command(after_long_help = sections(DEMO, ONCE))]
pub(crate) struct TypedDemo {
    /// How long each part runs: seconds, or with a unit (500ms)
    #[arg(short, long, value_name = "SECONDS", default_value = "1")]
    pub(crate) duration: String,
    /// Keep the directory of the sample program
    #[arg(long)]
    pub(crate) keep: bool,
}

/// What this machine permits, and how to get more
///
/// Tries everything that Trapline uses: starts a command and holds it, stops a process of its own, sets a
/// hardware breakpoint, loads a BPF program. Each line is the result of a try. No other process is changed.
#[derive(Args, Debug, Clone)]
#[command(after_long_help = sections(DOCTOR, DOCTORED))]
pub(crate) struct TypedDoctor {
    #[command(flatten)]
    pub(crate) sink: TypedSink,
}

const LIST: &str = "\
What it prints:
  OFFSET    Where the function lies in its file, hexadecimal.
  SIZE      Its size in bytes.
  TACTIC    jump, short or pun: a jump, at nanoseconds a hit. kernel: a
            kernel uprobe, at microseconds. refused, with the reason.
  FUNCTION  Its name.
  FILE      The file.

Examples:
  Functions of a running program:
    trapline list -p PID 'shop:*'
  Functions of a library that no process has to run:
    trapline list 'libsqlite3:sqlite3_prepare*'
  What functions take and return, and where their arguments are:
    trapline list -v -p PID price handle
  How the ends of calls would be seen:
    trapline list --lat -p PID handle price store";

/// The sections of `status`.
pub(super) const STATUS: &str = "\
What it prints:
  building           A tracer is preparing its patches.
  armed              Patches are in place.
  removing, removed  Patches are being taken out, or are out.
  sites in place     Sites that hold Trapline's bytes now, of all sites.
  mapped             Address space that the patches take.

Examples:
  Is this process patched, and does its tracer still run?
    trapline status -p PID";

/// The sections of `detach`.
pub(super) const DETACH: &str = "\
What it prints:
  sites restored     Sites where the original bytes were written back.
  already were       Sites that held the original bytes.
  put back           Signal actions, semaphores and return addresses that
                     are the program's own again.
  stay mapped        Memory that a thread may still be in. The next session
                     uses it again.

Examples:
  After a tracer was killed:
    trapline detach -p PID";

const DEMO: &str = "\
What it prints:
  The outputs of trapline count and trapline lat, and then what each adds
  to a call, in nanoseconds.

Examples:
  Half a second for each part:
    trapline demo -d 0.5
  Keep the sample program, to try the other verbs on it:
    trapline demo --keep";

const DOCTOR: &str = "\
What it prints:
  ok      It was tried, and works.
  NO      It was tried, and does not work. The line below says what needs
          it, and how to get it.
  Others  Facts that decide about the rest.

Examples:
  What is permitted here?
    trapline doctor
  Is it enough, in a script?
    trapline doctor -q > /dev/null || exit 1";
