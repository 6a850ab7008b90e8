//! The verbs that look or act once: `list`, `status`, `detach`, `demo`, as clap reads them.

use clap::Args;

use super::shared::{TypedReturns, TypedSink};

/// `list`
#[derive(Args, Debug, Clone)]
pub(crate) struct TypedList {
    /// Patterns, for example '/usr/bin/git:cmd_*'
    #[arg(value_name = "PATTERN", required = true)]
    pub(crate) probes: Vec<String>,
    /// List for exits as well, as `lat` would patch them
    #[arg(long)]
    pub(crate) lat: bool,
    /// As `lat --ret=FORM` would patch them
    #[arg(long, value_name = "FORM", value_enum, requires = "lat")]
    pub(crate) ret: Option<TypedReturns>,
    /// In this process (may be given more than once)
    #[arg(short = 'p', long = "pid", value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pids: Vec<u32>,
    /// In all processes of this name
    #[arg(short = 'n', long = "name", value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// As `--strict` would patch them
    #[arg(long)]
    pub(crate) strict: bool,
    /// As `--faults-are-fatal` would patch them
    #[arg(long)]
    pub(crate) faults_are_fatal: bool,
    #[command(flatten)]
    pub(crate) sink: TypedSink,
}

/// `status` and `detach`
#[derive(Args, Debug, Clone)]
pub(crate) struct TypedPids {
    /// Processes
    #[arg(short = 'p', long = "pid", value_name = "PID", required = true,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pids: Vec<u32>,
    #[command(flatten)]
    pub(crate) sink: TypedSink,
}

/// `demo`
#[derive(Args, Debug, Clone)]
pub(crate) struct TypedDemo {
    /// How long each part runs, in seconds
    #[arg(short, long, value_name = "SECONDS", default_value = "1")]
    pub(crate) duration: String,
    /// Keep the sample program's directory
    #[arg(long)]
    pub(crate) keep: bool,
}
