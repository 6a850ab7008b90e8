//! Registrations one by one, as many as a library has functions; and places that no jump reaches.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![allow(unsafe_code, reason = "functions are called by address; address space is taken")]

use std::ffi::CString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use trapline::inside::{
    Consumer, Error, Registration, Request, Tactic, Verdict, register, register_all, unregister_all,
};

/// Gives one test the address space to itself.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Function beginnings as compilers make them: with a frame, without one, with a check, with a data access,
/// and one too short for a jump without the bytes after it.
const BODIES: [&str; 5] = [
    "endbr64\npush %rbp\nmov %rsp,%rbp\nlea {n}(%rdi),%rax\npop %rbp\nret",
    "mov %rdi,%rax\nadd ${n},%rax\nret",
    "test %rdi,%rdi\nlea {n}(%rdi),%rax\nje 1f\nnop\n1: ret",
    "mov base(%rip),%rax\nlea {n}(%rax,%rdi),%rax\nret",
    "push %rdi\npop %rax\njmp 1f\n1: add ${n},%rax\nret",
];

/// A library with functions of one word that add their number to it.
struct Library {
    path: PathBuf,
    addresses: Vec<u64>,
    offsets: Vec<u64>,
}

impl Library {
    fn load(name: &str, count: usize) -> Self {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let path = dir.join(format!("{name}-{}.so", std::process::id()));
        let source = path.with_extension("s");
        let mut text = String::from(".data\nbase: .quad 0\n.text\n.globl first\nfirst:\n");
        for n in 0..count {
            let body = BODIES[n % BODIES.len()].replace("{n}", &n.to_string());
            writeln!(text, ".p2align 4,0xcc\n.type f{n},@function\nf{n}:\n{body}\n.size f{n},.-f{n}")
                .expect("a string");
        }
        text.push_str(".section .rodata\n.globl table\ntable:\n");
        (0..count).for_each(|n| writeln!(text, ".long f{n}-first").expect("a string"));
        text.push_str(".section .note.GNU-stack,\"\",@progbits\n");
        std::fs::write(&source, text).expect("written");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-nostdlib"]).arg(&source).arg("-o").arg(&path);
        assert!(cc.status().expect("an assembler").success());
        std::fs::remove_file(&source).expect("there");
        let c_path = CString::new(path.as_os_str().as_encoded_bytes()).expect("a path");
        // SAFETY: a library without constructors, which stays loaded; two names that it has; a table of as
        // many words.
        let (first, table) = unsafe {
            let handle = libc::dlopen(c_path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            assert!(!handle.is_null());
            let [first, table] = [c"first", c"table"].map(|name| libc::dlsym(handle, name.as_ptr()));
            (first as u64, std::slice::from_raw_parts(table.cast::<i32>(), count))
        };
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        let line = maps
            .lines()
            .find(|line| line.contains(" r-xp ") && line.ends_with(path.to_str().expect("UTF-8")));
        let mut words = line.expect("its text is mapped").split_whitespace();
        let range = words.next().and_then(|range| range.split_once('-')).expect("a range");
        let number = |text: &str| u64::from_str_radix(text, 16).expect("a number");
        let (start, offset) = (number(range.0), number(words.nth(1).expect("an offset")));
        let addresses: Vec<u64> = table.iter().map(|by| first.wrapping_add_signed((*by).into())).collect();
        let offsets = addresses.iter().map(|at| at - start + offset).collect();
        Self { path, addresses, offsets }
    }
    fn call(&self, n: usize, with: u64) {
        // SAFETY: functions of one word.
        let function: extern "C" fn(u64) -> u64 = unsafe { std::mem::transmute(self.addresses[n]) };
        assert_eq!(function(with), with + n as u64, "{n}");
    }
    fn text(&self) -> Vec<u8> {
        let (start, end) = (self.addresses[0], self.addresses[self.addresses.len() - 1]);
        // SAFETY: the bytes from the first function to the last are mapped code.
        unsafe { std::slice::from_raw_parts(start as *const u8, (end - start) as usize) }.to_vec()
    }
}

fn counting(into: &'static AtomicU64) -> Consumer {
    Consumer::entry(move |_| {
        into.fetch_add(1, Relaxed);
        Verdict::Continue
    })
}

/// How often this process asked for a membarrier, by kind: full barriers, with which a grace period begins,
/// and core syncs, for which a change of code waits.
static BARRIERS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// From here on, calls of this thread and of threads that it starts are counted: each traps, and its handler
/// repeats it with a mark.
fn count_barriers() {
    const MARK: u32 = 0x5EED_BA44;
    extern "C" fn on_call(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel's context of this signal, with the call's registers; the call has no pointers.
        unsafe {
            let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
            let [command, flags, cpu] =
                [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX].map(|at| registers[at as usize]);
            let kind = [8, 32].iter().position(|kind| *kind == command);
            if let Some(kind) = kind {
                BARRIERS[kind].fetch_add(1, Relaxed);
            }
            let done = libc::syscall(libc::SYS_membarrier, command, flags, cpu, 0, 0, u64::from(MARK));
            let errno = i64::from(*libc::__errno_location());
            registers[libc::REG_RAX as usize] = if done < 0 { -errno } else { done };
        }
    }
    let (load, equal, answer) = (0x20, 0x15, 0x06);
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let filter = [
        step(load, 0, 0, 0),
        step(equal, 0, 3, libc::SYS_membarrier as u32),
        step(load, 0, 0, 16 + 5 * 8), // the sixth argument's lower half
        step(equal, 1, 0, MARK),
        step(answer, 0, 0, libc::SECCOMP_RET_TRAP),
        step(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the program is live and as long as it says; the handler uses what it is given.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_call as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()), 0);
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

/// Barriers that `action` asks for.
fn barriers(action: impl FnOnce()) -> [u64; 2] {
    let all = || BARRIERS.each_ref().map(|kind| kind.load(Relaxed));
    let before = all();
    action();
    std::array::from_fn(|kind| all()[kind] - before[kind])
}

/// A thousand sites ask for as many grace periods as a single one, both when they are registered and when
/// they are unregistered. They ask for no more core syncs than there are kinds of patches.
#[test]
fn a_batch_pays_one_grace_period() {
    trapline_tests::alone("a_batch_pays_one_grace_period", || {
        const COUNT: usize = 1000;
        static ALL: AtomicU64 = AtomicU64::new(0);
        count_barriers();
        let library = Library::load("graces", COUNT);
        let before = library.text();
        for by_trap in [false, true] {
            let paid = [1, 1, COUNT].map(|count| {
                let request =
                    |at: &u64| Request { by_trap, ..Request::new(&library.path, *at, counting(&ALL)) };
                let requests: Vec<Request> = library.offsets[..count].iter().map(request).collect();
                let mut probes = Vec::new();
                let comes = barriers(|| probes = register_all(requests).expect("registered"));
                (0..COUNT).for_each(|n| library.call(n, 1));
                assert_eq!(ALL.swap(0, Relaxed), count as u64);
                let goes = barriers(|| unregister_all(probes).expect("unregistered"));
                assert!(before == library.text());
                [comes, goes]
            });
            let [_first, one, many] = paid;
            println!(
                "by trap: {by_trap}; [graces, core syncs] of coming and going: {one:?} for 1, {many:?} for {COUNT}"
            );
            assert!(one[1][0] > 0, "no thread waited: {one:?}");
            // If windows change in steps, each kind of patch (exits, entries, islands) takes its own core
            // syncs: two to come, three to go.
            let more: [u64; 2] = std::array::from_fn(|way| many[way][1].abs_diff(one[way][1]));
            assert!(more[0] <= 2 * 2 && more[1] <= 2 * 3, "by trap: {by_trap}: {more:?}");
            let graces = |paid: [[u64; 2]; 2]| paid.map(|[graces, _]| graces);
            assert_eq!(graces(one), graces(many), "by trap: {by_trap}");
        }
    });
}

fn mappings_of_ours() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    maps.lines().filter(|line| line.contains("memfd:trapline")).count()
}

/// The file is not known, so another thread parses it and looks at its code meanwhile.
#[test]
fn thousands_at_once_are_all_or_none() {
    const COUNT: usize = 8_000;
    static ALL: AtomicU64 = AtomicU64::new(0);
    let _alone = alone();
    for is_whole in [false, true] {
        let library = Library::load(if is_whole { "whole" } else { "spoiled" }, COUNT);
        let before = library.text();
        let request = |offset: &u64| Request::new(&library.path, *offset, counting(&ALL));
        let mut requests: Vec<Request> = library.offsets.iter().map(request).collect();
        if !is_whole {
            // After the first byte of `endbr64`.
            requests.push(request(&(library.offsets[5] + 1)));
        }
        let probes = register_all(requests);
        assert_eq!(probes.is_ok(), is_whole);
        if let Err(error) = &probes {
            assert!(matches!(error, Error::InsideInstruction { .. }), "{error}");
            assert!(before == library.text());
        }
        (0..COUNT).for_each(|n| library.call(n, 2));
        assert_eq!(ALL.load(Relaxed), if is_whole { COUNT as u64 } else { 0 });
        unregister_all(probes.into_iter().flatten()).expect("unregistered");
        assert!(before == library.text());
        std::fs::remove_file(&library.path).expect("there");
    }
}

/// Several threads plan and write a batch, while signals arrive that any thread may take. Only the program's
/// own threads may take them.
#[test]
fn threads_of_a_batch_take_no_signals() {
    trapline_tests::alone("threads_of_a_batch_take_no_signals", || {
        const COUNT: usize = 20_000;
        static ALL: AtomicU64 = AtomicU64::new(0);
        /// Thread that registers; number of signals that arrived there, and elsewhere.
        static OWN: AtomicI32 = AtomicI32::new(0);
        static TAKEN: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
        static OVER: AtomicBool = AtomicBool::new(false);
        extern "C" fn take(_: i32) {
            // SAFETY: no arguments.
            let here = unsafe { libc::gettid() };
            TAKEN[usize::from(here != OWN.load(Relaxed))].fetch_add(1, Relaxed);
        }
        /// The first thread takes no signal any more.
        static BLOCKED: AtomicBool = AtomicBool::new(false);
        /// The thread that takes this signal takes none of the others from now on: none in this handler, by
        /// its action's mask, and none behind it.
        extern "C" fn block(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
            // SAFETY: the kernel's context of this signal.
            unsafe {
                libc::sigaddset(&raw mut (*context.cast::<libc::ucontext_t>()).uc_sigmask, libc::SIGUSR1)
            };
            BLOCKED.store(true, Relaxed);
        }
        let library = Library::load("signalled", COUNT);
        // SAFETY: the handlers use what they are given; the first thread of this process waits for this one.
        unsafe {
            OWN.store(libc::gettid(), Relaxed);
            let handlers = [(libc::SIGUSR1, take as *const ()), (libc::SIGUSR2, block as *const ())];
            for (signal, handler) in handlers {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = handler as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
                libc::sigaddset(&raw mut action.sa_mask, libc::SIGUSR1);
                assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
            }
            let first = libc::getpid();
            assert_eq!(libc::syscall(libc::SYS_tgkill, first, first, libc::SIGUSR2), 0);
        }
        let sender = std::thread::spawn(|| {
            // SAFETY: this thread's mask; signals to this process.
            unsafe {
                let mut one: libc::sigset_t = std::mem::zeroed();
                libc::sigaddset(&raw mut one, libc::SIGUSR1);
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const one, std::ptr::null_mut());
                while !OVER.load(Relaxed) {
                    libc::kill(libc::getpid(), libc::SIGUSR1);
                }
            }
        });
        while TAKEN[0].load(Relaxed) == 0 || !BLOCKED.load(Relaxed) {
            std::hint::spin_loop();
        }
        let before = TAKEN[1].load(Relaxed);
        let request = |offset: &u64| Request::new(&library.path, *offset, counting(&ALL));
        let probes = register_all(library.offsets.iter().map(request)).expect("registered");
        OVER.store(true, Relaxed);
        sender.join().expect("at its end");
        assert_eq!(TAKEN[1].load(Relaxed) - before, 0, "of {}", TAKEN[0].load(Relaxed));
        (0..COUNT).for_each(|n| library.call(n, 1));
        assert_eq!(ALL.load(Relaxed), COUNT as u64);
        unregister_all(probes).expect("unregistered");
    });
}

