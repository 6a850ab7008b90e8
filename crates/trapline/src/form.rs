//! In which form the end of a call is seen.

/// How the end of a timed call is seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Returns {
    /// Its exits are patched; where they cannot all be found or patched, or some are tail calls, its return address is replaced, if that can
    /// be told to all that unwind stacks there.
    #[default]
    Auto,
    /// Its exits are patched.
    Exits,
    /// Its return address is replaced.
    Stack,
}

impl Returns {
    /// The most calls whose return address can be replaced at a time.
    pub const MOST_ACTIVE: u32 = trapline_record::slots::Slots::LIMITS.1;
}
