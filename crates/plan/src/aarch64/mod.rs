//! arm64: one word patched, and the code that it leads to.
//!
//! One instruction is one word and so is a patch, so there is no window: no thread can stand inside it, and
//! no branch can lead inside it (PLAN-1, PLAN-2 hold by themselves). Of the rules, PLAN-3 and PLAN-4 remain.

mod action;
pub mod armed;
pub mod code_region;
pub mod exits;
mod go;
mod island;
pub(crate) mod lay;
pub mod module;
pub mod site;
pub mod stub;
mod supported;
pub mod target;
pub mod trap;

pub use armed::may_arm;
pub use exits::{exits, landings, ways_out};
pub use site::{Patch, PatchedWord, Refusal, Tactic, entry_index, patch, patch_with};
pub use target::{Unsupported, supported};
pub use trap::{Step, trapped};
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
