//! How the end of a call is seen.

/// How the end of a call is seen, if it is timed, or if its return is recorded or aggregated. Choose another
/// than [`Returns::Auto`] where a call's tail calls matter ([`Builder::returns`](crate::Builder::returns)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Returns {
    /// Its exits are patched. Its return address is replaced instead if exits cannot all be found or patched,
    /// or one is a jump to another function; but only if that can be registered with all unwinders there.
    #[default]
    Auto,
    /// Its exits are patched. A call that ends by a jump to another function is timed until that jump.
    Exits,
    /// Its return address is replaced.
    Stack,
}

impl Returns {
    /// Most calls that can have a replaced return address at a time.
    pub const MOST_ACTIVE: u32 = trapline_record::trampolines::Trampolines::LIMITS.1;
}
