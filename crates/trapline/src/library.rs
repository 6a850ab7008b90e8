//! What the C library of a process shows about its threads.
//!
//! In: the process' files, and their variables as they are now. Out: [`Threads`], with three answers. Where
//! glibc registers rseq areas: `__rseq_offset` of its loader or of a static program, if `__rseq_size` says
//! that it does. Whether the program sets thread pointers itself, or makes threads that may have none.
//! Whether it makes children that run on a thread's control block; not known of a static program. Does not:
//! ask a thread.

use trapline_patch::Threads;
use trapline_tracee::Process;

use crate::files::Files;
use crate::modules::{Module, mapped};

/// Asks all files that may know.
pub(crate) fn threads(process: &Process, files: &mut Files) -> Threads {
    let Ok(maps) = process.maps() else { return Threads::default() };
    let mut out = Threads::default();
    for one in mapped(process, &maps) {
        let is_loader = one.mapping.path.rsplit('/').next().is_some_and(|name| name.starts_with("ld-"));
        if !is_loader && !one.is_program {
            continue;
        }
        let Ok(module) = one.open(process, files) else { continue };
        // A Go program that is linked without libraries sets thread pointers itself. With the C library, that
        // makes the threads (runtime.iscgo).
        out.own_pointers |=
            one.is_program && module.file.image.is_go() && module.file.image.needed().is_empty();
        if one.is_program {
            let imports = |names: &[&str]| module.file.image.imported().any(|name| names.contains(&name.raw));
            // Without CLONE_SETTLS a thread has its maker's pointer. A thread that ends within milliseconds
            // may not be seen by a look at all threads.
            out.own_pointers |= module.file.makes_own_threads();
            out.lent_blocks = imports(&["vfork", "posix_spawn", "posix_spawnp"]);
        }
        // In a program with a loader, the loader has the answer.
        if is_loader || module.file.image.is_static() {
            out.rseq = out.rseq.or_else(|| registered(process, &module));
        }
    }
    out
}

/// Offset of the areas, if the library registers any.
fn registered(process: &Process, module: &Module) -> Option<i32> {
    let word = |name| {
        let symbol = module.file.image.data_symbol(name)?;
        process.read_u64(module.bias.live(symbol.at)).ok()
    };
    let registers = word("__rseq_size")? as u32 != 0;
    let offset = word("__rseq_offset")?.cast_signed();
    i32::try_from(offset).ok().filter(|_| registers)
}
