//! Runs words on the processor: all registers from memory, one stretch of code, all registers back to memory.
//!
//! The code is in an arena that no branch of the tests leaves. Two loads precede it, of x29 and x30, which
//! are the last two registers to be set. A run leaves the code at a *pad*, which calls `a64_leave`, so that
//! x30 is the pad's address plus 12; d30 and d31 keep the values of x29 and x30. A fault ends a run through
//! the signal handler.

use std::cell::UnsafeCell;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Registers before a run, or after it. The assembly below knows the offsets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, align(16))]
pub(crate) struct Registers {
    pub(crate) x: [u64; 31],
    pub(crate) sp: u64,
    pub(crate) pc: u64,
    /// As in PSTATE.
    pub(crate) nzcv: u64,
    pub(crate) v: [u128; 8],
}

const _: () = assert!(std::mem::offset_of!(Registers, v) == 272);

core::arch::global_asm!(
    ".balign 16",
    "a64_enter:", // x0: registers, x1: code
    "stp x29, x30, [sp, #-96]!",
    "stp x19, x20, [sp, #16]",
    "stp x21, x22, [sp, #32]",
    "stp x23, x24, [sp, #48]",
    "stp x25, x26, [sp, #64]",
    "stp x27, x28, [sp, #80]",
    "adrp x9, {host}",
    "add x9, x9, :lo12:{host}",
    "mov x10, sp",
    "str x10, [x9]",
    "ldr x9, [x0, #264]",
    "msr nzcv, x9",
    "ldr x9, [x0, #248]",
    "mov sp, x9",
    "ldp q0, q1, [x0, #272]",
    "ldp q2, q3, [x0, #304]",
    "ldp q4, q5, [x0, #336]",
    "ldp q6, q7, [x0, #368]",
    "mov x30, x0",
    "mov x29, x1",
    "ldp x0, x1, [x30]",
    "ldp x2, x3, [x30, #16]",
    "ldp x4, x5, [x30, #32]",
    "ldp x6, x7, [x30, #48]",
    "ldp x8, x9, [x30, #64]",
    "ldp x10, x11, [x30, #80]",
    "ldp x12, x13, [x30, #96]",
    "ldp x14, x15, [x30, #112]",
    "ldp x16, x17, [x30, #128]",
    "ldp x18, x19, [x30, #144]",
    "ldp x20, x21, [x30, #160]",
    "ldp x22, x23, [x30, #176]",
    "ldp x24, x25, [x30, #192]",
    "ldp x26, x27, [x30, #208]",
    "ldr x28, [x30, #224]",
    "br x29",
    "a64_leave:", // x30: 12 behind the pad
    "fmov d30, x29",
    "adrp x29, {after}",
    "add x29, x29, :lo12:{after}",
    "stp x0, x1, [x29]",
    "stp x2, x3, [x29, #16]",
    "stp x4, x5, [x29, #32]",
    "stp x6, x7, [x29, #48]",
    "stp x8, x9, [x29, #64]",
    "stp x10, x11, [x29, #80]",
    "stp x12, x13, [x29, #96]",
    "stp x14, x15, [x29, #112]",
    "stp x16, x17, [x29, #128]",
    "stp x18, x19, [x29, #144]",
    "stp x20, x21, [x29, #160]",
    "stp x22, x23, [x29, #176]",
    "stp x24, x25, [x29, #192]",
    "stp x26, x27, [x29, #208]",
    "fmov x0, d30",
    "fmov x1, d31",
    "stp x28, x0, [x29, #224]",
    "mov x2, sp",
    "stp x1, x2, [x29, #240]",
    "sub x0, x30, #12",
    "mrs x1, nzcv",
    "stp x0, x1, [x29, #256]",
    "stp q0, q1, [x29, #272]",
    "stp q2, q3, [x29, #304]",
    "stp q4, q5, [x29, #336]",
    "stp q6, q7, [x29, #368]",
    "a64_recover:",
    "adrp x9, {host}",
    "add x9, x9, :lo12:{host}",
    "ldr x10, [x9]",
    "mov sp, x10",
    "ldp x19, x20, [sp, #16]",
    "ldp x21, x22, [sp, #32]",
    "ldp x23, x24, [sp, #48]",
    "ldp x25, x26, [sp, #64]",
    "ldp x27, x28, [sp, #80]",
    "ldp x29, x30, [sp], #96",
    "ret",
    "a64_flush:", // x0: from, x1: to; data to memory and instructions from there, word by word
    "0: dc cvau, x0",
    "dsb ish",
    "ic ivau, x0",
    "add x0, x0, #4",
    "cmp x0, x1",
    "b.lo 0b",
    "dsb ish",
    "isb",
    "ret",
    host = sym HOST,
    after = sym AFTER,
);

unsafe extern "C" {
    fn a64_enter(before: *const Registers, code: u64);
    fn a64_leave();
    fn a64_recover();
    fn a64_flush(from: u64, to: u64);
}

struct Shared<T>(UnsafeCell<T>);
// SAFETY: written by the code above and the signal handler, on the thread that holds `ALONE`.
unsafe impl<T> Sync for Shared<T> {}

static HOST: Shared<u64> = Shared(UnsafeCell::new(0));
static AFTER: Shared<Registers> =
    Shared(UnsafeCell::new(Registers { x: [0; 31], sp: 0, pc: 0, nzcv: 0, v: [0; 8] }));
static FAULT: Shared<Option<(i32, u64)>> = Shared(UnsafeCell::new(None));
static ALONE: Mutex<()> = Mutex::new(());

