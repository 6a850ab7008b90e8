//! (file, offset) → probe.
