//! A second opinion on every word, from an independent decoder (disarm64, generated from the tables of GNU
//! binutils).

use super::classes::{Class, HINTED, SIMULATED, VECTOR};
use super::{Rng, setting};
use disarm64::decoder::{self, Opcode};
use disarm64::{InsnDisplay, InsnOpcode, InsnOperand};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use trapline_insn::aarch64::{Away, Gpr, Literal, Op, Refusal, Test, Through, Vector, Verdict, decode};

/// The classes contain exactly the simulated words, no fewer and no more.
#[test]
fn the_classes_are_what_is_simulated() {
    sweep(|word| {
        let listed = SIMULATED.iter().any(|class| class.holds(word)) || HINTED.holds(word);
        let simulated = matches!(decode(word), Verdict::Simulate(_));
        (listed != simulated).then(|| format!("listed: {listed}, simulated: {simulated}"))
    });
}

#[test]
fn kinds_agree_with_a_second_decoder() {
    let looked = sweep(|word| disagreement(word, decoder::decode(word)));
    println!("{looked} words");
}

/// Size of a class up to which all of its words are checked; `cargo xtask a64-sweep` checks all words of
/// every class.
const FEW: u64 = 1 << 17;

/// Operands as text: every word of the smaller classes. Of the others, random words, and every word with all
/// fields but one set or clear.
#[test]
fn operands_agree_with_a_second_decoder() {
    let mut rng = Rng(0x0DDB_A115);
    let per_class = setting("TRAPLINE_A64_RUNS", 50_000);
    let few = if setting("TRAPLINE_A64_STRIDE", 0) == 1 { u64::MAX } else { FEW };
    for class in SIMULATED.iter().chain(VECTOR).chain([&HINTED]) {
        if class.size() <= few {
            println!("{}: all of {} words", class.name, every(class));
            continue;
        }
        let shifted = (0..=32).flat_map(|n| [(1_u64 << n) - 1, 1_u64 << n, u64::MAX << n]);
        let random: Vec<u64> = (0..per_class).map(|_| rng.next() >> 7).collect();
        for bits in shifted.chain(random) {
            operands(class, class.word(bits as u32));
        }
    }
}

/// Checks every word of the class, on all processors. Returns their number.
fn every(class: &Class) -> u64 {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let part = |first: u64| {
        (first..class.size()).step_by(threads as usize).map(|n| operands(class, class.nth(n))).count()
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|first| scope.spawn(move || part(first))).collect();
        running.into_iter().map(|thread| thread.join().expect("all agree") as u64).sum()
    })
}

/// Runs `check` over the words on all processors: by default every 61st, and all of them with
/// `TRAPLINE_A64_STRIDE=1` (`cargo xtask a64-sweep`). Fails with one example word for each message of
/// `check`.
pub(crate) fn sweep(check: impl Fn(u32) -> Option<String> + Sync) -> u64 {
    let stride = setting("TRAPLINE_A64_STRIDE", 61);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let found = Mutex::new(BTreeMap::new());
    let (check, found_by_all) = (&check, &found);
    let part = |first: u64| {
        let mut looked = 0;
        for word in (first * stride..1 << 32).step_by((threads * stride) as usize) {
            let word = word as u32;
            if let Some(why) = check(word) {
                found_by_all.lock().expect("unpoisoned").entry(why).or_insert(word);
            }
            looked += 1;
        }
        looked
    };
    let looked = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|first| scope.spawn(move || part(first))).collect();
        running.into_iter().map(|thread| thread.join().expect("a part of the sweep")).sum()
    });
    let found = found.into_inner().expect("unpoisoned");
    let lines: Vec<_> = found.iter().map(|(why, word)| format!("{word:#010x}: {why}")).collect();
    assert!(lines.is_empty(), "{}", lines.join("\n"));
    looked
}

