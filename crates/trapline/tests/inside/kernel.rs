//! The scenarios of the kernel's own tests of its probes (selftests/bpf: uprobe_multi, uprobe,
//! uprobe_syscall), in the test's own process. What the running kernel can do from here, it does in the same
//! run, on a copy of the same library, and both must agree. Perf events count and sample; BPF programs count
//! too, and are sessions (Linux 6.13). Registers that a program of the kernel's changes are compared only
//! where its verifier allows writes to its context. 6.18's does not (`invalid bpf_context access`). There,
//! `registers_that_are_changed_arrive_as_the_kernels_do` is skipped with the verifier's words.
//! `registers_that_a_handler_changes_arrive_and_no_others_change` checks the same for this engine alone,
//! everywhere.
#![allow(unsafe_code, reason = "handlers that change registers, a call with chosen registers")]

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use trapline::inside::{
    Consumer, Error, Gpr, Hit, Regs, Request, Verdict, find, register_all, unregister_all,
};
use trapline_tests::bpf;
use trapline_tests::or_skip;
use trapline_tests::oracle::{self, Kernel, Registers};

use crate::calls::{counting, word};
use crate::victim::Victim;

fn tid() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::gettid() as u32 }
}

/// Counts returns of calls, at most as deep as the kernel supports.
fn returning(into: &'static AtomicU64) -> Consumer {
    let consumer = Consumer::returns(move |_| {
        into.fetch_add(1, Relaxed);
    });
    consumer.maxactive(64)
}

/// A library with probes of this engine, and its twin with the kernel's.
pub(crate) struct Twins {
    pub(crate) ours: Victim,
    pub(crate) kernels: Victim,
}

impl Twins {
    pub(crate) fn load() -> Self {
        Self { ours: Victim::load(), kernels: Victim::load() }
    }
    /// The kernel's probes, for this thread.
    pub(crate) fn oracle(&self, places: &[(&str, bool)]) -> Result<Kernel, String> {
        let places: Vec<(u64, bool)> =
            places.iter().map(|&(name, returns)| (self.kernels.offset(name), returns)).collect();
        oracle::attach_at(&self.kernels.path, &places, tid())
    }
    pub(crate) fn both(&self) -> [&Victim; 2] {
        [&self.ours, &self.kernels]
    }
}

#[test]
fn entries_and_returns_are_counted_as_the_kernel_counts_them() {
    const PLACES: [(&str, bool); 9] = [
        ("add", false),
        ("add", true),
        ("twice", false),
        ("twice", true),
        ("fib", false),
        ("scale", true),
        ("deep", false),
        ("deep", true),
        ("tail", false),
    ];
    let twins = Twins::load();
    let kernel = or_skip!(twins.oracle(&PLACES));
    let words = PLACES.map(|_| word());
    let consumer = |returns, into| if returns { returning(into) } else { counting(into) };
    let requests = PLACES.iter().zip(words).map(|(&(name, returns), into)| {
        Request::new(&twins.ours.path, twins.ours.offset(name), consumer(returns, into))
    });
    let probes = register_all(requests).expect("registered");
    let call_all = |round: u64| {
        for victim in twins.both() {
            let [add, twice, fib, deep, tail] =
                ["add", "twice", "fib", "deep", "tail"].map(|name| victim.function(name));
            for n in 0..20 {
                // Above 100 it calls add too.
                assert_eq!(twice(96 + n, 0), if n < 5 { 2 * (96 + n) } else { 4 * (96 + n) + 1 });
                assert_eq!(add(n, round), n * 3 + round);
                assert_eq!(deep(n, 0), (6 << n) - 1);
                assert_eq!(tail(n, 0), (n + 1) * 3 + 7);
                assert_eq!(victim.floats("scale")(2.0, n as f64), 2.0 * n as f64 + 0.5);
            }
            assert_eq!(fib(8, 0), 21);
        }
    };
    (0..4).for_each(call_all);
    let kernels = kernel.counts();
    let ours = words.map(|word| word.load(Relaxed));
    println!("{PLACES:?}: ours {ours:?}, the kernel's {kernels:?}");
    assert_eq!(ours.as_slice(), kernels);
    assert!(ours.iter().all(|count| *count >= 80));
    unregister_all(probes).expect("unregistered");
}

