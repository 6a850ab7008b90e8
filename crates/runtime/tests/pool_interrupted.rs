//! A signal at each instruction of each sequence; its handler takes and puts, or forks. Each interrupted
//! operation either has happened completely or not at all.
//!
//! Single-stepping would abort a sequence at its first instruction. So a breakpoint is written at one
//! instruction at a time, and the thread runs into it at full speed: the kernel aborts the sequence when it
//! delivers the trap, as at any signal. This is a program with a single test, since no other thread may run
//! into the breakpoints.
#![cfg(not(loom))]
#![allow(unsafe_code, reason = "breakpoints in our own code, a signal handler, the C library's rseq area")]

use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::SeqCst};

use trapline_runtime::pool::{At, Held, OwnedPool, Pool, PoolSize, Registered, Returned};

/// `struct rseq_cs` of rseq(2).
#[repr(C, align(32))]
struct Descriptor {
    version: u32,
    flags: u32,
    start: u64,
    len: u64,
    abort: u64,
}

unsafe extern "C" {
    static __start___rseq_cs: Descriptor;
    static __stop___rseq_cs: Descriptor;
    /// Distance from the thread pointer to the C library's rseq area (glibc 2.35).
    static __rseq_offset: isize;
    static __rseq_size: u32;
}

fn registered() -> Option<At> {
    let tp: *mut u8;
    // SAFETY: the thread's control block begins with its own address (psABI); the two statics are constants
    // of the C library.
    let (area, size) = unsafe {
        core::arch::asm!("mov {}, fs:0", out(reg) tp, options(nostack, readonly));
        (tp.offset(__rseq_offset), __rseq_size)
    };
    // SAFETY: the C library registered this area for this thread.
    (size > 0).then(|| At::Rseq(unsafe { Registered::new(NonNull::new_unchecked(area)) }))
}

#[inline(never)]
fn get(pool: &Pool, at: At) -> Option<Held> {
    std::hint::black_box(pool).get(at)
}
#[inline(never)]
fn put(pool: &Pool, at: At, held: Held) -> Returned {
    std::hint::black_box(pool).put(at, held)
}

/// Addresses of each sequence's instructions, including the one behind the commit.
fn sequences() -> Vec<Vec<u64>> {
    // SAFETY: the linker defines these two symbols around what `pushsection __rseq_cs` collected.
    let all = unsafe {
        let (start, stop) = (&raw const __start___rseq_cs, &raw const __stop___rseq_cs);
        std::slice::from_raw_parts(start, stop.offset_from_unsigned(start))
    };
    let boundaries = |one: &Descriptor| {
        assert_eq!((one.version, one.flags), (0, 0));
        // SAFETY: the instructions of a sequence of this program, and room for the one behind.
        let code = unsafe { std::slice::from_raw_parts(one.start as *const u8, one.len as usize) };
        let decoder = iced_x86::Decoder::with_ip(64, code, one.start, 0);
        decoder.into_iter().map(|insn| insn.ip()).chain([one.start + one.len]).collect()
    };
    all.iter().map(boundaries).collect()
}

static POOL: AtomicPtr<Pool> = AtomicPtr::new(std::ptr::null_mut());
static WHERE: AtomicU64 = AtomicU64::new(0);
static BYTE: AtomicU32 = AtomicU32::new(0);
static HITS: AtomicU32 = AtomicU32::new(0);
/// What the handler does: an index into `OPERATIONS`.
static OPERATION: AtomicU32 = AtomicU32::new(0);
/// An object that the handler gets or leaves: its number + 1.
static PASSED: AtomicU32 = AtomicU32::new(0);
static FAULTS: AtomicU32 = AtomicU32::new(0);

const OPERATIONS: [&str; 4] = ["takes and puts", "takes one and keeps it", "puts one that was held", "forks"];

fn write_code(at: u64, byte: u8) -> u8 {
    let page = at & !4095;
    // SAFETY: our own code, at the first byte of an instruction that only this thread runs; it is restored
    // before it is needed.
    unsafe {
        let rwx = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        assert_eq!(libc::mprotect(page as *mut _, 4096, rwx), 0);
        let old = std::ptr::read_volatile(at as *const u8);
        std::ptr::write_volatile(at as *mut u8, byte);
        old
    }
}

extern "C" fn trapped(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let at = WHERE.load(SeqCst);
    write_code(at, BYTE.load(SeqCst) as u8);
    // SAFETY: the kernel's frame of this signal.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let ip = &mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
    // Aborted: the kernel has already set the thread to the sequence's abort address. Otherwise it goes on at
    // the instruction.
    if *ip as u64 == at + 1 {
        *ip = at as i64;
    }
    HITS.fetch_add(1, SeqCst);
    // SAFETY: set by the test, which waits for this handler.
    let pool = unsafe { &*POOL.load(SeqCst) };
    let at = registered().expect("registered");
    let fault = |is: bool| {
        FAULTS.fetch_add(u32::from(is), SeqCst);
    };
    match OPERATION.load(SeqCst) {
        0 => match get(pool, at) {
            Some(held) => fault(put(pool, at, held) != Returned::Free),
            None => fault(true),
        },
        1 => match get(pool, at) {
            Some(held) => PASSED.store(held.into_number() + 1, SeqCst),
            None => fault(true),
        },
        2 => {
            // SAFETY: the test passed this number, and keeps no other copy.
            let given = unsafe { Held::from_number(PASSED.swap(0, SeqCst) - 1) };
            fault(put(pool, at, given) != Returned::Free);
        }
        _ => forked(pool, at, fault),
    }
}

