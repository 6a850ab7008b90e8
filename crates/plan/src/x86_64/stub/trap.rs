//! The handler of guard traps, SIGTRAP (int3) and SIGILL (#UD): a thread that stands inside a patched window
//! is sent to the matching place in the displaced code. It also handles faults, SIGSEGV and SIGBUS, in loads
//! of our own (`text`), which are in the same table: their thread goes on where the plan says.
//!
//! In: the address of the first segment's control block. The code reads its words (`record::control`) when it
//! runs: guard tables of the whole chain of segments, code regions, the dispositions that were there before.
//! Out: code with the kernel's handler signature `(int, siginfo_t *, ucontext_t *)` and a restorer.
//! Invariants: GUARD-1 a signal that is not a guard trap ends as it would have without us; GUARD-2 at most 64
//! bytes of stack, no lock, and loops are bounded whatever the words hold; GUARD-3 only segments' own words
//! are written.
//! Does not: install itself, or serve a program that blocks these signals.
//!
//! A guard trap comes from the kernel (`si_code` > 0). The code does not check which exception it was: the
//! kernel does not report that if it has uprobes of its own in the process. The tracer may have moved the
//! thread already and died before it took the signal back. Then rip lies in a code region while the fault was
//! elsewhere, and the signal is dropped.
//!
//! # Pictures
//!
//! ```text
//!   at entry      edi = signal, rsi = siginfo, rdx = ucontext, [rsp] = the restorer
//!   classify      r8 = rip, r9 = the address that trapped, r11 = where the fault happened
//!   search        r10 = a segment's control block; the others as above, except rdi, rsi and r11
//!   `ret` there   [rdx + UC_RIP] is where the thread goes on
//!   chain         edi, rsi, rdx as at entry; r10 = the earlier action, r11 = its handler
//! ```
//!
//! The stack during the search, and where an earlier handler is called that SA_RESETHAND resets:
//!
//! ```text
//!   rsp          segments left, of MAX_CHAIN         rsp          an action of zeros: SIG_DFL
//!   rsp + 8      r11                                 rsp + 32     r11: the earlier handler
//!   rsp + 16     rsi: siginfo                        rsp + 40     rdx: ucontext
//!   rsp + 24     rdi: signal                         rsp + 48     rsi: siginfo
//!   rsp + 32     the restorer                        rsp + 56     rdi: signal
//!                                                    rsp + 64     the restorer    (GUARD-2)
//! ```
//!
//! What a signal means, by its `si_code` c and `si_addr` a. In all other cases it is none of ours:
//!
//! ```text
//!   SIGTRAP           c = SI_KERNEL          r9 = rip - 1    r11 = 0
//!   SIGILL            c > 0                  r9 = rip        r11 = a
//!   SIGSEGV, SIGBUS   c > 0, a != rip        r9 = rip        r11 = rip
//!   guard             [table + 16 · n] = r9                                rip = [table + 16 · n + 8]
//!   moved already     region.start <= rip < start + len, kind Code, r11 != rip     rip stays
//! ```

use trapline_record::control::{MAX_REGIONS, RegionKind, at};

use super::asm::{Alu, Asm, Cond, Fix, Mem, R8, R9, R10, R11, RAX, RCX, RDI, RDX, RSI, RSP, Shift};

/// Addresses of a generated handler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TrapHandler {
    /// For `sa_handler`, with SA_SIGINFO.
    pub entry: u64,
    /// For `sa_restorer`, with SA_RESTORER.
    pub restorer: u64,
}

const SIGILL: i8 = 4;
const SIGTRAP: i8 = 5;
const SIGBUS: i8 = 7;
const SIGSEGV: i8 = 11;
/// `si_code` of a SIGBUS for memory that turned out to be bad, without a load from it.
const BUS_MCEERR_AO: i32 = 5;
/// `si_code` of an int3.
const SI_KERNEL: i32 = 0x80;
pub(super) const SI_CODE: i32 = 8;
const SI_ADDR: i32 = 16;
/// `uc_mcontext.gregs[REG_RIP]` in a `ucontext_t`.
pub(super) const UC_RIP: i32 = 40 + 16 * 8;
const SA_RESETHAND_BIT: u8 = 31;
/// Number of segments after which the chain is taken for broken.
pub(super) const MAX_CHAIN: u32 = 4096;
/// Upper bound of the guards in a table that are searched; it only bounds the search.
const MAX_GUARDS: i32 = 1 << 24;

