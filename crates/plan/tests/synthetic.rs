//! Plans over functions that are made for the purpose: each rule of a window, and random functions.

mod common;

use common::elf::{TEXT, library};
use common::{bias_of, every, map, plan, plan_beside};
use proptest::prelude::*;
use trapline_image::{FunctionIndex, Image};
use trapline_plan::{
    Action, ActionRequest, CodeMap, KernelUprobes, ModulePlan, PatchRole, ProcessTraits, Refusal, Refused,
    Scope, Tactic, TrapsPolicy,
};
use trapline_record::Svma;

const RET: u8 = 0xC3;

fn traits() -> ProcessTraits {
    ProcessTraits::usual(2)
}

/// Functions one after another, each followed by `pad` bytes of int3.
fn pack(bodies: &[&[u8]], pad: usize) -> Image {
    let (mut text, mut functions) = (Vec::new(), Vec::new());
    for body in bodies {
        functions.push((text.len() as u64, body.len() as u64));
        text.extend_from_slice(body);
        text.extend(vec![0xCC; pad]);
    }
    library(&text, &functions)
}

fn planned(image: &Image, traits: &ProcessTraits, role: Action) -> ModulePlan {
    plan(image, &map(image), traits, &every(image, role))
}

fn at(plan: &ModulePlan, offset: u64) -> Option<&trapline_plan::Patch> {
    plan.patches.iter().find(|p| p.addr.0 & 0xfff == offset)
}

fn kind(plan: &ModulePlan) -> &'static str {
    plan.refused.first().map_or("none", |r| r.why.kind())
}

#[test]
fn entry_and_exit_share_a_window() {
    let image = pack(&[&[0x31, 0xC0, RET]], 13);
    let plan = planned(&image, &traits(), Action::Latency);
    assert_eq!(plan.patches.len(), 1, "{:?}", plan.refused);
    assert_eq!(plan.patches[0].role, PatchRole::Entry);
    // The first instruction stays in place; the second one is the whole window.
    assert!(at(&plan, 2).is_some() && plan.guards.is_empty());
}

/// Many small functions. Entry and exit of each share a window, and each has room for its code.
#[test]
fn small_functions_all_find_room() {
    let body: &[u8] = &[0x8D, 0x84, 0x7F, 0xD9, 0, 0, 0, 0xC3];
    // Laid out as one part, and as two parts by two threads.
    for count in [300, 3000] {
        let image = pack(&vec![body; count], 8);
        let plan = planned(&image, &traits(), Action::Latency);
        assert_eq!((plan.refused.len(), plan.patches.len()), (0, count), "{:?}", plan.refused.first());
    }
}

/// EMIT-1: stubs of many sites lie in two parts. Their instructions refer to memory near the code, from the
/// first stub in the arena on.
#[test]
fn many_sites_that_name_memory_are_all_reached() {
    // cmp dword [rip + 256], 0; ret
    let body = [0x83, 0x3D, 0, 1, 0, 0, 0, RET];
    let image = pack(&[&body[..]; 600], 8);
    let plan = planned(&image, &traits(), Action::CountEntry);
    assert_eq!((plan.refused.len(), plan.patches.len()), (0, 600), "{:?}", plan.refused.first());
    let ends = |chunk: &trapline_plan::Chunk| chunk.addr + u64::from(chunk.len);
    assert!(plan.chunks.windows(2).all(|pair| ends(&pair[0]) <= pair[1].addr));
    let code = plan.code;
    assert!(plan.chunks.iter().all(|chunk| code.addr <= chunk.addr && ends(chunk) <= code.end()));
    assert!(plan.chunks.iter().all(|chunk| ends(chunk) <= plan.free));
}

