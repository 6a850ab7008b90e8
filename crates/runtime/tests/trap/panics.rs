//! TRAP-2, by the machine code of the handlers: nothing that they can call by name panics, allocates, locks or is a C library's.

use std::collections::{BTreeMap, BTreeSet};

use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};
use trapline_insn::x86_64::{Flow, sweep};

/// What must not be reached.
const FORBIDDEN: [&str; 9] = [
    "panic",
    "alloc",
    "unwrap_failed",
    "expect_failed",
    "Mutex",
    "unwind",
    "slice_index",
    "bounds_check",
    "abort",
];

#[test]
fn handlers_reach_nothing_that_panics_or_allocates() {
    if cfg!(debug_assertions) {
        println!("SKIP: only optimised code has its checks proven away");
        return;
    }
    let data = std::fs::read("/proc/self/exe").expect("this program");
    let file = object::File::parse(&*data).expect("ELF");
    let functions: BTreeMap<u64, (u64, String)> = file
        .symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text)
        .map(|symbol| (symbol.address(), (symbol.size(), symbol.name().unwrap_or_default().to_owned())))
        .collect();
    let start =
        |name: &str| functions.iter().find(|(_, (_, symbol))| symbol.contains(name)).map(|(addr, _)| *addr);
    let mut pending =
        vec![start("7on_trap").or(start("on_trap")).expect("on_trap"), start("on_fault").expect("on_fault")];
    let mut seen = BTreeSet::new();
    while let Some(addr) = pending.pop() {
        let (start, (size, name)) = functions.range(..=addr).next_back().expect("a function");
        if !seen.insert(*start) {
            continue;
        }
        for word in FORBIDDEN {
            assert!(!name.contains(word), "handlers reach {name}");
        }
        let section = file
            .sections()
            .find(|section| (section.address()..section.address() + section.size()).contains(start));
        let Some(section) = section else { continue };
        let code = section.data_range(*start, *size).ok().flatten().unwrap_or_default();
        for insn in sweep(code, *start) {
            if let Flow::Call(Some(to)) | Flow::Jump(Some(to)) | Flow::Branch(to) = insn.flow {
                let inside = (*start..*start + *size).contains(&to);
                assert!(
                    functions.range(..=to).next_back().is_some(),
                    "{name} calls what has no name, {to:#x}"
                );
                if !inside {
                    pending.push(to);
                }
            }
        }
    }
    let names: Vec<_> = seen.iter().map(|addr| functions[addr].1.as_str()).collect();
    println!("{} functions: {names:#?}", seen.len());
    assert!(names.len() >= 4, "{names:?}");
}
