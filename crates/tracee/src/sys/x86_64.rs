//! x86-64: calls that change this very process, registers of other threads, and queries of the CPU.

use core::arch::x86_64::{__cpuid_count, CpuidResult};
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

/// The bits of an address that hold its signature: there are none.
#[allow(clippy::unnecessary_wraps, reason = "its twin may fail")]
pub(crate) const fn signature(_: u32) -> Option<u64> {
    Some(0)
}

/// Does nothing: a call of ours changes no vector register.
#[allow(clippy::unnecessary_wraps, reason = "its twin may fail")]
pub(crate) const fn restore_vectors(_: u32, _: &[u8]) -> io::Result<()> {
    Ok(())
}

/// Does nothing: the kernel never takes a stopped thread's registers as a request to restart a call, since
/// `for_call` marks the thread as being in none.
#[allow(clippy::unnecessary_wraps, reason = "its twin may fail")]
pub(crate) const fn forget_call(_: u32) -> io::Result<()> {
    Ok(())
}

/// The time-stamp counter, which generated code reads.
pub(crate) fn ticks() -> u64 {
    // SAFETY: rdtsc has no precondition on x86-64. A process without the right to it gets SIGSEGV; ours has
    // the right.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Makes the pages of a range writable, stores whole words, and makes them code again.
///
/// # Safety
/// The range must be private, readable code, and stay mapped.
pub(crate) unsafe fn write_words(addr: u64, bytes: &[u8]) -> io::Result<()> {
    const PAGE: u64 = 4096;
    const CODE: i32 = libc::PROT_READ | libc::PROT_EXEC;
    if !bytes.len().is_multiple_of(8) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let start = addr & !(PAGE - 1);
    let len = (addr + bytes.len() as u64).next_multiple_of(PAGE) - start;
    // Not through libc: a probe may be on its mprotect.
    // SAFETY: rights are only added and then taken away again; the caller guarantees that the range is
    // private code and stays mapped.
    let protect =
        |prot: i32| check(unsafe { libc::syscall(libc::SYS_mprotect, start, len, i64::from(prot)) });
    protect(CODE | libc::PROT_WRITE)?;
    for (at, word) in (addr..).step_by(8).zip(bytes.chunks_exact(8)) {
        let word =
            u64::from_le_bytes([word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7]]);
        // SAFETY: the address is inside the range. It is one instruction, so no thread sees a part of the
        // word.
        unsafe {
            core::arch::asm!("mov [{at}], {word}", at = in(reg) at, word = in(reg) word, options(nostack, preserves_flags))
        };
    }
    protect(CODE).map(drop)
}

/// Calls rt_sigaction directly, because libc's function would change what is given to the kernel.
///
/// # Safety
/// A new handler must be code with the kernel's signature that stays mapped. The same holds for its restorer.
pub(crate) unsafe fn sigaction(signal: i32, new: Option<&[u8; 32]>) -> io::Result<[u8; 32]> {
    let mut old = [0u8; 32];
    let new = new.map_or(std::ptr::null(), |new| new.as_ptr());
    // SAFETY: both are the kernel's 32 bytes and live during the call; the caller guarantees that the new
    // action is valid.
    check(unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, new, old.as_mut_ptr(), 8) })?;
    Ok(old)
}

/// The components of the extended state that the system has enabled.
pub(crate) fn enabled_components() -> Option<u64> {
    const OSXSAVE: u32 = 1 << 27;
    if cpuid(1, 0).ecx & OSXSAVE == 0 {
        return None;
    }
    let (low, high): (u32, u32);
    // SAFETY: OSXSAVE is set, so xgetbv may be used; register 0 always exists.
    unsafe {
        core::arch::asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags));
    }
    Some(u64::from(high) << 32 | u64::from(low))
}

fn cpuid(leaf: u32, index: u32) -> CpuidResult {
    // SAFETY: every x86-64 CPU has cpuid; leaves that do not exist read as zero, or as another leaf.
    #[allow(unused_unsafe, reason = "safe in newer toolchains")]
    unsafe {
        __cpuid_count(leaf, index)
    }
}

/// Leaf 13 of cpuid; reads as zero for components that do not exist.
pub(crate) fn xsave_leaf(index: u32) -> CpuidResult {
    cpuid(13, index)
}

/// The end of XSAVE component `index` (2 and up) in the standard layout, in bytes.
pub(crate) fn xsave_end(index: u32) -> usize {
    let leaf = xsave_leaf(index);
    leaf.ebx as usize + leaf.eax as usize
}

/// Whether `rdpid` exists.
pub(crate) fn has_rdpid() -> bool {
    cpuid(7, 0).ecx >> 22 & 1 == 1
}

/// Whether this is a virtual machine on an Intel processor.
pub(crate) fn is_guest_on_intel() -> bool {
    let vendor = cpuid(0, 0);
    let is_intel = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() == b"GenuineIntel";
    is_intel && cpuid(1, 0).ecx >> 31 == 1
}

/// A signal's frame that the kernel made, for tests: its first words, from the restorer's address on.
#[cfg(test)]
pub(crate) fn frame_of_a_signal() -> Vec<u64> {
    use std::sync::Mutex;
    static FOUND: Mutex<[u64; 64]> = Mutex::new([0; 64]);
    extern "C" fn handler(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the context lies right above the restorer's address, and is larger than that.
        let words = unsafe { std::slice::from_raw_parts(context.cast::<u64>().sub(1), 64) };
        FOUND.try_lock().expect("one signal").copy_from_slice(words);
    }
    // SAFETY: the handler has the signature that the flags state, and stays.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGURG, &raw const action, std::ptr::null_mut()), 0);
        assert_eq!(libc::raise(libc::SIGURG), 0);
    }
    FOUND.lock().expect("the handler has returned").to_vec()
}