#[test]
fn endbr64_stays_unless_branched_behind() {
    let plain = [0xF3, 0x0F, 0x1E, 0xFA, 0x48, 0x83, 0xEC, 0x08, 0x48, 0x83, 0xC4, 0x08, RET];
    let plan = planned(&pack(&[&plain], 16), &traits(), Action::CountEntry);
    assert!(at(&plan, 4).is_some());
    // dec edi; jne +4
    let looped = [0xF3, 0x0F, 0x1E, 0xFA, 0xFF, 0xCF, 0x75, 0xFC, 0x90, 0x90, 0x90, RET];
    let plan = planned(&pack(&[&looped], 16), &traits(), Action::CountEntry);
    let patch = at(&plan, 0).expect("endbr64 itself is displaced");
    assert_eq!((patch.tactic, patch.len), (Tactic::Short, 2));
    assert!(at(&plan, 4).is_none());
}

#[test]
fn a_branch_into_the_window_takes_a_short_jump() {
    // push rbx; again: dec edi; jne again; pop rbx; ret
    let body = [0x53, 0xFF, 0xCF, 0x75, 0xFC, 0x5B, RET];
    let alone = planned(&pack(&[&body], 0), &traits(), Action::CountEntry);
    assert!(alone.refused.is_empty() || kind(&alone) == "branch-in");
    // mov eax, edi; again: dec eax; jne again; ret
    let body = [0x89, 0xF8, 0xFF, 0xC8, 0x75, 0xFC, RET];
    let plan = planned(&pack(&[&body], 16), &traits(), Action::CountEntry);
    assert_eq!(at(&plan, 0).unwrap().tactic, Tactic::Short);
    assert_eq!(plan.patches.iter().filter(|p| p.role == PatchRole::Island).count(), 1);
}

/// A program may change what windows rely on, and some are planned anew: not where others' islands still are.
#[test]
fn islands_avoid_what_earlier_patches_need() {
    // mov eax, edi; again: dec eax; jne again; ret
    let body: &[u8] = &[0x89, 0xF8, 0xFF, 0xC8, 0x75, 0xFC, RET];
    let image = pack(&[body], 16);
    let requests = every(&image, Action::CountEntry);
    let island = |patched: &[(Svma, Svma)]| {
        let plan = plan_beside(&image, &map(&image), &traits(), &requests, patched);
        let island = plan.patches.iter().find(|patch| patch.role == PatchRole::Island)?;
        let (start, end) = island.needs();
        Some((bias_of(&image).stated(start), bias_of(&image).stated(end)))
    };
    let mut patched = Vec::new();
    while let Some(next) = island(&patched) {
        assert!(
            patched.iter().all(|&(start, end)| next.1 <= start || end <= next.0),
            "{next:x?}: {patched:x?}"
        );
        patched.push(next);
        patched.sort_unstable();
    }
    assert!(patched.len() >= 2, "{patched:x?}");
}

#[test]
fn nothing_is_written_where_nothing_fits() {
    let plan = planned(&pack(&[&[RET], &[RET], &[0x31, 0xC0, RET]], 0), &traits(), Action::CountEntry);
    assert!(plan.refused.iter().all(|r| matches!(r.why, Refusal::TooShort { .. })), "{:?}", plan.refused);
    assert_eq!(plan.refused.len() + plan.patches.len(), 3);
    assert!(plan.refused[0].why.to_string().contains("0x1000 [c3"), "{}", plan.refused[0].why);
}

#[test]
fn kernel_where_allowed() {
    let with = |kernel_uprobes| ProcessTraits { kernel_uprobes, ..traits() };
    let functions = pack(&[&[RET], &[RET]], 0);
    for kernel_uprobes in [KernelUprobes::Unavailable, KernelUprobes::NotAsked] {
        let plan = planned(&functions, &with(kernel_uprobes), Action::CountEntry);
        let is_hint =
            |r: &Refused| r.why.kind() == "kernel-only" && r.why.to_string().contains("jump needs 5; a");
        let hints = plan.refused.iter().filter(|r| is_hint(r)).count();
        let expected = if kernel_uprobes == KernelUprobes::NotAsked { 2 } else { 0 };
        assert_eq!((plan.kernel.len(), plan.refused.len(), hints), (0, 2, expected), "{:?}", plan.refused);
    }
    let plan = planned(&functions, &with(KernelUprobes::Asked), Action::CountEntry);
    assert_eq!(plan.kernel.len(), 2);
    assert_eq!(plan.kernel[1].offset.0, TEXT + 1);
}

