//! Plans over arm64 functions that are made for the purpose: which word, which stub, where, and what is
//! refused.

mod common;

use common::elf::library_for;
use trapline_image::{FunctionIndex, Image};
use trapline_insn::aarch64::encode;
use trapline_plan::filter::{Float, GroupBy, Int, Known, Late, Sort, Tally, TargetFilter, Tree};
use trapline_plan::{
    Action, ActionRequest, AddressSpace, Buckets, CodeMap, DataCounts, DataLayout, Floats, LatencyInput,
    ModuleInput, ModulePlan, PatchRole, ProcessTraits, Read, RseqTraits, Scope, Tactic, ThreadId, Unwind,
    bounds, plan_module,
};
use trapline_record::addr::Bias;
use trapline_record::trampolines::Trampolines;
use trapline_record::{RemoteAddr, Svma};

const AARCH64: u16 = 183;
const NOP: u32 = encode::NOP;
const RET: u32 = 0xD65F_03C0;
const PUSH: u32 = 0xA9BF_7BFD;
const BTI_C: u32 = 0xD503_245F;
const PACIASP: u32 = 0xD503_233F;
const SVC: u32 = 0xD400_0001;
/// `ldr x0, [x1]`
const LOAD: u32 = 0xF940_0020;
/// `cbz x0, +8`
const CBZ: u32 = 0xB400_0040;
const BIAS: Bias = Bias(0xAAAA_0000_0000);

fn library(functions: &[&[u32]]) -> Image {
    let (mut text, mut list) = (Vec::new(), Vec::new());
    for words in functions {
        list.push((text.len() as u64, 4 * words.len() as u64));
        text.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }
    library_for(AARCH64, &text, &list)
}

fn traits() -> ProcessTraits {
    let rseq = Some(RseqTraits { offset: -160, signature: 0xD428_BC00 });
    ProcessTraits { rseq, lse: true, ..ProcessTraits::usual(2) }
}

fn planned(
    image: &Image,
    traits: &ProcessTraits,
    space: &AddressSpace,
    requests: &[ActionRequest],
) -> ModulePlan {
    timed(image, traits, space, requests, None)
}

fn timed(
    image: &Image,
    traits: &ProcessTraits,
    space: &AddressSpace,
    requests: &[ActionRequest],
    latency: Option<LatencyInput>,
) -> ModulePlan {
    let map = CodeMap::build(image, Scope::For(requests), 1);
    let layout = DataLayout::new(&bounds(image, &map, traits, requests));
    let input = ModuleInput {
        image,
        bias: BIAS,
        map: &map,
        traits,
        space,
        code_region: None,
        alone: true,
        layout: &layout,
        far: trapline_record::RemoteAddr(0x2000_0000_0000),
        regions: u32::MAX,
        latency,
        calls: None,
        filters: &[],
        requests,
    };
    let plan = plan_module(&input).expect("a plan");
    assert!(plan.patches.len() <= layout.journal_cap as usize, "journal bound");
    assert!(plan.guards.is_empty() && plan.fixups.is_empty());
    plan
}

fn space() -> AddressSpace {
    let at = |at: u64| BIAS.live(Svma(at));
    AddressSpace { occupied: vec![(at(0), at(0x1_0000))], heap_end: None }
}

fn request(probe: u32, role: Action) -> ActionRequest {
    ActionRequest { probe, latency: None, function: Some(FunctionIndex(probe)), action: role }
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn kinds(plan: &ModulePlan) -> Vec<&'static str> {
    plan.refused.iter().map(|refused| refused.why.kind()).collect()
}

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
    let reads_a_field = Action::Record { values: 1, returns: false, texts: 0, floats, fields: 1, stack };
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

fn latency() -> LatencyInput {
    LatencyInput {
        stamps: RemoteAddr(0x1000_0000_0000),
        shape: Default::default(),
        min_ticks: 0,
        buckets: Buckets::Log,
        outermost: false,
        go_g: None,
        or_trampolines: false,
        by_trampolines: false,
        leads_on: false,
        trampolines: None,
    }
}

fn time(number: u32) -> ActionRequest {
    ActionRequest { latency: Some(number), ..request(number, Action::Latency) }
}

