//! TRAP-2, checked on the machine code of the handlers: no function that they can call by name panics,
//! allocates, locks or belongs to a C library.

use std::collections::{BTreeMap, BTreeSet};

use object::{Object, ObjectSection, ObjectSymbol, ObjectSymbolTable, RelocationTarget, SymbolKind};
use trapline_insn::aarch64::{Op, Verdict, decode};

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

/// The function of another file to which a linker's stub at `addr` leads: `adrp x16`, then a load through it.
fn imported(file: &object::File<'_>, addr: u64) -> Option<String> {
    let section = file
        .sections()
        .find(|section| (section.address()..section.address() + section.size()).contains(&addr))?;
    let code = section.data_range(addr, 8).ok()??;
    let word = |at: usize| Some(u32::from_le_bytes(code.get(at..at + 4)?.try_into().ok()?));
    let Verdict::Simulate(Op::Address { offset, pages: true, .. }) = decode(word(0)?) else { return None };
    let slot = (addr & !0xFFF).wrapping_add_signed(offset) + u64::from(word(4)? >> 10 & 0xFFF) * 8;
    let (_, relocation) = file.dynamic_relocations()?.find(|(at, _)| *at == slot)?;
    let RelocationTarget::Symbol(index) = relocation.target() else { return None };
    file.dynamic_symbol_table()?.symbol_by_index(index).ok()?.name().ok().map(str::to_owned)
}

#[test]
fn handlers_reach_nothing_that_panics_or_allocates() {
    if cfg!(debug_assertions) {
        println!("SKIP: only optimised code has its checks proven away");
        return;
    }
    let data = std::fs::read(std::env::current_exe().expect("a path")).expect("this program");
    let file = object::File::parse(&*data).expect("ELF");
    let functions: BTreeMap<u64, (u64, String)> = file
        .symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0)
        .map(|symbol| (symbol.address(), (symbol.size(), symbol.name().unwrap_or_default().to_owned())))
        .collect();
    let accesses: BTreeSet<u64> = file
        .symbols()
        .filter(|symbol| symbol.name().is_ok_and(|name| name.starts_with("trapline_runtime_")))
        .map(|symbol| symbol.address())
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
    let mut seen = BTreeSet::new();
    while let Some((addr, from)) = pending.pop() {
        if accesses.contains(&addr) {
            continue;
        }
        // Landing pads end there; a call that could bring a thread to one is caught by its name.
        if imported(&file, addr).as_deref() == Some("_Unwind_Resume") {
            continue;
        }
        let (start, (size, name)) = functions
            .range(..=addr)
            .next_back()
            .unwrap_or_else(|| panic!("{from} calls another file's {addr:#x}"));
        // A linker's stub for another file's function is in no function of this one.
        assert!(addr < start + size, "{from} calls {addr:#x}, which is no function of this file");
        // A handler would end here if code that it calls through a pointer unwound, against its contract.
        if !seen.insert(*start) || name.contains("panic_cannot_unwind") {
            continue;
        }
        for word in FORBIDDEN {
            assert!(!name.contains(word), "{from} reaches {name}");
        }
        let section = file
            .sections()
            .find(|section| (section.address()..section.address() + section.size()).contains(start))
            .expect("a section");
        let code = section.data_range(*start, *size).ok().flatten().unwrap_or_default();
        for (at, bytes) in (*start..).step_by(4).zip(code.chunks_exact(4)) {
            let word = u32::from_le_bytes(bytes.try_into().expect("four"));
            if let Verdict::Simulate(Op::Branch { offset, .. } | Op::BranchIf { offset, .. }) = decode(word) {
                let to = at.wrapping_add_signed(offset.into());
                if !(*start..*start + *size).contains(&to) {
                    pending.push((to, format!("{name}+{:#x}", at - start)));
                }
            }
        }
    }
    let names: Vec<_> = seen.iter().map(|addr| functions[addr].1.as_str()).collect();
    println!("{} functions: {names:#?}", seen.len());
    assert!(names.len() >= 4, "{names:?}");
}
