//! The stubs of x86-64, measured in this process.
//!
//! In: how often each placement is measured. Out: a line for each stub. Does not: know how processes are probed.

use std::arch::asm;
use std::time::Instant;

use trapline_plan::filter::{GroupBy, Int, Known, Sort, Tally, Tree};
use trapline_plan::x86_64::stub::tally::TableLocation;
use trapline_plan::x86_64::stub::{
    ExitKind, Latency, Liveness, Machine, Rings, Rseq, SharedTimed, ThreadId, Timed, Traced, UnfinishedStub,
    count, latency_arm, latency_enter, latency_exit, shared_timed, tally, trampoline_code,
};
use trapline_plan::{Floats, Stacks, Unwind};
use trapline_record::addr::Bias;
use trapline_record::latency::STAMPS_LEN;
use trapline_record::ring::{RecordKind, RingArea};
use trapline_record::tally::TallyArea;
use trapline_record::trampolines::Trampolines;

unsafe extern "C" {
    safe static __rseq_offset: isize;
}

const LINES: u32 = 65;
const PLACES: u64 = 8;
const CALLS: u64 = 50_000;
/// `push rbp; mov rbp, rsp; nop; nop; pop rbp; ret`
const BODY: [u8; 8] = [0x55, 0x48, 0x89, 0xE5, 0x90, 0x90, 0x5D, 0xC3];
/// Number of bytes of `BODY` that a jump displaces.
const WINDOW: usize = 5;
const SPACE: u64 = 64 << 20;

struct Row {
    name: &'static str,
    places: Vec<(u64, Vec<f64>)>,
}

struct Memory {
    base: u64,
    used: u64,
    rows: Vec<Row>,
}

impl Memory {
    fn next(&self) -> u64 {
        self.base + self.used
    }
    fn data(&self) -> u64 {
        self.base + SPACE / 2
    }
    fn put(&mut self, code: &[u8]) -> u64 {
        let at = self.next();
        self.write(at, code);
        self.used += code.len() as u64 + 16;
        at
    }
    fn write(&self, at: u64, code: &[u8]) {
        // SAFETY: `put` handed out `at`, so it lies inside the mapping, and nothing runs there now.
        unsafe { core::ptr::copy_nonoverlapping(code.as_ptr(), at as *mut u8, code.len()) };
    }
    fn jump(&self, from: u64, to: u64) {
        let rel = to.wrapping_sub(from + 5) as i32;
        self.write(from, &[&[0xE9][..], &rel.to_le_bytes()].concat());
    }
    /// Puts code in place that sites share.
    fn share(&mut self, machine: &Machine, latency: &Latency, which: SharedTimed) -> u64 {
        self.used = self.used.next_multiple_of(64);
        let mut out = Vec::new();
        shared_timed(&mut out, self.next(), machine, latency, which);
        self.put(&out)
    }
    /// Adds a row: `entry` and `exit` append what comes before the displaced code and before the `ret`.
    fn row<'a>(&mut self, name: &'static str, entry: Stub<'a>, exit: Stub<'a>) {
        let places = (0..PLACES).map(|n| (self.place(n, entry, exit), Vec::new())).collect();
        self.rows.push(Row { name, places });
    }
    fn place<'a>(&mut self, n: u64, entry: Stub<'a>, exit: Stub<'a>) -> u64 {
        self.used = self.used.next_multiple_of(64) + n * 21 % 64;
        let function = self.put(&BODY);
        for (offset, displaced, resume, stub) in [
            (0, &BODY[..WINDOW], Some(function + WINDOW as u64), entry),
            (BODY.len() as u64 - 1, &BODY[BODY.len() - 1..], None, exit),
        ] {
            let Some(stub) = stub else { continue };
            let (at, mut out) = (self.next(), Vec::new());
            let pending = stub(&mut out, at, self.data() + n * 64 * u64::from(LINES));
            out.extend(displaced);
            match (pending, resume) {
                (Some(pending), _) => drop(pending.finish(&mut out, resume)),
                (None, Some(resume)) => {
                    let rel = resume.wrapping_sub(at + out.len() as u64 + 5) as i32;
                    out.push(0xE9);
                    out.extend(rel.to_le_bytes());
                }
                (None, None) => {}
            }
            self.put(&out);
            self.jump(function + offset, at);
        }
        function
    }
}

type Stub<'a> = Option<&'a dyn Fn(&mut Vec<u8>, u64, u64) -> Option<UnfinishedStub<'a>>>;

fn time(function: u64) -> f64 {
    let start = Instant::now();
    // SAFETY: `function` keeps the C convention, as do the stubs in front of it.
    unsafe {
        asm!(".p2align 6", "2: call r13", "sub r12, 1", "jnz 2b", in("r13") function, inout("r12") CALLS => _, clobber_abi("C"));
    }
    start.elapsed().as_nanos() as f64 / CALLS as f64
}

