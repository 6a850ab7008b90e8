//! Functions to probe, an engine, and every way to do a hit.
//!
//! In: a case and a way. Out: the address of a copy of the case's function, probed in that way by one
//! consumer that does nothing. The parts are the product's own (`trapline_runtime`, `trapline_plan`). They
//! are put together one by one here, because `trapline::inside` chooses the way itself.
#![allow(unsafe_code, reason = "writes code, traps on it, calls it")]

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Mutex;

use anyhow::{Context as _, Result, anyhow, ensure};
use trapline_insn::aarch64::{Options, encode};
use trapline_plan::aarch64::stub;
use trapline_record::{FileId, FileOffset, RemoteAddr};
use trapline_runtime::aarch64::thread::{membarrier, register_membarrier, synchronise_cores};
use trapline_runtime::aarch64::{
    Arena, Block, Called, Copies, PART_LEN, Placed, Role, Sites, Step, cache, copy, gate, install,
    without_copy,
};
use trapline_runtime::consumer::{Consumer, ConsumerId, Flags, Hit, Installed, Verdict};
use trapline_runtime::engine::{Counts, Engine, Memory};
use trapline_runtime::epoch::Writer;
use trapline_runtime::probe::Probe;
use trapline_runtime::regions::{Access, Map, Mapping, Regions};
use trapline_runtime::registry::{FileSite, Files};

use super::counter::own_marks;

std::arch::global_asm!(
    ".pushsection .text.trapline_bench, \"ax\", @progbits",
    ".balign 64",
    ".hidden bench_nop",
    ".globl bench_nop",
    "bench_nop: nop",
    "ret",
    ".hidden bench_push",
    ".globl bench_push",
    "bench_push: stp x29, x30, [sp, #-16]!",
    "ldp x29, x30, [sp], #16",
    "ret",
    ".hidden bench_deep",
    ".globl bench_deep",
    "bench_deep: stp x29, x30, [sp, #-64]!",
    "ldp x29, x30, [sp], #64",
    "ret",
    ".hidden bench_ret",
    ".globl bench_ret",
    "bench_ret: ret",
    ".popsection",
);
unsafe extern "C" {
    fn bench_nop();
    fn bench_push();
    fn bench_deep();
    fn bench_ret();
}

/// A function: its name in the tables, and its words. The last word returns.
pub(super) struct Case {
    pub(super) name: &'static str,
    at: unsafe extern "C" fn(),
    words: usize,
}

/// The cases of the reference table; and a push as functions with locals do it, which may reach into the
/// signal's frame.
pub(super) const CASES: [Case; 4] = [
    Case { name: "nop", at: bench_nop, words: 2 },
    Case { name: "push", at: bench_push, words: 3 },
    Case { name: "push-64", at: bench_deep, words: 3 },
    Case { name: "ret", at: bench_ret, words: 1 },
];

impl Case {
    /// Address of the original in this program's file.
    pub(super) fn addr(&self) -> u64 {
        self.at as *const () as u64
    }
    fn code(&self) -> &'static [u32] {
        // SAFETY: `at` has `words` words of code, as the table above says, and the code stays mapped.
        unsafe { std::slice::from_raw_parts(self.at as *const u32, self.words) }
    }
}

/// How a hit is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HitForm {
    /// By a trap. The displaced word is simulated, runs in a copy that jumps back, or runs in a copy with a
    /// trap behind it.
    Simulated,
    Copied,
    Stepped,
    /// By a jump to code that saves vector registers, or to code for a consumer that uses none.
    Jumped,
    JumpedGeneral,
}

const LINES: usize = 64;
const PROBES: usize = 64;
const PAGE: u64 = 4096;
const ROOM: u64 = 1 << 20;

