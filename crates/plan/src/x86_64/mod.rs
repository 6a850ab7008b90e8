//! x86-64: windows, tactics and generated code.

pub mod stub;