#[test]
fn each_way_out_of_a_timed_function_has_a_stub() {
    /// `b` by this many words.
    const fn b(words: i32) -> u32 {
        0x1400_0000 | words.cast_unsigned() & 0x03FF_FFFF
    }
    // A function that jumps to the second one; the second, which jumps to the first one's second word; a
    // single return; and a function with a last word that jumps to no function.
    let image = library(&[&[BTI_C, CBZ, b(2), RET], &[NOP, b(-4)], &[RET], &[NOP, b(0x1000)]]);
    let requests = [time(0), time(1), time(2), time(3)];
    let plan = timed(&image, &traits(), &space(), &requests, Some(latency()));
    let found: Vec<(u64, PatchRole)> = plan.patches.iter().map(|p| (BIAS.stated(p.addr).0, p.role)).collect();
    let expected = [
        (0x1004, PatchRole::Entry),
        (0x1008, PatchRole::ExitTail),
        (0x100c, PatchRole::ExitRet),
        // Entry and exit, in this order.
        (0x1018, PatchRole::Entry),
    ];
    assert_eq!(found, expected);
    assert_eq!(plan.patches[3].request, 2);
    assert!(plan.chunks.len() == 5 && plan.shares.is_empty());
    // Into the middle of a function, and to where no code is.
    assert_eq!(kinds(&plan), ["tail-call", "tail-call"]);
}

#[test]
fn what_cannot_be_timed_is_refused_by_name() {
    /// `br x1`
    const JUMP: u32 = 0xD61F_0020;
    let image = library(&[&[NOP, JUMP], &[NOP, RET], &[NOP, 0]]);
    let kinds_of = |requests: &[ActionRequest], traits: &ProcessTraits, input: LatencyInput| {
        let plan = timed(&image, traits, &space(), requests, Some(input));
        assert!(plan.patches.is_empty());
        kinds(&plan)
    };
    assert_eq!(kinds_of(&[time(0), time(2)], &traits(), latency()), ["exits-unknown", "no-exit"]);
}

/// Plans with these filters; `by_thread` says whether hits are counted by thread.
fn decided(
    image: &Image,
    traits: &ProcessTraits,
    by_thread: bool,
    filters: &[Option<TargetFilter>],
    requests: &[ActionRequest],
) -> ModulePlan {
    let map = CodeMap::build(image, Scope::For(requests), 1);
    let tallies = filters.iter().flatten().filter_map(|filter| filter.tally.as_ref());
    let tally = tallies.fold(Default::default(), |most, tally| tally.shape().or(most));
    let filtered = !filters.is_empty();
    let counts = DataCounts { by_thread, filtered, tally, ..bounds(image, &map, traits, requests) };
    let input = ModuleInput {
        image,
        bias: BIAS,
        map: &map,
        traits,
        space: &space(),
        code_region: None,
        alone: true,
        layout: &DataLayout::new(&counts),
        far: trapline_record::RemoteAddr(0x2000_0000_0000),
        regions: u32::MAX,
        latency: Some(latency()),
        calls: None,
        filters,
        requests,
    };
    plan_module(&input).expect("a plan")
}

const INT: Int = Int { bits: 32, signed: true };

fn condition(known: Known) -> TargetFilter {
    TargetFilter { condition: Some(Tree::Known(known)), sample: 1, ..TargetFilter::default() }
}

fn tallied(known: Known, sort: Sort) -> TargetFilter {
    let tally = Some(Tally { value: Tree::Known(known), sort, group_by: GroupBy::Nothing });
    TargetFilter { tally, sample: 1, ..TargetFilter::default() }
}

fn planned_roles(
    image: &Image,
    filters: &[Option<TargetFilter>],
    requests: &[ActionRequest],
) -> Vec<PatchRole> {
    let plan = decided(image, &traits(), false, filters, requests);
    assert!(plan.refused.is_empty(), "{:?}", plan.refused);
    plan.patches.iter().map(|patch| patch.role).collect()
}