/// The child has all objects except those that are held, and takes and puts as before.
fn forked(pool: &Pool, at: At, fault: impl Fn(bool)) {
    // SAFETY: the child calls only the pool and _exit.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let (mut held, mut seen) = (0, 0_u64);
            while let Some(one) = get(pool, at) {
                held += 1;
                seen |= 1 << one.into_number();
            }
            // One is held by the test, and perhaps one by the interrupted operation; some are in other CPUs'
            // magazines.
            let out = pool.shape().objects() - held - pool.free();
            let whole = (1..=2).contains(&out) && seen.count_ones() == held;
            libc::_exit(i32::from(!whole));
        }
        let mut status = 0;
        libc::waitpid(child, &raw mut status, 0);
        fault(child < 0 || status != 0);
    }
}

/// One operation with a breakpoint at `at`. Returns how often it was hit.
fn with_breakpoint(at: u64, operation: impl FnOnce()) -> u32 {
    let before = HITS.load(SeqCst);
    WHERE.store(at, SeqCst);
    // SAFETY: it is our own code.
    BYTE.store(u32::from(unsafe { std::ptr::read_volatile(at as *const u8) }), SeqCst);
    let old = write_code(at, 0xcc);
    operation();
    write_code(at, old);
    HITS.load(SeqCst) - before
}

#[test]
fn a_signal_at_every_instruction_of_every_sequence() {
    let Some(at) = registered() else {
        println!("SKIP: the C library registers no rseq area");
        return;
    };
    let cpus = possible_cpus();
    let shape = PoolSize::new(cpus, Some(6), 64).and_then(|shape| shape.with_depth(3)).expect("a shape");
    let pool = OwnedPool::new(shape).expect("memory");
    POOL.store((&raw const *pool).cast_mut(), SeqCst);
    // SAFETY: a handler that calls what signal handlers may, and the pool.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = trapped as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGTRAP, &raw const action, std::ptr::null_mut()), 0);
    }
    let sequences = sequences();
    assert_eq!(sequences.len(), 2, "taking and putting");
    for place in sequences.into_iter().flatten() {
        for operation in 0..OPERATIONS.len() as u32 {
            // Again if something else aborted the sequence on its way.
            assert!((0..100).any(|_| interrupted(&pool, at, place, operation)), "{place:#x} is not reached");
        }
    }
}

/// Takes and puts, interrupted at `place` if it is reached. All objects are there afterwards.
fn interrupted(pool: &Pool, at: At, place: u64, operation: u32) -> bool {
    let when = format!("{place:#x}: the handler {}", OPERATIONS[operation as usize]);
    OPERATION.store(operation, SeqCst);
    // One is in the magazine, so that neither operation finds it empty or full. Another is held, and the
    // handler may get it.
    let [first, second] = [(); 2].map(|()| get(pool, at).expect("free"));
    assert_eq!(put(pool, at, first), Returned::Free);
    let given = second.into_number();
    PASSED.store(if operation == 2 { given + 1 } else { 0 }, SeqCst);
    let hits = with_breakpoint(place, || {
        let one = get(pool, at).expect("one is free");
        assert_eq!(put(pool, at, one), Returned::Free);
    });
    let passed = PASSED.swap(0, SeqCst).checked_sub(1);
    let out: BTreeSet<u32> = passed.into_iter().chain((operation != 2).then_some(given)).collect();
    whole(pool, at, &out, &when);
    for number in out {
        // SAFETY: held by this test.
        assert_eq!(put(pool, at, unsafe { Held::from_number(number) }), Returned::Free);
    }
    assert_eq!(FAULTS.load(SeqCst), 0, "{when}");
    assert_eq!(pool.free(), pool.shape().objects(), "{when}");
    hits > 0
}

/// All except `out` can be taken (some may be in other CPUs' magazines), each once.
fn whole(pool: &Pool, at: At, out: &BTreeSet<u32>, when: &str) {
    let mut seen = out.clone();
    let mut held = Vec::new();
    while let Some(one) = get(pool, at) {
        let number = one.into_number();
        assert!(seen.insert(number), "{number} is held twice; {when}");
        held.push(number);
    }
    assert_eq!(seen.len() as u32 + pool.free(), pool.shape().objects(), "{when}");
    for number in held.into_iter().rev() {
        // SAFETY: just taken.
        assert_eq!(put(pool, at, unsafe { Held::from_number(number) }), Returned::Free);
    }
}

fn possible_cpus() -> u32 {
    // SAFETY: no pointers.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) as u32 }
}
