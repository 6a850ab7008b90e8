//! Return trampolines: every armed call returns to where it was called from, is counted once, and gives its
//! trampoline back (SLOT-1 to SLOT-3).

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;

use trapline_plan::x86_64::stub::{
    Latency, Liveness, Machine, Timed, latency_arm, leading_trampoline_code, return_arm, trampoline_code,
};
use trapline_record::latency::at;
use trapline_record::trampolines::{CHAIN, Trampolines, at as entry};

use crate::arena::{Arena, call, get, machines, unregister};
use crate::counts::{everywhere, storm};

/// Number of return trampolines in use.
pub(crate) fn lent(trampolines: &Trampolines) -> usize {
    let words =
        (0..u64::from(trampolines.count) / 8).map(|n| get(trampolines.table + Trampolines::LENT_OFF + n * 8));
    words.map(|word| word.to_le_bytes().iter().filter(|byte| **byte != 0).count()).sum()
}

/// A function with armed calls, and `body` behind that.
pub(crate) fn armed(
    arena: &mut Arena,
    machine: &Machine,
    latency: &Latency,
    function: u32,
    body: &[u8],
) -> u64 {
    let mut out = Vec::new();
    let timed = Timed { machine, latency, function, site: Liveness::default() };
    let pending = latency_arm(&mut out, arena.next(), &timed).expect("slots");
    out.extend(body);
    pending.finish(&mut out, None).expect("code");
    arena.put(&out)
}

/// `mov rax, rdi; ret`
pub(crate) const SAME: [u8; 4] = [0x48, 0x89, 0xF8, 0xC3];

/// `jmp [rip]` to any address.
pub(crate) fn jump_to(to: u64) -> Vec<u8> {
    [&[0xFF, 0x25, 0, 0, 0, 0][..], &to.to_le_bytes()].concat()
}

/// Calls `function` with rdi, `depth` calls deep: rdi counts down, rax up.
///
/// `xor eax, eax; test rdi, rdi; je 1f; dec rdi; sub rsp, 8; mov rax, self; call rax; add rsp, 8; inc rax; 1:
/// ret`
fn recursive(entry: u64) -> Vec<u8> {
    let mut code = vec![0x31, 0xC0, 0x48, 0x85, 0xFF, 0x74, 0, 0x48, 0xFF, 0xCF, 0x48, 0x83, 0xEC, 8];
    code.extend([0x48, 0xB8]);
    code.extend(entry.to_le_bytes());
    code.extend([0xFF, 0xD0, 0x48, 0x83, 0xC4, 8, 0x48, 0xFF, 0xC0]);
    code[6] = (code.len() - 7) as u8;
    code.push(0xC3);
    code
}

#[test]
fn calls_are_counted_once_and_trampolines_come_back() {
    for machine in machines() {
        let mut arena = Arena::new();
        let (latency, trampolines) = arena.armed(&machine, 64);
        let code = armed(&mut arena, &machine, &latency, 3, &SAME);
        (0..10_000).for_each(|n| assert_eq!(call(code, n), n));
        assert_eq!(arena.begun_and_ended(3), (10_000, 10_000), "{machine:?}");
        assert!(arena.timed(3, at::TOTAL) > 0 && arena.max(3, at::MAX) < 1 << 40);
        assert_eq!((lent(&trampolines), get(latency.missed)), (0, 0));
    }
}

/// Calls that are too short to be kept have no bucket, so they are counted as returns.
#[test]
fn short_armed_calls_are_known_to_have_ended() {
    for machine in machines() {
        let mut arena = Arena::new();
        let (latency, trampolines) = arena.armed_by(&machine, 64, |machine, latency| {
            trampoline_code(machine, &Latency { min_ticks: 1 << 60, ..*latency })
        });
        let code = armed(&mut arena, &machine, &latency, 3, &SAME);
        (0..1000).for_each(|n| assert_eq!(call(code, n), n));
        assert_eq!([at::BEGUN, at::RETURNS, at::TOTAL].map(|word| arena.timed(3, word)), [1000, 1000, 0]);
        assert_eq!((lent(&trampolines), get(latency.missed)), (0, 0), "{machine:?}");
    }
}

