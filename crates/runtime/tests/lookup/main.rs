//! Address → region → (file, offset) → probe: compared with a plain map, and while other threads change it.

mod model;
mod support;
mod threads;
