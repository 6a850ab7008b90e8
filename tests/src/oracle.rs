//! The kernel's own uprobes as the judge of counts: one counting perf event for each function, in a second, identical
//! run (a kernel probe on a patched site would sit inside our window).
//!
//! Written here rather than taken from `trapline-target`, so that the judge shares no code with the judged.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::FromRawFd as _;
use std::path::Path;

use object::{Object as _, ObjectSegment as _, ObjectSymbol as _};

/// `struct perf_event_attr` in its second published size (72 bytes), with the names that the uprobe unit gives to two
/// of its fields.
#[repr(C)]
#[derive(Default)]
struct PerfEventAttr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    /// Bit 1: inherit.
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    uprobe_path: u64,
    probe_offset: u64,
}

/// The flag that closes the descriptor at exec.
const FD_CLOEXEC: u64 = 8;

/// Counting events, one for each function, on a process and its future children.
#[derive(Debug)]
pub struct Kernel(Vec<File>);

/// Where each function lies in its file, read with a library of its own.
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
    let find = |func: &&str| {
        let symbol = file.symbols().find(|symbol| symbol.name() == Ok(func) && symbol.address() != 0);
        let symbol = symbol.unwrap_or_else(|| panic!("{} has no function {func}", path.display()));
        offset_of(symbol.address()).expect("a function lies in a segment")
    };
    funcs.iter().map(find).collect()
}

/// Kernel probes on these functions of a process.
///
/// # Errors
/// Why the kernel's uprobes cannot be used here.
pub fn attach(path: &Path, funcs: &[&str], pid: u32) -> Result<Kernel, String> {
    let kind = std::fs::read_to_string("/sys/bus/event_source/devices/uprobe/type")
        .map_err(|error| format!("no kernel uprobes here: {error}"))?;
    let kind = kind.trim().parse().map_err(|error| format!("the uprobe unit's type: {error}"))?;
    let name =
        std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).map_err(|error| error.to_string())?;
    let open = |probe_offset: u64| {
        let attr = PerfEventAttr {
            kind,
            size: size_of::<PerfEventAttr>() as u32,
            flags: 1 << 1,
            uprobe_path: name.as_ptr() as u64,
            probe_offset,
            ..PerfEventAttr::default()
        };
        // SAFETY: `attr` and the path in it outlive the call, and `size` states how much of it there is.
        let fd =
            unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attr, pid, -1, -1, FD_CLOEXEC) };
        if fd < 0 {
            return Err(format!("no kernel uprobes here: {}", std::io::Error::last_os_error()));
        }
        // SAFETY: the kernel just gave us this descriptor, and nobody else has it.
        Ok(unsafe { File::from_raw_fd(fd as i32) })
    };
    offsets(path, funcs).into_iter().map(open).collect::<Result<Vec<File>, String>>().map(Kernel)
}

impl Kernel {
    /// Hits of each function, in the order that was asked for.
    ///
    /// # Panics
    /// When the kernel takes the events away.
    #[must_use]
    pub fn counts(&self) -> Vec<u64> {
        let read = |mut file: &File| {
            let mut word = [0; 8];
            file.read_exact(&mut word).expect("a counting event reads as one word");
            u64::from_le_bytes(word)
        };
        self.0.iter().map(read).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::counted::functions;
    use crate::running::Running;
    use crate::{or_skip, victims};

    /// Judge and victims agree with each other: without that neither's word means anything.
    #[test]
    fn the_kernel_agrees_with_the_victims() {
        for name in ["counter", "shapes", "jumps", "segv", "registers"] {
            let path = or_skip!(victims::plain(name));
            let mut victim = Running::start(&path, &[]);
            let told = victim.run(60);
            let funcs: Vec<&str> = functions(&told).map(|(name, _)| name).collect();
            let kernel = or_skip!(super::attach(&path, &funcs, victim.pid()));
            assert_eq!(kernel.counts(), vec![0; funcs.len()]);
            let told = victim.run(60);
            for ((func, expected), count) in functions(&told).zip(kernel.counts()) {
                assert_eq!(count, expected, "{name}: {func}");
            }
        }
    }
}