#[test]
fn recursion_deeper_than_the_pool_runs_unprobed_and_is_counted() {
    for machine in machines() {
        for (count, depth) in [(64, 63), (64, 64), (64, 1000), (1024, 1000)] {
            let mut arena = Arena::new();
            let (latency, trampolines) = arena.armed(&machine, count);
            let entry = arena.next();
            let code = armed(&mut arena, &machine, &latency, 5, &recursive(entry));
            assert_eq!(code, entry);
            for _ in 0..3 {
                assert_eq!(call(code, depth), depth);
            }
            let calls = depth + 1;
            let missed = calls.saturating_sub(count.into());
            let armed = 3 * (calls - missed);
            assert_eq!(arena.begun_and_ended(5), (armed, armed), "{machine:?} {count} {depth}");
            assert_eq!((lent(&trampolines), get(latency.missed)), (0, 3 * missed));
        }
    }
}

#[test]
fn tail_calls_return_through_each_trampoline() {
    for machine in machines() {
        let mut arena = Arena::new();
        let (latency, trampolines) = arena.armed(&machine, 256);
        let mut next = armed(&mut arena, &machine, &latency, 0, &SAME);
        for function in 1..=40 {
            next = armed(&mut arena, &machine, &latency, function, &jump_to(next));
        }
        (0..100).for_each(|n| assert_eq!(call(next, n), n));
        let both: Vec<(u64, u64)> = (0..=40).map(|f| arena.begun_and_ended(f)).collect();
        assert!(both.iter().all(|(begun, ended)| begun == ended), "{both:?}");
        let returns: Vec<u64> = both.into_iter().map(|(_, ended)| ended).collect();
        let armed = returns.iter().filter(|&&n| n == 100).count() as u64;
        assert_eq!((armed, returns.iter().sum::<u64>()), (u64::from(CHAIN), 100 * u64::from(CHAIN)));
        assert!(returns[40] == 100 && returns[0] == 0, "the outermost are armed: {returns:?}");
        assert_eq!(get(latency.missed), 100 * (41 - u64::from(CHAIN)));
        assert_eq!(lent(&trampolines), 0);
    }
}

/// A function with calls that are armed by trampolines which lead on to `lead`, and `body` behind that.
fn leading(arena: &mut Arena, machine: &Machine, latency: &Latency, body: &[u8], lead: u64) -> u64 {
    let mut out = Vec::new();
    let timed = Timed { machine, latency, function: 0, site: Liveness::default() };
    let pending = return_arm(&mut out, arena.next(), &timed).expect("slots");
    out.extend(body);
    pending.finish(&mut out, None).expect("code");
    let word = out.len() - 8;
    assert_eq!(out[word..], [0; 8], "it says nowhere yet");
    out[word..].copy_from_slice(&lead.to_le_bytes());
    arena.put(&out)
}

/// The code behind a return trampoline finds registers and stack as the function's `ret` does, once for each
/// call. No trampoline is in use then.
#[test]
fn a_trampoline_leads_on_with_everything_as_the_function_left_it() {
    for machine in machines() {
        let mut arena = Arena::new();
        let (latency, trampolines) = arena.armed_by(&machine, 64, leading_trampoline_code);
        // lea rax, [rax + rdi + 1]; ret
        let lead = arena.put(&[0x48, 0x8D, 0x44, 0x38, 0x01, 0xC3]);
        let one = leading(&mut arena, &machine, &latency, &SAME, lead);
        (0..10_000).for_each(|n| assert_eq!(call(one, n), 2 * n + 1, "{machine:?}"));
        assert_eq!((lent(&trampolines), get(latency.missed)), (0, 0));
        // A chain of tail calls returns through each trampoline.
        let two = leading(&mut arena, &machine, &latency, &jump_to(one), lead);
        let three = leading(&mut arena, &machine, &latency, &jump_to(two), lead);
        (0..1000).for_each(|n| assert_eq!(call(three, n), n + 3 * (n + 1), "{machine:?}"));
        // Deeper than the number of trampolines. Each call that got one adds rdi + 1, which is 1 at the
        // bottom of all.
        let entry = arena.next();
        let deep = leading(&mut arena, &machine, &latency, &recursive(entry), lead);
        assert_eq!(call(deep, 200), 200 + 64, "{machine:?}");
        assert_eq!((lent(&trampolines), get(latency.missed)), (0, 201 - 64));
    }
}

