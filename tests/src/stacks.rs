//! The stacks of a report.

use serde_json::Value;

use crate::tracing::Report;

/// Each stack.
pub fn all(report: &Report) -> impl Iterator<Item = &Value> {
    report.objects.iter().filter(|object| object["type"] == "stack")
}

/// Names from the probed function on; inlined functions before the one that they were inlined into.
///
/// # Panics
/// When the object is no stack.
#[must_use]
pub fn names(stack: &Value) -> Vec<&str> {
    let frames = stack["frames"].as_array().expect("frames").iter();
    let functions = frames.flat_map(|frame| frame["functions"].as_array().expect("functions"));
    functions.map(|function| function["name"].as_str().expect("a name")).collect()
}

/// Where each function, inlined ones left aside, was probed or is returned to.
///
/// # Panics
/// As [`names`].
#[must_use]
pub fn addresses(stack: &Value) -> Vec<u64> {
    let frames = stack["frames"].as_array().expect("frames").iter();
    frames.map(|frame| frame["address"].as_u64().expect("an address")).collect()
}