/// Takes `len` bytes from the memory for code. The whole of it is mapped at once, so all of its pages are in
/// reach of one another.
fn room(len: u64) -> Result<u64> {
    static FREE: Mutex<Option<(u64, u64)>> = Mutex::new(None);
    let mut free = FREE.lock().map_err(|_| anyhow!("a panic"))?;
    let (at, end) = match *free {
        Some(free) => free,
        None => {
            let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a new mapping at an address that the kernel chooses. It is never unmapped.
            let at = unsafe { libc::mmap(null_mut(), ROOM as usize, protection, flags, -1, 0) };
            ensure!(at != libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
            (at as u64, at as u64 + ROOM)
        }
    };
    ensure!(at + len <= end, "no room for code");
    *free = Some((at + len.next_multiple_of(64), end));
    Ok(at)
}

/// Address of new code with these words.
pub(super) fn code(words: &[u32]) -> Result<u64> {
    let at = room(4 * words.len() as u64)?;
    write(at, words)?;
    Ok(at)
}

/// Writes code that no thread runs yet.
fn write(at: u64, words: &[u32]) -> Result<()> {
    // SAFETY: callers pass addresses that `room` returned, so these bytes are mapped writable and belong to
    // the caller.
    unsafe {
        std::ptr::copy_nonoverlapping(words.as_ptr(), at as *mut u32, words.len());
        cache::clean(at, 4 * words.len() as u64);
    }
    ensure!(synchronise_cores(), "membarrier");
    Ok(())
}

/// Calls a function that `code` or `probed` made.
pub(super) fn call(at: u64, argument: u64) -> u64 {
    // SAFETY: the code at `at` is a function of this type: callers pass what `code` or `probed` returned.
    let function: extern "C" fn(u64) -> u64 = unsafe { std::mem::transmute(at as *const ()) };
    function(argument)
}

unsafe extern "C" fn nothing(_: *mut c_void, _: *mut Hit) -> Verdict {
    Verdict::CONTINUE
}

fn leaked<T: Default>(n: usize) -> &'static [T] {
    Box::leak((0..n).map(|_| T::default()).collect())
}

/// An engine, its writer, and its table of traps.
pub(super) struct Bed {
    engine: &'static Engine,
    sites: &'static Sites,
    arena: &'static Arena,
    writer: Writer,
    map: Map,
    files: Files,
    probes: u32,
    last: Option<&'static Probe>,
}

