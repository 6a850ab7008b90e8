//! Accesses of a simulated instruction to the program's memory: a fault is returned as a value.
//!
//! In: an address. Out: the value, or the signal that the kernel raised. Each access is one of a few
//! instructions that are next to each other. The handler of faults sees that the fault is there
//! ([`recover`]), copies siginfo and syndrome to where the access's argument points, and goes on behind the
//! access. No table is searched and nothing is marked beforehand, so an access that does not fault costs no
//! more than itself. A pair is stored by a pair: it faults where the program's own would.
//!
//! ```text
//!   load, store   in     x0 = address, x1 = a `Faulted` to fill, x2, x3 = what to store
//!                 done   x0 = the value that was loaded, x1 = 0
//!                 fault  x0 is not changed, x1 = 1, the `Faulted` is filled
//!   push (asm)    in     x0 = `Regs`, x1 = a `Faulted` to fill, x2 = what is added to sp
//!                 done   x0 = 0; [sp + x2] = x29, x30; sp = sp + x2, pc = pc + 4 in `Regs`
//!                 else   x0 is not 0, `Regs` is as before: misaligned, or a fault
//!                 uses   x3, x4 = x29, x30; x5 = sp; x6 = pc; flags
//!
//!   Regs + 232   x29, x30
//!   Regs + 248   sp, pc
//! ```
//!
//! They use no stack. x1 changes only behind the access, so the handler finds the `Faulted` in it.
//!
//! Does not: decide to what the memory belongs. If the handler of faults is not installed, the program gets
//! the fault, at our address. Under memory tagging our stores are checked, while the program's stores through
//! its stack pointer are not. But memory below a stack pointer is untagged.

use core::arch::{asm, global_asm};
use core::mem::{MaybeUninit, offset_of};
use core::ptr;

use trapline_insn::aarch64::{Fault, Gpr, Memory, Op, Regs, Through, simulate};

use super::context::{Context, State};
use super::frame::{self, number};
use crate::trap::Info;
use crate::trap::Step;

// State: at the file's head. hint #34 is `bti c`.
global_asm!(
    ".pushsection .text.trapline_access, \"ax\", @progbits",
    ".macro trapline_access name, insn:vararg",
    ".hidden trapline_runtime_\\name",
    ".globl trapline_runtime_\\name",
    ".type trapline_runtime_\\name, @function",
    "trapline_runtime_\\name:",
    "hint #34",
    "\\insn",
    "mov x1, xzr",
    "ret",
    ".endm",
    ".balign 16",
    ".cfi_startproc",
    ".hidden trapline_runtime_access_begin",
    ".globl trapline_runtime_access_begin",
    "trapline_runtime_access_begin:",
    "trapline_access load4, ldr w0, [x0]",
    "trapline_access load8, ldr x0, [x0]",
    "trapline_access store4, str w2, [x0]",
    "trapline_access store8, str x2, [x0]",
    "trapline_access store44, stp w2, w3, [x0]",
    "trapline_access store88, stp x2, x3, [x0]",
    ".hidden trapline_runtime_push",
    ".globl trapline_runtime_push",
    ".type trapline_runtime_push, @function",
    "trapline_runtime_push:",
    "ldp x5, x6, [x0, #248]",
    "ldp x3, x4, [x0, #232]",
    "tst x5, #15",
    "b.ne 2f",
    "add x5, x5, x2",
    "stp x3, x4, [x5]",
    "add x6, x6, #4",
    "stp x5, x6, [x0, #248]",
    "mov x0, xzr",
    "2: ret",
    ".hidden trapline_runtime_access_failed",
    ".globl trapline_runtime_access_failed",
    "trapline_runtime_access_failed:",
    "mov x1, #1",
    "ret",
    ".cfi_endproc",
    ".purgem trapline_access",
    ".popsection",
    // Instructions elsewhere that may fault, and where the thread goes on then: two distances each. The first
    // entry is empty, so that the section exists.
    ".pushsection trapline_faults, \"aR\", @progbits",
    ".balign 8",
    ".quad 0, 0",
    ".popsection",
    ".hidden __start_trapline_faults",
    ".hidden __stop_trapline_faults",
);

