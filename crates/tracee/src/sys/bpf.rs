//! bpf(2): maps, programs, and uprobe_multi links.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use super::{check, fd};

/// BPF_MAP_TYPE_PERF_EVENT_ARRAY.
pub(crate) const PERF_EVENT_ARRAY: u32 = 4;
/// BPF_MAP_TYPE_HASH.
pub(crate) const HASH: u32 = 1;
/// BPF_MAP_TYPE_PERCPU_ARRAY.
pub(crate) const PERCPU_ARRAY: u32 = 6;
const MAP_CREATE: i32 = 0;
const MAP_LOOKUP: i32 = 1;
const MAP_UPDATE: i32 = 2;
const PROG_LOAD: i32 = 5;
const LINK_CREATE: i32 = 28;
const PROG_TYPE_KPROBE: u32 = 2;
const PROG_TYPE_PERF_EVENT: u32 = 7;
const TRACE_UPROBE_MULTI: u32 = 48;

/// One instruction, as the kernel takes it.
pub(crate) type Insn = u64;

/// Encodes an instruction.
pub(crate) const fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Insn {
    code as u64
        | (dst as u64) << 8
        | (src as u64) << 12
        | (off as u16 as u64) << 16
        | (imm as u32 as u64) << 32
}
/// The frame pointer: it points to the end of the program's stack.
pub(crate) const FP: u8 = 10;
/// Calls a helper by its number.
pub(crate) const fn call(helper: i32) -> Insn {
    insn(0x85, 0, 0, 0, helper)
}
/// `dst = src`.
pub(crate) const fn mov(dst: u8, src: u8) -> Insn {
    insn(0xbf, dst, src, 0, 0)
}
/// `dst = imm`.
pub(crate) const fn mov_imm(dst: u8, imm: i32) -> Insn {
    insn(0xb7, dst, 0, 0, imm)
}
/// `dst += imm`.
pub(crate) const fn add_imm(dst: u8, imm: i32) -> Insn {
    insn(0x07, dst, 0, 0, imm)
}
/// `*(u64 *)(fp + off) = src`.
pub(crate) const fn spill(off: i16, src: u8) -> Insn {
    insn(0x7b, FP, src, off, 0)
}

fn bpf<T>(command: i32, attr: &T) -> io::Result<i64> {
    // SAFETY: each caller in this module passes a repr(C) struct laid out as the command's part of `union
    // bpf_attr`. The addresses in it are those of slices that live until the call returns.
    check(unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attr), size_of::<T>()) })
}

/// As [`bpf`], for a command that makes a descriptor.
fn make<T>(command: i32, attr: &T) -> io::Result<OwnedFd> {
    let made = bpf(command, attr)?;
    // SAFETY: each caller in this module passes a command that returns a new descriptor.
    unsafe { fd::owned(made) }
}

