//! The measured functions (written by build.rs), and how to call them. This module holds the calls into
//! assembly.
#![allow(unsafe_code, reason = "calls assembly")]

use std::hint::black_box;

core::arch::global_asm!(include_str!(concat!(env!("OUT_DIR"), "/functions.s")), options(att_syntax));

/// Copies of each case.
pub const COPIES: usize = 4;
/// Functions that `walk` visits.
pub const WALK: usize = 10_000;

/// Callers of `deep`.
pub const DEPTH: u64 = 16;
/// Functions of `many`, and the distance from one to the next in bytes.
pub const MANY: usize = 50_000;
const MANY_STRIDE: u64 = 16;

/// Type of all of them. None reads memory, and none needs more than the C calling convention.
type Function = unsafe extern "C" fn(u64) -> u64;

macro_rules! cases {
    ($($case:literal: $($name:ident)+;)+) => {
        unsafe extern "C" { $($(fn $name(x: u64) -> u64;)+)+ }
        /// Name of each case, and its copies.
        static CASES: &[(&str, [Function; COPIES])] = &[$(($case, [$($name),+])),+];
    };
}
cases! {
    "nop": bench_nop_0 bench_nop_1 bench_nop_2 bench_nop_3;
    "push": bench_push_0 bench_push_1 bench_push_2 bench_push_3;
    "deep": bench_deep_0 bench_deep_1 bench_deep_2 bench_deep_3;
    "heap": bench_heap_0 bench_heap_1 bench_heap_2 bench_heap_3;
    "text": bench_text_0 bench_text_1 bench_text_2 bench_text_3;
    "edge": bench_edge_0 bench_edge_1 bench_edge_2 bench_edge_3;
    "returned": bench_returned_0 bench_returned_1 bench_returned_2 bench_returned_3;
    "mark": bench_mark_0 bench_mark_1 bench_mark_2 bench_mark_3;
    "endbr64": bench_endbr64_0 bench_endbr64_1 bench_endbr64_2 bench_endbr64_3;
    "sub": bench_sub_0 bench_sub_1 bench_sub_2 bench_sub_3;
    "mov": bench_mov_0 bench_mov_1 bench_mov_2 bench_mov_3;
    "ret": bench_ret_0 bench_ret_1 bench_ret_2 bench_ret_3;
    "generic": bench_generic_0 bench_generic_1 bench_generic_2 bench_generic_3;
    "push_short": bench_push_short_0 bench_push_short_1 bench_push_short_2 bench_push_short_3;
    "push_pun": bench_push_pun_0 bench_push_pun_1 bench_push_pun_2 bench_push_pun_3;
}
unsafe extern "C" {
    /// Calls `function` this many times, with `more` extra frames on the stack.
    fn bench_stack(function: Function, times: u64, more: u64);
    static bench_walk_table: [Function; WALK];
    fn bench_many(x: u64) -> u64;
}

/// What a thread runs: one function over and over, or all of `walk` in turn.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// One function.
    One(Function),
    /// One function; its argument points to text.
    Text(Function, u64),
    /// One function, with [`DEPTH`] callers by frame pointers.
    Deep(Function),
    /// Ten thousand functions in turn.
    Walk,
}

/// A counter of one thread on cache lines of its own: the control.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Private(std::cell::Cell<u64>);

