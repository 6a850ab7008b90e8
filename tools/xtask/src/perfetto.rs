//! A Python that knows Perfetto's and OpenTelemetry's own schemas, to judge our timelines and what we send to
//! collectors.
//!
//! In: where Python's packages come from. Out: an interpreter of its own with these packages, made once under the
//! target folder. What fails on the way is reported, and the test that needs it skips itself.

use std::path::PathBuf;

use crate::venv;

/// Names the interpreter to the tests.
pub(crate) const VARIABLE: &str = "TRAPLINE_PERFETTO_PYTHON";
/// The packages, as they were when the tests were written.
const PACKAGES: &[&str] = &["perfetto==0.59.1", "opentelemetry-proto==1.45.2"];

/// The interpreter that the variable names, or else one made for it.
pub(crate) fn ensure() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(VARIABLE) {
        return Some(path.into());
    }
    let made = venv::make("perfetto", PACKAGES);
    made.inspect_err(|error| println!("LOUD SKIP: no schemas of Perfetto and OpenTelemetry: {error:#}")).ok()
}
