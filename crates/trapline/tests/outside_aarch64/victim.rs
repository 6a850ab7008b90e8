//! The victim: functions with first words of all kinds, called by two threads as often as requested. And what
//! starts it.
//!
//! Protocol. In, a line `NAME N`: each thread calls that function N times, all at once, or one thread after
//! the other for `turns-NAME N`. Out, a line: how many calls returned the right value; before it a line for
//! each thread, `thread NUMBER CALLS`. `all` stands for each function.

use std::arch::global_asm;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;

use trapline::Session;

use crate::crowd::crowd;
use crate::unwound;

const VARIABLE: &str = "TRAPLINE_VICTIM";
/// With this variable, it leaves so many single pages free within reach of its code.
pub(crate) const CROWDED: &str = "TRAPLINE_VICTIM_CROWDED";
/// Calls until the next line comes; the answer is how many values were wrong.
pub(crate) const ENDLESS: u64 = 0;
pub(crate) static STOP: AtomicBool = AtomicBool::new(false);

/// Prefix for one thread after the other.
pub(crate) const TURNS: &str = "turns-";
/// Number of threads that call.
pub(crate) const THREADS: u64 = 2;

// Each adds something to its argument; all words but the first are the same everywhere, except for what
// undoes it.
global_asm!(
    ".text",
    ".macro victim name",
    ".globl \\name",
    ".type \\name, %function",
    ".p2align 4",
    "\\name:",
    ".endm",
    "victim victim_nop",
    "nop",
    "add x0, x0, #1",
    "ret",
    ".size victim_nop, . - victim_nop",
    "victim victim_push",
    "stp x29, x30, [sp, #-32]!",
    "mov x29, sp",
    "str x0, [sp, #16]",
    "bl victim_nop",
    "ldr x1, [sp, #16]",
    "add x0, x0, x1",
    "sub x0, x0, x1",
    "ldp x29, x30, [sp], #32",
    "ret",
    ".size victim_push, . - victim_push",
    "victim victim_ret",
    "ret",
    ".size victim_ret, . - victim_ret",
    "victim victim_sub",
    "sub sp, sp, #16",
    "add x0, x0, #2",
    "add sp, sp, #16",
    "ret",
    ".size victim_sub, . - victim_sub",
    "victim victim_signed",
    "hint #25",
    "stp x29, x30, [sp, #-16]!",
    "add x0, x0, #3",
    "ldp x29, x30, [sp], #16",
    "hint #29",
    "ret",
    ".size victim_signed, . - victim_signed",
    "victim victim_pad",
    "hint #34",
    "add x0, x0, #4",
    "ret",
    ".size victim_pad, . - victim_pad",
    "victim victim_branch",
    "b 1f",
    "brk #1",
    "1: add x0, x0, #5",
    "ret",
    ".size victim_branch, . - victim_branch",
    "victim victim_zero",
    "cbz x0, 1f",
    "add x0, x0, #6",
    "ret",
    "1: mov x0, #6",
    "ret",
    ".size victim_zero, . - victim_zero",
    "victim victim_address",
    "adr x1, 1f",
    "ldr x1, [x1]",
    "add x0, x0, x1",
    "ret",
    ".p2align 3",
    "1: .quad 7",
    ".size victim_address, . - victim_address",
    "victim victim_loop",
    "1: add x0, x0, #1",
    "add x1, x0, #0",
    "tst x1, #7",
    "b.ne 1b",
    "ret",
    ".size victim_loop, . - victim_loop",
    "victim victim_tail",
    "sub x0, x0, #1",
    "b victim_push",
    ".size victim_tail, . - victim_tail",
    "victim victim_deep",
    "cbz x0, 1f",
    "stp x29, x30, [sp, #-16]!",
    "sub x0, x0, #1",
    "bl victim_deep",
    "add x0, x0, #2",
    "ldp x29, x30, [sp], #16",
    "ret",
    "1: ret",
    ".size victim_deep, . - victim_deep",
    // Arguments in six registers, for records: the sum of the first and the last. Its caller keeps its
    // frames.
    "victim victim_six",
    "stp x29, x30, [sp, #-16]!",
    "mov x29, sp",
    "add x0, x0, x5",
    "ldp x29, x30, [sp], #16",
    "ret",
    ".size victim_six, . - victim_six",
    "victim victim_inner",
    "hint #25",
    "stp x29, x30, [sp, #-16]!",
    "mov x29, sp",
    "add x1, x0, #1",
    "add x2, x0, #2",
    "add x3, x0, #3",
    "add x4, x0, #4",
    "add x5, x0, #5",
    "bl victim_six",
    "ldp x29, x30, [sp], #16",
    "hint #29",
    "ret",
    ".size victim_inner, . - victim_inner",
    "victim victim_outer",
    "hint #25",
    "stp x29, x30, [sp, #-16]!",
    "mov x29, sp",
    "bl victim_inner",
    "ldp x29, x30, [sp], #16",
    "hint #29",
    "ret",
    ".size victim_outer, . - victim_outer",
    // Functions that store their argument, or add one, for `trapline watch`.
    "victim store_plain",
    "adrp x1, watched_plain",
    "str x0, [x1, #:lo12:watched_plain]",
    "ret",
    ".size store_plain, . - store_plain",
    "victim store_added",
    "adrp x1, watched_added",
    "add x1, x1, #:lo12:watched_added",
    "mov x2, #1",
    ".arch_extension lse",
    "ldadd x2, x2, [x1]",
    "ret",
    ".size store_added, . - store_added",
    "victim store_pair",
    "adrp x1, watched_pair",
    "add x1, x1, #:lo12:watched_pair",
    "add x2, x0, #1000",
    "stp x0, x2, [x1]",
    "ret",
    ".size store_pair, . - store_pair",
    "victim store_byte",
    "adrp x1, watched_byte",
    "add x1, x1, #:lo12:watched_byte",
    "strb w0, [x1, #3]",
    "ldrb w2, [x1, #3]",
    "ret",
    ".size store_byte, . - store_byte",
    "victim store_exclusive",
    "adrp x1, watched_exclusive",
    "add x1, x1, #:lo12:watched_exclusive",
    "1: ldxr x2, [x1]",
    "add x2, x2, #1",
    "stxr w3, x2, [x1]",
    "cbnz w3, 1b",
    "ret",
    ".size store_exclusive, . - store_exclusive",
    ".macro watched name, size",
    ".globl \\name",
    ".type \\name, %object",
    ".size \\name, \\size",
    ".p2align 4",
    "\\name: .zero \\size",
    ".endm",
    ".data",
    "watched watched_plain, 8",
    "watched watched_added, 8",
    "watched watched_pair, 16",
    "watched watched_byte, 4",
    "watched watched_exclusive, 8",
    ".text",
    // A function that takes no probe.
    "victim victim_jumps",
    "adr x16, 1f",
    "br x16",
    "1: ret",
    ".size victim_jumps, . - victim_jumps",
    "victim victim_call",
    "svc #0",
    "ret",
    ".size victim_call, . - victim_call",
    "victim victim_exclusive",
    "ldxr x1, [sp]",
    "add x1, x1, #1",
    "stxr w2, x1, [sp]",
    "cbnz w2, victim_exclusive",
    "ret",
    ".size victim_exclusive, . - victim_exclusive",
);

