//! Functions with probes, and calls of them; each call goes through the engine in another way.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use trapline_plan::Callee;
use trapline_plan::x86_64::stub::{
    CallFunctions, ExtendedState, Gate, InlinedPath, call, call_arming, gate, own_trampoline_code,
    own_trampoline_code_len,
};
use trapline_record::trampolines::Trampolines;
use trapline_record::{FileId, FileOffset, RemoteAddr};
use trapline_runtime::consumer::{Consumer, ConsumerId, Flags, Handler, Hit, Installed, Verdict};
use trapline_runtime::dispatch;
use trapline_runtime::engine::{Counts, Engine, Memory};
use trapline_runtime::epoch::Writer;
use trapline_runtime::native::Regs;
use trapline_runtime::native::thread::{membarrier, register_membarrier, thread_pointer};
use trapline_runtime::probe::Probe;
use trapline_runtime::regions::{Access, Map, Mapping, Regions};
use trapline_runtime::registry::{FileSite, Files};
use trapline_runtime::trampolines::TrampolineTable;
use trapline_runtime::x86_64::general::{self, inlined};
use trapline_runtime::x86_64::{Answer, Called, Placed, Role, Sites, Step, Traps};

use trapline::inside::Gpr;

use crate::memory::{Code, LINE, named, tell, zeroed};

/// What the kernel keeps for a registered thread, kept by the test itself.
#[repr(C, align(64))]
struct Area {
    start: AtomicU32,
    cpu: AtomicU32,
    section: AtomicU64,
}
thread_local! {
    static AREA: Area =
        const { Area { start: AtomicU32::new(0), cpu: AtomicU32::new(0), section: AtomicU64::new(0) } };
}
fn area() -> u64 {
    AREA.with(|area| std::ptr::from_ref(area) as u64)
}

/// How often a thread's handlers were called; kept on its own stack.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct CallCount(Cell<u64>);

impl CallCount {
    pub(crate) fn address(&self) -> u64 {
        self.0.as_ptr() as u64
    }
    pub(crate) fn take(&self) -> u64 {
        self.0.take()
    }
}

/// Adds one to the word at the address that the thread left in r12.
unsafe extern "C" fn report_thread(_: *mut c_void, hit: *mut Hit) -> Verdict {
    // SAFETY: this hit, its registers, and a `CallCount` of the caller's.
    unsafe {
        let calls_so_far = (*(*hit).regs).get(Gpr::R12) as *mut u64;
        *calls_so_far += 1;
    }
    Verdict::CONTINUE
}

/// What COST-2 forbids: one word for all threads.
#[repr(align(64))]
struct Word(AtomicU64);
static WORD: Word = Word(AtomicU64::new(0));
unsafe extern "C" fn report_all(data: *mut c_void, hit: *mut Hit) -> Verdict {
    WORD.0.fetch_add(1, Relaxed);
    // SAFETY: the arguments of this handler, which the engine gave.
    unsafe { report_thread(data, hit) }
}

/// What a consumer waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waits {
    Entry,
    Return,
    Session,
}

/// One way to reach a consumer.
#[derive(Clone, Copy)]
struct Way {
    waits: Waits,
    saves: bool,
    arms: bool,
    handler: Handler,
    /// There are instances for its calls.
    provided: bool,
}

const RETURN: Way =
    Way { waits: Waits::Return, saves: false, arms: false, handler: report_thread, provided: true };
const SESSION: Way = Way { waits: Waits::Session, ..RETURN };
const ENTRY: Way = Way { waits: Waits::Entry, ..RETURN };

/// A call, and how many handlers it reaches.
pub(crate) type Case = (Box<dyn Fn(&CallCount) + Sync>, u64);

pub(crate) struct Cases {
    pub(crate) all: Vec<Case>,
}

/// Number of lines for threads; enough to keep two threads apart.
const LINES: usize = 4096;
const PROBES: usize = 32;
const PLACES: usize = 1 << 18;

/// Enough return trampolines to keep two CPUs apart, each of which begins its search at 64 times its number.
const TRAMPOLINES: u32 = 1 << 10;

/// Engine and memory from which functions are made.
struct Maker {
    engine: &'static Engine,
    writer: Writer,
    code: Code,
    gate: Gate,
    probes: u32,
}

fn inlined(piece: inlined::InlinedPath) -> InlinedPath {
    InlinedPath { text: piece.text, room: piece.room }
}

/// As `inside` has them, except that XGETBV is not asked what is in use; nothing is saved in the end.
fn functions() -> CallFunctions {
    CallFunctions {
        entry: dispatch::entry as *const () as u64,
        general: general::entry as *const () as u64,
        begin: general::returns::begin as *const () as u64,
        exit: dispatch::exit as *const () as u64,
        general_exit: general::returns::exit as *const () as u64,
        begins: Some(inlined(inlined::InlinedPath::begin())),
        arms: Some(inlined(inlined::InlinedPath::arm())),
        ends: Some(inlined(inlined::InlinedPath::end())),
        state: ExtendedState { mask: 7, len: 832, shows_use: false },
    }
}