#[test]
fn thousands_are_registered_one_by_one() {
    const COUNT: usize = 8_000;
    static ALL: AtomicU64 = AtomicU64::new(0);
    let _alone = alone();
    let library = Library::load("many", COUNT);
    let before = library.text();
    let mut probes: Vec<Option<Registration>> = (0..COUNT).map(|_| None).collect();
    // Neighbours are registered long after each other.
    for n in (0..7).flat_map(|first| (first..COUNT).step_by(7)) {
        let probe = register(&library.path, library.offsets[n], counting(&ALL));
        probes[n] = Some(probe.unwrap_or_else(|error| panic!("{n}: {error}")));
    }
    assert!(mappings_of_ours() < 100, "{}", mappings_of_ours());
    let hits = |probe: &Option<Registration>| probe.as_ref().map_or(0, |probe| probe.counts().hits);
    for (n, probe) in probes.iter().enumerate() {
        (0..n % 3).for_each(|time| library.call(n, time as u64));
        assert_eq!(hits(probe), n as u64 % 3, "{n}");
    }
    let expected: u64 = (0..COUNT as u64).map(|n| n % 3).sum();
    assert_eq!(ALL.load(Relaxed), expected);
    // Some are taken out and come back, among others that stay.
    for n in (0..COUNT).step_by(40) {
        probes[n].take().into_iter().for_each(|probe| probe.unregister().expect("unregistered"));
        (n..n + 2).for_each(|n| library.call(n, 1));
    }
    let expected = expected + COUNT as u64 / 40;
    assert_eq!(ALL.load(Relaxed), expected);
    for n in (0..COUNT).step_by(40) {
        probes[n] = Some(register(&library.path, library.offsets[n], counting(&ALL)).expect("registered"));
        library.call(n, 5);
        // Hits belong to the site, which was called before.
        assert_eq!(hits(&probes[n]), n as u64 % 3 + 1, "{n}");
    }
    for probe in probes.into_iter().flatten() {
        probe.unregister().expect("unregistered");
    }
    assert!(before == library.text());
    (0..COUNT).for_each(|n| library.call(n, 3));
    assert_eq!(ALL.load(Relaxed), expected + COUNT as u64 / 40);
}

