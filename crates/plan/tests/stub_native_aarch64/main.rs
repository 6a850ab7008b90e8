//! Stubs and patches of arm64, executed: on hardware or in an emulator, wherever the test runs.
#![cfg(target_arch = "aarch64")]
#![allow(unsafe_code, reason = "generated code is written and run")]

mod apart;
mod compact;
mod counts;
mod fields;
mod filters;
mod gathered;
mod goroutine_latency;
mod goroutines;
mod held;
mod keyed;
mod latency;
mod load;
#[path = "../common/map_programs.rs"]
mod map_programs;
mod marks;
mod names;
mod ran;
mod read_tallies;
mod record_contents;
mod records;
mod return_trampolines;
mod rows;
mod stacks;
mod stage_counts;
mod stages;
mod summed;
mod tallies;
mod threads;

use std::arch::naked_asm;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use trapline_plan::aarch64::stub::{Machine, Rseq, count};

unsafe extern "C" {
    safe static __rseq_offset: isize;
    safe static __rseq_size: u32;
}

const LINES: u32 = 9;
const LEN: usize = 1 << 20;
const DATA: u64 = 1 << 19;

/// An rseq area like the kernel's, one for each thread, at one distance from the thread pointer.
#[repr(C, align(32))]
struct Area {
    cpu: [AtomicU32; 2],
    section: AtomicU64,
}

thread_local! {
    static AREA: Area = const { Area { cpu: [AtomicU32::new(0), AtomicU32::new(0)], section: AtomicU64::new(0) } };
}

fn thread_pointer() -> u64 {
    let tp: u64;
    // SAFETY: the instruction reads a register.
    unsafe { std::arch::asm!("mrs {}, tpidr_el0", out(reg) tp) };
    tp
}

/// The areas made by hand: no sequence is aborted.
fn by_hand() -> Option<Rseq> {
    let at = AREA.with(|area| std::ptr::from_ref(area) as u64);
    Some(Rseq { offset: at.wrapping_sub(thread_pointer()).cast_signed() as i32 })
}

/// The C library's areas, if the kernel knows them.
fn registered() -> Option<Rseq> {
    (__rseq_size > 0).then_some(Rseq { offset: __rseq_offset as i32 })
}

/// Memory for code, and counters behind it.
struct CodeMemory {
    base: u64,
    used: Cell<u64>,
}

impl CodeMemory {
    /// Two rooms, further from each other than a branch reaches.
    fn far_apart() -> [Self; 2] {
        const APART: usize = 256 << 20;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), APART + LEN, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        [0, APART].map(|offset| {
            let at = base.wrapping_byte_add(offset);
            let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
            // SAFETY: a part of that mapping.
            assert_eq!(unsafe { libc::mprotect(at, LEN, protection) }, 0);
            Self { base: at as u64, used: Cell::new(0) }
        })
    }
    fn new() -> Self {
        let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), LEN, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        assert_ne!(base, libc::MAP_FAILED);
        Self { base: base as u64, used: Cell::new(0) }
    }
    /// Unmaps the room, which no code runs or reads any more.
    fn unmap(self) {
        // SAFETY: our own mapping.
        unsafe { libc::munmap(self.base as *mut _, LEN) };
    }
    fn next(&self) -> u64 {
        self.base + self.used.get()
    }
    fn put(&self, words: &[u32]) -> u64 {
        let at = self.next();
        self.write(at, words);
        self.used.set((self.used.get() + 4 * words.len() as u64).next_multiple_of(64));
        assert!(self.used.get() < DATA);
        at
    }
    fn write(&self, at: u64, words: &[u32]) {
        // SAFETY: our own memory, where nothing runs yet. The loop steps by 16 bytes, the smallest line size
        // of any processor.
        unsafe {
            std::ptr::copy_nonoverlapping(words.as_ptr(), at as *mut u32, words.len());
            for line in (at..at + 4 * words.len() as u64).step_by(16) {
                std::arch::asm!("dc cvau, {0}", "dsb ish", "ic ivau, {0}", "dsb ish", "isb", in(reg) line);
            }
        }
    }
    fn word(&self, line: u64) -> &AtomicU64 {
        // SAFETY: aligned memory of our own, accessed as atomics only.
        unsafe { &*((self.base + DATA + 64 * line) as *const AtomicU64) }
    }
    fn counts(&self) -> Vec<u64> {
        (0..LINES.into()).map(|line| self.word(line).load(Ordering::Relaxed)).collect()
    }
    /// A function that is counted and then does `rest`.
    fn counted(&self, machine: &Machine, ip_free: bool, rest: &[u32]) -> u64 {
        let pending = count(self.next(), machine, self.base + DATA, ip_free);
        self.put(&pending.finish(rest, None).expect("in reach"))
    }
}

