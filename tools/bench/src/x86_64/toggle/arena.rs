//! Code that is changed while threads run it: function heads as compilers write them. Each head lies at every
//! offset of a cache line at which a five-byte jump fits. Each has a stub that its jump leads to.
//!
//! In: nothing. Out: functions of which `f(x)` is `x + 7` whether the jump is in place or not, and eight-byte
//! writes that put the jump there and remove it. The jump is the engine's: `E9 CC CC CC CC`. A thread that
//! was inside the window traps at the instruction where it goes on, and is sent to the copy
//! (`trapline_patch::protocol`, PATCH-2 and PATCH-5).
//! Code is mapped twice: executable and read-only for the threads that run it, writable for the writer.
#![allow(unsafe_code, reason = "makes, changes and calls machine code")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicU64, Ordering};

/// Offsets in a line at which a jump fits.
pub(crate) const OFFSETS: usize = 60;
/// Bytes for each function: two lines.
const CELL: usize = 128;
const LINE: usize = 64;
const JUMP: [u8; 5] = [0xe9, 0xcc, 0xcc, 0xcc, 0xcc];
const PAGE: usize = 4096;
/// Bytes of the stub before the displaced instructions: `mov $1, %ecx`.
const MARK: [u8; 5] = [0xb9, 1, 0, 0, 0];

/// The first instructions of a function.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) name: &'static str,
    /// Whole instructions that the jump covers.
    window: &'static [u8],
    /// What follows: `rax = x + 7`, return.
    rest: &'static [u8],
}

/// Heads as found at the entries of functions.
pub(crate) const HEADS: [Head; 5] = [
    // nopl 0(%rax,%rax) | lea 7(%rdi), %rax; ret
    Head { name: "nop", window: &[0x0f, 0x1f, 0x44, 0, 0], rest: &[0x48, 0x8d, 0x47, 7, 0xc3] },
    // nop × 5: four boundaries inside | lea 7(%rdi), %rax; ret
    Head { name: "nops", window: &[0x90; 5], rest: &[0x48, 0x8d, 0x47, 7, 0xc3] },
    // push %rbp; mov %rsp, %rbp; sub $16, %rsp | lea 7(%rdi), %rax; leave; ret
    Head {
        name: "push",
        window: &[0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x10],
        rest: &[0x48, 0x8d, 0x47, 7, 0xc9, 0xc3],
    },
    // mov $7, %eax | add %rdi, %rax; ret
    Head { name: "mov", window: &[0xb8, 7, 0, 0, 0], rest: &[0x48, 0x01, 0xf8, 0xc3] },
    // endbr64; push %rbp | lea 7(%rdi), %rax; pop %rbp; ret
    Head {
        name: "endbr64",
        window: &[0xf3, 0x0f, 0x1e, 0xfa, 0x55],
        rest: &[0x48, 0x8d, 0x47, 7, 0x5d, 0xc3],
    },
];

/// The words of one page that hold windows of one head, without their jumps and with them.
#[derive(Debug)]
pub(crate) struct Run {
    /// Bytes from the arena's start.
    at: usize,
    images: [Vec<u8>; 2],
    /// The windows in it, by their offsets in a cache line.
    pub(crate) offsets: Vec<usize>,
}

/// How the eight bytes get there.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum By {
    /// One eight-byte store.
    Store,
    /// pwrite to /proc/self/mem, as the engine writes: the kernel's copy.
    Write,
    /// The same of all words of a page, from the first window that lies in an aligned word to the last.
    Run,
    /// Two four-byte stores. The control: threads see half of it, and the run ends with status 3.
    Halves,
}

impl By {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Write => "write",
            Self::Run => "run",
            Self::Halves => "halves",
        }
    }
}

/// A function of the arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cell(usize);

/// Where the running code begins, for the trap handler; 0 before there is any.
static CODE: AtomicU64 = AtomicU64::new(0);
static TRAPS: AtomicU64 = AtomicU64::new(0);

/// The memory of all functions.
#[derive(Debug)]
pub(crate) struct Arena {
    code: u64,
    writable: u64,
    memory: File,
}

const LEN: usize = HEADS.len() * OFFSETS * CELL / PAGE * PAGE + PAGE;

/// Address that a window's jump leads to.
const fn stub_of(window: u64) -> u64 {
    window.wrapping_add(JUMP.len() as u64).wrapping_add(i32::from_le_bytes([0xcc; 4]) as i64 as u64)
}

impl Cell {
    pub(crate) const fn new(head: usize, offset: usize) -> Self {
        Self(head * OFFSETS + offset)
    }
    const fn head(self) -> &'static Head {
        &HEADS[self.0 / OFFSETS]
    }
    /// Bytes from the arena's start to the window.
    const fn window(self) -> usize {
        self.0 * CELL + self.0 % OFFSETS
    }
    /// Bytes from the arena's start to the eight bytes that are written. They lie in one cache line, as the
    /// engine chooses them.
    const fn word(self) -> usize {
        let (at, last) = (self.0 % OFFSETS, LINE - 8);
        self.0 * CELL + if at < last { at } else { last }
    }
    /// The eight bytes without the jump, and with it.
    pub(crate) fn words(self) -> [u64; 2] {
        let mut line = [0xcc; CELL];
        let at = self.0 % OFFSETS;
        let body = [self.head().window, self.head().rest].concat();
        line[at..at + body.len()].copy_from_slice(&body);
        let word = |line: &[u8; CELL]| {
            let from = self.word() % CELL;
            line[from..from + 8].iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
        };
        let old = word(&line);
        line[at..at + JUMP.len()].copy_from_slice(&JUMP);
        [old, word(&line)]
    }
}