/// Takes all address space within reach of a place, for as long as it lives.
struct Crowd(Vec<(u64, usize)>);

impl Crowd {
    fn around(at: u64) -> Self {
        const REACH: u64 = 3 << 30;
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        let range = |line: &str| {
            let (start, end) = line.split(' ').next()?.split_once('-')?;
            Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
        };
        let (mut free, mut taken) = (at - REACH, Vec::new());
        let ends = maps.lines().filter_map(range).filter(|(start, _)| *start < at + REACH);
        for (start, end) in ends.chain([(at + REACH, u64::MAX)]) {
            let start = start.min(at + REACH) & !4095;
            free = (free + 4095) & !4095;
            if start > free {
                let len = (start - free) as usize;
                let flags =
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE | libc::MAP_NORESERVE;
                // SAFETY: a new, inaccessible mapping where nothing is mapped. It fails if something was
                // mapped there meanwhile.
                let got = unsafe { libc::mmap(free as *mut _, len, libc::PROT_NONE, flags, -1, 0) };
                if got as u64 == free {
                    taken.push((free, len));
                }
            }
            free = free.max(end.min(at + REACH));
        }
        Self(taken)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for &(at, len) in &self.0 {
            // SAFETY: mapped above, and used by nothing.
            unsafe { libc::munmap(at as *mut _, len) };
        }
    }
}