/// red_zone, inside a leaf: both words that it keeps below its stack pointer survive a hit. They do so by
/// this engine and by the kernel, at each call.
#[test]
fn the_red_zone_of_a_leaf_is_kept_as_the_kernel_keeps_it() {
    let twins = Twins::load();
    let [ours, kernels] = twins.both().map(|victim| victim.offset_of_address(victim.address("red_inside")));
    let kernel = or_skip!(oracle::attach_at(&twins.kernels.path, &[(kernels, false)], tid()));
    for (round, by_trap) in [false, true].into_iter().enumerate() {
        let count = word();
        let request = Request { by_trap, ..Request::new(&twins.ours.path, ours, counting(count)) };
        let probe = register_all([request]).expect("registered");
        for n in 0..10_u64 {
            let sums = twins.both().map(|victim| {
                let sum = word();
                assert_eq!(victim.function("red")(sum.as_ptr() as u64, n << 40 | n), 0);
                sum.load(Relaxed)
            });
            // A word and its complement.
            assert_eq!(sums, [u64::MAX; 2]);
        }
        assert_eq!((count.load(Relaxed), kernel.counts()), (10, vec![10 * (round as u64 + 1)]));
        unregister_all(probe).expect("unregistered");
    }
}

/// rax rcx rdx rbx rbp rsi rdi r8 to r15, as `with_registers` takes them.
type Chosen = [u64; 15];
/// Their hardware numbers.
const CHOSEN: [usize; 15] = [0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

fn patterns() -> Chosen {
    std::array::from_fn(|n| 0x0123_4567_89ab_cdef_u64.rotate_left(n as u32 * 4) ^ n as u64)
}

/// Calls `quiet` with these registers; returns those that it left.
fn call_with(victim: &Victim, registers: &Chosen) -> Chosen {
    // SAFETY: a function of these arguments that keeps what its callers need.
    let call: extern "C" fn(u64, *const Chosen, *mut Chosen) =
        unsafe { std::mem::transmute(victim.address("with_registers")) };
    let mut left = [0; 15];
    call(victim.address("quiet"), registers, &raw mut left);
    left
}

/// Registers kept for the test to read: hardware order, then rip and rflags.
static KEPT: Mutex<Vec<Registers>> = Mutex::new(Vec::new());

fn keep(regs: &Regs) {
    let mut all: Registers = [0; 18];
    all[..16].copy_from_slice(&regs.gpr);
    (all[16], all[17]) = (regs.rip, regs.rflags);
    KEPT.lock().expect("no handler fails").push(all);
}

#[test]
fn handlers_see_the_registers_that_the_kernels_see() {
    const RSP: usize = 4;
    let twins = Twins::load();
    let at = twins.kernels.offset("quiet");
    let [entry, exit] = [false, true].map(|returns| oracle::sample(&twins.kernels.path, at, returns, tid()));
    let (entry, exit) = (or_skip!(entry), or_skip!(exit));
    KEPT.lock().expect("not poisoned").reserve(16);
    let session = || {
        Consumer::session(
            |hit: &mut Hit<'_>| {
                keep(hit.regs());
                Verdict::Continue
            },
            |hit| keep(hit.regs()),
        )
    };
    let chosen = patterns();
    assert_eq!(call_with(&twins.kernels, &chosen), chosen, "unchanged by the kernel's probes");
    for by_trap in [false, true] {
        let request =
            Request { by_trap, ..Request::new(&twins.ours.path, twins.ours.offset("quiet"), session()) };
        let probe = register_all([request]).expect("registered");
        assert_eq!(call_with(&twins.ours, &chosen), chosen, "unchanged by ours");
        unregister_all(probe).expect("unregistered");
        let ours = std::mem::take(&mut *KEPT.lock().expect("not poisoned"));
        let [ours_entry, ours_exit] = ours.try_into().expect("an entry and a return");
        let [kernels_entry] = entry.hits().try_into().expect("one hit");
        let [kernels_exit] = exit.hits().try_into().expect("one return");
        // The frames below are the same, so all is equal except rip.
        let offset_in = |victim: &Victim, rip: u64| rip - victim.address("quiet");
        assert_eq!(ours_entry[..16], kernels_entry[..16]);
        assert_eq!(ours_entry[17], kernels_entry[17], "flags");
        assert_eq!(offset_in(&twins.ours, ours_entry[16]), 0);
        assert_eq!(offset_in(&twins.kernels, kernels_entry[16]), 0);
        for (nth, value) in CHOSEN.iter().zip(chosen) {
            assert_eq!(
                (ours_entry[*nth], ours_exit[*nth], kernels_exit[*nth]),
                (value, value, value),
                "{nth}"
            );
        }
        // This engine's exit is at the return instruction, the kernel's after it.
        assert_eq!((ours_exit[RSP], ours_exit[RSP] + 8), (ours_entry[RSP], kernels_exit[RSP]));
        assert_eq!(ours_exit[17], kernels_exit[17], "flags");
    }
}