mod nr {
    pub(super) const RT_SIGACTION: u32 = 13;
    pub(super) const RT_SIGRETURN: u32 = 15;
    pub(super) const GETPID: u32 = 39;
    pub(super) const GETTID: u32 = 186;
    pub(super) const TGKILL: u32 = 234;
}

/// Appends the handler, to lie at `at`. `control` is the address of the first segment's control block, within
/// ±2 GiB.
pub fn trap_handler(out: &mut Vec<u8>, at: u64, control: u64) -> TrapHandler {
    let mut asm = Asm::new(out, at);
    asm.align(16);
    let restorer = asm.here();
    asm.mov_imm32(RAX, nr::RT_SIGRETURN);
    syscall(&mut asm);
    asm.align(16);
    let entry = asm.here();
    let foreign = classify(&mut asm);
    search(&mut asm, control);
    for fix in foreign {
        asm.bind(fix);
    }
    chain(&mut asm, control);
    asm.align(16);
    TrapHandler { entry, restorer }
}

fn syscall(asm: &mut Asm<'_>) {
    asm.raw(&[0x0F, 0x05]);
}

/// r8, r9 and r11 as in the table. For SIGTRAP the kernel does not report where the fault happened, so any
/// rip in our code is taken for moved. Jumps to the returned fixes if this is certainly neither a guard trap
/// nor a fault of a load. A fault of fetching an instruction is one example. The fault of a load is always at
/// rip, since its thread is not moved before this code runs. Uses rax and flags.
fn classify(asm: &mut Asm<'_>) -> [Fix; 3] {
    asm.load32(RAX, Mem::At(RSI, SI_CODE));
    asm.load(R8, Mem::At(RDX, UC_RIP));
    asm.mov(R9, R8);
    asm.alu_imm(Alu::Cmp, RDI, i32::from(SIGTRAP), false);
    let illegal = asm.jcc_later(Cond::NotEqual);
    asm.mov_imm32(R11, 0);
    asm.alu_imm(Alu::Sub, R9, 1, true);
    asm.alu_imm(Alu::Cmp, RAX, SI_KERNEL, false);
    let not_int3 = asm.jcc_later(Cond::NotEqual);
    let join = asm.jmp_later();
    asm.bind(illegal);
    asm.load(R11, Mem::At(RSI, SI_ADDR));
    asm.test(RAX, RAX, false);
    let sent = asm.jcc_later(Cond::LessEq);
    asm.alu_imm(Alu::Cmp, RDI, i32::from(SIGILL), false);
    let undefined = asm.jcc_later(Cond::Equal);
    asm.alu(Alu::Cmp, R11, R8);
    let fetch = asm.jcc_later(Cond::Equal);
    asm.mov(R11, R8);
    asm.bind(undefined);
    asm.bind(join);
    [not_int3, sent, fetch]
}

/// Looks up r9 in every guard table and r8 in every code region. Returns to the kernel if one is found, else
/// falls through, with rdi, rsi and rdx as they were.
fn search(asm: &mut Asm<'_>, control: u64) {
    asm.push(RDI);
    asm.push(RSI);
    asm.push(R11);
    asm.lea(R10, Mem::Rip(control));
    asm.mov_imm32(RAX, MAX_CHAIN);
    asm.push(RAX);
    let segment = asm.here();
    let hit = guards(asm);
    let ours = regions(asm);
    asm.load(R10, Mem::At(R10, at::NEXT_SEGMENT as i32));
    asm.test(R10, R10, true);
    let end = asm.jcc_later(Cond::Equal);
    asm.alu_mem_imm(Alu::Sub, Mem::At(RSP, 0), 1, false);
    asm.jcc(Cond::NotEqual, segment);
    let broken = asm.jmp_later();

    asm.bind(hit);
    asm.load(RAX, Mem::At(RCX, 8));
    asm.store(Mem::At(RDX, UC_RIP), RAX);
    asm.alu_mem_imm(Alu::Add, Mem::At(R10, at::GUARD_HITS as i32), 1, true);
    asm.bind(ours);
    asm.lea(RSP, Mem::At(RSP, 32));
    asm.ret();

    asm.bind(end);
    asm.bind(broken);
    asm.lea(RSP, Mem::At(RSP, 16));
    asm.pop(RSI);
    asm.pop(RDI);
}

