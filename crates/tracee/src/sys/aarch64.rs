//! arm64: calls that change the code of this very process, and registers of other threads. Changes of our own
//! code do not go through libc, because its functions may be probed.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::check;
use super::ptrace::{Exposed as _, get_regset, raw};

/// Register sets (linux/elf.h).
const NT_PRSTATUS: usize = 1;
const NT_PRFPREG: usize = 2;
const NT_ARM_TLS: usize = 0x401;
const NT_ARM_SYSTEM_CALL: usize = 0x404;
const NT_ARM_SVE: usize = 0x405;
const NT_ARM_PAC_MASK: usize = 0x406;
const NT_ARM_SSVE: usize = 0x40b;
const NT_ARM_GCS: usize = 0x410;
/// Bytes; more than SVE registers of 2048 bits take.
const MOST: usize = 16384;
/// Bytes of an SVE set's header. Bit 0 of its half-word at offset 12 is set if the set holds whole registers,
/// not only their low 128 bits.
const SVE_HEADER: usize = 16;

/// A stopped thread's general registers, and its thread pointer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registers {
    /// x0 to x30.
    pub(crate) x: [u64; 31],
    pub(crate) sp: u64,
    pub(crate) pc: u64,
    pub(crate) pstate: u64,
    pub(crate) thread_pointer: u64,
}

/// A stopped thread's vector registers, in the kernel's register sets.
#[derive(Clone, Debug)]
pub(crate) struct Vectors {
    /// The low 128 bits of each register, then fpsr and fpcr.
    pub(crate) low: Vec<u8>,
    /// The whole registers, with header, if the thread is using them just now.
    pub(crate) sve: Option<Vec<u8>>,
    /// Why the thread cannot make our calls, if it cannot: it is in streaming mode, or has a guarded control
    /// stack. Neither survives a call of ours.
    pub(crate) unfit: Option<&'static str>,
}

pub(crate) fn regs(tid: u32) -> io::Result<Registers> {
    let mut bytes = [0u8; 34 * 8];
    get_regset(tid, NT_PRSTATUS, &mut bytes)?;
    let mut tls = [0u8; 8];
    get_regset(tid, NT_ARM_TLS, &mut tls)?;
    let mut words = bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes));
    let mut next = || words.next().unwrap_or(0);
    let x = std::array::from_fn(|_| next());
    let (sp, pc, pstate) = (next(), next(), next());
    Ok(Registers { x, sp, pc, pstate, thread_pointer: u64::from_le_bytes(tls) })
}

/// Sets all but the thread pointer, which never changes.
pub(crate) fn set_regs(tid: u32, regs: &Registers) -> io::Result<()> {
    let mut bytes = [0u8; 34 * 8];
    let words = regs.x.iter().chain([&regs.sp, &regs.pc, &regs.pstate]);
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    set_regset(tid, NT_PRSTATUS, &mut bytes)
}

/// Notes that the thread is in no call any more. Otherwise the kernel might take what x0 holds as a request
/// to restart a call.
pub(crate) fn forget_call(tid: u32) -> io::Result<()> {
    set_regset(tid, NT_ARM_SYSTEM_CALL, &mut (-1i32).to_le_bytes())
}

pub(crate) fn vectors(tid: u32) -> io::Result<Vectors> {
    let mut low = vec![0u8; 528];
    let len = get_regset(tid, NT_PRFPREG, &mut low)?;
    low.truncate(len);
    // Sets that this kernel or processor does not have are errors.
    let set = |set: usize| {
        let mut bytes = vec![0u8; MOST];
        let len = get_regset(tid, set, &mut bytes).ok()?;
        bytes.truncate(len);
        Some(bytes)
    };
    let whole = |bytes: &Vec<u8>| bytes.len() > SVE_HEADER && bytes[12] & 1 == 1;
    let streaming = set(NT_ARM_SSVE).is_some_and(|bytes| whole(&bytes));
    let guarded = set(NT_ARM_GCS).is_some_and(|bytes| bytes.first().is_some_and(|flags| flags & 1 == 1));
    let unfit = match (streaming, guarded) {
        (true, _) => Some("it is in streaming mode, which our calls would end"),
        (_, true) => Some("it runs under a guarded control stack, which forbids the way our calls return"),
        _ => None,
    };
    Ok(Vectors { low, sve: set(NT_ARM_SVE).filter(whole), unfit })
}

