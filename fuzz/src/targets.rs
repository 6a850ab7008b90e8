//! The targets: each is a corpus and a function over bytes.

use std::io::Cursor;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use trapline::recorded::{Begun, Ended, Recorded, Visit};
use trapline::saved::{Saved, Step, example, reseal};
use trapline_image::{
    Image, MARK_ARGUMENTS, Machine, MarkClass, MarkPlace, NoDebugFiles, ProbeSpec, mark_arguments,
};
use trapline_insn::aarch64;
use trapline_insn::effect::Stored;
use trapline_insn::x86_64::{Accessor, Options, RegFile, relocate_bytes, sweep};
use trapline_plan::filter::{self, MAX_NODES, MAX_TEMPORARIES};
use trapline_record::control::at;
use trapline_record::journal::Journal;
use trapline_record::ring::RingArea;
use trapline_record::stack::{FIRST, Stack};
use trapline_record::tally::{TableShape, TallyArea};
use trapline_record::view::View;
use trapline_script::native::{Natives, Processes};
use trapline_script::{Options as ScriptOptions, Source, compile};
use trapline_tracee::filter::{Answer, Call, Insn, worst};
use trapline_watch::expr::{Expr, Facts};
use trapline_watch::record::{Layout, parse, task};
use trapline_watch::site::{Code, accessors};
use trapline_watch::spec::WatchSpec;

/// A name, an initial corpus, and the function that gets each input.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) name: &'static str,
    pub(crate) corpus: fn() -> Vec<Vec<u8>>,
    pub(crate) run: fn(&[u8]),
}

/// All targets.
pub(crate) const TARGETS: [Target; 16] = [
    Target { name: "image", corpus: programs, run: image },
    Target { name: "decode", corpus: code, run: decode },
    Target { name: "relocate", corpus: code, run: relocate },
    Target { name: "probe-spec", corpus: specs, run: spec },
    Target { name: "segment", corpus: segments, run: segment },
    Target { name: "seccomp", corpus: filters, run: filter },
    Target { name: "variables", corpus: debugged, run: variables },
    Target { name: "sample", corpus: samples, run: sample },
    Target { name: "store", corpus: code, run: store },
    Target { name: "place", corpus: places, run: place },
    Target { name: "ring", corpus: rings, run: ring },
    Target { name: "tally", corpus: tallies, run: tally },
    Target { name: "filter", corpus: conditions, run: condition },
    Target { name: "recording", corpus: recordings, run: recording },
    Target { name: "operands", corpus: operands, run: operand },
    Target { name: "script", corpus: scripts, run: script },
];

/// Largest file in the corpus, in bytes: mutation needs many small inputs.
const LARGEST: u64 = 300_000;

/// Small ELF files of this machine, and the first part of this program.
fn programs() -> Vec<Vec<u8>> {
    let candidates = [
        "/bin/true",
        "/usr/bin/env",
        "/usr/bin/sleep",
        "/lib64/ld-linux-x86-64.so.2",
        "/usr/lib/x86_64-linux-gnu/libdl.so.2",
    ];
    let small = |path: &&str| std::fs::metadata(path).is_ok_and(|meta| meta.len() <= LARGEST);
    let mut all: Vec<Vec<u8>> =
        candidates.into_iter().filter(small).filter_map(|path| std::fs::read(path).ok()).collect();
    all.push(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0".to_vec());
    all
}

fn image(bytes: &[u8]) {
    let Ok(image) = Image::parse(bytes.to_vec(), &mut NoDebugFiles) else { return };
    for function in image.functions() {
        let text = image.text(function.start, function.len);
        assert!(text.is_none_or(|text| text.len() as u64 == function.len), "text of the length asked for");
        assert!(!image.display_name(function, "fuzz").is_empty(), "every function has a name to show");
    }
    for usdt in image.usdt() {
        let _place = image.offset_of(usdt.location);
    }
    assert!(image.functions().is_sorted_by_key(|function| function.start), "functions are sorted");
}

/// Code of this machine in pieces, and opcodes that decoders get wrong.
fn code() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> =
        programs().iter().flat_map(|file| file.chunks(64).map(<[u8]>::to_vec)).take(4000).collect();
    all.push(vec![0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5, 0xe8, 0, 0, 0, 0]);
    all.push(vec![0x62, 0xf1, 0x7c, 0x48, 0x10, 0x05, 1, 2, 3, 4, 0x67, 0x8d, 0x05, 0, 0, 0, 0]);
    all.push(vec![0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x90]);
    all
}