#[test]
fn faults_stay_where_they_are_looked_up() {
    // mov rax, [rdi]; mov eax, [rax]; ret
    let image = pack(&[&[0x48, 0x8B, 0x07, 0x8B, 0x00, RET]], 10);
    assert!(planned(&image, &traits(), Action::CountEntry).refused.is_empty());
    let caught = ProcessTraits { has_fault_handler: true, ..traits() };
    assert_eq!(kind(&planned(&image, &caught, Action::CountEntry)), "may-fault");
    // cmp rsp, [r14+16]; jbe +1; nop; ret: Go's prologue
    let go = pack(&[&[0x49, 0x3B, 0x66, 0x10, 0x76, 0x01, 0x90, RET]], 8);
    // No function table says that Go's compiler made it, so r14 may be any value (`real.rs` has programs of Go's).
    for traits in [caught, ProcessTraits { go: true, ..caught }] {
        assert_eq!(kind(&planned(&go, &traits, Action::CountEntry)), "may-fault");
    }
}

/// With handlers that see original addresses, what may fault is displaced: the first instruction, and others to
/// which a thread may return by a guard.
#[test]
fn faults_that_are_delivered_are_moved() {
    let delivered = ProcessTraits { has_fault_handler: true, faults_delivered: true, ..traits() };
    let untrapped = ProcessTraits { traps: TrapsPolicy::MustNotTrap, ..delivered };
    // mov rax, [rdi]; mov eax, [rax]; ret
    let twice = pack(&[&[0x48, 0x8B, 0x07, 0x8B, 0x00, RET]], 10);
    let plan = planned(&twice, &delivered, Action::CountEntry);
    assert_eq!((kind(&plan), plan.patches.len(), plan.patches[0].faults), ("none", 1, true));
    let start = plan.patches[0].addr;
    let originals: Vec<_> = plan.deliveries.iter().map(|one| (one.original - start, one.is_inside)).collect();
    assert_eq!(originals, [(0, false), (3, true)]);
    assert!(plan.deliveries.iter().all(|one| plan.code.contains(one.copy)));
    assert!(plan.guards.iter().any(|guard| guard.at == start + 3 && guard.resume == plan.deliveries[1].copy));
    // Where no guard is served, nothing but the first instruction may fault.
    let plan = planned(&twice, &untrapped, Action::CountEntry);
    assert_eq!((plan.patches[0].tactic, plan.deliveries.len()), (Tactic::Short, 1));
    // mov rdx, rdi; mov rax, [rdx]; ret
    let second = pack(&[&[0x48, 0x89, 0xFA, 0x48, 0x8B, 0x02, RET]], 0);
    let inside =
        |traits| planned(&second, &traits, Action::CountEntry).deliveries.iter().any(|one| one.is_inside);
    assert!(inside(delivered) && !inside(untrapped));
    // mov qword [rdi], 1: as long as a jump
    let once = pack(&[&[0x48, 0xC7, 0x07, 1, 0, 0, 0, RET]], 10);
    let plan = planned(&once, &untrapped, Action::CountEntry);
    assert_eq!((kind(&plan), plan.deliveries.len()), ("none", 1));
    // Armed again, where a thread returns to the armed instruction.
    assert_eq!(kind(&planned(&once, &delivered, Action::LatencyByTrampoline)), "may-fault");
    // call [rdi]: the copy faults behind its push.
    let called = pack(&[&[0xFF, 0x17, 0x90, 0x90, 0x90, RET]], 0);
    assert_eq!(kind(&planned(&called, &delivered, Action::CountEntry)), "may-fault");
    assert!(planned(&twice, &traits(), Action::CountEntry).deliveries.is_empty());
}

