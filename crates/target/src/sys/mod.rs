//! Thin wrappers; the only unsafe code of this crate.
#![allow(unsafe_code, reason = "each wrapper is one system call")]