impl Arena {
    /// Makes the functions, all without their jumps, and installs the handler of SIGTRAP. To be called once
    /// in a process.
    pub(crate) fn new() -> io::Result<Self> {
        let memory = memfd()?;
        let (stubs_off, len) = (LEN, 2 * LEN + PAGE);
        memory.set_len(len as u64)?;
        let (code, stubs) = pair(&memory, stubs_off)?;
        for cell in (0..HEADS.len() * OFFSETS).map(Cell) {
            let window = code + cell.window() as u64;
            let body = [cell.head().window, cell.head().rest].concat();
            memory.write_all_at(&body, cell.window() as u64)?;
            let stub = stub_of(window);
            let back = window + cell.head().window.len() as u64;
            let end = stub + (MARK.len() + cell.head().window.len() + 5) as u64;
            let distance = back.wrapping_sub(end) as u32;
            let text = [&MARK[..], cell.head().window, &[0xe9], &distance.to_le_bytes()].concat();
            memory.write_all_at(&text, stubs_off as u64 + (stub - stubs))?;
        }
        let writable = map(&memory, 0, LEN, 0, libc::PROT_READ | libc::PROT_WRITE)?;
        CODE.store(code, Ordering::Relaxed);
        take_signals()?;
        Ok(Self { code, writable, memory: File::options().read(true).write(true).open("/proc/self/mem")? })
    }
    /// Address of a function's first instruction.
    pub(crate) const fn entry(&self, cell: Cell) -> u64 {
        self.code + cell.window() as u64
    }
    /// Writes the eight bytes of a function.
    pub(crate) fn put(&self, cell: Cell, word: u64, by: By) -> io::Result<()> {
        let at = self.writable + cell.word() as u64;
        match by {
            By::Store => {
                // SAFETY: `at` lies in the writable mapping of LEN bytes, which lives as long as the process.
                // Eight bytes fit there, since the next function begins behind them.
                unsafe {
                    std::arch::asm!("mov qword ptr [{at}], {word}", at = in(reg) at, word = in(reg) word, options(nostack, preserves_flags))
                };
                Ok(())
            }
            By::Halves => {
                let (low, high) = (word as u32, (word >> 32) as u32);
                // SAFETY: as above.
                unsafe {
                    std::arch::asm!("mov dword ptr [{at}], {low:e}", "mov dword ptr [{at} + 4], {high:e}", at = in(reg) at, low = in(reg) low, high = in(reg) high, options(nostack, preserves_flags))
                };
                Ok(())
            }
            By::Write | By::Run => self.memory.write_all_at(&word.to_le_bytes(), at),
        }
    }
    /// The runs of a head, one for each page.
    pub(crate) fn runs(&self, head: usize) -> io::Result<Vec<Run>> {
        let cells: Vec<Cell> = (0..OFFSETS).map(|offset| Cell::new(head, offset)).collect();
        let in_word = |cell: &&Cell| cell.window() % 8 + JUMP.len() <= 8;
        let cells: Vec<&Cell> = cells.iter().filter(in_word).collect();
        let page = |cell: &Cell| cell.window() / PAGE;
        cells.chunk_by(|a, b| page(a) == page(b)).map(|cells| self.run(cells)).collect()
    }
    fn run(&self, cells: &[&Cell]) -> io::Result<Run> {
        let at = cells[0].window() / 8 * 8;
        let end = cells[cells.len() - 1].window() / 8 * 8 + 8;
        let mut old = vec![0; end - at];
        self.memory.read_exact_at(&mut old, self.writable + at as u64)?;
        let mut new = old.clone();
        for cell in cells {
            let from = cell.window() - at;
            new[from..from + JUMP.len()].copy_from_slice(&JUMP);
        }
        Ok(Run { at, images: [old, new], offsets: cells.iter().map(|cell| cell.0 % OFFSETS).collect() })
    }
    /// Writes a run, with or without its jumps, in one write.
    pub(crate) fn put_run(&self, run: &Run, jumps: bool) -> io::Result<()> {
        self.memory.write_all_at(&run.images[usize::from(jumps)], self.writable + run.at as u64)
    }
}