#[test]
fn what_is_tallied_is_patched_where_it_is_known() {
    /// `b` to the second function.
    const JUMP: u32 = 0x1400_0001;
    let image = library(&[&[BTI_C, CBZ, RET, JUMP], &[NOP, NOP, RET]]);
    let requests = [request(0, Action::Tally { exits: true }), request(1, Action::Tally { exits: false })];
    let filters =
        [Known::Returned(INT), Known::Argument(0, INT)].map(|known| Some(tallied(known, Sort::Log2)));
    assert_eq!(planned_roles(&image, &filters, &requests).len(), 3);
    // Whole calls, with what their entries leave.
    let late = Some(Late { condition: Tree::Number(1, false), tick: 1 });
    let took = TargetFilter { late, ..tallied(Known::Took, Sort::Log2) };
    let found = planned_roles(&image, &[Some(took)], &requests[..1]);
    assert_eq!(found, [PatchRole::Entry, PatchRole::ExitRet, PatchRole::ExitTail]);
    let plan = decided(&image, &traits(), false, &filters, &requests);
    let found: Vec<(Svma, PatchRole)> = plan.patches.iter().map(|p| (BIAS.stated(p.addr), p.role)).collect();
    let at = |role, at| (Svma(at), role);
    assert_eq!(
        found,
        [at(PatchRole::ExitRet, 0x1008), at(PatchRole::ExitTail, 0x100c), at(PatchRole::Entry, 0x1010)]
    );
    assert!(plan.refused.is_empty());
}

/// Aggregations of texts, of fields and by thread, at entries and at returns. They are refused where a system
/// call would lose SVE vectors.
#[test]
fn what_is_read_of_memory_is_tallied() {
    /// `ptrue p0.b`
    const SCALABLE: u32 = 0x2518_E3E0;
    let image = library(&[&[NOP, RET], &[NOP, SCALABLE, RET]]);
    let reads = vec![Read { register: 0, offsets: vec![0, 8], bytes: 4 }];
    let (field, argument) = (Known::Field(0, INT), Known::Argument(0, INT));
    let whole = Some(Late { condition: Tree::Known(field), tick: 1 });
    let key = GroupBy::Number(Tree::Known(Known::Argument(2, INT)));
    for group_by in [GroupBy::Nothing, GroupBy::Thread, key] {
        for (known, sort) in [(field, Sort::Each), (argument, Sort::Text(1)), (field, Sort::Log2)] {
            let tally = Some(Tally { value: Tree::Known(known), sort, group_by: group_by.clone() });
            let early = TargetFilter { tally, reads: reads.clone(), sample: 1, ..TargetFilter::default() };
            let condition = TargetFilter { fields: Some(Tree::Known(field)), ..early.clone() };
            let late = TargetFilter { late: whole.clone(), ..early.clone() };
            for (filter, exits, patches) in [(early, false, 1), (condition, false, 1), (late, true, 2)] {
                let filters = vec![Some(filter); 2];
                let requests = [request(0, Action::Tally { exits })];
                assert_eq!(planned_roles(&image, &filters, &requests).len(), patches, "{filters:?}");
                let scalable = [request(1, Action::Tally { exits })];
                let plan = decided(&image, &traits(), false, &filters, &scalable);
                let why: Vec<String> = plan.refused.iter().map(|refused| refused.why.to_string()).collect();
                assert!(why.len() == 1 && why[0].contains("SVE"), "{why:?}");
            }
        }
    }
    // Numbers grouped by a text, texts by a text, and a case where no text was copied.
    let by_text = |known, sort| {
        let tally = Some(Tally { value: Tree::Known(known), sort, group_by: GroupBy::Text(1) });
        Some(TargetFilter { tally, sample: 1, ..TargetFilter::default() })
    };
    let [late, early] = [true, false].map(|exits| [request(0, Action::Tally { exits })]);
    assert_eq!(planned_roles(&image, &[by_text(argument, Sort::Log2)], &early).len(), 1);
    for (filter, requests) in
        [(by_text(argument, Sort::Text(0)), early), (by_text(Known::Returned(INT), Sort::Each), late)]
    {
        let plan = decided(&image, &traits(), false, &[filter], &requests);
        let why: Vec<String> = plan.refused.iter().map(|refused| refused.why.to_string()).collect();
        assert!(why.len() == 1 && why[0].contains("not known there"), "{why:?}");
    }
    // Reads no memory: registers alone.
    let plain = vec![Some(tallied(argument, Sort::Each)); 2];
    assert_eq!(planned_roles(&image, &plain, &[request(1, Action::Tally { exits: false })]).len(), 1);
}

