//! Calls that enter their function from within a slot, and come back to it: SAFE-2 all the way, and where they were not armed after all.

use std::arch::global_asm;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use trapline_plan::Callee;
use trapline_plan::x86_64::stub::{CallFunctions, Site, call_arming, gate, landing_code, landing_code_len};
use trapline_record::slots::{BEHIND, ENTER, PAIRED, Slots, at};

use crate::arena::{Arena, get, map, set};
use crate::call::state;
use crate::state::{ONE, Random, assert_kept, back};

global_asm!(
    // (rsi = site, rdx = stack word): what `arm` does, with the slot that stands in `tl_pair_slot`, and all that it may spoil.
    "tl_pair_arm: mov rcx, [rip + tl_pair_slot]; mov r8, [rdx]; mov [rcx + {REAL}], r8",
    "mov r8, [rsp + 8]; add r8, {BEHIND}; mov [rcx + {GO}], r8; mov r8, [rip + tl_pair_enter]; mov [rdx], r8",
    "mov ecx, -1; mov edx, -1; mov r8, rdx; mov r9, rdx; mov r10, rdx; mov r11, rdx; xor ecx, ecx; ret",
    "tl_pair_not: mov ecx, -1; mov edx, -1; mov r8, rdx; mov r9, rdx; mov r10, rdx; mov r11, rdx; ret",
    "tl_pair_quiet: inc qword ptr [rip + tl_pair_quiets]; mov ecx, -1; mov edx, -1; mov rsi, rdx; mov rdi, rdx; mov r8, rdx",
    "mov r9, rdx; mov r10, rdx; mov r11, rdx; xor eax, eax; ret",
    // (rsi = Regs): the slot's number is where the stack word was; the real address goes there.
    "tl_pair_land: mov rdx, [rsi + 32]; mov eax, [rdx]; mov [rip + tl_pair_landed], rax; mov rcx, [rip + tl_pair_slot]",
    "mov rcx, [rcx + {REAL}]; mov [rdx], rcx; mov [rsi + 128], rcx; inc qword ptr [rip + tl_pair_lands]",
    "mov ecx, -1; mov edx, -1; mov rsi, rdx; mov rdi, rdx; mov r8, rdx; mov r9, rdx; mov r10, rdx; mov r11, rdx",
    "mov r13, rdx; mov r14, rdx; mov r15, rdx; xor eax, eax; ret",
    ".pushsection .bss; .balign 8; .globl tl_pair_slot, tl_pair_enter, tl_pair_landed, tl_pair_lands, tl_pair_quiets",
    "tl_pair_slot: .quad 0; tl_pair_enter: .quad 0; tl_pair_landed: .quad 0; tl_pair_lands: .quad 0; tl_pair_quiets: .quad 0; .popsection",
    REAL = const at::REAL,
    GO = const at::GO,
    BEHIND = const BEHIND,
);
unsafe extern "C" {
    fn tl_pair_arm();
    fn tl_pair_not();
    fn tl_pair_quiet();
    fn tl_pair_land();
    static tl_pair_slot: AtomicU64;
    static tl_pair_enter: AtomicU64;
    static tl_pair_landed: AtomicU64;
    static tl_pair_lands: AtomicU64;
    static tl_pair_quiets: AtomicU64;
}

/// At entries, where nothing lives below the stack pointer.
const ENTRY: Site = Site { flags_dead: false, dead: 0, red_zone_live: false };
const NUMBER: u32 = 5;

/// Slots whose code and entries lie together.
fn slots(arm: u64) -> (Slots, CallFunctions) {
    let unplaced = Slots { code: 0, table: 0, count: 64 };
    let code_len = landing_code_len(&unplaced).next_multiple_of(4096);
    let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let code = map(code_len + unplaced.table_len(), all, libc::MAP_PRIVATE);
    let slots = Slots { code, table: code + code_len, ..unplaced };
    let [quiet, land] = [tl_pair_quiet, tl_pair_land].map(|f| f as *const () as u64);
    let functions = CallFunctions {
        entry: 0,
        general: quiet,
        begin: 0,
        arm,
        exit: 0,
        general_exit: land,
        begins: None,
        ends: None,
        state: state(),
    };
    let made = landing_code(&slots, &functions, 7);
    assert!(made.bytes.len() as u64 <= landing_code_len(&slots));
    // SAFETY: the bytes fit into our own mapping, and nothing runs there yet.
    unsafe { core::ptr::copy_nonoverlapping(made.bytes.as_ptr(), code as *mut u8, made.bytes.len()) };
    (slots, functions)
}

/// A call of a function that a site arms and that returns at once, and the way back to the harness.
fn called(arena: &mut Arena, functions: &CallFunctions) -> u64 {
    let mut out = Vec::new();
    let gate = gate(&mut out, arena.next(), functions);
    arena.put(&out);
    let callee = Callee { argument: 7, saves_state: false, only_returns: true, arms: true, by_trap: false };
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
fn a_call_that_is_entered_from_its_slot_is_not_noticed() {
    let _one = ONE.lock();
    // SAFETY: words of the code above, which one test uses at a time.
    let [slot, enter, landed, lands, quiets] =
        unsafe { [&tl_pair_slot, &tl_pair_enter, &tl_pair_landed, &tl_pair_lands, &tl_pair_quiets] };
    for (arm, arms) in [(tl_pair_arm as *const (), true), (tl_pair_not as *const (), false)] {
        let mut arena = Arena::new();
        let (slots, functions) = slots(arm as u64);
        let entry = slots.entry(NUMBER);
        slot.store(entry, Relaxed);
        enter.store(slots.address(NUMBER) - trapline_record::slots::RETURN + ENTER, Relaxed);
        assert_eq!(slots.slot_of(enter.load(Relaxed) - ENTER + PAIRED), Some(NUMBER));
        [landed, lands, quiets].into_iter().for_each(|word| word.store(0, Relaxed));
        set(entry + at::GO, 0);
        let code = called(&mut arena, &functions);
        assert_kept("a paired call", code, &ENTRY, &mut Random(0x5150_CAFE_1234_5679));
        let seen = [landed, lands, quiets].map(|word| word.load(Relaxed));
        assert_eq!(seen, if arms { [NUMBER.into(), 50, 0] } else { [0, 0, 50] });
        assert_eq!(get(entry + at::GO) != 0, arms);
    }
}
