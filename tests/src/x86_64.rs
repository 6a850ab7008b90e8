//! What tests must know of x86-64.

/// Go's name for this processor.
pub(crate) const GO: &str = "amd64";

/// Whether a thread sets its own pointer by `arch_prctl`.
pub const HAS_ARCH_PRCTL: bool = true;

/// Whether code reads a mark's arguments.
pub const READS_MARKS: bool = true;
/// Whether arguments of Go's functions are known without a signature.
pub const KNOWS_GO: bool = true;