/// An exit's window may be longer than its jump. A thread that returned behind the jump would pass the exit.
#[test]
fn nothing_that_faults_lies_behind_a_jump() {
    let delivered = ProcessTraits { has_fault_handler: true, faults_delivered: true, ..traits() };
    // mov rax, 1 (7 bytes); mov eax, [rdi]; ret
    let image = pack(&[&[0x48, 0xC7, 0xC0, 1, 0, 0, 0, 0x8B, 0x07, RET]], 0);
    let plan = planned(&image, &delivered, Action::CountExits);
    let long = plan.patches.iter().any(|patch| patch.tactic == Tactic::Jump);
    assert!(!long, "{:?}", plan.patches);
    assert!(!planned(&image, &traits(), Action::CountExits).patches.is_empty(), "elsewhere it is patched");
}

#[test]
fn calls_only_last_and_never_with_a_shadow_stack() {
    // push rbx; call f0; pop rbx; ret
    let image = pack(&[&[0x53, 0xE8, 0xFA, 0xFF, 0xFF, 0xFF, 0x5B, RET]], 8);
    assert_eq!(at(&planned(&image, &traits(), Action::CountEntry), 1).unwrap().tactic, Tactic::Jump);
    let shadow = ProcessTraits { shadow_stack: true, ..traits() };
    assert_eq!(kind(&planned(&image, &shadow, Action::CountEntry)), "immovable");
    // call rax; pop rbx; ret
    let image = pack(&[&[0xFF, 0xD0, 0x5B, 0x5B, 0x5B, RET]], 0);
    let plan = planned(&image, &traits(), Action::CountEntry);
    assert!(kind(&plan) == "returns-in" || plan.patches[0].tactic == Tactic::Pun);
}

/// A shadow stack has a copy of each return address, and returns are compared with it. So no address is
/// replaced, and exits are patched as elsewhere.
#[test]
fn with_a_shadow_stack_exits_are_patched_and_no_return_address_is_replaced() {
    // xor eax, eax; test edi, edi; three nops; ret
    let image = pack(&[&[0x31, 0xC0, 0x85, 0xFF, 0x90, 0x90, 0x90, RET]], 16);
    let shadow = ProcessTraits { shadow_stack: true, ..traits() };
    let trampolines = planned(&image, &shadow, Action::LatencyByTrampoline);
    assert_eq!((kind(&trampolines), trampolines.patches.len()), ("no-slot", 0));
    let why = trampolines.refused[0].why.to_string();
    assert!(why.contains("shadow stack") && why.contains("--ret=exits"), "{why}");
    assert!(planned(&image, &traits(), Action::LatencyByTrampoline).refused.is_empty());
    let roles = |traits: &ProcessTraits| {
        let plan = planned(&image, traits, Action::Latency);
        assert!(plan.refused.is_empty(), "{:?}", plan.refused);
        plan.patches.iter().map(|patch| (patch.addr, patch.role)).collect::<Vec<_>>()
    };
    assert_eq!(roles(&shadow), roles(&traits()));
    assert_eq!(roles(&shadow).len(), 2);
}

#[test]
fn single_instructions() {
    let image = pack(&[&[0x48, 0x83, 0xEC, 0x08, 0x90, 0x48, 0x31, 0xC0, 0x48, 0x83, 0xC4, 0x08, RET]], 8);
    let request = |off, probe| ActionRequest {
        probe,
        latency: None,
        function: Some(FunctionIndex(0)),
        action: Action::CountAt(Svma(TEXT + off)),
    };
    let map = map(&image);
    let both = plan(&image, &map, &traits(), &[request(0, 0), request(4, 1), request(12, 2)]);
    assert!(both.refused.is_empty(), "{:?}", both.refused);
    assert_eq!(both.patches.len(), 2, "the nop is in the entry's window");
    let inside = plan(&image, &map, &traits(), &[request(2, 0)]);
    assert_eq!(kind(&inside), "inside-instruction");
    let outside = plan(&image, &map, &traits(), &[request(0x4000, 0)]);
    assert_eq!(kind(&outside), "not-in-file");
}

