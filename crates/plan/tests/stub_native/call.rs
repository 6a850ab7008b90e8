//! SAFE-2 around the call of a consumer: the machine's state is preserved whatever the function does to it,
//! and deliberate changes take effect.

use std::arch::{global_asm, is_x86_feature_detected};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use trapline_insn::x86_64::{Gpr, Regs};
use trapline_plan::Callee;
use trapline_plan::x86_64::stub::{CallFunctions, ExtendedState, InlinedPath, Liveness, call, gate};

use crate::arena::Arena;
use crate::state::{FLAGS, ONE, Random, assert_kept, back, tl_back, tl_run};

const DF: u64 = 1 << 10;
const AC: u64 = 1 << 18;
const IP: u64 = 0x1234;
const EVERY: Liveness = Liveness { flags_dead: false, dead: 0, red_zone_live: true };

// Does what a compiled function may do: overwrites all that a caller may not rely on, vectors too, before the
// body in Rust runs.
global_asm!(
    "tl_spoil: cmp dword ptr [rip + tl_spoils], 0; je 3f",
    "cmp dword ptr [rip + tl_spoils], 2; jne 2f",
    "vpternlogd zmm0, zmm0, zmm0, 255; vmovdqu64 zmm7, zmm0; vmovdqu64 zmm16, zmm0; vmovdqu64 zmm31, zmm0",
    "kxnorq k1, k1, k1; vpxor xmm3, xmm3, xmm3",
    "2: pcmpeqd xmm1, xmm1; fld1; fstp st(0)",
    "3: test rsp, 15; jz 4f; test rsp, 7; jnz 4f",
    "lea rax, [rsp+8]; test rax, 15; jnz 5f; jmp tl_body",
    "4: ud2",
    "5: ud2",
    "tl_quiet: mov ecx, -1; mov edx, -1; mov rsi, rdx; mov rdi, rdx; mov r8, rdx; mov r9, rdx; mov r10, rdx; mov r11, rdx",
    "xor eax, eax; ret",
    "tl_after_all: call tl_quiet; mov eax, 3; ret",
    // The start of a call: stores its arguments, then overwrites all that it may. Returns 0, or that more
    // must be done.
    "tl_begin: mov [rip + tl_begun], rdi; mov [rip + tl_begun + 8], rsi; mov [rip + tl_begun + 16], rdx",
    "mov ecx, -1; mov edx, -1; mov r8, rdx; mov r9, rdx; mov r10, rdx; mov r11, rdx; xor ecx, ecx; ret",
    "tl_begin_more: call tl_begin; mov ecx, 1; ret",
    // Inlined fast paths: they handle number 31 themselves, and leave other numbers to the function; for 33
    // with another answer at an exit. They overwrite all that they may.
    ".p2align 6; tl_piece_begins: cmp edi, 31; mov ecx, -1; mov edx, -1; mov r8, rdx; mov r9, rdx; jne 9f",
    "tl_piece_begins_room: .skip 96, 0xcc; tl_piece_begins_on: ud2; 9: tl_piece_begins_end: .skip 64, 0xcc",
    ".p2align 6; tl_piece_ends: lea rax, [rbx + 8]; cmp rax, rsi; jne 5f; test rsp, 15; jnz 5f; cmp rdi, r12; jne 5f; sub rsp, 96",
    "mov ecx, -1; mov edx, -1; mov rsi, rdx; mov rdi, rdx; mov r8, rdx; mov r9, rdx; mov r10, rdx; mov r11, rdx; mov r13, rdx",
    "mov r14, rdx; mov r15, rdx; mov eax, 3; cmp r12d, 31; jb 9f; ja 6f; mov r12, rdx; mov eax, 7",
    "tl_piece_ends_room: .skip 192, 0xcc; tl_piece_ends_on: 5: ud2; 6: cmp r12d, 33; jne 9f; mov r12, rdx; mov eax, 2",
    "9: tl_piece_ends_end: ud2",
    ".pushsection .data; .globl tl_spoils; tl_spoils: .long 0; .balign 8",
    ".globl tl_begun; tl_begun: .quad 0, 0, 0; .popsection",
);
unsafe extern "C" {
    fn tl_spoil();
    fn tl_quiet();
    fn tl_after_all();
    fn tl_begin();
    fn tl_begin_more();
    fn tl_piece_begins();
    fn tl_piece_begins_room();
    fn tl_piece_begins_on();
    fn tl_piece_begins_end();
    fn tl_piece_ends();
    fn tl_piece_ends_room();
    fn tl_piece_ends_on();
    fn tl_piece_ends_end();
    static mut tl_spoils: u32;
    static tl_begun: [AtomicU64; 3];
}