#[repr(C)]
struct Done {
    value: u64,
    failed: u64,
}

unsafe extern "C" {
    fn trapline_runtime_access_begin();
    fn trapline_runtime_access_failed();
    static __start_trapline_faults: [i64; 2];
    static __stop_trapline_faults: [i64; 2];
    fn trapline_runtime_load4(addr: u64, faulted: *mut Faulted) -> Done;
    fn trapline_runtime_load8(addr: u64, faulted: *mut Faulted) -> Done;
    fn trapline_runtime_store4(addr: u64, faulted: *mut Faulted, value: u64) -> Done;
    fn trapline_runtime_store8(addr: u64, faulted: *mut Faulted, value: u64) -> Done;
    fn trapline_runtime_store44(addr: u64, faulted: *mut Faulted, low: u64, high: u64) -> Done;
    fn trapline_runtime_push(regs: *mut Regs, faulted: *mut Faulted, offset: i64) -> u64;
    fn trapline_runtime_store88(addr: u64, faulted: *mut Faulted, low: u64, high: u64) -> Done;
}

/// What the kernel reported about an access that faulted.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faulted {
    pub(crate) info: Info,
    fault_address: u64,
    /// 0 if the kernel reported none.
    syndrome: u64,
}

const BUS: i32 = 7;
/// `BUS_ADRALN`
const MISALIGNED: i32 = 1;

impl Faulted {
    /// What the kernel would report about a misaligned stack pointer (`do_sp_pc_abort`), without the
    /// syndrome.
    const fn misaligned(sp: u64) -> Self {
        Self { info: Info::forced(BUS, MISALIGNED, sp), fault_address: 0, syndrome: 0 }
    }
    /// Makes `context` look as if the fault had happened there.
    pub(crate) fn describe(&self, context: &mut Context) {
        context.fault_address = self.fault_address;
        if self.syndrome != 0 {
            context.set_syndrome(self.syndrome);
        }
    }
}

/// If the signal is about one of our accesses: stores what the kernel reported, makes the thread go on behind
/// the access, and returns true.
///
/// # Safety
/// Called by a handler of a forced signal with the kernel's own structures.
pub(crate) unsafe fn recover(info: &Info, context: &mut Context) -> bool {
    let begin = trapline_runtime_access_begin as *const () as u64;
    let failed = trapline_runtime_access_failed as *const () as u64;
    if context.pc().wrapping_sub(begin) >= failed - begin {
        return behind(context.pc()).map(|to| context.set_pc(to)).is_some();
    }
    let record = context.x1() as *mut Faulted;
    // SAFETY: only `Own` calls these accesses, with x1 at a record on its own stack, and an access changes x1
    // only after the instruction that may fault.
    unsafe {
        copy_words(ptr::from_ref(info).cast(), (&raw mut (*record).info).cast(), size_of::<Info>() / 8);
        (&raw mut (*record).fault_address).write(context.fault_address);
        (&raw mut (*record).syndrome).write(context.syndrome().unwrap_or(0));
    }
    context.set_pc(failed);
    true
}

/// Where the thread goes on after a fault of one of our stores of which nothing is reported.
fn behind(pc: u64) -> Option<u64> {
    let (start, end) = (&raw const __start_trapline_faults, &raw const __stop_trapline_faults);
    let len = (end.addr() - start.addr()) / size_of::<[i64; 2]>();
    // SAFETY: the linker's names for the section, which holds pairs of distances from their own places.
    let all = unsafe { core::slice::from_raw_parts(start, len) };
    let from = |of: &i64| (ptr::from_ref(of).addr() as u64).wrapping_add_signed(*of);
    all.iter().find_map(|[at, to]| (*at != 0 && from(at) == pc).then(|| from(to)))
}

/// Copies without the C library, since a probe may be on its `memcpy`. Compilers turn loops into calls of it
/// unless the accesses are volatile.
///
/// # Safety
/// `from` has `words` words to read, and `to` has as many to write; they do not overlap.
unsafe fn copy_words(from: *const u64, to: *mut u64, words: usize) {
    for word in 0..words {
        // SAFETY: the caller promises it.
        unsafe { to.add(word).write_volatile(from.add(word).read_volatile()) };
    }
}