#[test]
fn a_want_is_met_whole_or_not_at_all() {
    // xor rax, rax; xor rcx, rcx; call rax; ret (alone behind a call, with another function behind)
    let timed = [0x48, 0x31, 0xC0, 0x48, 0x31, 0xC9, 0xFF, 0xD0, RET];
    let image = pack(&[&timed, &[0x48, 0x31, 0xC0, 0x48, 0x31, 0xC0, RET]], 0);
    let plan = planned(&image, &traits(), Action::Latency);
    assert_eq!(kind(&plan), "exit-unpatchable");
    assert!(plan.patches.iter().all(|p| p.request == 1), "{:?}", plan.patches);
}

/// Targets, as offsets in the module's text, of the jumps in a plan's code that lead to the module.
fn returns_to(plan: &ModulePlan) -> Vec<u64> {
    let code = |c| plan.chunk_bytes(c).windows(5).zip(0u64..).map(move |(b, n)| (b, c.addr.0 + n));
    let jumps = plan.chunks.iter().flat_map(code).filter(|(b, _)| b[0] == 0xE9);
    let target = |(b, at): (&[u8], u64)| {
        (at + 5).wrapping_add_signed(i32::from_le_bytes([b[1], b[2], b[3], b[4]]).into())
    };
    jumps.map(target).filter(|to| to & !0xfff == 0x7f12_3456_8000).map(|to| to & 0xfff).collect()
}

#[test]
fn a_return_that_is_jumped_to_is_taken_where_the_jumps_are() {
    // test edi, edi; je out; two movs of 5 bytes; ret   out: ret (alone, with another function behind)
    let timed = [0x85, 0xFF, 0x74, 0x0B, 0xB8, 1, 0, 0, 0, 0xB9, 1, 0, 0, 0, RET, RET];
    let image = pack(&[&timed, &[0x48, 0x31, 0xC0, 0x48, 0x31, 0xC0, RET]], 0);
    let plan = planned(&image, &traits(), Action::CountExits);
    assert!(plan.refused.is_empty(), "{:?}", plan.refused);
    assert!(at(&plan, 15).is_none(), "{:?}", plan.patches);
    assert!(returns_to(&plan).contains(&15), "the return runs in its own place");
}

#[test]
fn the_tail_before_a_return_is_copied_for_each_way_into_it() {
    // push rbx; sub rsp, 8 (7 bytes); test edi, edi; je out; mov ebx, 1; out: pop rcx; pop rbx; ret
    let body =
        [0x53, 0x48, 0x81, 0xEC, 8, 0, 0, 0, 0x85, 0xFF, 0x74, 0x05, 0xBB, 1, 0, 0, 0, 0x59, 0x5B, RET];
    let image = pack(&[&body, &[0x48, 0x31, 0xC0, 0x48, 0x31, 0xC0, RET]], 0);
    let plan = planned(&image, &traits(), Action::Latency);
    assert!(plan.refused.is_empty(), "{:?}", plan.refused);
    assert!((17..20).all(|n| at(&plan, n).is_none()), "{:?}", plan.patches);
    let back = returns_to(&plan);
    assert_eq!(back.iter().filter(|to| **to == 19).count(), 2, "jump and running on: {back:x?}");
}

#[test]
fn a_pun_relies_on_what_no_other_patch_changes() {
    // ret, alone; the next function's bytes determine where a pun leads: a displacement of 0x10c48348
    let image = pack(&[&[RET], &[0x48, 0x83, 0xC4, 0x10, 0x31, 0xC0, RET]], 0);
    let map = map(&image);
    let requests = every(&image, Action::CountEntry);
    let alone = plan(&image, &map, &traits(), &requests[..1]);
    let pun = at(&alone, 0).expect("a pun");
    assert_eq!((pun.tactic, pun.len, pun.relies), (Tactic::Pun, 1, 5));
    assert_eq!(pun.needs(), (pun.addr, pun.addr + 5));
    let both = plan(&image, &map, &traits(), &requests);
    assert_eq!(both.refused.iter().map(|r| r.request).collect::<Vec<_>>(), [0]);
    assert_eq!(at(&both, 1).map(|p| (p.tactic, p.relies)), Some((Tactic::Jump, 5)));
}

