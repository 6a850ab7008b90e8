//! What a handler asks about a trap, and the answers.
//!
//! In: addresses, registers. Out: what to do. [`Sites`](super::Sites) is what answers in a program.
//! Does not: look anything up.

use crate::native::{Op, Regs};

/// How the instruction is carried out that a trap displaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// It is simulated.
    Simulate(Op),
    /// Its copy runs, at this address.
    At(u64),
}

/// Result of looking up a trap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer<'a> {
    /// A trap of ours: the hit is over except for its instruction.
    Hit(&'a Step),
    /// A trap of ours, and its instruction is carried out too.
    Done,
    /// The mapping there was changing. The thread goes back to the trap.
    Again,
    /// Not a trap of ours, as far as is known.
    NotOurs,
}

/// Looks up our traps. Handlers call it, so it neither locks nor allocates nor panics.
pub trait Traps: Sync {
    /// If a site of ours is at `addr`, this is a hit: its consumers run, and may change `regs`; the
    /// instruction pointer there is `addr`. Otherwise nothing happens.
    ///
    /// # Safety
    /// `regs` is the state of the calling thread at the site.
    unsafe fn hit(&self, addr: u64, regs: &mut Regs) -> Answer<'_>;

    /// If `addr` is an interior boundary of a patched window: where the thread goes on.
    fn guard(&self, addr: u64) -> Option<u64> {
        let _ = addr;
        None
    }

    /// Counts changes that turn a site into an interior boundary.
    fn turns(&self) -> u64 {
        0
    }

    /// Whether `pc` is in generated code that a thread can have been moved to.
    fn is_generated(&self, pc: u64) -> bool {
        let _ = pc;
        false
    }

    /// If `pc` is in generated code, in the copy of an instruction or on the way back from it: the address
    /// where the thread would be without us.
    fn original(&self, pc: u64) -> Option<u64> {
        let _ = pc;
        None
    }
}

/// What is at the address of a trap when the code is read again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stands {
    /// A trap of the kind that we write.
    Trap,
    /// A trap of a kind that we do not write, so it is the program's.
    Theirs,
    /// No trap any more.
    None,
}
