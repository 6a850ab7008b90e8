//! Which processes are meant.

use crate::maps::FileId;

/// Pids whose comm, program file name or argv[0]'s last part is `name`; never our own.
#[must_use]
pub fn by_name(name: &str) -> Vec<u32> {
    let _ = name;
    todo!()
}

/// Pids that map this file and that we may trace; never our own.
#[must_use]
pub fn by_mapped_file(file: FileId) -> Vec<u32> {
    let _ = file;
    todo!()
}

/// All pids that map this memfd, whether or not we may write to them; never our own.
#[must_use]
pub fn users_of(memfd: FileId) -> Vec<u32> {
    let _ = memfd;
    todo!()
}
