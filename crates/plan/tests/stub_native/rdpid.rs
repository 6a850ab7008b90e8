//! LOSS-1 where `rdpid` chooses the line: a process without rseq on a CPU that has the instruction.
//!
//! On a CPU that lacks the instruction it faults. The fault's handler then does what the instruction would
//! have done: it puts the number of the present CPU into a register.

use core::arch::x86_64::__cpuid_count;
use std::sync::atomic::{AtomicU64, Ordering};

use trapline_plan::x86_64::stub::{Liveness, Machine};
use trapline_record::latency::at;

use crate::arena::{Arena, LINES, call, get};
use crate::counts::{counted, everywhere};
use crate::durations::{SPIN, timed};

const THREADS: u64 = 8;
const CALLS: u64 = 5000;
const MACHINE: Machine = Machine { rseq: None, rdpid: true, lines: LINES };
/// Index in ucontext of each register, in the order of its number in an instruction.
const PLACES: [i32; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

static DONE: AtomicU64 = AtomicU64::new(0);

/// (register, length) of `rdpid`: F3, perhaps a REX, 0F C7 with 7 in the middle of a register ModRM.
fn decode(code: &[u8; 5]) -> Option<(usize, i64)> {
    match *code {
        [0xF3, 0x0F, 0xC7, modrm, _] if modrm >> 3 == 0b11_111 => Some((usize::from(modrm & 7), 4)),
        [0xF3, rex, 0x0F, 0xC7, modrm] if rex >> 4 == 4 && modrm >> 3 == 0b11_111 => {
            Some((usize::from(modrm & 7 | (rex & 1) << 3), 5))
        }
        _ => None,
    }
}

extern "C" fn on_undefined(signal: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes this signal's own context, which only this handler writes. rip is where code
    // was fetched, and 5 bytes from there lie in the arena or a library.
    unsafe {
        let regs = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let rip = regs[libc::REG_RIP as usize];
        match decode(&*(rip as *const [u8; 5])) {
            Some((register, len)) => {
                regs[PLACES[register] as usize] = i64::from(libc::sched_getcpu());
                regs[libc::REG_RIP as usize] = rip + len;
                DONE.fetch_add(1, Ordering::Relaxed);
            }
            None => {
                // Faults again, and ends the process as it would have done.
                libc::signal(signal, libc::SIG_DFL);
            }
        }
    }
}

/// Number of emulated instructions; `None` if the CPU has the instruction.
fn helped() -> Option<u64> {
    let has_rdpid = __cpuid_count(7, 0).ecx >> 22 & 1 == 1;
    (!has_rdpid).then(|| DONE.load(Ordering::Relaxed))
}

#[test]
fn lines_by_rdpid_count_exactly() {
    // SAFETY: the handler only reads code, and writes the context that it gets.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = on_undefined as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGILL, &raw const action, core::ptr::null_mut());
    }
    let mut arena = Arena::new();
    let latency = arena.latency();
    let sites = [true, false].map(|flags_dead| Liveness { flags_dead, ..Liveness::default() });
    let counts = [0, 1].map(|n| counted(&mut arena, &MACHINE, n, &sites[n as usize]));
    let timed = timed(&mut arena, &MACHINE, &latency, 3, &SPIN);
    everywhere(|| {
        for code in counts {
            (0..CALLS).for_each(|n| assert_eq!(call(code, n), n));
        }
        (0..CALLS).for_each(|n| {
            call(timed, 1 + n % 7);
        });
    });
    assert_eq!([0, 1].map(|n| arena.counted(n)), [THREADS * CALLS; 2]);
    assert_eq!(arena.timed(3, at::RETURNS), THREADS * CALLS);
    assert_eq!(arena.timed(3, at::UNPAIRED) + arena.timed(3, at::UNRETURNED), 0);
    // Each hit used the instruction once, and was counted on the line of its CPU.
    assert!(helped().is_none_or(|n| n == 3 * THREADS * CALLS), "{:?}", helped());
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let elsewhere: u64 = (cpus..u64::from(LINES)).map(|line| get(arena.word(0) + line * 64)).sum();
    assert!(cpus > 64 || elsewhere == 0, "{elsewhere} hits on lines of CPUs that there are none of");
}
