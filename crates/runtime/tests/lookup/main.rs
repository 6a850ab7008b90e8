//! Address → region → (file, offset) → probe: compared with a plain map, and beside changes.

mod model;
mod support;
mod threads;
