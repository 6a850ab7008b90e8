//! Vector state survives handlers that overwrite it.

use std::arch::asm;

use trapline::inside::{Consumer, Tactic, Verdict};

use crate::program::Library;

#[repr(C, align(64))]
#[derive(Clone, PartialEq, Debug)]
struct Room([u8; 192]);

fn spoils() {
    // SAFETY: every vector register is declared as clobbered.
    unsafe {
        asm!("vzeroall", out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
            out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _, out("xmm12") _,
            out("xmm13") _, out("xmm14") _, out("xmm15") _);
    }
    if std::is_x86_feature_detected!("avx512bw") {
        // SAFETY: the upper sixteen registers and the masks, which code compiled without AVX-512 does not
        // use.
        unsafe { asm!("vpxord zmm29, zmm29, zmm29", "kxorq k3, k3, k3") };
    }
}

fn survives(name: &str, len: usize) {
    for by_trap in [false, true] {
        let library = Library::load();
        let consumer = Consumer::entry(|_| {
            spoils();
            Verdict::Continue
        });
        let probe = library.probe(&format!("{name}_inside"), by_trap, consumer);
        assert_eq!(probe.sites(), [if by_trap { Tactic::Trap } else { Tactic::Jump }]);
        let before = Room(std::array::from_fn(|n| if n < len { n as u8 ^ 0x5A } else { 0 }));
        let mut after = Room([0; 192]);
        library.call(name, (&raw const before) as u64, (&raw mut after) as u64);
        assert_eq!(probe.counts().hits, 1);
        let same = |part: std::ops::Range<usize>| assert_eq!(before.0[part.clone()], after.0[part]);
        if name == "wide" { same(0..136) } else { [0..32, 64..96].map(same).into_iter().collect() }
    }
}

#[test]
fn avx_survives() {
    if std::is_x86_feature_detected!("avx") {
        survives("narrow", 96);
    } else {
        println!("SKIP: no AVX here");
    }
}

#[test]
fn avx512_survives_with_masks() {
    if std::is_x86_feature_detected!("avx512bw") {
        survives("wide", 136);
    } else {
        println!("SKIP: no AVX-512 here");
    }
}