/// What is wrong with our verdict, judged by the second decoder's name and operands for the word.
fn disagreement(word: u32, theirs: Option<Opcode>) -> Option<String> {
    let ours = decode(word);
    let Some(theirs) = theirs else {
        let unknown = matches!(
            ours,
            Verdict::OutOfLine(Away::Plain)
                | Verdict::Refuse(
                    Refusal::Unallocated
                        | Refusal::CompareBranch
                        | Refusal::SignsAddress
                        | Refusal::Privileged
                        | Refusal::System128
                        | Refusal::MemoryCopy
                        | Refusal::Exclusive
                )
        );
        return (!unknown).then(|| "they know nothing of it".to_owned());
    };
    let definition = theirs.definition();
    let relative = is_relative(definition.operands);
    let name = definition.mnemonic;
    let agreed = match ours {
        Verdict::Simulate(op) => may_simulate(op, name) && relative == is_relative_op(op),
        Verdict::OutOfLine(Away::LoadVector { .. }) => name == "ldr" && relative,
        Verdict::OutOfLine(Away::Authenticated) => {
            matches!(name, "braa" | "brab" | "braaz" | "brabz" | "retaa" | "retab")
        }
        Verdict::OutOfLine(Away::Plain) => !relative && !must_not_run_elsewhere(name),
        Verdict::Refuse(why) => may_refuse(why, name) || lax(word, name),
    };
    (!agreed).then(|| match ours {
        Verdict::Refuse(why) => format!("they say {name}, we refuse: {why:?}"),
        Verdict::OutOfLine(_) => format!("they say {name}, we let it run out of line"),
        Verdict::Simulate(_) => format!("they say {name}, we simulate"),
    })
}

/// Whether an instruction with these operands names an address by distance. The operand lists are the
/// decoder's own tables, so each one is checked once.
fn is_relative(operands: &'static [InsnOperand]) -> bool {
    thread_local! {
        static KNOWN: RefCell<HashMap<*const InsnOperand, bool>> = RefCell::default();
    }
    let relative = |operand: &InsnOperand| {
        let kind = format!("{:?}", operand.kind);
        kind.starts_with("ADDR_PCREL") || kind == "ADDR_ADRP"
    };
    KNOWN.with_borrow_mut(|known| {
        *known.entry(operands.as_ptr()).or_insert_with(|| operands.iter().any(relative))
    })
}

const fn is_relative_op(op: Op) -> bool {
    matches!(op, Op::Branch { .. } | Op::BranchIf { .. } | Op::Address { .. } | Op::Load { .. })
}

/// Whether the second decoder may give a simulated instruction of this kind this name.
fn may_simulate(op: Op, name: &str) -> bool {
    match op {
        Op::Nop => matches!(name, "hint" | "nop" | "yield" | "dgh" | "bti"),
        Op::Branch { link, .. } => name == if link { "bl" } else { "b" },
        Op::BranchIf { test: Test::Flags(_), .. } => matches!(name, "b.c" | "bc.c"),
        Op::BranchIf { test: Test::Zero { when, .. }, .. } => name == if when { "cbz" } else { "cbnz" },
        Op::BranchIf { test: Test::Bit { when, .. }, .. } => name == if when { "tbnz" } else { "tbz" },
        Op::BranchTo { through: Through::Jump, .. } => name == "br",
        Op::BranchTo { through: Through::Call, .. } => name == "blr",
        Op::BranchTo { through: Through::Return, .. } => name == "ret",
        Op::Address { pages, .. } => name == if pages { "adrp" } else { "adr" },
        Op::Load { literal: Literal::Word | Literal::Double, .. } => name == "ldr",
        Op::Load { literal: Literal::Signed, .. } => name == "ldrsw",
        Op::Load { literal: Literal::Prefetch, .. } => name == "prfm",
        Op::Push { second, .. } => name == if second.is_some() { "stp" } else { "str" },
        Op::PushFrame { .. } => name == "stp",
        Op::Add { amount, .. } => matches!((name, amount), ("add" | "sub", 0) | ("add", 1..) | ("sub", ..0)),
    }
}

