//! The `trapline` command.
#![forbid(unsafe_code)]
mod args;
mod report;
fn main() {}
