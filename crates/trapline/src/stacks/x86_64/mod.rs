//! x86-64: registers from which unwinding starts.

pub(super) mod registers;
