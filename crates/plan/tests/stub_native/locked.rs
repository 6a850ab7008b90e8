//! LOSS-2 without rseq: rings are locked, and rows are claimed (`record::ring`, L1 to L5; `record::tally`, R1
//! to R3). Every hit is written once, or counted, whatever runs between any two instructions.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use trapline_plan::filter::Sort;
use trapline_plan::x86_64::stub::{Liveness, Machine, Rings};
use trapline_record::ring::{HEAD, LOCKED, RecordKind, TRIES};
use trapline_record::tally::Rest;

use crate::arena::{Arena, call, machines};
use crate::counts::pin;
use crate::records::{PROBE, Reader, built, every_hit, rings_for, view};
use crate::state::ONE;
use crate::tallies::{Set, argument, of};

const BODY: [u8; 4] = [0x48, 0x89, 0xF8, 0xC3]; // mov rax, rdi; ret

fn without_rseq() -> Machine {
    let machine = machines()[0];
    assert!(machine.rseq.is_none());
    machine
}

fn recorded(arena: &mut Arena, machine: &Machine, rings: &Rings) -> u64 {
    let traced = every_hit(machine, rings, arena.word(0));
    built(arena, &traced, RecordKind::Entry, 1, &BODY)
}

/// Runs on one CPU, so that each hit begins with the same ring.
fn on_one_cpu(body: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // SAFETY: sched_getcpu has no precondition.
            pin(0, usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0));
            body();
        });
    });
}

#[test]
fn a_ring_that_is_taken_is_passed_over() {
    let machine = without_rseq();
    let mut arena = Arena::new();
    let rings = rings_for(&arena, &machine, 64 * 64, 64);
    let code = recorded(&mut arena, &machine, &rings);
    on_one_cpu(|| {
        let head = |ring| rings.area.ring(ring) + HEAD;
        let lock = |ring| view(&rings).set(head(ring), view(&rings).get(head(ring)) | LOCKED);
        let written = || -> Vec<u64> { (0..rings.area.rings).map(|n| view(&rings).get(head(n))).collect() };
        assert_eq!(call(code, 1), 1);
        let first = written().iter().position(|&head| head != 0).expect("one was written to") as u32;
        assert!(first.is_multiple_of(2), "{first}");
        for tries in 1..TRIES {
            assert!(lock(first + tries - 1));
            assert_eq!(call(code, 2), 2);
            assert_eq!(view(&rings).get(head(first + tries)), 64, "the next one that is free");
        }
        assert_eq!(arena.counted(0), 0);
        assert!(lock(first + TRIES - 1));
        assert_eq!(call(code, 3), 3);
        assert_eq!(arena.counted(0), 1, "none is left");
        let mut seen = 0;
        Reader::new(&rings).take(|_| seen += 1);
        assert_eq!(seen, TRIES);
        assert_eq!(written().iter().sum::<u64>(), u64::from(TRIES) * (64 + LOCKED), "nothing was unlocked");
    });
}

/// Start and end of the code that is single-stepped; the argument that a handler calls it with, and its
/// increment; and the number of such calls.
static BEGIN: AtomicU64 = AtomicU64::new(0);
static END: AtomicU64 = AtomicU64::new(0);
static WITH: AtomicU64 = AtomicU64::new(0);
static MORE: AtomicU64 = AtomicU64::new(0);
static STEPS: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_step(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes this signal's own context, which is only read.
    let at =
        unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize] } as u64;
    let code = BEGIN.load(Ordering::Relaxed);
    if (code..END.load(Ordering::Relaxed)).contains(&at) {
        STEPS.fetch_add(1, Ordering::Relaxed);
        call(code, WITH.fetch_add(MORE.load(Ordering::Relaxed), Ordering::Relaxed));
    }
}

