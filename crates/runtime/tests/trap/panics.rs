//! TRAP-2, checked on the machine code of the handlers: no function that they can call by name panics,
//! allocates, locks or belongs to a C library.

use std::collections::{BTreeMap, BTreeSet};

use object::{Object, ObjectSection, ObjectSymbol, ObjectSymbolTable, RelocationTarget, SymbolKind};
use trapline_insn::x86_64::{Flow, sweep};

/// Names that must not be reached.
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
    // The engine's table is called through a pointer, so it is a root of its own.
    let roots = [
        "handler7on_trap",
        "fault8on_fault",
        "sites..Sites$u20$as$u20$trapline_runtime..trap..traps..Traps$GT$3hit",
    ];
    let mut pending: Vec<(u64, String)> =
        roots.iter().map(|root| (start(root).expect(root), (*root).to_owned())).collect();
    // Content of the slots of the global offset table: a symbol of another file, or an address of this one.
    let slots: BTreeMap<u64, Result<String, u64>> = file
        .dynamic_relocations()
        .into_iter()
        .flatten()
        .map(|(slot, relocation)| {
            let name = match relocation.target() {
                RelocationTarget::Symbol(index) => file
                    .dynamic_symbol_table()
                    .and_then(|table| table.symbol_by_index(index).ok()?.name().ok().map(str::to_owned)),
                _ => None,
            };
            (slot, name.ok_or(relocation.addend().cast_unsigned()))
        })
        .collect();
    let mut seen = BTreeSet::new();
    while let Some((addr, from)) = pending.pop() {
        let (start, (size, name)) = functions.range(..=addr).next_back().expect("a function");
        if !seen.insert(*start) {
            continue;
        }
        // A handler would end here if code that it calls through a pointer unwound, against its contract.
        if name.contains("panic_cannot_unwind") {
            continue;
        }
        for word in FORBIDDEN {
            assert!(!name.contains(word), "{from} reaches {name}");
        }
        let section = file
            .sections()
            .find(|section| (section.address()..section.address() + section.size()).contains(start));
        let Some(section) = section else { continue };
        let code = section.data_range(*start, *size).ok().flatten().unwrap_or_default();
        for insn in sweep(code, *start) {
            if let (Flow::Call(None) | Flow::Jump(None), Some(slot)) = (insn.flow(), insn.ip_rel()) {
                match slots.get(&slot).unwrap_or_else(|| panic!("{name} calls through {slot:#x}")) {
                    Ok(other) => panic!("{name} calls {other} of another file"),
                    Err(to) => pending.push((*to, format!("{name}+{:#x}", insn.addr - start))),
                }
            }
            if let Flow::Call(Some(to)) | Flow::Jump(Some(to)) | Flow::Branch(to) = insn.flow() {
                let inside = (*start..*start + *size).contains(&to);
                assert!(
                    functions.range(..=to).next_back().is_some(),
                    "{name} calls what has no name, {to:#x}"
                );
                if !inside {
                    pending.push((to, format!("{name}+{:#x}", insn.addr - start)));
                }
            }
        }
    }
    let names: Vec<_> = seen.iter().map(|addr| functions[addr].1.as_str()).collect();
    println!("{} functions: {names:#?}", seen.len());
    assert!(names.len() >= 4, "{names:?}");
}
