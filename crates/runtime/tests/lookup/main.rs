//! Address → region → (file, offset) → probe: against a plain map, and while others change it.

mod model;
mod support;
mod threads;
