//! `trap`: the cost of a hit on the trap path in our own process, by first instruction, beside a bare
//! SIGTRAP.
//!
//! `how` is one of:
//! - `none`: the function alone.
//! - `sigtrap`: the function behind an int3 of its own, with a handler that does nothing. That is the
//!   kernel's share of any trap, and the lower bound of every trap path.
//! - `trap`: the function with a trap of ours on its first instruction. It is found among 1,000 regions and
//!   10,000 probes, one consumer does nothing, and the instruction is simulated or runs in a copy.
//!
//! Each round measures all three in turn, and changes the handlers in between.
#![allow(unsafe_code, reason = "writes code, traps on it, calls it")]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::hint::black_box;
use std::ptr::null_mut;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use trapline_insn::x86_64::Options;
use trapline_insn::x86_64::simulate::{Verdict as How, verdict};
use trapline_record::{FileId, FileOffset, RemoteAddr};
use trapline_runtime::consumer::{Consumer, ConsumerId, Flags, Hit, Installed, Verdict};
use trapline_runtime::engine::{Counts, Engine, Memory};
use trapline_runtime::epoch::Writer;
use trapline_runtime::probe::Probe;
use trapline_runtime::regions::{Access, Map, Mapping, Regions};
use trapline_runtime::registry::{FileSite, Files};
use trapline_runtime::x86_64::thread::{membarrier, register_membarrier};
use trapline_runtime::x86_64::{
    Arena, Block, Called, Copies, Placed, Role, Sites, Step, copy, install, uninstall,
};

use crate::x86_64::hits::Effort;
use crate::x86_64::row::{Figures, Row, quartiles};

/// Functions of a pointer to a word, by their first instruction.
const CASES: [(&str, &[u8]); 16] = [
    ("nop", &[0x90, 0xC3]),
    ("push", &[0x55, 0x5D, 0xC3]),
    ("endbr64", &[0xF3, 0x0F, 0x1E, 0xFA, 0xC3]),
    ("sub", &[0x48, 0x83, 0xEC, 0x18, 0x48, 0x83, 0xC4, 0x18, 0xC3]),
    ("mov", &[0x48, 0x89, 0xF8, 0xC3]),
    ("ret", &[0xC3]),
    ("lea", &[0x48, 0x8D, 0x47, 0x08, 0xC3]),
    ("load", &[0x48, 0x8B, 0x07, 0xC3]),
    ("store", &[0x48, 0x89, 0x3F, 0xC3]),
    ("test", &[0x48, 0x85, 0xFF, 0xC3]),
    ("jmp", &[0xEB, 0x00, 0xC3]),
    ("call", &[0xE8, 0x01, 0, 0, 0, 0xC3, 0xC3]),
    ("imul", &[0x48, 0x0F, 0xAF, 0xC7, 0xC3]),
    ("add-memory", &[0x48, 0x83, 0x07, 0x01, 0xC3]),
    ("load-fs", &[0x64, 0x48, 0x8B, 0x04, 0x25, 0, 0, 0, 0, 0xC3]),
    ("vector", &[0x0F, 0x10, 0x07, 0xC3]),
];
/// Bytes for one function.
const ROOM: usize = 64;
const PAGE: usize = 4096;
const REGIONS: u64 = 1000;
const PROBES: usize = 10_000;
const LINES: usize = 64;
const BATCH: u32 = 64;
/// Turns of a round. The kernel's part has fast and slow periods of tens of milliseconds, which all rows must
/// share.
const TURNS: usize = 11;
/// Rows that vary by more are measured again, at most `ATTEMPTS` times in all.
const STEADY: f64 = 0.05;
const ATTEMPTS: usize = 3;

/// Addresses of the three functions of one case.
#[derive(Clone, Copy)]
struct Functions {
    none: u64,
    sigtrap: u64,
    trap: u64,
}

/// The traps of one case, for another bench: one without a probe, and one of ours.
#[derive(Clone, Copy)]
pub(crate) struct Bed {
    functions: Functions,
    block: &'static Block,
    probe: &'static Probe,
}

impl Bed {
    /// The traps of the first case.
    pub(crate) fn new() -> Result<Self> {
        ensure!(register_membarrier(), "membarrier");
        set_bare();
        let (functions, block, probe) = build()?;
        let first = functions.first().ok_or_else(|| anyhow!("no case"))?;
        Ok(Self { functions: *first, block, probe })
    }
    /// Nanoseconds per call with a bare SIGTRAP, in the calling thread.
    pub(crate) fn bare(&self, time: Duration) -> f64 {
        calls(self.functions.sigtrap, time)
    }
    /// Nanoseconds per call with a trap of ours, in the calling thread.
    pub(crate) fn ours(&self, time: Duration) -> Result<f64> {
        install(self.block)?;
        let before = self.probe.counts().hits;
        let ns = calls(self.functions.trap, time);
        ensure!(self.probe.counts().hits > before && uninstall() == 0, "no hit");
        Ok(ns)
    }
}