/// Whether a push by `offset` stores over what the kernel reads when the handler returns. The kernel does not
/// read the 16 bytes below the stack pointer: it puts a frame record there, which only unwinders of the
/// handler use.
#[inline(always)]
fn reaches(offset: i32, context: &mut Context) -> bool {
    let to = context.regs().sp.wrapping_add_signed(offset.into());
    offset < -16 && context.reaches(to)
}

/// Does a push at once if it does not store over what the kernel reads when the handler returns. False:
/// nothing was done, since it does, or `op` is another instruction, or the push faults.
#[inline(always)]
pub(crate) fn quick(op: &Op, state: &mut State<'_>) -> bool {
    match *op {
        Op::PushFrame { offset } if !reaches(offset, state.context()) => {
            let mut faulted = MaybeUninit::uninit();
            // SAFETY: these are the registers of a thread at such an instruction, which would have stored the
            // same there; a fault is returned, with nothing done. Our own frames are below, or on another
            // stack.
            unsafe { trapline_runtime_push(state.regs(), faulted.as_mut_ptr(), offset.into()) == 0 }
        }
        _ => false,
    }
}

/// Bytes of what is known of one trap (`trap::sites`): one cache line.
pub(crate) const ENTRY_LEN: usize = 64;

/// Instructions that nearly every function begins with or ends in, done at the hit itself. Only the registers
/// are needed; all else was decided when the trap was added.
///
/// BTYPE stays as it is. At an instruction that is no landing pad it is 0, or the page is not guarded and
/// BTYPE is not checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Quick {
    /// `ret`.
    Return,
    /// `nop`.
    Next,
}

impl Quick {
    /// The quick form of the step of a trap at `addr`, if it has one.
    pub(crate) fn of(step: &Step, addr: u64) -> Option<Self> {
        match *step {
            Step::Simulate(Op::BranchTo { through: Through::Return, to: Gpr::X30 }) => Some(Self::Return),
            Step::At(next) if next == addr.wrapping_add(4) => Some(Self::Next),
            _ => None,
        }
    }
    /// Carries it out in registers that are at the trap.
    #[inline(always)]
    pub(crate) fn done(self, regs: &mut Regs) {
        match self {
            Self::Return => regs.pc = regs.get(Gpr::X30),
            Self::Next => regs.pc = regs.pc.wrapping_add(4),
        }
    }
}

/// Whether the step is `stp x29, x30, [sp, #-16]!`, which [`push`] does. No part of a signal's frame that the
/// kernel reads lies where it stores ([`reaches`]).
pub(crate) const fn is_push(step: &Step) -> bool {
    matches!(step, Step::Simulate(Op::PushFrame { offset: -16 }))
}

/// Carries out [this instruction](is_push) at `trap`. False: the registers are elsewhere, or it faults;
/// nothing was done.
///
/// ```text
///   if sp mod 16 = 0 and pc = trap:   [sp - 16] = x29, [sp - 8] = x30; (sp, pc) = (sp - 16, pc + 4)
/// ```
///
/// # Safety
/// These are the registers, in its signal, of a thread that executed a trap at such an instruction. They are
/// elsewhere only if a consumer moved them.
#[inline(always)]
pub(crate) unsafe fn push(regs: &mut Regs, trap: u64) -> bool {
    const { assert!(offset_of!(Regs, x) == 0 && offset_of!(Regs, sp) == 248 && offset_of!(Regs, pc) == 256) };
    // SAFETY: it stores what the instruction would have stored, at the same place; a fault is returned. Our
    // own frames are below, or on another stack.
    unsafe {
        asm!(
            "ldp {sp}, {pc}, [{regs}, #248]",
            "ldp {low}, {high}, [{regs}, #232]",
            "tst {sp}, #15",
            "ccmp {pc}, {trap}, #0, eq",
            "b.ne {failed}",
            "3: stp {low}, {high}, [{sp}, #-16]!",
            "add {pc}, {pc}, #4",
            "stp {sp}, {pc}, [{regs}, #248]",
            ".pushsection trapline_faults, \"aR\", @progbits",
            ".balign 8",
            ".quad 3b - ., {failed} - .",
            ".popsection",
            regs = in(reg) ptr::from_mut(regs),
            trap = in(reg) trap,
            sp = out(reg) _,
            pc = out(reg) _,
            low = out(reg) _,
            high = out(reg) _,
            failed = label { return false },
            options(nostack),
        );
    }
    true
}

