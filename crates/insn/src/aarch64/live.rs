//! Which words may be changed while another thread may run them, and which must stay because branches may
//! land on them.
//!
//! In: words. Out: yes or no; a kind of landing pad.
//! Does not: order anything. The writer has to invalidate the instruction cache and to synchronise the
//! context of each processor. If [`may_patch_live`], a thread that runs the word meanwhile gets the old word
//! or the new one.

use super::encode::NOP;

/// Whether a word may be replaced by another with no thread stopped. Both must be of the few that the Arm ARM
/// B2.2.5 ("Concurrent modification and execution of instructions") names: `b`, `bl`, `brk`, `hvc`, `isb`,
/// `nop`, `smc`, `svc`. For all others it is CONSTRAINED UNPREDICTABLE what a thread runs if it has not
/// synchronised since.
#[must_use]
pub const fn may_patch_live(old: u32, new: u32) -> bool {
    is_live(old) && is_live(new)
}

const fn is_live(word: u32) -> bool {
    let branch = word & 0x7C00_0000 == 0x1400_0000;
    let trap = matches!(word & 0xFFE0_001F, 0xD420_0000 | 0xD400_0001 | 0xD400_0002 | 0xD400_0003);
    let isb = word & 0xFFFF_F0FF == 0xD503_30DF;
    branch || trap || isb || word == NOP
}

/// Which branches may land on a word in a guarded page (`PROT_BTI`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LandingPad {
    /// `bti c`, `paciasp`, `pacibsp`: `blr`, and `br` through x16 or x17. The kernel decides whether other
    /// `br` may land on `paciasp`, too (`SCTLR_EL1.BT0`); Linux does not allow it.
    Calls,
    /// `bti j`: `br`.
    Jumps,
    /// `bti jc`: both. On `brk` and `hlt` every branch may land, too: they trap first.
    All,
}

/// The kind of landing pad that a word is. A probe on one moves to the next word, or is a trap: no branch may
/// land on a `b` in its place.
#[must_use]
pub const fn landing_pad(word: u32) -> Option<LandingPad> {
    match word {
        0xD503_245F | 0xD503_233F | 0xD503_237F => Some(LandingPad::Calls),
        0xD503_249F => Some(LandingPad::Jumps),
        0xD503_24DF => Some(LandingPad::All),
        _ if matches!(word & 0xFFE0_001F, 0xD420_0000 | 0xD440_0000) => Some(LandingPad::All),
        _ => None,
    }
}
