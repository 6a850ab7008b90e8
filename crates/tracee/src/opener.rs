//! What a thread is doing that opens a file: it executes a program, or it is in its loader.
//!
//! In: a thread that waits in its call. Out: the file that it executes; whether its loader opens. Does not: hold it.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::auxv;
use crate::maps::{self, Mapping};
use crate::procfs;
use crate::status::InCall;
use crate::sys::wait::pause;

/// Time in which a thread comes from the event to its wait.
const PATIENCE: Duration = Duration::from_millis(200);

/// The call in which a thread waits. It may not have come to its wait yet when the event is read.
fn call_of(tid: u32) -> Option<InCall> {
    let begun = Instant::now();
    loop {
        let call = InCall::parse(&procfs::text(format!("/proc/{tid}/syscall")).ok()?)?;
        if call != InCall::Running || begun.elapsed() > PATIENCE {
            return Some(call);
        }
        pause(begun.elapsed());
    }
}

/// The file that a thread is about to execute, by the call that it is in; `None` if that is not known.
pub(crate) fn executed_file(tid: u32) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let task = format!("/proc/{tid}");
    let InCall::Call { nr, args, .. } = call_of(tid)? else { return None };
    let (folder, path) = match i64::try_from(nr).ok()? {
        libc::SYS_execve => (libc::AT_FDCWD, args[0]),
        libc::SYS_execveat => (args[0] as i32, args[1]),
        _ => return None,
    };
    let mut bytes = vec![0; libc::PATH_MAX as usize];
    let read = fs::File::open(format!("{task}/mem")).ok()?.read_at(&mut bytes, path).ok()?;
    let path = OsStr::from_bytes(bytes[..read].split(|&byte| byte == 0).next()?);
    // "self" is another process for whoever reads it.
    let own = path
        .as_bytes()
        .strip_prefix(b"/proc/self/")
        .map(|rest| Path::new(&task).join(OsStr::from_bytes(rest)));
    if let Some(own) = own {
        return fs::metadata(own).ok().map(|meta| (meta.dev(), meta.ino()));
    }
    let base = match (path.as_bytes().first(), folder) {
        (Some(b'/'), _) => format!("{task}/root"),
        (_, libc::AT_FDCWD) => format!("{task}/cwd"),
        (_, folder) => format!("{task}/fd/{folder}"),
    };
    let relative = Path::new(path).strip_prefix("/").unwrap_or(Path::new(path));
    let meta = if relative.as_os_str().is_empty() {
        fs::metadata(&base)
    } else {
        fs::metadata(Path::new(&base).join(relative))
    };
    meta.ok().map(|meta| (meta.dev(), meta.ino()))
}

/// Whether a thread opens a file in its loader, in a process that is not patched yet.
pub(crate) fn is_loading(pid: u32, tid: u32) -> bool {
    let Ok(text) = procfs::read(format!("/proc/{pid}/maps")) else { return false };
    let maps = maps::parse(&text);
    if maps.iter().any(|mapping| mapping.path.starts_with("/memfd:trapline")) {
        return false;
    }
    let Some(InCall::Call { pc, .. }) = call_of(tid) else { return true };
    let at = |address: u64| maps.iter().find(|one| (one.start.0..one.end.0).contains(&address));
    let of = |mapping: Option<&Mapping>| mapping.and_then(|one| one.file);
    match (of(auxv::loader(pid).and_then(at)), of(at(pc))) {
        (Some(loader), Some(calls)) => loader == calls,
        _ => false,
    }
}
