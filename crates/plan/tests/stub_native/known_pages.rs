//! Texts in pages that the kernel has read for this thread: they are loaded without a system call, and only there.

use std::sync::atomic::{AtomicU64, Ordering};

use trapline_plan::x86_64::stub::{Liveness, Machine, PageNotes, Rings, Traced, trace};
use trapline_record::control::at;
use trapline_record::pages::{ENTRIES, FILLED, STRIDE_BITS};
use trapline_record::ring::{HEAD, RecordKind, RingArea, TAIL, TEXT_BYTES, TEXT_WORDS};
use trapline_tests::alone;

use crate::arena::{LINES, get, machines, set};
use crate::records::{Reader, every_hit, rings_for};
use crate::state::{Random, State, back, tl_run};
use crate::texts::EFAULT;
use crate::traps::Served;

/// A stub that copies what the first argument points to, with tables of known pages, and a handler of faults
/// that serves it.
struct Loading {
    served: Served,
    rings: Rings,
    machine: Machine,
    tables: u64,
    code: u64,
    random: Random,
}

impl Loading {
    fn new(machine: Machine) -> Self {
        Self::of(machine, &back())
    }
    fn of(machine: Machine, body: &[u8]) -> Self {
        let mut served = Served::new();
        let arena = &mut served.arena;
        let slot = RingArea::slot_for_texts(1);
        let (control, tables) = (arena.data(), arena.rows() + (8 << 20));
        let known = PageNotes { tables, handler: control + at::FAULT_HANDLER };
        let rings = Rings { known: Some(known), ..rings_for(arena, &machine, 64 * slot, slot) };
        let traced = Traced {
            site: Liveness { flags_dead: false, dead: 0, red_zone_live: true },
            texts: 1,
            ..every_hit(&machine, &rings, arena.word(0))
        };
        let mut out = Vec::new();
        let pending = trace(&mut out, arena.next(), &traced, RecordKind::Entry, 6);
        out.extend(body);
        let fixups = pending.finish(&mut out, None).expect("code");
        let code = arena.put(&out);
        assert_eq!(fixups.len(), TEXT_BYTES / 8, "each load may fault");
        served.guards(served.segment(0), &fixups);
        Self { served, rings, machine, tables, code, random: Random(0x7e47_0002_4321_9876) }
    }
    fn serve(&self) {
        [libc::SIGSEGV, libc::SIGBUS].into_iter().for_each(|signal| self.served.install(signal));
        set(self.served.arena.data() + at::FAULT_HANDLER, self.served.handler.entry);
    }
    /// One hit. Returns the kernel's answer, or the same from our own loads. Registers and red zone must be
    /// as they were.
    fn hit(&mut self, pointer: u64) -> (i64, Vec<u8>) {
        let mut reader = Reader::new(&self.rings);
        let view = crate::records::view(&self.rings);
        for (ring, tail) in (0..).zip(&mut reader.tails) {
            *tail = view.get(self.rings.area.ring(ring));
        }
        let mut state: State = self.random.state();
        state.regs[7] = pointer;
        let before = state.clone();
        // SAFETY: the code runs from tl_run's loaded state to tl_back, and one thread of this process does
        // so.
        unsafe { tl_run(self.code, &mut state) };
        let same = state.regs == before.regs && state.red == before.red && state.zmm == before.zmm;
        assert!(same && (state.flags ^ before.flags) & crate::state::FLAGS == 0);
        let mut seen = Vec::new();
        for (ring, tail) in (0..).zip(&mut reader.tails) {
            let each = |_: &trapline_record::ring::Record, word: &dyn Fn(u64) -> u64| {
                let bytes = (1..TEXT_WORDS as u64).flat_map(|n| word(n).to_le_bytes()).collect();
                seen.push((word(0).cast_signed(), bytes));
            };
            self.rings.area.take_with_texts(view, ring, tail, each).expect("a head that can be");
        }
        let [(answer, bytes)] = &mut seen[..] else { panic!("{} records", seen.len()) };
        (*answer, std::mem::take(bytes))
    }
    fn faults(&self) -> u64 {
        get(self.served.segment(0) + at::GUARD_HITS)
    }
    /// Number of entries in all tables.
    fn noted(&self) -> usize {
        let tables = (0..u64::from(LINES) - 1).map(|cpu| self.tables + (cpu << STRIDE_BITS));
        let entries = |table: u64| (0..ENTRIES).filter(move |n| get(table + n * 8) != 0).count();
        tables.inspect(|&table| assert_eq!(get(table + FILLED) != 0, entries(table) != 0)).map(entries).sum()
    }
    fn forget(&self) {
        (0..(u64::from(self.machine.lines) << STRIDE_BITS) / 8).for_each(|n| set(self.tables + n * 8, 0));
    }
}

