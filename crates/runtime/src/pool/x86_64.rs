//! Sequences on a per-CPU magazine as x86-64 instructions.
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
    /// registered with the kernel under the signature 0x53053053, as the GNU C library does, or its CPU
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
            "lea {scratch}, [rip + 77b]\n",
            "mov [{area} + 8], {scratch}\n",
            "72:\n",
            "mov {cpu:e}, [{area} + 4]\n",
            "cmp {cpu:e}, {cpus:e}\n",
            "jae 75f\n",
            "mov {magazine}, {stride}\n",
            "imul {magazine}, {cpu}\n",
            "add {magazine}, {first}\n",
            $($body, "\n",)*
            "73:\n",
            "mov {done:e}, {outcome:e}\n",
            "75:\n",
            // The code or the descriptor may be unmapped later, and then the kernel must not look for them.
            "mov qword ptr [{area} + 8], 0\n",
            ".pushsection .text.trapline_rseq_abort, \"ax\"\n",
            // An instruction that is never executed (ud1). It contains the signature, which the kernel
            // requires there.
            ".byte 0x0f, 0xb9, 0x3d\n",
            ".long 0x53053053\n",
            "74: mov {cpu:e}, [{area} + 4]\n",
            "jmp 75b\n",
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
                "cmp qword ptr [{magazine} + 8], 0",
                "je 75f",
                "mov {scratch}, [{magazine}]",
                "test {scratch}, {scratch}",
                "jz 75f",
                "movzx {outcome:e}, {scratch:x}",
                "shr {scratch}, 16",
                "mov [{magazine}], {scratch}",
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
                "mov {scratch}, [{magazine}]",
                "cmp {scratch}, [{magazine} + 8]",
                "jae 75f",
                "shl {scratch}, 16",
                "add {scratch}, {outcome}",
                "mov [{magazine}], {scratch}",
            ),
            area = in(reg) thread.area.as_ptr(),
            cpus = in(reg) magazines.cpus,
            stride = in(reg) magazines.stride,
            first = in(reg) magazines.first.as_ptr(),
            scratch = out(reg) _,
            magazine = out(reg) _,
            outcome = in(reg) u64::from(object) + 1,
            cpu = out(reg) cpu,
            done = inout(reg) NONE => done,
            options(nostack)
        );
    }
    if done == NONE { Err(cpu as u32) } else { Ok(()) }
}
