//! The signal frame that brings a thread back when no tracer is left to do it (TGT-1).
//!
//! Input: registers, signal mask and vector state to return to; where the frame may lie. Output: bytes, and
//! the stack pointer to start with. The layout is the kernel's `struct rt_sigframe`
//! (arch/arm64/kernel/signal.c, uapi/asm/sigcontext.h): siginfo, then ucontext. The 4096 bytes in its context
//! hold a list of records. The record with the low halves of the vector registers must be there. Does not:
//! touch the target.
//!
//! ```text
//!   base                    ARGUMENT_LEN = 256 bytes for arguments in memory
//!   base + 256   F +    0   siginfo, 128 bytes        <- F = sp at the call (call_sp) and at rt_sigreturn (return_sp)
//!                F +  152   STACK_FLAGS = 3           no mode of sigaltstack: its stack stays
//!                F +  168   SIGMASK
//!                F +  304   CONTEXT: fault_address; x0 to x30 from F + 312 on, sp, pc, pstate
//!                F +  592   RECORDS, 4096 bytes: FPSIMD, SVE if it is in use, a head of zeros
//!                F + 4688   FRAME_LEN                 F = (top - 4688) & -16
//!   top                     the program's sp - RED_ZONE, unless the caller has other memory for the frame
//! ```

use crate::aarch64::gadget::Gadgets;
use crate::regs::Regs;
use crate::sys::ptrace::Vectors;

/// Bytes left free below a stack pointer. Nothing there is in use (AAPCS64, 6.4.5.1), but a little is left.
pub(crate) const RED_ZONE: u64 = 128;
/// Bytes for arguments in memory.
pub(crate) const ARGUMENT_LEN: u64 = 256;
const SIGINFO_LEN: usize = 128;
const STACK_FLAGS: usize = SIGINFO_LEN + 24;
const SIGMASK: usize = SIGINFO_LEN + 40;
/// Offset of fault_address, which x0 to x30, sp, pc and pstate follow.
const CONTEXT: usize = SIGINFO_LEN + 176;
const RECORDS: usize = CONTEXT + 288;
const RECORDS_LEN: usize = 4096;
const FRAME_LEN: usize = RECORDS + RECORDS_LEN;
/// A value that is no mode of sigaltstack. The kernel refuses it silently, and the thread's alternate stack
/// stays as it is.
const SS_UNCHANGED: u64 = 3;
const FPSIMD_MAGIC: u32 = 0x4650_8001;
const SVE_MAGIC: u32 = 0x5356_4501;
const HEAD: usize = 8;

/// Whether a frame of the kernel's may begin with the first of these words, which is a restorer's address.
/// Always true: on arm64 frames hold no such address in memory, so a thread with one on its stack is in a
/// handler.
pub(crate) const fn may_begin(_: &[u64]) -> bool {
    true
}

/// A frame and what surrounds it, ready to be written.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    /// Address for the bytes. Arguments come first.
    pub(crate) base: u64,
    pub(crate) bytes: Vec<u8>,
    /// Stack pointer before a gadget's `svc`.
    pub(crate) call_sp: u64,
    /// Stack pointer before an rt_sigreturn.
    pub(crate) return_sp: u64,
}

