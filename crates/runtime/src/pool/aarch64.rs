//! The sequences on a per-CPU magazine as arm64 instructions. `sequence.rs` is the code around them.
//!
//! In: operands by name, in registers that the compiler chooses. Out: `done`, and `cpu`. The kernel continues
//! an aborted sequence behind itself, at a place behind the signature 0xd428bc00.
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
//! `put` uses one more register, `limit`. Flags are used; the stack is not.

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

/// G1 and G2: `outcome` is the object + 1.
macro_rules! take {
    ($($operands:tt)*) => {
        core::arch::asm!(
            sequence!(
                "ldr {scratch}, [{magazine}, #8]",
                "cbz {scratch}, 75f",
                "ldr {scratch}, [{magazine}]",
                "cbz {scratch}, 75f",
                "and {outcome:w}, {scratch:w}, #0xffff",
                "lsr {scratch}, {scratch}, #16",
                "str {scratch}, [{magazine}]",
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
                "ldr {scratch}, [{magazine}]",
                "ldr {limit}, [{magazine}, #8]",
                "cmp {scratch}, {limit}",
                "b.hs 75f",
                "add {scratch}, {outcome}, {scratch}, lsl #16",
                // Release: after the last holder's accesses to the object, for the thread that closes the
                // pool.
                "stlr {scratch}, [{magazine}]",
            ),
            limit = out(reg) _,
            $($operands)*
        )
    };
}

pub(super) use {put, sequence, take};
