//! SAFE-2: what a hit preserves: general and vector registers, flags, the stack, errno.

use trapline_runtime::native::Regs;

use crate::site::{Site, Text, call, nothing, text, trapped, trapped_at};

/// Overwrites vector registers, as compiled code may.
fn spoils(_: &Site, _: &mut Regs) {
    // SAFETY: the registers are declared as clobbered.
    unsafe {
        std::arch::asm!("movi v0.2d, #0", "movi v7.2d, #0", "movi v16.2d, #0", "movi v31.2d, #0", "cmp xzr, xzr",
            out("v0") _, out("v7") _, out("v16") _, out("v31") _);
    }
}

/// Load everything from x0, the trapped word, store everything to x1: 32 vectors, x2 to x28, flags.
fn around() -> [(Text, usize); 4] {
    macro_rules! around {
        ($name:ident, $word:literal) => {
            text!($name:
                "stp x29, x30, [sp, #-112]!", "stp x19, x20, [sp, #16]", "stp x21, x22, [sp, #32]", "stp x23, x24, [sp, #48]",
                "stp x25, x26, [sp, #64]", "stp x27, x28, [sp, #80]", "str x1, [sp, #96]",
                "stp d8, d9, [sp, #-64]!", "stp d10, d11, [sp, #16]", "stp d12, d13, [sp, #32]", "stp d14, d15, [sp, #48]",
                "ld1 {{v0.16b-v3.16b}}, [x0], #64", "ld1 {{v4.16b-v7.16b}}, [x0], #64", "ld1 {{v8.16b-v11.16b}}, [x0], #64",
                "ld1 {{v12.16b-v15.16b}}, [x0], #64", "ld1 {{v16.16b-v19.16b}}, [x0], #64", "ld1 {{v20.16b-v23.16b}}, [x0], #64",
                "ld1 {{v24.16b-v27.16b}}, [x0], #64", "ld1 {{v28.16b-v31.16b}}, [x0], #64",
                "ldr x2, [x0]", "msr nzcv, x2", "ldp x2, x3, [x0, #16]", "ldp x4, x5, [x0, #32]", "ldp x6, x7, [x0, #48]",
                "ldp x8, x9, [x0, #64]", "ldp x10, x11, [x0, #80]", "ldp x12, x13, [x0, #96]", "ldp x14, x15, [x0, #112]",
                "ldp x16, x17, [x0, #128]", "ldp x19, x20, [x0, #144]", "ldp x21, x22, [x0, #160]", "ldp x23, x24, [x0, #176]",
                "ldp x25, x26, [x0, #192]", "ldp x27, x28, [x0, #208]",
                $word,
                "ldr x1, [sp, #160]",
                "st1 {{v0.16b-v3.16b}}, [x1], #64", "st1 {{v4.16b-v7.16b}}, [x1], #64", "st1 {{v8.16b-v11.16b}}, [x1], #64",
                "st1 {{v12.16b-v15.16b}}, [x1], #64", "st1 {{v16.16b-v19.16b}}, [x1], #64", "st1 {{v20.16b-v23.16b}}, [x1], #64",
                "st1 {{v24.16b-v27.16b}}, [x1], #64", "st1 {{v28.16b-v31.16b}}, [x1], #64",
                "stp x2, x3, [x1, #16]", "mrs x2, nzcv", "str x2, [x1]", "stp x4, x5, [x1, #32]", "stp x6, x7, [x1, #48]",
                "stp x8, x9, [x1, #64]", "stp x10, x11, [x1, #80]", "stp x12, x13, [x1, #96]", "stp x14, x15, [x1, #112]",
                "stp x16, x17, [x1, #128]", "stp x19, x20, [x1, #144]", "stp x21, x22, [x1, #160]", "stp x23, x24, [x1, #176]",
                "stp x25, x26, [x1, #192]", "stp x27, x28, [x1, #208]",
                "ldp d14, d15, [sp, #48]", "ldp d12, d13, [sp, #32]", "ldp d10, d11, [sp, #16]", "ldp d8, d9, [sp], #64",
                "ldp x27, x28, [sp, #80]", "ldp x25, x26, [sp, #64]", "ldp x23, x24, [sp, #48]", "ldp x21, x22, [sp, #32]",
                "ldp x19, x20, [sp, #16]", "ldp x29, x30, [sp], #112", "ret")
        };
    }
    // Words that are simulated, one that is copied, and pushes: into the part of the kernel's frame that is
    // free, or, if vectors are long (`-cpu max,sve-default-vector-length=256`), into one that is not.
    [
        (around!(around_nop, "nop"), 34),
        (around!(around_mov, "orr x0, x0, x0"), 34),
        (around!(around_push, "str x1, [sp, #-16]!\nadd sp, sp, #16"), 34),
        (around!(around_far_push, "stp x29, x30, [sp, #-512]!\nadd sp, sp, #512"), 34),
    ]
}

#[repr(C, align(16))]
struct State([u64; 64 + 28]);

#[test]
fn registers_and_flags_survive() {
    for (text, index) in around() {
        let (at, site) = trapped_at(text, index, spoils);
        for round in 0..100_u64 {
            let mut from =
                State(std::array::from_fn(|n| (round + n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)));
            from.0[64] &= 0xF000_0000;
            from.0[65] = 0;
            let mut to = State([0; 92]);
            call(at, from.0.as_ptr() as u64, to.0.as_mut_ptr() as u64);
            assert!(from.0 == to.0, "{:x?} {:x?}", from.0, to.0);
        }
        assert_eq!(site.hits(), 100);
    }
}

/// The frame of a leaf function, which begins right at its stack pointer, is not touched; the kernel's frame
/// lies below it.
#[test]
fn the_stack_survives() {
    let text = text!(frame: "sub sp, sp, #32", "stp x0, x1, [sp]", "stp x1, x0, [sp, #16]", "nop",
        "ldp x2, x3, [sp]", "ldp x4, x5, [sp, #16]", "add sp, sp, #32", "sub x0, x2, x5", "sub x1, x3, x4", "orr x0, x0, x1", "ret");
    let (at, site) = trapped_at(text, 3, spoils);
    (0..1000).for_each(|value| assert_eq!(call(at, value, !value), 0));
    assert_eq!(site.hits(), 1000);
}

#[test]
fn errno_survives() {
    let simulated = trapped(text!(errno: "nop", "ret"), nothing);
    let copied = trapped(text!(errno_copied: "orr x0, x0, x0", "ret"), nothing);
    // SAFETY: this thread's own errno.
    let errno = unsafe { &mut *libc::__errno_location() };
    for site in [simulated, copied] {
        *errno = 12345;
        site.call(0, 0);
        assert_eq!(*errno, 12345);
    }
}