unsafe extern "C" {
    fn victim_nop(value: u64) -> u64;
    fn victim_push(value: u64) -> u64;
    fn victim_ret(value: u64) -> u64;
    fn victim_sub(value: u64) -> u64;
    fn victim_signed(value: u64) -> u64;
    fn victim_pad(value: u64) -> u64;
    fn victim_branch(value: u64) -> u64;
    fn victim_zero(value: u64) -> u64;
    fn victim_address(value: u64) -> u64;
    fn victim_loop(value: u64) -> u64;
    fn victim_tail(value: u64) -> u64;
    fn victim_deep(value: u64) -> u64;
    fn victim_outer(value: u64) -> u64;
    fn victim_jumps(value: u64) -> u64;
    fn store_plain(value: u64) -> u64;
    fn store_added(value: u64) -> u64;
    fn store_pair(value: u64) -> u64;
    fn store_byte(value: u64) -> u64;
    fn store_exclusive(value: u64) -> u64;
    fn victim_call(value: u64) -> u64;
    fn victim_exclusive(value: u64) -> u64;
}

type Function = unsafe extern "C" fn(u64) -> u64;

/// Name, function, the word at which the kernel's uprobe counts the same calls, result for 8.
pub(crate) const FUNCTIONS: [(&str, Function, u64, u64); 12] = [
    ("victim_nop", victim_nop, 4, 9),
    ("victim_push", victim_push, 4, 9),
    ("victim_ret", victim_ret, 0, 8),
    ("victim_sub", victim_sub, 4, 10),
    ("victim_signed", victim_signed, 8, 11),
    ("victim_pad", victim_pad, 8, 12),
    ("victim_branch", victim_branch, 8, 13),
    ("victim_zero", victim_zero, 4, 14),
    ("victim_address", victim_address, 4, 15),
    // Its first word runs eight times.
    ("victim_loop", victim_loop, 4, 16),
    ("victim_tail", victim_tail, 4, 8),
    // It calls itself eight times, and the last call takes another way.
    ("victim_deep", victim_deep, 0, 16),
];

