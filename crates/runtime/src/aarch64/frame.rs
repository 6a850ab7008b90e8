//! A push over the frame of the signal in which it is simulated.
//!
//! In: a push, and a signal's frame that lies right below the stack pointer that it pushes from. Out: the
//! thread, behind the push. Linux leaves no distance below the stack pointer (AAPCS64 has no red zone), so
//! the push stores into the upper end of the frame. That end is empty room for records, unless vectors are so
//! long that their state continues in it (SVE of 1024 bits or more, SME). Then the frame is copied below the
//! handler, and the push is done. The kernel gets the copy: rt_sigreturn takes the frame that the stack
//! pointer is at.
//!
//! ```text
//!   before   sp         <- sp at `leave`, below the frame
//!            start      siginfo, 128 bytes; then the `Context`; then the extra records    `len` bytes in all
//!            to         where the push stores: inside [start, start + len)
//!
//!   in       x0 = start, x1 = len, x2 = to, x3 = from, x4 = bytes, x5 = pointer
//!   copied   sp = sp at `leave` - len              x12 = sp - start: how far the frame was moved, below 0
//!   pointer  [sp + x5] = [sp + x5] + x12           the address of the extra records
//!   pushed   x4 bytes from x3 on are at x2
//!   end      rt_sigreturn with sp at the copy; x8 = 139. It does not come back
//! ```
//!
//! Does not: return.

use core::arch::naked_asm;
use core::mem::size_of;
use core::ptr;

use trapline_insn::aarch64::{Memory, Op, simulate};

use super::context::Context;
use crate::trap::Info;

const _: () = assert!(size_of::<Info>() == 128 && size_of::<Context>() % 16 == 0);

/// The bytes of a store as a number: 4, 8 or 16 bytes. Each is read at once, since compilers turn a copy of
/// bytes into a call of the C library.
pub(super) const fn number(bytes: &[u8]) -> u128 {
    if let Some(sixteen) = bytes.first_chunk() {
        return u128::from_le_bytes(*sixteen);
    }
    match (bytes.first_chunk(), bytes.first_chunk()) {
        (Some(eight), _) => u64::from_le_bytes(*eight) as u128,
        (None, Some(four)) => u32::from_le_bytes(*four) as u128,
        (None, None) => 0,
    }
}

/// What a push stores.
#[derive(Debug, Default)]
struct Pushed {
    addr: u64,
    bytes: [u8; 16],
    len: usize,
}

impl Memory for Pushed {
    fn load(&mut self, addr: u64, _: &mut [u8]) -> Result<(), u64> {
        Err(addr)
    }
    fn store(&mut self, addr: u64, bytes: &[u8]) -> Result<(), u64> {
        *self = Self { addr, bytes: number(bytes).to_le_bytes(), len: bytes.len() };
        Ok(())
    }
}

/// Carries out the push that `context` is at, in its own signal, and goes on behind it. If the push faults,
/// it returns, and nothing was done: then nothing had to be stored here.
#[cold]
pub(super) fn push(op: &Op, context: &mut Context) {
    // The siginfo is before the context, and the extra records end the frame.
    let start = ptr::from_ref(context).addr() - size_of::<Info>();
    let Ok((to, len)) = context.extra() else { return };
    let end = to.wrapping_add(len).next_multiple_of(16) as usize;
    let pointer = ptr::from_ref(to).addr() - start;
    let mut pushed = Pushed::default();
    if simulate(*op, context.regs(), &mut pushed).is_err() {
        return;
    }
    // SAFETY: start to end is the frame that the kernel made, which is mapped and ours; the push stores into
    // it.
    unsafe { leave(start, end - start, pushed.addr, pushed.bytes.as_ptr(), pushed.len, pointer) }
}

/// Copies the frame of `len` bytes at `start` to below the stack, and corrects the pointer in it at offset
/// `pointer`. Then it copies `bytes` bytes from `from` to `to`, and returns from the signal.
///
/// # Safety
/// This is a signal's frame, a multiple of 16 bytes; the memory at `to` is mapped.
#[unsafe(naked)]
unsafe extern "C" fn leave(
    start: usize,
    len: usize,
    to: u64,
    from: *const u8,
    bytes: usize,
    pointer: usize,
) -> ! {
    naked_asm!(
        "sub x9, sp, x1",
        "mov sp, x9",
        "sub x12, x9, x0",
        "2: ldp x10, x11, [x0], #16",
        "stp x10, x11, [x9], #16",
        "subs x1, x1, #16",
        "b.ne 2b",
        "mov x9, sp",
        "ldr x10, [x9, x5]",
        "add x10, x10, x12",
        "str x10, [x9, x5]",
        "3: ldrb w10, [x3], #1",
        "strb w10, [x2], #1",
        "subs x4, x4, #1",
        "b.ne 3b",
        "mov x8, #139",
        "svc #0",
        "brk #1000",
    )
}
