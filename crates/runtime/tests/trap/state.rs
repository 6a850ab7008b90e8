//! SAFE-2: what a hit preserves: vector registers up to AVX-512, the red zone, errno.

use std::arch::asm;

use crate::site::{Site, code, nothing, site, trapped, write};
use trapline_insn::x86_64::Regs;

#[repr(C, align(64))]
struct Vectors([u8; 32 * 64]);

/// Overwrites vector registers, as compiled code may.
fn spoils(_: &Site, _: &mut Regs) {
    // SAFETY: the registers are declared as clobbered.
    unsafe {
        asm!("pcmpeqd xmm0, xmm0", "pcmpeqd xmm5, xmm5", "pcmpeqd xmm15, xmm15", out("xmm0") _, out("xmm5") _, out("xmm15") _);
        if std::is_x86_feature_detected!("avx") {
            asm!("vzeroall", out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _, out("xmm6") _,
                out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _, out("xmm12") _, out("xmm13") _,
                out("xmm14") _, out("xmm15") _);
        }
    }
}

/// `vmovups` of all registers from rdi or to rsi, around a nop or an instruction that is copied.
fn around(wide: bool, middle: &[u8]) -> (Vec<u8>, usize) {
    let mut bytes = Vec::new();
    let all = |bytes: &mut Vec<u8>, opcode: u8, base: u8| {
        for number in 0..if wide { 32_u32 } else { 16 } {
            let disp = (number * 64).to_le_bytes();
            if wide {
                // EVEX.512.0F.W0 opcode, [base + disp32]
                let inverted = !number;
                let p0 = ((inverted >> 3 & 1) << 7 | 1 << 6 | 1 << 5 | (inverted >> 4 & 1) << 4 | 1) as u8;
                bytes.extend([0x62, p0, 0x7C, 0x48, opcode, 0x80 | (number as u8 & 7) << 3 | base]);
            } else {
                // VEX.256.0F opcode, [base + disp32]
                bytes.extend([
                    0xC5,
                    if number & 8 == 0 { 0xFC } else { 0x7C },
                    opcode,
                    0x80 | (number as u8 & 7) << 3 | base,
                ]);
            }
            bytes.extend(disp);
        }
    };
    all(&mut bytes, 0x10, 7);
    let at = bytes.len();
    bytes.extend(middle);
    all(&mut bytes, 0x11, 6);
    bytes.extend([0xC5, 0xF8, 0x77, 0xC3]);
    (bytes, at)
}

#[test]
fn vector_registers_survive() {
    if !std::is_x86_feature_detected!("avx") {
        println!("SKIP: no AVX here");
        return;
    }
    let wide = std::is_x86_feature_detected!("avx512f");
    println!("{} registers", if wide { "32 zmm" } else { "16 ymm" });
    for middle in [&[0x90][..], &[0xF5], &[0x48, 0x0F, 0xAF, 0xC9]] {
        let (bytes, at) = around(wide, middle);
        let function = code(&bytes);
        let site = site(function + at as u64, middle, spoils);
        write(site.addr, &[0xCC]);
        let (mut from, mut to) = (Vectors([0; 2048]), Vectors([0; 2048]));
        from.0.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 31 + 7) as u8);
        crate::site::call(function, from.0.as_ptr() as u64, to.0.as_mut_ptr() as u64);
        let (count, width) = if wide { (32, 64) } else { (16, 32) };
        for number in 0..count {
            let range = number * 64..number * 64 + width;
            assert_eq!(from.0[range.clone()], to.0[range], "register {number} behind {middle:02x?}");
        }
        assert_eq!(site.hits(), 1);
    }
}

#[test]
fn the_red_zone_survives() {
    // mov [rsp-8], rdi … mov [rsp-128], rdi; MIDDLE; rax = sum of all.
    for middle in [&[0x90][..], &[0xF5], &[0x55, 0x5D]] {
        let depth = if middle.len() == 2 { 2 } else { 1 };
        let mut bytes = Vec::new();
        for slot in depth..=16_i8 {
            bytes.extend([0x48, 0x89, 0x7C, 0x24, slot.wrapping_mul(-8) as u8]);
        }
        let at = bytes.len() as u64;
        bytes.extend(middle);
        bytes.extend([0x31, 0xC0]);
        for slot in depth..=16_i8 {
            bytes.extend([0x48, 0x03, 0x44, 0x24, slot.wrapping_mul(-8) as u8]);
        }
        bytes.push(0xC3);
        let function = code(&bytes);
        let site = site(function + at, middle, spoils);
        write(site.addr, &[0xCC]);
        let rounds = u64::from(17 - depth.cast_unsigned());
        for value in 0..1000 {
            assert_eq!(crate::site::call(function, value, 0), value * rounds, "{middle:02x?}");
        }
        assert_eq!(site.hits(), 1000);
    }
}

#[test]
fn errno_survives() {
    let simulated = trapped(&[0x90, 0xC3], nothing);
    let copied = trapped(&[0xF5, 0xC3], nothing);
    // SAFETY: this thread's own errno.
    let errno = unsafe { &mut *libc::__errno_location() };
    for site in [simulated, copied] {
        *errno = 12345;
        site.call(0, 0);
        assert_eq!(*errno, 12345);
    }
}

fn mxcsr() -> u32 {
    let mut words = 0_u32;
    // SAFETY: stores 4 bytes there.
    unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut words, options(nostack)) };
    words
}

fn set_mxcsr(words: u32) {
    // SAFETY: the tests do no floating-point arithmetic meanwhile.
    unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const words, options(nostack)) };
}

/// A consumer behind a jump runs with the thread's own control words. So one behind a trap must, too,
/// although the kernel starts handlers with others.
#[test]
fn consumers_run_with_the_threads_own_control_words() {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    static SEEN: AtomicU32 = AtomicU32::new(0);
    const USUAL: u32 = 0x1F80;
    /// Rounds towards zero, flushes to zero, treats denormals as zero.
    const OWN: u32 = USUAL | 0x6000 | 0x8000 | 0x40;
    let site = trapped(&[0x90, 0xC3], |_, _| SEEN.store(mxcsr(), Relaxed));
    for words in [USUAL, OWN, USUAL] {
        set_mxcsr(words);
        site.call(0, 0);
        let after = mxcsr();
        set_mxcsr(USUAL);
        assert_eq!((SEEN.load(Relaxed), after), (words, words));
    }
}
