//! Counts and durations for those who watch many machines: `--serve`, for Prometheus, and `--otlp`, for OpenTelemetry's collectors.
//!
//! [`outlets`]: all of them. [`metrics`]: reports in, families of series out. [`text`], [`server`]: what a scrape gets, and the port. `otlp`,
//! `push`: what is sent, and to whom (feature `otlp`). Does not: keep a history.

pub(crate) mod metrics;
#[cfg(feature = "otlp")]
pub(crate) mod otlp;
pub(crate) mod outlets;
#[cfg(feature = "otlp")]
pub(crate) mod push;
pub(crate) mod server;
pub(crate) mod text;