fn call(at: u64, a: u64, b: u64) -> u64 {
    // SAFETY: tests put functions of this type there.
    let function: extern "C" fn(u64, u64) -> u64 = unsafe { std::mem::transmute(at as *const ()) };
    function(a, b)
}

const RET: u32 = 0xD65F_03C0;
/// add x0, x0, x1
const ADD: u32 = 0x8B01_0000;
/// cbnz x0, over the next
const CBNZ: u32 = 0xB500_0040;

fn machines(rseq: fn() -> Option<Rseq>) -> Vec<Machine> {
    let lse = std::arch::is_aarch64_feature_detected!("lse");
    let mut machines = Vec::new();
    for lse in [false, true].into_iter().take(1 + usize::from(lse)) {
        machines.push(Machine { rseq: rseq(), lse, lines: LINES });
        machines.push(Machine { rseq: None, lse, lines: LINES });
        machines.push(Machine { rseq: None, lse, lines: 1 });
    }
    machines
}

/// Stores x0 to x30, flags and sp before and behind the code at x1. x0 points to 33 words.
#[unsafe(naked)]
unsafe extern "C" fn around(state: *mut u64, code: u64) {
    naked_asm!(
        "stp x29, x30, [sp, #-112]!",
        "stp x19, x20, [sp, #16]",
        "stp x21, x22, [sp, #32]",
        "stp x23, x24, [sp, #48]",
        "stp x25, x26, [sp, #64]",
        "stp x27, x28, [sp, #80]",
        "str x0, [sp, #96]",
        "mov x30, x1",
        "ldr x2, [x0, #248]",
        "msr nzcv, x2",
        "ldp x2, x3, [x0, #16]",
        "ldp x4, x5, [x0, #32]",
        "ldp x6, x7, [x0, #48]",
        "ldp x8, x9, [x0, #64]",
        "ldp x10, x11, [x0, #80]",
        "ldp x12, x13, [x0, #96]",
        "ldp x14, x15, [x0, #112]",
        "ldp x16, x17, [x0, #128]",
        "ldp x19, x20, [x0, #152]",
        "ldp x21, x22, [x0, #168]",
        "ldp x23, x24, [x0, #184]",
        "ldp x25, x26, [x0, #200]",
        "ldp x27, x28, [x0, #216]",
        "ldr x29, [x0, #232]",
        "ldr x1, [x0, #8]",
        "ldr x0, [x0]",
        "blr x30",
        "str x1, [sp, #104]",
        "ldr x1, [sp, #96]",
        "str x0, [x1]",
        "stp x2, x3, [x1, #16]",
        "stp x4, x5, [x1, #32]",
        "stp x6, x7, [x1, #48]",
        "stp x8, x9, [x1, #64]",
        "stp x10, x11, [x1, #80]",
        "stp x12, x13, [x1, #96]",
        "stp x14, x15, [x1, #112]",
        "stp x16, x17, [x1, #128]",
        "stp x19, x20, [x1, #152]",
        "stp x21, x22, [x1, #168]",
        "stp x23, x24, [x1, #184]",
        "stp x25, x26, [x1, #200]",
        "stp x27, x28, [x1, #216]",
        "str x29, [x1, #232]",
        "mrs x2, nzcv",
        "str x2, [x1, #248]",
        "ldr x2, [sp, #104]",
        "str x2, [x1, #8]",
        "ldp x27, x28, [sp, #80]",
        "ldp x25, x26, [sp, #64]",
        "ldp x23, x24, [sp, #48]",
        "ldp x21, x22, [sp, #32]",
        "ldp x19, x20, [sp, #16]",
        "ldp x29, x30, [sp], #112",
        "ret",
    )
}

/// The same, with d0 to d7 loaded from the eight words at x2.
#[unsafe(naked)]
unsafe extern "C" fn around_with(state: *mut u64, code: u64, floats: *const u64) {
    naked_asm!(
        "ldp d0, d1, [x2]",
        "ldp d2, d3, [x2, #16]",
        "ldp d4, d5, [x2, #32]",
        "ldp d6, d7, [x2, #48]",
        "b {around}",
        around = sym around,
    )
}

/// Runs the code at `code` with these registers and flags: x0 to x30, and flags. Returns what it left; x18
/// and x30 keep their own values.
fn run(code: u64, before: [u64; 32], floats: [u64; 8]) -> [u64; 32] {
    let mut after = before;
    // SAFETY: 32 words and eight; the code preserves what a function preserves.
    unsafe { around_with(after.as_mut_ptr(), code, floats.as_ptr()) };
    after
}

/// Runs the code at `code` with these flags. Returns the registers before and after.
fn changes(code: u64, flags: u64) -> ([u64; 32], [u64; 32]) {
    changes_on(code, flags, None)
}

