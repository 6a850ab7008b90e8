//! Hits, from registers to consumers, without patched code: `entry` and `exit` are called as a stub would
//! call them.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod calls;
mod consumers;
mod instances;
mod leave;
#[cfg(target_arch = "x86_64")]
mod places;
mod support;
mod threads;
#[cfg(target_arch = "x86_64")]
mod x86_64;