#[test]
fn where_no_jump_reaches_traps_do() {
    static ALL: AtomicU64 = AtomicU64::new(0);
    let _alone = alone();
    let library = Library::load("crowded", 10);
    let crowd = Crowd::around(library.addresses[0]);
    // All but functions that access data by distance: there is no reachable place for their copies.
    for n in [0, 1, 2, 4] {
        for by_trap in [false, true] {
            let request =
                Request { by_trap, ..Request::new(&library.path, library.offsets[n], counting(&ALL)) };
            let probe =
                register_all([request]).unwrap_or_else(|error| panic!("{n}: {error}")).pop().expect("one");
            assert_eq!(probe.sites(), [Tactic::Trap], "{n}");
            let had = (probe.counts().hits, ALL.load(Relaxed));
            library.call(n, 7);
            assert_eq!((probe.counts().hits, ALL.load(Relaxed)), (had.0 + 1, had.1 + 1), "{n}");
            probe.unregister().expect("unregistered");
            library.call(n, 7);
            assert_eq!(ALL.load(Relaxed), had.1 + 1, "{n}");
        }
    }
    drop(crowd);
    let probe = register(&library.path, library.offsets[6], counting(&ALL)).expect("registered");
    assert!(probe.sites().iter().all(|tactic| *tactic < Tactic::Trap));
}

