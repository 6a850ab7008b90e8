//! Sequences on a per-CPU magazine as arm64 instructions.
//!
//! In: a thread's rseq area, the magazines. Out: an object, or the CPU. Invariant: the last instruction of a
//! sequence is the store that commits it; an aborted one does not try again.
//! Does not: register threads (their C library does).

use core::arch::asm;
use core::marker::PhantomData;
use core::ptr::NonNull;

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
    /// registered with the kernel under the signature 0xd428bc00, as the GNU C library does, or its CPU
    /// number is negative, which means that it is not registered. This is not true in a child of `vfork`,
    /// which runs on its parent's area.
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

/// The descriptor (`struct rseq_cs`) of the sequence from label 72 to 73. When it is aborted, it goes on
/// behind itself, with nothing done and the number of the present CPU.
macro_rules! sequence {
    ($($body:literal),* $(,)?) => {
        concat!(
            ".pushsection __rseq_cs, \"aw\"\n",
            ".balign 32\n",
            "77: .long 0, 0\n",
            ".quad 72f, 73f - 72f, 74f\n",
            ".popsection\n",
            "adrp {scratch}, 77b\n",
            "add {scratch}, {scratch}, :lo12:77b\n",
            "str {scratch}, [{area}, #8]\n",
            "72:\n",
            "ldr {cpu:w}, [{area}, #4]\n",
            "cmp {cpu:w}, {cpus:w}\n",
            "b.hs 75f\n",
            "madd {magazine}, {stride}, {cpu}, {first}\n",
            $($body, "\n",)*
            "73:\n",
            "mov {done:w}, {outcome:w}\n",
            "75:\n",
            // The code or the descriptor may be unmapped later, and then the kernel must not look for them.
            "str xzr, [{area}, #8]\n",
            ".pushsection .text.trapline_rseq_abort, \"ax\"\n",
            // The signature, which the kernel requires there: a brk that is never executed.
            ".inst 0xd428bc00\n",
            "74: ldr {cpu:w}, [{area}, #4]\n",
            "b 75b\n",
            ".popsection\n",
        )
    };
}

/// G1 and G2: an object, or the CPU's number from the rseq area.
#[inline]
pub(super) fn take(magazines: Magazines, thread: Registered) -> Result<u32, u32> {
    let (mut cpu, mut object): (u64, u32);
    // SAFETY: the area is this thread's (`Registered::new`). A CPU below `cpus` has a magazine at first +
    // stride * CPU: a word, then its limit (the code that made `Magazines` ensures it).
    unsafe {
        asm!(
            sequence!(
                "ldr {scratch}, [{magazine}, #8]",
                "cbz {scratch}, 75f",
                "ldr {scratch}, [{magazine}]",
                "cbz {scratch}, 75f",
                "and {outcome:w}, {scratch:w}, #0xffff",
                "lsr {scratch}, {scratch}, #16",
                "str {scratch}, [{magazine}]",
            ),
            area = in(reg) thread.area.as_ptr(),
            cpus = in(reg) magazines.cpus,
            stride = in(reg) magazines.stride,
            first = in(reg) magazines.first.as_ptr(),
            scratch = out(reg) _,
            magazine = out(reg) _,
            outcome = out(reg) _,
            cpu = out(reg) cpu,
            done = inout(reg) NONE => object,
            options(nostack)
        );
    }
    if object == NONE { Err(cpu as u32) } else { Ok(object - 1) }
}

/// P1 and P2: done, or the CPU's number from the rseq area.
#[inline]
pub(super) fn put(magazines: Magazines, thread: Registered, object: u32) -> Result<(), u32> {
    let (mut cpu, mut done): (u64, u32);
    // SAFETY: as in `take`.
    unsafe {
        asm!(
            sequence!(
                "ldr {scratch}, [{magazine}]",
                "ldr {limit}, [{magazine}, #8]",
                "cmp {scratch}, {limit}",
                "b.hs 75f",
                "add {scratch}, {outcome}, {scratch}, lsl #16",
                // Release: after the last holder's accesses to the object, for the thread that closes the
                // pool.
                "stlr {scratch}, [{magazine}]",
            ),
            area = in(reg) thread.area.as_ptr(),
            cpus = in(reg) magazines.cpus,
            stride = in(reg) magazines.stride,
            first = in(reg) magazines.first.as_ptr(),
            scratch = out(reg) _,
            limit = out(reg) _,
            magazine = out(reg) _,
            outcome = in(reg) u64::from(object) + 1,
            cpu = out(reg) cpu,
            done = inout(reg) NONE => done,
            options(nostack)
        );
    }
    if done == NONE { Err(cpu as u32) } else { Ok(()) }
}
