//! arm64: what is done to our own process by this processor's rules, and by those of a program that stands in for it.

mod emulated;
mod own;

pub use emulated::is_emulated;
pub use own::Spare;
