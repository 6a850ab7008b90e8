//! Which word is patched, and how it leads to its stub.

use super::{
    BIAS, BTI_C, CBZ, LOAD, NOP, PACIASP, PUSH, RET, SVC, kinds, latency, library, planned, request, space,
    time, timed, traits, word,
};
use trapline_image::FunctionIndex;
use trapline_insn::aarch64::encode;
use trapline_plan::{
    Action, ActionRequest, AddressSpace, Floats, ModulePlan, PatchRole, ProcessTraits, Tactic, Unwind,
};
use trapline_record::{RemoteAddr, Svma};

#[test]
fn one_word_leads_to_a_stub_in_reach_and_back() {
    let image = library(&[&[PUSH, NOP, RET]]);
    let plan = planned(&image, &traits(), &space(), &[request(0, Action::CountEntry)]);
    let patch = &plan.patches[0];
    assert_eq!((patch.len, patch.crosses_line, patch.needs_guard()), (4, false, false));
    assert_eq!((patch.tactic, word(&patch.old)), (Tactic::Jump, PUSH));
    assert_eq!(Some(word(&patch.new)), encode::b(patch.addr.0, patch.head.0));
    let chunk = &plan.chunks[0];
    assert!(chunk.addr == patch.head && plan.code.contains(chunk.addr));
    let words: Vec<u32> = plan.chunk_bytes(chunk).chunks_exact(4).map(word).collect();
    let copy = words.iter().position(|word| *word == PUSH).expect("the word itself");
    let back = encode::b(chunk.addr.0 + 4 * (copy as u64 + 1), patch.addr.0 + 4);
    assert_eq!(Some(words[copy + 1]), back);
}

#[test]
fn landing_pads_stay() {
    let image = library(&[&[BTI_C, NOP, RET], &[PACIASP, PUSH, RET], &[BTI_C]]);
    let requests: Vec<ActionRequest> = (0..3).map(|n| request(n, Action::CountEntry)).collect();
    let plan = planned(&image, &traits(), &space(), &requests);
    let stated: Vec<u64> = plan.patches.iter().map(|p| BIAS.stated(p.addr).0).collect();
    assert_eq!(stated, [0x1004, 0x1010]);
    assert_eq!(kinds(&plan), ["no-instruction"]);
}

#[test]
fn each_return_is_an_exit_and_a_word_may_be_two_things() {
    let image = library(&[&[CBZ, RET, RET], &[RET]]);
    let requests = [request(0, Action::CountExits), request(1, Action::CountEntry), {
        ActionRequest { function: Some(FunctionIndex(1)), ..request(2, Action::CountExits) }
    }];
    let plan = planned(&image, &traits(), &space(), &requests);
    let roles: Vec<PatchRole> = plan.patches.iter().map(|p| p.role).collect();
    assert_eq!(roles, [PatchRole::ExitRet, PatchRole::ExitRet, PatchRole::Entry]);
    assert_eq!((plan.shares.as_slice(), plan.chunks.len()), (&[(1, 2)][..], 4));
    // The first stub of the shared word leads to the second one.
    let (first, second) = (&plan.chunks[2], &plan.chunks[3]);
    assert_eq!(plan.patches[2].head, first.addr);
    let leads = plan.chunk_bytes(first).chunks_exact(4).zip((first.addr.0..).step_by(4));
    let leads = leads.map(|(bytes, at)| (word(bytes), encode::b(at, second.addr.0)));
    assert!(leads.into_iter().any(|(word, b)| Some(word) == b));
}

#[test]
fn what_cannot_be_done_is_refused_by_name_and_the_rest_is_done() {
    /// `add z0.b, z0.b, z0.b`
    const SCALABLE: u32 = 0x0420_0000;
    let image = library(&[&[SVC, RET], &[NOP, RET], &[LOAD, RET], &[SCALABLE, RET]]);
    let (floats, stack) = (Floats::default(), Unwind::None);
    let reads_a_field = Action::Record {
        values: 1,
        returns: false,
        valued: false,
        texts: 0,
        ended: 0,
        floats,
        fields: 1,
        stack,
    };
    let requests = [
        request(0, Action::CountEntry),
        request(1, Action::CountEntry),
        ActionRequest { function: Some(FunctionIndex(3)), ..request(2, reads_a_field) },
        ActionRequest { function: Some(FunctionIndex(1)), ..request(3, Action::CountAt(Svma(0x100a))) },
        ActionRequest { function: None, ..request(4, Action::CountAt(Svma(0x9000))) },
        ActionRequest { function: Some(FunctionIndex(2)), ..request(5, Action::CountEntry) },
    ];
    let caught = ProcessTraits { has_fault_handler: true, ..traits() };
    let plan = planned(&image, &caught, &space(), &requests);
    assert_eq!(plan.patches.len(), 1);
    assert_eq!(kinds(&plan), ["immovable", "not-on-arm64", "inside-instruction", "not-in-file", "may-fault"]);
    assert_eq!(planned(&image, &traits(), &space(), &requests).patches.len(), 2, "no handler catches faults");
}

