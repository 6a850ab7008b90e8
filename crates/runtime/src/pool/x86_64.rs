//! The sequences on a per-CPU magazine as x86-64 instructions. `sequence.rs` is the code around them.
//!
//! In: operands by name, in registers that the compiler chooses. Out: `done`, and `cpu`. The kernel continues
//! an aborted sequence behind itself, at a place behind the signature 0x53053053.
//!
//! ```text
//!          cpu       scratch             magazine            outcome         memory
//!   start  -         the descriptor      -                   put: object + 1 [area + 8] = the descriptor
//!   72     [area+4]  -                   first + stride cpu  the same        cpu >= cpus: to 75
//!   take   cpu       word, then >> 16    the same            object + 1      [magazine] = word >> 16
//!   put    cpu       word, then the new  the same            object + 1      [magazine] = (word << 16) + object + 1
//!   73     cpu       -                   -                   object + 1      committed; done = outcome
//!   75     cpu       -                   -                   -               [area + 8] = 0
//!   74     [area+4]  -                   -                   -               aborted, done is still 0: to 75
//!
//!   [magazine] = word: objects + 1, 16 bits each, the last one lowest; [magazine + 8] = limit, 0: closed
//!   take: to 75 if limit = 0 or word = 0        put: to 75 if word >= limit
//! ```
//!
//! Flags are used; the stack is not.

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
