//! arm64: registers from which unwinding starts.

pub(super) mod registers;
