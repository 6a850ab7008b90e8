//! Return trampolines, executed: every armed call returns to where it was called from, is counted once, and
//! gives its trampoline back (SLOT-1 to SLOT-3).

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use trapline_insn::aarch64::encode;
use trapline_plan::aarch64::stub::{Code as _, Machine, Signed, latency_arm, trampoline_code};
use trapline_record::latency::at;
use trapline_record::trampolines::{CHAIN, ENTRY, Trampolines, at as entry};

use super::latency::{Bench, on_cpu};
use super::{ADD, CodeMemory, RET, by_hand, call, changes, machines, registered, storm};

const PUSH: u32 = 0xA9BF_7BFD;
const POP: u32 = 0xA8C1_7BFD;
/// `blr x0`
const CALL: u32 = 0xD63F_0000;
const PACIASP: u32 = 0xD503_233F;
const AUTIASP: u32 = 0xD503_23BF;
const PACIBSP: u32 = 0xD503_237F;
const AUTIBSP: u32 = 0xD503_23FF;

/// What is timed by return trampolines, and their code.
struct Armed {
    bench: Bench,
    trampolines: Trampolines,
    /// Address and length of what the trampolines share.
    shared: (u64, u64),
    code: Option<CodeMemory>,
}

fn word(at: u64) -> &'static AtomicU64 {
    // SAFETY: aligned memory that tests map, accessed as atomics only; no reference outlives the mapping.
    unsafe { &*(at as *const AtomicU64) }
}

impl Armed {
    fn new(machine: Machine, count: u32) -> Self {
        let (mut bench, code) = (Bench::new(machine), CodeMemory::new());
        let unplaced = Trampolines { code: code.base, table: 0, count };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let len = unplaced.table_len() as usize;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let table = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        assert_ne!(table, libc::MAP_FAILED);
        let trampolines = Trampolines { table: table as u64, ..unplaced };
        trampolines.hints().for_each(|(at, hint)| word(at).store(hint, Ordering::Relaxed));
        bench.latency.trampolines = Some(trampolines);
        let made = trampoline_code(&machine, &bench.latency).expect("slots");
        let words: Vec<u32> =
            made.bytes.as_chunks::<4>().0.iter().map(|one| u32::from_le_bytes(*one)).collect();
        assert_eq!(code.put(&words), trampolines.code);
        Self { bench, trampolines, shared: made.shared, code: Some(code) }
    }
    /// A function with armed calls.
    fn function(&self, signed: Option<Signed>, body: &[u32]) -> u64 {
        self.function_of(signed, |_, _| body.to_vec())
    }
    /// The same; its body is made from the function's address, and the address of its first word behind the
    /// stub.
    fn function_of(&self, signed: Option<Signed>, body: impl Fn(u64, u64) -> Vec<u32>) -> u64 {
        let at = self.bench.room.next();
        let pending = latency_arm(at, self.bench.timed(), signed).expect("slots");
        let body = body(at, pending.displaced_at());
        self.bench.room.put(&pending.finish(&body, None).expect("in reach"))
    }
    fn entry(&self, trampoline: u32, at: u64) -> &'static AtomicU64 {
        word(self.trampolines.entry(trampoline) + at)
    }
    /// Numbers of the return trampolines in use.
    fn lent(&self) -> Vec<u32> {
        let byte = |trampoline: u32| {
            let at = self.trampolines.table + Trampolines::LENT_OFF + u64::from(trampoline);
            word(at & !7).load(Ordering::Relaxed).to_le_bytes()[(at & 7) as usize]
        };
        (0..self.trampolines.count).filter(|&trampoline| byte(trampoline) != 0).collect()
    }
    /// Asserts the number of calls, and of those that found no trampoline; no call is in flight any more.
    #[track_caller]
    fn expect(&self, returns: u64, missed: u64) {
        let words = [at::BEGUN, at::RETURNS, at::TAIL_EXITS, at::UNPAIRED, at::UNRETURNED];
        let found = words.map(|word| self.bench.sum(word));
        assert_eq!((found, self.bench.missed()), ([returns, 0, 0, 0, 0], missed), "{:?}", self.bench.machine);
        assert_eq!(self.bench.buckets().iter().sum::<u64>(), returns);
        assert!(self.lent().is_empty());
        assert!(
            (0..self.trampolines.count)
                .all(|trampoline| self.entry(trampoline, entry::WORD).load(Ordering::Relaxed) == 0)
        );
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which no code uses any more.
        unsafe { libc::munmap(self.trampolines.table as *mut _, self.trampolines.table_len() as usize) };
        self.code.take().into_iter().for_each(CodeMemory::unmap);
    }
}

