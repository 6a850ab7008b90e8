//! Whether a fault in our process is the end of it, whatever instruction it was.
//!
//! In: who handles SIGSEGV and SIGBUS. Out: whether instructions that may fault can be moved: nobody looks their address up. Rust's
//! own runtime installs a handler that looks at the *data* address only, to report an overflow of a stack, and else lets the
//! fault end the process: it is known by its name. Does not: know other harmless handlers.

use trapline_record::RemoteAddr;
use trapline_target::{Handler, Mapping, OwnCaller, Process};

use crate::files::Files;
use crate::modules::mapped;

const FAULTS: [i32; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Whether both signals end the process.
pub(super) fn are_fatal(process: &Process, maps: &[Mapping], files: &mut Files) -> bool {
    let mut caller = OwnCaller::default();
    let mut handlers: Vec<u64> = Vec::new();
    for signal in FAULTS {
        match caller.sigaction(signal, None) {
            Ok(Handler { handler: 0 | 1, .. }) => {}
            Ok(action) => handlers.push(action.handler),
            Err(_) => return false,
        }
    }
    handlers.dedup();
    handlers.iter().all(|&handler| is_rusts(process, maps, files, RemoteAddr(handler)))
}

fn is_rusts(process: &Process, maps: &[Mapping], files: &mut Files, handler: RemoteAddr) -> bool {
    let Some(home) = maps.iter().find(|m| m.start <= handler && handler < m.end).and_then(|m| m.file) else {
        return false;
    };
    let Some(load) = mapped(process, maps).into_iter().find(|load| load.id == home) else { return false };
    let Ok(module) = load.open(process, files) else { return false };
    let image = &module.file.image;
    let Some(function) = image.function_at(module.bias.stated(handler)) else { return false };
    let mut names = image.names(image.function(function)).map(|name| name.raw);
    names.any(|name| name.contains("stack_overflow") && name.contains("signal_handler"))
}
