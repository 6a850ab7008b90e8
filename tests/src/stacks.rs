//! The stacks in a report.

use serde_json::Value;

use crate::tracing::Report;

/// All stacks of a report.
pub fn all(report: &Report) -> impl Iterator<Item = &Value> {
    report.objects.iter().filter(|object| object["type"] == "stack")
}

/// Function names, beginning with the probed function. An inlined function stands before the one that
/// contains it.
///
/// # Panics
/// If the object is no stack.
#[must_use]
pub fn names(stack: &Value) -> Vec<&str> {
    let frames = stack["frames"].as_array().expect("frames").iter();
    let functions = frames.flat_map(|frame| frame["functions"].as_array().expect("functions"));
    functions.map(|function| function["name"].as_str().expect("a name")).collect()
}

/// Addresses of the frames: the probed address, then return addresses. Inlined functions have none.
///
/// # Panics
/// As [`names`].
#[must_use]
pub fn addresses(stack: &Value) -> Vec<u64> {
    let frames = stack["frames"].as_array().expect("frames").iter();
    frames.map(|frame| frame["address"].as_u64().expect("an address")).collect()
}