/// A filter, a value, or a count by thread that no stub can decide or compute is refused by name.
#[test]
fn what_no_code_decides_is_refused_by_name() {
    let image = library(&[&[NOP, RET]]);
    let of = |role, filter: Option<TargetFilter>, by_thread, traits: &ProcessTraits| {
        let request = ActionRequest { latency: (role == Action::Latency).then_some(0), ..request(0, role) };
        let plan = decided(
            &image,
            traits,
            by_thread,
            &filter.map_or_else(Vec::new, |one| vec![Some(one)]),
            &[request],
        );
        assert_eq!(plan.patches.is_empty(), !plan.refused.is_empty());
        plan.refused.first().map(|refused| refused.why.to_string())
    };
    let (entry, exit) = (Action::CountEntry, Action::Tally { exits: true });
    let late = Late { condition: Tree::Known(Known::Took), tick: 1 };
    let (of_field, took) = (Tree::Known(Known::Field(0, INT)), Tree::Known(Known::Took));
    let field = Read { register: 0, offsets: vec![0], bytes: 4 };
    let argument = Known::Argument(0, INT);
    let (floats, stack) = (Floats::default(), Unwind::None);
    let recorded = |returns| Action::Record { values: 1, returns, texts: 0, floats, fields: 0, stack };
    let copied =
        Action::Record { values: 0, returns: false, texts: 0, floats, fields: 0, stack: Unwind::Copy(256) };
    for (role, filter, what) in [
        (entry, condition(Known::Took), "not known there"),
        (entry, condition(Known::Field(0, INT)), "not known there"),
        (entry, condition(Known::Returned(INT)), "not known there"),
        (exit, tallied(argument, Sort::Each), "not known there"),
        (
            exit,
            TargetFilter { condition: Some(Tree::Known(argument)), ..tallied(Known::Thread, Sort::Each) },
            "not known there",
        ),
        // No code copied the text.
        (exit, tallied(Known::Thread, Sort::Text(0)), "not known there"),
        (entry, TargetFilter { late: Some(late.clone()), ..condition(argument) }, "what entries left"),
        (entry, TargetFilter { reads: vec![field.clone()], ..condition(argument) }, "fields"),
        (entry, TargetFilter { by_name: true, ..condition(argument) }, "are called"),
        (exit, TargetFilter { by_name: true, ..tallied(Known::Returned(INT), Sort::Each) }, "are called"),
        (Action::Latency, condition(argument), "what it times"),
        (recorded(true), condition(Known::Returned(INT)), "not known there"),
        (Action::Tally { exits: false }, tallied(Known::Field(0, INT), Sort::Each), "not known there"),
        (copied, TargetFilter { fields: Some(of_field.clone()), ..condition(argument) }, "beside stacks"),
        (recorded(true), TargetFilter { fields: Some(took), ..condition(argument) }, "not known there"),
        (recorded(false), condition(Known::Returned(INT)), "not known there"),
    ] {
        let why = of(role, Some(filter), false, &traits()).unwrap_or_default();
        assert!(why.contains(what), "{what}: {why}");
    }
    let why = of(entry, Some(condition(argument)), true, &traits()).unwrap_or_default();
    assert!(why.contains("by thread"), "{why}");
    for known in [argument, Known::Thread, Known::Float(3, Float::Double)] {
        for role in [entry, recorded(false), recorded(true)] {
            assert_eq!(of(role, Some(condition(known)), false, &traits()), None, "{role:?} {known:?}");
        }
        // Thread names can be decided where there are records.
        for role in [recorded(false), recorded(true)] {
            let filter = TargetFilter { by_name: true, ..condition(known) };
            assert_eq!(of(role, Some(filter.clone()), false, &traits()), None, "{role:?} {known:?}");
            let late = TargetFilter { late: Some(late.clone()), ..filter };
            assert_eq!(of(role, Some(late), false, &traits()).is_none(), role == recorded(true));
        }
        // Fields are read where there are records.
        for role in [recorded(false), recorded(true)] {
            let (reads, fields) = (vec![field.clone()], Some(of_field.clone()));
            let filter = TargetFilter { reads, fields, ..condition(known) };
            assert_eq!(of(role, Some(filter), false, &traits()), None, "{role:?} {known:?}");
        }
        // Conditions at the return are decided where returns are recorded.
        let filter = TargetFilter { late: Some(late.clone()), ..condition(known) };
        assert_eq!(of(recorded(true), Some(filter.clone()), false, &traits()), None, "{known:?}");
        let why = of(recorded(false), Some(filter), false, &traits()).unwrap_or_default();
        assert!(why.contains("what entries left"), "{why}");
    }
    // A system call would lose SVE state. Where system calls are not allowed, the thread's number is unknown.
    let vectors = ProcessTraits { sve: true, ..traits() };
    let kept = ProcessTraits { thread_id: ThreadId::At(-1648), ..vectors };
    let unknown = ProcessTraits { thread_id: ThreadId::Unknown, ..traits() };
    for (traits, what) in
        [(vectors, Some("SVE")), (kept, None), (unknown, Some("gettid")), (self::traits(), None)]
    {
        for why in [of(entry, None, true, &traits), of(entry, Some(condition(Known::Thread)), false, &traits)]
        {
            assert_eq!(why.is_some(), what.is_some(), "{why:?}");
            assert!(why.is_none_or(|why| why.contains(what.unwrap_or_default())), "{what:?}");
        }
        assert_eq!(of(entry, None, false, &traits), None);
    }
}

