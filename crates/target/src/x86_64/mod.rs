//! x86-64: what is done to our own process by this processor's rules.

mod own;

pub use own::ExtendedState;
