//! The signals that guards and loads of ours raise: their numbers, and where the program's actions for them are
//! journaled.
//!
//! In: nothing. Out: constants. Does not: set an action (see `install::handler`).

use trapline_record::control::at;

pub(crate) const SIGILL: i32 = 4;
pub(crate) const SIGTRAP: i32 = 5;
pub(crate) const SIGBUS: i32 = 7;
pub(crate) const SIGSEGV: i32 = 11;

/// Both signals of traps, as a set.
pub(crate) const TRAPS: u64 = bit(SIGTRAP) | bit(SIGILL);
/// Both signals of faults, as a set.
pub(crate) const FAULTS: u64 = bit(SIGSEGV) | bit(SIGBUS);

/// Bit of a signal in a set of signals.
pub(crate) const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// A signal that the handler serves: where its old action is journaled, and its bit of `HANDLES`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served {
    pub(crate) signal: i32,
    pub(crate) old: u64,
    pub(crate) bit: u64,
}

/// All signals: of traps, and of faults.
pub(crate) const SERVED: [Served; 4] = [
    Served { signal: SIGTRAP, old: at::OLD_SIGTRAP, bit: 1 },
    Served { signal: SIGILL, old: at::OLD_SIGILL, bit: 2 },
    Served { signal: SIGSEGV, old: at::OLD_SIGSEGV, bit: 4 },
    Served { signal: SIGBUS, old: at::OLD_SIGBUS, bit: 8 },
];