/// Functions that may return early, and read the return address many instructions later: `mov x0, x30`.
#[test]
fn what_is_too_long_to_be_looked_at_keeps_it() {
    use trapline_plan::aarch64::may_arm;
    const MOST: usize = 1 << 16;
    for (words, says) in [(MOST, "more may follow than is looked at"), (MOST - 8, "reads the return address")]
    {
        let long = [&[CBZ, RET][..], &vec![NOP; words], &[0xAA1E_03E0, RET]].concat();
        let image = library(&[&long]);
        let why = may_arm(&image, image.function(FunctionIndex(0)), BIAS).expect_err("refused");
        assert!(why.kind() == "no-slot" && why.to_string().contains(says), "{words}: {why}");
    }
}

/// Records without texts or fields, of calls that pass a condition on a field. A function that uses SVE
/// vectors is refused, because a system call would lose them. Other functions are planned, even where threads
/// must ask the system for their numbers.
#[test]
fn what_a_condition_reads_is_read_where_nothing_is_lost() {
    /// `add z0.b, z0.b, z0.b`
    const SCALABLE: u32 = 0x0420_0000;
    let image = library(&[&[NOP, RET], &[NOP, SCALABLE, RET]]);
    let (floats, stack) = (Floats::default(), Unwind::None);
    let (reads, fields) =
        (vec![Read { register: 0, offsets: vec![0], bytes: 4 }], Some(Tree::Known(Known::Field(0, INT))));
    let (of_field, of_thread) =
        (TargetFilter { reads, fields, ..condition(Known::Argument(0, INT)) }, condition(Known::Thread));
    let asks = TargetFilter { condition: of_thread.condition, ..of_field.clone() };
    for returns in [false, true] {
        let role = Action::Record { values: 1, returns, texts: 0, floats, fields: 0, stack };
        for (sve, filter) in [(false, &of_field), (true, &of_field), (true, &asks)] {
            let traits = ProcessTraits { sve, thread_id: ThreadId::Call, ..traits() };
            let filters = vec![Some(filter.clone()); 2];
            let plan = decided(&image, &traits, false, &filters, &[request(0, role), request(1, role)]);
            let why: Vec<String> = plan.refused.iter().map(|refused| refused.why.to_string()).collect();
            assert!(why.len() == 1 && why[0].contains("where vectors of SVE"), "{sve} {why:?}");
            assert!(plan.refused[0].request == 1 && !plan.patches.is_empty());
        }
    }
}

#[test]
fn return_addresses_are_replaced_behind_the_pads_or_kept_by_name() {
    const POP: u32 = 0xA8C1_7BFD;
    const AUTIASP: u32 = 0xD503_23BF;
    /// `cbz x0` to the word before it; `xpaclri`; `br x1`.
    const BACK: u32 = 0xB400_0000 | 0x7_FFFF << 5;
    const STRIP: u32 = 0xD503_20FF;
    const JUMP: u32 = 0xD61F_0020;
    let image = library(&[
        &[NOP, RET],
        &[BTI_C, PACIASP, PUSH, POP, AUTIASP, RET],
        &[NOP, JUMP, RET],
        &[BTI_C, NOP, BACK, RET],
        &[STRIP, RET],
        &[SVC, RET],
    ]);
    let requests: Vec<ActionRequest> = (0..6)
        .map(|n| ActionRequest { latency: Some(n), ..request(n, Action::LatencyByTrampoline) })
        .collect();
    let trampolines = Trampolines { code: 0x2000_0000_0000, table: 0x2000_1000_0000, count: 64 };
    let input = LatencyInput { trampolines: Some(trampolines), ..latency() };
    let plan = timed(&image, &traits(), &space(), &requests, Some(input));
    let found: Vec<(u64, PatchRole)> = plan.patches.iter().map(|p| (BIAS.stated(p.addr).0, p.role)).collect();
    assert_eq!(found, [0x1000, 0x1010, 0x1020].map(|at| (at, PatchRole::Entry)));
    assert_eq!(kinds(&plan), ["no-slot"; 3]);
    // A signed address is authenticated first, and signed again before the displaced word.
    let words =
        |nth: usize| -> Vec<u32> { plan.chunk_bytes(&plan.chunks[nth]).chunks_exact(4).map(word).collect() };
    let signed = words(1);
    let copy = signed.iter().position(|word| *word == PUSH).expect("the word itself");
    assert_eq!((signed[0], signed[copy - 1]), (AUTIASP, PACIASP));
    assert!([0, 2].into_iter().flat_map(words).all(|word| ![AUTIASP, PACIASP].contains(&word)));
    let traits = ProcessTraits { go: true, ..traits() };
    let plan = timed(&image, &traits, &space(), &requests[..1], Some(input));
    assert_eq!(kinds(&plan), ["not-on-arm64"]);
}

