//! LOSS-2: the stamp block of a stack page (`record::latency`, `plan::x86_64::stub::latency::stamp_cell`).
//!
//! Meanwhile: calls on a page with a key that leads to the same block; a signal handler on the same page, at
//! another stack pointer; a coroutine that continues on its stack in another thread. What passed the
//! coroutine on also ordered the accesses.

use loom::sync::Arc;
use loom::thread;
use trapline_record::latency::STAMP_PROBES;

use crate::memory::Memory;

const BLOCKS: u64 = 2;
/// A block has two stamp cells here, each {time stamp, function + 1}.
const BLOCK: u64 = 2 * 16;
const LEN: u64 = BLOCKS * 8 + BLOCKS * BLOCK;
/// Both keys lead to block 0 first.
const PAGE: u64 = 10;
const OTHER: u64 = 12;

type Claim = fn(&Memory, u64, u64) -> u64;

/// A call: its stack page, its cell in that page's block, its function, its time.
#[derive(Clone, Copy)]
struct Call {
    page: u64,
    slot: u64,
    function: u64,
    time: u64,
}

/// What the stub does: finds the offset of a call's cell, if its page has a block or may claim one.
fn slot(memory: &Memory, call: Call, claim: Option<Claim>) -> Option<u64> {
    let mut block = call.page % BLOCKS;
    for _ in 0..STAMP_PROBES.min(BLOCKS) {
        let mut found = memory.view().get(block * 8);
        if found == 0 {
            found = claim?(memory, block * 8, call.page);
        }
        if found == 0 || found == call.page {
            return Some(BLOCKS * 8 + block * BLOCK + call.slot * 16);
        }
        block = (block + 1) % BLOCKS;
    }
    None
}

fn enter(memory: &Memory, call: Call, claim: Claim) {
    let at = slot(memory, call, Some(claim)).expect("a block for each page");
    memory.view().set(at + 8, call.function + 1);
    memory.view().set(at, call.time);
}

/// The time stamp that an exit finds; `None` counts as unpaired.
fn exit(memory: &Memory, call: Call) -> Option<u64> {
    let at = slot(memory, call, None)?;
    if memory.view().get(at + 8) != call.function + 1 {
        return None;
    }
    let time = memory.view().get(at);
    memory.view().set(at + 8, 0);
    Some(time)
}

fn model(claim: Claim) {
    loom::model(move || {
        let memory = Memory::new(LEN);
        let calls = [(OTHER, 0, 3, 300), (PAGE, 1, 4, 400)];
        let others = calls.map(|(page, slot, function, time)| {
            let (memory, call) = (Arc::clone(&memory), Call { page, slot, function, time });
            thread::spawn(move || {
                enter(&memory, call, claim);
                assert_eq!(exit(&memory, call), Some(call.time));
            })
        });
        let call = Call { page: PAGE, slot: 0, function: 3, time: 500 };
        enter(&memory, call, claim);
        assert_eq!(exit(&memory, call), Some(500));
        assert_eq!(exit(&memory, call), None, "taken once");
        others.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn each_call_finds_its_own_stamp() {
    model(Memory::cmpxchg);
}

#[test]
#[should_panic]
fn not_if_a_block_is_claimed_in_two_steps() {
    model(Memory::look_then_store);
}

#[test]
fn a_stack_may_go_on_in_another_thread() {
    loom::model(|| {
        let memory = Memory::new(LEN);
        let call = Call { page: PAGE, slot: 0, function: 3, time: 500 };
        let also = Arc::clone(&memory);
        let first = thread::spawn(move || enter(&also, call, Memory::cmpxchg));
        let other = Call { page: OTHER, time: 300, ..call };
        enter(&memory, other, Memory::cmpxchg);
        first.join().unwrap();
        assert_eq!(exit(&memory, call), Some(500));
        assert_eq!(exit(&memory, other), Some(300));
    });
}