/// The same with a goroutine.
fn changes_on(code: u64, flags: u64, g: Option<&[u64; 2]>) -> ([u64; 32], [u64; 32]) {
    let mut before: [u64; 32] = std::array::from_fn(|n| (n as u64 + flags) * 0x0123_4567_89AB_CDEF);
    before[31] = flags << 28;
    before[28] = g.map_or(before[28], |g| g.as_ptr() as u64);
    let mut after = before;
    // SAFETY: 32 words; the code preserves what a function preserves.
    unsafe { around(after.as_mut_ptr(), code) };
    (before, after)
}

/// Calls the code at `code` once in each of 16 threads that exist at once. Their blocks lie 8 MiB apart,
/// since their stacks have no guard pages between them.
fn in_threads_at_once(code: u64) {
    const THREADS: u32 = 16;
    static ONE: Mutex<()> = Mutex::new(());
    static CODE: AtomicU64 = AtomicU64::new(0);
    static THERE: AtomicU32 = AtomicU32::new(0);
    extern "C" fn calls(_: *mut libc::c_void) -> *mut libc::c_void {
        assert_eq!(call(CODE.load(Ordering::Relaxed), 1, 2), 3);
        THERE.fetch_add(1, Ordering::Relaxed);
        while THERE.load(Ordering::Relaxed) < THREADS {
            std::thread::yield_now();
        }
        std::ptr::null_mut()
    }
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    CODE.store(code, Ordering::Relaxed);
    THERE.store(0, Ordering::Relaxed);
    // SAFETY: attributes of our own, and a function of the required type.
    unsafe {
        let mut attributes = std::mem::zeroed();
        assert_eq!(libc::pthread_attr_init(&raw mut attributes), 0);
        assert_eq!(libc::pthread_attr_setstacksize(&raw mut attributes, 8 << 20), 0);
        assert_eq!(libc::pthread_attr_setguardsize(&raw mut attributes, 0), 0);
        let threads = [(); THREADS as usize].map(|()| {
            let mut thread = 0;
            let made =
                libc::pthread_create(&raw mut thread, &raw const attributes, calls, std::ptr::null_mut());
            assert_eq!(made, 0);
            thread
        });
        for thread in threads {
            assert_eq!(libc::pthread_join(thread, std::ptr::null_mut()), 0);
        }
        libc::pthread_attr_destroy(&raw mut attributes);
    }
}

/// Four threads call the code at `code`. They migrate and are interrupted all the time, and their signal
/// handlers call it too. Returns the number of calls by threads and by handlers.
fn storm(code: u64) -> (u64, u64) {
    static ONE: Mutex<()> = Mutex::new(());
    static CODE: AtomicU64 = AtomicU64::new(0);
    static HANDLED: AtomicU64 = AtomicU64::new(0);
    extern "C" fn hits_too(_: i32) {
        call(CODE.load(Ordering::Relaxed), 1, 1);
        HANDLED.fetch_add(1, Ordering::Relaxed);
    }
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    if registered().is_none() {
        println!("SKIP: no rseq here: those stubs are only run by hand");
    }
    // SAFETY: the handler is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = hits_too as extern "C" fn(i32) as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
    }
    CODE.store(code, Ordering::Relaxed);
    HANDLED.store(0, Ordering::Relaxed);
    let (threads, calls, done) = (4, 20_000, AtomicBool::new(false));
    let (send, receive) = std::sync::mpsc::channel();
    let called: u64 = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                let send = send.clone();
                scope.spawn(move || {
                    // SAFETY: the call has no arguments.
                    send.send(unsafe { libc::gettid() }).expect("it is read");
                    let mut n = 0;
                    while n < calls || HANDLED.load(Ordering::Relaxed) < 200 {
                        assert_eq!(call(code, n, 2), n + 2);
                        n += 1;
                    }
                    n
                })
            })
            .collect();
        let tids: Vec<i32> = receive.iter().take(threads).collect();
        let done = &done;
        scope.spawn(move || {
            for (round, tid) in (0..).zip(tids.iter().cycle()) {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                // SAFETY: a set of one CPU, and signals, for threads of ours.
                unsafe {
                    let mut set: libc::cpu_set_t = std::mem::zeroed();
                    libc::CPU_SET(round % 2, &mut set);
                    libc::sched_setaffinity(*tid, size_of_val(&set), &raw const set);
                    libc::syscall(libc::SYS_tgkill, libc::getpid(), *tid, libc::SIGUSR1);
                }
                std::thread::yield_now();
            }
        });
        let called = workers.into_iter().map(|worker| worker.join().expect("a worker")).sum();
        done.store(true, Ordering::Relaxed);
        called
    });
    (called, HANDLED.load(Ordering::Relaxed))
}
