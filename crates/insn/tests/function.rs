//! Function bodies: hand-written ones, and all named functions of real libraries.

use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol};
use std::collections::HashSet;
use trapline_insn::x86_64::{Body, ExitKind, FunctionRange, analyse};

const AT: u64 = 0x1000;

fn body(parts: &[(u64, &[u8])], table: &[(u64, u64)]) -> Body {
    let parts: Vec<FunctionRange<'_>> =
        parts.iter().map(|&(addr, bytes)| FunctionRange { addr, bytes }).collect();
    analyse(&parts, &|addr, _| table.iter().find(|(at, _)| *at == addr).map(|(_, word)| *word))
}

fn exits(body: &Body) -> Vec<(u64, ExitKind)> {
    body.exits.iter().map(|exit| (exit.insn.addr - AT, exit.kind)).collect()
}

#[test]
fn returns_of_all_kinds_are_exits() {
    let body = body(&[(AT, &[0x74, 3, 0xF3, 0xC3, 0x90, 0xC2, 8, 0])], &[]);
    assert_eq!(exits(&body), [(2, ExitKind::Ret), (5, ExitKind::Ret)]);
    assert_eq!(body.targets, [AT + 5]);
    assert!(body.exits_known());
}

#[test]
fn branches_out_are_tail_calls_unless_they_lead_to_a_cold_part() {
    let hot = [0x0F, 0x84, 0xFA, 0x0F, 0, 0, 0x75, 0x10, 0xE9, 0xFB, 0x0F, 0, 0]; // je 2000, jne 1018, jmp 2008
    let cold = [0xEB, 0xFE];
    let mut body = body(&[(AT, &hot), (0x2000, &cold)], &[]);
    body.targets.dedup();
    assert_eq!(exits(&body), [(6, ExitKind::TailBranch(0x1018)), (8, ExitKind::TailJump(0x2008))]);
    assert_eq!((body.targets, body.outside), (vec![0x2000], vec![0x1018, 0x2008]));
}

#[test]
fn a_function_that_ends_in_a_call_or_trap_never_returns() {
    for end in [&[0xE8, 0, 0x10, 0, 0][..], &[0x0F, 0x0B], &[0xF4], &[0xE8, 0, 0x10, 0, 0, 0x90, 0xCC]] {
        assert_eq!(exits(&body(&[(AT, end)], &[])), [], "{end:02x?}");
    }
}

#[test]
fn running_off_the_end_is_an_exit() {
    assert_eq!(exits(&body(&[(AT, &[0x90, 0x55])], &[])), [(1, ExitKind::FallThrough(AT + 2))]);
    assert_eq!(exits(&body(&[(AT, &[0x74, 0xFE, 0x66, 0x90])], &[])), [(0, ExitKind::FallThrough(AT + 4))]);
    let adjacent = body(&[(AT, &[0x55]), (AT + 1, &[0xC3])], &[]);
    assert_eq!(exits(&adjacent), [(1, ExitKind::Ret)]);
}

/// `cmp $2,%edi; ja 1f; lea t(%rip),%rdx; movslq (%rdx,%rdi,4),%rax; add %rdx,%rax; jmp *%rax; 18: nop; ret;
/// 1a: ret`
const SWITCH: [u8; 30] = [
    0x83, 0xFF, 0x02, 0x77, 0x12, // ja 17
    0x48, 0x8D, 0x15, 0xF4, 0x0F, 0, 0, // lea 0x2000
    0x48, 0x63, 0x04, 0xBA, 0x48, 0x01, 0xD0, 0x3E, 0xFF, 0xE0, // movslq, add, notrack jmp
    0x90, 0x90, 0xC3, 0x90, 0xC3, 0x90, 0x90, 0xC3,
];

#[test]
fn relative_jump_tables_are_read_to_their_bound() {
    let entry = |to: u64| u64::from((AT + to).wrapping_sub(0x2000) as u32);
    let table = [(0x2000, entry(22)), (0x2004, entry(25)), (0x2008, entry(27)), (0x200C, entry(23))];
    let mut found = body(&[(AT, &SWITCH)], &table);
    found.targets.sort_unstable();
    assert_eq!(found.targets, [22, 23, 25, 27].map(|to| AT + to)); // 23 is the branch's
    assert!(found.exits_known());
    assert_eq!(exits(&found).len(), 3);
    // A table entry that leads out of the function, or into the middle of an instruction: the jump stays
    // unresolved.
    for bad in [0x500, 1] {
        let table = [(0x2000, entry(22)), (0x2004, entry(bad)), (0x2008, entry(27))];
        assert_eq!(body(&[(AT, &SWITCH)], &table).unresolved, [AT + 19]);
    }
    assert_eq!(body(&[(AT, &SWITCH)], &[]).unresolved, [AT + 19], "unreadable");
}

#[test]
fn absolute_jump_tables_are_read() {
    // jmp *0x2000(,%rdi,8); ret; ret
    let code = [0xFF, 0x24, 0xFD, 0, 0x20, 0, 0, 0xC3, 0xC3];
    let found = body(&[(AT, &code)], &[(0x2000, AT + 7), (0x2008, AT + 8), (0x2010, 0x5000)]);
    assert_eq!((found.targets.as_slice(), found.exits_known()), (&[AT + 7, AT + 8][..], true));
    let functions =
        body(&[(AT, &code)], &[(0x2000, 0x5000), (0x2008, 0x6000), (0x2010, 0x7000), (0x2018, 1)]);
    assert_eq!(exits(&functions)[0], (0, ExitKind::TailIndirect));
}