#[test]
fn a_room_is_in_reach_or_there_is_none() {
    let image = library(&[&[NOP, RET], &[NOP, RET]]);
    let at = |at: u64| RemoteAddr(BIAS.0 + at);
    let high = at(100 << 20);
    let requests = [request(0, Action::CountEntry), request(1, Action::CountEntry)];
    // Memory is free above 100 MiB only; then nowhere.
    let mut near = AddressSpace { occupied: vec![(RemoteAddr(0x10_0000), high)], heap_end: None };
    let plan = planned(&image, &traits(), &near, &requests);
    assert!(plan.code.addr > high && encode::b(plan.patches[0].addr.0, plan.code.addr.0).is_some());
    assert!(plan.pun_regions.is_empty() && plan.stats.of(Tactic::Jump) == 2);
    near.occupied[0].1 = at(200 << 20);
    let plan = planned(&image, &traits(), &near, &requests);
    assert_eq!((plan.patches.len(), kinds(&plan)), (0, vec!["no-room", "no-room"]));
    let reason = plan.refused[1].why.to_string();
    assert!(reason.contains("within 128 MiB of it there is no room"), "{reason}");
}

/// An address space with a free page within reach, and room for stubs far away.
fn crowded(hole: u64) -> AddressSpace {
    let at = |at: u64| RemoteAddr(BIAS.0 + at);
    let (below, above) = ((RemoteAddr(0x10_0000), at(hole)), (at(hole + 3 * 4096), at(1 << 33)));
    AddressSpace { occupied: vec![below, above], heap_end: None }
}

/// The words of a chunk, and their addresses.
fn chunk_at(plan: &ModulePlan, at: RemoteAddr) -> Vec<(u64, u32)> {
    let chunk = plan.chunks.iter().find(|chunk| chunk.addr == at).expect("a chunk");
    (at.0..).step_by(4).zip(plan.chunk_bytes(chunk).chunks_exact(4).map(word)).collect()
}

#[test]
fn what_no_branch_reaches_goes_over_an_island_of_its_own() {
    let image = library(&[&[CBZ, RET, PUSH, RET], &[RET]]);
    let exits = ActionRequest { function: Some(FunctionIndex(1)), ..request(2, Action::CountExits) };
    let requests = [time(0), request(1, Action::CountEntry), exits];
    let space = crowded(100 << 20);
    // In Go a stub begins lower, below what the island pushed.
    for go in [false, true] {
        let plan = timed(&image, &ProcessTraits { go, ..traits() }, &space, &requests, Some(latency()));
        assert_eq!((kinds(&plan), plan.stats.of(Tactic::Short)), (vec![], 4));
        let [islands] = plan.pun_regions[..] else { panic!("{:?}", plan.pun_regions) };
        assert_eq!((islands.addr, islands.len), (RemoteAddr(BIAS.0 + (100 << 20) + 4096), 4096));
        // No stub is in reach. Of a word with two actions, the first stub leads to the second.
        assert!(plan.code.addr.0.abs_diff(BIAS.0) > 1 << 32 && plan.chunks.len() == 4 + 5);
        assert!(plan.chunks.windows(2).all(|two| two[0].addr < two[1].addr));
        for patch in &plan.patches {
            assert!(patch.tactic == Tactic::Short && islands.contains(patch.head));
            assert_eq!(Some(word(&patch.new)), encode::b(patch.addr.0, patch.head.0));
            follow(&plan, patch.head, (patch.addr.0, word(&patch.old)), go);
        }
    }
}

/// Follows an island to its stub and back: what is pushed is popped, and the copy goes on behind the word.
fn follow(plan: &ModulePlan, island: RemoteAddr, (at, old): (u64, u32), go: bool) {
    const PUSHED: u32 = 0xA9BE_47F0;
    const POPPED: u32 = 0xA8C2_47F0;
    // stp; movz, movk, movk; br. Returns the address that these words form.
    let leads = |words: &[(u64, u32)]| {
        assert_eq!((words[0].1, words[4].1), (PUSHED, 0xD61F_0200));
        (0..).zip(&words[1..4]).map(|(nth, one)| u64::from(one.1 >> 5 & 0xFFFF) << (16 * nth)).sum::<u64>()
    };
    let words = chunk_at(plan, island);
    let stub = RemoteAddr(leads(&words));
    assert!(plan.code.contains(stub));
    // `sub sp, sp, #16`, in Go.
    let head = chunk_at(plan, stub);
    assert_eq!((head[0].1, head[1].1 == 0xD100_43FF), (POPPED, go));
    // One of the stubs leads back, to where the island pops what that stub pushed.
    let stubs = plan.chunks.iter().filter(|chunk| plan.code.contains(chunk.addr));
    let leads_back = |at: RemoteAddr| {
        let words = chunk_at(plan, at);
        let from = words.iter().rposition(|one| one.1 == PUSHED);
        from.is_some_and(|from| leads(&words[from..]) == words_end(island))
    };
    assert_eq!(stubs.filter(|chunk| leads_back(chunk.addr)).count(), 1);
    assert_eq!((words[5].0, words[5].1), (words_end(island), POPPED));
    // A return goes on by itself.
    let (end, last) = *words.last().expect("a copy");
    match old {
        RET => assert_eq!((words.len(), last), (7, RET)),
        _ => assert_eq!(Some(last), encode::b(end, at + 4)),
    }
}

/// Address behind an island's first half.
const fn words_end(island: RemoteAddr) -> u64 {
    island.0 + 4 * 5
}
