//! Stubs that time calls, executed.

use std::sync::atomic::{AtomicU64, Ordering};

use trapline_insn::aarch64::encode;
use trapline_plan::Buckets;
use trapline_plan::aarch64::stub::{
    Code as _, ExitKind, Latency, Machine, Timed, latency_enter, latency_exit,
};
use trapline_record::hist;
use trapline_record::latency::{self as words, STAMP_BLOCKS, STRIDE, at};

use super::{
    ADD, AREA, CodeMemory, DATA, LINES, RET, by_hand, call, changes, in_threads_at_once, machines,
    registered, storm,
};

const FUNCTIONS: u32 = 3;
/// Number of the timed function.
const FUNCTION: u32 = 1;

/// Memory for stamps.
pub(super) struct Stamps(pub(super) u64, pub(super) words::Stamps);

impl Stamps {
    pub(super) fn new(shape: words::Stamps) -> Self {
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        );
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), shape.bytes() as usize, protection, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self(at as u64, shape)
    }
    pub(super) fn word(&self, at: u64) -> &AtomicU64 {
        assert!(at < self.1.bytes());
        // SAFETY: aligned memory of our own, accessed as atomics only.
        unsafe { &*((self.0 + at) as *const AtomicU64) }
    }
    /// Offsets of the stamp cells of all claimed blocks.
    pub(super) fn cells(&self) -> impl Iterator<Item = u64> {
        let tags = 0..self.1.tags_len() / 8;
        let blocks = tags.filter(|block| self.word(8 * block).load(Ordering::Relaxed) != 0);
        blocks.flat_map(|block| {
            let first = self.1.tags_len() + (block << self.1.block_bits());
            (first..first + (1 << self.1.block_bits())).step_by(1 << self.1.cell_bits())
        })
    }
    /// Gives all blocks to other pages, except `but` of each four.
    pub(super) fn take_all(&self, but: u64) {
        let tags = 0..self.1.tags_len() / 8;
        tags.for_each(|tag| self.word(8 * tag).store(u64::from(tag % 4 >= but), Ordering::Relaxed));
    }
    /// Offsets of the cells that hold stamps.
    pub(super) fn stamps(&self) -> Vec<u64> {
        self.cells().filter(|slot| self.word(slot + 8).load(Ordering::Relaxed) != 0).collect()
    }
}

impl Drop for Stamps {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which no code uses any more.
        unsafe { libc::munmap(self.0 as *mut _, self.1.bytes() as usize) };
    }
}

/// What is timed, and the results.
pub(super) struct Bench {
    pub(super) room: CodeMemory,
    pub(super) stamps: Stamps,
    pub(super) machine: Machine,
    pub(super) latency: Latency,
}

impl Bench {
    pub(super) fn new(machine: Machine) -> Self {
        let (room, stamps) = (CodeMemory::new(), Stamps::new(words::Stamps::default()));
        let area = room.base + DATA + 4096;
        let (missed, functions, stamp) = (room.base + DATA, FUNCTIONS, stamps.0);
        let latency = Latency {
            area,
            functions,
            stamps: stamp,
            shape: stamps.1,
            missed,
            min_ticks: 0,
            buckets: Buckets::Log,
            outermost: false,
            trampolines: None,
        };
        Self { room, stamps, machine, latency }
    }
    pub(super) fn timed(&self) -> Timed<'_> {
        Timed { machine: &self.machine, latency: &self.latency, function: FUNCTION, goroutine: false }
    }
    fn enter(&self, looped: bool, rest: &[u32], back: Option<u64>) -> u64 {
        let pending = latency_enter(self.room.next(), self.timed(), looped);
        self.room.put(&pending.finish(rest, back).expect("in reach"))
    }
    fn exit(&self, kind: ExitKind) -> u64 {
        let pending = latency_exit(self.room.next(), self.timed(), kind);
        self.room.put(&pending.finish(&[RET], None).expect("in reach"))
    }
    /// A timed function that adds.
    fn function(&self, kind: ExitKind) -> u64 {
        let exit = self.exit(kind);
        self.enter(false, &[ADD], Some(exit))
    }
    /// A word of the function's block on one line.
    fn word(&self, line: u32, word: u64) -> u64 {
        let block = self.latency.area + u64::from(FUNCTION * self.machine.lines + line) * STRIDE;
        // SAFETY: aligned memory of our own.
        unsafe { &*((block + word) as *const AtomicU64) }.load(Ordering::Relaxed)
    }
    /// Sum over all lines.
    pub(super) fn sum(&self, word: u64) -> u64 {
        (0..self.machine.lines).map(|line| self.word(line, word)).sum()
    }
    pub(super) fn buckets(&self) -> Vec<u64> {
        (0..hist::BUCKETS as u64).map(|bucket| self.sum(at::BUCKETS + 8 * bucket)).collect()
    }
    pub(super) fn missed(&self) -> u64 {
        self.room.word(0).load(Ordering::Relaxed)
    }
    fn most(&self, word: u64) -> u64 {
        (0..self.machine.lines).map(|line| self.word(line, word)).max().unwrap_or(0)
    }
}

