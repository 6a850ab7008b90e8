//! The kernel's own uprobes as the oracle of counts: one counting perf event for each function, in a second,
//! identical run. (In the same run, a kernel probe on a patched site would lie inside our window.)
//!
//! This is written here rather than taken from `trapline-tracee`, so that oracle and tested code share
//! nothing.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::FromRawFd as _;
use std::path::Path;

use crate::apart::Kept;
use object::{Object as _, ObjectSegment as _, ObjectSymbol as _};

/// `struct perf_event_attr` in its fifth published size (112 bytes). Two of its fields have the names that
/// they have for uprobes.
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
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clockid: i32,
    sample_regs_intr: u64,
    aux_watermark: u32,
    sample_max_stack: u32,
}

/// The flag that closes the descriptor at exec.
const FD_CLOEXEC: u64 = 8;

/// Counting events, one for each function, on a process and its future children.
#[derive(Debug)]
pub struct Kernel(Vec<Kept>);

/// Offset of each function in its file, read with the `object` crate alone.
///
/// # Panics
/// If the file does not parse or lacks one of the functions.
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

/// Opens an event at a place, on a thread. It counts returns of the function that begins there, or its
/// entries.
fn open(
    path: &Path,
    probe_offset: u64,
    returns: bool,
    tid: u32,
    rest: PerfEventAttr,
) -> Result<Kept, String> {
    let kind = std::fs::read_to_string("/sys/bus/event_source/devices/uprobe/type")
        .map_err(|error| format!("no kernel uprobes here: {error}"))?;
    let kind = kind.trim().parse().map_err(|error| format!("the uprobe unit's type: {error}"))?;
    let name =
        std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).map_err(|error| error.to_string())?;
    // The kernel reads the name again whenever a thread inherits the event, and lets no thread be created if
    // the name is gone.
    let name: &'static std::ffi::CStr = Box::leak(name.into_boxed_c_str());
    let attr = PerfEventAttr {
        kind,
        size: size_of::<PerfEventAttr>() as u32,
        config: u64::from(returns),
        uprobe_path: name.as_ptr() as u64,
        probe_offset,
        ..rest
    };
    Kept::open(move || {
        // SAFETY: `attr` and the path in it outlive the call, and `size` states the length of `attr`.
        let fd =
            unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attr, tid, -1, -1, FD_CLOEXEC) };
        if fd < 0 {
            return Err(format!("no kernel uprobes here: {}", std::io::Error::last_os_error()));
        }
        // SAFETY: the kernel just returned this descriptor, and nothing else owns it.
        Ok(unsafe { File::from_raw_fd(fd as i32) })
    })
}

/// Kernel probes on these functions of a process.
///
/// # Errors
/// The reason why the kernel's uprobes cannot be used here.
pub fn attach(path: &Path, funcs: &[&str], pid: u32) -> Result<Kernel, String> {
    let places: Vec<(u64, bool)> = offsets(path, funcs).into_iter().map(|offset| (offset, false)).collect();
    open_all(path, &places, pid, INHERIT)
}

/// Kernel probes on these places, in this thread only. A place is an offset, and whether returns are counted.
///
/// # Errors
/// As [`attach`].
pub fn attach_at(path: &Path, places: &[(u64, bool)], tid: u32) -> Result<Kernel, String> {
    open_all(path, places, tid, 0)
}

/// The events are inherited by threads and processes that the thread creates.
const INHERIT: u64 = 1 << 1;

fn open_all(path: &Path, places: &[(u64, bool)], tid: u32, flags: u64) -> Result<Kernel, String> {
    let attr = || PerfEventAttr { flags, ..PerfEventAttr::default() };
    let open = |&(offset, returns): &(u64, bool)| open(path, offset, returns, tid, attr());
    places.iter().map(open).collect::<Result<Vec<Kept>, String>>().map(Kernel)
}

impl Kernel {
    /// Hits of each function, in the order of the request.
    ///
    /// # Panics
    /// If the events cannot be read.
    #[must_use]
    pub fn counts(&self) -> Vec<u64> {
        let read = |mut file: &File| {
            let mut word = [0; 8];
            file.read_exact(&mut word).expect("a counting event reads as one word");
            u64::from_le_bytes(word)
        };
        self.0.iter().map(|event| event.with(read)).collect()
    }
}

/// A thread's general registers, by hardware number, then rip and rflags.
pub type Registers = [u64; 18];

/// A kernel probe that records the registers, or the stack, of each hit of one thread.
#[derive(Debug)]
pub struct Sampled {
    ring: *mut u8,
    _event: Kept,
}

const PAGE: usize = 4096;
/// Pages of the ring behind its first page.
const PAGES: usize = 64;

/// A kernel probe that records the stack of each hit of one thread. The kernel walks frame pointers.
///
/// # Errors
/// As [`attach`].
pub fn stacks(path: &Path, offset: u64, tid: u32) -> Result<Sampled, String> {
    const CALLCHAIN: u64 = 1 << 5;
    const EXCLUDE_CALLCHAIN_KERNEL: u64 = 1 << 21;
    let attr = PerfEventAttr {
        sample_period: 1,
        sample_type: CALLCHAIN,
        flags: EXCLUDE_CALLCHAIN_KERNEL,
        ..PerfEventAttr::default()
    };
    map(open(path, offset, false, tid, attr)?)
}

