//! A stopped thread's general registers, and how a call that the stop interrupted is made again.
//!
//! Input: registers at a stop. Output: registers to go on with. Invariants: TGT-3.
//!
//! ```text
//!   repaired       rip -= 2, rax = the call's number or SYS_restart_syscall, orig_rax = -1: `syscall` runs again
//!   for_call       rip = the gadget's `syscall`, rsp = sp, rax = number, orig_rax = -1
//!                  rdi, rsi, rdx, r10, r8, r9 = arguments
//!   for_function   rip = function, rdi = argument, rsp = sp - 16, rax = 0, orig_rax = -1, DF = 0
//! ```
//!
//! The stack at the function's first instruction, sp being the frame's `return_sp`:
//!
//! ```text
//!   sp - 16    address of a `ret`       <- rsp, 8 below a multiple of 16
//!   sp - 8     the restorer             the frame's first word
//!   sp         ucontext
//! ```

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use crate::calls::Repair;
use crate::status::InCall;
use crate::sys::ptrace::{self, Registers};
use crate::x86_64::gadget::Gadgets;

/// Whether a thread's call must be noted before the thread is ordered to stop. Not here: the kernel keeps a
/// call's number and arguments where a tracer sees them.
pub(crate) const NOTES_CALLS: bool = false;
/// The instruction that makes a call.
pub(crate) const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// The user registers that samples hold, by bit numbers of `asm/perf_regs.h`: ax bx cx dx si di bp sp ip
/// flags, r8…r15.
pub const USER_REGS: u64 = 0x3ff | 0xff << 16;

/// General registers, as the kernel keeps them.
#[derive(Clone, Copy, Debug)]
pub struct Regs(Registers);

const EINTR: i64 = -4;
const RESTARTSYS: i64 = -512;
const RESTARTNOINTR: i64 = -513;
const RESTARTNOHAND: i64 = -514;
const RESTART_RESTARTBLOCK: i64 = -516;
const DIRECTION: u64 = 1 << 10;

fn byte(tid: u32, addr: u64) -> std::io::Result<u8> {
    let mut byte = [0];
    File::open(format!("/proc/{tid}/mem"))?.read_exact_at(&mut byte, addr)?;
    Ok(byte[0])
}

/// Registers of a thread that stands before a SIGTRAP, if the kernel sent that for a trap without a reason, or with the
/// reason of a debug register that is not in use. `None` for all other signals: of `int3`, `int1`, a step, another
/// process.
pub(crate) fn of_lost_trap(tid: u32) -> Option<Vec<u64>> {
    const STEPS: u64 = 1 << 8;
    const INT1: u8 = 0xf1;
    let (signal, code) = ptrace::signal_info(tid).ok()?;
    if signal != libc::SIGTRAP || !matches!(code, libc::TRAP_BRKPT | libc::TRAP_HWBKPT) {
        return None;
    }
    let regs = ptrace::regs(tid).ok()?;
    let before = byte(tid, regs.rip.wrapping_sub(1)).ok()?;
    let taken = regs.eflags & STEPS == 0 && before != INT1;
    taken.then(|| {
        let legacy = [
            regs.rax,
            regs.rbx,
            regs.rcx,
            regs.rdx,
            regs.rsi,
            regs.rdi,
            regs.rbp,
            regs.rsp,
            regs.rip,
            regs.eflags,
        ];
        let rest = [regs.r8, regs.r9, regs.r10, regs.r11, regs.r12, regs.r13, regs.r14, regs.r15];
        [&legacy[..], &rest[..]].concat()
    })
}

