//! x86-64: what is done to our own process and to other threads by this processor's rules.

pub(crate) mod frame;
pub(crate) mod gadget;
pub(crate) mod numbers;
mod own;
pub(crate) mod park;
pub(crate) mod regs;

pub use own::ExtendedState;
