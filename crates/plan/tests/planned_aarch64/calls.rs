//! SYS-1 on real programs for arm64: which system calls of a program's own are found, where their numbers and
//! arguments come from, and that each can be held. A disassembler says the numbers, too.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use trapline_image::Image;
use trapline_plan::Origin::{Constant, Memory, Register};
use trapline_plan::{
    Action, ActionRequest, AddressSpace, Hold, Origin, ProcessTraits, SystemCall, system_calls,
};
use trapline_record::Svma;
use trapline_record::control::fact::{CLOCK, FAULTS, FILTER, TRAPS};
use trapline_tests::victims::{Variant, c_for_arm64, go_for_arm64};

use crate::common::image;
use crate::{BIAS, planned, traits};

/// Calls that change facts: rt_sigaction, prctl, seccomp.
const NUMBERS: [u32; 3] = [134, 167, 277];

/// A word of the disassembler's: its address, the instruction, its operands.
struct Line {
    at: u64,
    name: String,
    operands: String,
}

/// What it shows of a program's code. `None` if it is not installed.
fn disassembled(path: &Path) -> Option<Vec<Line>> {
    let output = Command::new("aarch64-linux-gnu-objdump").arg("-d").arg(path).output().ok()?;
    let line = |line: &str| {
        let (at, rest) = line.trim_start().split_once(":\t")?;
        let mut fields = rest.split('\t').skip(1);
        let name = fields.next()?.trim().to_owned();
        let operands = fields.next().unwrap_or_default().trim().to_owned();
        Some(Line { at: u64::from_str_radix(at, 16).ok()?, name, operands })
    };
    Some(String::from_utf8_lossy(&output.stdout).lines().filter_map(line).collect())
}

fn is_jump(name: &str) -> bool {
    name.starts_with("b.") || ["b", "cbz", "cbnz", "tbz", "tbnz"].contains(&name)
}

/// Addresses to which a branch leads.
fn targets(lines: &[Line]) -> HashSet<u64> {
    let target = |line: &Line| {
        let to = line.operands.split(" <").next()?.rsplit([' ', ',']).next()?;
        u64::from_str_radix(to.trim_start_matches("0x"), 16).ok()
    };
    lines.iter().filter(|line| is_jump(&line.name)).filter_map(target).collect()
}

/// What is in x8 at a call, as far as the code before it says: the number, or nothing that is known.
fn number(lines: &[Line], call: usize, targets: &HashSet<u64>) -> Option<u32> {
    for index in (0..call).rev().take(32) {
        let line = &lines[index];
        let ends = ["b", "br", "bl", "blr", "ret", "svc", "udf", ".inst", "brk"];
        if targets.contains(&(line.at + 4))
            || ends.contains(&&*line.name)
            || line.at + 4 != lines[index + 1].at
        {
            return None;
        }
        let mut operands = line.operands.split(", ");
        if operands.next().is_some_and(|to| to == "x8" || to == "w8") {
            let value =
                operands.last().filter(|_| ["mov", "orr"].contains(&&*line.name))?.strip_prefix("#0x")?;
            return u32::from_str_radix(value.split_whitespace().next()?, 16).ok();
        }
    }
    None
}

/// Compares all calls with the disassembler's.
fn assert_same(path: &Path) {
    let image = image(path.to_str().expect("a path"));
    let calls = system_calls(&image);
    assert_planned(&image, &calls);
    let Some(lines) = disassembled(path) else { return println!("SKIP: no aarch64-linux-gnu-objdump") };
    let targets = targets(&lines);
    let (mut all, mut constant, mut held, mut missed) = (0, BTreeMap::<u32, u32>::new(), 0, Vec::new());
    let mut found: BTreeMap<u64, &SystemCall> = BTreeMap::new();
    for call in &calls {
        let svc =
            lines.iter().find(|line| line.at > call.at.0 && line.name == "svc").expect("a call behind it");
        assert!(svc.at - call.at.0 <= 4 * 32, "{call:?}");
        assert!(found.insert(svc.at, call).is_none(), "{call:?}: one place for each call");
    }
    for index in (0..lines.len()).filter(|index| lines[*index].name == "svc") {
        let at = lines[index].at;
        all += 1;
        let known = number(&lines, index, &targets);
        known.iter().for_each(|number| *constant.entry(*number).or_default() += 1);
        match (known, found.remove(&at)) {
            (Some(number), Some(call)) => {
                held += 1;
                let Hold::Call(words) = call.hold else { panic!("{call:?}") };
                assert_eq!(words[0], Constant(number), "{at:#x}: {call:?}");
                assert!(NUMBERS.contains(&number), "{at:#x}: {call:?}");
            }
            (Some(number), None) if NUMBERS.contains(&number) => missed.push((at, number)),
            (Some(_), None) => {}
            (None, Some(call)) => {
                held += 1;
                let Hold::Call(words) = call.hold else { panic!("{call:?}") };
                assert!(!matches!(words[0], Constant(_)), "{at:#x}: {call:?}");
            }
            (None, None) => println!("{at:#x}: its number comes from elsewhere"),
        }
    }
    let missed: Vec<String> = missed.iter().map(|(at, number)| format!("{at:#x}: {number}")).collect();
    println!(
        "{}: {all} calls, {} with a number beside them, {held} held, not held {missed:?}",
        path.display(),
        constant.values().sum::<u32>()
    );
    assert!(found.is_empty(), "{found:?}");
}