/// gcc's `eh_return`, with which `_Unwind_RaiseException` ends when an exception is caught: it does not
/// return to its caller.
#[test]
fn what_goes_on_where_an_exception_is_caught_is_no_exit() {
    // ret; mov %rcx,%rsp; pop %rcx; jmp *%rcx
    let found = body(&[(AT, &[0xC3, 0x48, 0x89, 0xCC, 0x59, 0xFF, 0xE1])], &[]);
    assert!(found.exits_known());
    assert_eq!(exits(&found), [(0, ExitKind::Ret)]);
    // mov %rbp,%rsp; pop %rbp; jmp *%rcx: a tail call behind an epilogue.
    let found = body(&[(AT, &[0x48, 0x89, 0xEC, 0x5D, 0xFF, 0xE1])], &[]);
    assert_eq!(exits(&found), [(4, ExitKind::TailIndirect)]);
}

#[test]
fn indirect_tail_calls_are_distinguished_from_jump_tables() {
    let cases: &[&[u8]] = &[
        &[0xFF, 0x25, 0, 0x10, 0, 0],                               // jmp *slot(%rip)
        &[0xFF, 0x60, 0x18],                                        // jmp *24(%rax)
        &[0x48, 0x8B, 0x07, 0xFF, 0xE0],                            // mov (%rdi),%rax; jmp *%rax
        &[0x48, 0x8B, 0x05, 0, 0x10, 0, 0, 0xFF, 0xE0],             // mov slot(%rip),%rax; jmp *%rax
        &[0xFF, 0xE7],                                              // jmp *%rdi
        &[0xE8, 0, 0x10, 0, 0, 0x49, 0x89, 0xC3, 0x41, 0xFF, 0xE3], // call; mov %rax,%r11; jmp *%r11
    ];
    for code in cases {
        let found = body(&[(AT, code)], &[]);
        assert!(found.exits_known(), "{code:02x?}");
        assert_eq!(found.exits.last().map(|exit| exit.kind), Some(ExitKind::TailIndirect), "{code:02x?}");
    }
    let constant = body(&[(AT, &[0x48, 0x8D, 0x05, 0, 0x10, 0, 0, 0xFF, 0xE0])], &[]);
    assert_eq!(exits(&constant), [(7, ExitKind::TailJump(0x2007))]);
    let unknown: &[&[u8]] = &[
        &[0x48, 0x01, 0xD0, 0xFF, 0xE0],          // add %rdx,%rax; jmp *%rax
        &[0xFF, 0x24, 0xC8],                      // jmp *(%rax,%rcx,8)
        &[0xFF, 0x24, 0x24],                      // jmp *(%rsp)
        &[0x53, 0x48, 0x83, 0xC7, 8, 0xFF, 0x27], // push; add $8,%rdi; jmp *(%rdi): threaded code
        &[0x48, 0x83, 0xEC, 8, 0x48, 0x8B, 0x07, 0xFF, 0xE0], // sub $8,%rsp; mov (%rdi),%rax; jmp *%rax
    ];
    for code in unknown {
        let found = body(&[(AT, code)], &[]);
        assert_eq!((found.unresolved.len(), found.exits.len()), (1, 0), "{code:02x?}");
    }
}

#[test]
fn malformed_functions_are_survived_and_their_exits_unknown() {
    let found = body(&[(AT, &[0xC3, 0x06, 0xC3])], &[]);
    assert_eq!(found.invalid, Some(AT + 1));
    assert!(!found.exits_known());
    assert_eq!(body(&[], &[]).exits, []);
    let twice = body(&[(AT, &[0x55]), (AT, &[0x55])], &[]);
    assert_eq!((twice.insns.len(), twice.exits.len()), (2, 2), "parts that overlap");
    assert_eq!(body(&[(u64::MAX, &[0xC3, 0xC3])], &[]).exits.len(), 2);
}

/// Functions of a real library by their exits. The test would fail if jump tables were not resolved.
#[test]
fn exits_of_most_functions_of_real_libraries_are_known() {
    for path in ["/lib/x86_64-linux-gnu/libc.so.6", "/usr/lib/x86_64-linux-gnu/libstdc++.so.6"] {
        let Ok(data) = std::fs::read(path) else {
            eprintln!("SKIPPED: {path} is not on this machine");
            continue;
        };
        let file = object::File::parse(&*data).expect("ELF");
        let text = file.section_by_name(".text").expect(".text");
        let (start, code) = (text.address(), text.data().expect("bytes"));
        let read = |addr: u64, size: usize| {
            let segment = file.segments().find(|s| (s.address()..s.address() + s.size()).contains(&addr))?;
            let bytes = segment.data_range(addr, size as u64).ok()??;
            Some(bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)))
        };
        let (mut all, mut known, mut tables) = (0, 0, 0);
        for symbol in file.dynamic_symbols().filter(|s| s.kind() == object::SymbolKind::Text && s.size() > 0)
        {
            let Some(at) = symbol.address().checked_sub(start) else { continue };
            let Some(bytes) = code.get(at as usize..(at + symbol.size()) as usize) else { continue };
            let body = analyse(&[FunctionRange { addr: symbol.address(), bytes }], &read);
            let direct: HashSet<u64> = body.insns.iter().filter_map(|insn| insn.flow().target()).collect();
            tables += usize::from(body.targets.iter().any(|target| !direct.contains(target)));
            all += 1;
            known += usize::from(body.exits_known());
            if !body.exits_known() && std::env::var_os("SHOW_UNKNOWN").is_some() {
                println!("{path} {:?} {:x?} {:x?}", symbol.name(), body.unresolved, body.invalid);
            }
        }
        println!("{path}: exits known of {known} of {all} functions, {tables} with tables");
        assert!(known * 100 >= all * 98, "{path}: only {known} of {all}");
    }
}