pub(super) fn on_cpu(cpu: u32) {
    AREA.with(|area| area.cpu[1].store(cpu, Ordering::Relaxed));
}

#[test]
fn a_call_is_timed_on_its_cpus_line() {
    for machine in machines(by_hand) {
        let bench = Bench::new(machine);
        let code = bench.function(ExitKind::Return);
        for (cpu, line) in [(0, 0), (7, 7), (8, 8), (4000, 8), (u32::MAX, 8)] {
            on_cpu(cpu);
            let before = (bench.sum(at::RETURNS), bench.word(line % machine.lines, at::RETURNS));
            for n in 1..=50 {
                assert_eq!(call(code, n, 5), n + 5, "{machine:?}");
            }
            assert_eq!(bench.sum(at::RETURNS), before.0 + 50);
            if machine.rseq.is_some() {
                assert_eq!(bench.word(line, at::RETURNS), before.1 + 50, "cpu {cpu}");
            }
            assert_eq!(AREA.with(|area| area.section.load(Ordering::Relaxed)), 0, "cleared");
        }
        assert_eq!(bench.buckets().iter().sum::<u64>(), 250, "{machine:?}");
        let (least, most, total) = (!bench.most(at::MIN_NOT), bench.most(at::MAX), bench.sum(at::TOTAL));
        assert!(least <= most && least * 250 <= total && total <= most * 250, "{least} {most} {total}");
        assert_eq!([at::TAIL_EXITS, at::UNPAIRED, at::UNRETURNED, at::CLAMPED].map(|w| bench.sum(w)), [0; 4]);
        assert!(bench.missed() == 0 && bench.stamps.stamps().is_empty());
        assert_eq!(call(bench.function(ExitKind::Tail), 1, 2), 3);
        assert_eq!((bench.sum(at::TAIL_EXITS), bench.sum(at::RETURNS)), (1, 250));
    }
}

#[test]
fn threads_without_rseq_are_spread_over_the_lines() {
    for machine in machines(|| None).into_iter().filter(|machine| machine.lines > 1) {
        let bench = Bench::new(machine);
        in_threads_at_once(bench.function(ExitKind::Return));
        let lines: Vec<u64> = (0..machine.lines).map(|line| bench.word(line, at::RETURNS)).collect();
        assert_eq!(lines.iter().sum::<u64>(), 16);
        assert!(lines.iter().filter(|&&calls| calls > 0).count() > 3, "{lines:?}");
    }
}

#[test]
fn registers_and_flags_stay() {
    for machine in machines(by_hand) {
        for cpu in [2, u32::MAX] {
            on_cpu(cpu);
            for buckets in [Buckets::Log, Buckets::Linear { min: 1, step: 3, count: 4 }] {
                let mut bench = Bench::new(machine);
                bench.latency.buckets = buckets;
                bench.latency.min_ticks = 1;
                let exit = bench.exit(ExitKind::Return);
                let whole = bench.enter(false, &[], Some(exit));
                let enters = [false, true].map(|looped| bench.enter(looped, &[RET], None));
                let same = |code: u64, what: &str| {
                    for flags in 0..16 {
                        let (before, after) = changes(code, flags);
                        assert_eq!(after, before, "{what}, {machine:?} {cpu}");
                    }
                };
                same(whole, "claimed, and found");
                same(exit, "no call entered");
                enters.into_iter().for_each(|enter| same(enter, "entered again"));
                (0..STAMP_BLOCKS).for_each(|tag| bench.stamps.word(8 * tag).store(1, Ordering::Relaxed));
                same(whole, "no room");
                assert_eq!((bench.missed(), bench.sum(at::UNPAIRED)), (16, 16 + 16));
            }
        }
    }
}

/// Makes a call from further down the stack.
#[inline(never)]
fn deeper(code: u64) {
    std::hint::black_box(call(code, 0, 0));
}