impl Maker {
    fn new() -> Self {
        assert!(register_membarrier(), "membarrier, since Linux 4.14");
        let memory = Memory {
            lines: named("lines", LINES),
            words: named("counts", Counts::words(LINES, PROBES)),
            places: named("places", PLACES),
        };
        let engine = Engine::new(memory, PROBES).expect("lengths fit");
        let offset = area().wrapping_sub(thread_pointer()) as i64 as isize;
        // SAFETY: each thread that hits has its own area there, which always names one CPU and is unknown to
        // the kernel. So no sequence is ever restarted, and none needs to be, since one thread runs at a
        // time.
        let engine: &'static Engine = Box::leak(Box::new(unsafe { engine.with_rseq(offset) }));
        // SAFETY: the only writer; hits enter these lines.
        let writer = unsafe { Writer::new(*engine.lines(), membarrier) };
        let mut code = Code::new(8 << 20);
        let mut out = Vec::new();
        let gate = gate(&mut out, code.next(), &functions());
        code.put(&out);
        let mut maker = Self { engine, writer, code, gate, probes: 0 };
        maker.lend();
        maker
    }
    fn lend(&mut self) {
        let unplaced = Trampolines { code: 0, table: 0, count: TRAMPOLINES };
        let code = self.code.skip(own_trampoline_code_len(&unplaced));
        let trampolines = Trampolines { code, table: self.code.skip(unplaced.table_len()), ..unplaced };
        tell("slots", trampolines.table, trampolines.table_len());
        for (hint, word) in trampolines.hints() {
            // SAFETY: inside the table.
            unsafe { (hint as *mut u64).write(word) };
        }
        let (hints, quick) = (named("hints", 1 << 18), named("quick", 1 << 17));
        // SAFETY: zeroed except for the hints, mapped for good, and used by nothing else; probes are leaked.
        let table = unsafe { TrampolineTable::new(trampolines, hints, quick) }.expect("sizes fit");
        let table: &'static TrampolineTable = Box::leak(Box::new(table));
        let returned = dispatch::returned_to_trampoline as *const () as u64;
        let [entry, general, begin, exit, general_exit] = [returned; 5];
        let ends = Some(inlined(inlined::InlinedPath::on_return()));
        let all = CallFunctions { entry, general, begin, exit, general_exit, ends, ..functions() };
        let all = CallFunctions { begins: None, arms: None, ..all };
        let made = own_trampoline_code(&trampolines, &all, std::ptr::from_ref(table) as u64);
        let mut laid = Code::at(trampolines.code, made.bytes.len() as u64 + 64);
        laid.put(&made.bytes);
        self.engine.lend(table);
    }
    /// Makes a probe with one consumer.
    fn probe(&mut self, way: Way) -> &'static Probe {
        let (number, engine) = (self.probes, self.engine);
        self.probes += 1;
        let file = FileId { dev: 1, inode: 2 };
        let probe: &'static Probe = Box::leak(Box::new(Probe::new(engine, number, file, FileOffset(0x1000))));
        if way.provided {
            probe.instances().provide(&self.writer, Some(16), crate::CPUS as u32, true).expect("memory");
        }
        probe.instances().lie().for_each(|(at, len)| tell("instances", at, len as u64));
        let handler = |waits: [Waits; 2]| waits.contains(&way.waits).then_some(way.handler);
        let (entry, ret) =
            (handler([Waits::Entry, Waits::Session]), handler([Waits::Return, Waits::Session]));
        let flags = if way.saves { Flags::default() } else { Flags::GENERAL_REGS_ONLY };
        let consumer = Consumer { entry, ret, filter: None, data: std::ptr::null_mut(), flags };
        let id = ConsumerId(u64::from(number) + 1);
        probe.consumers().add(&mut self.writer, Installed { id, consumer });
        while !self.writer.sweep() {
            std::thread::yield_now();
        }
        // SAFETY: the functions below return to their callers, and nothing unwinds.
        unsafe { probe.set_arms(way.arms) };
        probe
    }
    /// Makes a function that returns its argument + 1, or jumps to one that does. That it leaves by the jump
    /// is seen only if it is armed.
    fn function(&mut self, way: Way, to: Option<u64>) -> u64 {
        let probe = self.probe(way);
        let only_returns = way.waits == Waits::Return && !way.saves;
        let argument = probe.address();
        let callee =
            Callee { argument, saves_state: way.saves, only_returns, arms: way.arms, by_trap: false };
        let (mut out, at) = (Vec::new(), self.code.next());
        let through = self.gate.way(false, &callee);
        let lead = if self.gate.arms(through) { call_arming } else { call };
        lead(&mut out, at, through, argument, at);
        out.extend([0x48, 0x8D, 0x47, 0x01]); // lea rax, [rdi + 1]
        if way.waits != Waits::Entry && !way.arms && to.is_none() {
            let ret = at + out.len() as u64;
            call(&mut out, ret, self.gate.way(true, &callee), argument, ret);
        }
        match to {
            Some(to) => {
                let behind = at + out.len() as u64 + 5;
                out.push(0xE9);
                out.extend((to.wrapping_sub(behind) as u32).to_le_bytes());
            }
            None => out.push(0xC3),
        }
        self.code.put(&out)
    }
    /// Makes a call of a function of that way.
    fn called(&mut self, way: Way) -> Case {
        let function = self.function(way, None);
        let calls_so_far = if way.provided { 1 + u64::from(way.waits == Waits::Session) } else { 0 };
        (Box::new(move |calls_so_far| calls(function, calls_so_far)), calls_so_far)
    }
    /// Makes traps at two addresses, an entry and a return.
    fn trapped(&mut self, way: Way) -> Case {
        const AT: u64 = 0x50_0000;
        let probe = self.probe(way);
        let regions: &'static Regions = Box::leak(Box::new(Regions::new(zeroed(4))));
        let (mut map, mut files) = (Map::new(regions), Files::default());
        let (file, offset) = probe.site();
        let access = Access { exec: true, ..Access::default() };
        let (start, end) = (RemoteAddr(AT), RemoteAddr(AT + 0x1000));
        let mapping = Mapping { start, end, offset, file, access };
        map.map(&mut self.writer, &mut files, mapping).expect("room");
        let sites: &'static Sites = Box::leak(Box::new(Sites::new(self.engine, regions, 0)));
        let file = files.number(file).expect("few");
        let roles = [(AT, Role::Entry), (AT + 16, Role::Exit)];
        let roles = &roles[..1 + usize::from(way.waits != Waits::Entry)];
        for &(at, role) in roles {
            let called = Box::new([Called { probe, role }]);
            let site = FileSite::new(file, FileOffset(offset.0 + at - AT)).expect("small");
            sites.put(at, Placed { step: Step::At(at), site, called }, &map);
        }
        let ats: Vec<u64> = roles.iter().map(|role| role.0).collect();
        let calls_so_far = ats.len() as u64;
        let run = move |calls_so_far: &CallCount| {
            let mut regs = Regs::default();
            regs.set(Gpr::R12, calls_so_far.address());
            // On the thread's own stack, as a stack pointer is.
            regs.set_sp(calls_so_far.address() & !0xFFF | 0x7F8);
            for &at in &ats {
                regs.set_ip(at);
                // SAFETY: the registers belong to no thread.
                assert!(matches!(unsafe { sites.hit(at, &mut regs) }, Answer::Hit(_)));
            }
        };
        (Box::new(run), calls_so_far)
    }
}