/// A call that is left without a return: its entry stays, and the next call takes another trampoline.
#[test]
fn what_is_never_returned_from_stays_lent() {
    let machine = machines()[0];
    let mut arena = Arena::new();
    let (latency, trampolines) = arena.armed(&machine, 64);
    // pop rcx; pop rdx; jmp rdx: what longjmp does to the call that it leaves.
    let leave = armed(&mut arena, &machine, &latency, 1, &[0x59, 0x5A, 0xFF, 0xE2]);
    // mov rax, leave; call rax
    let mut body = vec![0x48, 0xB8];
    body.extend(leave.to_le_bytes());
    body.extend([0xFF, 0xD0]);
    let mut caller = body.clone();
    caller.extend([0xCC]);
    let caller = arena.put(&caller);
    (1..=64).for_each(|n| {
        call(caller, 0);
        assert_eq!(lent(&trampolines), n);
    });
    call(caller, 0);
    assert_eq!((lent(&trampolines), get(latency.missed)), (64, 1));
    assert_eq!(arena.begun_and_ended(1), (64, 0), "what was left is known without the trampolines");
    let words: Vec<u64> =
        (0..64).map(|trampoline| get(trampolines.entry(trampoline) + entry::WORD)).collect();
    assert!(words.iter().all(|word| *word != 0 && *word == words[0]), "one place on the stack: {words:x?}");
}

#[test]
fn threads_signals_and_migrations_lose_no_trampoline() {
    for machine in machines() {
        let mut arena = Arena::new();
        let (latency, trampolines) = arena.armed(&machine, 512);
        let entry = arena.next();
        let code = armed(&mut arena, &machine, &latency, 2, &recursive(entry));
        const ROUNDS: u64 = 20_000;
        let calls = std::sync::atomic::AtomicU64::new(0);
        let handled = storm(code, || {
            everywhere(|| {
                for n in 0..ROUNDS {
                    assert_eq!(call(code, n % 12), n % 12);
                    calls.fetch_add(n % 12 + 1, std::sync::atomic::Ordering::Relaxed);
                }
            });
        });
        let all = calls.into_inner() + 2 * handled;
        assert_eq!(arena.begun_and_ended(2), (all, all), "{machine:?}");
        assert_eq!((lent(&trampolines), get(latency.missed)), (0, 0));
    }
}

#[test]
fn unregistered_threads_come_back_too() {
    let Some(machine) = machines().pop().filter(|machine| machine.rseq.is_some()) else { return };
    let mut arena = Arena::new();
    let (latency, trampolines) = arena.armed(&machine, 64);
    let code = armed(&mut arena, &machine, &latency, 3, &SAME);
    let run = || {
        unregister();
        (0..1000).for_each(|n| assert_eq!(call(code, n), n));
    };
    std::thread::scope(|scope| scope.spawn(run).join().expect("a thread"));
    assert_eq!((arena.begun_and_ended(3), lent(&trampolines)), ((1000, 1000), 0));
}

#[test]
fn a_child_has_trampolines_of_its_own() {
    let machine = machines()[0];
    let mut arena = Arena::new();
    let (latency, trampolines) = arena.armed(&machine, 64);
    // fork from within an armed call: parent and child return through the same trampoline.
    let code = armed(&mut arena, &machine, &latency, 4, &jump_to(libc::fork as *const () as u64));
    let child = call(code, 0) as i32;
    if child == 0 {
        let (free, next) = (lent(&trampolines) == 0, call(code, 0) as i32);
        // The ends of its own child's calls are counted below, so it waits for that one. That one has no child.
        // SAFETY: waits for our own child, and writes nothing.
        let waited = next == 0 || unsafe { libc::waitpid(next, core::ptr::null_mut(), 0) } == next;
        // SAFETY: ends the child at once, and the child's own child too, which runs the same line.
        unsafe { libc::_exit(i32::from(!(free && waited))) };
    }
    let mut status = -1;
    // SAFETY: waits for our own child, and writes its status to a local variable.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!((status, lent(&trampolines)), (0, 0));
    // One call was under way at each fork, and ended in both: two forks, four ends. No call is left by this.
    assert_eq!(arena.begun_and_ended(4), (2, 4));
}