/// This many pages of 'p', and behind them an inaccessible one, so that no other mapping can come to lie
/// there.
fn pages(count: usize) -> u64 {
    let len = count as u64 * 4096;
    let at = crate::arena::map(len + 4096, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE);
    // SAFETY: our own mapping, to which nothing refers yet.
    unsafe {
        core::ptr::write_bytes(at as *mut u8, b'p', count * 4096);
        assert_eq!(libc::mprotect((at + len) as *mut libc::c_void, 4096, libc::PROT_NONE), 0);
    }
    at
}

/// Binds this thread to its present CPU, so that its table is the one that was filled.
fn stay() {
    // SAFETY: the set is a local; the CPU is the one that this thread runs on.
    unsafe {
        let mut set: libc::cpu_set_t = core::mem::zeroed();
        libc::CPU_SET(libc::sched_getcpu() as usize, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set), 0);
    }
}

#[test]
fn pages_that_the_kernel_read_are_loaded_from() {
    alone("known_pages::pages_that_the_kernel_read_are_loaded_from", || {
        machines().into_iter().for_each(read_pages)
    });
}

fn read_pages(machine: Machine) {
    stay();
    let mut loading = Loading::new(machine);
    loading.serve();
    let (at, whole) = (pages(3), (TEXT_BYTES as i64, vec![b'p'; TEXT_BYTES]));
    for (pointer, noted) in [(at, 1), (at + 100, 1), (at + 4096 - 63, 2), (at + 8192, 3)] {
        assert_eq!((loading.hit(pointer), loading.noted()), (whole.clone(), noted), "{:#x}", pointer - at);
        assert_eq!(loading.hit(pointer), whole);
    }
    for pointer in [0, 1, 1 << 63, u64::MAX, u64::MAX - 62, at + 3 * 4096] {
        for _ in 0..2 {
            assert_eq!(loading.hit(pointer).0, -EFAULT, "{pointer:#x}");
        }
    }
    assert_eq!((loading.noted(), loading.faults()), (3, 0), "what was never good does not fault");
    // Loads read what is there now.
    // SAFETY: our own mapping.
    unsafe { core::ptr::write_bytes((at + 100) as *mut u8, b'q', 20) };
    let (answer, bytes) = loading.hit(at + 96);
    assert_eq!((answer, &bytes[..5], &bytes[23..25]), (TEXT_BYTES as i64, &b"ppppq"[..], &b"qp"[..]));
}

#[test]
fn pages_that_went_away_are_no_harm() {
    alone("known_pages::pages_that_went_away_are_no_harm", || machines().into_iter().for_each(pages_gone));
}

