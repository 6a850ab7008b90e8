//! SAFE-2: whatever a stub runs between, registers, flags, vectors and red zone are the same before and
//! after.

use std::arch::{global_asm, is_x86_feature_detected};

use trapline_plan::x86_64::stub::{
    ExitKind, Latency, Liveness, Machine, SharedTimed, ThreadId, Timed, UnfinishedStub, count,
    count_by_thread, latency_arm, latency_enter, latency_exit,
};

use crate::arena::{Arena, machines, set, thread_pointer, unregister};
use crate::durations::{common, rare};
use crate::threads::{threads, total};

pub(crate) const FLAGS: u64 = 0x8D5; // CF PF AF ZF SF OF
const RSP: usize = 4;

#[repr(C, align(64))]
#[derive(Clone)]
pub(crate) struct State {
    pub(crate) regs: [u64; 16],
    pub(crate) flags: u64,
    pub(crate) red: [u64; 16],
    vectors: u64,
    pad: [u64; 6],
    pub(crate) zmm: [[u64; 8]; 32],
}

// In: rdi = code, rsi = state. Loads the state, jumps to the code, which jumps to tl_back; stores the state.
global_asm!(
    ".globl tl_run; .globl tl_back",
    "tl_run: push rbx; push rbp; push r12; push r13; push r14; push r15; sub rsp, 8",
    "mov [rip+tl_state], rsi; mov [rip+tl_code], rdi",
    "cmp qword ptr [rsi+264], 0; je 2f",
    ".altmacro",
    ".macro tl_vector op n, o; .if \\op; vmovdqu64 zmm\\n, [rsi+320+\\o]; .else; vmovdqu64 [rsi+320+\\o], zmm\\n; .endif; .endm",
    ".macro tl_vectors op; .set i, 0; .rept 32; tl_vector \\op %i, %(i*64); .set i, i+1; .endr; .endm",
    "tl_vectors 1",
    "2: .set i, 0; .rept 16; mov rax, [rsi+136+i*8]; mov [rsp-128+i*8], rax; .set i, i+1; .endr",
    "mov rax, rsp; lea rsp, [rsp-256]; push qword ptr [rsi+128]; popfq; mov rsp, rax",
    "mov rax,[rsi]; mov rcx,[rsi+8]; mov rdx,[rsi+16]; mov rbx,[rsi+24]; mov rbp,[rsi+40]; mov rdi,[rsi+56]",
    "mov r8,[rsi+64]; mov r9,[rsi+72]; mov r10,[rsi+80]; mov r11,[rsi+88]; mov r12,[rsi+96]; mov r13,[rsi+104]",
    "mov r14,[rsi+112]; mov r15,[rsi+120]; mov [rip+tl_rsp], rsp; mov rsi,[rsi+48]",
    "jmp [rip+tl_code]",
    "tl_back: mov [rip+tl_rsi], rsi; mov rsi, [rip+tl_state]; mov [rsi+32], rsp; mov rsp, [rip+tl_rsp]",
    "mov [rsi],rax; mov [rsi+8],rcx; mov [rsi+16],rdx; mov [rsi+24],rbx; mov [rsi+40],rbp; mov [rsi+56],rdi",
    "mov [rsi+64],r8; mov [rsi+72],r9; mov [rsi+80],r10; mov [rsi+88],r11; mov [rsi+96],r12; mov [rsi+104],r13",
    "mov [rsi+112],r14; mov [rsi+120],r15; mov rax,[rip+tl_rsi]; mov [rsi+48],rax",
    ".set i, 0; .rept 16; mov rax, [rsp-128+i*8]; mov [rsi+136+i*8], rax; .set i, i+1; .endr",
    "lea rsp, [rsp-256]; pushfq; pop qword ptr [rsi+128]; lea rsp, [rsp+256]; cld",
    "mov rax, [rip+tl_rsp]; mov [rip+tl_code], rax; sub [rsi+32], rax",
    "cmp qword ptr [rsi+264], 0; je 2f; tl_vectors 0",
    "2: add rsp, 8; pop r15; pop r14; pop r13; pop r12; pop rbp; pop rbx; ret",
    ".pushsection .bss; tl_state: .quad 0; tl_code: .quad 0; tl_rsp: .quad 0; tl_rsi: .quad 0; .popsection",
);
unsafe extern "C" {
    pub(crate) fn tl_run(code: u64, state: *mut State);
    pub(crate) fn tl_back();
}