unsafe extern "C" {
    fn __register_frame(begin: u64);
    fn __deregister_frame(begin: u64);
    fn backtrace(buffer: *mut u64, size: i32) -> i32;
}

static SEEN: Mutex<Vec<u64>> = Mutex::new(Vec::new());

extern "C-unwind" fn look(depth: u64) -> u64 {
    if depth > 100 {
        resume_unwind(Box::new(depth));
    }
    let mut frames = vec![0; 64];
    // SAFETY: the buffer has room for this many addresses.
    let count = unsafe { backtrace(frames.as_mut_ptr(), 64) };
    frames.truncate(count as usize);
    *SEEN.lock().expect("one user") = frames;
    depth + 1
}

#[allow(ffi_unwind_calls, reason = "what it leads to is Rust, and the test is about unwinding out of it")]
fn unwinding(code: u64, arg: u64) -> u64 {
    // SAFETY: as for `call`; the code that it leads to may unwind.
    let f: extern "C-unwind" fn(u64) -> u64 = unsafe { core::mem::transmute(code) };
    f(arg)
}

/// Frames as an unwinder sees them, from the caller on.
#[inline(never)]
fn seen_from(code: u64) -> Vec<u64> {
    assert_eq!(std::hint::black_box(unwinding(code, 1)), 2);
    core::mem::take(&mut *SEEN.lock().expect("one user"))
}

#[test]
fn unwinders_walk_through_one_trampoline_and_through_a_chain() {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
    let machine = machines()[0];
    let mut arena = Arena::new();
    let (latency, trampolines) = arena.armed(&machine, 64);
    let plain = arena.put(&jump_to(look as *const () as u64));
    let single = armed(&mut arena, &machine, &latency, 6, &jump_to(look as *const () as u64));
    let chain = (7..12).fold(single, |next, f| armed(&mut arena, &machine, &latency, f, &jump_to(next)));
    let mut seen = Vec::new();
    for (code, with_tables) in [(plain, false), (single, false), (single, true), (chain, true)] {
        if with_tables && seen.len() == 2 {
            // SAFETY: the frame information is complete, and is deregistered before its memory is unmapped.
            unsafe { __register_frame(arena.unwind()) };
        }
        seen.push(seen_from(code));
    }
    let bare = &seen[0];
    assert!(seen[1].len() < bare.len(), "an unwinder that was not set up got through");
    for through in &mut seen[2..].to_vec() {
        let trampoline =
            through.iter().position(|pc| trampolines.number_of(*pc).is_some()).expect("a slot's frame");
        through.remove(trampoline);
        // An unwinder with these frames finds the caller by the byte before its return address.
        through[trampoline] += 1;
        assert_eq!(through.len(), bare.len());
        // Frame 2 is this function, which may make the call from several places.
        let differ = (0..bare.len()).filter(|&n| n != 2 && through[n] != bare[n]);
        assert_eq!(differ.count(), 0, "{through:x?} {bare:x?}");
    }
    for code in [single, chain] {
        let left = catch_unwind(AssertUnwindSafe(|| unwinding(code, 101)));
        assert_eq!(left.expect_err("it unwinds").downcast_ref::<u64>(), Some(&101));
        assert_eq!(call(code, 1), 2, "and again");
    }
    // SAFETY: the same address as was registered.
    unsafe { __deregister_frame(arena.unwind()) };
    assert_eq!(lent(&trampolines), 1 + 6, "left by unwinding");
}
