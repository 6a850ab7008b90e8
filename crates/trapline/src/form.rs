//! In which form the end of a call is seen.

/// How the end of a call is seen that is timed, or whose return is recorded or tallied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Returns {
    /// Its exits are patched; where they cannot all be found or patched, or one is a jump to another function, its return address is replaced, if
    /// that can be told to whoever unwinds stacks there.
    #[default]
    Auto,
    /// Its exits are patched. A call that ends by a jump to another function is timed until that.
    Exits,
    /// Its return address is replaced.
    Stack,
}

impl Returns {
    /// The most calls whose return address can be replaced at a time.
    pub const MOST_ACTIVE: u32 = trapline_record::slots::Slots::LIMITS.1;
}
