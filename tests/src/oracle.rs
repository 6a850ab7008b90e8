//! The kernel's own uprobes as the judge of counts: one uprobe_multi link over the same functions, in a second,
//! identical run (a kernel probe on a patched site would sit inside our window).

use std::path::Path;

use object::{Object as _, ObjectSegment as _, ObjectSymbol as _};
use trapline_target::kernel::UprobeMulti;

/// Where each function lies in its file, read with a library of its own rather than with the code under test.
///
/// # Panics
/// When the file does not parse or lacks one of the functions.
#[must_use]
pub fn offsets(path: &Path, funcs: &[&str]) -> Vec<u64> {
    let data = std::fs::read(path).expect("the victim's file");
    let file = object::File::parse(&*data).expect("an ELF file");
    let offset_of = |addr: u64| {
        file.segments().find_map(|segment| {
            let (offset, len) = segment.file_range();
            let inside = addr.checked_sub(segment.address()).filter(|delta| *delta < len)?;
            Some(offset + inside)
        })
    };
    funcs
        .iter()
        .map(|func| {
            let symbol = file.symbols().find(|symbol| symbol.name() == Ok(func) && symbol.address() != 0);
            let symbol = symbol.unwrap_or_else(|| panic!("{} has no function {func}", path.display()));
            offset_of(symbol.address()).expect("a function lies in a segment")
        })
        .collect()
}

/// Kernel probes on these functions of a process.
///
/// # Errors
/// Why the kernel's uprobes cannot be used here.
pub fn attach(path: &Path, funcs: &[&str], pid: u32) -> Result<UprobeMulti, String> {
    UprobeMulti::available().map_err(|error| format!("no kernel uprobes here: {error}"))?;
    UprobeMulti::attach(path, &offsets(path, funcs), Some(pid), false)
        .map_err(|error| format!("kernel uprobes: {error}"))
}