fn map(len: u64, protection: i32) -> u64 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
    let at = unsafe { libc::mmap(core::ptr::null_mut(), len as usize, protection, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    at as u64
}

/// The same with return trampolines, whose code is put in place.
fn armed(memory: &mut Memory, machine: &Machine, latency: Latency) -> Latency {
    memory.used = memory.used.next_multiple_of(64);
    let trampolines = Trampolines { code: memory.next(), table: 0, count: 64 };
    let table = map(trampolines.table_len(), libc::PROT_READ | libc::PROT_WRITE);
    let latency = Latency { trampolines: Some(Trampolines { table, ..trampolines }), ..latency };
    let made = trampoline_code(machine, &latency).expect("there are trampolines");
    memory.put(&made.bytes);
    latency
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

pub(crate) fn measure(rounds: usize) {
    let rw = libc::PROT_READ | libc::PROT_WRITE;
    let mut memory = Memory { base: map(SPACE, rw | libc::PROT_EXEC), used: 0, rows: Vec::new() };
    let stamps = map(STAMPS_LEN, rw);
    let rseq = Rseq { offset: __rseq_offset as i32, signature: 0x5305_3053 };
    let with = Machine { rseq: Some(rseq), rdpid: false, lines: LINES };
    let without = Machine { rseq: None, ..with };
    let area = memory.data() + (1 << 20);

    memory.row("none", None, None);
    memory.row("jump alone", Some(&|_, _, _| None), None);
    let private = |out: &mut Vec<u8>, at: u64, word: u64| {
        out.extend([0x48, 0x83, 0x05]);
        out.extend((word.wrapping_sub(at + 8) as i32).to_le_bytes());
        out.push(1);
        None
    };
    memory.row("jump, private counter", Some(&private), None);
    let dead = Liveness { flags_dead: true, ..Liveness::default() };
    let spare = Liveness { dead: 1 << 11, ..dead };
    for (name, machine, site) in [
        ("count, flags dead, r11 dead", with, spare),
        ("count, flags dead", with, dead),
        ("count, flags live", with, Liveness::default()),
        ("count without rseq, flags dead", without, dead),
        ("count without rseq, flags live", without, Liveness::default()),
    ] {
        let stub = move |out: &mut Vec<u8>, at, word| Some(count(out, at, &machine, word, &site));
        memory.row(name, Some(&stub), None);
    }
    let latency = Latency {
        area,
        functions: 1,
        stamps,
        shape: Default::default(),
        missed: area - 8,
        min_ticks: 0,
        buckets: Default::default(),
        outermost: false,
        go: None,
        trampolines: None,
    };
    for (name, machine, site, returns) in [
        ("latency, flags dead", with, dead, true),
        ("latency, flags live", with, Liveness::default(), true),
        ("latency, exits go on", with, dead, false),
        ("latency without rseq", without, Liveness::default(), true),
    ] {
        let timed = Timed { machine: &machine, latency: &latency, function: 0, site };
        let [rare, which] = [
            SharedTimed::Entry { red_zone_live: false, looped: false },
            SharedTimed::Exit { kind: ExitKind::Return, red_zone_live: false, returns },
        ]
        .map(|which| (which, memory.share(&machine, &latency, which)));
        let enter = move |out: &mut Vec<u8>, at, _| Some(latency_enter(out, at, &timed, rare.1));
        let exit = move |out: &mut Vec<u8>, at, _| {
            latency_exit(out, at, &timed, which);
            None
        };
        memory.row(name, Some(&enter), Some(&exit));
    }

    for (name, machine) in [("latency, armed", with), ("latency without rseq, armed", without)] {
        let latency = armed(&mut memory, &machine, latency);
        let timed = Timed { machine: &machine, latency: &latency, function: 0, site: dead };
        let enter = move |out: &mut Vec<u8>, at, _| latency_arm(out, at, &timed);
        memory.row(name, Some(&enter), None);
    }

    let value = Tree::Known(Known::Argument(0, Int { bits: 32, signed: true }));
    let sorts = [
        ("tally, powers of two", Sort::Log2),
        ("tally, 100 steps of 16", Sort::Linear { min: 0, step: 16, count: 100 }),
        ("tally, 100 steps of 10", Sort::Linear { min: 0, step: 10, count: 100 }),
        ("tally, by value", Sort::Each),
    ];
    let rings = Rings {
        area: RingArea::default(),
        base: 0,
        id: ThreadId::Unknown,
        stacks: Stacks::default(),
        known: None,
        waits: None,
    };
    for (name, sort) in sorts {
        let tallied = Tally { value: value.clone(), sort, group_by: GroupBy::Nothing };
        let shape = TallyArea { off: 0, tables: 1, lines: LINES, shape: tallied.shape() };
        let table = TableLocation { area: shape, base: memory.data() + (2 << 20) };
        let stub = move |out: &mut Vec<u8>, at, dropped| {
            let traced = Traced {
                machine: &with,
                rings: &rings,
                passed: None,
                probe: 0,
                dropped,
                site: dead,
                filter: None,
                texts: 0,
                ended: 0,
                floats: Floats::default(),
                by_go: false,
                valued: false,
                fields: &[],
                marks: None,
                unwind: Unwind::None,
                at_entry: true,
                trampolines: None,
                bias: Bias::default(),
            };
            Some(tally(out, at, &traced, (&tallied, table), RecordKind::Entry))
        };
        memory.row(name, Some(&stub), None);
    }

    for _ in 0..rounds {
        for place in memory.rows.iter_mut().flat_map(|row| &mut row.places) {
            place.1.push(time(place.0));
        }
    }
    let mut bare = None;
    println!("{:32} {:>7} {:>7} {:>7} {:>7}", "", "ns", "added", "low", "high");
    for row in &mut memory.rows {
        let mut medians: Vec<f64> = row.places.iter_mut().map(|place| median(&mut place.1)).collect();
        let ns = median(&mut medians);
        let added = ns - *bare.get_or_insert(ns);
        let (low, high) = (medians[0], medians[medians.len() - 1]);
        println!("{:32} {ns:7.2} {added:+7.2} {low:7.2} {high:7.2}", row.name);
    }
}