/// Calls from one place, so that all calls have one stack word and one return address.
#[inline(never)]
fn calls(function: u64, calls_so_far: &CallCount) {
    let value: u64;
    // SAFETY: a function made above, of the C convention; its handlers find the word in r12.
    unsafe {
        std::arch::asm!("call {}", in(reg) function, in("rdi") 41, in("r12") calls_so_far.address(),
            lateout("rax") value, clobber_abi("C"));
    }
    assert_eq!(value, 42);
}

impl Cases {
    /// All cases, in the order of `CASES`.
    pub(crate) fn new() -> Self {
        let mut maker = Maker::new();
        tell("word", &raw const WORD as u64, LINE);
        let kept = maker.called(RETURN);
        let word = maker.called(Way { handler: report_all, ..RETURN });
        // The place keeps the outer function's call, from here on for good.
        let inner = maker.function(RETURN, None);
        let outer = maker.function(RETURN, Some(inner));
        let instance: Case = (Box::new(move |calls_so_far| calls(outer, calls_so_far)), 1);
        let [session, saved] = [SESSION, Way { saves: true, ..SESSION }].map(|way| maker.called(way));
        let armed = |way| Way { arms: true, ..way };
        let trampolines = [armed(RETURN), armed(SESSION), Way { saves: true, ..armed(SESSION) }];
        let [trampoline, trampoline_session, trampoline_saved] = trampolines.map(|way| maker.called(way));
        let inner = maker.function(armed(RETURN), None);
        let outer = maker.function(armed(RETURN), Some(inner));
        let tail: Case = (Box::new(move |calls_so_far| calls(outer, calls_so_far)), 2);
        let missed = maker.called(Way { provided: false, saves: true, ..SESSION });
        let [entry, entry_saved] = [ENTRY, Way { saves: true, ..ENTRY }].map(|way| maker.called(way));
        let [trap, trap_session] = [ENTRY, SESSION].map(|way| maker.trapped(way));
        let first =
            [kept, word, instance, session, saved, trampoline, trampoline_session, trampoline_saved, tail];
        let all = first.into_iter().chain([missed, entry, entry_saved, trap, trap_session]).collect();
        Self { all }
    }
    /// Sets the CPU on which this thread is from now on.
    pub(crate) fn on_cpu(&self, cpu: u32) {
        AREA.with(|area| area.cpu.store(cpu, SeqCst));
        tell("rseq-area", area(), size_of::<Area>() as u64);
    }
}