/// Emits each row as soon as it is ready.
pub(crate) fn run(effort: Effort, mut emit: impl FnMut(&Row) -> Result<()>) -> Result<()> {
    ensure!(register_membarrier(), "membarrier");
    set_bare();
    let (functions, block, probe) = build()?;
    for ((case, _), functions) in CASES.iter().zip(functions) {
        for threads in effort.threads.map_or_else(|| vec![1, 2], |only| vec![only]) {
            let mut samples = sample(functions, (block, probe), threads, effort)?;
            for _ in 1..ATTEMPTS {
                if samples.values().skip(1).all(|one| spread(one) < STEADY) {
                    break;
                }
                samples = sample(functions, (block, probe), threads, effort)?;
            }
            let none = samples.get("none").map_or(f64::NAN, |none| quartiles(none).1);
            for how in ["none", "sigtrap", "trap"] {
                let (low_ns, ns, high_ns) = quartiles(samples.get(how).map_or(&[][..], Vec::as_slice));
                let mops = threads as f64 * 1000.0 / ns;
                let figures = Figures::Hit {
                    ns,
                    added_ns: ns - none,
                    mops,
                    low_ns,
                    high_ns,
                    rounds: effort.rounds * TURNS,
                };
                emit(&Row::new("trap", case, how, threads, false, figures))?;
            }
        }
    }
    Ok(())
}

/// Samples of each `how`, in interleaved rounds.
fn sample(
    functions: Functions,
    (block, probe): (&'static Block, &Probe),
    threads: usize,
    effort: Effort,
) -> Result<BTreeMap<&'static str, Vec<f64>>> {
    let turns = effort.rounds * TURNS;
    let time = Duration::from_secs_f64(effort.seconds / turns as f64);
    let mut samples: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for _ in 0..turns {
        let mut take = |how, at| samples.entry(how).or_default().push(measure(at, threads, time));
        take("none", functions.none);
        take("sigtrap", functions.sigtrap);
        install(block)?;
        let before = probe.counts().hits;
        take("trap", functions.trap);
        ensure!(probe.counts().hits > before && uninstall() == 0, "no hit");
    }
    Ok(samples)
}

/// Distance of the quartiles, as a share of the median.
fn spread(samples: &[f64]) -> f64 {
    let (low, median, high) = quartiles(samples);
    (high - low) / median
}

/// Nanoseconds per call and thread.
fn measure(function: u64, threads: usize, time: Duration) -> f64 {
    let start = Barrier::new(threads);
    let one = || {
        start.wait();
        calls(function, time)
    };
    let each: Vec<f64> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        all.into_iter().map(|thread| thread.join().unwrap_or(f64::NAN)).collect()
    });
    each.iter().sum::<f64>() / threads as f64
}

/// Calls a function of `build` for this time. Returns nanoseconds per call.
fn calls(function: u64, time: Duration) -> f64 {
    let mut word = [0_u64; 2];
    let at = word.as_mut_ptr();
    // SAFETY: `build` put a function of this type there, which accesses 16 bytes at its argument.
    let function: extern "C" fn(*mut u64) = unsafe { std::mem::transmute(function as *const ()) };
    let (begin, mut calls) = (Instant::now(), 0);
    while begin.elapsed() < time {
        (0..BATCH).for_each(|_| function(black_box(at)));
        calls += BATCH;
    }
    begin.elapsed().as_nanos() as f64 / f64::from(calls)
}

extern "C" fn nothing(_: i32) {}

/// Installs the handler of the `sigtrap` rows, with the same flags as ours.
fn set_bare() {
    // SAFETY: the handler has the type that the flags ask for.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(i32) as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        libc::sigaction(libc::SIGTRAP, &raw const action, null_mut());
    }
}

unsafe extern "C" fn empty(_: *mut c_void, _: *mut Hit) -> Verdict {
    Verdict::CONTINUE
}

fn leaked<T: Default>(n: usize) -> &'static [T] {
    Box::leak((0..n).map(|_| T::default()).collect())
}