/// uprobe_syscall's regs_change, and uprobe's regs_change_common: exact patterns, and everything else
/// unchanged.
#[test]
fn registers_that_a_handler_changes_arrive_and_no_others_change() {
    for by_trap in [false, true] {
        let victim = Victim::load();
        let changed =
            [Gpr::Rax, Gpr::Rcx, Gpr::R11, Gpr::Rdx, Gpr::R8, Gpr::R9, Gpr::R10, Gpr::Rsi, Gpr::Rdi];
        let consumer = Consumer::entry(move |hit: &mut Hit<'_>| {
            // SAFETY: the function and its caller take any values.
            let regs = unsafe { hit.regs_mut() };
            changed.iter().for_each(|&gpr| regs.set(gpr, 0x0807_0605_0403_0200 + gpr as u64));
            Verdict::Continue
        });
        let request = Request { by_trap, ..Request::new(&victim.path, victim.offset("quiet"), consumer) };
        let probe = register_all([request]).expect("registered");
        let (chosen, left) = (patterns(), call_with(&victim, &patterns()));
        for ((&nth, before), after) in CHOSEN.iter().zip(chosen).zip(left) {
            let is_changed = changed.iter().any(|&gpr| gpr as usize == nth);
            assert_eq!(after, if is_changed { 0x0807_0605_0403_0200 + nth as u64 } else { before }, "{nth}");
        }
        unregister_all(probe).expect("unregistered");
        assert_eq!(call_with(&victim, &chosen), chosen);
    }
}

/// session_cookie_recursive: six levels deep, every second level declines; cookies come back last first.
#[test]
fn recursive_cookies_come_back_last_first() {
    static SEEN: Mutex<Vec<(bool, u64)>> = Mutex::new(Vec::new());
    for by_trap in [false, true] {
        let victim = Victim::load();
        SEEN.lock().expect("not poisoned").reserve(64);
        let entered = word();
        let consumer = Consumer::session(
            |hit| {
                let cookie = entered.fetch_add(1, Relaxed) + 1;
                hit.set_cookie(cookie);
                SEEN.lock().expect("not poisoned").push((true, cookie));
                if cookie % 2 == 1 { Verdict::Continue } else { Verdict::IgnoreReturn }
            },
            |hit| SEEN.lock().expect("not poisoned").push((false, hit.cookie())),
        );
        let request = Request { by_trap, ..Request::new(&victim.path, victim.offset("deep"), consumer) };
        let probe = register_all([request]).expect("registered");
        assert_eq!(victim.function("deep")(5, 0), (6 << 5) - 1);
        unregister_all(probe).expect("unregistered");
        let seen = std::mem::take(&mut *SEEN.lock().expect("not poisoned"));
        let entries = (1..=6).map(|n| (true, n));
        assert_eq!(seen, entries.chain([5, 3, 1].map(|n| (false, n))).collect::<Vec<_>>());
    }
}