/// A function that calls itself with its argument less one, until that is 0. Only its outermost call is
/// timed.
#[test]
fn recursion_is_timed_once() {
    for machine in machines(by_hand) {
        on_cpu(2);
        for outermost in [false, true] {
            let mut bench = Bench::new(machine);
            bench.latency.outermost = outermost;
            let exit = bench.exit(ExitKind::Return);
            let at = bench.room.next();
            let pending = latency_enter(at, bench.timed(), false);
            // cbz x0, past it; stp x0, x30, [sp, #-16]!; sub x0, x0, #1; bl; ldp x0, x30, [sp], #16
            let again = encode::b(pending.displaced_at() + 12, at).expect("near") | 1 << 31;
            let body = [0xB400_00A0, 0xA9BF_7BE0, 0xD100_0400, again, 0xA8C1_7BE0];
            assert_eq!(bench.room.put(&pending.finish(&body, Some(exit)).expect("in reach")), at);
            let mut calls = 0;
            for depth in [0, 1, 300] {
                assert_eq!(call(at, depth, 0), depth);
                calls += if outermost { 1 } else { depth + 1 };
                let found = [at::RETURNS, at::UNPAIRED, at::UNRETURNED].map(|word| bench.sum(word));
                assert_eq!(found, [calls, 0, 0], "{machine:?} {outermost}");
            }
            assert!(bench.stamps.stamps().is_empty() && bench.missed() == 0);
            if !outermost {
                continue;
            }
            let abandoned = bench.enter(false, &[RET], None);
            let found = || [at::RETURNS, at::UNRETURNED, at::UNPAIRED].map(|word| bench.sum(word));
            deeper(abandoned);
            // Another thread's call is its own.
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    on_cpu(2);
                    assert_eq!(call(at, 5, 0), 5);
                });
            });
            assert_eq!(found(), [calls + 1, 0, 0]);
            // A shallower call, or one at its place, proves that the remembered call is gone. A deeper one
            // cannot prove it.
            assert_eq!(call(at, 3, 0), 3);
            assert_eq!(found(), [calls + 2, 1, 0]);
            call(abandoned, 0, 0);
            deeper(at);
            assert_eq!(found(), [calls + 2, 1, 0]);
            assert_eq!(call(at, 3, 0), 3);
            assert_eq!(found(), [calls + 3, 2, 0]);
            for flags in 0..16 {
                let entered = bench.enter(flags & 1 == 1, &[RET], None);
                for code in [entered, entered, exit, exit] {
                    let (before, after) = changes(code, flags);
                    assert_eq!(after, before, "{machine:?}");
                }
            }
            assert_eq!(bench.sum(at::UNPAIRED), 16);
        }
    }
}

/// Calls that are entered without an exit, or left without an entry.
#[test]
fn what_has_no_other_end_is_counted() {
    for machine in machines(by_hand) {
        on_cpu(1);
        let bench = Bench::new(machine);
        let (enter, looped) = (bench.enter(false, &[RET], None), bench.enter(true, &[RET], None));
        let exit = bench.exit(ExitKind::Return);
        // One call instruction, so that the stack pointer is the same.
        for (code, unreturned, unpaired, returns) in [
            (exit, 0, 1, 0),
            (enter, 0, 1, 0),
            (enter, 1, 1, 0),
            (looped, 1, 1, 0),
            (exit, 1, 1, 1),
            (exit, 1, 2, 1),
            (looped, 1, 2, 1),
            (exit, 1, 2, 2),
        ] {
            call(code, 0, 0);
            let found = [at::UNRETURNED, at::UNPAIRED, at::RETURNS].map(|word| bench.sum(word));
            assert_eq!(found, [unreturned, unpaired, returns], "{machine:?}");
        }
    }
}

pub(super) fn now() -> u64 {
    let ticks: u64;
    // SAFETY: the instruction reads a register.
    unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks) };
    ticks
}