/// Maps pages to write code into.
fn pages(count: usize) -> Result<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at =
        unsafe { libc::mmap(null_mut(), count * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    ensure!(at != libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
    Ok(at as u64)
}

fn write(at: u64, bytes: &[u8]) {
    // SAFETY: callers write into pages from `pages`, before `seal`.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
}

/// Makes pages executable instead of writable.
fn seal(at: u64, count: usize) -> Result<()> {
    // SAFETY: the pages come from `pages`.
    let sealed =
        unsafe { libc::mprotect(at as *mut c_void, count * PAGE, libc::PROT_READ | libc::PROT_EXEC) };
    ensure!(sealed == 0, "mprotect: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Makes an engine with its regions, probes and traps. The probe that is hit is one of many, in one region of
/// many.
fn build() -> Result<(Vec<Functions>, &'static Block, &'static Probe)> {
    let memory =
        Memory { lines: leaked(LINES), words: leaked(Counts::words(LINES, PROBES)), places: leaked(64) };
    let engine = Engine::new(memory, PROBES).ok_or_else(|| anyhow!("the engine's memory"))?;
    let engine: &'static Engine = Box::leak(Box::new(engine));
    let regions: &'static Regions = Box::leak(Box::new(Regions::new(leaked(2 * REGIONS as usize))));
    // SAFETY: the only writer; hits enter these lines.
    let mut writer = unsafe { Writer::new(*engine.lines(), membarrier) };
    let (mut map, mut files) = (Map::new(regions), Files::default());
    let code_pages = (CASES.len() * 3 * ROOM).div_ceil(PAGE);
    let (code, copies) = (pages(code_pages)?, pages(1)?);
    let file = |number: u64| FileId { dev: 1, inode: number };
    let mapping = |start: u64, pages: usize, number: u64| Mapping {
        start: RemoteAddr(start),
        end: RemoteAddr(start + (pages * PAGE) as u64),
        offset: FileOffset(0),
        file: file(number),
        access: Access { exec: true, ..Access::default() },
    };
    for region in 1..REGIONS {
        // Registered but not mapped: a lookup does not touch the memory that it finds.
        map.map(&mut writer, &mut files, mapping((1 << 40) + (region << 21), 16, region))
            .map_err(|error| anyhow!("{error:?}"))?;
    }
    map.map(&mut writer, &mut files, mapping(code, code_pages, REGIONS))
        .map_err(|error| anyhow!("{error:?}"))?;
    let mut site = |number: u64, offset: u64| -> Result<FileSite> {
        let number = files.number(file(number)).map_err(|error| anyhow!("{error}"))?;
        FileSite::new(number, FileOffset(offset)).map_err(|error| anyhow!("{error}"))
    };
    let probe = |number: usize, inode: u64, offset: u64| -> &'static Probe {
        Box::leak(Box::new(Probe::new(engine, number as u32, file(inode), FileOffset(offset))))
    };
    let sites: &'static Sites = Box::leak(Box::new(Sites::new(engine, regions, PROBES)));
    for number in 1..PROBES {
        let (region, offset) = (1 + number as u64 % (REGIONS - 1), 16 * (number as u64 / REGIONS));
        let called = Box::new([Called { probe: probe(number, region, offset), role: Role::Entry }]);
        let addr = (1 << 40) + (region << 21) + offset;
        sites.put(addr, Placed { step: Step::At(addr), site: site(region, offset)?, called }, &map);
    }
    let hit = probe(0, REGIONS, 0);
    let consumer = Consumer {
        entry: Some(empty),
        ret: None,
        filter: None,
        data: null_mut(),
        flags: Flags::GENERAL_REGS_ONLY,
    };
    hit.consumers().add(&mut writer, Installed { id: ConsumerId(1), consumer });
    let arena: &'static Arena = Box::leak(Box::new(Arena::new(copies, PAGE as u64)));
    let mut all = Vec::new();
    for (index, (name, bytes)) in CASES.into_iter().enumerate() {
        let none = code + (3 * index * ROOM) as u64;
        let functions = Functions { none, sigtrap: none + ROOM as u64, trap: none + 2 * ROOM as u64 };
        write(functions.none, bytes);
        write(functions.sigtrap, &[&[0xCC], bytes].concat());
        write(functions.trap, bytes);
        write(functions.trap, &[0xCC]);
        let step = match verdict(bytes, Options::default()) {
            How::Simulate(op) => Step::Simulate(op),
            How::OutOfLine => {
                let to = arena.claim(functions.trap).ok_or_else(|| anyhow!("no room for a copy"))?;
                let made = copy(bytes, functions.trap, to, Options::default())?;
                arena.describe(to, &made);
                write(to, &made.bytes);
                Step::At(to)
            }
            How::Refuse(why) => return Err(anyhow!("{name}: {why}")),
        };
        let here = site(REGIONS, functions.trap - code)?;
        // One probe at all of them; each lookup finds the site of its own case.
        let called = Box::new([Called { probe: hit, role: Role::Entry }]);
        sites.put(functions.trap, Placed { step, site: here, called }, &map);
        all.push(functions);
    }
    seal(code, code_pages)?;
    seal(copies, 1)?;
    let block: &'static Block = Box::leak(Box::new(Block { traps: sites, copies: Copies::new() }));
    block.copies.add(arena);
    Ok((all, block, hit))
}