impl Frame {
    /// Lays a frame out below `top`. The error names the part of the thread's state that cannot be restored.
    pub(crate) fn new(
        top: u64,
        _: &Gadgets,
        regs: &Regs,
        mask: u64,
        vectors: &Vectors,
    ) -> Result<Self, &'static str> {
        vectors.unfit.map_or(Ok(()), Err)?;
        let records = records(vectors).ok_or("its vector state is not understood")?;
        let frame_at = top.checked_sub(FRAME_LEN as u64).ok_or("its stack is at address 0")? & !15;
        let base = frame_at.checked_sub(ARGUMENT_LEN).ok_or("its stack is at address 0")?;
        let mut bytes = vec![0; ARGUMENT_LEN as usize];
        bytes.resize(bytes.len() + RECORDS, 0);
        bytes.extend(records);
        bytes.resize(ARGUMENT_LEN as usize + FRAME_LEN, 0);
        let mut frame = Self { base, bytes, call_sp: frame_at, return_sp: frame_at };
        frame.put(STACK_FLAGS, SS_UNCHANGED);
        frame.put(SIGMASK, mask);
        let now = regs.registers();
        let words = now.x.into_iter().chain([now.sp, now.pc, now.pstate]);
        for (nth, word) in words.enumerate() {
            frame.put(CONTEXT + 8 + nth * 8, word);
        }
        Ok(frame)
    }
    fn put(&mut self, at: usize, word: u64) {
        let at = ARGUMENT_LEN as usize + at;
        self.bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
}

/// The records of the vector registers; a head of zeros ends the list.
fn records(vectors: &Vectors) -> Option<Vec<u8>> {
    const LOW: usize = 512;
    let head = |magic: u32, len: usize| [magic.to_le_bytes(), (len as u32).to_le_bytes()].concat();
    let mut bytes = head(FPSIMD_MAGIC, HEAD + 8 + LOW);
    // The register set has fpsr and fpcr behind the registers, the record has them before.
    bytes.extend(vectors.low.get(LOW..LOW + 8)?);
    bytes.extend(vectors.low.get(..LOW)?);
    if let Some(sve) = &vectors.sve {
        // Header: size, largest size, vector length, largest vector length, flags, padding. The registers
        // follow as they do in the record.
        let len = sve.get(8..10)?;
        let quads = usize::from(u16::from_le_bytes(len.try_into().ok()?)) / 16;
        // Z0 to Z31, P0 to P15, FFR.
        let payload = sve.get(16..16 + quads * (32 * 16 + 17 * 2))?;
        let all = (16 + payload.len()).next_multiple_of(16);
        bytes.extend(head(SVE_MAGIC, all));
        bytes.extend(len);
        bytes.resize(bytes.len() + 6, 0);
        bytes.extend(payload);
        bytes.resize(bytes.len().next_multiple_of(16), 0);
    }
    (bytes.len() + HEAD <= RECORDS_LEN).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::{ARGUMENT_LEN, FRAME_LEN, RECORDS, records};
    use crate::sys::ptrace::Vectors;

    fn vectors(quads: Option<u16>) -> Vectors {
        let low: Vec<u8> = (0..528).map(|n| n as u8).collect();
        let sve = quads.map(|quads| {
            let mut set = vec![0; 16 + usize::from(quads) * 546 + 16];
            set[8..10].copy_from_slice(&(quads * 16).to_le_bytes());
            set[16] = 0xAA;
            set
        });
        Vectors { low, sve, unfit: None }
    }

    #[test]
    fn the_layout_is_the_kernels() {
        // sizeof(struct rt_sigframe), and the offset at which its context's list begins.
        assert_eq!((FRAME_LEN, RECORDS, ARGUMENT_LEN % 16), (4688, 592, 0));
    }

    #[test]
    fn records_hold_what_the_sets_held() {
        let low = records(&vectors(None)).expect("it fits");
        assert_eq!(low.len(), 528);
        assert_eq!(low[..8], [0x01, 0x80, 0x50, 0x46, 16, 2, 0, 0]);
        // fpsr, fpcr; then v0.
        assert_eq!((low[8], low[12], low[16]), (512_u32 as u8, 516_u32 as u8, 0));
        let whole = records(&vectors(Some(4))).expect("it fits");
        assert_eq!(whole[528..532], [0x01, 0x45, 0x56, 0x53]);
        assert_eq!((whole[536], whole[544]), (64, 0xAA));
        assert!(whole.len().is_multiple_of(16));
        assert!(records(&vectors(Some(16))).is_none(), "2048 bits do not fit");
    }
}
