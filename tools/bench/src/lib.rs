//! What the bench and the processes that it measures share: the measured functions, and the loop that calls them.

#[cfg(target_arch = "x86_64")]
pub mod functions;
#[cfg(target_arch = "aarch64")]
#[path = "no_victim.rs"]
pub mod victim;
#[cfg(target_arch = "x86_64")]
pub mod victim;