/// Carries out `op`, in this process' memory. If an access faults, returns what the kernel reported, and
/// registers are as before. If `op` would store over the part of the signal's frame that the thread goes on
/// with, it is done on the way back, and this function does not return.
#[inline]
pub(crate) fn simulated<'a>(
    op: &Op,
    state: &mut State<'_>,
    record: &'a mut MaybeUninit<Faulted>,
) -> Option<&'a mut Faulted> {
    let mut memory = Own::new(record);
    if let Op::Push { offset, .. } | Op::PushFrame { offset } = op
        && reaches(*offset, state.context())
    {
        frame::push(op, state.context());
    }
    match simulate(*op, state.regs(), &mut memory) {
        Ok(()) => None,
        Err(Fault::StackAlignment { sp }) => Some(memory.record.write(Faulted::misaligned(sp))),
        Err(Fault::Load { .. } | Fault::Store { .. }) => memory.faulted(),
    }
}

/// This process' memory, accessed by instructions that may fault.
#[derive(Debug)]
pub(super) struct Own<'a> {
    record: &'a mut MaybeUninit<Faulted>,
    has_faulted: bool,
}

impl<'a> Own<'a> {
    /// Faults are stored in `record`.
    pub(super) const fn new(record: &'a mut MaybeUninit<Faulted>) -> Self {
        Self { record, has_faulted: false }
    }
    /// What was reported about the last access, if it faulted.
    fn faulted(self) -> Option<&'a mut Faulted> {
        // SAFETY: `has_faulted` is set after `recover` has written the record.
        self.has_faulted.then(|| unsafe { self.record.assume_init_mut() })
    }
    fn finish(&mut self, addr: u64, done: &Done) -> Result<u64, u64> {
        self.has_faulted = done.failed != 0;
        if self.has_faulted { Err(addr) } else { Ok(done.value) }
    }
    /// The 4 bytes at `addr`.
    pub(super) fn word(&mut self, addr: u64) -> Option<u32> {
        // SAFETY: as in `load`.
        let done = unsafe { trapline_runtime_load4(addr, self.record.as_mut_ptr()) };
        self.finish(addr, &done).ok().map(|value| value as u32)
    }
}

impl Memory for Own<'_> {
    fn load(&mut self, addr: u64, into: &mut [u8]) -> Result<(), u64> {
        let record = self.record.as_mut_ptr();
        // SAFETY: any address may be read: a fault is returned. Reading has no other effect (the program's
        // own instruction would have read the same).
        let done = unsafe {
            if into.len() == 8 {
                trapline_runtime_load8(addr, record)
            } else {
                trapline_runtime_load4(addr, record)
            }
        };
        let value = self.finish(addr, &done)?;
        if let Some(eight) = into.first_chunk_mut() {
            *eight = value.to_le_bytes();
        } else if let Some(four) = into.first_chunk_mut() {
            *four = (value as u32).to_le_bytes();
        }
        Ok(())
    }
    fn store(&mut self, addr: u64, bytes: &[u8]) -> Result<(), u64> {
        let record = self.record.as_mut_ptr();
        let both = number(bytes);
        let (low, high) = (both as u64, (both >> 64) as u64);
        // SAFETY: as above; the program's own instruction would have stored the same there. Our own frames
        // are below the memory that it may push to, or on another stack.
        let done = unsafe {
            match bytes.len() {
                16 => trapline_runtime_store88(addr, record, low, high),
                8 if addr.is_multiple_of(8) => trapline_runtime_store8(addr, record, low),
                8 => trapline_runtime_store44(addr, record, low, low >> 32),
                _ => trapline_runtime_store4(addr, record, low),
            }
        };
        self.finish(addr, &done).map(drop)
    }
}
