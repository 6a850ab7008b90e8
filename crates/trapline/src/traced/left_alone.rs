//! Whether code that a detach left alone was changed by others.
//!
//! In: a process whose patches are out, places that held neither our bytes nor the program's when their turn came. Out: how
//! many differ from their file now. Others were unmapped, and something else lies there: another file, or the same
//! library, loaded again, whose own patches were taken out after that look. What cannot be compared counts as changed.
//! Does not: change anything.

use std::os::unix::fs::FileExt as _;

use trapline_patch::NotRestored;
use trapline_tracee::{Mapping, Process};

/// How many of these places hold something else than their file.
pub(super) fn changed<'a>(process: &Process, left: impl Iterator<Item = &'a NotRestored>) -> u64 {
    let mut left = left.filter(|one| one.found.is_some()).peekable();
    if left.peek().is_none() {
        return 0;
    }
    let Ok(maps) = process.maps() else { return left.count() as u64 };
    left.filter(|one| is_as_its_file(process, &maps, one) == Some(false)).count() as u64
}

/// Whether a place holds its file's bytes; `None` if nothing is mapped there any more.
fn is_as_its_file(process: &Process, maps: &[Mapping], left: &NotRestored) -> Option<bool> {
    let at = left.addr;
    let mapping = maps.iter().find(|one| (one.start..one.end).contains(&at))?;
    let len = usize::from(left.len).min((mapping.end.0 - at.0) as usize);
    let (mut here, mut there) = (vec![0; len], vec![0; len]);
    let offset = mapping.offset.0 + (at.0 - mapping.start.0);
    let file = process.open_file_of(mapping);
    let compared = process.read(at, &mut here).is_ok()
        && file.is_ok_and(|opened| opened.file.read_exact_at(&mut there, offset).is_ok());
    Some(compared && here == there)
}