#[test]
fn calls_are_counted_once_and_trampolines_come_back() {
    for machine in machines(by_hand) {
        let armed = Armed::new(machine, 64);
        let code = armed.function(None, &[ADD, RET]);
        for cpu in [0, 7, 4000, u32::MAX] {
            on_cpu(cpu);
            (0..300).for_each(|n| assert_eq!(call(code, n, 5), n + 5));
        }
        armed.expect(1200, 0);
    }
}

/// The function signs and authenticates the trampoline's address: with either key, and with none.
#[test]
fn signed_return_addresses_stay_signed() {
    // One signature may be zero by chance, but not every one.
    let mut signatures = 0;
    for machine in machines(by_hand) {
        on_cpu(1);
        let armed = Armed::new(machine, 64);
        let trampoline = armed.trampolines.address(0)..armed.trampolines.address(63) + 1;
        let keys = [(PACIASP, AUTIASP, Signed::KeyA), (PACIBSP, AUTIBSP, Signed::KeyB)];
        for (sign, authenticate, key) in keys {
            assert_eq!(Signed::by(sign), Some(key));
            // mov x0, x30: the address that the function has in x30.
            let stub = armed.function(Some(key), &[PUSH, 0xAA1E_03E0, POP, authenticate, RET]);
            let from = armed.bench.room.next() + 4;
            let code = armed.bench.room.put(&[sign, encode::b(from, stub).expect("near")]);
            for _ in 0..50 {
                let link = call(code, 0, 0);
                signatures |= link >> 48;
                assert!(trampoline.contains(&(link & ((1 << 48) - 1))), "{link:#x}");
            }
        }
        assert_eq!((Signed::by(0xD503_245F), Signed::by(ADD)), (None, None));
        armed.expect(100, 0);
    }
    assert_eq!(signatures != 0, std::arch::is_aarch64_feature_detected!("paca"));
}

#[test]
fn without_a_free_trampoline_a_call_runs_unprobed_and_is_counted() {
    for machine in machines(by_hand) {
        on_cpu(3);
        for (count, depth) in [(64, 63), (64, 64), (64, 200), (256, 200)] {
            let armed = Armed::new(machine, count);
            // cbz x0, past it; stp x0, x30, [sp, #-16]!; sub x0, x0, #1; bl; ldp x0, x30, [sp], #16; ret
            let code = armed.function_of(None, |at, body| {
                let again = encode::b(body + 12, at).expect("near") | 1 << 31;
                vec![0xB400_00A0, 0xA9BF_7BE0, 0xD100_0400, again, 0xA8C1_7BE0, RET]
            });
            assert_eq!(call(code, depth, 0), depth);
            let all = depth + 1;
            armed.expect(all.min(count.into()), all.saturating_sub(count.into()));
        }
    }
}

/// A tail call returns when its callee does. There are one stack pointer and as many trampolines as calls, up
/// to a limit.
#[test]
fn tail_calls_return_in_a_chain() {
    for machine in machines(by_hand) {
        on_cpu(2);
        let armed = Armed::new(machine, 64);
        // cbz x0, to the last; sub x0, x0, #1; b; ret
        let code = armed.function_of(None, |at, body| {
            vec![0xB400_0060, 0xD100_0400, encode::b(body + 8, at).expect("near"), RET]
        });
        let chain = u64::from(CHAIN);
        let (mut returns, mut missed) = (0, 0);
        for depth in [0, 1, chain - 1, chain, chain + 20] {
            assert_eq!(call(code, depth, 0), 0);
            returns += (depth + 1).min(chain);
            missed += (depth + 1).saturating_sub(chain);
            armed.expect(returns, missed);
        }
    }
}

/// The address that a tail call leaves to the next function is plain, even if that function signs it.
#[test]
fn signed_tail_calls_return_in_a_chain() {
    for machine in machines(by_hand) {
        on_cpu(2);
        let armed = Armed::new(machine, 64);
        let behind = |sign: u32, stub: u64| {
            let from = armed.bench.room.next() + 4;
            armed.bench.room.put(&[sign, encode::b(from, stub).expect("near")])
        };
        let last = behind(PACIBSP, armed.function(Some(Signed::KeyB), &[AUTIBSP, ADD, RET]));
        let first = armed.function_of(Some(Signed::KeyA), |_, body| {
            vec![AUTIASP, encode::b(body + 4, last).expect("near")]
        });
        let first = behind(PACIASP, first);
        (0..20).for_each(|n| assert_eq!(call(first, n, 5), n + 5));
        armed.expect(40, 0);
    }
}

