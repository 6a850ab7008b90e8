//! Accesses of a simulated instruction to the program's memory: a fault is returned as a value.
//!
//! In: an address. Out: the value, or the signal that the kernel raised. Each access is one of a few
//! instructions that are next to each other. The handler of faults sees that the fault is there
//! ([`recover`]), copies siginfo and error code to where the access's argument points, and goes on behind the
//! access. No table is searched and nothing is marked beforehand, so an access that does not fault costs no
//! more than itself.
//! Does not: know what the memory belongs to. If the handler of faults is not installed, the program gets the
//! fault, at our address.

use core::arch::{asm, global_asm};
use core::mem::MaybeUninit;
use core::ptr;

use trapline_insn::x86_64::simulate::{Memory, Op, Size, simulate};

use super::context::{Context, State};
use crate::native::Regs;
use crate::trap::Info;
use crate::trap::Step;

// Each access, from `trapline_runtime_access_begin` up to `trapline_runtime_access_failed`:
//
//   in      rdi = the address, rsi = a `Faulted` to fill, rdx = the value to store; [rsp] = return address
//   access  rax = [rdi], zero-extended; or [rdi] = the low bytes of rdx
//   out     rax = the value that was loaded, rdx = 0
//   fault   [rsi] = siginfo, error code, exception, address (`recover`);  rip = `trapline_runtime_access_failed`
//   out     rdx = 1
global_asm!(
    ".pushsection .text.trapline_access, \"ax\", @progbits",
    ".macro trapline_access name, insn:vararg",
    ".hidden trapline_runtime_\\name",
    ".globl trapline_runtime_\\name",
    ".type trapline_runtime_\\name, @function",
    "trapline_runtime_\\name:",
    "\\insn",
    "xor edx, edx",
    "ret",
    ".endm",
    ".balign 16",
    ".cfi_startproc",
    ".hidden trapline_runtime_access_begin",
    ".globl trapline_runtime_access_begin",
    "trapline_runtime_access_begin:",
    "trapline_access load1, movzx eax, byte ptr [rdi]",
    "trapline_access load2, movzx eax, word ptr [rdi]",
    "trapline_access load4, mov eax, dword ptr [rdi]",
    "trapline_access load8, mov rax, qword ptr [rdi]",
    "trapline_access store1, mov byte ptr [rdi], dl",
    "trapline_access store2, mov word ptr [rdi], dx",
    "trapline_access store4, mov dword ptr [rdi], edx",
    "trapline_access store8, mov qword ptr [rdi], rdx",
    ".hidden trapline_runtime_access_failed",
    ".globl trapline_runtime_access_failed",
    "trapline_runtime_access_failed:",
    "mov edx, 1",
    "ret",
    ".cfi_endproc",
    ".purgem trapline_access",
    ".popsection",
);

#[repr(C)]
struct Done {
    value: u64,
    failed: u64,
}

unsafe extern "C" {
    fn trapline_runtime_access_begin();
    fn trapline_runtime_access_failed();
    fn trapline_runtime_load1(addr: u64, faulted: *mut Faulted) -> Done;
    fn trapline_runtime_load2(addr: u64, faulted: *mut Faulted) -> Done;
    fn trapline_runtime_load4(addr: u64, faulted: *mut Faulted) -> Done;
    fn trapline_runtime_load8(addr: u64, faulted: *mut Faulted) -> Done;
    fn trapline_runtime_store1(addr: u64, faulted: *mut Faulted, value: u64) -> Done;
    fn trapline_runtime_store2(addr: u64, faulted: *mut Faulted, value: u64) -> Done;
    fn trapline_runtime_store4(addr: u64, faulted: *mut Faulted, value: u64) -> Done;
    fn trapline_runtime_store8(addr: u64, faulted: *mut Faulted, value: u64) -> Done;
}

/// What the kernel reported about an access that faulted.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faulted {
    pub(crate) info: Info,
    error: u64,
    exception: u64,
    fault_address: u64,
}

