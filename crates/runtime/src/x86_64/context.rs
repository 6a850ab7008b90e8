//! What the kernel saves at a signal: its `ucontext` and `sigcontext`, and the conversion from and
//! to the engine's [`Regs`].
//!
//! Layouts are the kernel's (asm/sigcontext.h, asm/ucontext.h), not a C library's. The
//! thread goes on with the [`Context`] that a handler leaves, including the mask. Vector state is behind a
//! pointer and is never touched.
//!
//! ```text
//!   + 0            flags, link; + 16 the alternate stack
//!   + 40           r8 to r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp; + 168 rip; + 176 rflags
//!   + 184          selectors: cs, gs, fs, ss
//!   + 192          error code, exception; + 216 the fault's address (cr2)
//!   + 224          pointer to the vector state: FCW at + 0, MXCSR at + 24
//!   + 296          mask
//! ```

use core::arch::asm;

use trapline_insn::x86_64::Regs;

/// `struct ucontext`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Context {
    flags: u64,
    link: u64,
    stack: [u64; 3],
    /// r8 to r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, rflags.
    general: [u64; 18],
    segments: [u16; 4],
    /// The processor's error code, if the signal comes from a fault.
    pub error: u64,
    /// The number of the exception. Outdated in a signal that was sent.
    pub exception: u64,
    old_mask: u64,
    /// cr2.
    pub fault_address: u64,
    vector_state: u64,
    reserved: [u64; 8],
    /// Signals that are blocked once the handler returns.
    pub mask: u64,
}

const RIP: usize = 16;

impl Context {
    /// General registers, instruction pointer and flags.
    #[must_use]
    pub fn regs(&self) -> Regs {
        let mut regs = Regs::default();
        self.read(&mut regs);
        regs
    }
    /// The same, into `regs`: word by word, so that no compiler turns it into a call of the C library.
    #[inline(always)]
    pub(crate) const fn read(&self, regs: &mut Regs) {
        let [r8, r9, r10, r11, r12, r13, r14, r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, rflags] =
            self.general;
        regs.gpr = [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15];
        regs.rip = rip;
        regs.rflags = rflags;
    }
    /// Sets the registers that the thread goes on with. The kernel takes only those flags that a program may
    /// change.
    #[inline(always)]
    pub const fn set_regs(&mut self, regs: &Regs) {
        let [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15] = regs.gpr;
        let (rip, rflags) = (regs.rip, regs.rflags);
        self.general =
            [r8, r9, r10, r11, r12, r13, r14, r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, rflags];
    }
    /// The instruction pointer.
    #[must_use]
    pub const fn pc(&self) -> u64 {
        self.general[RIP]
    }
    /// Sets the instruction pointer.
    pub const fn set_pc(&mut self, to: u64) {
        self.general[RIP] = to;
    }
    /// rsi.
    #[must_use]
    pub(super) const fn rsi(&self) -> u64 {
        self.general[9]
    }
}

/// A thread's settings for rounding, exceptions and denormals: x87's control word and MXCSR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ControlWords {
    fcw: u16,
    mxcsr: u32,
}

impl ControlWords {
    /// The values that the kernel starts handlers with, and the ABI starts programs with.
    const INITIAL: Self = Self { fcw: 0x37F, mxcsr: 0x1F80 };

    /// The interrupted thread's values, unless they are the initial ones.
    ///
    /// # Safety
    /// The context is that of a signal that this thread handles, as the kernel made it.
    #[inline]
    pub(crate) unsafe fn unusual(context: &Context) -> Option<Self> {
        let state = context.vector_state as *const u8;
        if state.is_null() {
            return None;
        }
        // SAFETY: the frame's FXSAVE image (SDM 1, 10.5.1): 512 bytes, aligned to 16 at least, with FCW first
        // and MXCSR at 24.
        let words =
            unsafe { Self { fcw: state.cast::<u16>().read(), mxcsr: state.add(24).cast::<u32>().read() } };
        (words != Self::INITIAL).then_some(words)
    }
    /// Sets them in this thread, until its handler returns.
    #[cold]
    pub(crate) fn load(self) {
        // SAFETY: loads two control registers with values that a program had in them, or starts with; this
        // crate does no floating-point arithmetic.
        unsafe {
            asm!("fldcw [{}]", "ldmxcsr [{}]", in(reg) &raw const self.fcw, in(reg) &raw const self.mxcsr,
                options(nostack, preserves_flags, readonly));
        }
    }
    /// Restores the values that handlers start with.
    pub(crate) fn reset() {
        Self::INITIAL.load();
    }
}

