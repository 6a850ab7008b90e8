//! x86-64, 64-bit mode only.

pub mod decode;
pub mod flags;
pub mod function;
pub mod gpr;
pub mod lead;
pub mod origins;
pub mod padding;
pub mod regs;
pub mod relocate;
pub mod scan;
pub mod simulate;
pub mod store;

pub use decode::{Class, Flow, Insn, MemKind, MemUse, decode_one, faults_on_register, sweep, sweep_into};
pub use flags::{Look, Overwritten, flags_dead_after, overwritten_gprs};
pub use function::{Body, Exit, ExitKind, FunctionRange, analyse, analyse_further};
pub use gpr::Gpr;
pub use lead::Lead;
pub use origins::Origins;
pub use padding::padding_len;
pub use regs::Regs;
pub use relocate::{
    Immovable, Options, RelocateError, Relocated, may_displace, relocate, relocate_bytes, relocate_into,
    relocate_with,
};
pub use scan::{ScanItem, Scanned, scan};
pub use store::{Accessor, Effect, Op, RegFile, Stored};