impl Regs {
    /// Reads a stopped thread's registers.
    pub(crate) fn read(tid: u32, _: Option<&InCall>) -> std::io::Result<Self> {
        ptrace::regs(tid).map(Self)
    }
    pub(crate) fn write(&self, tid: u32) -> std::io::Result<()> {
        ptrace::set_regs(tid, &self.0)
    }
    /// The instruction pointer.
    #[must_use]
    pub const fn pc(&self) -> u64 {
        self.0.rip
    }
    /// Sets the instruction pointer.
    pub const fn set_pc(&mut self, pc: u64) {
        self.0.rip = pc;
    }
    /// Lets a thread that was stopped in a call go on without making it again.
    pub(crate) const fn leave_call(&mut self) {
        self.0.orig_rax = u64::MAX;
    }
    /// The stack pointer.
    #[must_use]
    pub const fn sp(&self) -> u64 {
        self.0.rsp
    }
    /// The thread pointer (fs base).
    #[must_use]
    pub const fn thread_pointer(&self) -> u64 {
        self.0.fs_base
    }
    /// The general registers, in any order.
    #[must_use]
    pub const fn general(&self) -> [u64; 17] {
        let r = &self.0;
        [
            r.rax, r.rcx, r.rdx, r.rbx, r.rsp, r.rbp, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13,
            r.r14, r.r15, r.rip,
        ]
    }
    pub(crate) const fn registers(&self) -> &Registers {
        &self.0
    }
    /// The call that the thread is in, with its arguments.
    pub(crate) const fn call(&self) -> Option<(i64, [u64; 6])> {
        let regs = &self.0;
        let nr = regs.orig_rax.cast_signed();
        if nr < 0 { None } else { Some((nr, [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9])) }
    }
    /// Whether the thread stands behind a call that returned EINTR.
    pub(crate) const fn shows_eintr(&self) -> bool {
        self.0.rax.cast_signed() == EINTR && self.0.orig_rax.cast_signed() >= 0
    }
    /// Registers that make an interrupted call again when the kernel can no longer do so. `may_redo_eintr`:
    /// `syscall` stands before the pc, and no signal is pending.
    pub(crate) const fn repaired(mut self, may_redo_eintr: bool) -> (Self, Repair) {
        if self.0.orig_rax.cast_signed() < 0 {
            return (self, Repair::None);
        }
        let (next, repair) = match self.0.rax.cast_signed() {
            RESTARTSYS | RESTARTNOINTR | RESTARTNOHAND => (self.0.orig_rax, Repair::Restarted),
            RESTART_RESTARTBLOCK => (libc::SYS_restart_syscall as u64, Repair::Restarted),
            EINTR if may_redo_eintr && self.0.orig_rax != libc::SYS_close as u64 => {
                (self.0.orig_rax, Repair::Again)
            }
            EINTR => return (self, Repair::Eintr),
            _ => return (self, Repair::None),
        };
        self.0.rip -= SYSCALL.len() as u64;
        self.0.rax = next;
        self.0.orig_rax = u64::MAX;
        (self, repair)
    }
    /// Does the same for a thread that will come back through rt_sigreturn, which discards a restart block.
    /// Such a call begins anew.
    pub(crate) const fn repaired_for_sigreturn(self, may_redo_eintr: bool) -> Self {
        let number = self.0.orig_rax;
        let (mut regs, _) = self.repaired(may_redo_eintr);
        if regs.0.rax == libc::SYS_restart_syscall as u64 && regs.0.orig_rax == u64::MAX && number != u64::MAX
        {
            regs.0.rax = number;
        }
        regs
    }
    /// Registers that make a call with the stack pointer `sp`.
    pub(crate) const fn for_call(&self, gadgets: &Gadgets, sp: u64, nr: i64, args: [u64; 6]) -> Self {
        let mut regs = self.0;
        [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9] = args;
        regs.rip = gadgets.call.addr;
        regs.rsp = sp;
        regs.rax = nr as u64;
        regs.orig_rax = u64::MAX;
        Self(regs)
    }
    /// Registers that run a function of one argument, which returns through a frame; its way back begins at
    /// `sp`. Also returns a word that must be written for that, at sp - 16: the address of a `ret`, which
    /// leads on to the restorer. This extra step aligns the stack.
    pub(crate) const fn for_function(
        &self,
        gadgets: &Gadgets,
        sp: u64,
        function: u64,
        argument: u64,
    ) -> (Self, Option<(u64, u64)>) {
        let mut regs = self.0;
        let sp = sp - 16;
        (regs.rip, regs.rsp, regs.rdi) = (function, sp, argument);
        (regs.rax, regs.orig_rax) = (0, u64::MAX);
        regs.eflags &= !DIRECTION;
        (Self(regs), Some((sp, gadgets.ret())))
    }
    /// What a call returned; valid at its end.
    pub(crate) const fn result(&self) -> u64 {
        self.0.rax
    }
    /// Whether the thread, which is at the entry of a call, is about to return through the frame at `sp`.
    pub(crate) const fn returns_through(&self, sp: u64) -> bool {
        self.0.orig_rax == libc::SYS_rt_sigreturn as u64 && self.0.rsp == sp
    }
}