/// What the function is to do, and what it saw.
struct Script {
    seen: Vec<(u64, Regs)>,
    change: Option<fn(&mut Regs) -> u64>,
}
static SCRIPT: Mutex<Script> = Mutex::new(Script { seen: Vec::new(), change: None });
#[unsafe(no_mangle)]
extern "C" fn tl_body(number: u64, regs: &mut Regs) -> u64 {
    let mut script = SCRIPT.lock().unwrap();
    script.seen.push((number, *regs));
    script.change.map_or(0, |change| change(regs))
}

pub(crate) fn state() -> ExtendedState {
    // x87, SSE, AVX, AVX-512: all that the harness loads. Their area is smaller than a page.
    let mask = if is_x86_feature_detected!("avx512f") { 0xE7 } else { 7 };
    ExtendedState { mask, len: 2696, shows_use: is_x86_feature_detected!("avx512bw") }
}

fn site(arena: &mut Arena, number: u64, saves: bool) -> u64 {
    let function = tl_spoil as *const () as u64;
    site_of(arena, function, function, number, saves)
}

/// Code that calls a function, and leads back to the harness.
fn site_of(arena: &mut Arena, general: u64, entry: u64, number: u64, saves: bool) -> u64 {
    let functions = CallFunctions {
        entry,
        general,
        begin: 0,
        exit: 0,
        general_exit: 0,
        begins: None,
        arms: None,
        ends: None,
        state: state(),
    };
    let callee =
        Callee { argument: number, saves_state: saves, only_returns: false, arms: false, by_trap: false };
    site_by(arena, &functions, false, &callee)
}

/// The same, at an exit or at an entry.
fn site_by(arena: &mut Arena, functions: &CallFunctions, exit: bool, callee: &Callee) -> u64 {
    let mut out = Vec::new();
    let gate = gate(&mut out, arena.next(), functions);
    assert!(out.len() <= 8192, "the planner leaves room for two pages: {}", out.len());
    arena.put(&out);
    let mut out = Vec::new();
    let at = arena.next();
    call(&mut out, at, gate.way(exit, callee), callee.argument, at + IP);
    out.extend(back());
    arena.put(&out)
}

fn tell(spoils: u32, change: Option<fn(&mut Regs) -> u64>) {
    // SAFETY: written while no code runs that reads it.
    unsafe { tl_spoils = spoils };
    *SCRIPT.lock().unwrap() = Script { seen: Vec::new(), change };
}

#[test]
fn a_consumer_that_changes_nothing_is_not_noticed() {
    let _one = ONE.lock();
    let mut random = Random(0x0BAD_CAFE_1234_5679);
    let mut arena = Arena::new();
    let vectors = if is_x86_feature_detected!("avx512f") { 2 } else { 1 };
    // A function that overwrites all general registers that it may, and no vector.
    let quiet = tl_quiet as *const () as u64;
    let code = site_of(&mut arena, quiet, 0, 7, false);
    assert_kept("call, general registers only", code, &EVERY, &mut random);
    // A function that finds out that vectors must be saved after all.
    let code = site_of(&mut arena, tl_after_all as *const () as u64, tl_spoil as *const () as u64, 9, false);
    tell(vectors, None);
    assert_kept("call, extended state after all", code, &EVERY, &mut random);
    assert!(SCRIPT.lock().unwrap().seen.iter().all(|&(n, regs)| n == 9 && regs.rip == code + IP));
    assert_eq!(SCRIPT.lock().unwrap().seen.len(), 50);
    for spoils in [0, vectors] {
        for number in [7, 0x7fff_1234_5678_9abc] {
            tell(spoils, None);
            let code = site(&mut arena, number, true);
            assert_kept(&format!("call, spoils {spoils}"), code, &EVERY, &mut random);
            let script = SCRIPT.lock().unwrap();
            assert_eq!(script.seen.len(), 50);
            assert!(script.seen.iter().all(|&(n, regs)| n == number && regs.rip == code + IP));
        }
    }
}