fn decode(bytes: &[u8]) {
    let mut at = 0x40_0000;
    for insn in sweep(bytes, at) {
        assert_eq!(insn.addr, at, "instructions follow each other");
        assert!((1..=15).contains(&insn.len), "1 to 15 bytes");
        at += u64::from(insn.len);
    }
    assert!(at <= 0x40_0000 + bytes.len() as u64, "nothing is read behind the end");
}

fn relocate(bytes: &[u8]) {
    for to in [0x40_0000_u64, 0x4000_0000, 0x7fff_ffff_0000, u64::MAX - 32] {
        let window = &bytes[..bytes.len().min(32)];
        if let Ok(moved) = relocate_bytes(window, 0x40_0000, to, Options::default()) {
            assert!(
                moved.offsets.iter().all(|(_, offset)| *offset as usize <= moved.bytes.len()),
                "offsets lie inside"
            );
        }
    }
}

fn specs() -> Vec<Vec<u8>> {
    let texts = [
        "uprobe:/usr/lib/libssl.so.3:SSL_*",
        "ur:libc:malloc@GLIBC_2.2.5+0x10",
        "usdt:/bin/x:provider:name",
        "libc:/^mem(cpy|set)$/",
        "foo::bar<u8>::baz",
        "p:/bin/bash:readline+4",
        "U:node:*",
        "uprobe:a:b:c:d",
        "/x/",
        "0x1234",
        "std::vector<int, std::allocator<int> >::push_back",
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn spec(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let _parsed: Result<ProbeSpec, _> = text.parse();
}

/// A control block with pointers that lead everywhere, and a journal.
fn segments() -> Vec<Vec<u8>> {
    let mut words = vec![0_u64; 1024];
    let mut set = |at: u64, value: u64| words[(at / 8) as usize] = value;
    set(at::MAGIC, trapline_record::control::MAGIC);
    set(at::VERSION, trapline_record::control::VERSION);
    set(at::STATE, 2);
    set(at::JOURNAL_OFF, 4096);
    set(at::JOURNAL_COUNT, 8);
    for entry in 0..8 {
        let base = 4096 + entry * 32;
        set(base, 0x5555_0000 + entry * 16);
        set(base + 8, 5 | (1 << 8));
    }
    vec![words.iter().flat_map(|word| word.to_le_bytes()).collect()]
}

fn segment(bytes: &[u8]) {
    let words: Vec<AtomicU64> = bytes
        .chunks(8)
        .map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            AtomicU64::new(u64::from_le_bytes(word))
        })
        .collect();
    let view = View::new(&words);
    let journal = Journal::new(view, view.get(at::JOURNAL_OFF));
    let count = view.get(at::JOURNAL_COUNT);
    // The last entries too, wherever a broken count says that they are.
    for index in (0..count.min(10_000)).chain(count.saturating_sub(8)..count) {
        if let Some(entry) = journal.get(index) {
            assert!((1..=8).contains(&entry.len), "a patch of 1 to 8 bytes");
        }
    }
}

/// One seccomp filter of each usual shape: it checks the architecture, compares calls one by one or by a
/// tree, or masks an argument.
fn filters() -> Vec<Vec<u8>> {
    let code: [(u16, u8, u8, u32); 14] = [
        (0x20, 0, 0, 4),
        (0x15, 1, 0, 0xc000_003e),
        (0x06, 0, 0, 0x8000_0000),
        (0x20, 0, 0, 0),
        (0x35, 0, 4, 9),
        (0x15, 0, 2, 9),
        (0x20, 0, 0, 32),
        (0x54, 0, 0, 6),
        (0x15, 1, 0, 6),
        (0x06, 0, 0, 0x7fff_0000),
        (0x02, 0, 0, 3),
        (0x61, 0, 0, 3),
        (0x3c, 0, 0, 0),
        (0x16, 0, 0, 0),
    ];
    let bytes = |&(code, jt, jf, k): &(u16, u8, u8, u32)| {
        [&code.to_le_bytes()[..], &[jt, jf], &k.to_le_bytes()].concat()
    };
    vec![code.iter().flat_map(bytes).collect()]
}

