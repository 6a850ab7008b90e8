//! BPF programs on the kernel's own probes. They are oracles for what perf events cannot do: returns alone
//! (an event's probe is at the entry too), sessions, registers that a handler changes, and refusals.
//!
//! In: a file, an offset in it, a process. Out: a [`Program`], attached until it is dropped, and how often it
//! ran. The programs are assembled by hand. This is written here rather than taken from `trapline-tracee`, so
//! that oracle and tested code share nothing. Numbers are those of linux/bpf.h and bpf_common.h.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::path::Path;

use crate::apart::apart;

const MAP_CREATE: i32 = 0;
const MAP_LOOKUP: i32 = 1;
const PROG_LOAD: i32 = 5;
const LINK_CREATE: i32 = 28;
const MAP_TYPE_ARRAY: u32 = 2;
const PROG_TYPE_KPROBE: u32 = 2;
const UPROBE_MULTI: u32 = 48;
/// Attach type; since Linux 6.13.
const UPROBE_SESSION: u32 = 57;

/// A BPF program that is attached to a probe of the kernel.
#[derive(Debug)]
pub struct Program(Option<Files>);

/// Its descriptors, in the thread of `apart`.
#[derive(Debug)]
struct Files {
    _link: File,
    _program: File,
    runs: File,
}

/// Counts entries of the function that begins at the offset, or its returns.
///
/// # Errors
/// The reason why the kernel cannot do this here.
pub fn counting(path: &Path, offset: u64, pid: u32, returns: bool) -> Result<Program, String> {
    attach(path, offset, pid, (UPROBE_MULTI, u32::from(returns)), &[], false)
}

/// Counts entries and returns of the function that begins at the offset. With `declines`, the entry asks the
/// kernel to skip the return.
///
/// # Errors
/// The reason why the kernel cannot do this here.
pub fn session(path: &Path, offset: u64, pid: u32, declines: bool) -> Result<Program, String> {
    attach(path, offset, pid, (UPROBE_SESSION, 0), &[], declines)
}

/// Puts words into registers at an instruction. Each element is a byte offset in `struct pt_regs`, and a
/// word. A kernel refuses it if its verifier lets no program of this kind write to its context (6.18 does:
/// `invalid bpf_context access off=80 size=8`). The error then has the verifier's text.
///
/// # Errors
/// As [`session`].
pub fn changing(path: &Path, offset: u64, pid: u32, words: &[(i16, u64)]) -> Result<Program, String> {
    let store = |&(at, word): &(i16, u64)| {
        [insn(0x18, 2, 0, 0, word as i32), (word >> 32) << 32, insn(0x7b, 1, 2, at, 0)]
    };
    attach(path, offset, pid, (UPROBE_MULTI, 0), &words.iter().flat_map(store).collect::<Vec<_>>(), false)
}

const fn insn(code: u8, to: u64, from: u64, off: i16, imm: i32) -> u64 {
    code as u64 | to << 8 | from << 12 | (off as u16 as u64) << 16 | (imm as u32 as u64) << 32
}

/// Attaches a program that runs `first`, counts one run, and returns an answer.
fn attach(
    path: &Path,
    offset: u64,
    pid: u32,
    kind: (u32, u32),
    first: &[u64],
    answer: bool,
) -> Result<Program, String> {
    let name = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|error| error.to_string())?;
    let first = first.to_vec();
    apart(move || open(&name, offset, pid, kind, first, answer)).map(|files| Program(Some(files)))
}

fn open(
    path: &CString,
    offset: u64,
    pid: u32,
    (kind, flags): (u32, u32),
    mut code: Vec<u64>,
    answer: bool,
) -> Result<Files, String> {
    let runs = owned(MAP_CREATE, &[two(MAP_TYPE_ARRAY, 4), two(8, 1)]);
    let runs = runs.map_err(|error| format!("the kernel gives no map here: {error}"))?;
    code.extend([
        insn(0x62, 10, 0, -4, 0), // *(u32 *)(r10 - 4) = 0
        insn(0x18, 1, 1, 0, runs.as_raw_fd()),
        0,
        insn(0xbf, 2, 10, 0, 0),
        insn(0x07, 2, 0, 0, -4),
        insn(0x85, 0, 0, 0, 1), // map_lookup_elem
        insn(0x15, 0, 0, 2, 0), // no such element: skip the next two
        insn(0xb7, 1, 0, 0, 1),
        insn(0xdb, 0, 1, 0, 0), // atomic add
        insn(0xb7, 0, 0, 0, i32::from(answer)),
        insn(0x95, 0, 0, 0, 0),
    ]);
    let program = load(&code, kind)?;
    let link = link(&program, kind, (path, &[offset], &[]), (flags, pid));
    let link = link.map_err(|error| format!("the kernel gives no link here: {error}"))?;
    Ok(Files { _link: link, _program: program, runs })
}