impl Bed {
    /// Builds all of it, and installs the trap handlers behind the handler of the marks.
    pub(super) fn new() -> Result<Self> {
        ensure!(register_membarrier(), "membarrier");
        own_marks()?;
        let memory =
            Memory { lines: leaked(LINES), words: leaked(Counts::words(LINES, PROBES)), places: leaked(64) };
        let engine: &Engine =
            Box::leak(Box::new(Engine::new(memory, PROBES).context("the engine's memory")?));
        let regions: &Regions = Box::leak(Box::new(Regions::new(leaked(256))));
        let sites: &Sites = Box::leak(Box::new(Sites::new(engine, regions, PROBES)));
        // SAFETY: this is the engine's only writer, and hits enter these lines.
        let writer = unsafe { Writer::new(*engine.lines(), membarrier) };
        let arena: &Arena = Box::leak(Box::new(Arena::new(room(64 * PART_LEN)?, 64 * PART_LEN)));
        let block: &Block = Box::leak(Box::new(Block { traps: sites, copies: Copies::new() }));
        block.copies.add(arena);
        install(block)?;
        let (map, files) = (Map::new(regions), Files::default());
        Ok(Self { engine, sites, arena, writer, map, files, probes: 0, last: None })
    }
    /// Address of a copy of the function without a probe.
    pub(super) fn plain(&self, case: &Case) -> Result<u64> {
        code(case.code())
    }
    /// Hits of the probe that was made last.
    pub(super) fn hits(&self) -> u64 {
        self.last.map_or(0, |probe| probe.counts().hits)
    }
    /// Address of a copy of the function on a page of its own, probed.
    pub(super) fn probed(&mut self, case: &Case, returns: bool, way: HitForm) -> Result<u64> {
        let page = room(2 * PAGE)?.next_multiple_of(PAGE);
        write(page, case.code())?;
        self.mapped(page)?;
        let probe = self.probe(returns, way == HitForm::JumpedGeneral)?;
        let (entry, exit) = (0, case.words - 1);
        match (returns, exit) {
            (false, _) => self.place(page, case, entry, probe, (&[Role::Entry], way))?,
            // The function consists of its return alone.
            (true, 0) => self.place(page, case, entry, probe, (&[Role::Entry, Role::Exit], way))?,
            (true, _) => {
                self.place(page, case, entry, probe, (&[Role::Entry], way))?;
                self.place(page, case, exit, probe, (&[Role::Exit], way))?;
            }
        }
        self.last = Some(probe);
        Ok(page)
    }
    /// Registers a page of code as a mapping of a file of its own.
    fn mapped(&mut self, page: u64) -> Result<()> {
        let access = Access { exec: true, ..Access::default() };
        let (start, end) = (RemoteAddr(page), RemoteAddr(page + PAGE));
        let mapping = Mapping { start, end, offset: FileOffset(0), file: file(page), access };
        let reported = self.map.map(&mut self.writer, &mut self.files, mapping);
        reported.map(drop).map_err(|error| anyhow!("{error:?}"))
    }
    fn probe(&mut self, returns: bool, general: bool) -> Result<&'static Probe> {
        let id = self.probes;
        self.probes += 1;
        let probe: &Probe =
            Box::leak(Box::new(Probe::new(self.engine, id, file(u64::from(id)), FileOffset(0))));
        let provided = probe.instances().provide(&self.writer, Some(8), 2, false);
        provided.map_err(|error| anyhow!("{error:?}"))?;
        let consumer = Consumer {
            entry: Some(nothing),
            ret: returns.then_some(nothing),
            filter: None,
            data: null_mut(),
            flags: if general { Flags::GENERAL_REGS_ONLY } else { Flags::default() },
        };
        let installed = Installed { id: ConsumerId(u64::from(id) + 1), consumer };
        probe.consumers().add(&mut self.writer, installed);
        Ok(probe)
    }
    /// Patches one word.
    fn place(
        &mut self,
        page: u64,
        case: &Case,
        index: usize,
        probe: &'static Probe,
        (roles, way): (&[Role], HitForm),
    ) -> Result<()> {
        let at = page + 4 * index as u64;
        let word = *case.code().get(index).context("a word")?;
        let called: Box<[Called]> = roles.iter().map(|&role| Called { probe, role }).collect();
        let step = match way {
            HitForm::Simulated => {
                without_copy(word, at).with_context(|| format!("{word:08x} is not simulated"))?
            }
            HitForm::Copied => self.copied(word, at)?,
            HitForm::Stepped => self.stepped(word, at, page)?,
            HitForm::Jumped | HitForm::JumpedGeneral => return jump(word, at, &called),
        };
        let placed = Placed { step, site: self.site(page, at)?, called };
        self.sites.put(at, placed, &self.map);
        write(at, &[encode::BRK])
    }
    fn site(&mut self, page: u64, at: u64) -> Result<FileSite> {
        let number = self.files.number(file(page)).map_err(|error| anyhow!("{error}"))?;
        FileSite::new(number, FileOffset(at - page)).map_err(|error| anyhow!("{error}"))
    }
    /// Runs the word in a copy that jumps back.
    fn copied(&self, word: u32, at: u64) -> Result<Step> {
        let to = self.arena.claim(at).context("no room for a copy")?;
        let made = copy(&word.to_le_bytes(), at, to, Options::default())?;
        self.arena.describe(to, &made);
        let words = made
            .bytes
            .chunks_exact(4)
            .map(|word| word.try_into().map(u32::from_le_bytes).unwrap_or_default());
        write(to, &words.collect::<Vec<u32>>())?;
        Ok(Step::At(to))
    }
    /// Runs the word in a copy that is followed by a trap without consumers. From there the thread goes on
    /// behind the original. That is two exceptions, as where the kernel steps over a copy.
    fn stepped(&mut self, word: u32, at: u64, page: u64) -> Result<Step> {
        // On the function's own page, which is already registered.
        let to = page + PAGE / 2 + (at - page) * 4;
        let site = self.site(page, to + 4)?;
        let placed = Placed { step: Step::At(at + 4), site, called: Box::new([]) };
        self.sites.put(to + 4, placed, &self.map);
        write(to, &[word, encode::BRK])?;
        Ok(Step::At(to))
    }
}

fn file(number: u64) -> FileId {
    FileId { dev: 9, inode: number }
}

/// Patches the word with a branch to a stub that calls these consumers.
fn jump(word: u32, at: u64, called: &[Called]) -> Result<()> {
    let to = room(256)?;
    let jump: &gate::Jump = Box::leak(Box::new(gate::Jump::new(at, called)));
    let gate = gate::address(std::arch::is_aarch64_feature_detected!("sve"));
    let argument = std::ptr::from_ref(jump) as u64;
    let made = stub::call(to, (word, at), Options::default(), (gate, argument));
    write(to, &made.map_err(|why| anyhow!("{why:?}"))?.words)?;
    write(at, &[encode::b(at, to).context("the stub is out of reach")?])
}