/// Maps the code, and the stubs at their distance from it, which is no multiple of a page. They lie where
/// programs map nothing by themselves.
fn pair(memory: &File, stubs_off: usize) -> io::Result<(u64, u64)> {
    const FROM: u64 = 0x2000_0000_0000;
    const STEP: u64 = 1 << 32;
    const TRIES: u64 = 1000;
    let protection = libc::PROT_READ | libc::PROT_EXEC;
    for code in (0..TRIES).map(|n| FROM + n * STEP) {
        let stubs = stub_of(code) / PAGE as u64 * PAGE as u64;
        let both = map(memory, code, LEN, 0, protection)
            .and_then(|_| map(memory, stubs, LEN + PAGE, stubs_off, protection));
        match both {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => return other.map(|stubs| (code, stubs)),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Calls a function. Returns its result, and whether the jump was taken.
pub(crate) fn call(entry: u64, x: u64) -> (u64, bool) {
    let (result, jumped): (u64, u32);
    // SAFETY: `entry` comes from `Arena::entry`. The code there follows the C calling convention, touches
    // only registers and its own stack, and leaves ecx alone or sets it to 1. Whether that stays so while it
    // is changed is what is measured.
    unsafe {
        std::arch::asm!("call {entry}", entry = in(reg) entry, in("rdi") x, out("rax") result, inout("ecx") 0 => jumped, clobber_abi("C"));
    }
    (result, jumped != 0)
}

/// Traps inside windows so far: threads that stood there when the jump was written.
pub(crate) fn traps() -> u64 {
    TRAPS.load(Ordering::Relaxed)
}

fn memfd() -> io::Result<File> {
    // SAFETY: the name is a C string that lives through the call.
    let fd = unsafe { libc::memfd_create(c"trapline-toggle".as_ptr(), 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nothing else owns it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Maps a part of the memory, at `at` unless that is 0.
fn map(memory: &File, at: u64, len: usize, offset: usize, protection: i32) -> io::Result<u64> {
    let fixed = if at == 0 { 0 } else { libc::MAP_FIXED_NOREPLACE };
    // SAFETY: a new mapping, which replaces nothing (NOREPLACE).
    let found = unsafe {
        libc::mmap(
            std::ptr::without_provenance_mut(at as usize),
            len,
            protection,
            libc::MAP_SHARED | fixed,
            memory.as_raw_fd(),
            offset as libc::off_t,
        )
    };
    if found == libc::MAP_FAILED {
        Err(io::Error::last_os_error())
    } else {
        Ok(found.expose_provenance() as u64)
    }
}

fn take_signals() -> io::Result<()> {
    for signal in [libc::SIGTRAP, libc::SIGILL, libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: all-zero is a sigaction without flags and with an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: the action is a live local, and its handler has the type that SA_SIGINFO asks for.
        if unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Address where a thread that trapped at `addr` goes on: the same instruction in the copy.
fn resume(code: u64, addr: u64) -> Option<u64> {
    let from = usize::try_from(addr.checked_sub(code)?).ok()?;
    let cell = Cell(from / CELL);
    let inside = from.checked_sub(cell.window()).filter(|_| cell.0 < HEADS.len() * OFFSETS)?;
    let window = code + cell.window() as u64;
    (1..JUMP.len()).contains(&inside).then(|| stub_of(window) + (MARK.len() + inside) as u64)
}

extern "C" fn on_signal(signal: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let context: *mut libc::ucontext_t = context.cast();
    // SAFETY: the kernel passes the context of the interrupted thread; no other code uses it while this
    // handler runs.
    let rip = unsafe { &mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize] };
    let at = rip.cast_unsigned();
    match resume(CODE.load(Ordering::Relaxed), at.wrapping_sub(1)) {
        Some(copy) if signal == libc::SIGTRAP => {
            TRAPS.fetch_add(1, Ordering::Relaxed);
            *rip = copy.cast_signed();
        }
        _ => {
            let message = b"a thread ran code that was never written: the write was not seen whole\n";
            // SAFETY: write and _exit take plain numbers and a live buffer, and may be called in a handler.
            unsafe {
                libc::write(2, message.as_ptr().cast(), message.len());
                libc::_exit(3);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Arena, By, Cell, HEADS, OFFSETS, call, resume, stub_of};

    #[test]
    fn every_cell_is_right_with_and_without_its_jump() {
        let arena = Arena::new().expect("memory");
        for (head, offset) in (0..HEADS.len()).flat_map(|head| (0..OFFSETS).map(move |offset| (head, offset)))
        {
            let cell = Cell::new(head, offset);
            let [old, new] = cell.words();
            for by in [By::Store, By::Write] {
                assert_eq!(call(arena.entry(cell), 35), (42, false), "{} at {offset}", HEADS[head].name);
                arena.put(cell, new, by).expect("written");
                assert_eq!(call(arena.entry(cell), 35), (42, true), "{} at {offset}", HEADS[head].name);
                arena.put(cell, old, by).expect("written");
            }
        }
    }

    #[test]
    fn only_insides_of_windows_are_served() {
        let cell = Cell::new(2, 7);
        let window = 0x1000 + cell.window() as u64;
        assert_eq!(resume(0x1000, window), None);
        assert_eq!(resume(0x1000, window + 4), Some(stub_of(window) + 9));
        assert_eq!(resume(0x1000, window + 5), None);
        assert_eq!(resume(0x1000, 0xfff), None);
        assert_eq!(resume(0x1000, u64::MAX), None);
    }
}
