//! arm64: one word patched, and the code that it leads to.
//!
//! One instruction is one word and so is a patch, so there is no window: no thread can stand inside it, and
//! no branch can lead inside it (PLAN-1, PLAN-2 hold by themselves). Of the rules, PLAN-3 and PLAN-4 remain.
//!
//! Files with the name of an x86-64 twin do the same job. The heads of the others give the reason: `go`, `island`,
//! `refusal`, `supported`, `target`, `trap`. x86-64 alone has:
//!
//! - windows, and what follows from them: `window`, `padding`, `pun`, `jump`, `branch_map`, `body`, `speculate`;
//! - kernel uprobes: `kernel`;
//! - stubs with a place that their site dictates: `room`;
//! - one value for all decisions about a site: `env`.

mod action;
pub mod code_region;
mod emit;
pub(crate) mod function;
mod go;
mod island;
pub(crate) mod lay;
pub(crate) mod module;
pub(crate) mod refusal;
mod return_address;
pub mod site;
pub mod stub;
mod supported;
pub(crate) mod system_calls;
pub mod target;
pub mod trap;

pub use emit::patch::{Patch, Tactic, entry_index, patch, patch_with};
pub use function::exits::{exits, landings, ways_out};
pub use refusal::Refusal;
pub use return_address::may_arm;
pub use site::PatchedWord;
pub use target::{Unsupported, supported};
pub use trap::{TrapPlan, trapped};
/// What a word's copy may use, why there is none, the word that traps, and the one that branches.
pub use trapline_insn::aarch64::{
    Immovable, Options,
    encode::{BRK, b as branch},
};

/// Whether a word is a landing pad.
#[must_use]
pub const fn is_landing_pad(word: u32) -> bool {
    trapline_insn::aarch64::landing_pad(word).is_some()
}