/// The bits of an address that hold its signature, as the kernel gives them: those between the program's
/// addresses and bit 55, whatever the length of addresses. 0 where nothing is signed; `None` if the thread is
/// gone.
pub(crate) fn signature(tid: u32) -> Option<u64> {
    // Two masks: for addresses of data, and of code.
    let mut masks = [0u8; 16];
    match get_regset(tid, NT_ARM_PAC_MASK, &mut masks) {
        Ok(_) => masks.last_chunk().map(|code| u64::from_le_bytes(*code)),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => None,
        // There is no such set: the processor, or the kernel, signs nothing.
        Err(_) => Some(0),
    }
}

/// Puts back what a call of ours has changed: a call preserves only 128 bits of each register.
pub(crate) fn restore_vectors(tid: u32, vectors: &Vectors) -> io::Result<()> {
    let Some(sve) = &vectors.sve else { return Ok(()) };
    set_regset(tid, NT_ARM_SVE, &mut sve.clone())
}

fn set_regset(tid: u32, set: usize, bytes: &mut [u8]) -> io::Result<()> {
    let mut vec = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    raw(libc::PTRACE_SETREGSET, tid, set, (&raw mut vec).addr_exposed()).map(drop)
}

/// The virtual counter, which generated code reads.
pub(crate) fn ticks() -> u64 {
    let ticks: u64;
    // SAFETY: reads a register that Linux lets user space read.
    unsafe {
        core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nostack, preserves_flags, nomem))
    };
    ticks
}

/// `PROT_BTI` (asm/mman.h).
const PROT_BTI: i32 = 0x10;
/// `HWCAP2_BTI` (asm/hwcap.h).
const HWCAP2_BTI: u64 = 1 << 17;

/// Bytes of a page here: 4096, 16384 or 65536.
pub(crate) fn page_size() -> u64 {
    // SAFETY: getauxval takes a number, returns one, and has no precondition.
    unsafe { libc::getauxval(libc::AT_PAGESZ) }
}

/// Whether pages can be guarded (FEAT_BTI, and a kernel that knows it).
pub(crate) fn may_guard() -> bool {
    // SAFETY: as above.
    unsafe { libc::getauxval(libc::AT_HWCAP2) & HWCAP2_BTI != 0 }
}

/// Maps a part of a file as private code, readable and executable from the start, at any free address.
pub(crate) fn map_code(file: BorrowedFd<'_>, off: u64, len: u64, guarded: bool) -> io::Result<u64> {
    let prot = libc::PROT_READ | libc::PROT_EXEC | if guarded { PROT_BTI } else { 0 };
    let (flags, fd) = (libc::MAP_PRIVATE, file.as_raw_fd());
    // SAFETY: without MAP_FIXED the kernel chooses an address at which nothing is mapped.
    check(unsafe {
        libc::syscall(libc::SYS_mmap, 0, len, i64::from(prot), i64::from(flags), i64::from(fd), off)
    })
    .map(|at| at as u64)
}

/// Moves pages over others, which are gone afterwards. A thread that reaches that address meanwhile waits,
/// and finds the old pages or the new ones.
///
/// # Safety
/// The pages at `to` may be replaced by those at `from`, which no other code uses.
pub(crate) unsafe fn move_over(from: u64, to: u64, len: u64) -> io::Result<()> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the caller guarantees that the pages at `to` may be replaced, and that those at `from` are
    // unused.
    check(unsafe { libc::syscall(libc::SYS_mremap, from, len, len, i64::from(flags), to) }).map(drop)
}
