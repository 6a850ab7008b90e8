//! The trap path: a trap instruction is executed, consumers run, the displaced instruction is done.
//!
//! In: signals. Out: hits; and the program's own signals, as if we were not there. What this needs of the processor and of the kernel's
//! frames is in the twin folders ([`native`](crate::native)): registers and their place in a signal's frame (`context`), whether a
//! signal is about a trap, and where (`breakpoint`), an instruction's copy (`copies`), accesses that may fault (`access`), calls (`sys`).
//! Invariants: TRAP-1 to TRAP-3, stated where they are kept. Does not: write code.

mod chain;
pub(crate) mod copies;
mod fault;
mod handler;
pub mod install;
mod places;
pub mod signals;
#[cfg(not(loom))]
mod sites;
pub mod windows;

pub use copies::{Arena, Copies, Copy};
pub use install::{Block, InstallError, Signal, blocks_traps, install, standing, stands, uninstall};
#[cfg(all(not(loom), target_arch = "aarch64"))]
pub(crate) use sites::call;
#[cfg(not(loom))]
pub use sites::{Called, Placed, Role, Sites};
pub use windows::{Brought, Windows};

use crate::native::{Op, Regs};

/// What becomes of the instruction that a trap displaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// It is simulated.
    Simulate(Op),
    /// Its copy runs, at this address.
    At(u64),
}

/// Where the code begins that the kernel calls for a trap: whoever walks a stack knows the trap by it.
#[must_use]
pub fn handler_address() -> u64 {
    handler::on_trap as *const () as u64
}

/// Whose a trap is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer<'a> {
    /// Ours: the hit is over but for its instruction.
    Hit(&'a Step),
    /// Ours, and its instruction is done too.
    Done,
    /// What is mapped there was changing. The thread goes back to the trap.
    Again,
    /// Not ours, as far as is known.
    Nobody,
}

/// Who knows our traps. Asked by handlers: neither locks nor allocates nor panics.
pub trait Traps: Sync {
    /// If a site of ours is at `addr`: a hit. Its consumers run, and may change `regs`, which are at `addr`. Otherwise nothing is
    /// done.
    ///
    /// # Safety
    /// `regs` is the state of the calling thread at the site.
    unsafe fn hit(&self, addr: u64, regs: &mut Regs) -> Answer<'_>;

    /// If `addr` is a place inside a patched window: where the thread goes on.
    fn guard(&self, addr: u64) -> Option<u64> {
        let _ = addr;
        None
    }

    /// Counts changes that make a place inside a window of what was a site.
    fn turns(&self) -> u64 {
        0
    }

    /// Whether `pc` is in generated code that a thread can have been moved to.
    fn is_generated(&self, pc: u64) -> bool {
        let _ = pc;
        false
    }

    /// If `pc` is in generated code, in the copy of an instruction or on the way back from it: where the thread would be without us.
    fn original(&self, pc: u64) -> Option<u64> {
        let _ = pc;
        None
    }
}

/// What stands where a trap was executed, now that somebody looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stands {
    /// A trap of the kind that we write.
    Trap,
    /// A trap of a kind that we do not write: the program's.
    Theirs,
    /// None any more.
    None,
}
