//! arm64: what an unwinder starts from.

pub(super) mod registers;