/// Sites where no consumer is called at the entry, and exits.
#[test]
fn the_start_and_the_end_of_a_call_are_not_noticed() {
    let _one = ONE.lock();
    let mut random = Random(0x7777_CAFE_1234_5679);
    let mut arena = Arena::new();
    let [begin, more, quiet, after_all, spoil] =
        [tl_begin, tl_begin_more, tl_quiet, tl_after_all, tl_spoil].map(|f| f as *const () as u64);
    let all = CallFunctions {
        entry: 0,
        general: 0,
        begin,
        exit: 0,
        general_exit: 0,
        begins: None,
        arms: None,
        ends: None,
        state: state(),
    };
    let callee = |number| Callee {
        argument: number,
        saves_state: false,
        only_returns: true,
        arms: false,
        by_trap: false,
    };
    // SAFETY: only `tl_begin` writes these words, in this thread.
    let begun = || unsafe { &tl_begun }.each_ref().map(|word| word.load(Ordering::Relaxed));
    let checked = |code, number| {
        let words = begun();
        assert_eq!((words[0], words[1]), (number, code + IP));
        words[2]
    };
    let code = site_by(&mut arena, &all, false, &callee(21));
    assert_kept("a call begins", code, &EVERY, &mut random);
    checked(code, 21);

    let functions = CallFunctions { begin: more, general: after_all, entry: spoil, ..all };
    let code = site_by(&mut arena, &functions, false, &callee(22));
    tell(0, None);
    assert_kept("a call begins, and a consumer is called", code, &EVERY, &mut random);
    let sp = checked(code, 22);
    let seen = std::mem::take(&mut SCRIPT.lock().unwrap().seen);
    assert_eq!(seen.len(), 50);
    assert!(seen.iter().all(|&(n, regs)| n == 22 && regs.rip == code + IP));
    assert_eq!(seen[49].1.sp(), sp);

    let functions = CallFunctions { general_exit: quiet, ..all };
    let code = site_by(&mut arena, &functions, true, &callee(23));
    assert_kept("a call ends, general registers only", code, &EVERY, &mut random);
    let functions = CallFunctions { general_exit: after_all, exit: spoil, ..all };
    let code = site_by(&mut arena, &functions, true, &callee(24));
    tell(1, None);
    assert_kept("a call ends, extended state after all", code, &EVERY, &mut random);
    assert!(SCRIPT.lock().unwrap().seen.iter().all(|&(n, regs)| n == 24 && regs.rip == code + IP));
    assert_eq!(SCRIPT.lock().unwrap().seen.len(), 50);
}

/// A piece between four labels: its start, the start of its room, what is behind the room, and its end.
pub(crate) fn piece([start, room, on, end]: [unsafe extern "C" fn(); 4]) -> InlinedPath {
    let [start, room, on, end] = [start, room, on, end].map(|at| at as usize);
    // SAFETY: the code between two labels above.
    let text = unsafe { core::slice::from_raw_parts(start as *const u8, end - start) };
    InlinedPath { text, room: (room - start, on - room) }
}

/// The same with gates that inline the fast paths. Tests the fast path, and everything that it leaves to
/// functions.
#[test]
pub(crate) fn pieces_that_are_taken_in_are_not_noticed() {
    let _one = ONE.lock();
    let mut random = Random(0x9999_CAFE_1234_5679);
    let [begin, more, quiet, after_all, spoil] =
        [tl_begin, tl_begin_more, tl_quiet, tl_after_all, tl_spoil].map(|f| f as *const () as u64);
    let begins = piece([tl_piece_begins, tl_piece_begins_room, tl_piece_begins_on, tl_piece_begins_end]);
    let ends = piece([tl_piece_ends, tl_piece_ends_room, tl_piece_ends_on, tl_piece_ends_end]);
    let functions = CallFunctions {
        entry: spoil,
        general: after_all,
        begin,
        exit: spoil,
        general_exit: quiet,
        begins: Some(begins),
        arms: None,
        ends: Some(ends),
        state: state(),
    };
    let callee =
        |argument| Callee { argument, saves_state: false, only_returns: true, arms: false, by_trap: false };
    // SAFETY: only `tl_begin` writes these words, in this thread.
    let begun = || unsafe { &tl_begun }.each_ref().map(|word| word.swap(0, Ordering::Relaxed));
    let seen = || std::mem::take(&mut SCRIPT.lock().unwrap().seen).len();
    // The gate begins at various offsets in a cache line.
    for skip in (0..64).step_by(13) {
        for (number, begin, to_begin, to_body) in
            [(31, begin, false, 0), (32, begin, true, 0), (30, more, true, 50)]
        {
            let mut arena = Arena::new();
            arena.put(&vec![0xCC; skip]);
            begun();
            tell(0, None);
            let functions = CallFunctions { begin, ..functions };
            let code = site_by(&mut arena, &functions, false, &callee(number));
            assert_kept(&format!("a call begins: {number}"), code, &EVERY, &mut random);
            let words = begun();
            assert_eq!(
                to_begin.then_some((number, code + IP)),
                (words[0] != 0).then_some((words[0], words[1]))
            );
            assert_eq!(seen(), to_body);
        }
        for (number, general_exit, to_body) in
            [(31, after_all, 0), (30, quiet, 0), (32, after_all, 50), (33, after_all, 0)]
        {
            let mut arena = Arena::new();
            arena.put(&vec![0xCC; skip]);
            tell(0, None);
            let functions = CallFunctions { general_exit, ..functions };
            let code = site_by(&mut arena, &functions, true, &callee(number));
            assert_kept(&format!("a call ends: {number}"), code, &EVERY, &mut random);
            assert_eq!(seen(), to_body);
        }
    }
}