pub(crate) struct Random(pub(crate) u64);
impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    pub(crate) fn state(&mut self) -> State {
        State {
            regs: core::array::from_fn(|n| if n == RSP { 0 } else { self.next() }),
            flags: self.next() & FLAGS | 0x202,
            red: core::array::from_fn(|_| self.next()),
            vectors: u64::from(sets_vectors()),
            pad: [0; 6],
            zmm: core::array::from_fn(|_| core::array::from_fn(|_| self.next())),
        }
    }
}

/// Whether the harness can set vector registers here, and read them afterwards.
pub(crate) fn sets_vectors() -> bool {
    is_x86_feature_detected!("avx512f")
}

/// Displaced code that leads back to the harness from any address.
pub(crate) fn back() -> Vec<u8> {
    let mut code = vec![0xFF, 0x25, 0, 0, 0, 0];
    code.extend((tl_back as *const () as u64).to_le_bytes());
    code
}

pub(crate) fn assert_kept(what: &str, code: u64, site: &Liveness, random: &mut Random) {
    for round in 0..50 {
        let before = random.state();
        let mut after = before.clone();
        // SAFETY: the code runs from tl_run's loaded state to tl_back, and the harness has one user at a
        // time.
        unsafe { tl_run(code, &mut after) };
        for reg in 0..16 {
            let dead = site.dead >> reg & 1 == 1;
            assert!(dead || before.regs[reg] == after.regs[reg], "{what}: register {reg}, round {round}");
        }
        assert!(site.flags_dead || (before.flags ^ after.flags) & FLAGS == 0, "{what}: flags, round {round}");
        assert!(!site.red_zone_live || before.red == after.red, "{what}: red zone, round {round}");
        assert!(before.zmm == after.zmm, "{what}: vectors, round {round}");
    }
}

fn sites() -> impl Iterator<Item = Liveness> {
    let dead = [0, 1, 1 << 11, 2, 2 | 1 << 10, 0b1100_0111];
    dead.into_iter().flat_map(|dead| {
        (0..4).map(move |n| Liveness { flags_dead: n & 1 == 1, dead, red_zone_live: n & 2 == 2 })
    })
}

fn build<'a>(arena: &mut Arena, stub: impl FnOnce(&mut Vec<u8>, u64) -> Option<UnfinishedStub<'a>>) -> u64 {
    let mut out = Vec::new();
    let pending = stub(&mut out, arena.next());
    out.extend(back());
    if let Some(pending) = pending {
        pending.finish(&mut out, None).expect("code");
    }
    arena.put(&out)
}

fn counts(machine: &Machine, random: &mut Random) {
    let mut arena = Arena::new();
    for (n, site) in sites().enumerate() {
        let word = arena.word(n as u64);
        let code = build(&mut arena, |out, at| Some(count(out, at, machine, word, &site)));
        assert_kept(&format!("count {machine:?} {site:?}"), code, &site, random);
        assert_eq!(arena.counted(n as u64), 50);
    }
}

fn counts_by_thread(random: &mut Random) {
    let mut arena = Arena::new();
    // One row: the thread finds it free first, then its own. If it has another thread's tag, hits go to the
    // row of all others.
    for (rows, taken) in [(4, false), (1, true)] {
        let threads = threads(&arena, ThreadId::Call, rows);
        if taken {
            set(threads.tags, u64::MAX);
        }
        for site in sites() {
            let before = total(&threads, 3);
            let code = build(&mut arena, |out, at| Some(count_by_thread(out, at, &threads, 3, &site)));
            assert_kept(&format!("by thread {site:?}"), code, &site, random);
            assert_eq!(total(&threads, 3) - before, 50);
        }
        arena = Arena::new();
    }
}