/// Single-steps through a call of the code. Before each of its instructions a signal handler calls it too.
/// Returns how often.
fn step_by_step(code: u64, end: u64, argument: u64, more: u64) -> u64 {
    BEGIN.store(code, Ordering::Relaxed);
    END.store(end, Ordering::Relaxed);
    WITH.store(argument + more, Ordering::Relaxed);
    MORE.store(more, Ordering::Relaxed);
    STEPS.store(0, Ordering::Relaxed);
    // SAFETY: the handler only reads the context, stores to statics and runs code of the arena, which follows
    // the C calling convention. The trap flag is set around one call of such code, and the kernel clears it
    // while a handler runs.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = on_step as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        let mut before: libc::sigaction = core::mem::zeroed();
        assert_eq!(libc::sigaction(libc::SIGTRAP, &raw const action, &raw mut before), 0);
        let returned: u64;
        core::arch::asm!(
            "pushfq",
            "or dword ptr [rsp], 256",
            "popfq",
            "call {code}",
            "pushfq",
            "and dword ptr [rsp], -257",
            "popfq",
            code = in(reg) code,
            in("rdi") argument,
            lateout("rax") returned,
            clobber_abi("C"),
        );
        libc::sigaction(libc::SIGTRAP, &raw const before, core::ptr::null_mut());
        assert_eq!(returned, argument);
    }
    STEPS.load(Ordering::Relaxed)
}

#[test]
fn a_handler_at_any_instruction_writes_a_record_of_its_own() {
    let _one = ONE.lock();
    let machine = without_rseq();
    let mut arena = Arena::new();
    let rings = rings_for(&arena, &machine, 64 * 256, 64);
    let code = recorded(&mut arena, &machine, &rings);
    let end = arena.next();
    on_one_cpu(|| {
        let steps = step_by_step(code, end, 1000, 1);
        assert!(steps > 30, "{steps}");
        let (mut seen, mut used) = (Vec::new(), 0);
        let mut reader = Reader::new(&rings);
        reader.take(|record| seen.push((record.values[0], record.probe)));
        seen.sort_unstable();
        assert_eq!(seen, (0..=steps).map(|n| (1000 + n, PROBE)).collect::<Vec<_>>());
        (0..rings.area.rings)
            .for_each(|n| used += u32::from(view(&rings).get(rings.area.ring(n) + HEAD) > 0));
        assert_eq!(
            (used, arena.counted(0)),
            (2, 0),
            "the next ring is for a thread that finds the first one taken"
        );
    });
}

#[test]
fn a_handler_at_any_instruction_is_in_a_row_too() {
    let _one = ONE.lock();
    let machine = without_rseq();
    for (first, more) in [(0, 0), (7, 0), (0, 1)] {
        let mut arena = Arena::new();
        let set = Set::new(&arena, &machine, of(argument(0, 64, false), Sort::Each), None);
        let code = set.build(&mut arena, Liveness::default(), RecordKind::Entry, &BODY);
        let end = arena.next();
        let steps = step_by_step(code, end, first, more);
        let mut expected = BTreeMap::new();
        (0..=steps).for_each(|n| *expected.entry(first + n * more).or_default() += 1);
        assert_eq!(set.read(), (expected, Rest::default()), "{first} {more}");
        assert!(steps > 20, "{steps}");
    }
}

/// Forked children write to the same rings.
#[test]
fn forked_children_share_the_rings() {
    const CALLS: u64 = 50_000;
    let machine = without_rseq();
    let mut arena = Arena::new();
    let rings = rings_for(&arena, &machine, 64 * 256, 64);
    let code = recorded(&mut arena, &machine, &rings);
    // SAFETY: the child only runs generated code and ends by _exit.
    let all: Vec<i32> = (0..4)
        .map(|child| unsafe {
            let pid = libc::fork();
            if pid == 0 {
                (0..CALLS).for_each(|n| {
                    call(code, child * CALLS + n);
                });
                libc::_exit(0);
            }
            pid
        })
        .collect();
    let (mut reader, mut seen, mut children) = (Reader::new(&rings), Vec::new(), all.clone());
    let mut take = |seen: &mut Vec<u64>| {
        reader.take(|record| {
            let child = all[(record.values[0] / CALLS) as usize];
            assert_eq!(record.tid, child.cast_unsigned(), "the child's own number, not its parent's");
            seen.push(record.values[0]);
        });
    };
    while !children.is_empty() {
        take(&mut seen);
        // SAFETY: our own children, which are not waited for elsewhere.
        children.retain(|&pid| unsafe { libc::waitpid(pid, core::ptr::null_mut(), libc::WNOHANG) } == 0);
    }
    take(&mut seen);
    assert_eq!(seen.len() as u64 + arena.counted(0), 4 * CALLS);
    seen.sort_unstable();
    // At least one ring's capacity is written, whatever the reader does.
    assert!(seen.is_sorted_by(|a, b| a < b) && seen.len() >= 256, "{} records, each once", seen.len());
}
