//! Pages on which an indirect branch must find a landing pad (`PROT_BTI`), and return addresses that are
//! signed. A trap preserves both.

use crate::foreign::{Answer, expecting};
use crate::site::{Text, arena, call, nothing, room, site, text, write};
use trapline_insn::aarch64::encode::BRK;

const PAGE: u64 = 4096;
const PROT_BTI: i32 = 0x10;

/// Address of a copy of the function on a guarded page of its own. `None` if the processor has no such pages.
fn guarded(text: Text) -> Option<u64> {
    arena();
    let page = room(2 * PAGE).next_multiple_of(PAGE);
    write(page, text.words());
    let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC | PROT_BTI;
    // SAFETY: a whole page from `room`, which only this test uses.
    let done = unsafe { libc::mprotect(page as *mut libc::c_void, PAGE as usize, protection) };
    (done == 0).then_some(page)
}

#[test]
fn what_is_no_pad_may_not_be_landed_on() {
    let text = text!(guarded_none: "add x0, x0, x1", "hint #38", "ret");
    let Some(page) = guarded(text) else {
        println!("SKIP: no guarded pages here");
        return;
    };
    let seen = expecting(Answer::Skip(4), || {
        call(page, 6, 7);
    });
    let seen = seen.expect("the program's handler");
    assert_eq!((seen.signal, seen.pc), (libc::SIGILL, page));
}

/// Traps each word of each function on a guarded page. Indirect branches may still land on pads (`brk` is
/// one), the code behind the trap needs no landing pad, and a signed address is authenticated with the same
/// stack pointer.
#[test]
fn pads_and_signatures_stay_what_they_are() {
    let functions = [
        text!(guarded_bti: "hint #34", "add x0, x0, x1", "ret"),
        text!(guarded_bti_nop: "hint #34", "nop", "add x0, x0, x1", "ret"),
        text!(guarded_bti_jc: "hint #38", "stp x29, x30, [sp, #-16]!", "add x0, x0, x1", "ldp x29, x30, [sp], #16", "ret"),
        text!(guarded_pac: "paciasp", "stp x29, x30, [sp, #-32]!", "add x0, x0, x1", "ldp x29, x30, [sp], #32", "autiasp", "ret"),
        text!(guarded_pac_b: "pacibsp", "add x0, x0, x1", "autibsp", "ret"),
        text!(guarded_both: "hint #34", "paciasp", "add x0, x0, x1", "autiasp", "ret"),
    ];
    for text in functions {
        for (index, &word) in text.words().iter().enumerate() {
            let Some(page) = guarded(text) else {
                println!("SKIP: no guarded pages here");
                return;
            };
            let addr = page + 4 * index as u64;
            let site = site(addr, word, nothing);
            write(addr, &[BRK]);
            let seen = expecting(Answer::Skip(4), || {
                for round in 1..=50 {
                    assert_eq!(call(page, round, 7), round + 7, "word {index}, {word:08x}");
                }
            });
            assert_eq!(seen, None, "word {index}, {word:08x}");
            assert_eq!(site.hits(), 50, "word {index}, {word:08x}");
        }
    }
}
