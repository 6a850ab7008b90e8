//! arm64: what is done to our own process and to other threads by this processor's rules, and by the rules of
//! an emulator of it.

mod emulated;
pub(crate) mod frame;
pub(crate) mod gadget;
pub(crate) mod numbers;
mod own;
pub(crate) mod park;
pub(crate) mod regs;

pub use emulated::is_emulated;
pub use own::Spare;