fn compile(name: &str, text: &str) -> PathBuf {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.so", std::process::id()));
    let source = out.with_extension("c");
    std::fs::write(&source, text).expect("written");
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-shared", "-fPIC"]).arg(&source).arg("-o").arg(&out);
    assert!(cc.status().expect("a C compiler").success());
    out
}

fn open(path: &Path, flags: i32) -> *mut libc::c_void {
    let name = CString::new(path.as_os_str().as_encoded_bytes()).expect("a path");
    // SAFETY: libraries of these tests; their constructors are their own.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | flags) };
    assert!(!handle.is_null());
    handle
}

static COUNTED: AtomicU64 = AtomicU64::new(0);
static CONSTRUCTED: Mutex<Option<(Library, Vec<Registration>)>> = Mutex::new(None);

/// Called by a constructor: more sites than one thread plans, in a file with code that was never looked at.
extern "C" fn register_here() {
    let mut held = CONSTRUCTED.lock().expect("not poisoned");
    let (library, probes) = held.as_mut().expect("loaded");
    let all = library.offsets.iter().map(|&at| Request::new(&library.path, at, counting(&COUNTED)));
    *probes = register_all(all).expect("registered");
    probes.push(register(&library.path, library.offsets[0], counting(&COUNTED)).expect("registered"));
}

/// In a process of its own: it may block the loader there.
#[test]
fn a_constructor_may_register() {
    trapline_tests::alone("a_constructor_may_register", || {
        const COUNT: usize = 3000;
        let keeper = open(&compile("keeper", "void (*constructed)(void);"), libc::RTLD_GLOBAL);
        *CONSTRUCTED.lock().expect("not poisoned") = Some((Library::load("constructed", COUNT), Vec::new()));
        // SAFETY: the word that the library above has.
        unsafe { *libc::dlsym(keeper, c"constructed".as_ptr()).cast::<extern "C" fn()>() = register_here };
        let text = "extern void (*constructed)(void); __attribute__((constructor)) static void run(void) { constructed(); }";
        open(&compile("constructor", text), libc::RTLD_LOCAL);
        let mut held = CONSTRUCTED.lock().expect("not poisoned");
        let (library, probes) = held.as_mut().expect("still");
        (0..COUNT).for_each(|n| library.call(n, 1));
        assert_eq!(COUNTED.load(Relaxed), COUNT as u64 + 1);
        unregister_all(probes.drain(..)).expect("unregistered");
    });
}
