//! What stubs and the kernel can do on one processor and not on the other, for outside tracing.
//!
//! In: code, for what is found by its bytes. Out: constants, addresses; the twins have the same names. Does
//! not: anything for `inside`, which has twins of its own.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use self::aarch64::*;
#[cfg(target_arch = "x86_64")]
pub(crate) use self::x86_64::*;