/// Plans all of them.
fn assert_planned(image: &Image, calls: &[SystemCall]) {
    let request = |(probe, call): (u32, &SystemCall)| ActionRequest {
        probe,
        latency: None,
        function: Some(call.function),
        action: Action::HoldAt(call.at, call.hold),
    };
    let requests: Vec<ActionRequest> = (0..).zip(calls).map(request).collect();
    let ends = image.loads().iter().map(|load| load.svma.0 + load.memsz).max().expect("a load");
    let ends = BIAS.live(Svma(ends.next_multiple_of(1 << 16)));
    let space = AddressSpace { occupied: vec![(BIAS.live(Svma(0)), ends)], heap_end: None };
    let plan = planned(image, &ProcessTraits { go: image.is_go(), ..traits() }, &space, &requests);
    assert!(plan.refused.is_empty(), "{:?}", plan.refused);
    assert_eq!(plan.patches.len(), calls.len());
    for patch in &plan.patches {
        assert_ne!(patch.old[..4], 0xD400_0001_u32.to_le_bytes(), "{patch:?}");
    }
}

/// By the functions' names: the words of each call.
fn words(image: &Image, calls: &[SystemCall]) -> BTreeMap<String, Vec<[Origin; 3]>> {
    let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for call in calls {
        let Hold::Call(words) = call.hold else { panic!("{call:?}") };
        for name in image.names(image.function(call.function)) {
            all.entry(name.raw.to_owned()).or_default().push(words);
        }
    }
    all
}

fn built(path: Result<PathBuf, String>) -> Option<PathBuf> {
    path.inspect_err(|why| println!("SKIP: {why}")).ok()
}

#[test]
fn the_shapes_of_calls_are_found() {
    for variant in [Variant::Plain, Variant::O0, Variant::O3, Variant::NonPie, Variant::Static] {
        let Some(path) = built(c_for_arm64("own_calls", variant)) else { return };
        let image = image(path.to_str().expect("a path"));
        let calls = system_calls(&image);
        let found = words(&image, &calls);
        assert_eq!(found["wrapped"], [[Register(8), Register(0), Register(1)]], "at the last word");
        let on_stack = [Memory { base: 31, offset: 16 }, Register(0), Register(1)];
        assert_eq!(found["on_stack"], [on_stack]);
        let all: Vec<_> = found.values().flatten().collect();
        for expected in
            [[Constant(167), Constant(26)], [Constant(134), Constant(11)], [Constant(277), Constant(1)]]
        {
            // Without optimisation the first argument comes from memory that was just written.
            let is = |words: &&&[Origin; 3]| {
                words[..2] == expected || variant == Variant::O0 && words[0] == expected[0]
            };
            assert!(all.iter().any(|words| is(&words)), "{variant:?} {expected:?} in {all:?}");
        }
        let changed = calls.iter().fold(0, |all, call| all | call.facts);
        assert_eq!(changed, CLOCK | FAULTS | FILTER | TRAPS);
        assert_same(&path);
    }
}

#[test]
fn gos_calls_are_found() {
    let Some(path) = built(go_for_arm64("raw_calls")) else { return };
    let image = image(path.to_str().expect("a path"));
    let found = words(&image, &system_calls(&image));
    let (_, all) =
        found.iter().find(|(name, _)| name.ends_with("Syscall6")).expect("the function by which Go calls");
    assert_eq!(*all, [[Register(8), Register(0), Register(1)]], "loaded before the last word");
    assert_same(&path);
}

/// A C library's calls, without its names; static ones too.
#[test]
fn a_c_librarys_calls_are_found_by_their_code() {
    let library = Path::new("/usr/aarch64-linux-gnu/lib/libc.so.6");
    if library.exists() {
        assert_same(library);
    }
    let Some(path) = built(c_for_arm64("changes", Variant::Static)) else { return };
    let image = image(path.to_str().expect("a path"));
    let found = words(&image, &system_calls(&image));
    assert_eq!(found["prctl"][0][0], Constant(167), "{:?}", found["prctl"]);
    assert!(found.contains_key("syscall") && found.contains_key("__libc_sigaction"), "{found:?}");
    assert_same(&path);
}