#[test]
fn the_consumer_sees_the_machine_as_it_is() {
    let _one = ONE.lock();
    let mut random = Random(0x1111_CAFE_1234_5679);
    let mut arena = Arena::new();
    let code = site(&mut arena, 1, false);
    for _ in 0..50 {
        tell(0, None);
        let before = random.state();
        let mut after = before.clone();
        // SAFETY: as in `assert_kept`: the code runs from tl_run's loaded state to tl_back.
        unsafe { tl_run(code, &mut after) };
        let seen = SCRIPT.lock().unwrap().seen[0].1;
        for reg in (0..16).filter(|&reg| reg != Gpr::Rsp as usize) {
            assert_eq!(seen.gpr[reg], before.regs[reg], "register {reg}");
        }
        assert_eq!((seen.rflags ^ before.flags) & (FLAGS | DF), 0);
        // The harness stores stack pointers relative to its own.
        STACK.store(seen.sp(), Ordering::Relaxed);
        assert_eq!(after.regs[Gpr::Rsp as usize], 0);
    }
}

static STACK: AtomicU64 = AtomicU64::new(0);

#[test]
fn changed_registers_and_flags_hold_and_others_stay() {
    let _one = ONE.lock();
    let mut random = Random(0x2222_CAFE_1234_5679);
    let mut arena = Arena::new();
    for saves in [false, true] {
        let code = site(&mut arena, 1, saves);
        for round in 0..64 {
            tell(
                1,
                Some(|regs| {
                    for reg in (0..16).filter(|&reg| reg != Gpr::Rsp as usize) {
                        regs.gpr[reg] = !regs.gpr[reg];
                    }
                    regs.rflags ^= FLAGS;
                    0
                }),
            );
            let before = random.state();
            let mut after = before.clone();
            // SAFETY: as in `assert_kept`: the code runs from tl_run's loaded state to tl_back.
            unsafe { tl_run(code, &mut after) };
            for reg in (0..16).filter(|&reg| reg != Gpr::Rsp as usize) {
                assert_eq!(after.regs[reg], !before.regs[reg], "register {reg}, round {round}");
            }
            assert_eq!((before.flags ^ after.flags) & FLAGS, FLAGS, "round {round}");
            assert_eq!(before.red, after.red);
            assert!(!saves || before.zmm == after.zmm);
        }
    }
}

#[test]
fn direction_and_alignment_flags_are_clear_in_the_call_and_back_behind_it() {
    let _one = ONE.lock();
    let mut random = Random(0x3333_CAFE_1234_5679);
    let mut arena = Arena::new();
    let code = site(&mut arena, 1, false);
    // Checks the consumer's own flags, then stores those that it saw. AC would fault at the first unaligned
    // access of the harness.
    fn see(regs: &mut Regs) -> u64 {
        let own: u64;
        // SAFETY: the instructions only read the flags.
        unsafe { core::arch::asm!("pushfq; pop {}", out(reg) own) };
        assert_eq!(own & (DF | AC), 0);
        STACK.store(regs.rflags, Ordering::Relaxed);
        0
    }
    for _ in 0..20 {
        tell(0, Some(see));
        let mut before = random.state();
        before.flags |= DF;
        let mut after = before.clone();
        // SAFETY: as in `assert_kept`; the harness clears DF afterwards.
        unsafe { tl_run(code, &mut after) };
        assert_eq!(STACK.load(Ordering::Relaxed) & DF, DF);
        assert_eq!((before.flags ^ after.flags) & (FLAGS | DF), 0);
        assert_eq!(before.regs[1..4], after.regs[1..4]);
    }
}

