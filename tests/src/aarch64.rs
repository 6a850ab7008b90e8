//! What tests must know of arm64.

/// Go's name for this processor.
pub(crate) const GO: &str = "arm64";

/// Whether a thread sets its own pointer by `arch_prctl`.
pub const HAS_ARCH_PRCTL: bool = false;

/// Whether code reads a mark's arguments.
pub const READS_MARKS: bool = false;
/// Whether arguments of Go's functions are known without a signature.
pub const KNOWS_GO: bool = false;
