//! What stubs and the kernel can do on arm64.

/// Whether stubs read the arguments of USDT probes.
pub(crate) const READS_MARKS: bool = false;
/// Whether rows that belong to threads can be filtered by thread names: only the reader knows names here.
pub(crate) const FILTERS_ROWS_BY_NAME: bool = false;
/// Whether a register holds Go's goroutine, so that every return finds what its entry left.
pub(crate) const GOROUTINE_IN_REGISTER: bool = true;
/// Why writes by the kernel are not seen, where they are not.
pub(crate) const KERNEL_UNSEEN: &str = "on arm64";
/// Whether handlers of faults can be shown the original addresses of faults in copies.
pub(crate) const DELIVERS_FAULTS: bool = false;
/// Whether the kernel reports only one of several watched places that one store touches.
pub(crate) const REPORTS_ONE_PLACE: bool = true;
