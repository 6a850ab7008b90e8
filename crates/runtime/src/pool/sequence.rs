//! Sequences on a per-CPU magazine: an object is taken or put by the processor's instructions between two
//! labels.
//!
//! In: a thread's rseq area, the magazines. Out: an object, or the CPU. Invariant: the last instruction of a
//! sequence is the store that commits it; an aborted one does not try again.
//! Does not: contain instructions, or show registers (the processors' files do), register threads (their C
//! library does).

use core::marker::PhantomData;
use core::ptr::NonNull;

use super::native::{put, sequence, take};

/// A thread's rseq area, registered with the kernel (rseq(2), `struct rseq`: the CPU at 4, the running
/// sequence at 8).
#[derive(Clone, Copy, Debug)]
pub struct Registered {
    area: NonNull<u8>,
    /// Binds this to one thread, since the area belongs to one.
    _thread: PhantomData<*mut ()>,
}

impl Registered {
    /// # Safety
    /// `area` is that of the calling thread, readable and writable for as long as this is used. It is
    /// registered with the kernel under the signature of the sequences (see the processors' files), as the
    /// GNU C library does, or its CPU number is negative, which means that it is not registered. This is not
    /// true in a child of `vfork`, which runs on its parent's area.
    #[must_use]
    pub const unsafe fn new(area: NonNull<u8>) -> Self {
        Self { area, _thread: PhantomData }
    }
}

/// The per-CPU magazines of a pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct Magazines {
    /// Address of the first one.
    pub(super) first: NonNull<u8>,
    /// Distance from one to the next, in bytes.
    pub(super) stride: usize,
    pub(super) cpus: u32,
}

/// Nothing was taken or put. A magazine holds objects as their number + 1, so 0 is none.
const NONE: u32 = 0;

/// Runs a sequence, with its operand `outcome`: what `done` is afterwards, or the CPU's number from the rseq
/// area.
macro_rules! run {
    ($sequence:ident, $magazines:ident, $thread:ident, $($outcome:tt)*) => {{
        let (mut cpu, mut done): (u64, u32);
        // SAFETY: the area is this thread's (`Registered::new`). A CPU below `cpus` has a magazine at first +
        // stride * CPU: a word, then its limit (the code that made `Magazines` ensures it).
        unsafe {
            $sequence!(
                area = in(reg) $thread.area.as_ptr(),
                cpus = in(reg) $magazines.cpus,
                stride = in(reg) $magazines.stride,
                first = in(reg) $magazines.first.as_ptr(),
                scratch = out(reg) _,
                magazine = out(reg) _,
                $($outcome)*,
                cpu = out(reg) cpu,
                done = inout(reg) NONE => done,
                options(nostack)
            );
        }
        if done == NONE { Err(cpu as u32) } else { Ok(done) }
    }};
}

/// G1 and G2: an object, or the CPU's number from the rseq area.
#[inline]
pub(super) fn take(magazines: Magazines, thread: Registered) -> Result<u32, u32> {
    run!(take, magazines, thread, outcome = out(reg) _).map(|object| object - 1)
}

/// P1 and P2: done, or the CPU's number from the rseq area.
#[inline]
pub(super) fn put(magazines: Magazines, thread: Registered, object: u32) -> Result<(), u32> {
    run!(put, magazines, thread, outcome = in(reg) u64::from(object) + 1).map(drop)
}