/// Changes everything, the instruction pointer and the stack pointer too, which moves by less and by more
/// than the frame.
#[test]
fn a_moved_instruction_pointer_and_stack_hold() {
    let _one = ONE.lock();
    let mut random = Random(0x4444_CAFE_1234_5679);
    let mut arena = Arena::new();
    static BY: AtomicU64 = AtomicU64::new(0);
    fn go(regs: &mut Regs) -> u64 {
        for reg in (0..16).filter(|&reg| reg != Gpr::Rsp as usize) {
            regs.gpr[reg] = regs.gpr[reg].rotate_left(7);
        }
        regs.rflags ^= FLAGS;
        regs.set(Gpr::Rsp, regs.sp().wrapping_add(BY.load(Ordering::Relaxed)));
        regs.rip = tl_back as *const () as u64;
        1
    }
    for saves in [false, true] {
        let mut out = Vec::new();
        let code = site(&mut arena, 1, saves);
        // A site with displaced code that must not run.
        out.extend([0x0F, 0x0B]);
        let end = code + site_len(code);
        // SAFETY: overwrites the jump back of `site`, before anything runs there.
        unsafe { core::ptr::copy_nonoverlapping(out.as_ptr(), end as *mut u8, 2) };
        for by in [0i64, 8, 16, 136, 64, -8, -16, -128, -136, -144, -280, -288, -512, -4096, -1, 3] {
            BY.store(by as u64, Ordering::Relaxed);
            tell(1, Some(go));
            let before = random.state();
            let mut after = before.clone();
            // SAFETY: as in `assert_kept`; the new stack pointer lies in the harness' own stack.
            unsafe { tl_run(code, &mut after) };
            assert_eq!(after.regs[Gpr::Rsp as usize] as i64, by);
            for reg in (0..16).filter(|&reg| reg != Gpr::Rsp as usize) {
                assert_eq!(after.regs[reg], before.regs[reg].rotate_left(7), "register {reg}, by {by}");
            }
            assert_eq!((before.flags ^ after.flags) & FLAGS, FLAGS, "by {by}");
            assert!(!saves || before.zmm == after.zmm);
            if by == 0 {
                assert_eq!(before.red, after.red, "the red zone of the new stack");
            }
        }
    }
}

/// The displaced instructions run on another stack.
#[test]
fn a_moved_stack_holds_for_the_displaced_instructions() {
    let _one = ONE.lock();
    let mut random = Random(0x6666_CAFE_1234_5679);
    let mut arena = Arena::new();
    let code = site(&mut arena, 1, true);
    fn move_stack(regs: &mut Regs) -> u64 {
        regs.set(Gpr::Rsp, regs.sp() - 24);
        regs.set(Gpr::Rcx, 5);
        2
    }
    for _ in 0..20 {
        tell(1, Some(move_stack));
        let before = random.state();
        let mut after = before.clone();
        // SAFETY: as in `assert_kept`; the new stack pointer lies in the harness' own stack.
        unsafe { tl_run(code, &mut after) };
        assert_eq!(after.regs[Gpr::Rsp as usize] as i64, -24);
        assert_eq!((after.regs[0], after.regs[1], after.regs[2]), (before.regs[0], 5, before.regs[2]));
        assert_eq!((before.flags ^ after.flags) & FLAGS, 0);
        assert!(before.zmm == after.zmm);
    }
}

/// Bytes of a site's code before the displaced code, which is that of `back` here.
fn site_len(code: u64) -> u64 {
    // SAFETY: code of `site`, which ends with the bytes of `back`.
    let bytes = unsafe { core::slice::from_raw_parts(code as *const u8, 128) };
    let back = back();
    bytes.windows(back.len()).position(|bytes| bytes == back).expect("the way back") as u64
}

/// A signal may arrive at any instruction of a hit. What it overwrites below the stack pointer must not
/// matter.
#[test]
fn signals_in_the_midst_of_hits_spoil_nothing() {
    let _one = ONE.lock();
    let mut arena = Arena::new();
    let mut random = Random(0x5555_CAFE_1234_5679);
    static MOVES: AtomicU64 = AtomicU64::new(0);
    fn sometimes(regs: &mut Regs) -> u64 {
        if MOVES.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
            return 0;
        }
        regs.rip = tl_back as *const () as u64;
        1
    }
    let code = site(&mut arena, 1, true);
    extern "C" fn on_signal(_: i32) {
        SIGNALS.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the handler is async-signal-safe and stays installed; gettid and tgkill take plain numbers.
    let me = unsafe {
        libc::signal(libc::SIGUSR2, on_signal as *const () as usize);
        libc::gettid()
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // SAFETY: as above; the thread lives as long as this scope.
                unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), me, libc::SIGUSR2) };
            }
        });
        while SIGNALS.load(Ordering::Relaxed) < 20_000 {
            tell(0, Some(sometimes));
            assert_kept("in a storm", code, &EVERY, &mut random);
        }
        stop.store(true, Ordering::Relaxed);
    });
}

static SIGNALS: AtomicU64 = AtomicU64::new(0);