/// Names of branches, traps and parts of sequences, which never do the same at another address.
fn must_not_run_elsewhere(name: &str) -> bool {
    let exact = [
        "b", "bl", "br", "blr", "ret", "b.c", "bc.c", "cbz", "cbnz", "tbz", "tbnz", "svc", "hvc", "smc",
        "brk", "hlt", "udf", "eret", "eretaa", "eretab", "drps", "ldxr", "stxr", "ldaxr", "stlxr", "ldxp",
        "stxp", "ldaxp", "stlxp", "tstart", "tcommit", "tcancel", "ttest",
    ];
    exact.contains(&name) || is_copy(name) || name.starts_with("blra") || name.starts_with("dcps")
}

fn is_exclusive(name: &str) -> bool {
    ["ldx", "stx", "ldax", "stlx", "ldtx", "sttx", "ldatx", "stltx"]
        .iter()
        .any(|start| name.starts_with(start))
}

fn is_copy(name: &str) -> bool {
    ["cpyp", "cpym", "cpye", "cpyfp", "cpyfm", "cpyfe", "setp", "setm", "sete", "setgp", "setgm", "setge"]
        .iter()
        .any(|start| name.starts_with(start))
}

/// Words that the second decoder accepts and the manual leaves unallocated: a literal of opc 3 to a vector,
/// system registers of op0 0. Also words of a later extension (FEAT_TEV), which changes what an address
/// means.
fn lax(word: u32, name: &str) -> bool {
    match name {
        "ldr" => word >> 24 == 0xDC,
        "mrs" | "msr" => word >> 19 & 3 == 0,
        _ => matches!(name, "tchangeb" | "tchangef" | "tenter" | "texit"),
    }
}

/// Whether this reason for a refusal fits the name.
fn may_refuse(why: Refusal, name: &str) -> bool {
    match why {
        Refusal::Undefined => name == "udf",
        Refusal::Unallocated => false,
        Refusal::CompareBranch => name.starts_with("cb") && !matches!(name, "cbz" | "cbnz"),
        Refusal::Breakpoint => name == "brk",
        Refusal::Halt => name == "hlt" || name.starts_with("dcps"),
        Refusal::SystemCall => name == "svc",
        Refusal::Monitor => matches!(name, "hvc" | "smc"),
        Refusal::Privileged => {
            let returns = matches!(name, "eret" | "eretaa" | "eretab" | "drps");
            // Names of `sys`, and of the guarded control stack with an `op1` of 0, which are for EL1.
            let stacks = matches!(name, "gcspushx" | "gcspopcx" | "gcspopx");
            returns || stacks || matches!(name, "msr" | "mrs" | "sys" | "sysl")
        }
        Refusal::Exclusive => is_exclusive(name),
        Refusal::MemoryCopy => is_copy(name),
        Refusal::SignsAddress => {
            name == "hint" || name == "pacm" || name.contains("ppc") || name.starts_with("pacnb")
        }
        Refusal::AuthenticatedCall => name.starts_with("blra"),
        Refusal::Transaction => matches!(name, "tstart" | "tcommit" | "tcancel" | "ttest"),
        Refusal::System128 => matches!(name, "sysp" | "mrrs" | "msrr"),
    }
}

/// Address that the words are decoded for; page-aligned, and far enough from zero for every distance.
const PLACE: u64 = 0x20_0000_0000;

fn operands(class: &Class, word: u32) {
    let theirs =
        decoder::decode(word).unwrap_or_else(|| panic!("{}: {word:#010x} is unknown to them", class.name));
    let theirs = theirs.display_at(PLACE).to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    let ours = match decode(word) {
        Verdict::Simulate(op) => text(op, word),
        Verdict::OutOfLine(Away::LoadVector { size, to, offset }) => {
            let letter = match size {
                Vector::S => 's',
                Vector::D => 'd',
                Vector::Q => 'q',
            };
            format!("ldr {letter}{to}, {:#x}", PLACE.wrapping_add_signed(offset.into()))
        }
        other => format!("{other:?}"),
    };
    assert_eq!(ours, theirs, "{}: {word:#010x}", class.name);
}