fn filter(bytes: &[u8]) {
    let insn = |b: &[u8]| Insn {
        code: u16::from_le_bytes([b[0], b[1]]),
        jt: b[2],
        jf: b[3],
        k: u32::from_le_bytes([b[4], b[5], b[6], b[7]]),
    };
    let filter: Vec<Insn> = bytes.chunks_exact(8).map(insn).collect();
    let call = |args| Call { name: "mmap", nr: 9, args };
    let unknown = worst(&filter, &call([None; 6]));
    let known = worst(&filter, &call([0, 4096, 3, 0x22, u64::MAX, 0].map(Some)));
    assert!(known <= unknown, "knowing more never makes it worse");
    assert!(unknown == Answer::Harms || !filter.is_empty(), "no program, no answer");
}

/// The debug information of a small program in several forms: in one unit, with link-time optimisation, with type units.
const DEBUGGED: &str = r"
struct s { int a[3]; union { long b; double c; }; struct s *d; unsigned f : 3; const char *text; } v;
static char w;
enum e { ONE, TWO = 7 };
__attribute__((noinline)) static long work(struct s *of, enum e how, double by, struct s whole) {
    long sum = 0;
    for (int n = 0; n < (int)how; n++) { struct s *at = of + n; sum += at->a[n] * by + whole.b; w += sum; }
    return sum;
}
int main(int argc, char **argv) { v.text = argv[0]; return v.a[1] + w + work(&v, argc, 0.5, v); }
";

/// This program's debug information is large, so that of a small program is added if there is a compiler.
fn debugged() -> Vec<Vec<u8>> {
    let mut all = programs();
    let dir = std::env::temp_dir().join(format!("trapline-fuzz-{}", std::process::id()));
    let forms: [&[&str]; 5] = [
        &["-O0"],
        &["-O2"],
        &["-O1", "-flto"],
        &["-O1", "-gdwarf-4", "-fdebug-types-section"],
        &["-O1", "-fdebug-types-section"],
    ];
    let built = |flags: &[&str]| {
        std::fs::create_dir_all(&dir).ok()?;
        let (from, to) = (dir.join("v.c"), dir.join("v"));
        std::fs::write(&from, DEBUGGED).ok()?;
        std::process::Command::new("cc").arg("-g").args(flags).arg("-o").arg(&to).arg(&from).status().ok()?;
        std::fs::read(&to).ok()
    };
    // Without a compiler there is less to begin with.
    let built: Vec<Vec<u8>> = forms.into_iter().filter_map(built).collect();
    all.splice(0..0, built);
    drop(std::fs::remove_dir_all(&dir));
    all
}

fn variables(bytes: &[u8]) {
    let Ok(image) = Image::parse(bytes.to_vec(), &mut NoDebugFiles) else { return };
    let _symbols = (image.data_named("v"), image.data_near("w"), image.data_at(image.entry()));
    let Some(debug) = image.debug_info() else { return };
    for path in ["v", "v.a[1]", "v.b", "v.c", "v.d", "w", "v.a[9]", "nobody"] {
        let _found = debug.variables(path);
    }
    for function in image.functions().iter().take(20) {
        let start = function.start;
        let _noted = (debug.line(start), debug.prototype(start), debug.prototype_of_copy(start));
        let _shapes = (debug.parameter_shapes(start), debug.record_shape("s", start));
        for path in ["of->d->a[1]", "whole.b", "arg1", "*of", "*of->d", "**arg0"] {
            let _field = debug.field(start, path);
            let _counted = debug.counted_field(start, path);
        }
        for at in [start, start + function.len / 2] {
            let here = image.code_place(at);
            for path in ["at->d->text", "sum", "v.b", "of->f"] {
                if let Ok(local) = debug.local(&here, path) {
                    let argument = &local.argument;
                    assert!(matches!(argument.bytes, 1 | 2 | 4 | 8), "{argument:?}");
                    if let MarkPlace::Register(nth) | MarkPlace::Loads { base: nth, .. } = &argument.place {
                        assert!(*nth < 32, "{argument:?}");
                    }
                }
            }
        }
    }
}

/// A sample's type, then its body.
fn samples() -> Vec<Vec<u8>> {
    let words: Vec<u8> = (0..40_u64).flat_map(|word| (word * 0x0101_0101).to_le_bytes()).collect();
    [9_u8, 2, 3, 4, 7]
        .into_iter()
        .map(|kind| std::iter::once(kind).chain(words.iter().copied()).collect())
        .collect()
}

fn sample(bytes: &[u8]) {
    let Some((kind, body)) = bytes.split_first() else { return };
    for (registers, stack) in [(false, false), (true, false), (false, true), (true, true)] {
        let layout = Layout { registers, stack, value_ids: vec![0, 1] };
        let _record = parse(&layout, u32::from(*kind), body);
    }
    for misc in [0, 1 << 13] {
        let _record = task(u32::from(*kind), misc, body);
    }
}

