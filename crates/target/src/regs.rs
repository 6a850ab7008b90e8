//! A stopped thread's general registers.

/// General registers, as the kernel keeps them.
#[derive(Clone, Copy, Debug)]
pub struct Regs(pub(crate) libc::user_regs_struct);

impl Regs {
    /// Instruction pointer.
    #[must_use]
    pub const fn pc(&self) -> u64 {
        self.0.rip
    }
    /// Moves the instruction pointer.
    pub const fn set_pc(&mut self, pc: u64) {
        self.0.rip = pc;
    }
    /// Stack pointer.
    #[must_use]
    pub const fn sp(&self) -> u64 {
        self.0.rsp
    }
    /// Thread pointer (fs base).
    #[must_use]
    pub const fn thread_pointer(&self) -> u64 {
        self.0.fs_base
    }
    /// r14, where Go keeps g.
    #[must_use]
    pub const fn r14(&self) -> u64 {
        self.0.r14
    }
}