/// Registers changed by a program of the kernel's, and by a handler. Skipped where the verifier refuses such
/// a program, as 6.18's does.
#[test]
fn registers_that_are_changed_arrive_as_the_kernels_do() {
    /// Hardware numbers, and offsets in `struct pt_regs`: rax, rcx, r11, rdx, r8, r9, r10, rsi, rdi.
    const CHANGED: [(Gpr, i16); 9] = [
        (Gpr::Rax, 80),
        (Gpr::Rcx, 88),
        (Gpr::R11, 48),
        (Gpr::Rdx, 96),
        (Gpr::R8, 72),
        (Gpr::R9, 64),
        (Gpr::R10, 56),
        (Gpr::Rsi, 104),
        (Gpr::Rdi, 112),
    ];
    let word = |gpr: Gpr| 0x0807_0605_0403_0200 + gpr as u64;
    let twins = Twins::load();
    let words = CHANGED.map(|(gpr, at)| (at, word(gpr)));
    let at = twins.kernels.offset("quiet");
    let kernel = bpf::changing(&twins.kernels.path, at, std::process::id(), &words);
    let kernel =
        or_skip!(kernel.map_err(|why| format!("no register is changed by the kernel's probes: {why}")));
    let left = call_with(&twins.kernels, &patterns());
    assert_eq!(kernel.runs(), 1);
    assert_ne!(left, patterns());
    for by_trap in [false, true] {
        let consumer = Consumer::entry(move |hit: &mut Hit<'_>| {
            // SAFETY: the function and its caller take any values.
            let regs = unsafe { hit.regs_mut() };
            CHANGED.iter().for_each(|&(gpr, _)| regs.set(gpr, word(gpr)));
            Verdict::Continue
        });
        let request =
            Request { by_trap, ..Request::new(&twins.ours.path, twins.ours.offset("quiet"), consumer) };
        let probe = register_all([request]).expect("registered");
        assert_eq!(call_with(&twins.ours, &patterns()), left, "by trap: {by_trap}");
        unregister_all(probe).expect("unregistered");
    }
}

/// The uprobe test's versioned symbols: a name with its version means one function, as for its dynamic
/// linker.
#[test]
fn a_version_names_one_of_two_functions() {
    let twins = Twins::load();
    let path = twins.ours.path.to_str().expect("UTF-8");
    let at = |name: &str| find(path, name).expect(name);
    let (old, new): ((PathBuf, u64), (PathBuf, u64)) = (at("versioned@OLD"), at("versioned@NEW"));
    assert_eq!((old.1, new.1), (twins.ours.offset("first_version"), twins.ours.offset("second_version")));
    let words = [word(), word()];
    let requests =
        [old, new].into_iter().zip(words).map(|((file, at), into)| Request::new(file, at, counting(into)));
    let probes = register_all(requests).expect("registered");
    let kernel = twins.oracle(&[("first_version", false), ("second_version", false)]);
    for victim in twins.both() {
        let [old, new] = ["OLD", "NEW"].map(|version| victim.version("versioned", version));
        assert_eq!((old(1), new(1), new(2)), (2, 3, 4));
    }
    assert_eq!(words.map(|word| word.load(Relaxed)), [1, 2]);
    unregister_all(probes).expect("unregistered");
    assert_eq!(or_skip!(kernel).counts(), [1, 2]);
}