fn pages_gone(machine: Machine) {
    stay();
    let mut loading = Loading::new(machine);
    loading.serve();
    let at = pages(3);
    let whole = (TEXT_BYTES as i64, vec![b'p'; TEXT_BYTES]);
    [at, at + 4096 - 32, at + 8192].into_iter().for_each(|pointer| assert_eq!(loading.hit(pointer), whole));
    // SAFETY: our own mapping, to which nothing refers.
    unsafe { libc::mprotect((at + 4096) as *mut libc::c_void, 4096, libc::PROT_NONE) };
    // In the middle: some words were copied when the next load faulted.
    let middles = (1..TEXT_BYTES as u64 / 8).flat_map(|words| [8 * words, 8 * words + 3]);
    for (n, bytes) in (1..).zip(middles) {
        assert_eq!((loading.hit(at + 4096 - bytes).0, loading.faults()), (bytes as i64, n));
    }
    let before = loading.faults();
    assert_eq!(before, 14);
    assert_eq!((loading.hit(at + 4096 + 9).0, loading.faults()), (-EFAULT, before + 1));
    // SAFETY: as above.
    unsafe { libc::munmap((at + 8192) as *mut libc::c_void, 4096) };
    assert_eq!((loading.hit(at + 8192).0, loading.faults()), (-EFAULT, before + 2));
    // A file that was truncated: SIGBUS.
    // SAFETY: our own file without a name, freshly mapped.
    let (file, at) = unsafe {
        let file = libc::memfd_create(c"cut".as_ptr(), 0);
        assert_eq!(libc::ftruncate(file, 4096), 0);
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        (file, libc::mmap(core::ptr::null_mut(), 4096, prot, libc::MAP_SHARED, file, 0) as u64)
    };
    assert_eq!(loading.hit(at).0, TEXT_BYTES as i64);
    // SAFETY: as above.
    unsafe { assert_eq!(libc::ftruncate(file, 0), 0) };
    assert_eq!((loading.hit(at).0, loading.faults()), (-EFAULT, before + 3));
    // Extended again, and the page is still noted: no system call, no fault.
    // SAFETY: as above.
    unsafe { assert_eq!(libc::ftruncate(file, 4096), 0) };
    assert_eq!((loading.hit(at), loading.faults()), ((TEXT_BYTES as i64, vec![0; TEXT_BYTES]), before + 3));
}

#[test]
fn what_one_thread_noted_is_nothing_to_another() {
    alone("known_pages::what_one_thread_noted_is_nothing_to_another", || {
        machines().into_iter().for_each(noted_by_another)
    });
}

fn noted_by_another(machine: Machine) {
    stay();
    let mut loading = Loading::new(machine);
    loading.serve();
    let (at, whole) = (pages(1), (TEXT_BYTES as i64, vec![b'p'; TEXT_BYTES]));
    assert_eq!((loading.hit(at), loading.noted()), (whole.clone(), 1));
    // On the same CPU, in a thread that blocks the signals: a load of its own would kill the process.
    let mut loading = std::thread::spawn(move || {
        // SAFETY: the set is a local; the page is our own mapping.
        unsafe {
            let mut set: libc::sigset_t = core::mem::zeroed();
            libc::sigaddset(&raw mut set, libc::SIGSEGV);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, core::ptr::null_mut());
            libc::mprotect(at as *mut libc::c_void, 4096, libc::PROT_NONE);
        }
        assert_eq!((loading.hit(at).0, loading.faults()), (-EFAULT, 0));
        loading
    })
    .join()
    .expect("no fault");
    // SAFETY: as above.
    unsafe { libc::mprotect(at as *mut libc::c_void, 4096, libc::PROT_READ) };
    assert_eq!((loading.hit(at), loading.faults()), (whole, 0), "known to the first still");
}

extern "C" fn someone_elses(_: i32) {}

#[test]
fn nothing_is_noted_where_faults_are_not_served() {
    alone("known_pages::nothing_is_noted_where_faults_are_not_served", || {
        machines().into_iter().for_each(not_served)
    });
}

fn not_served(machine: Machine) {
    stay();
    let mut loading = Loading::new(machine);
    let at = pages(1);
    let looked = |loading: &mut Loading, noted: usize, why: &str| {
        loading.forget();
        assert_eq!(loading.hit(at), (TEXT_BYTES as i64, vec![b'p'; TEXT_BYTES]));
        assert_eq!((loading.noted(), loading.faults()), (noted, 0), "{why}");
    };
    looked(&mut loading, 0, "no handler");
    loading.serve();
    looked(&mut loading, 1, "both handlers");
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: the sets of signals are locals; the handler touches nothing.
        unsafe {
            let mut set: libc::sigset_t = core::mem::zeroed();
            libc::sigaddset(&raw mut set, signal);
            libc::sigprocmask(libc::SIG_BLOCK, &raw const set, core::ptr::null_mut());
            looked(&mut loading, 0, "blocked");
            libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, core::ptr::null_mut());
            looked(&mut loading, 1, "unblocked");
            let mut other: libc::sigaction = core::mem::zeroed();
            let mut ours: libc::sigaction = core::mem::zeroed();
            other.sa_sigaction = someone_elses as *const () as usize;
            libc::sigaction(signal, &raw const other, &raw mut ours);
            looked(&mut loading, 0, "replaced");
            libc::sigaction(signal, &raw const ours, core::ptr::null_mut());
        }
        looked(&mut loading, 1, "put back");
    }
}

