//! The signal frame that brings a thread back when no tracer is left to do it (TGT-1).
//!
//! Input: registers, signal mask and vector state to return to; where the frame may lie. Output: bytes, and
//! the stack pointer to start with. The layout is the kernel's `struct rt_sigframe` followed by the XSAVE
//! area, as the kernel's own signal delivery would have made it. Does not: touch the target.
//!
//! ```text
//!   base                    arguments in memory, ARGUMENT_LEN = 256 bytes
//!   + 256                   room for the words of the chain, CHAIN_LEN = 128 bytes
//!   frame_at                the chain's last word (`put_chain`); a multiple of 16
//!   + UC       8            ucontext: flags; + 24 of it SS_UNCHANGED
//!   + MCONTEXT 48           r8 to r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, flags, selectors, …, fp_at
//!   + SIGMASK  304          mask
//!   + 312                   siginfo, 128 bytes of zeros
//!   fp_at                   vector state (XSAVE), a multiple of 64
//!   top                     end of the stack that may be used, at most 63 bytes above the state's end
//! ```
//!
//! The chain, which begins at call_sp with `skip` words that the gadget pops:
//!
//! ```text
//!   Restorer   frame_at - 8 · skip        call_sp
//!              frame_at                   the restorer
//!   PopRax     frame_at - 16 - 8 · skip   call_sp
//!              frame_at - 16              address of `pop rax; ret`
//!              frame_at - 8               15, rt_sigreturn
//!              frame_at                   address of `syscall`
//!   both       frame_at + 8               return_sp: rsp in rt_sigreturn
//! ```

use crate::regs::Regs;
use crate::sys::ptrace::Registers;
use crate::sys::x86_64::xsave_end;
use crate::x86_64::gadget::{Gadgets, MAX_SKIP, Restore};

/// Bytes that a leaf function may use below its stack pointer.
pub(crate) const RED_ZONE: u64 = 128;
/// Bytes for arguments in memory.
pub(crate) const ARGUMENT_LEN: u64 = 256;
const CHAIN_LEN: u64 = (MAX_SKIP + 4) * 8;
/// Bytes of pretcode, ucontext and siginfo.
const FRAME_LEN: u64 = 8 + 304 + 128;
const UC: usize = 8;
const MCONTEXT: usize = UC + 40;
const SIGMASK: usize = UC + 296;
/// UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS.
const UC_FLAGS: u64 = 7;
/// A value that is no mode of sigaltstack. The kernel refuses it silently, and the thread's alternate stack
/// stays as it is.
const SS_UNCHANGED: u64 = 3;
const FP_XSTATE_MAGIC1: u32 = 0x4650_5853;
const FP_XSTATE_MAGIC2: u32 = 0x4650_5845;
const SW_RESERVED: usize = 464;
const XSAVE_HEADER: usize = 512;
const XSAVE_MIN: usize = 576;
/// AMX: a frame has space for it only in threads that asked for it.
const XTILE: u64 = 3 << 17;

/// Whether a frame of the kernel's may begin with the first of these words, which is a restorer's address. In
/// a frame the flags of a thread and the selector of 64-bit code follow. The stack behind the last word may
/// hold anything.
pub(crate) fn may_begin(words: &[u64]) -> bool {
    const CODE: u64 = 0x33;
    const FLAGS: usize = (MCONTEXT + 17 * 8) / 8;
    let flags = words.get(FLAGS).is_none_or(|flags| flags & 2 != 0 && flags >> 32 == 0);
    flags && words.get(FLAGS + 1).is_none_or(|selectors| selectors & 0xFFFF == CODE)
}

/// A frame and what surrounds it, ready to be written.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    /// Address for the bytes. Arguments come first.
    pub(crate) base: u64,
    pub(crate) bytes: Vec<u8>,
    /// Stack pointer before a gadget's `syscall`.
    pub(crate) call_sp: u64,
    /// Stack pointer before an rt_sigreturn.
    pub(crate) return_sp: u64,
}

