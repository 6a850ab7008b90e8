//! `lat`, as clap reads it.

use clap::Args;

use super::shared::{Common, TypedEnds, TypedServe};

/// `lat`
#[derive(Args, Debug, Clone)]
pub(crate) struct TypedLat {
    /// Functions, for example processCommand
    #[arg(value_name = "FUNC", required = true)]
    pub(crate) probes: Vec<String>,
    /// One histogram per function instead of one for all
    #[arg(short = 'F', long, help_heading = "Histogram")]
    pub(crate) per_function: bool,
    /// Microseconds
    #[arg(short = 'u', long, conflicts_with = "milliseconds", help_heading = "Histogram")]
    pub(crate) microseconds: bool,
    /// Milliseconds
    #[arg(short = 'm', long, help_heading = "Histogram")]
    pub(crate) milliseconds: bool,
    /// Equal steps instead of powers of two, in the unit shown
    #[arg(long, value_name = "MIN:MAX:STEP", help_heading = "Histogram")]
    pub(crate) linear: Option<String>,
    /// Leave out calls shorter than TIME (1ms, 20us, 500ns)
    #[arg(long, value_name = "TIME", help_heading = "Histogram")]
    pub(crate) min: Option<String>,
    /// Of recursive calls, only the outermost
    #[arg(long, help_heading = "Histogram")]
    pub(crate) outermost: bool,
    #[command(flatten)]
    pub(crate) ends: TypedEnds,
    #[command(flatten)]
    pub(crate) serve: TypedServe,
    #[command(flatten)]
    pub(crate) common: Common,
}
