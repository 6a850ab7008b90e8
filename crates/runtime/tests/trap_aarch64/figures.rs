//! What a hit costs in instructions, for each way there is: the table of LKML 20240814080356.2639544-1 (nop, push, ret; uprobe and
//! uretprobe). Exact where the processor's counter of instructions is: under full emulation that counts (`-icount`). Ratios only.
//!
//! Exceptions are not counted here: `brk #0x700 + ROW` before and `brk #0x6ff` behind the hits of a row tell whoever watches the processor
//! (`cargo xtask arm64-system`) where they begin and end.

use std::sync::atomic::AtomicU64;

use trapline_insn::aarch64::encode::BRK;

use crate::engine::{self, Way};
use crate::foreign::{Answer, expecting};
use crate::kernel::Uprobe;
use crate::site::{Text, call, code, text};

const HITS: u64 = 500;
const BEGIN: u32 = 0x700;
const END: u32 = 0x6FF;

/// A perf counter of instructions of this thread: all, or those of user space alone.
struct Counter(i32);

impl Counter {
    fn new(user_only: bool) -> Option<Self> {
        // perf_event_attr (linux/perf_event.h): type and size, config, …, flags at 40: bit 5 leaves the kernel out.
        let mut attr = [0_u64; 16];
        attr[0] = 128 << 32;
        attr[1] = 1;
        attr[5] = u64::from(user_only) << 5;
        // SAFETY: one attr of 128 bytes; this thread, any CPU.
        let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, attr.as_ptr(), 0, -1, -1, 0) };
        (fd >= 0).then_some(Self(fd as i32))
    }
    fn read(&self) -> u64 {
        let mut value = 0_u64;
        // SAFETY: 8 bytes to 8 bytes.
        let n = unsafe { libc::read(self.0, (&raw mut value).cast(), 8) };
        assert_eq!(n, 8, "a count");
        value
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        // SAFETY: ours.
        unsafe { libc::close(self.0) };
    }
}

/// Executes a `brk` that is nobody's, as a mark for who watches.
fn mark(number: u32) {
    let at = code(&[BRK | number << 5, 0xD65F_03C0]);
    let seen = expecting(Answer::Skip(4), || {
        call(at, 0, 0);
    });
    assert!(seen.is_some());
}

/// Instructions for each call of the function at `at`: all, and user space's. The least of some rounds, as interrupts come between.
fn instructions(at: u64, counters: &[Counter; 2]) -> [f64; 2] {
    [0, 1].map(|which| {
        let counter: &Counter = &counters[which];
        let rounds = (0..5).map(|_| {
            let before = counter.read();
            (0..HITS).for_each(|round| {
                call(at, round, 0);
            });
            counter.read() - before
        });
        rounds.min().unwrap_or(0) as f64 / HITS as f64
    })
}

struct Row {
    case: &'static str,
    bench: &'static str,
    how: &'static str,
    all: f64,
    user: f64,
}

/// Cases of the seed: the first instruction of a function.
fn cases() -> [(&'static str, Text, u64); 3] {
    [
        ("nop", text!(figure_nop: "nop", "ret"), 4),
        ("push", text!(figure_push: "stp x29, x30, [sp, #-16]!", "ldp x29, x30, [sp], #16", "ret"), 8),
        ("ret", text!(figure_ret: "ret"), 0),
    ]
}

#[test]
fn a_hit_takes_so_many_instructions() {
    let (Some(all), Some(user)) = (Counter::new(false), Counter::new(true)) else {
        println!("SKIP: no counter of instructions here");
        return;
    };
    let counters = [all, user];
    let mut rows: Vec<Row> = Vec::new();
    let mut number = 0;
    let mut row = |case, bench, how, at, bare: [f64; 2]| {
        number += 1;
        let [all, user] = instructions(at, &counters);
        mark(BEGIN + number);
        (0..HITS).for_each(|round| {
            call(at, round, 0);
        });
        mark(END);
        let row = Row { case, bench, how, all: all - bare[0], user: user - bare[1] };
        println!(
            "{{\"type\":\"bench\",\"schema\":1,\"bench\":\"{bench}\",\"case\":\"{case}\",\"how\":\"{how}\",\"emulated\":true,\"row\":{number},\
             \"hits\":{HITS},\"instructions\":{:.1},\"user_instructions\":{:.1}}}",
            row.all, row.user
        );
        rows.push(row);
    };
    static CALLED: AtomicU64 = AtomicU64::new(0);
    for (which, (case, text, exit)) in (0..).zip(cases()) {
        let bare = instructions(code(text.words()), &counters);
        row(case, "uprobe", "none", code(text.words()), bare);
        for (bench, returns) in [("uprobe", false), ("uretprobe", true)] {
            match Uprobe::new(&format!("figure_{bench}_{case}"), text, returns) {
                Ok(probe) => row(case, bench, "kernel", probe.addr, bare),
                Err(why) => println!("SKIP: {bench} {case} kernel: {why}"),
            }
            let ways = [
                ("simulated", Way::Simulated),
                ("out-of-line", Way::Copied),
                ("stepped", Way::Stepped),
                ("jump", Way::Jumped),
                ("jump, general registers only", Way::JumpedGeneral),
            ];
            for (nth, (how, way)) in (0..).zip(ways) {
                let number = 100 + which * 10 + u64::from(returns) * 5 + nth;
                let at = engine::probed(number, text, returns.then_some(exit), way, &CALLED);
                row(case, bench, how, at, bare);
            }
        }
    }
    judge(&rows);
}

/// What the seed is about: a push costs the kernel more than a `ret`, since it steps the one and simulates the other. Ours are both
/// simulated, and differ by no exception; in instructions of user space a copy with a way back is as good (its reason is elsewhere:
/// what is simulated needs no place, and no signal shows one).
fn judge(rows: &[Row]) {
    let find = |case: &str, bench: &str, how: &str| {
        rows.iter().find(|row| (row.case, row.bench, row.how) == (case, bench, how))
    };
    if let (Some(push), Some(ret)) = (find("push", "uprobe", "kernel"), find("ret", "uprobe", "kernel")) {
        assert!(push.all > 1.2 * ret.all, "stepped {}, simulated {}", push.all, ret.all);
    }
    for case in ["nop", "push"] {
        let row = |how| find(case, "uprobe", how).expect("a row").user;
        let (simulated, copied) = (row("simulated"), row("out-of-line"));
        assert!(simulated > 0.0 && simulated < 1.5 * copied, "{case}: {simulated} and {copied}");
        // A copy that is stepped over, as the kernel has it, takes another exception.
        let row = |how| find(case, "uprobe", how).expect("a row").all;
        let (simulated, stepped) = (row("simulated"), row("stepped"));
        assert!(simulated < 0.6 * stepped, "{case}: {simulated} and, stepped, {stepped}");
    }
    // A jump leaves the kernel alone, and without vectors it is the least of all.
    for case in ["nop", "push", "ret"] {
        let row = |how| find(case, "uprobe", how).expect("a row").all;
        let (jump, general) = (row("jump"), row("jump, general registers only"));
        assert!(general < jump && jump < 0.5 * row("simulated"), "{case}: {general} and {jump}");
    }
}