/// A call that is armed at its entry and returns through its trampoline.
fn armed(machine: &Machine, count: u32, random: &mut Random) {
    let mut arena = Arena::new();
    let (latency, trampolines) = arena.armed(machine, count);
    for site in sites().filter(|site| !site.red_zone_live) {
        let timed = Timed { machine, latency: &latency, function: 7, site };
        let mut out = Vec::new();
        let pending = latency_arm(&mut out, arena.next(), &timed).expect("slots");
        out.push(0xC3);
        pending.finish(&mut out, None).expect("code");
        let callee = arena.put(&out);
        let mut out = vec![0xE8];
        out.extend((callee.wrapping_sub(arena.next() + 5) as u32).to_le_bytes());
        out.extend(back());
        let code = arena.put(&out);
        assert_kept(&format!("armed {timed:?}"), code, &site, random);
    }
    assert_eq!(crate::return_trampolines::lent(&trampolines), 0);
}

fn latencies(machine: &Machine, latency: &Latency, arena: &mut Arena, random: &mut Random) {
    for site in sites() {
        let timed = Timed { machine, latency, function: 7, site };
        let [enter, again] = [false, true].map(|looped| {
            let rare = rare(arena, machine, latency, (site, looped));
            build(arena, |out, at| Some(latency_enter(out, at, &timed, rare)))
        });
        let [leave, tail] = [ExitKind::Return, ExitKind::Tail].map(|kind| {
            let which = SharedTimed::Exit { kind, red_zone_live: site.red_zone_live, returns: false };
            let which = common(arena, machine, latency, which);
            build(arena, |out, at| {
                latency_exit(out, at, &timed, which);
                None
            })
        });
        // Twice each: the second entry finds the first one's stamp, and the second exit finds none.
        for (what, code) in [
            ("enter", enter),
            ("loop", again),
            ("exit", leave),
            ("enter", enter),
            ("exit", leave),
            ("tail", tail),
        ] {
            assert_kept(&format!("{what} {timed:?}"), code, &site, random);
        }
        if !site.red_zone_live {
            returning(&timed, arena, random);
        }
    }
}

/// An exit whose shared code returns, behind a call.
fn returning(timed: &Timed<'_>, arena: &mut Arena, random: &mut Random) {
    let which = SharedTimed::Exit { kind: ExitKind::Return, red_zone_live: false, returns: true };
    let which = common(arena, timed.machine, timed.latency, which);
    let mut out = Vec::new();
    latency_exit(&mut out, arena.next(), timed, which);
    let callee = arena.put(&out);
    let mut out = vec![0xE8];
    out.extend((callee.wrapping_sub(arena.next() + 5) as u32).to_le_bytes());
    out.extend(back());
    let code = arena.put(&out);
    assert_kept(&format!("exit that returns {timed:?}"), code, &timed.site, random);
}

thread_local! {
    /// Stands for the register or word that holds the goroutine pointer.
    static G: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// From now on, this thread runs that goroutine, or none. Returns the distance from the thread pointer to the
/// word that says so.
pub(crate) fn runs(goroutine: Option<&Goroutine>) -> i32 {
    G.set(goroutine.map_or(0, |g| core::ptr::from_ref(g) as u64));
    G.with(|g| (core::ptr::from_ref(g) as u64).wrapping_sub(thread_pointer()) as i64) as i32
}

/// The first two words of a Go runtime's `g`: lo and hi of its stack.
pub(crate) type Goroutine = [u64; 2];

/// The harness has one user at a time.
pub(crate) static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[test]
fn state_is_kept() {
    let _one = ONE.lock();
    let mut random = Random(0x1234_5678_9ABC_DEF1);
    counts_by_thread(&mut random);
    for machine in machines() {
        counts(&machine, &mut random);
        armed(&machine, 64, &mut random);
        let goroutine: &Goroutine = &[0, 0x7fff_ffff_f000];
        for g in [None, Some(goroutine)] {
            let offset = runs(g);
            for (outermost, go) in [(false, false), (true, false), (false, true), (true, true)] {
                let mut arena = Arena::new();
                let go = go.then_some(offset);
                let min_ticks = g.map_or(0, |_| 1024);
                let latency = Latency { outermost, go, min_ticks, ..arena.latency() };
                latencies(&machine, &latency, &mut arena, &mut random);
            }
        }
    }
    if machines().len() == 2 {
        unregister();
        counts(&machines()[1], &mut random);
        armed(&machines()[1], 64, &mut random);
        let mut arena = Arena::new();
        let latency = arena.latency();
        latencies(&machines()[1], &latency, &mut arena, &mut random);
    }
}