/// Maximum reach of any branch in bytes; the arena has room behind that.
pub(crate) const REACH: u64 = 128 << 20;
const ARENA: usize = 2 * REACH as usize + (1 << 21);
pub(crate) const STACK: usize = 1 << 16;
const PAGE: usize = 1 << 16;

/// The one place where words are run; only one exists at a time.
pub(crate) struct Machine {
    /// Address of the arena, all of it executable and writable.
    arena: u64,
    /// Address of another such arena, of 64 MiB, more than 4 GiB away.
    pub(crate) far: u64,
    /// Address of the stack: readable and writable, between [`PAGE`] bytes on each side that are not.
    pub(crate) stack: u64,
    _alone: MutexGuard<'static, ()>,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let code = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let arena = map(0, ARENA, code);
        let far = map((arena ^ 1 << 36) & !0xFFFF, 64 << 20, code);
        assert!(far.abs_diff(arena) > 8 << 30, "{far:#x} is far from {arena:#x}");
        let guarded = map(0, STACK + 2 * PAGE, libc::PROT_NONE);
        let stack = guarded + PAGE as u64;
        // SAFETY: inside the mapping made just above.
        let opened = unsafe { libc::mprotect(stack as *mut _, STACK, libc::PROT_READ | libc::PROT_WRITE) };
        assert_eq!(opened, 0);
        catch();
        Self { arena, far, stack, _alone: alone }
    }

    /// Address of the page for the word under test: everything in its reach is in the arena.
    pub(crate) const fn middle(&self) -> u64 {
        self.arena + REACH + (1 << 20)
    }

    /// Writes `bytes` at `addr`, which must be in the arena, in the far arena, or in the stack.
    pub(crate) fn write(&self, addr: u64, bytes: &[u8]) {
        let (end, len) = (addr + bytes.len() as u64, bytes.len());
        let inside = |from: u64, size: usize| addr >= from && end <= from + size as u64;
        let code = inside(self.arena, ARENA) || inside(self.far, 64 << 20);
        assert!(code || inside(self.stack, STACK), "{addr:#x} is ours");
        // SAFETY: inside one of our writable mappings, as just checked; there are no references into it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, len) };
        if code {
            // SAFETY: mapped memory.
            unsafe { a64_flush(addr & !3, end) };
        }
    }

    /// Reads from one of these three.
    pub(crate) fn read(&self, addr: u64, into: &mut [u8]) {
        // SAFETY: the tests read where they wrote, in mappings that live on.
        unsafe { std::ptr::copy_nonoverlapping(addr as *const u8, into.as_mut_ptr(), into.len()) };
    }

    /// Writes a pad at `addr`, where a run can end.
    pub(crate) fn pad(&self, addr: u64) {
        let words = [0x9E67_03DF, 0x5800_005E, 0xD63F_03C0]; // fmov d31, x30; ldr x30, .+8; blr x30
        let mut bytes: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
        bytes.extend_from_slice(&(a64_leave as *const () as u64).to_le_bytes());
        self.write(addr, &bytes);
    }

    /// Writes `code` at `addr`, and before it the two loads.
    pub(crate) fn place(&self, addr: u64, code: &[u32]) {
        let words = [0xF940_77DD, 0xF940_7BDE]; // ldr x29, [x30, #232]; ldr x30, [x30, #240]
        let bytes: Vec<u8> = words.iter().chain(code).flat_map(|word: &u32| word.to_le_bytes()).collect();
        self.write(addr - 8, &bytes);
    }

    /// Runs the code placed at `addr`. Returns the registers at its end and, after a fault, the signal and
    /// its address.
    pub(crate) fn run(&self, addr: u64, before: &Registers) -> (Registers, Option<(i32, u64)>) {
        // SAFETY: this thread holds `_alone`, so `HOST`, `AFTER` and `FAULT` are its own; the code ends at a
        // pad or in the handler.
        unsafe {
            *FAULT.0.get() = None;
            a64_enter(before, addr - 8);
            (*AFTER.0.get(), *FAULT.0.get())
        }
    }
}

fn map(hint: u64, len: usize, protection: i32) -> u64 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new private mapping; the address is only a hint, so no existing mapping is replaced.
    let at = unsafe { libc::mmap(hint as *mut _, len, protection, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED, "{len} bytes");
    at as u64
}

/// Installs the handler that ends a run at a fault.
fn catch() {
    let stack = map(0, 1 << 20, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: the alternate stack is this thread's own; the handler writes only the interrupted frame and
    // what `run` reads afterwards.
    unsafe {
        let alternate = libc::stack_t { ss_sp: stack as *mut _, ss_flags: 0, ss_size: 1 << 20 };
        assert_eq!(libc::sigaltstack(&raw const alternate, std::ptr::null_mut()), 0);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL] {
            assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
        }
    }
}

extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the frame is the kernel's; the thread was between the start of `a64_enter` and its end, so
    // `HOST` is set.
    unsafe {
        let machine = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext;
        let after = &mut *AFTER.0.get();
        after.x = machine.regs;
        (after.sp, after.pc, after.nzcv) = (machine.sp, machine.pc, machine.pstate & 0xF000_0000);
        *FAULT.0.get() = Some((signal, (*info).si_addr() as u64));
        machine.pc = a64_recover as *const () as u64;
    }
}

impl super::Rng {
    /// A number below a bound.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((self.next() >> 32) * bound) >> 32
    }
}