/// Calls the function of six arguments with its own argument and the numbers after it.
pub(crate) const OUTER: &str = "victim_outer";

/// Name and function; each stores once, whatever its argument.
const STORES: [(&str, Function); 5] = [
    ("store_plain", store_plain),
    ("store_added", store_added),
    ("store_pair", store_pair),
    ("store_byte", store_byte),
    ("store_exclusive", store_exclusive),
];

/// How often a function is called if each is called once.
pub(crate) fn calls_of(name: &str) -> u64 {
    match name {
        // victim_tail jumps to it, and it calls victim_nop.
        "victim_push" => 2,
        "victim_nop" => 3,
        "victim_deep" => 9,
        _ => 1,
    }
}

/// Makes the linker keep functions that are never called.
pub(crate) const UNPROBED: [Function; 3] = [victim_call, victim_exclusive, victim_jumps];

/// Body of the victim. Run as a test of its own, it does nothing.
#[test]
fn run() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    assert!(UNPROBED.iter().all(|function| *function as usize != 0));
    if let Ok(pages) = std::env::var(CROWDED) {
        crowd(victim_nop as *const () as u64, pages.parse().expect("a number"));
    }
    let mut lines = std::io::stdin().lines().map_while(Result::ok);
    while let Some(line) = lines.next() {
        let Some((name, times)) = line.split_once(' ') else { break };
        let times: u64 = times.parse().expect("a number");
        let in_turn = name.starts_with(TURNS);
        let name = name.trim_start_matches(TURNS);
        let right: u64 = thread::scope(|scope| {
            let start = || {
                let (tell, number) = mpsc::channel();
                let thread = scope.spawn(move || {
                    // SAFETY: no arguments.
                    tell.send(unsafe { libc::gettid() }).expect("it is asked for");
                    call(name, times)
                });
                let itself = format!("/proc/self/task/{}", number.recv().expect("it begins"));
                // The thread's work is finished, and it is even joined, before the kernel has reported that
                // it ended. Until then its last access may be missing.
                while in_turn && Path::new(&itself).exists() {
                    thread::yield_now();
                }
                thread
            };
            STOP.store(false, Ordering::SeqCst);
            let threads: Vec<_> = (0..THREADS).map(|_| start()).collect();
            if times == ENDLESS {
                lines.next();
                STOP.store(true, Ordering::SeqCst);
            }
            threads.into_iter().map(|thread| thread.join().expect("it ends")).sum()
        });
        println!("right {right}");
        std::io::stdout().flush().expect("it is read");
    }
    std::process::exit(0);
}

fn call(name: &str, times: u64) -> u64 {
    // SAFETY: no arguments.
    println!("thread {} {times}", unsafe { libc::gettid() });
    let (mut right, mut wrong) = (0, 0);
    for (_, function) in STORES.iter().filter(|one| one.0 == name) {
        // SAFETY: functions of a number, which store it to words of their own.
        (0..times).for_each(|value| _ = unsafe { function(value) });
        right += times;
    }
    right += unwound::right(name, times);
    wrong += unwound::wrong(name);
    if name == "victim_jumps" {
        // SAFETY: a function of a number, which touches nothing else.
        right += (0..times).filter(|&value| unsafe { victim_jumps(value) } == value).count() as u64;
    }
    if name == OUTER {
        // SAFETY: a function of a number, which touches nothing else.
        right += (0..times).filter(|&value| unsafe { victim_outer(value) } == 2 * value + 5).count() as u64;
    }
    for (_, function, _, expected) in FUNCTIONS.iter().filter(|one| name == "all" || one.0 == name) {
        for _ in 0..times {
            // SAFETY: functions of a number, which touch nothing else.
            right += u64::from(unsafe { function(8) } == *expected);
        }
        while times == ENDLESS && !STOP.load(Ordering::Relaxed) {
            // SAFETY: as above.
            wrong += u64::from(unsafe { function(8) } != *expected);
        }
    }
    if times == ENDLESS { wrong } else { right }
}

/// A running victim, which is ended when this is dropped. There is one at a time, since the kernel's probes
/// are in all processes that run this file.
pub(crate) struct Victim {
    _one: MutexGuard<'static, ()>,
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    called: Vec<(u32, u64)>,
}

