//! What stubs and the kernel can do on x86-64.

/// Whether stubs read the arguments of USDT probes.
pub(crate) const READS_MARKS: bool = true;
/// Whether rows that belong to threads can be filtered by thread names.
pub(crate) const FILTERS_ROWS_BY_NAME: bool = true;
/// Whether a register holds Go's goroutine, so that every return finds what its entry left.
pub(crate) const GOROUTINE_IN_REGISTER: bool = false;
/// Why writes by the kernel are not seen, where they are not.
pub(crate) const KERNEL_UNSEEN: &str = "without CAP_PERFMON";
/// Whether handlers of faults can be shown the original addresses of faults in copies.
pub(crate) const DELIVERS_FAULTS: bool = true;
/// Whether the kernel reports only one of several watched places that one store touches.
pub(crate) const REPORTS_ONE_PLACE: bool = false;