fn store(bytes: &[u8]) {
    let regs = RegFile { gprs: [0x40_0010; 16], flags: 0x246 };
    if let Some(one) = Accessor::decode(bytes, 0x40_0000) {
        let effect = one.effect(&regs);
        assert!(one.end() > one.addr(), "an instruction has a length");
        assert!(!one.writes() || effect.stored != Stored::Nothing, "a store stores");
    }
    let regs = aarch64::Regs { x: [0x40_0010; 31], sp: u64::MAX - 8, ..aarch64::Regs::default() };
    for word in bytes.chunks_exact(4).filter_map(|word| word.first_chunk()) {
        if let Some(one) = aarch64::Accessor::decode(u32::from_le_bytes(*word), 0x40_0000) {
            let effect = one.effect(&regs, 0x40_0010, 8);
            assert!(effect.len > 0 && one.writes() == (effect.stored != Stored::Nothing), "a store stores");
        }
    }
    for in_step in [false, true] {
        let code = Code { bytes, addr: 0x40_0000, in_step };
        for ip in [0x40_0000, 0x40_0005, 0x40_0000 + bytes.len() as u64, 0, u64::MAX] {
            let _found = accessors(code, ip);
        }
    }
}

fn places() -> Vec<Vec<u8>> {
    let texts = [
        "libx:server.a[3].b+0x10:4:rw",
        "0x7fff0010:8",
        "ns::v:x",
        "value > 10 && !(old & 0xff) || tid == 3",
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn place(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let _spec = text.parse::<WatchSpec>();
    if let Ok(expr) = text.parse::<Expr>() {
        let _held = expr.holds(&Facts { value: Some(-1), old: None, ..Facts::default() });
    }
}

/// Conditions of every form.
fn conditions() -> Vec<Vec<u8>> {
    let texts = [
        "arg0 & 0x40 && tid != 3 || !(arg1 + 5 * arg2 >> 3)",
        "arg3 % 17 / 3 <= -arg4 ^ ~arg5 | '\\n' & 0b101",
        "arg1 == 20us && arg2 < 2s && arg0 >= 0777",
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn condition(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match filter::parse(&text, &filter::registers()) {
        Ok(tree) => {
            assert!(tree.nodes() <= MAX_NODES && tree.temporaries() <= MAX_TEMPORARIES, "bounded");
            let facts =
                filter::Facts { arguments: [0, 1, u64::MAX, 1 << 63, 7, 9], ..filter::Facts::default() };
            assert!(tree.holds(&facts).is_some(), "all is known");
            let (early, late) = tree.split();
            assert!(early.is_some() && late.is_none(), "registers are known at the entry");
        }
        Err(error) => {
            assert!(error.at() <= text.chars().count() && error.to_string().contains('^'), "a mark below")
        }
    }
}

/// Argument strings of USDT probes, with operands of every form.
fn operands() -> Vec<Vec<u8>> {
    let texts = [
        "-4@%edi 8@-24(%rbp) 8@$5 4@sym+4(%rip) 8f@%xmm0 1@%ah 8@16(%rax,%r12,8) 2@%r15w 8@$sym 4@%fs:-4",
        "4@w0 -8@[sp, #24] 8f@d0 8@[x0, x1, lsl #3] 4@[x2, w3, sxtw 2] 8@sp 4@wzr -4@5 4f@v31 8@[x0], 8",
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// Whatever a string says, each place is one that code can be made for.
fn operand(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for (machine, registers, vectors) in [(Machine::X86_64, 16, 16), (Machine::Aarch64, 32, 32)] {
        let all = mark_arguments(&text, machine);
        assert!(all.len() <= MARK_ARGUMENTS, "bounded");
        for one in all {
            assert!(matches!(one.bytes, 1 | 2 | 4 | 8), "{one:?}");
            let is_float = one.class == MarkClass::Float;
            assert!(!is_float || one.bytes >= 4, "{one:?}");
            match one.place {
                MarkPlace::Register(nth) => assert!(nth < registers && !is_float, "{nth}"),
                MarkPlace::Vector(nth) => assert!(nth < vectors && is_float, "{nth}"),
                MarkPlace::Memory { base, index, .. } => {
                    assert!(base < registers, "{base}");
                    assert!(
                        index.is_none_or(|index| index.register < registers.min(31) && index.scale < 4),
                        "{index:?}"
                    );
                }
                MarkPlace::Constant(_) | MarkPlace::Address { .. } => assert!(!is_float, "{one:?}"),
                MarkPlace::Symbol { .. } | MarkPlace::Unknown(_) => {}
                MarkPlace::Loads { .. } | MarkPlace::StaticLoads { .. } => {
                    panic!("no note says that: {one:?}")
                }
            }
        }
    }
}

/// Two rings of four slots, with one, four and five records ahead.
fn rings() -> Vec<Vec<u8>> {
    let ring = |head: u64| (0..48).map(move |word| if word == 0 { head } else { word });
    let heads = [(64, 0), (256, 128), (320, u64::MAX)];
    heads.into_iter().map(|(a, b)| ring(a).chain(ring(b)).flat_map(u64::to_le_bytes).collect()).collect()
}

fn ring(bytes: &[u8]) {
    let words: Vec<AtomicU64> = bytes
        .chunks_exact(8)
        .map(|word| AtomicU64::new(word.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte))))
        .collect();
    for (slot, most) in [(64, 64), (128, 128), (64, 256)] {
        let area = RingArea { off: 0, rings: 2, slot, most, bytes: 256 };
        for ring in 0..3 {
            let mut tail = 0;
            for _ in 0..3 {
                let mut seen = 0;
                let each = |_: &_, word: &dyn Fn(u64) -> u64| {
                    seen += 1;
                    assert!(word(u64::MAX / 16) == 0 && word(64) == 0, "nothing is read behind a slot");
                };
                let taken = area.take_with_texts(View::new(&words), ring, &mut tail, each);
                assert!(taken.is_ok_and(|n| n >= seen && n <= 4) || seen == 0, "more than a ring holds");
            }
            let room = u64::from(most) / 8;
            let each = |record: &_, word: &dyn Fn(u64) -> u64| {
                let stack = Stack::new(record, room);
                assert!(FIRST + stack.words <= room, "a stack within its record");
                let _word = word(FIRST + stack.words);
                let _cut = stack.is_cut(2);
            };
            if let Err(broken) = area.take_words(View::new(&words), ring, &mut 0, each) {
                assert_eq!(broken.tail, 0);
            }
        }
    }
}

/// Tables of rows and of buckets, full and empty.
fn tallies() -> Vec<Vec<u8>> {
    let words = |each: u64| (0..256).flat_map(move |word| (word * each).to_le_bytes()).collect();
    [0, 1, u64::MAX / 256].map(words).to_vec()
}

fn tally(bytes: &[u8]) {
    let words: Vec<AtomicU64> = bytes
        .chunks_exact(8)
        .map(|word| AtomicU64::new(word.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte))))
        .collect();
    let rows = [
        TableShape::Rows(0),
        TableShape::Rows(5),
        TableShape::Texts(0),
        TableShape::Texts(5),
        TableShape::OwnedRows(5),
        TableShape::OwnedTexts(0),
    ];
    for shape in
        [TableShape::Nothing, TableShape::Cells(5), TableShape::Cells(u32::MAX)].into_iter().chain(rows)
    {
        let area = TallyArea { off: 0, tables: 2, lines: 2, shape };
        for (probe, line) in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (0, u32::MAX), (u32::MAX, 1)] {
            let mut seen = 0;
            let _rest = area.read_rows(View::new(&words), probe, line, |row, word| {
                assert!(row.hits > 0, "what was not hit is not reported");
                assert_eq!([8, 1 << 60, u64::MAX].map(word), [0; 3], "a text has eight words");
                seen += 1;
            });
            assert!(seen <= shape.words() && seen <= words.len() as u64, "more than was there");
        }
    }
}

/// A file with a block of every kind, and its first parts.
fn recordings() -> Vec<Vec<u8>> {
    let file = example();
    let halves = [file.len() / 2, file.len() - 30].map(|len| file[..len].to_vec());
    halves.into_iter().chain([file, trapline::recorded::example()]).collect()
}

/// Takes calls of a recording of words.
#[derive(Default)]
struct Calls {
    begun: usize,
    ended: usize,
}

impl Visit for Calls {
    fn begun(&mut self, _: &Begun) {
        self.begun += 1;
    }
    fn ended(&mut self, ended: &Ended) {
        assert!(ended.end >= ended.call.begin, "it ends before it begins");
        self.ended += 1;
    }
}

fn recording(bytes: &[u8]) {
    // What is behind the checksums is to be reached.
    let mut sealed = bytes.to_vec();
    reseal(&mut sealed);
    [bytes, &sealed].into_iter().for_each(recorded);
    [bytes, &sealed].into_iter().for_each(saved);
}

fn recorded(bytes: &[u8]) {
    // As a whole, and between two times that the input itself says.
    let time = |at: usize| Duration::from_nanos(u64::from(bytes.get(at).copied().unwrap_or(0)) << 4);
    let (since, until) = (time(bytes.len() / 3), time(bytes.len() / 2));
    for (since, until) in [(Duration::ZERO, None), (since, None), (since, Some(since + until))] {
        let Ok(recorded) = Recorded::open(Cursor::new(bytes)) else { return };
        let (mut recorded, mut calls) = (recorded.between(since, until), Calls::default());
        while let Ok(Step::Round { .. }) = recorded.round(&mut calls) {}
        assert!(calls.begun == calls.ended && calls.begun <= bytes.len() / 8, "more than there was");
        assert!(recorded.totals().passed <= bytes.len() as u64, "more was passed over than there was");
    }
}

fn saved(bytes: &[u8]) {
    let Ok(mut saved) = Saved::open(bytes) else { return };
    let (mut calls, mut rounds) = (0, 0);
    while let Ok(Step::Round { .. }) = saved.each_call(&mut |call| {
        calls += 1;
        assert!(!call.site.label.chars().any(char::is_control), "a name that orders terminals about");
    }) {
        rounds += 1;
    }
    // A record has at least 64 bytes, and a block's head 16; the last round may be one that no block ends.
    assert!(calls <= bytes.len() / 64 && rounds <= bytes.len() / 16 + 1, "more than there was");
    let (_counted, _notices) = (saved.counted(), saved.notices());
}

/// Scripts that together use most of the language.
fn scripts() -> Vec<Vec<u8>> {
    [
        "#define N 3\nstruct S { int a; char b[4]; uint16_t c:5; }; enum E { X = 1, Y };\nlet @l = lruhash(2);\n\
         macro add(x, $y) { $y += x; $y }\nbegin { $z = 5; print((add(2, $z), sizeof(struct S), X)); @l[N] = Y; }",
        "config = { max_strlen = 64 } begin { let $s: string = \"abc\"; $t = (1, \"two\", (3, $s)); $r = (p=1, q=$t); \
         @a[$t.0, str($1)] = count(); @h[1] = hist(5, 2); @m = lhist(3, 0, 10, 2); print(@a, 5, 2); clear(@m); }",
        "i:ms:5 /@st == 0/ { for ($i : 0..9) { if ($i == 1) { continue; } unroll (2) { $i > 2 ? print($i) : print(1); } } \
         while (@st < 3) { @st++; break; } for ($kv : @x) { printf(\"%-5d|%s\\n\", $kv.0, $kv.1); } @x[1] = \"v\"; exit(); }",
        "uprobe:f:g /arg0 > 3/ { @s[tid] = nsecs; unroll(3) { @n++; } } uretprobe:f:g /@s[tid]/ { $x = (int8)retval; \
         @h[func, $x % 7] = hist(nsecs - @s[tid]); @l = lhist(retval, 0, 9, 2); @m[pid] = max($x ? $x : 1); delete(@s[tid]); }",
        "uprobe:libc:malloc { @[arg0, comm] = sum(arg1); } uretprobe:libc:malloc /retval/ { @s[tid] = nsecs; \
         @b = buf(\"xy\", 2); print((int8[2])(uint16)7); $p = (uint16 *)5; print(&$p); }",
        "struct F { char c; double d; float f[2]; }; uprobe:p@a/b.c:12:5 { @[dw_ustack(perf, 3), reg(\"ip\")] = count(); } \
         watchpoint:0x10000000:8:rw, w:p:v:w { @[pid(init), pcomm, leader_comm] = max(nsecs); } \
         usdt:p:q:\"\\\"r\\\"\" /arg1/ { print((sizeof(struct F), offsetof(struct F, f))); } u:p:10 { exit(); }",
    ]
    .into_iter()
    .map(|text| text.as_bytes().to_vec())
    .collect()
}

fn script(bytes: &[u8]) {
    match compile(Source::new("stdin", bytes), &ScriptOptions::default()) {
        Err(message) => assert!(message.contains("ERROR: "), "a message says that it is one: {message}"),
        Ok(compiled) => {
            let natives =
                Natives::of(&compiled.program, &[], (Processes { one: true, same_tids: true }, true));
            assert_eq!(natives.fates.len(), compiled.program.blocks.len());
        }
    }
}