impl Work {
    /// The work of one thread: copy `copy` of a case.
    pub fn of(case: &str, copy: usize) -> Option<Self> {
        if case == "walk" {
            return Some(Self::Walk);
        }
        let (_, copies) = CASES.iter().find(|(name, _)| *name == case)?;
        let function = copies.get(copy).copied()?;
        Some(match case {
            "deep" | "heap" => Self::Deep(function),
            "text" | "returned" => Self::Text(function, text()),
            "edge" => Self::Text(function, edge()),
            _ => Self::One(function),
        })
    }
    /// Calls in one batch.
    pub fn batch(self) -> u64 {
        match self {
            Self::One(_) | Self::Text(..) | Self::Deep(_) => 1000,
            Self::Walk => WALK as u64,
        }
    }
    /// Runs one batch.
    pub fn run(self) {
        match self {
            Self::One(function) => {
                let function = black_box(function);
                for i in 0..self.batch() {
                    // SAFETY: every function of build.rs follows the C calling convention, and touches only
                    // registers and its own stack.
                    unsafe { function(i) };
                }
            }
            Self::Text(function, at) => {
                let (function, at) = (black_box(function), black_box(at));
                for _ in 0..self.batch() {
                    // SAFETY: as above. The function does not read what its argument points to.
                    unsafe { function(at) };
                }
            }
            // SAFETY: as above; this number of frames fits on any stack. Two of `DEPTH` callers are there
            // anyway: the direct caller, and the end of the chain.
            Self::Deep(function) => unsafe { bench_stack(black_box(function), self.batch(), DEPTH - 2) },
            Self::Walk => {
                // SAFETY: the table has WALK entries, written at link time and never changed.
                for function in unsafe { &bench_walk_table } {
                    // SAFETY: as above.
                    unsafe { function(7) };
                }
            }
        }
    }
    /// Runs one batch, and counts each call in the thread's own counter.
    pub fn run_counted(self, own: &Private) {
        let count = || own.0.set(black_box(own.0.get() + 1));
        match self {
            Self::One(function) => {
                let function = black_box(function);
                for i in 0..self.batch() {
                    // SAFETY: as in `run`.
                    unsafe { function(i) };
                    count();
                }
            }
            Self::Text(function, at) => {
                let (function, at) = (black_box(function), black_box(at));
                for _ in 0..self.batch() {
                    // SAFETY: as in `run`.
                    unsafe { function(at) };
                    count();
                }
            }
            // Nothing can be placed between two calls here, so the control is the calls alone.
            Self::Deep(_) => self.run(),
            Self::Walk => {
                // SAFETY: as in `run`.
                for function in unsafe { &bench_walk_table } {
                    // SAFETY: as in `run`.
                    unsafe { function(7) };
                    count();
                }
            }
        }
    }
}

/// Bytes of a text, with the zero at its end.
pub const TEXT: usize = 32;

/// A text of 31 characters, with more behind it.
fn text() -> u64 {
    static TEXTS: [u8; 256] = {
        let mut texts = [b't'; 256];
        texts[TEXT - 1] = 0;
        texts
    };
    black_box(&TEXTS).as_ptr() as u64
}

/// The same text at the end of mapped memory, so that a load of a record's whole length would fault there.
fn edge() -> u64 {
    static EDGE: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    const PAGE: usize = 4096;
    *EDGE.get_or_init(|| {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: two fresh pages, of which the second is made inaccessible; the text lies in the first.
        unsafe {
            let at = libc::mmap(std::ptr::null_mut(), 2 * PAGE, prot, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED, "two pages");
            assert_eq!(libc::mprotect(at.byte_add(PAGE), PAGE, libc::PROT_NONE), 0, "the second page");
            let start = at.byte_add(PAGE - TEXT).cast::<u8>();
            std::ptr::copy_nonoverlapping(text() as *const u8, start, TEXT);
            start as u64
        }
    })
}

/// Addresses of a case's functions in this process. The victim runs the same file.
pub fn addresses(case: &str, limit: usize) -> Vec<u64> {
    if case == "walk" {
        // SAFETY: as in `run`.
        return unsafe { &bench_walk_table }.iter().take(limit).map(|f| *f as usize as u64).collect();
    }
    if case == "many" {
        let first = bench_many as *const () as u64;
        return (0..limit.min(MANY) as u64).map(|n| first + n * MANY_STRIDE).collect();
    }
    let copies = CASES.iter().find(|(name, _)| *name == case).map(|(_, copies)| copies);
    copies.into_iter().flatten().take(limit).map(|f| *f as usize as u64).collect()
}

/// Binds the calling thread to one CPU, as far as there are that many CPUs.
pub fn pin(thread: usize) {
    pin_to(thread % std::thread::available_parallelism().map_or(1, usize::from));
}

/// Binds the calling thread to this CPU.
pub fn pin_to(cpu: usize) {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is a local, and the CPU number is small.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the kernel only reads the set; its size is stated.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
}