/// Vector state in the form that a signal frame holds; `None` when its layout is not understood.
fn signal_xstate(xstate: &[u8]) -> Option<Vec<u8>> {
    let word = |at: usize| Some(u64::from_le_bytes(xstate.get(at..at + 8)?.try_into().ok()?));
    let (supported, in_use) = (word(SW_RESERVED)?, word(XSAVE_HEADER)?);
    let features = supported & (!XTILE | (XTILE & in_use));
    let len = (2..63).filter(|i| features >> i & 1 == 1).map(xsave_end).fold(XSAVE_MIN, usize::max);
    let mut bytes = xstate.get(..len)?.to_vec();
    let mut software = [0u8; 48];
    software[..4].copy_from_slice(&FP_XSTATE_MAGIC1.to_le_bytes());
    software[4..8].copy_from_slice(&(len as u32 + 4).to_le_bytes());
    software[8..16].copy_from_slice(&features.to_le_bytes());
    software[16..20].copy_from_slice(&(len as u32).to_le_bytes());
    bytes[SW_RESERVED..XSAVE_HEADER].copy_from_slice(&software);
    bytes.extend_from_slice(&FP_XSTATE_MAGIC2.to_le_bytes());
    Some(bytes)
}

impl Frame {
    /// Lays a frame out below `top`.
    pub(crate) fn new(
        top: u64,
        gadgets: &Gadgets,
        regs: &Regs,
        mask: u64,
        xstate: &[u8],
    ) -> Result<Self, &'static str> {
        const LOW: &str = "its stack is at address 0";
        let fp = signal_xstate(xstate).ok_or("its vector state is not understood")?;
        let fp_at = top.checked_sub(fp.len() as u64).ok_or(LOW)? & !63;
        let frame_at = (fp_at - FRAME_LEN) & !15;
        let base = frame_at.checked_sub(CHAIN_LEN + ARGUMENT_LEN).ok_or(LOW)?;
        let mut bytes = vec![0u8; (fp_at - base) as usize];
        bytes.extend_from_slice(&fp);
        let mut frame = Self { base, bytes, call_sp: 0, return_sp: frame_at + 8 };
        frame.put_context(frame_at, regs.registers(), mask, fp_at);
        frame.put_chain(frame_at, gadgets);
        Ok(frame)
    }
    fn put(&mut self, addr: u64, word: u64) {
        let at = (addr - self.base) as usize;
        self.bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    fn put_context(&mut self, frame_at: u64, regs: &Registers, mask: u64, fp_at: u64) {
        let r = regs;
        let at = |off: usize| frame_at + off as u64;
        self.put(at(UC), UC_FLAGS);
        self.put(at(UC + 24), SS_UNCHANGED);
        let segments = r.cs & 0xffff | (r.gs & 0xffff) << 16 | (r.fs & 0xffff) << 32 | (r.ss & 0xffff) << 48;
        let general = [
            r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx, r.rdx, r.rax,
            r.rcx, r.rsp, r.rip, r.eflags, segments, 0, 0, 0, 0, fp_at,
        ];
        for (index, word) in general.into_iter().enumerate() {
            self.put(at(MCONTEXT + index * 8), word);
        }
        self.put(at(SIGMASK), mask);
    }
    /// Writes the words that `ret` takes, and sets call_sp.
    fn put_chain(&mut self, frame_at: u64, gadgets: &Gadgets) {
        let skip = gadgets.call.skip * 8;
        match gadgets.restore {
            Restore::Restorer(restorer) => {
                self.put(frame_at, restorer);
                self.call_sp = frame_at - skip;
            }
            Restore::PopRax(pop) => {
                self.put(frame_at - 16, pop);
                self.put(frame_at - 8, libc::SYS_rt_sigreturn as u64);
                self.put(frame_at, gadgets.call.addr);
                self.call_sp = frame_at - 16 - skip;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::may_begin;

    #[test]
    fn a_restorers_address_alone_is_no_frame() {
        // r8 to flags, and selectors, as in `struct sigcontext`.
        let mut frame = vec![0_u64; 64];
        frame[0] = 0x7f00_0000_1000;
        assert!(!may_begin(&frame));
        (frame[23], frame[24]) = (0x246, 0x002b_0000_0000_0033);
        assert!(may_begin(&frame) && !may_begin(&frame[1..]));
        frame[24] = 0x10;
        assert!(!may_begin(&frame));
        assert!(may_begin(&frame[..20]), "the rest was not read");
    }

    /// A frame that the kernel made, for a handler of ours.
    #[test]
    fn a_frame_of_the_kernels_is_one() {
        assert!(may_begin(&crate::sys::x86_64::frame_of_a_signal()));
    }
}