/// A kernel uprobe on the function behind a punned jump writes an int3 into the jump's displacement.
#[test]
fn pun_1_a_pun_leads_to_its_stub_whatever_int3_others_write_behind_it() {
    // ret, alone. Behind it: add rsp, 16; or push rbp; mov rbp, rsp
    for (behind, starts) in
        [(&[0x48, 0x83, 0xC4, 0x10, RET][..], &[0][..]), (&[0x55, 0x48, 0x89, 0xE5, RET], &[0, 1])]
    {
        let image = pack(&[&[RET], behind], 0);
        let plan = plan(&image, &map(&image), &traits(), &every(&image, Action::CountEntry)[..1]);
        let pun = at(&plan, 0).expect("a pun");
        assert_eq!((pun.tactic, pun.len), (Tactic::Pun, 1), "{:?}", plan.refused);
        for some in 0..1_u8 << starts.len() {
            let mut rel: [u8; 4] = behind[..4].try_into().expect("four bytes");
            let with = starts.iter().enumerate().filter(|(nth, _)| some >> nth & 1 == 1);
            with.for_each(|(_, start)| rel[*start] = 0xCC);
            let target = (pun.addr + 5).offset(i32::from_le_bytes(rel).into());
            let chunk = plan.chunks.iter().find(|chunk| chunk.addr == target).expect("code at the target");
            let jump: [u8; 5] = plan.chunk_bytes(chunk)[..5].try_into().expect("a jump");
            let distance = i32::from_le_bytes([jump[1], jump[2], jump[3], jump[4]]);
            assert_eq!((jump[0], (target + 5).offset(distance.into())), (0xE9, pun.head), "{rel:x?}");
            assert!(plan.pun_regions.iter().any(|region| region.contains(target)), "{rel:x?}");
        }
    }
}

#[test]
fn where_no_trap_is_allowed_no_window_has_a_seam() {
    // xor eax, eax; xor ecx, ecx; xor edx, edx; ret
    let image = pack(&[&[0x31, 0xC0, 0x31, 0xC9, 0x31, 0xD2, RET]], 16);
    let plan = planned(&image, &traits(), Action::CountEntry);
    assert!(plan.patches.iter().any(|p| p.needs_guard()));
    let strict = ProcessTraits { traps: TrapsPolicy::MustNotTrap, ..traits() };
    let plan = planned(&image, &strict, Action::CountEntry);
    assert_eq!(at(&plan, 0).map(|p| (p.tactic, p.needs_guard())), Some((Tactic::Short, false)));
}

#[test]
fn instructions_outside_all_functions() {
    // f0: ret; then nine bytes that belong to no function: xor eax, eax (three times), int3 …
    let text = [RET, 0xCC, 0xCC, 0xCC, 0xCC, 0xCC, 0xCC, 0xCC, 0x48, 0x31, 0xC0, 0x48, 0x31, 0xC9, RET, 0xCC];
    let image = library(&text, &[(0, 1)]);
    let request = |off| ActionRequest {
        probe: 0,
        latency: None,
        function: None,
        action: Action::CountAt(Svma(TEXT + off)),
    };
    for scope in [Scope::All, Scope::For(&[request(8)])] {
        let map = CodeMap::build(&image, scope, 1);
        let plan = plan(&image, &map, &traits(), &[request(8)]);
        assert_eq!(at(&plan, 8).map(|p| p.tactic), Some(Tactic::Jump), "{:?}", plan.refused);
    }
    let map = CodeMap::build(&image, Scope::All, 1);
    assert_eq!(kind(&plan(&image, &map, &traits(), &[request(0x100)])), "not-in-file");
}

