//! SAFE-2 where little of the extended state is in use, as at a function's entry: the components are saved
//! one by one.

use std::arch::{global_asm, is_x86_feature_detected};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use trapline_plan::Callee;
use trapline_plan::x86_64::stub::{CallFunctions, ExtendedState, call, gate};

use crate::arena::Arena;
use crate::state::{ONE, Random, State, tl_run};

// Around a site: x87 and the upper halves are put into their initial configuration before it. The components
// in use are noted in the function and behind it. With 1 in tl_sets the opmasks are loaded; otherwise they,
// and registers 16 to 31, are put into the initial configuration too.
global_asm!(
    "tl_before: mov [rip + tl_kept], rax; mov [rip + tl_kept + 8], rcx; mov [rip + tl_kept + 16], rdx",
    "vzeroupper; xor edx, edx; mov eax, 1; cmp dword ptr [rip + tl_sets], 0; jne 2f; mov eax, 0xa1; 2: xrstor [rip + tl_nothing]",
    "cmp dword ptr [rip + tl_sets], 0; je 3f",
    ".set i, 0; .irp k, k0, k1, k2, k3, k4, k5, k6, k7; kmovq \\k, [rip + tl_masks + i*8]; .set i, i+1; .endr",
    "3: ldmxcsr [rip + tl_rounds]",
    "mov rax, [rip + tl_kept]; mov rcx, [rip + tl_kept + 8]; mov rdx, [rip + tl_kept + 16]; jmp [rip + tl_site]",
    "tl_behind: mov [rip + tl_kept], rax; mov [rip + tl_kept + 8], rcx; mov [rip + tl_kept + 16], rdx",
    "mov ecx, 1; xgetbv; mov [rip + tl_left], rax",
    ".set i, 0; .irp k, k0, k1, k2, k3, k4, k5, k6, k7; kmovq [rip + tl_masks_left + i*8], \\k; .set i, i+1; .endr",
    "stmxcsr [rip + tl_rounds_left]; ldmxcsr [rip + tl_usual]",
    "mov rax, [rip + tl_kept]; mov rcx, [rip + tl_kept + 8]; mov rdx, [rip + tl_kept + 16]; jmp tl_back",
    // The function: it overwrites everything.
    "tl_spoil_all: mov ecx, 1; xgetbv; mov [rip + tl_used], rax",
    "vpternlogd zmm0, zmm0, zmm0, 255; vmovdqu64 zmm7, zmm0; vmovdqu64 zmm15, zmm0; vmovdqu64 zmm16, zmm0; vmovdqu64 zmm31, zmm0",
    ".irp k, k0, k1, k2, k3, k4, k5, k6, k7; kxnorq \\k, \\k, \\k; .endr",
    "fld1; fstp st(0); ldmxcsr [rip + tl_usual]; xor eax, eax; ret",
    ".pushsection .data; .balign 64; tl_nothing: .zero 576; tl_usual: .long 0x1f80; tl_rounds: .long 0xdfc0",
    ".balign 8; .globl tl_kept; tl_kept: .zero 24; tl_sets: .quad 0; tl_site: .quad 0; tl_used: .quad 0; tl_left: .quad 0",
    "tl_masks: .zero 64; tl_masks_left: .zero 64; tl_rounds_left: .quad 0; .popsection",
);
unsafe extern "C" {
    fn tl_before();
    fn tl_behind();
    fn tl_spoil_all();
    static tl_sets: AtomicU64;
    static tl_site: AtomicU64;
    static tl_used: AtomicU64;
    static tl_left: AtomicU64;
    static tl_rounds_left: AtomicU64;
    static tl_masks: [AtomicU64; 8];
    static tl_masks_left: [AtomicU64; 8];
}

const SSE: u64 = 2;
const OPMASKS: u64 = 1 << 5;
const HIGH: u64 = 1 << 7;
const ALL: u64 = 0xE7;

fn site(arena: &mut Arena, shows_use: bool) -> u64 {
    let entry = tl_spoil_all as *const () as u64;
    let state = ExtendedState { mask: ALL as u32, len: 2696, shows_use };
    let functions = CallFunctions {
        entry,
        general: 0,
        begin: 0,
        exit: 0,
        general_exit: 0,
        begins: None,
        arms: None,
        ends: None,
        state,
    };
    let mut out = Vec::new();
    let gate = gate(&mut out, arena.next(), &functions);
    arena.put(&out);
    let callee = Callee { argument: 1, saves_state: true, only_returns: false, arms: false, by_trap: false };
    let mut out = Vec::new();
    call(&mut out, arena.next(), gate.way(false, &callee), 1, arena.next());
    out.extend([0xFF, 0x25, 0, 0, 0, 0]);
    out.extend((tl_behind as *const () as u64).to_le_bytes());
    arena.put(&out)
}

/// One run. Returns what was in use in the function, and behind it.
fn run(state: &mut State) -> (u64, u64) {
    // SAFETY: `tl_before` leads to the site, the site to `tl_behind`, and that back to the harness, which has
    // one user at a time.
    unsafe {
        tl_run(tl_before as *const () as u64, state);
        (tl_used.load(Relaxed) & ALL, tl_left.load(Relaxed) & ALL)
    }
}

#[test]
fn components_saved_one_by_one_are_kept_and_the_others_stay_as_they_began() {
    if !is_x86_feature_detected!("avx512bw") || !is_x86_feature_detected!("xsavec") {
        eprintln!("skipped: no AVX-512");
        return;
    }
    let _one = ONE.lock();
    let mut random = Random(0x8888_CAFE_1234_5679);
    let mut arena = Arena::new();
    for (shows_use, in_use) in [(true, true), (true, false), (false, true), (false, false)] {
        let code = site(&mut arena, shows_use);
        // SAFETY: words of the code above, which does not run now.
        let (masks, left) = unsafe {
            tl_site.store(code, Relaxed);
            tl_sets.store(in_use.into(), Relaxed);
            tl_masks.iter().for_each(|mask| mask.store(random.next(), Relaxed));
            (tl_masks.each_ref(), tl_masks_left.each_ref())
        };
        for round in 0..50 {
            let before = random.state();
            let mut after = before.clone();
            let (used, use_left) = run(&mut after);
            let what = format!("{shows_use} {in_use}, round {round}");
            assert_eq!(before.regs, after.regs, "{what}");
            assert_eq!(before.red, after.red, "{what}");
            for (n, (old, new)) in before.zmm.iter().zip(&after.zmm).enumerate() {
                let kept = if n < 16 { 2 } else { 8 * usize::from(in_use) };
                assert_eq!(old[..kept], new[..kept], "register {n}, {what}");
                assert!(new[kept..].iter().all(|word| *word == 0), "register {n}, {what}");
            }
            for (mask, left) in masks.iter().zip(&left) {
                let mask = if in_use { mask.load(Relaxed) } else { 0 };
                assert_eq!(mask, left.load(Relaxed), "an opmask, {what}");
            }
            // SAFETY: as above.
            assert_eq!(unsafe { tl_rounds_left.load(Relaxed) } as u32, 0xdfc0, "MXCSR, {what}");
            // The measurement is what it should be: the function was called with no more in use than that,
            // and left no more in use.
            let most = if in_use { SSE | OPMASKS | HIGH } else { SSE };
            assert_eq!((used & !most, use_left & !most), (0, 0), "in use, {what}");
        }
    }
}