/// The error number with which the kernel answers a request for probes at these offsets, each with its
/// semaphore if any are given; 0 if it makes them.
///
/// # Errors
/// The reason why the kernel cannot do this here.
pub fn refusal(path: &Path, offsets: &[u64], semaphores: &[u64], pid: u32) -> Result<i32, String> {
    let name = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|error| error.to_string())?;
    let (offsets, semaphores) = (offsets.to_vec(), semaphores.to_vec());
    apart(move || {
        let program = load(&[insn(0xb7, 0, 0, 0, 0), insn(0x95, 0, 0, 0, 0)], UPROBE_MULTI)?;
        let made = link(&program, UPROBE_MULTI, (&name, &offsets, &semaphores), (0, pid));
        Ok(made.map_or_else(|error| error.raw_os_error().unwrap_or(-1), |_| 0))
    })
}

fn load(code: &[u64], kind: u32) -> Result<File, String> {
    let license = c"GPL";
    let mut words = vec![0_u8; 1 << 16];
    let load = [
        two(PROG_TYPE_KPROBE, code.len() as u32),
        code.as_ptr() as u64,
        license.as_ptr() as u64,
        two(1, words.len() as u32),
        words.as_mut_ptr() as u64,
        0,
        0,
        0,
        two(0, kind),
    ];
    owned(PROG_LOAD, &load)
        .map_err(|error| format!("the kernel gives no program here: {error}{}", objection(&words)))
}

fn link(
    program: &File,
    kind: u32,
    (path, offsets, semaphores): (&CString, &[u64], &[u64]),
    (flags, pid): (u32, u32),
) -> io::Result<File> {
    assert!(semaphores.is_empty() || semaphores.len() == offsets.len());
    let start = |words: &[u64]| if words.is_empty() { 0 } else { words.as_ptr() as u64 };
    let link = [
        two(program.as_raw_fd() as u32, 0),
        two(kind, 0),
        path.as_ptr() as u64,
        start(offsets),
        start(semaphores),
        0,
        two(offsets.len() as u32, flags),
        two(pid, 0),
    ];
    owned(LINK_CREATE, &link)
}

/// The verifier's objection to a program: the last of its lines that is not statistics.
fn objection(words: &[u8]) -> String {
    let text = String::from_utf8_lossy(words);
    let output_text = text.trim_end_matches('\0').lines().rfind(|line| !line.starts_with("processed "));
    output_text.map_or_else(String::new, |line| format!(": {line}"))
}

const fn two(first: u32, second: u32) -> u64 {
    first as u64 | (second as u64) << 32
}

fn bpf(command: i32, attr: &[u64]) -> i64 {
    // SAFETY: each caller passes its command's part of `union bpf_attr`, and all addresses in it are those of
    // values that outlive the call.
    unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_ptr(), size_of_val(attr)) }
}

fn owned(command: i32, attr: &[u64]) -> io::Result<File> {
    let fd = bpf(command, attr);
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just returned this descriptor, and nothing else owns it.
    Ok(unsafe { File::from_raw_fd(fd as i32) })
}

impl Program {
    /// Number of times that it ran.
    ///
    /// # Panics
    /// If the map cannot be read.
    #[must_use]
    pub fn runs(&self) -> u64 {
        let fd = self.0.as_ref().expect("there until it is dropped").runs.as_raw_fd() as u32;
        apart(move || {
            let (key, mut word) = (0_u32, 0_u64);
            let attr = [u64::from(fd), (&raw const key) as u64, (&raw mut word) as u64, 0];
            assert_eq!(bpf(MAP_LOOKUP, &attr), 0, "{}", io::Error::last_os_error());
            word
        })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let files = self.0.take();
        apart(move || drop(files));
    }
}