#[test]
fn loops_to_the_entry_are_timed_as_such() {
    // again: test edi, edi; je out; dec edi; jmp again (5 bytes); out: ret
    let body = [0x85, 0xFF, 0x74, 0x07, 0xFF, 0xCF, 0xE9, 0xF5, 0xFF, 0xFF, 0xFF, RET];
    let image = pack(&[&body], 16);
    let plan = planned(&image, &traits(), Action::Latency);
    assert!(plan.refused.is_empty(), "{:?}", plan.refused);
    // The copy of the displaced code does not contain the loop: each turn runs through the patch.
    let patch = at(&plan, 2).expect("an entry, behind the first instruction");
    let straight = planned(
        &pack(&[&[0x85, 0xFF, 0x74, 0x07, 0xFF, 0xCF, 0x0F, 0x1F, 0x44, 0, 0, RET]], 16),
        &traits(),
        Action::Latency,
    );
    let len = |p: &ModulePlan| p.chunks.iter().map(|c| c.len).sum::<u32>();
    assert_eq!(patch.role, PatchRole::Entry);
    assert!(len(&plan) > len(&straight), "a looped entry checks whether the call is already under way");
}

/// SAFE-6: the window begins behind the first instruction if the action can happen there, and if no known
/// branch leads there.
#[test]
fn the_first_byte_is_left_to_others() {
    let nops = [0x0F, 0x1F, 0x44, 0, 0, 0x0F, 0x1F, 0x44, 0, 0, RET];
    let start = |first: &[u8], traits: &ProcessTraits, role| {
        let plan = planned(&pack(&[&[first, &nops].concat()], 16), traits, role);
        plan.patches.iter().filter(|p| p.role == PatchRole::Entry).map(|p| p.addr.0 & 0xfff).next()
    };
    let free: [&[u8]; 7] = [
        &[0x55],                   // push rbp
        &[0x41, 0x57],             // push r15
        &[0x48, 0x83, 0xEC, 0x18], // sub rsp, 24
        &[0x89, 0xF8],             // mov eax, edi
        &[0x31, 0xC0],             // xor eax, eax
        &[0x83, 0xFF, 5],          // cmp edi, 5
        &[0x40, 0x0F, 0xB6, 0xC7], // movzx eax, dil
    ];
    for first in free {
        for role in [Action::CountEntry, Action::Latency] {
            assert_eq!(start(first, &traits(), role), Some(first.len() as u64), "{first:x?} {role:?}");
        }
    }
    // mov rdi, rsi overwrites an argument, which does not matter for counting.
    assert_eq!(start(&[0x48, 0x89, 0xF7], &traits(), Action::CountEntry), Some(3));
    assert_eq!(start(&[0x48, 0x89, 0xF7], &traits(), Action::Latency), Some(3));
    let floats = trapline_plan::Floats::default();
    let stack = trapline_plan::Unwind::None;
    let record = Action::Record {
        values: 2,
        returns: false,
        valued: false,
        texts: 0,
        ended: 0,
        floats,
        fields: 0,
        stack,
    };
    assert_eq!(start(&[0x48, 0x89, 0xF7], &traits(), record), Some(0));
    assert_eq!(start(&[0x55], &traits(), record), Some(1));
    // pop rdi: the stack pointer behind it is not taken for known.
    assert_eq!(start(&[0x5F], &traits(), Action::CountEntry), Some(0));
    // mov eax, [rdi], where faults are handled.
    let caught = ProcessTraits { has_fault_handler: true, ..traits() };
    assert_eq!(start(&[0x8B, 0x07], &traits(), Action::CountEntry), Some(2));
    assert_eq!(start(&[0x8B, 0x07], &caught, Action::CountEntry), None, "nor is it displaced");
    let delivered = ProcessTraits { faults_delivered: true, ..caught };
    // mov rdx, rdi; mov rax, [rdx]: the thread may return to the second, and would be seen twice.
    let second = [0x48, 0x89, 0xFA, 0x48, 0x8B, 0x02, 0x90, 0x90, 0x90, 0x90, RET];
    for (traits, start) in [(traits(), 3), (delivered, 0)] {
        let plan = planned(&pack(&[&second], 16), &traits, Action::CountEntry);
        assert_eq!(plan.patches[0].addr.0 & 0xfff, start);
    }
    // xor eax, eax; again: add eax, 1 … jne again
    let looped = [0x31, 0xC0, 0x48, 0x83, 0xC0, 1, 0x0F, 0x1F, 0x44, 0, 0, 0x75, 0xF5, RET];
    let plan = planned(&pack(&[&looped], 16), &traits(), Action::CountEntry);
    assert!(at(&plan, 2).is_none() && plan.patches.len() == 2, "by a short jump at 0: {:?}", plan.patches);
}

