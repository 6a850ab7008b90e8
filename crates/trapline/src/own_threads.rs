//! Whether a program may make threads in its own way, not by its C library's `pthread_create`.
//!
//! In: a program's image. Out: whether it names `clone`, or its own code may make the system call. Such threads
//! may have no control block of the library, or another thread's; one that lives for a millisecond is seen by
//! no look at all threads (`traced::births`). Errs on the side of yes: then stubs count without rseq areas.
//! Does not: follow a number that is computed, or `clone` by an address in data.
//!
//! A program that needs libraries imports `clone`. A static one has it inside, and its own C library calls it
//! there, from functions that have names.

use trapline_image::{Function, Image};
use trapline_record::Svma;

use crate::arch::{references, thread_calls};

/// The C library's names for it.
const CLONE: [&str; 2] = ["clone", "__clone"];
/// Functions in which glibc (since 2.35; before, it registers no rseq areas) and musl call it, or make the
/// system call.
const LIBRARYS: [&str; 14] = [
    "clone",
    "__clone",
    "clone3",
    "__clone3",
    "__clone_internal",
    "__clone_internal_fallback",
    "_Fork",
    "__libc_fork",
    "fork",
    "vfork",
    "__vfork",
    "__pthread_create",
    "pthread_create",
    "posix_spawn",
];

/// Whether it may.
pub(crate) fn own_threads(image: &Image) -> bool {
    if image.imported().any(|name| CLONE.contains(&name.raw)) {
        return true;
    }
    // What the compiler made of a function has a suffix.
    let is_of = |function: &Function, names: &[&str]| {
        image.names(function).any(|name| names.contains(&name.raw.split('.').next().unwrap_or_default()))
    };
    let has_library = image.is_static();
    let clones = image.functions().iter().filter(|function| has_library && is_of(function, &CLONE));
    let clones: Vec<u64> = clones.map(|function| function.start.0).collect();
    let is_programs = |at: u64| {
        let function = image.function_at(Svma(at)).map(|function| image.function(function));
        !has_library || function.is_some_and(|function| !is_of(function, &LIBRARYS))
    };
    image.text_ranges().iter().any(|&(start, len)| {
        let code = image.text(start, len).unwrap_or_default();
        let named = clones.iter().flat_map(|&clone| references(code, start.0, clone));
        named.chain(thread_calls(code, start.0)).any(is_programs)
    })
}