impl Victim {
    /// Starts a victim; `None` where no program can be traced, which is printed.
    pub(crate) fn start() -> Option<Self> {
        Self::start_with(&[])
    }
    /// The same with these variables in its environment.
    pub(crate) fn start_with(variables: &[(&str, &str)]) -> Option<Self> {
        if trapline_tracee::is_emulated() {
            println!("SKIP no ptrace in an emulator of user mode: see cargo xtask arm64-system");
            return None;
        }
        static ONE: Mutex<()> = Mutex::new(());
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let program = std::env::current_exe().expect("this program");
        let mut child = Command::new(program)
            .args(["--exact", "victim::run", "--nocapture", "--test-threads=1"])
            .env(VARIABLE, "1")
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let to = child.stdin.take().expect("a pipe");
        let from = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut victim = Self { _one: one, child, to, from, called: Vec::new() };
        // When it answers, its loader is done.
        assert_eq!(victim.call("all", 1), THREADS * FUNCTIONS.len() as u64);
        Some(victim)
    }
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
    /// Each thread calls the function so often; returns how many calls were right.
    pub(crate) fn call(&mut self, name: &str, times: u64) -> u64 {
        self.begin(name, times);
        self.end()
    }
    pub(crate) fn begin(&mut self, name: &str, times: u64) {
        writeln!(self.to, "{name} {times}").and_then(|()| self.to.flush()).expect("it listens");
    }
    pub(crate) fn end(&mut self) -> u64 {
        let mut line = String::new();
        self.called.clear();
        while !line.contains("right ") {
            line.clear();
            assert_ne!(self.from.read_line(&mut line).expect("it talks"), 0, "it ended");
            let mut words = line.split_whitespace().skip_while(|word| *word != "thread").skip(1);
            if let (Some(tid), Some(calls)) = (words.next(), words.next()) {
                self.called.push((tid.parse().expect("a number"), calls.parse().expect("a number")));
            }
        }
        let number = line.trim().rsplit(' ').next().and_then(|word| word.parse().ok());
        number.expect("a number")
    }
    /// The threads of the last call, and how often each called.
    pub(crate) fn called(&self) -> &[(u32, u64)] {
        &self.called
    }
    /// Starts a session that counts what is named.
    pub(crate) fn count(&self, probe: &str) -> Session {
        let builder = Session::builder().pid(self.pid()).probe(probe).expect("a probe");
        builder.count().expect("a session")
    }
    /// Starts a session that times what is named.
    pub(crate) fn time(&self, probe: &str) -> Session {
        let builder = Session::builder().pid(self.pid()).probe(probe).expect("a probe");
        builder.latency().expect("a session")
    }
    /// All bytes of its code.
    pub(crate) fn text(&self) -> Vec<u8> {
        use std::os::unix::fs::FileExt as _;
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid())).expect("its maps");
        let program = std::env::current_exe().expect("this program");
        let code = maps
            .lines()
            .filter(|line| line.contains(" r-xp ") && line.ends_with(&*program.to_string_lossy()));
        let memory = std::fs::File::open(format!("/proc/{}/mem", self.pid())).expect("its memory");
        let mut all = Vec::new();
        for line in code {
            let (start, end) =
                line.split(' ').next().and_then(|range| range.split_once('-')).expect("a range");
            let hex = |text: &str| u64::from_str_radix(text, 16).expect("an address");
            let mut bytes = vec![0; (hex(end) - hex(start)) as usize];
            memory.read_exact_at(&mut bytes, hex(start)).expect("its code");
            all.extend(bytes);
        }
        assert!(!all.is_empty());
        all
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Hits by name, in the last report of a process.
pub(crate) fn hits(report: &trapline::ProcessReport) -> Vec<(String, u64)> {
    report.counts.iter().map(|count| (count.site.label.clone(), count.hits)).collect()
}

/// Durations of one function.
pub(crate) fn times_of<'a>(report: &'a trapline::ProcessReport, name: &str) -> &'a trapline::Times {
    let is = |times: &&trapline::Times| times.site.as_ref().is_some_and(|site| site.label.contains(name));
    let found = report.times.iter().find(is);
    found.unwrap_or_else(|| panic!("{name} in {:?}, refused {:?}", report.times, report.refused))
}

/// Hits of one function.
pub(crate) fn of(report: &trapline::ProcessReport, name: &str) -> u64 {
    let named = report.counts.iter().filter(|count| count.site.label.contains(name));
    let found: Vec<u64> = named.map(|count| count.hits).collect();
    assert_eq!(found.len(), 1, "{name} in {:?}, refused {:?}", hits(report), report.refused);
    found[0]
}
