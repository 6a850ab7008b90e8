//! Code to place traps on, and the table of these traps, in place of the engine's regions, registry and
//! patches.

use std::cell::Cell;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, Once, OnceLock};

use trapline_insn::aarch64::{Options, encode};
use trapline_runtime::native::{
    Answer, Arena, Block, Copies, Regs, Sites, Step, Traps, cache, copy, install, thread, without_copy,
};

/// A function of a test: the words between two labels, to be copied to memory where traps may be placed.
#[derive(Clone, Copy)]
pub(crate) struct Text {
    start: unsafe extern "C" fn(),
    end: unsafe extern "C" fn(),
}

impl Text {
    pub(crate) const fn new(start: unsafe extern "C" fn(), end: unsafe extern "C" fn()) -> Self {
        Self { start, end }
    }
    pub(crate) fn words(self) -> &'static [u32] {
        let (start, end) = (self.start as *const u32, self.end as *const u32);
        // SAFETY: both labels are in one section, the second after the first, in code that is never unmapped.
        unsafe { std::slice::from_raw_parts(start, end.offset_from_unsigned(start)) }
    }
}

/// `text!(name: "…", …)`: a function in assembly, as a [`Text`].
macro_rules! text {
    ($name:ident: $($line:literal),+ $(,)?) => {{
        mod text {
            std::arch::global_asm!(
                concat!(".globl trapline_test_", stringify!($name)),
                concat!("trapline_test_", stringify!($name), ":"),
                $($line,)+
                concat!(".globl trapline_test_", stringify!($name), "_end"),
                concat!("trapline_test_", stringify!($name), "_end: nop"),
            );
        }
        unsafe extern "C" {
            #[link_name = concat!("trapline_test_", stringify!($name))]
            fn start();
            #[link_name = concat!("trapline_test_", stringify!($name), "_end")]
            fn end();
        }
        $crate::site::Text::new(start, end)
    }};
}
pub(crate) use text;

/// The function that runs at a hit.
pub(crate) type Consumer = fn(&Site, &mut Regs);

pub(crate) struct Site {
    pub(crate) addr: u64,
    pub(crate) step: Step,
    hits: AtomicU64,
    consumer: Consumer,
}

/// Sites by address. Readers load the pointer; a writer makes a new list and leaks the old one.
struct Table(AtomicPtr<Vec<&'static Site>>);

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
        let Some(sites) = (unsafe { self.0.load(Ordering::Acquire).as_ref() }) else {
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
}

static TABLE: Table = Table(AtomicPtr::new(std::ptr::null_mut()));
pub(crate) static BLOCK: Block = Block { traps: &TABLE, copies: Copies::new() };
/// A real engine's table, which is searched first.
pub(crate) static ENGINE: OnceLock<&'static Sites> = OnceLock::new();
static WRITER: Mutex<()> = Mutex::new(());

/// Memory for all code and all copies of the tests, within reach of one another.
const ROOM: usize = 16 << 20;
const ARENA: u64 = 1 << 20;

pub(crate) fn map(len: usize) -> u64 {
    let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing that exists. It is never
    // unmapped.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at as u64
}

/// This many bytes of the memory for code, in whole cache lines.
pub(crate) fn room(len: u64) -> u64 {
    static FREE: Mutex<Option<(u64, u64)>> = Mutex::new(None);
    let mut free = FREE.lock().expect("unpoisoned");
    let (at, end) = *free.get_or_insert_with(|| {
        let start = map(ROOM);
        (start, start + ROOM as u64)
    });
    *free = Some((at + len.next_multiple_of(64), end));
    assert!(at + len <= end);
    at
}

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
    let arena = ARENA_OF_ALL.get_or_init(|| Arena::new(room(ARENA), ARENA));
    INSTALLED.call_once(|| {
        BLOCK.copies.add(arena);
        crate::foreign::install_earlier();
        install(&BLOCK).expect("installed");
    });
    arena
}

/// Fresh executable memory that contains `words`.
pub(crate) fn code(words: &[u32]) -> u64 {
    let at = room(4 * words.len() as u64);
    write(at, words);
    at
}

/// Writes code; if a thread may run it meanwhile, a single word of the kinds that may be changed live.
pub(crate) fn write(at: u64, words: &[u32]) {
    for (address, &word) in (at..).step_by(4).zip(words) {
        // SAFETY: callers write to memory from `room` or `map`, which is theirs.
        unsafe { (*(address as *const std::sync::atomic::AtomicU32)).store(word, Ordering::Relaxed) };
    }
    // SAFETY: the same.
    unsafe { cache::clean(at, 4 * words.len() as u64) };
    assert!(thread::synchronise_cores(), "membarrier");
}

pub(crate) fn nothing(_: &Site, _: &mut Regs) {}

/// The simulation of the instruction at `addr`.
pub(crate) fn simulated(addr: u64) -> Step {
    // SAFETY: this is code of the test.
    without_copy(unsafe { *(addr as *const u32) }, addr).expect("simulated")
}

fn copy_of(arena: &Arena, addr: u64, word: u32) -> Step {
    let to = arena.claim(addr).expect("a free slot");
    let made = copy(&word.to_le_bytes(), addr, to, Options::default()).expect("a copy");
    arena.describe(to, &made);
    let words = made.bytes.chunks_exact(4).map(|bytes| u32::from_le_bytes(bytes.try_into().expect("four")));
    write(to, &words.collect::<Vec<u32>>());
    Step::At(to)
}

/// Decides how the instruction at `addr` is carried out, and adds it to the table; writes its copy but no
/// trap.
pub(crate) fn site(addr: u64, word: u32, consumer: Consumer) -> &'static Site {
    let arena = arena();
    let _one = WRITER.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let step = without_copy(word, addr).unwrap_or_else(|| copy_of(arena, addr, word));
    let site: &'static Site = Box::leak(Box::new(Site { addr, step, hits: AtomicU64::new(0), consumer }));
    change(|sites| {
        sites.retain(|other| other.addr != addr);
        sites.push(site);
    });
    site
}

fn change(edit: impl FnOnce(&mut Vec<&'static Site>)) {
    // SAFETY: null, or a list that was leaked; the writer's lock is held.
    let mut sites = unsafe { TABLE.0.load(Ordering::Acquire).as_ref() }.cloned().unwrap_or_default();
    edit(&mut sites);
    sites.sort_by_key(|site| site.addr);
    TABLE.0.store(Box::into_raw(Box::new(sites)), Ordering::Release);
}

/// Removes a site from the table.
pub(crate) fn forget(addr: u64) {
    let _one = WRITER.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    change(|sites| sites.retain(|site| site.addr != addr));
}

/// A copy of the function, with a trap on its word number `index`.
pub(crate) fn trapped_at(text: Text, index: usize, consumer: Consumer) -> (u64, &'static Site) {
    let at = code(text.words());
    let addr = at + 4 * index as u64;
    let site = site(addr, text.words()[index], consumer);
    write(addr, &[encode::BRK]);
    (at, site)
}

/// The same, with the trap on its first word.
pub(crate) fn trapped(text: Text, consumer: Consumer) -> &'static Site {
    trapped_at(text, 0, consumer).1
}

impl Site {
    pub(crate) fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }
    /// Whether it is carried out without a copy.
    pub(crate) fn is_simulated(&self) -> bool {
        matches!(self.step, Step::Simulate(_)) || self.step == Step::At(self.addr + 4)
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