/// Jumps to the returned fix if there is a guard for r9; r10 = control block.
///
/// ```text
///   r11 = table = r10 + [r10 + GUARD_OFF]
///   rax .. rdi    what is left to search, at first 0 .. [r10 + GUARD_COUNT]
///   rsi = (rax + rdi) / 2;  rcx = r11 + 16 · rsi, the guard at the fix
///   uses  rax, rcx, rsi, rdi, r11, flags
/// ```
pub(super) fn guards(asm: &mut Asm<'_>) -> Fix {
    asm.load(R11, Mem::At(R10, at::GUARD_OFF as i32));
    asm.alu(Alu::Add, R11, R10);
    asm.mov_imm32(RAX, 0); // rax..rdi is what is left to search
    asm.load(RDI, Mem::At(R10, at::GUARD_COUNT as i32));
    asm.alu_imm(Alu::Cmp, RDI, MAX_GUARDS, true);
    let absurd = asm.jcc_later(Cond::Above);
    let again = asm.here();
    asm.alu(Alu::Cmp, RAX, RDI);
    let none = asm.jcc_later(Cond::AboveEq);
    asm.lea(RSI, Mem::Sum(RAX, RDI, 0, 0));
    asm.shift(Shift::Right, RSI, 1, true);
    asm.mov(RCX, RSI);
    asm.shift(Shift::Left, RCX, 4, true);
    asm.alu(Alu::Add, RCX, R11);
    asm.alu_load(Alu::Cmp, R9, Mem::At(RCX, 0));
    let hit = asm.jcc_later(Cond::Equal);
    let below = asm.jcc_later(Cond::Below);
    asm.lea(RAX, Mem::At(RSI, 1));
    asm.jmp(again);
    asm.bind(below);
    asm.mov(RDI, RSI);
    asm.jmp(again);
    asm.bind(absurd);
    asm.bind(none);
    hit
}

/// Jumps to the returned fix if rip lies in a code region and the fault did not happen at rip itself. If it
/// did, the displaced code holds an instruction that faults by its nature. r10 = control block.
///
/// ```text
///   rsi = a region: + 0 start, + 8 length, + 24 kind; 32 bytes;  rdi = regions left;  rax = rip - start
///   uses  rax, rsi, rdi, flags
/// ```
fn regions(asm: &mut Asm<'_>) -> Fix {
    asm.alu_load(Alu::Cmp, R8, Mem::At(RSP, 8));
    let at_rip = asm.jcc_later(Cond::Equal);
    asm.load(RDI, Mem::At(R10, at::REGION_COUNT as i32));
    asm.alu_imm(Alu::Cmp, RDI, MAX_REGIONS as i32, true);
    let absurd = asm.jcc_later(Cond::Above);
    asm.load(RSI, Mem::At(R10, at::REGIONS_OFF as i32));
    asm.alu(Alu::Add, RSI, R10);
    let again = asm.here();
    asm.alu_imm(Alu::Sub, RDI, 1, true);
    let none = asm.jcc_later(Cond::Below);
    asm.mov(RAX, R8);
    asm.alu_load(Alu::Sub, RAX, Mem::At(RSI, 0));
    asm.alu_load(Alu::Cmp, RAX, Mem::At(RSI, 8));
    let outside = asm.jcc_later(Cond::AboveEq);
    asm.alu_mem_imm(Alu::Cmp, Mem::At(RSI, 24), RegionKind::Code as i8, false);
    let ours = asm.jcc_later(Cond::Equal);
    asm.bind(outside);
    asm.lea(RSI, Mem::At(RSI, 32));
    asm.jmp(again);
    asm.bind(at_rip);
    asm.bind(absurd);
    asm.bind(none);
    ours
}

