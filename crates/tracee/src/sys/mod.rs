//! Thin wrappers, one system call each, and the loan of a job ([`lend`]); the only unsafe code of this crate.
//!
//! Input: plain values. Output: plain values and `io::Error`. Each request that reaches the target passes
//! [`fault::point`], so that tests can end the tracer before or after any of them.
#![allow(unsafe_code, reason = "each wrapper is one system call; a loan is one transmute")]

#[cfg(target_arch = "aarch64")]
pub(crate) mod aarch64;
pub(crate) mod bpf;
pub(crate) mod fanotify;
pub(crate) mod fault;
pub(crate) mod fd;
pub(crate) mod lend;
pub(crate) mod limit;
pub(crate) mod map;
pub(crate) mod orphan;
pub(crate) mod own;
pub(crate) mod own_traps;
pub(crate) mod perf;
pub(crate) mod ptrace;
pub(crate) mod signals;
pub(crate) mod tried;
pub(crate) mod wait;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64 as native;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64 as native;

use std::io;

/// The result of a call that returns −1 for an error.
pub(crate) fn check(result: i64) -> io::Result<i64> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
