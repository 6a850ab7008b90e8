//! A64, the 64-bit instruction set of Arm: words of 4 bytes, little-endian.
//!
//! Nothing here allocates or needs `std`: the trap path decodes and simulates in the traced program itself.

pub mod decode;
pub mod encode;
pub mod exclusive;
pub mod gpr;
pub mod live;
pub mod origins;
pub mod padding;
pub mod regs;
pub mod relocate;
pub mod simulate;
pub mod store;
pub mod verdict;

pub use decode::decode;
pub use exclusive::in_exclusive;
pub use gpr::Gpr;
pub use live::{LandingPad, landing_pad, may_patch_live};
pub use origins::Origins;
pub use padding::padding_len;
pub use regs::{FRAME, Regs};
pub use relocate::{Immovable, LONGEST, Options, Relocated, relocate};
pub use simulate::{Fault, Memory, simulate};
pub use store::Accessor;
pub use verdict::{Away, Cond, Literal, Op, Refusal, Test, Through, Vector, Verdict};
