//! Programs that trace others. A process can have only one tracer, so following such a program's children
//! would take that from it.
//!
//! In: a process. Out: why neither it nor its children are followed, if so. Does not: recognize a program
//! that makes the system call without libc's function, except LeakSanitizer.

use trapline_image::Image;
use trapline_tracee::Process;

use crate::files::Files;
use crate::modules::{mapped, name_of};

/// Programs that call ptrace only for rare options.
const RARELY: [&str; 3] = ["sudo", "sudoedit", "perf"];
/// A function that each LeakSanitizer defines, in a program or in a library of its own.
const LEAKS: &str = "__lsan_do_leak_check";

/// Why a process is not followed; `None` if it can be.
pub(crate) fn why_not_followed(process: &Process, files: &mut Files) -> Option<&'static str> {
    let maps = process.maps().ok()?;
    let all = mapped(process, &maps);
    // Few libraries matter here, and parsing all of them for each program would cost time.
    let matter = |path: &str| name_of(path).contains("san");
    all.iter().filter(|one| one.is_program || matter(&one.mapping.path)).find_map(|one| {
        let image = &one.open(process, files).ok()?.file.image;
        if one.is_program && calls_ptrace(image) && !RARELY.contains(&name_of(&one.mapping.path)) {
            return Some("it calls ptrace, and a process has one tracer");
        }
        defines(image, LEAKS).then_some("it has LeakSanitizer, which traces it when it ends")
    })
}

/// Whether a program calls ptrace by libc, or by a copy of libc's function in a static program.
fn calls_ptrace(image: &Image) -> bool {
    image.imported().any(|name| name.raw == "ptrace") || image.is_static() && defines(image, "ptrace")
}

fn defines(image: &Image, wanted: &str) -> bool {
    image.functions().iter().any(|function| image.names(function).any(|name| name.raw == wanted))
}
