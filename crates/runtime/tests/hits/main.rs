//! Hits, from registers to consumers, without patched code: `entry` and `exit` are called as a stub would
//! call them.

mod calls;
mod consumers;
mod instances;
mod leave;
#[cfg(target_arch = "x86_64")]
mod places;
mod support;
mod threads;