/// The same test's name without a version, which means two.
#[test]
fn a_name_of_two_functions_is_not_guessed() {
    let victim = Victim::load();
    let [path, first, second] = [victim.path.to_str().expect("UTF-8"), "versioned@OLD", "versioned@@NEW"];
    match find(path, "versioned").expect_err("two of them") {
        Error::Ambiguous { name, of, .. } => {
            assert_eq!(name, "versioned");
            let is_named =
                |name: &str| of.iter().filter(|one| one.starts_with(&format!("{name} at 0x"))).count();
            assert_eq!((of.len(), is_named(first), is_named(second)), (2, 1, 1), "{of:?}");
        }
        other => panic!("{other}"),
    }
    let default = find(path, "versioned@@").expect("what the linker takes");
    assert_eq!(default.1, victim.offset("second_version"));
}

/// attach_api_fails and attach_uprobe_fails: what neither accepts gives the kernel's number, and nothing of
/// the batch is left.
#[test]
fn what_is_in_the_way_has_the_kernels_number() {
    /// The kernel's internal number without a public name; here it is EOPNOTSUPP.
    const ENOTSUPP: i32 = 524;
    let twins = Twins::load();
    let plain = twins.both().map(|victim| victim.bytes("add"));
    let semaphore = twins.ours.offset_of_address(twins.ours.address("semaphore"));
    let [add, stops] = ["add", "stops"].map(|name| twins.ours.offset(name));
    let none: &[u64] = &[];
    let many = vec![add; (1 << 20) + 1];
    let own = [twins.ours.path.as_path(), &twins.kernels.path];
    let [directory, nothing, below] = ["/", "/nowhere", "/etc/passwd/below"].map(|path| [Path::new(path); 2]);
    let cases = [
        ("no site", own, none, none, [libc::EINVAL; 2]),
        ("more than 2^20 sites", own, &many, none, [libc::E2BIG; 2]),
        ("offset -1", own, &[add, u64::MAX], none, [libc::EINVAL; 2]),
        ("a directory", directory, &[add], none, [libc::EBADF; 2]),
        ("no file", nothing, &[add], none, [libc::ENOENT; 2]),
        ("below a file", below, &[add], none, [libc::ENOTDIR; 2]),
        ("two semaphores", own, &[add, add], &[semaphore, semaphore + 2], [libc::EINVAL; 2]),
        ("a breakpoint", own, &[add, stops], none, [libc::EOPNOTSUPP, ENOTSUPP]),
    ];
    for (what, [ours, kernels], offsets, semaphores, wanted) in cases {
        let request = |(n, &offset): (usize, &u64)| {
            let request = Request::new(ours, offset, Consumer::entry(|_| Verdict::Continue));
            Request { semaphore: semaphores.get(n).copied(), ..request }
        };
        let ours = register_all(offsets.iter().enumerate().map(request)).expect_err(what);
        let kernels = or_skip!(bpf::refusal(kernels, offsets, semaphores, std::process::id()));
        println!("{what}: ours {} ({ours}), the kernel's {kernels}", ours.errno());
        assert_eq!([ours.errno(), kernels], wanted, "{what}: {ours}");
        assert_eq!(twins.both().map(|victim| victim.bytes("add")), plain, "{what}: left behind");
    }
    // The judge does accept good requests.
    assert_eq!(or_skip!(bpf::refusal(own[1], &[add], none, std::process::id())), 0);
}

/// A trap of this engine, in a thread with another last exception, while the kernel has probes of its own in
/// the process. The kernel tries those first, and its signal then does not name the exception.
#[test]
fn traps_are_ours_beside_the_kernels_probes() {
    let twins = Twins::load();
    let kernel = or_skip!(twins.oracle(&[("add", false)]));
    let count = word();
    let request = Request::new(&twins.ours.path, twins.ours.offset("add"), counting(count)).by_trap();
    let probe = register_all([request]).expect("registered");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // A page that was never touched, so it faults.
            std::hint::black_box(vec![0u8; 1 << 22]).iter_mut().step_by(4096).for_each(|byte| *byte = 1);
            for n in 0..10 {
                assert_eq!(twins.ours.function("add")(n, 0), 3 * n);
            }
        });
    });
    assert_eq!((count.load(Relaxed), kernel.counts()), (10, vec![0]));
    unregister_all(probe).expect("unregistered");
}
