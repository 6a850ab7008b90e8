//! Counts and durations for monitoring: `--serve` for Prometheus, and `--otlp` for OpenTelemetry's
//! collectors.
//!
//! [`outlets`]: all destinations together. [`metrics`]: reports in, families of series out. [`text`],
//! [`server`]: the answer to a scrape, and the port. `otlp`, `push`: the request that is sent, and its
//! sending (feature `otlp`). Does not: keep a history.

pub(crate) mod metrics;
#[cfg(feature = "otlp")]
pub(crate) mod otlp;
pub(crate) mod outlets;
#[cfg(feature = "otlp")]
pub(crate) mod push;
pub(crate) mod server;
pub(crate) mod text;