#[test]
fn registers_and_flags_stay() {
    for machine in machines(by_hand) {
        for cpu in [2, u32::MAX] {
            on_cpu(cpu);
            let armed = Armed::new(machine, 64);
            let codes = [armed.function(None, &[RET]), armed.function(Some(Signed::KeyA), &[AUTIASP, RET])];
            let from = armed.bench.room.next() + 4;
            let signs = armed.bench.room.put(&[PACIASP, encode::b(from, codes[1]).expect("near")]);
            // A function that is entered from another one; and a call when no trampoline is left.
            let chained = armed.function_of(None, |_, body| vec![encode::b(body, codes[0]).expect("near")]);
            let same = |code| {
                for flags in 0..16 {
                    let (before, after) = changes(code, flags);
                    assert_eq!(after, before, "{machine:?} {cpu}");
                }
            };
            [codes[0], signs, chained].into_iter().for_each(same);
            armed.expect(64, 0);
            let bytes = (0..armed.trampolines.count).step_by(8).map(u64::from);
            let all = |value: u64| {
                bytes.clone().for_each(|n| {
                    word(armed.trampolines.table + Trampolines::LENT_OFF + n).store(value, Ordering::Relaxed);
                });
            };
            all(u64::MAX);
            [codes[0], signs].into_iter().for_each(same);
            all(0);
            armed.expect(64, 32);
        }
    }
}

thread_local! {
    /// The trampolines of the call that runs.
    static WITHIN: Cell<*const Armed> = const { Cell::new(std::ptr::null()) };
}

/// Reads the entry of the one armed call, and sets its stamp a little ahead.
extern "C" fn within() -> u64 {
    // SAFETY: set by the test, which waits for this call.
    let armed = unsafe { &*WITHIN.get() };
    let lent = armed.lent();
    let [trampoline] = lent[..] else { return 0 };
    let [real, stack, what, under] = [entry::REAL, entry::WORD, entry::WHAT, entry::UNDER]
        .map(|at| armed.entry(trampoline, at).load(Ordering::Relaxed));
    let here = std::ptr::from_ref(&lent) as u64;
    assert!(stack.is_multiple_of(16) && stack > here && stack < here + 4096, "{stack:#x} {here:#x}");
    // The function pushed x29 and x30: right below that stack pointer, and its return address is the
    // trampoline.
    assert_eq!(word(stack - 8).load(Ordering::Relaxed), armed.trampolines.address(trampoline));
    assert!(
        armed.trampolines.number_of(real).is_none()
            && armed.trampolines.number_of(real & ((1 << 48) - 1)).is_none()
    );
    assert_eq!(under, 0);
    let block = armed.bench.timed();
    assert_eq!(
        what,
        block.latency.area
            + u64::from(block.function) * u64::from(block.machine.lines) * trapline_record::latency::STRIDE
    );
    armed.entry(trampoline, entry::TIME).fetch_add(1 << 60, Ordering::Relaxed);
    1
}

/// SLOT-2; and a stamp of the future counts as no time.
#[test]
fn an_entry_says_where_its_call_returns_to() {
    for machine in machines(by_hand) {
        on_cpu(1);
        let armed = Armed::new(machine, 64);
        let code = armed.function(None, &[PUSH, CALL, POP, RET]);
        WITHIN.set(&raw const armed);
        for _ in 0..20 {
            assert_eq!(call(code, within as *const () as u64, 0), 1);
        }
        let found = [at::CLAMPED, at::BEGUN, at::TOTAL].map(|word| armed.bench.sum(word));
        assert_eq!(found, [20, 20, 0], "{machine:?}");
        armed.expect(20, 0);
    }
}

/// The second word of each trampoline leads to the code that all share. Unwinders have frame information from
/// right behind that word.
#[test]
fn trampolines_lie_side_by_side() {
    let armed = Armed::new(machines(by_hand)[0], 64);
    assert_eq!(armed.shared.0, armed.trampolines.code + armed.trampolines.code_len());
    assert!(
        armed.shared.1 > armed.shared.0 && armed.trampolines.entry(1) - armed.trampolines.entry(0) == ENTRY
    );
    for trampoline in 0..64 {
        let at = armed.trampolines.address(trampoline);
        let two =
            word(at & !7).load(Ordering::Relaxed) >> 32 | word((at & !7) + 8).load(Ordering::Relaxed) << 32;
        // movz x30, #trampoline; b
        assert_eq!(two as u32, 0xD280_001E | trampoline << 5);
        assert_eq!(Some((two >> 32) as u32), encode::b(at + 4, armed.shared.0));
    }
}

/// LOSS-1: threads migrate and are interrupted while they take a trampoline and while they return, and their
/// handlers call the same function.
#[test]
fn no_call_is_lost() {
    for machine in machines(registered) {
        let armed = Armed::new(machine, 256);
        let (called, handled) = storm(armed.function(None, &[ADD, RET]));
        armed.expect(called + handled, 0);
    }
}