/// An entry of a map: where its key and its value are.
#[repr(C)]
struct Element {
    map: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

impl Element {
    fn new<T>(map: BorrowedFd<'_>, key: &u32, value: *const T) -> Self {
        let map = map.as_raw_fd() as u32;
        let key = std::ptr::from_ref(key).expose_provenance() as u64;
        Self { map, pad: 0, key, value: value.expose_provenance() as u64, flags: 0 }
    }
}

pub(crate) fn map(kind: u32, key_size: u32, value_size: u32, entries: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attr {
        words: [u32; 4],
    }
    make(MAP_CREATE, &Attr { words: [kind, key_size, value_size, entries] })
}

/// Reads one entry of a per-CPU array: the words of all CPUs. `cpus` is the number of possible CPUs.
pub(crate) fn lookup(map: BorrowedFd<'_>, key: u32, cpus: usize) -> io::Result<Vec<u64>> {
    let mut values = vec![0u64; cpus];
    bpf(MAP_LOOKUP, &Element::new(map, &key, values.as_mut_ptr()))?;
    Ok(values)
}

/// Puts a descriptor into an array.
pub(crate) fn put(map: BorrowedFd<'_>, key: u32, value: BorrowedFd<'_>) -> io::Result<()> {
    let value = value.as_raw_fd();
    bpf(MAP_UPDATE, &Element::new(map, &key, &raw const value)).map(drop)
}

/// Loads a program for uprobe_multi; an error contains the end of the verifier's log.
pub(crate) fn program(code: &[Insn]) -> io::Result<OwnedFd> {
    load(code, PROG_TYPE_KPROBE, TRACE_UPROBE_MULTI)
}

/// Loads a program for the overflows of perf events; errors as above.
pub(crate) fn overflow_program(code: &[Insn]) -> io::Result<OwnedFd> {
    load(code, PROG_TYPE_PERF_EVENT, 0)
}

fn load(code: &[Insn], kind: u32, attach_type: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attr {
        kind: u32,
        count: u32,
        code: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log: u64,
        version: u32,
        flags: u32,
        name: [u8; 16],
        ifindex: u32,
        attach_type: u32,
    }
    let license = c"GPL";
    let mut log = vec![0u8; 1 << 16];
    let mut attr = Attr {
        kind,
        count: code.len() as u32,
        code: code.as_ptr().expose_provenance() as u64,
        license: license.as_ptr().expose_provenance() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        version: 0,
        flags: 0,
        name: *b"trapline\0\0\0\0\0\0\0\0",
        ifindex: 0,
        attach_type,
    };
    let first = make(PROG_LOAD, &attr);
    let Err(error) = first else { return first };
    if error.raw_os_error() == Some(libc::EPERM) {
        return Err(error);
    }
    (attr.log_level, attr.log_size) = (1, log.len() as u32);
    attr.log = log.as_mut_ptr().expose_provenance() as u64;
    make(PROG_LOAD, &attr).map_err(|e| {
        let text = String::from_utf8_lossy(&log);
        let text = text.trim_end_matches('\0').trim_end();
        let last = text.lines().rev().find(|l| !l.starts_with("processed")).unwrap_or("");
        io::Error::new(e.kind(), format!("{e} ({last})"))
    })
}

/// The sites of a uprobe_multi link.
pub(crate) struct Sites<'a> {
    /// The file's path, NUL-terminated.
    pub(crate) path: &'a std::ffi::CStr,
    /// File offset of each site.
    pub(crate) offsets: &'a [u64],
    /// For each site the file offset of a `u16` that the kernel keeps above 0 while the link exists; 0 for
    /// none.
    pub(crate) semaphores: &'a [u64],
    /// For each site a number that the program can ask for.
    pub(crate) cookies: &'a [u64],
    /// The process to which it is limited; 0 for all processes.
    pub(crate) pid: u32,
    /// Whether the program runs at returns instead of entries.
    pub(crate) returns: bool,
}

pub(crate) fn uprobe_multi(program: BorrowedFd<'_>, sites: &Sites<'_>) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attr {
        program: u32,
        target: u32,
        attach_type: u32,
        flags: u32,
        path: u64,
        offsets: u64,
        ref_counters: u64,
        cookies: u64,
        count: u32,
        multi_flags: u32,
        pid: u32,
        pad: u32,
    }
    make(
        LINK_CREATE,
        &Attr {
            program: program.as_raw_fd() as u32,
            target: 0,
            attach_type: TRACE_UPROBE_MULTI,
            flags: 0,
            path: sites.path.as_ptr().expose_provenance() as u64,
            offsets: sites.offsets.as_ptr().expose_provenance() as u64,
            ref_counters: sites.semaphores.as_ptr().expose_provenance() as u64,
            cookies: sites.cookies.as_ptr().expose_provenance() as u64,
            count: sites.offsets.len() as u32,
            multi_flags: u32::from(sites.returns),
            pid: sites.pid,
            pad: 0,
        },
    )
}