fn register(of: Gpr, wide: bool) -> String {
    match (of.number(), wide) {
        (31, true) => "xzr".to_owned(),
        (31, false) => "wzr".to_owned(),
        (number, true) => format!("x{number}"),
        (number, false) => format!("w{number}"),
    }
}

fn text(op: Op, word: u32) -> String {
    let x = |of: Gpr| register(of, true);
    let at = |offset: i64| format!("{:#x}", PLACE.wrapping_add_signed(offset));
    match op {
        Op::Nop => decoder::decode(word).map_or_else(String::new, |theirs| {
            theirs.display_at(PLACE).to_string().split_whitespace().collect::<Vec<_>>().join(" ")
        }),
        Op::Branch { offset, link } => format!("{} {}", if link { "bl" } else { "b" }, at(offset.into())),
        Op::BranchIf { test, offset } => format!("{} {}", condition(test, word), at(offset.into())),
        Op::BranchTo { through: Through::Jump, to } => format!("br {}", x(to)),
        Op::BranchTo { through: Through::Call, to } => format!("blr {}", x(to)),
        Op::BranchTo { through: Through::Return, to } => format!("ret {}", x(to)),
        Op::Address { to, offset, pages } => {
            format!("adr{} {}, {}", if pages { "p" } else { "" }, x(to), at(offset))
        }
        Op::Load { literal: Literal::Prefetch, offset, .. } => {
            format!("prfm {}, {}", prefetch(word & 31), at(offset.into()))
        }
        Op::Load { literal, to, offset } => {
            let name = if literal == Literal::Signed { "ldrsw" } else { "ldr" };
            format!("{name} {}, {}", register(to, literal != Literal::Word), at(offset.into()))
        }
        Op::Push { wide, first, second: Some(second), offset } => {
            format!("stp {}, {}, [sp, #{offset}]!", register(first, wide), register(second, wide))
        }
        Op::PushFrame { offset } => format!("stp x29, x30, [sp, #{offset}]!"),
        Op::Push { wide, first, second: None, offset } => {
            format!("str {}, [sp, #{offset}]!", register(first, wide))
        }
        Op::Add { to, from, amount } => {
            let sp = |of: Gpr| if of.is_31() { "sp".to_owned() } else { x(of) };
            let name = if word >> 30 & 1 != 0 { "sub" } else { "add" };
            let size = amount.unsigned_abs();
            match word >> 22 & 1 {
                0 => format!("{name} {}, {}, #{size:#x}", sp(to), sp(from)),
                _ => format!("{name} {}, {}, #{:#x}, lsl #12", sp(to), sp(from), size >> 12),
            }
        }
    }
}

fn condition(test: Test, word: u32) -> String {
    const NAMES: [&str; 16] =
        ["eq", "ne", "cs", "cc", "mi", "pl", "vs", "vc", "hi", "ls", "ge", "lt", "gt", "le", "al", "nv"];
    match test {
        Test::Flags(_) => {
            format!("b{}.{}", if word >> 4 & 1 != 0 { "c" } else { "" }, NAMES[word as usize & 15])
        }
        Test::Zero { of, wide, when } => {
            format!("{} {},", if when { "cbz" } else { "cbnz" }, register(of, wide))
        }
        Test::Bit { of, bit, when } => {
            format!("{} {}, #{bit},", if when { "tbnz" } else { "tbz" }, register(of, bit > 31))
        }
    }
}

fn prefetch(kind: u32) -> String {
    let (kinds, levels) = (["pld", "pli", "pst"], ["l1", "l2", "l3"]);
    match (kinds.get(kind as usize >> 3), levels.get(kind as usize >> 1 & 3)) {
        (Some(what), Some(level)) => format!("{what}{level}{}", if kind & 1 != 0 { "strm" } else { "keep" }),
        _ => format!("#{kind:#x}"),
    }
}
