//! x86-64: what an unwinder starts from.

pub(super) mod registers;
