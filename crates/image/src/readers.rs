//! Functions of other files that read their own return address, by name.
//!
//! A function that is left by a jump to one of them passes on its own return address, which must then be a
//! real one. In: nothing. Out: names.
//! Does not: know such functions of other names, or where a jump through a register leads.

/// These look up their caller (`dlsym` with RTLD_NEXT, a run path), or return twice.
pub(super) const READERS: [&str; 10] = [
    "dlsym",
    "dlvsym",
    "dlopen",
    "dlmopen",
    "vfork",
    "__vfork",
    "setjmp",
    "_setjmp",
    "__sigsetjmp",
    "getcontext",
];
