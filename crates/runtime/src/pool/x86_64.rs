//! The sequences on a per-CPU magazine as x86-64 instructions. `sequence.rs` is the code around them.
//!
//! In: operands by name: `area`, `cpus`, `stride`, `first`; registers for `scratch`, `magazine`, `outcome`. Out:
//! `done`, and `cpu`. The kernel continues an aborted sequence behind itself, at a place that begins with the
//! signature 0x53053053.

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

/// G1 and G2: `outcome` is the object + 1.
macro_rules! take {
    ($($operands:tt)*) => {
        core::arch::asm!(
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
            $($operands)*
        )
    };
}

/// P1 and P2: `outcome` is the object + 1.
macro_rules! put {
    ($($operands:tt)*) => {
        core::arch::asm!(
            sequence!(
                "mov {scratch}, [{magazine}]",
                "cmp {scratch}, [{magazine} + 8]",
                "jae 75f",
                "shl {scratch}, 16",
                "add {scratch}, {outcome}",
                "mov [{magazine}], {scratch}",
            ),
            $($operands)*
        )
    };
}

pub(super) use {put, sequence, take};