/// Functions that look at their return address keep it.
#[test]
fn a_function_that_looks_at_its_return_address_keeps_it() {
    use trapline_plan::aarch64::may_arm;
    const POP: u32 = 0xA8C1_7BFD;
    const STRIP: u32 = 0xD503_20FF;
    /// `bl` by this many words.
    const fn bl(words: i32) -> u32 {
        0x9400_0000 | words.cast_unsigned() & 0x03FF_FFFF
    }
    const fn b(words: i32) -> u32 {
        bl(words) & !(1 << 31)
    }
    let cases: &[(&[u32], &str)] = &[
        (&[NOP, RET], ""),
        (&[PACIASP, PUSH, bl(100), POP, 0xD503_23BF, RET], ""),
        // A jump to another function; x30 then holds the return address for it.
        (&[NOP, b(100)], ""),
        // `mov x8, #172; svc #0`
        (&[0xD280_1588, SVC, RET], ""),
        // Behind a call x30 has another value; a read of it is not a read of the return address: `mov x0,
        // x30`.
        (&[PUSH, bl(100), 0xAA1E_03E0, POP, RET], ""),
        (&[0xAA1E_03E0, RET], "reads the return address"),
        (&[PUSH, bl(100), POP, 0xAA1E_03E0, RET], "reads the return address"),
        // `stp x29, x30, [x0, #80]`
        (&[0xA905_781D, RET], "reads the return address"),
        (&[PUSH, STRIP, POP, RET], "looks at a return address"),
        // `mov x29, sp; ldr x0, [x29, #8]`
        (&[PUSH, 0x9100_03FD, bl(100), 0xF940_07A0, POP, RET], "from its frame"),
        // The same with `ldp x0, x1, [x29]`; and a load back into x30.
        (&[PUSH, 0x9100_03FD, bl(100), 0xA940_07A0, POP, RET], "from its frame"),
        (&[PUSH, 0x9100_03FD, bl(100), 0xA940_7BBD, RET], ""),
        // `mov x8, #220; svc #0`
        (&[0xD280_1B88, SVC, RET], "may return twice"),
        (&[SVC, RET], "may return twice"),
        (&[NOP, CBZ & !(0x7_FFFF << 5) | (0x7_FFFF << 5), RET], "leads back to the first"),
        (&[NOP, bl(100)], "no return is found"),
        // `br x16` alone; and with code behind it that a jump table may lead to.
        (&[NOP, 0xD61F_0200], "no return is found"),
        (&[NOP, 0xD61F_0200, RET], ""),
        // A jump to a function that looks at its return address, as `setjmp` does.
        (&[NOP, b(1)], "reads the return address"),
        (&[0xF900_2C1E, RET], "reads the return address"),
    ];
    let functions: Vec<&[u32]> =
        [&[NOP, RET][..]].into_iter().chain(cases.iter().map(|case| case.0)).collect();
    let image = library(&functions);
    for (index, (words, says)) in (1..).zip(cases) {
        let why = may_arm(&image, image.function(FunctionIndex(index)), BIAS);
        match why {
            Ok(()) => assert!(says.is_empty(), "{words:08x?}: {says}"),
            Err(why) => {
                assert!(!says.is_empty() && why.to_string().contains(says), "{words:08x?}: {why}");
                assert_eq!(why.kind(), "no-slot");
            }
        }
    }
}