/// Does what the signal would have done without us. edi, rsi and rdx are as at entry.
fn chain(asm: &mut Asm<'_>, control: u64) {
    asm.lea(R10, Mem::Rip(control.wrapping_add(at::OLD_SIGTRAP)));
    for (signal, old) in [(SIGILL, at::OLD_SIGILL), (SIGSEGV, at::OLD_SIGSEGV), (SIGBUS, at::OLD_SIGBUS)] {
        asm.alu_imm(Alu::Cmp, RDI, i32::from(signal), false);
        let other = asm.jcc_later(Cond::NotEqual);
        asm.lea(R10, Mem::Rip(control.wrapping_add(old)));
        asm.bind(other);
    }
    asm.load(R11, Mem::At(R10, 0));
    asm.alu_imm(Alu::Cmp, R11, 1, true);
    let default = asm.jcc_later(Cond::Below);
    let function = asm.jcc_later(Cond::Above);
    // SIG_IGN: a signal that was sent is ignored, but a fault ends the program all the same.
    asm.load32(RAX, Mem::At(RSI, SI_CODE));
    asm.test(RAX, RAX, false);
    let fault = asm.jcc_later(Cond::Greater);
    asm.ret();

    asm.bind(function);
    asm.load(RAX, Mem::At(R10, 8));
    asm.bit_test(RAX, SA_RESETHAND_BIT);
    let stays = asm.jcc_later(Cond::AboveEq);
    asm.push(RDI);
    asm.push(RSI);
    asm.push(RDX);
    asm.push(R11);
    reset(asm);
    asm.pop(R11);
    asm.pop(RDX);
    asm.pop(RSI);
    asm.pop(RDI);
    asm.bind(stays);
    asm.jmp_reg(R11);

    asm.bind(default);
    asm.bind(fault);
    end(asm);
}

/// Restores the default action, and ends as that does. edi and rsi are as at entry. r8 = signal, r9 = its
/// code.
fn end(asm: &mut Asm<'_>) {
    // The signal is blocked until the handler returns; then the default action ends the process. A fault
    // happens once more, so that the core dump shows where. A signal that does not repeat by itself is sent.
    asm.mov32(R8, RDI);
    asm.load32(R9, Mem::At(RSI, SI_CODE));
    reset(asm);
    asm.alu_imm(Alu::Cmp, R8, i32::from(SIGILL), false);
    let send_undefined = asm.jcc_later(Cond::Equal);
    asm.alu_imm(Alu::Cmp, R8, i32::from(SIGTRAP), false);
    let send_trap = asm.jcc_later(Cond::Equal);
    asm.test(R9, R9, false);
    let sent = asm.jcc_later(Cond::LessEq);
    asm.alu_imm(Alu::Cmp, R9, BUS_MCEERR_AO, false);
    let later = asm.jcc_later(Cond::Equal);
    asm.ret();
    for fix in [send_undefined, send_trap, sent, later] {
        asm.bind(fix);
    }
    asm.mov_imm32(RAX, nr::GETPID);
    syscall(asm);
    asm.mov32(R9, RAX);
    asm.mov_imm32(RAX, nr::GETTID);
    syscall(asm);
    asm.mov32(RSI, RAX);
    asm.mov32(RDI, R9);
    asm.mov32(RDX, R8);
    asm.mov_imm32(RAX, nr::TGKILL);
    syscall(asm);
    asm.ret();
}

/// `rt_sigaction(edi, SIG_DFL, NULL)`. Uses rax, rcx, rdx, rsi, r10, r11, flags and 32 bytes of the stack.
fn reset(asm: &mut Asm<'_>) {
    asm.mov_imm32(RAX, 0);
    for _ in 0..4 {
        asm.push(RAX);
    }
    asm.mov(RSI, RSP);
    asm.mov_imm32(RDX, 0);
    asm.mov_imm32(R10, 8);
    asm.mov_imm32(RAX, nr::RT_SIGACTION);
    syscall(asm);
    asm.lea(RSP, Mem::At(RSP, 32));
}
