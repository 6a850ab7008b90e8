//! Calls that change this very process, and questions to the CPU, as x86-64 has them.

use std::io;

use super::check;
use super::ptrace::{Exposed as _, ask, get_regset, raw};

const NT_X86_XSTATE: usize = 0x202;

/// A stopped thread's general registers.
pub(crate) type Registers = libc::user_regs_struct;
/// A stopped thread's vector registers.
pub(crate) type Vectors = Vec<u8>;

pub(crate) fn regs(tid: u32) -> io::Result<Registers> {
    // SAFETY: user_regs_struct is plain integers; all-zero is a value of it.
    let mut regs: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    ask(libc::PTRACE_GETREGS, tid, 0, (&raw mut regs).addr_exposed())?;
    Ok(regs)
}
pub(crate) fn set_regs(tid: u32, regs: &Registers) -> io::Result<()> {
    raw(libc::PTRACE_SETREGS, tid, 0, (&raw const *regs).addr_exposed()).map(drop)
}

/// Vector and floating-point state in the XSAVE layout; words 464..512 belong to the kernel.
pub(crate) fn vectors(tid: u32) -> io::Result<Vectors> {
    let mut bytes = vec![0u8; 16384];
    let len = get_regset(tid, NT_X86_XSTATE, &mut bytes)?;
    bytes.truncate(len);
    Ok(bytes)
}

/// Bits of an address that its signature is in: there are none.
#[allow(clippy::unnecessary_wraps, reason = "its twin may fail")]
pub(crate) const fn signature(_: u32) -> Option<u64> {
    Some(0)
}

/// A call of ours spoils none of them.
#[allow(clippy::unnecessary_wraps, reason = "its twin may fail")]
pub(crate) const fn restore_vectors(_: u32, _: &[u8]) -> io::Result<()> {
    Ok(())
}

/// What a stopped thread's registers hold is never taken for a call's wish to be made again: `for_call` says that it is in none.
#[allow(clippy::unnecessary_wraps, reason = "its twin may fail")]
pub(crate) const fn forget_call(_: u32) -> io::Result<()> {
    Ok(())
}

/// The time-stamp counter, which generated code reads.
pub(crate) fn ticks() -> u64 {
    // SAFETY: rdtsc has no precondition on x86-64; a process that may not read it gets SIGSEGV, and ours may.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Makes the pages of a range writable, stores whole words, and makes them code again.
///
/// # Safety
/// The range is private, readable code, and stays mapped.
pub(crate) unsafe fn write_words(addr: u64, bytes: &[u8]) -> io::Result<()> {
    const PAGE: u64 = 4096;
    const CODE: i32 = libc::PROT_READ | libc::PROT_EXEC;
    if !bytes.len().is_multiple_of(8) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let start = addr & !(PAGE - 1);
    let len = (addr + bytes.len() as u64).next_multiple_of(PAGE) - start;
    // Past libc, whose mprotect may be probed.
    // SAFETY: rights are only added, then taken away again; the caller's range.
    let protect =
        |prot: i32| check(unsafe { libc::syscall(libc::SYS_mprotect, start, len, i64::from(prot)) });
    protect(CODE | libc::PROT_WRITE)?;
    for (at, word) in (addr..).step_by(8).zip(bytes.chunks_exact(8)) {
        let word =
            u64::from_le_bytes([word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7]]);
        // SAFETY: inside the range. One instruction, so that the word is never seen in parts.
        unsafe {
            core::arch::asm!("mov [{at}], {word}", at = in(reg) at, word = in(reg) word, options(nostack, preserves_flags))
        };
    }
    protect(CODE).map(drop)
}

/// rt_sigaction as the kernel takes it, past what libc would do to it.
///
/// # Safety
/// A new handler must be code with the kernel's signature that stays mapped, and its restorer too.
pub(crate) unsafe fn sigaction(signal: i32, new: Option<&[u8; 32]>) -> io::Result<[u8; 32]> {
    let mut old = [0u8; 32];
    let new = new.map_or(std::ptr::null(), |new| new.as_ptr());
    // SAFETY: both are the kernel's 32 bytes, live during the call; the action is the caller's.
    check(unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, new, old.as_mut_ptr(), 8) })?;
    Ok(old)
}

/// The components of the extended state that the system has enabled.
pub(crate) fn enabled_components() -> Option<u64> {
    const OSXSAVE: u32 = 1 << 27;
    // SAFETY: every x86-64 CPU has cpuid.
    #[allow(unused_unsafe, reason = "safe in newer toolchains")]
    let leaf = unsafe { core::arch::x86_64::__cpuid(1) };
    if leaf.ecx & OSXSAVE == 0 {
        return None;
    }
    let (low, high): (u32, u32);
    // SAFETY: OSXSAVE says that xgetbv may be used; register 0 always exists.
    unsafe {
        core::arch::asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags));
    }
    Some(u64::from(high) << 32 | u64::from(low))
}

/// Leaf 13 of cpuid.
pub(crate) fn xsave_leaf(index: u32) -> core::arch::x86_64::CpuidResult {
    // SAFETY: every x86-64 CPU has cpuid; leaf 13 reads as zero where it does not exist.
    #[allow(unused_unsafe, reason = "safe in newer toolchains")]
    let leaf = unsafe { core::arch::x86_64::__cpuid_count(13, index) };
    leaf
}