/// Number of instructions to run before the words are cleared; addresses of these words and of the tables;
/// and the number of tables.
static STEPS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

extern "C" fn on_step(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let [left, handler, tables, lines] = [0, 1, 2, 3].map(|n| STEPS[n].load(Ordering::Relaxed));
    STEPS[0].store(left.wrapping_sub(1), Ordering::Relaxed);
    if left == 0 {
        // D2 and D3, as a detaching tracer does them.
        set(handler, 0);
        for table in (0..lines).map(|n| tables + (n << STRIDE_BITS)) {
            if get(table + FILLED) != 0 {
                set(table + FILLED, 0);
                (0..ENTRIES).for_each(|n| set(table + n * 8, 0));
            }
        }
    }
}

#[test]
fn nothing_is_noted_behind_a_detaching_tracers_back() {
    alone("known_pages::nothing_is_noted_behind_a_detaching_tracers_back", || {
        // A signal aborts a restartable sequence, so none ends when it is single-stepped. X5 is the same
        // without rseq.
        behind_its_back(machines()[0]);
    });
}

fn behind_its_back(machine: Machine) {
    stay();
    let loading = Loading::of(machine, &[0x48, 0x89, 0xF8, 0xC3]); // mov rax, rdi; ret
    loading.serve();
    let (at, control) = (pages(2) + 4096 - 8, loading.served.arena.data());
    // SAFETY: the handler only stores to words of ours.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = on_step as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGTRAP, &raw const action, core::ptr::null_mut()), 0);
    }
    let words = [control + at::FAULT_HANDLER, loading.tables, u64::from(LINES) - 1];
    words.iter().zip(&STEPS[1..]).for_each(|(&word, step)| step.store(word, Ordering::Relaxed));
    let run = |steps: u64| {
        loading.forget();
        loading.serve();
        // Makes room for each record, so that all runs execute the same instructions.
        let (area, view) = (loading.rings.area, crate::records::view(&loading.rings));
        (0..area.rings)
            .for_each(|ring| assert!(view.set(area.ring(ring) + TAIL, view.get(area.ring(ring) + HEAD))));
        STEPS[0].store(steps, Ordering::Relaxed);
        let returned: u64;
        // SAFETY: the code follows the C calling convention. The trap flag is set around one call of it, and
        // the kernel clears it while a handler runs.
        unsafe {
            core::arch::asm!(
                "pushfq",
                "or dword ptr [rsp], 256",
                "popfq",
                "call {code}",
                "pushfq",
                "and dword ptr [rsp], -257",
                "popfq",
                code = in(reg) loading.code,
                in("rdi") at,
                lateout("rax") returned,
                clobber_abi("C"),
            );
        }
        assert_eq!(returned, at);
        // The mark that a table may have entries also stays on tables that have none any more, so entries are
        // counted.
        let tables = (0..u64::from(LINES) - 1).map(|cpu| loading.tables + (cpu << STRIDE_BITS));
        let noted = tables.flat_map(|table| (0..ENTRIES).filter(move |n| get(table + n * 8) != 0)).count();
        (STEPS[0].load(Ordering::Relaxed), noted)
    };
    let (left, noted) = run(u64::MAX / 2);
    let all = u64::MAX / 2 - left;
    assert!(all > 100 && noted == 2, "{all} instructions, {noted}");
    for steps in 0..all - 4 {
        let (left, noted) = run(steps);
        assert!(left > u64::MAX / 2 && noted == 0, "{steps} of {all}: {noted}");
    }
}