/// Chosen durations: their stamps are set back.
#[test]
fn durations_fall_into_their_buckets() {
    for machine in machines(by_hand) {
        on_cpu(3);
        for buckets in [Buckets::Log, Buckets::Linear { min: 1 << 20, step: 1 << 22, count: 9 }] {
            for bits in [0, 4, 5, 11, 20, 21, 22, 24, 25, 26, 40, 46, 47, 48, 60] {
                if now() >> bits < 2 {
                    // The counter began less than that ago.
                    continue;
                }
                let mut bench = Bench::new(machine);
                bench.latency.buckets = buckets;
                bench.latency.min_ticks = 1 << 8;
                let (enter, exit) = (bench.enter(false, &[RET], None), bench.exit(ExitKind::Return));
                for code in [enter, exit] {
                    call(code, 0, 0);
                    if let [slot] = bench.stamps.stamps()[..] {
                        bench.stamps.word(slot).fetch_sub((1 << bits) - 1, Ordering::Relaxed);
                    }
                }
                assert_eq!(bench.sum(at::RETURNS), 1);
                let took = bench.sum(at::MAX);
                if took == 0 {
                    assert!(bits < 9, "{bits}");
                    assert_eq!(bench.buckets().iter().sum::<u64>() + bench.sum(at::TOTAL), 0);
                    continue;
                }
                assert!(took >= ((1 << bits) - 1).max(1 << 8), "{took} {bits}");
                assert_eq!((bench.sum(at::TOTAL), !bench.most(at::MIN_NOT)), (took, took));
                let bucket = match buckets {
                    Buckets::Log => hist::bucket(took),
                    Buckets::Linear { min, .. } if took < min => 0,
                    Buckets::Linear { min, step, count } => {
                        (1 + (took - min) / step).min(u64::from(count) + 1) as usize
                    }
                };
                let found = bench.buckets();
                assert_eq!(
                    (found[bucket], found.iter().sum()),
                    (1, 1_u64),
                    "{took}, {machine:?} {buckets:?}"
                );
            }
        }
    }
}

/// A stamp of the future. The clock never goes back, but memory may be overwritten.
#[test]
fn a_negative_duration_counts_as_none() {
    for machine in machines(by_hand) {
        let bench = Bench::new(machine);
        let (enter, exit) = (bench.enter(false, &[RET], None), bench.exit(ExitKind::Return));
        for code in [enter, exit] {
            call(code, 0, 0);
            if let [slot] = bench.stamps.stamps()[..] {
                bench.stamps.word(slot).fetch_add(1 << 60, Ordering::Relaxed);
            }
        }
        let found = [at::CLAMPED, at::RETURNS, at::TOTAL, at::BUCKETS].map(|word| bench.sum(word));
        assert_eq!(found, [1, 1, 0, 1], "{machine:?}");
    }
}

/// An abort restarts a section. Each of the five sections, entered at its abort handler, does its work once.
#[test]
fn sections_end_with_their_store() {
    let machine = Machine { rseq: by_hand(), lse: true, lines: LINES };
    let bench = Bench::new(machine);
    let start = bench.room.next();
    let pending = latency_exit(start, bench.timed(), ExitKind::Return);
    let words = pending.finish(&[RET], None).expect("in reach");
    let double = |at: usize| u64::from(words[at]) | u64::from(words[at + 1]) << 32;
    let mut sections = 0;
    for (index, _) in words.iter().enumerate().filter(|(_, word)| **word == 0xD428_BC00) {
        let abort = start + 4 * (index as u64 + 1);
        let descriptor = (0..words.len() - 7).find(|&at| double(at + 6) == abort).expect("a descriptor");
        let (begin, len) = (double(descriptor + 2), double(descriptor + 4));
        assert!(double(descriptor) == 0 && (start + 4 * descriptor as u64).is_multiple_of(32));
        assert!(begin > start && begin + len < abort && len.is_multiple_of(4));
        // The section's last word is a store of 64 bits, and there is no other store.
        let section = &words[((begin - start) / 4) as usize..((begin + len - start) / 4) as usize];
        let stores = section.iter().filter(|word| **word & 0xFFC0_0000 == 0xF900_0000).count();
        assert_eq!((stores, section.last().map(|word| word & 0xFFC0_0000)), (1, Some(0xF900_0000)));
        // The handler goes back to where the section is announced.
        let back = (0..4).map(|n| encode::b(abort, begin - 4 * (n + 3)));
        assert!(back.flatten().any(|word| word == words[index + 1]), "{index}");
        sections += 1;
    }
    assert_eq!(sections, 5);
}

/// LOSS-1 for durations: threads migrate and are interrupted, and their handlers call the same function.
#[test]
fn no_call_is_lost() {
    for machine in machines(registered) {
        let bench = Bench::new(machine);
        let (called, handled) = storm(bench.function(ExitKind::Return));
        let found = [at::RETURNS, at::UNPAIRED, at::UNRETURNED, at::CLAMPED].map(|word| bench.sum(word));
        assert_eq!(found, [called + handled, 0, 0, 0], "{machine:?}");
        assert_eq!(bench.buckets().iter().sum::<u64>(), called + handled);
        assert_eq!((bench.missed(), bench.stamps.stamps().len()), (0, 0));
    }
}
