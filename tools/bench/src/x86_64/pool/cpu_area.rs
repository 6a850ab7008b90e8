//! The CPU that a measured thread runs on, from the C library's rseq area. All pools read it in this way.

use std::cell::Cell;
use std::ptr::NonNull;

use trapline_runtime::pool::{At, Registered};

unsafe extern "C" {
    /// Offset of a thread's area from the thread pointer (glibc 2.35). The size is 0 if the C library
    /// registered none.
    static __rseq_offset: isize;
    static __rseq_size: u32;
}

/// A thread, and its number in a run.
#[derive(Clone, Debug)]
pub(crate) struct CpuArea {
    area: NonNull<u8>,
    /// Number among the threads of a run.
    pub(crate) thread: usize,
    random: Cell<u32>,
}

impl CpuArea {
    /// The calling thread. `None` if it has no registered area.
    pub(crate) fn new(thread: usize) -> Option<Self> {
        let tp: *mut u8;
        // SAFETY: the thread's control block begins with its own address (psABI); the two statics are
        // constants of the C library.
        let (area, size) = unsafe {
            core::arch::asm!("mov {}, fs:0", out(reg) tp, options(nostack, readonly));
            (tp.offset(__rseq_offset), __rseq_size)
        };
        (size > 0).then(|| NonNull::new(area)).flatten().map(|area| Self::on(area, thread))
    }
    /// With a given area; its CPU number is at byte 4.
    pub(crate) const fn on(area: NonNull<u8>, thread: usize) -> Self {
        Self { area, thread, random: Cell::new(thread as u32 * 2 + 1) }
    }
    /// The CPU that the thread was on a moment ago.
    #[inline]
    pub(crate) fn cpu(&self) -> u32 {
        // SAFETY: the area is this thread's and lives as long as the thread; the kernel writes it between
        // instructions.
        unsafe { self.area.add(4).cast::<u32>().read_volatile() }
    }
    #[inline]
    pub(crate) fn at(&self) -> At {
        // SAFETY: the C library registered the area for this thread (`new`), or no other thread uses this
        // thread's pools (`on`).
        At::Rseq(unsafe { Registered::new(self.area) })
    }
    /// A random number, by Marsaglia's xorshift.
    #[inline]
    pub(crate) fn random(&self) -> u32 {
        let mut x = self.random.get();
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        self.random.set(x);
        x
    }
}