/// A kernel probe at a place that records the registers of each hit of thread `tid`.
///
/// # Errors
/// As [`attach`].
pub fn sample(path: &Path, offset: u64, returns: bool, tid: u32) -> Result<Sampled, String> {
    const SAMPLE_REGS_USER: u64 = 1 << 12;
    // All registers of 64-bit mode but segments: ax bx cx dx si di bp sp ip flags, r8 to r15.
    const WANTED: u64 = 0x3ff | 0xff << 16;
    let attr = PerfEventAttr {
        sample_period: 1,
        sample_type: SAMPLE_REGS_USER,
        sample_regs_user: WANTED,
        ..PerfEventAttr::default()
    };
    map(open(path, offset, returns, tid, attr)?)
}

fn map(event: Kept) -> Result<Sampled, String> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let ring = event.with(move |event| {
        // SAFETY: a mapping of our own event, at an address that the kernel chooses.
        let ring = unsafe {
            let fd = std::os::fd::AsRawFd::as_raw_fd(event);
            libc::mmap(std::ptr::null_mut(), (1 + PAGES) * PAGE, prot, libc::MAP_SHARED, fd, 0)
        };
        if ring == libc::MAP_FAILED {
            Err(std::io::Error::last_os_error())
        } else {
            Ok(ring.expose_provenance())
        }
    });
    let ring = ring.map_err(|error| format!("no ring: {error}"))?;
    Ok(Sampled { ring: std::ptr::with_exposed_provenance_mut(ring), _event: event })
}

impl Sampled {
    /// Registers of each hit so far. There must be no more hits than fit into the ring.
    ///
    /// # Panics
    /// If the ring holds anything else.
    #[must_use]
    pub fn hits(&self) -> Vec<Registers> {
        /// Index in the kernel's order, for each register in the hardware's order.
        const ORDER: [usize; 18] = [0, 2, 3, 1, 7, 6, 4, 5, 10, 11, 12, 13, 14, 15, 16, 17, 8, 9];
        self.samples(|word| ORDER.map(|nth| word(2 + nth)))
    }
    /// The stack of each hit of [`stacks`], innermost address first.
    ///
    /// # Panics
    /// If the ring holds anything else, or is full.
    #[must_use]
    pub fn chains(&self) -> Vec<Vec<u64>> {
        /// Marker before the program's own addresses (`PERF_CONTEXT_USER`).
        const USER: u64 = (-512_i64).cast_unsigned();
        self.samples(|word| {
            assert_eq!(word(2), USER, "the program's own stack");
            (1..word(1) as usize).map(|nth| word(2 + nth)).collect()
        })
    }
    /// What `of` makes of the words of each sample. Word 0 is the sample's header.
    fn samples<T>(&self, of: impl Fn(&dyn Fn(usize) -> u64) -> T) -> Vec<T> {
        const DATA_HEAD: usize = 1024;
        const SAMPLE: u32 = 9;
        // SAFETY: this is the ring's first page; the kernel moves the head after it has written the data
        // before it.
        let head = unsafe {
            let head = self.ring.add(DATA_HEAD).cast::<std::sync::atomic::AtomicU64>();
            (*head).load(std::sync::atomic::Ordering::Acquire) as usize
        };
        assert!(head <= PAGES * PAGE, "more hits than fit");
        let word = |at: usize| {
            // SAFETY: the word lies before the head, inside the ring's data.
            unsafe { self.ring.add(PAGE + at).cast::<u64>().read() }
        };
        let (mut at, mut samples) = (0, Vec::new());
        while at < head {
            let header = word(at);
            assert_eq!(header as u32, SAMPLE, "a sample");
            samples.push(of(&|nth| word(at + 8 * nth)));
            at += (header >> 48) as usize;
        }
        samples
    }
}

impl Drop for Sampled {
    fn drop(&mut self) {
        // SAFETY: `sample` mapped this memory, and nothing reads it any more.
        unsafe { libc::munmap(self.ring.cast(), (1 + PAGES) * PAGE) };
    }
}

#[cfg(test)]
mod tests {
    use crate::counted::functions;
    use crate::running::Running;
    use crate::{or_skip, victims};

    /// The kernel's counts and the victims' own agree. Without that, neither could judge ours.
    #[test]
    fn the_kernel_agrees_with_the_victims() {
        for name in ["counter", "shapes", "jumps", "segv", "registers"] {
            let path = or_skip!(victims::plain(name));
            let mut victim = Running::start(&path, &[]);
            let reported = victim.run(60);
            let funcs: Vec<&str> = functions(&reported).map(|(name, _)| name).collect();
            let kernel = or_skip!(super::attach(&path, &funcs, victim.pid()));
            assert_eq!(kernel.counts(), vec![0; funcs.len()]);
            let reported = victim.run(60);
            for ((func, expected), count) in functions(&reported).zip(kernel.counts()) {
                assert_eq!(count, expected, "{name}: {func}");
            }
        }
    }
}