impl Faulted {
    /// Makes `context` look as if the fault had happened there.
    pub(crate) const fn describe(&self, context: &mut Context) {
        context.error = self.error;
        context.exception = self.exception;
        context.fault_address = self.fault_address;
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
        return false;
    }
    let record = context.rsi() as *mut Faulted;
    // SAFETY: only `Own` calls these accesses, with rsi at a record on its own stack, and nothing between
    // changes rsi.
    unsafe {
        copy_words(ptr::from_ref(info).cast(), (&raw mut (*record).info).cast(), size_of::<Info>() / 8);
        (&raw mut (*record).error).write(context.error);
        (&raw mut (*record).exception).write(context.exception);
        (&raw mut (*record).fault_address).write(context.fault_address);
    }
    context.set_pc(failed);
    true
}

/// Copies without the C library, since a probe may be on its `memcpy`.
///
/// # Safety
/// `from` has `words` words to read, and `to` has as many to write; they do not overlap.
unsafe fn copy_words(from: *const u64, to: *mut u64, words: usize) {
    // SAFETY: the caller promises it; the direction flag is clear, as the ABI requires.
    unsafe {
        asm!("rep movsq", inout("rcx") words => _, inout("rsi") from => _, inout("rdi") to => _,
            options(nostack, preserves_flags));
    }
}

/// Bytes of what is known of one trap (`trap::sites`): the instruction makes it two cache lines.
pub(crate) const ENTRY_LEN: usize = 128;

/// Simulation that is done at the hit itself. On x86-64 there is none, because at that point the registers
/// are not the frame's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Quick {}

impl Quick {
    /// Always `None`.
    pub(crate) const fn of(_: &Step, _: u64) -> Option<Self> {
        None
    }
    /// Never called, since there are no values of this type.
    pub(crate) const fn done(self, _: &mut Regs) {
        match self {}
    }
}

/// Always false.
pub(crate) const fn is_push(_: &Step) -> bool {
    false
}

/// Does nothing; false.
///
/// # Safety
/// None is required.
pub(crate) const unsafe fn push(_: &mut Regs, _: u64) -> bool {
    false
}

/// Carries out `op`, unless an access faults: then returns false, and nothing has changed.
#[inline(always)]
pub(crate) fn quick(op: &Op, state: &mut State<'_>) -> bool {
    let done = simulated(op, state, &mut MaybeUninit::uninit()).is_none();
    if done {
        state.keep();
    }
    done
}

/// Carries out `op`, in this process' memory. If an access faults, returns what the kernel reported, and
/// registers are as before. The signal frame is below the red zone, and no push reaches it.
#[inline(always)]
pub(crate) fn simulated<'a>(
    op: &Op,
    state: &mut State<'_>,
    record: &'a mut MaybeUninit<Faulted>,
) -> Option<&'a mut Faulted> {
    let mut memory = Own::new(record);
    match simulate(op, state.regs(), &mut memory) {
        Ok(_) => None,
        Err(_) => memory.faulted(),
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
    pub(super) fn faulted(self) -> Option<&'a mut Faulted> {
        // SAFETY: `has_faulted` is set after `recover` has written the record.
        self.has_faulted.then(|| unsafe { self.record.assume_init_mut() })
    }
    fn finish(&mut self, addr: u64, done: &Done) -> Result<u64, u64> {
        self.has_faulted = done.failed != 0;
        if self.has_faulted { Err(addr) } else { Ok(done.value) }
    }
}

impl Memory for Own<'_> {
    fn load(&mut self, addr: u64, size: Size) -> Result<u64, u64> {
        let record = self.record.as_mut_ptr();
        // SAFETY: any address may be read: a fault is returned. Reading has no other effect (the program's
        // own instruction would have read the same).
        let done = unsafe {
            match size {
                Size::Byte => trapline_runtime_load1(addr, record),
                Size::Word => trapline_runtime_load2(addr, record),
                Size::Long => trapline_runtime_load4(addr, record),
                Size::Quad => trapline_runtime_load8(addr, record),
            }
        };
        self.finish(addr, &done)
    }
    fn store(&mut self, addr: u64, size: Size, value: u64) -> Result<(), u64> {
        let record = self.record.as_mut_ptr();
        // SAFETY: as above; the program's own instruction would have stored the same there. Our own frames
        // are below its red zone or on another stack.
        let done = unsafe {
            match size {
                Size::Byte => trapline_runtime_store1(addr, record, value),
                Size::Word => trapline_runtime_store2(addr, record, value),
                Size::Long => trapline_runtime_store4(addr, record, value),
                Size::Quad => trapline_runtime_store8(addr, record, value),
            }
        };
        self.finish(addr, &done).map(drop)
    }
}