/// The file's first byte, in front of our displacement, may be a prefix of int3. A thread that traps there
/// begins with the stub.
#[test]
fn a_prefix_before_our_int3_leads_to_the_stub() {
    // pop r15 at the head; xchg rdi, rsi
    let image = pack(&[&[0x41, 0x5F, 0x48, 0x87, 0xFE, 0x90, 0x90, RET]], 16);
    let plan = planned(&image, &traits(), Action::CountEntry);
    let patch = at(&plan, 0).expect("at the first instruction");
    let guard = plan.guards.iter().find(|g| g.at == patch.addr + 1).expect("a guard behind the prefix");
    assert_eq!(guard.resume, patch.head);
    // pop rdi: its only byte is followed by the next instruction.
    let plan =
        planned(&pack(&[&[0x5F, 0x48, 0x87, 0xFE, 0x90, 0x90, RET]], 16), &traits(), Action::CountEntry);
    let patch = at(&plan, 0).expect("at the first instruction");
    assert!(plan.guards.iter().any(|g| g.at == patch.addr + 1 && g.resume != patch.head));
}

/// Instructions of 1 to 7 bytes, calls, branches, returns.
fn insn() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => Just(vec![0x53]),
        4 => Just(vec![0x89, 0xF8]),
        4 => Just(vec![0x48, 0x01, 0xD8]),
        3 => Just(vec![0x48, 0x83, 0xEC, 0x08]),
        2 => Just(vec![0xB8, 1, 2, 3, 4]),
        2 => Just(vec![0x48, 0x8B, 0x05, 0, 1, 0, 0]),
        1 => Just(vec![0xE8, 0, 0, 0, 0]),
        1 => Just(vec![RET]),
        3 => (-12i8..12).prop_map(|rel| vec![0x74, rel.cast_unsigned()]),
        1 => (-12i8..12).prop_map(|rel| vec![0xEB, rel.cast_unsigned()]),
        1 => Just(vec![0x0F, 0x05]),
        1 => Just(vec![0x66, 0x90]),
    ]
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(insn(), 1..12).prop_map(|insns| insns.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn random_functions_keep_the_promises(bodies in proptest::collection::vec(body(), 1..20), pad in 0usize..12) {
        let bodies: Vec<&[u8]> = bodies.iter().map(Vec::as_slice).collect();
        let image = pack(&bodies, pad);
        let map = map(&image);
        for role in [Action::CountEntry, Action::CountExits, Action::Latency] {
            let requests = every(&image, role);
            // `plan` checks boundaries, traps, ways and places.
            let plan = plan(&image, &map, &traits(), &requests);
            for patch in plan.patches.iter().filter(|p| p.role != PatchRole::Island) {
                let start = Svma(TEXT + (patch.addr.0 & 0xfff));
                let target = map.target_in(start + 1, start + u64::from(patch.len));
                prop_assert!(target.is_none(), "{target:?} inside {start}");
            }
            let refused: Vec<u32> = plan.refused.iter().map(|r| r.request).collect();
            prop_assert!(plan.patches.iter().all(|p| !refused.contains(&p.request)));
        }
    }
}
