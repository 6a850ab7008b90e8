//! Calls that enter their function from within a return trampoline, and return to it. SAFE-2 holds all the
//! way, and also if the call was not armed after all.

use std::arch::global_asm;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use trapline_plan::Callee;
use trapline_plan::x86_64::stub::{
    CallFunctions, Liveness, call_arming, gate, own_trampoline_code, own_trampoline_code_len,
};
use trapline_record::trampolines::{ENTER, PAIRED, Trampolines, at};

use crate::arena::{Arena, get, map, set};
use crate::call::{piece, state};
use crate::state::{ONE, Random, assert_kept, back};

global_asm!(
    // Inlined fast paths. (rdi = `tl_pair`, rsi = site, rdx = stack word, [rsp] = address of the displaced
    // instructions): arms the call with its trampoline, or not if there is none; and overwrites all that it
    // may.
    ".p2align 6; tl_pair_arm: mov rcx, [rdi]; mov r8, [rdi + 8]; test r8, r8; jz 9f; mov r9, [rdx]; mov [rcx + {REAL}], r9; mov r9, [rsp]; mov [rcx + {GO}], r9",
    "mov [rdx], r8; mov ecx, -1; mov edx, -1; mov r8, rdx; mov r9, rdx",
    "tl_pair_arm_room: .skip 96, 0xcc; tl_pair_arm_on: ud2; 9: mov ecx, -1; mov edx, -1; mov r8, rdx; mov r9, rdx; tl_pair_arm_end: .skip 64, 0xcc",
    "tl_pair_quiet: inc qword ptr [rip + tl_pair_quiets]; mov ecx, -1; mov edx, -1; mov rsi, rdx; mov rdi, rdx; mov r8, rdx",
    "mov r9, rdx; mov r10, rdx; mov r11, rdx; xor eax, eax; ret",
    // (rsi = Regs, r12 = `tl_pair`): the trampoline's number is where the stack word was; the real address
    // goes there.
    ".p2align 6; tl_pair_land: test rsp, 15; jnz 5f; mov rdx, [rbx + 8 + 32]; mov eax, [rdx]; mov [r12 + 16], rax; mov rcx, [r12]",
    "mov rcx, [rcx + {REAL}]; mov [rdx], rcx; mov [rsi + 128], rcx; inc qword ptr [r12 + 24]",
    "mov ecx, -1; mov edx, -1; mov rsi, rdx; mov rdi, rdx; mov r8, rdx; mov r9, rdx; mov r10, rdx; mov r11, rdx",
    "mov r12, rdx; mov r13, rdx; mov r14, rdx; mov r15, rdx; sub rsp, 96",
    "tl_pair_land_room: .skip 192, 0xcc; tl_pair_land_on: 5: ud2; tl_pair_land_end: .skip 64, 0xcc",
    ".pushsection .bss; .balign 8; .globl tl_pair, tl_pair_quiets; tl_pair: .skip 32; tl_pair_quiets: .quad 0; .popsection",
    REAL = const at::REAL,
    GO = const at::GO,
);
unsafe extern "C" {
    fn tl_pair_arm();
    fn tl_pair_arm_room();
    fn tl_pair_arm_on();
    fn tl_pair_arm_end();
    fn tl_pair_quiet();
    fn tl_pair_land();
    fn tl_pair_land_room();
    fn tl_pair_land_on();
    fn tl_pair_land_end();
    /// Address of the trampoline, its `ENTER` address or 0, the number with which a call returned, and how
    /// often.
    static tl_pair: [AtomicU64; 4];
    static tl_pair_quiets: AtomicU64;
}

/// At entries, where nothing lives below the stack pointer.
const ENTRY: Liveness = Liveness { flags_dead: false, dead: 0, red_zone_live: false };
const NUMBER: u32 = 5;

fn words() -> u64 {
    (&raw const tl_pair) as u64
}

/// Return trampolines with code and entries that lie together.
fn trampolines() -> (Trampolines, CallFunctions) {
    let unplaced = Trampolines { code: 0, table: 0, count: 64 };
    let code_len = own_trampoline_code_len(&unplaced).next_multiple_of(4096);
    let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let code = map(code_len + unplaced.table_len(), all, libc::MAP_PRIVATE);
    let trampolines = Trampolines { code, table: code + code_len, ..unplaced };
    let arms = piece([tl_pair_arm, tl_pair_arm_room, tl_pair_arm_on, tl_pair_arm_end]);
    let ends = piece([tl_pair_land, tl_pair_land_room, tl_pair_land_on, tl_pair_land_end]);
    let functions = CallFunctions {
        entry: 0,
        general: tl_pair_quiet as *const () as u64,
        begin: 0,
        exit: 0,
        general_exit: 0,
        begins: None,
        arms: Some(arms),
        ends: Some(ends),
        state: state(),
    };
    let made = own_trampoline_code(&trampolines, &functions, words());
    assert!(made.bytes.len() as u64 <= own_trampoline_code_len(&trampolines));
    // SAFETY: the bytes fit into our own mapping, and nothing runs there yet.
    unsafe { core::ptr::copy_nonoverlapping(made.bytes.as_ptr(), code as *mut u8, made.bytes.len()) };
    (trampolines, functions)
}

/// A call of a function that a site arms and that returns at once, and the way back to the harness.
fn called(arena: &mut Arena, functions: &CallFunctions) -> u64 {
    let mut out = Vec::new();
    let gate = gate(&mut out, arena.next(), functions);
    arena.put(&out);
    let callee =
        Callee { argument: words(), saves_state: false, only_returns: true, arms: true, by_trap: false };
    let (mut out, at) = (Vec::new(), arena.next());
    call_arming(&mut out, at, gate.way(false, &callee), callee.argument, at);
    out.push(0xC3);
    let callee = arena.put(&out);
    let mut out = vec![0xE8];
    out.extend((callee.wrapping_sub(arena.next() + 5) as u32).to_le_bytes());
    out.extend(back());
    arena.put(&out)
}

#[test]
fn a_call_that_is_entered_from_its_trampoline_is_not_noticed() {
    let _one = ONE.lock();
    // SAFETY: words of the code above, which one test uses at a time.
    let ([trampoline, enter, landed, lands], quiets) = unsafe { (&tl_pair, &tl_pair_quiets) };
    for arms in [true, false] {
        let mut arena = Arena::new();
        let (trampolines, functions) = trampolines();
        let entry = trampolines.entry(NUMBER);
        trampoline.store(entry, Relaxed);
        let code = trampolines.address(NUMBER) - trapline_record::trampolines::RETURN;
        enter.store(if arms { code + ENTER } else { 0 }, Relaxed);
        assert_eq!(trampolines.number_of(code + PAIRED), Some(NUMBER));
        [landed, lands, quiets].into_iter().for_each(|word| word.store(0, Relaxed));
        set(entry + at::GO, 0);
        let code = called(&mut arena, &functions);
        assert_kept("a paired call", code, &ENTRY, &mut Random(0x5150_CAFE_1234_5679));
        let seen = [landed, lands, quiets].map(|word| word.load(Relaxed));
        assert_eq!(seen, if arms { [NUMBER.into(), 50, 0] } else { [0, 0, 50] });
        assert_eq!(get(entry + at::GO) != 0, arms);
    }
}
