//! Code to place traps on, and the table of these traps, in place of the engine's regions, registry and
//! patches.

use std::cell::Cell;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, Once, OnceLock};

use trapline_insn::x86_64::simulate::{Verdict, verdict};
use trapline_insn::x86_64::{Options, Regs};
use trapline_runtime::x86_64::{Answer, Arena, Block, Copies, Sites, Step, Traps, copy, install};

/// The function that runs at a hit.
pub(crate) type Consumer = fn(&Site, &mut Regs);

pub(crate) struct Site {
    pub(crate) addr: u64,
    pub(crate) step: Step,
    pub(crate) hits: AtomicU64,
    consumer: Consumer,
}

/// Sites by address. Readers load the pointer; a writer makes a new list and leaks the old one.
struct Table {
    sites: AtomicPtr<Vec<&'static Site>>,
    guards: AtomicPtr<Vec<(u64, u64)>>,
}

impl Traps for Table {
    unsafe fn hit(&self, addr: u64, regs: &mut Regs) -> Answer<'_> {
        if let Some(engine) = ENGINE.get() {
            // SAFETY: the caller's.
            let answer = unsafe { engine.hit(addr, regs) };
            if answer != Answer::NotOurs {
                return answer;
            }
        }
        // SAFETY: null, or a list that was leaked.
        let Some(sites) = (unsafe { self.sites.load(Ordering::Acquire).as_ref() }) else {
            return Answer::NotOurs;
        };
        let Ok(index) = sites.binary_search_by_key(&addr, |site| site.addr) else {
            crate::foreign::looked(addr);
            return Answer::NotOurs;
        };
        let site = sites[index];
        site.hits.fetch_add(1, Ordering::Relaxed);
        (site.consumer)(site, regs);
        Answer::Hit(&site.step)
    }
    fn guard(&self, addr: u64) -> Option<u64> {
        // SAFETY: null, or a list that was leaked.
        let guards = unsafe { self.guards.load(Ordering::Acquire).as_ref() }?;
        guards.iter().find_map(|&(at, to)| (at == addr).then_some(to))
    }
}

static TABLE: Table =
    Table { sites: AtomicPtr::new(std::ptr::null_mut()), guards: AtomicPtr::new(std::ptr::null_mut()) };
pub(crate) static BLOCK: Block = Block { traps: &TABLE, copies: Copies::new() };
/// A real engine's table, which is searched first.
pub(crate) static ENGINE: OnceLock<&'static Sites> = OnceLock::new();
static WRITER: Mutex<()> = Mutex::new(());

pub(crate) fn map(len: usize) -> u64 {
    let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT;
    // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing that exists. It is never
    // unmapped.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at as u64
}

const ARENA: usize = 1 << 20;

thread_local! {
    static PLAIN: Cell<bool> = const { Cell::new(true) };
}

/// Sets the stack of this thread's handlers: the tests' threads come with an alternate stack that holds one
/// frame.
fn set_stack(stack: libc::stack_t) {
    // SAFETY: no stack, or memory that is never unmapped.
    assert_eq!(unsafe { libc::sigaltstack(&raw const stack, std::ptr::null_mut()) }, 0);
}

/// From now on, this thread's handlers run on a stack of their own.
pub(crate) fn alternate_stack() {
    const LEN: usize = 1 << 18;
    PLAIN.set(false);
    set_stack(libc::stack_t { ss_sp: map(LEN) as *mut libc::c_void, ss_flags: 0, ss_size: LEN });
}

/// The arena for copies; the first call installs the handlers, after the tests' own.
pub(crate) fn arena() -> &'static Arena {
    static ARENA_OF_ALL: OnceLock<Arena> = OnceLock::new();
    static INSTALLED: Once = Once::new();
    if PLAIN.get() {
        set_stack(libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 });
    }
    let arena = ARENA_OF_ALL.get_or_init(|| Arena::new(map(ARENA), ARENA as u64));
    INSTALLED.call_once(|| {
        BLOCK.copies.add(arena);
        crate::foreign::install_earlier();
        install(&BLOCK).expect("installed");
    });
    arena
}

/// Fresh executable memory that contains `code`.
pub(crate) fn code(bytes: &[u8]) -> u64 {
    static FREE: Mutex<(u64, u64)> = Mutex::new((0, 0));
    let mut free = FREE.lock().expect("unpoisoned");
    if free.0 + bytes.len() as u64 + 64 > free.1 {
        let at = map(1 << 16);
        *free = (at, at + (1 << 16));
    }
    let at = free.0;
    free.0 += (bytes.len() as u64 + 64).next_multiple_of(64);
    write(at, bytes);
    at
}

pub(crate) fn write(at: u64, bytes: &[u8]) {
    // SAFETY: callers write to memory from `code`, `map` or a machine's code, which is theirs.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
}

pub(crate) fn nothing(_: &Site, _: &mut Regs) {}

/// Decides how the instruction at `addr` is carried out, and adds it to the table; writes its copy but no
/// trap.
pub(crate) fn site(addr: u64, bytes: &[u8], consumer: Consumer) -> &'static Site {
    let arena = arena();
    let _one = WRITER.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let step = match verdict(bytes, Options::default()) {
        Verdict::Simulate(op) => Step::Simulate(op),
        Verdict::OutOfLine => {
            let to = arena.claim(addr).expect("a free slot");
            let made = copy(bytes, addr, to, Options::default()).expect("a copy");
            arena.describe(to, &made);
            write(to, &made.bytes);
            Step::At(to)
        }
        Verdict::Refuse(why) => panic!("{bytes:02x?}: {why}"),
    };
    let site: &'static Site = Box::leak(Box::new(Site { addr, step, hits: AtomicU64::new(0), consumer }));
    change(|sites| {
        sites.retain(|other| other.addr != addr);
        sites.push(site);
    });
    site
}

fn change(edit: impl FnOnce(&mut Vec<&'static Site>)) {
    // SAFETY: null, or a list that was leaked; the writer's lock is held, or there is no other thread.
    let mut sites = unsafe { TABLE.sites.load(Ordering::Acquire).as_ref() }.cloned().unwrap_or_default();
    edit(&mut sites);
    sites.sort_by_key(|site| site.addr);
    TABLE.sites.store(Box::into_raw(Box::new(sites)), Ordering::Release);
}

/// Removes a site from the table.
pub(crate) fn forget(addr: u64) {
    let _one = WRITER.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    change(|sites| sites.retain(|site| site.addr != addr));
}

pub(crate) fn guard(at: u64, to: u64) {
    arena();
    let _one = WRITER.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // SAFETY: as in `change`.
    let mut guards = unsafe { TABLE.guards.load(Ordering::Acquire).as_ref() }.cloned().unwrap_or_default();
    guards.push((at, to));
    TABLE.guards.store(Box::into_raw(Box::new(guards)), Ordering::Release);
}

/// A function with a trap at its first instruction.
pub(crate) fn trapped(bytes: &[u8], consumer: Consumer) -> &'static Site {
    let at = code(bytes);
    let site = site(at, bytes, consumer);
    write(at, &[0xCC]);
    site
}

impl Site {
    pub(crate) fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }
    /// Calls the function at the site.
    pub(crate) fn call(&self, a: u64, b: u64) -> u64 {
        call(self.addr, a, b)
    }
}

pub(crate) fn call(at: u64, a: u64, b: u64) -> u64 {
    // SAFETY: tests put functions of this kind there.
    let function: extern "C" fn(u64, u64) -> u64 = unsafe { std::mem::transmute(at as *const ()) };
    function(a, b)
}
