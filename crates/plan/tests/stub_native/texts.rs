//! Texts in records: what arguments point to is there as far as it can be read. No state is disturbed,
//! whatever they point to.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use trapline_plan::x86_64::stub::{Liveness, Machine, PageNotes, Rings, Traced, trace};
use trapline_plan::{Floats, Read, Stacks, Unwind};
use trapline_record::control::at;
use trapline_record::pages::{ENTRIES, FILLED, STRIDE_BITS};
use trapline_record::ring::{HEAD, RecordKind, RingArea, TAIL, TEXT_BYTES, TEXT_WORDS};
use trapline_tests::alone;

use crate::arena::{Arena, LINES, get, machines, set, thread_pointer};
use crate::records::{PROBE, Reader, built, rings_for};
use crate::state::{ONE, Random, State, assert_kept, back, tl_run};
use crate::traps::Served;

const EFAULT: i64 = 14;
/// Numbers of the six argument registers in `State::regs`.
const REGS: [usize; 6] = [7, 6, 2, 1, 8, 9];

/// Two pages, of which only the first is mapped.
pub(crate) fn edge() -> u64 {
    // SAFETY: a fresh mapping; unmapping its second half touches nothing else.
    unsafe {
        let at = libc::mmap(
            core::ptr::null_mut(),
            8192,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(at, libc::MAP_FAILED);
        core::ptr::write_bytes(at.cast::<u8>(), b'e', 4096);
        assert_eq!(libc::munmap(at.byte_add(4096), 4096), 0);
        at as u64 + 4096
    }
}

#[test]
fn texts_are_there_as_far_as_they_can_be_read() {
    let _one = ONE.lock();
    machines().iter().for_each(texts_are_there);
}

fn texts_are_there(machine: &Machine) {
    let mut random = Random(0x7e47_0001_4321_9876);
    let edge = edge();
    let long: Vec<u8> = (0..200).map(|n| n as u8 ^ 0x5a).collect();
    let here = long.as_ptr() as u64;
    // Pointer, and the kernel's answer: the bytes that can be read, or an error.
    let cases = [
        (here, TEXT_BYTES as i64),
        (here + 7, TEXT_BYTES as i64),
        (edge - 64, TEXT_BYTES as i64),
        (edge - 63, 63),
        (edge - 1, 1),
        (edge, -EFAULT),
        (0, -EFAULT),
        (u64::MAX - 5, -EFAULT),
        (1 << 63, -EFAULT),
    ];
    for texts in [0b1, 0b10, 0b100, 0b11_1111, 0b10_0100_u8] {
        let mut arena = Arena::new();
        let slot = RingArea::slot_for_texts(texts.count_ones() as usize);
        let rings = rings_for(&arena, machine, 64 * slot, slot);
        let mut reader = Reader::new(&rings);
        for n in 0..4 {
            let site = Liveness { flags_dead: n & 1 == 1, dead: 0, red_zone_live: n & 2 == 2 };
            let dropped = arena.word(0);
            let traced = Traced {
                machine,
                rings: &rings,
                probe: PROBE,
                dropped,
                site,
                filter: None,
                texts,
                floats: Floats::default(),
                fields: &[],
                marks: None,
                unwind: Unwind::None,
                at_entry: true,
                trampolines: None,
            };
            let code = built(&mut arena, &traced, RecordKind::Entry, 6, &back());
            assert_kept(&format!("{texts:b} {site:?}"), code, &site, &mut random);
            reader.take(|_| ());
            for (round, _) in cases.iter().enumerate() {
                let mut state = random.state();
                let of = |register: usize| cases[(round + register) % cases.len()];
                REGS.iter().enumerate().for_each(|(n, &reg)| state.regs[reg] = of(n).0);
                let before = (state.regs, state.red);
                // SAFETY: the code runs from tl_run's loaded state to tl_back, and the harness has one user
                // at a time.
                unsafe { tl_run(code, &mut state) };
                assert_eq!((state.regs, !site.red_zone_live || state.red == before.1), (before.0, true));
                let mut seen = Vec::new();
                for ring in 0..rings.area.rings {
                    let tail = &mut reader.tails[ring as usize];
                    let view = crate::records::view(&rings);
                    let each = |record: &trapline_record::ring::Record, word: &dyn Fn(u64) -> u64| {
                        let words: Vec<u64> =
                            (0..u64::from(texts.count_ones()) * TEXT_WORDS as u64).map(word).collect();
                        seen.push((*record, words));
                    };
                    rings.area.take_with_texts(view, ring, tail, each).expect("a head that can be");
                }
                let [(record, words)] = &seen[..] else { panic!("{} records", seen.len()) };
                assert_eq!(record.values[..6], REGS.map(|reg| before.0[reg]), "arguments beside the texts");
                let arguments = (0..6).filter(|n| texts >> n & 1 == 1);
                for (nth, argument) in arguments.enumerate() {
                    let text = &words[nth * TEXT_WORDS..][..TEXT_WORDS];
                    let (at, answer) = of(argument);
                    assert_eq!(text[0].cast_signed(), answer, "{at:#x}");
                    let bytes: Vec<u8> = text[1..].iter().flat_map(|word| word.to_le_bytes()).collect();
                    let read = usize::try_from(answer).unwrap_or(0);
                    // SAFETY: the kernel has just reported that this many bytes can be read there.
                    let expected = unsafe {
                        core::slice::from_raw_parts(if read == 0 { here } else { at } as *const u8, read)
                    };
                    assert_eq!(&bytes[..read], expected);
                }
            }
        }
    }
}

/// Expected content of a field's record: the kernel's answer, and the bytes if it is the requested length.
fn field(word: &dyn Fn(u64) -> u64, at: u64, read: &Read) -> Result<Vec<u8>, i64> {
    let answer = word(at).cast_signed();
    let bytes = (1..read.words() as u64).flat_map(|n| word(at + n).to_le_bytes());
    if answer == i64::from(read.bytes) { Ok(bytes.take(read.bytes.into()).collect()) } else { Err(answer) }
}

#[test]
fn fields_are_read_through_pointers_or_reported_as_out_of_reach() {
    let _one = ONE.lock();
    machines().iter().for_each(fields_are_read);
}

fn fields_are_read(machine: &Machine) {
    let mut random = Random(0x1357_9bdf_4321_9876);
    let edge = edge();
    let far: [u64; 4] = core::array::from_fn(|n| 0x1111_1111_1111_1111 * (n as u64 + 1));
    // Nothing is mapped behind the second pointer; the third field is cut by the end of mapped memory.
    let near = [far.as_ptr() as u64, edge, edge - 4, 0xaabb_ccdd_eeff_0011];
    let read = |register, offsets: &[i32], bytes| Read { register, offsets: offsets.to_vec(), bytes };
    let reads = [
        read(0, &[28], 4),
        read(0, &[0, 8], 8),
        read(1, &[0, 20], 12),
        read(0, &[8, 0], 8),
        read(0, &[16, 0], 8),
        read(2, &[-8], 1),
        read(5, &[0, 0, 0], 8),
    ];
    let bytes = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let wanted = [
        Ok(bytes(&near[3..])[4..].to_vec()),
        Ok(bytes(&far[1..2])),
        Ok(bytes(&far)[20..32].to_vec()),
        Err(-EFAULT),
        Err(4),
        Ok(vec![b'e']),
        Err(-EFAULT),
    ];
    let words: usize = reads.iter().map(Read::words).sum();
    for n in 0..4 {
        let mut arena = Arena::new();
        let slot = RingArea::slot_with_floats(6, 0, words);
        let rings = rings_for(&arena, machine, 64 * slot, slot);
        let mut reader = Reader::new(&rings);
        let site = Liveness { flags_dead: n & 1 == 1, dead: 0, red_zone_live: n & 2 == 2 };
        let traced = Traced {
            machine,
            rings: &rings,
            probe: PROBE,
            dropped: arena.word(0),
            site,
            filter: None,
            texts: 0,
            floats: Floats::default(),
            fields: &reads,
            marks: None,
            unwind: Unwind::None,
            at_entry: true,
            trampolines: None,
        };
        let code = built(&mut arena, &traced, RecordKind::Entry, 6, &back());
        assert_kept(&format!("{site:?}"), code, &site, &mut random);
        reader.take(|_| ());
        let mut state = random.state();
        let here = near.as_ptr() as u64;
        (state.regs[7], state.regs[6], state.regs[2], state.regs[9]) = (here, here, edge, 0);
        let before = (state.regs, state.red);
        // SAFETY: the code runs from tl_run's loaded state to tl_back, and the harness has one user at a
        // time.
        unsafe { tl_run(code, &mut state) };
        assert_eq!((state.regs, !site.red_zone_live || state.red == before.1), (before.0, true));
        let mut seen = Vec::new();
        for ring in 0..rings.area.rings {
            let tail = &mut reader.tails[ring as usize];
            let each = |record: &trapline_record::ring::Record, word: &dyn Fn(u64) -> u64| {
                let mut at = trapline_record::ring::first_float(6, 0);
                let mut all = Vec::new();
                for read in &reads {
                    all.push(field(word, at, read));
                    at += read.words() as u64;
                }
                assert_eq!(record.values[..6], REGS.map(|reg| before.0[reg]));
                seen.push(all);
            };
            rings
                .area
                .take_words(crate::records::view(&rings), ring, tail, each)
                .expect("a head that can be");
        }
        assert_eq!(seen, [wanted.to_vec()]);
        arena.unmap();
    }
}

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
            machine: &machine,
            rings: &rings,
            probe: PROBE,
            dropped: arena.word(0),
            site: Liveness { flags_dead: false, dead: 0, red_zone_live: true },
            filter: None,
            texts: 1,
            floats: Floats::default(),
            fields: &[],
            marks: None,
            unwind: Unwind::None,
            at_entry: true,
            trampolines: None,
        };
        let mut out = Vec::new();
        let pending = trace(&mut out, arena.next(), &traced, RecordKind::Entry, 6);
        out.extend(body);
        let fixups = pending.finish(&mut out, None);
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
    alone("texts::pages_that_the_kernel_read_are_loaded_from", || {
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
    alone("texts::pages_that_went_away_are_no_harm", || machines().into_iter().for_each(pages_gone));
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
    alone("texts::what_one_thread_noted_is_nothing_to_another", || {
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
    alone("texts::nothing_is_noted_where_faults_are_not_served", || {
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
    alone("texts::nothing_is_noted_behind_a_detaching_tracers_back", || {
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

thread_local! {
    /// The first words of a goroutine's g: the start of its stack, and the first address behind it. `G` is
    /// the address of these words.
    static BOUNDS: [Cell<u64>; 2] = const { [const { Cell::new(0) }; 2] };
    static G: Cell<u64> = const { Cell::new(0) };
}

#[test]
fn a_goroutine_without_room_for_texts_drops_the_record() {
    alone("texts::a_goroutine_without_room_for_texts_drops_the_record", || {
        machines().iter().for_each(without_room);
    });
}

fn without_room(machine: &Machine) {
    const TEXTS: u8 = 0b11_1111;
    let mut arena = Arena::new();
    let slot = RingArea::slot_for_texts(6);
    let g = G.with(|g| core::ptr::from_ref(g) as u64).wrapping_sub(thread_pointer());
    let stacks = Stacks { go: Some(g as i32), ..Stacks::default() };
    let rings = Rings { stacks, ..rings_for(&arena, machine, 64 * slot, slot) };
    let (dropped, mut random) = (arena.word(0), Random(0x6060_0001));
    let traced = Traced {
        machine,
        rings: &rings,
        probe: PROBE,
        dropped,
        site: Liveness { flags_dead: false, dead: 0, red_zone_live: false },
        filter: None,
        texts: TEXTS,
        floats: Floats::default(),
        fields: &[],
        marks: None,
        unwind: Unwind::None,
        at_entry: true,
        trampolines: None,
    };
    let code = built(&mut arena, &traced, RecordKind::Entry, 6, &back());
    let bounds = BOUNDS.with(|bounds| [0, 1].map(|n| core::ptr::from_ref(&bounds[n])));
    let mut reader = Reader::new(&rings);
    // One call instruction for the stub, so that the stack pointer is the same each time. First without a g,
    // which shows the stack pointer; then with stacks that begin above it and below it; then with the least
    // room that was enough.
    let (mut lows, mut sp, mut refused, mut touched) = (vec![None], 0, Vec::new(), 0);
    while let Some(low) = lows.pop() {
        let mut state = random.state();
        let bytes = low.unwrap_or(0) as *mut u64;
        let last = lows.is_empty() && low.is_some();
        // SAFETY: the cells are this thread's own. The code runs from tl_run's loaded state to tl_back, and
        // one thread of this process does so. Memory that far below the used part of this stack is not in
        // use.
        unsafe {
            (*bounds[0]).set(low.unwrap_or(0));
            (*bounds[1]).set(low.unwrap_or(0) + (1 << 16));
            G.set(if low.is_some() { bounds[0] as u64 } else { 0 });
            let before = (state.regs, arena.counted(0));
            if last {
                (1..=64).for_each(|n| bytes.sub(n).write_volatile(0x5a5a));
            }
            tl_run(code, &mut state);
            if last {
                (1..=64).for_each(|n| touched += u64::from(bytes.sub(n).read_volatile() != 0x5a5a));
            }
            assert_eq!(state.regs, before.0);
            let mut seen = Vec::new();
            reader.take(|record| seen.push(record.sp));
            assert_eq!(seen.len() as u64 + arena.counted(0) - before.1, 1);
            refused.extend(low.filter(|_| seen.is_empty()));
            assert!(low.is_none_or(|_| seen.iter().all(|&seen| seen == sp)) && !(last && seen.is_empty()));
            sp = seen.first().copied().unwrap_or(sp);
        }
        if low.is_none() {
            lows = (0..200).map(|n| Some(sp + 64 - n * 8)).collect();
            lows.insert(0, Some(0));
        } else if lows == [Some(0)] {
            refused.sort_unstable();
            lows = vec![Some(refused[0] - 8)];
        }
    }
    G.set(0);
    let depth = refused.len() as u64 * 8;
    let expected: Vec<u64> = (1..=depth / 8).map(|n| sp - depth + n * 8).collect();
    assert_eq!(refused, expected, "one that begins above is not the one it is on");
    assert!(depth > 6 * 72 && depth < 790, "{depth}");
    assert_eq!(touched, 0, "at least room, nothing below is touched");
}
