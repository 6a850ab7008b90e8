//! Functions of other files that look at their return address, by name.
//!
//! A function that leaves by a jump to one of them hands its own return address on. That address must then be a real one. In: nothing. Out: names.
//! Does not: know such functions of other names, or where a jump through a register leads.

/// They find their caller (`dlsym` with RTLD_NEXT, a run path), or return twice.
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
