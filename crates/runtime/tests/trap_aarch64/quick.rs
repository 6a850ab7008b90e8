//! Instructions that are carried out at the hit itself: a push, a `nop` and a `ret` at traps of a real
//! engine, compared with the instructions.

use std::ffi::c_void;

use trapline_runtime::consumer::{Consumer, Flags, Hit, Verdict};
use trapline_runtime::native::Role;
use trapline_runtime::probe::Probe;

use crate::engine::{page, parts};
use crate::faults::nowhere;
use crate::foreign::{Answer, expecting};
use crate::site::{Text, alternate_stack, call, map, simulated, text};

/// Adds its data to the stack pointer if that number is even, else to the program counter.
unsafe extern "C" fn moves(by: *mut c_void, hit: *mut Hit) -> Verdict {
    // SAFETY: this hit; its registers are its own.
    let regs = unsafe { &mut *(*hit).regs };
    let by = by.addr() as u64;
    if by & 1 == 0 {
        regs.sp += by
    } else {
        regs.pc += by - 1
    }
    Verdict::CONTINUE
}

/// The function on a page of its own, with a trap on the word at `index`: its address, and the trap's probe.
fn trapped(number: u64, text: Text, index: u64, by: usize) -> (u64, &'static Probe) {
    let (page, mut parts) = (page(text), parts());
    parts.mapped(page, number);
    let data = std::ptr::without_provenance_mut(by);
    let consumer = Consumer { entry: Some(moves), ret: None, filter: None, data, flags: Flags::default() };
    let probe = parts.probe(number, 4 * index, &[consumer]);
    parts.trap(page, (number, 4 * index), probe, Role::Entry, simulated(page + 4 * index));
    (page, probe)
}

/// Pushes with x0 as the stack pointer; returns 0 if x29 and x30 are stored there, and the stack pointer is
/// 16 below.
fn pushes() -> Text {
    text!(quick_push: "mov x9, sp", "mov sp, x0", "stp x29, x30, [sp, #-16]!", "mov x12, sp", "ldp x10, x11, [x12]", "mov sp, x9",
        "eor x10, x10, x29", "eor x11, x11, x30", "orr x10, x10, x11", "sub x12, x12, x1", "orr x0, x10, x12", "ret")
}
const PUSH: u64 = 2;

#[test]
fn a_push_stores_where_the_stack_pointer_is() {
    alternate_stack();
    for (number, by) in [(40, 0), (41, 32)] {
        let (at, probe) = trapped(number, pushes(), PUSH, by);
        let sp = map(4096) + 2048;
        (1..=100).for_each(|hits| {
            assert_eq!((call(at, sp, sp + by as u64 - 16), probe.counts().hits), (0, hits));
        });
    }
}

/// SIM-1: the signal is the program's own, with nothing done; and there is one hit, one execution.
#[test]
fn a_push_that_faults_is_the_programs_own_fault() {
    alternate_stack();
    let (at, probe) = trapped(42, pushes(), PUSH, 0);
    for (hits, answer, offset) in [(1, Answer::Map, 0x100), (2, Answer::MapLater, 0x200)] {
        let sp = nowhere() + offset;
        let seen = expecting(answer, || assert_eq!(call(at, sp, sp - 16), 0)).expect("a fault");
        let found = (seen.signal, seen.code, seen.pc, seen.sp, seen.addr);
        assert_eq!(found, (libc::SIGSEGV, 1, at + 4 * PUSH, sp, sp - 16));
        assert_eq!(probe.counts().hits, hits);
    }
    let crooked = map(4096) + 0x108;
    let seen = expecting(Answer::Skip(4), || _ = call(at, crooked, 0)).expect("a fault");
    let found = (seen.signal, seen.code, seen.pc, seen.sp, seen.addr);
    assert_eq!(found, (libc::SIGBUS, 1, at + 4 * PUSH, crooked, crooked));
}

#[test]
fn where_a_consumer_goes_nothing_is_done() {
    // Each would be noticed: the push moves the stack pointer, the others go on at `mov x0, #1`, or return.
    let kinds = [
        (
            43,
            text!(passed_push: "mov x0, sp", "stp x29, x30, [sp, #-16]!", "mov x1, sp", "sub x0, x0, x1", "add sp, sp, x0", "ret"),
            0,
        ),
        (44, text!(passed_nop: "mov x0, #0", "nop", "mov x0, #1", "ret"), 0),
        (45, text!(passed_ret: "mov x0, #1", "ret", "mov x0, #0", "ret"), 0),
    ];
    for (number, text, expected) in kinds {
        let by = if number == 44 { 8 } else { 4 };
        let (at, probe) = trapped(number, text, 1, by + 1);
        assert_eq!((call(at, 0, 0), probe.counts().hits), (expected, 1), "{number}");
    }
    let (at, probe) = trapped(46, text!(at_nop: "mov x0, #0", "nop", "mov x0, #1", "ret"), 1, 0);
    assert_eq!((call(at, 0, 0), probe.counts().hits), (1, 1));
    let (at, probe) = trapped(47, text!(at_ret: "mov x0, #1", "ret", "mov x0, #0", "ret"), 1, 0);
    assert_eq!((call(at, 0, 0), probe.counts().hits), (1, 1));
}
