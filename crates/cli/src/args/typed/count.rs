//! `count`, as clap reads it.

use clap::Args;

use super::shared::{Common, TypedBy, TypedServe};

/// `count`
#[derive(Args, Debug, Clone)]
pub(crate) struct TypedCount {
    /// Probes, for example 'libssl:SSL_*'
    #[arg(value_name = "PROBE", required = true)]
    pub(crate) probes: Vec<String>,
    /// Split hits; by tid or comm a hit costs more than by cpu
    #[arg(long, value_name = "WHAT", help_heading = "Output")]
    pub(crate) by: Option<TypedBy>,
    #[command(flatten)]
    pub(crate) serve: TypedServe,
    #[command(flatten)]
    pub(crate) common: Common,
}