/// A thread's registers at a hit, which consumers see and change, and the signal frame that they come from.
/// Here they are a copy of the frame's, in another order.
#[derive(Debug)]
pub(crate) struct State<'a> {
    context: &'a mut Context,
    regs: Regs,
}

impl<'a> State<'a> {
    /// The frame's registers, with the instruction pointer at the trap that was executed.
    #[inline(always)]
    pub(crate) fn at(context: &'a mut Context, trap: u64) -> Self {
        let mut regs = Regs::default();
        context.read(&mut regs);
        regs.set_ip(trap);
        Self { context, regs }
    }
    /// The registers.
    #[inline(always)]
    pub(crate) const fn regs(&mut self) -> &mut Regs {
        &mut self.regs
    }
    /// The frame.
    #[inline(always)]
    pub(crate) const fn context(&mut self) -> &mut Context {
        self.context
    }
    /// Writes the registers back to the frame, so that the thread goes on with them.
    #[inline(always)]
    pub(crate) const fn keep(&mut self) {
        self.context.set_regs(&self.regs);
    }
    /// Reads the registers from the frame again.
    pub(crate) const fn read(&mut self) {
        self.context.read(&mut self.regs);
    }
}

/// `si_code` of an int3 (and of other exceptions without details).
pub const SI_KERNEL: i32 = 0x80;

#[cfg(test)]
mod tests {
    use super::Context;
    use std::mem::offset_of;
    use trapline_insn::x86_64::{Gpr, Regs};

    #[test]
    fn layouts_are_the_kernels() {
        assert_eq!(offset_of!(libc::ucontext_t, uc_mcontext), offset_of!(Context, general));
        assert_eq!(offset_of!(libc::ucontext_t, uc_sigmask), offset_of!(Context, mask));
        let fpregs = offset_of!(libc::ucontext_t, uc_mcontext) + offset_of!(libc::mcontext_t, fpregs);
        assert_eq!(fpregs, offset_of!(Context, vector_state));
        for (register, field) in [
            (libc::REG_ERR, offset_of!(Context, error)),
            (libc::REG_TRAPNO, offset_of!(Context, exception)),
            (libc::REG_CR2, offset_of!(Context, fault_address)),
            (libc::REG_RIP, offset_of!(Context, general) + 8 * super::RIP),
            (libc::REG_EFL, offset_of!(Context, general) + 8 * 17),
        ] {
            assert_eq!(40 + 8 * register as usize, field);
        }
    }

    #[test]
    fn registers_stand_where_the_kernel_puts_them() {
        let names = [
            (Gpr::Rax, libc::REG_RAX),
            (Gpr::Rcx, libc::REG_RCX),
            (Gpr::Rdx, libc::REG_RDX),
            (Gpr::Rbx, libc::REG_RBX),
            (Gpr::Rsp, libc::REG_RSP),
            (Gpr::Rbp, libc::REG_RBP),
            (Gpr::Rsi, libc::REG_RSI),
            (Gpr::Rdi, libc::REG_RDI),
            (Gpr::R8, libc::REG_R8),
            (Gpr::R9, libc::REG_R9),
            (Gpr::R10, libc::REG_R10),
            (Gpr::R11, libc::REG_R11),
            (Gpr::R12, libc::REG_R12),
            (Gpr::R13, libc::REG_R13),
            (Gpr::R14, libc::REG_R14),
            (Gpr::R15, libc::REG_R15),
        ];
        // SAFETY: all fields are integers, for which zeros are values.
        let mut context: Context = unsafe { std::mem::zeroed() };
        for (index, word) in context.general.iter_mut().enumerate() {
            *word = 100 + index as u64;
        }
        let regs = context.regs();
        for (gpr, place) in names {
            assert_eq!(regs.get(gpr), 100 + place as u64, "{gpr:?}");
        }
        assert_eq!((regs.rip, context.pc(), regs.rflags, context.rsi()), (116, 116, 117, regs.get(Gpr::Rsi)));
        let before = context.general;
        context.set_regs(&Regs::default());
        assert_eq!(context.general, [0; 18]);
        context.set_regs(&regs);
        assert_eq!(context.general, before);
    }
}
