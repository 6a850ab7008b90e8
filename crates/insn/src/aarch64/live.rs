//! Which words may be changed while another thread may run them, and which must stay for branches to land on.
//!
//! In: words. Out: yes or no; a kind of landing pad.
//! Does not: order anything. Clearing the instruction cache and the context synchronisation of each processor are the
//! writer's; a reader that runs the word meanwhile gets the old one or the new one, if [`may_patch_live`].

use super::encode::NOP;

/// Whether a word may be replaced by another with no thread stopped: both must be of the few that the Arm ARM B2.2.5
/// ("Concurrent modification and execution of instructions") names: `b`, `bl`, `brk`, `hvc`, `isb`, `nop`, `smc`, `svc`.
/// For all others it is CONSTRAINED UNPREDICTABLE what a thread runs that has not synchronised since.
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

/// What may land on a word in a page that is guarded (`PROT_BTI`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LandingPad {
    /// `bti c`, `paciasp`, `pacibsp`: `blr`, and `br` through x16 or x17. Whether `paciasp` also takes other `br` is up to
    /// the kernel (`SCTLR_EL1.BT0`); Linux says no.
    Calls,
    /// `bti j`: `br`.
    Jumps,
    /// `bti jc`: both. `brk` and `hlt` let everything land too: they trap first.
    All,
}

/// The landing pad that a word is. A probe on one goes to the next word, or is a trap: a `b` in its place lets nothing
/// land.
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
