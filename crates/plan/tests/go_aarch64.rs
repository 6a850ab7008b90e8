//! Plans over a cross-built Go program for arm64: at which words a call ends, and what is refused.

use trapline_image::{FunctionIndex, Image, NoDebugFiles};
use trapline_plan::filter::{GroupBy, Int, Known, Late, Sort, Tally, TargetFilter, Tree};
use trapline_plan::{
    Action, ActionRequest, AddressSpace, Buckets, CodeMap, DataCounts, DataLayout, Floats, LatencyInput,
    ModuleInput, ModulePlan, PatchRole, ProcessTraits, Read, Scope, Unwind, bounds, plan_module,
};
use trapline_record::addr::Bias;
use trapline_record::{RemoteAddr, Svma};
use trapline_tests::{or_skip, victims};

const RET: u32 = 0xD65F_03C0;
/// `ldr x16, [x28, #16]`: loads the end of the goroutine's stack.
const LOOK: u32 = 0xF940_0B90;
/// `sub sp, sp, #16`
const DOWN: u32 = 0xD100_43FF;
/// `add sp, sp, #16`
const UP: u32 = 0x9100_43FF;

fn image() -> Result<Image, String> {
    image_of("grows")
}

fn image_of(program: &str) -> Result<Image, String> {
    let path = victims::go_for_arm64(program)?;
    let bytes = std::fs::read(&path).map_err(|error| error.to_string())?;
    Image::parse(bytes, &mut NoDebugFiles).map_err(|error| error.to_string())
}

/// Traits of a Go program: it handles faults.
fn traits() -> ProcessTraits {
    ProcessTraits { rseq: None, lse: true, go: true, has_fault_handler: true, ..ProcessTraits::usual(2) }
}

fn named(image: &Image, name: &str) -> FunctionIndex {
    let is = |index: &u32| image.names(image.function(FunctionIndex(*index))).any(|one| one.raw == name);
    FunctionIndex((0..image.functions().len() as u32).find(is).unwrap_or_else(|| panic!("no {name}")))
}

fn planned(image: &Image, outermost: bool, requests: &[ActionRequest]) -> ModulePlan {
    decided(image, outermost, &[], requests)
}

fn decided(
    image: &Image,
    outermost: bool,
    filters: &[Option<TargetFilter>],
    requests: &[ActionRequest],
) -> ModulePlan {
    let (map, traits) = (CodeMap::build(image, Scope::For(requests), 1), traits());
    let latency = LatencyInput {
        stamps: RemoteAddr(0x1000_0000_0000),
        shape: Default::default(),
        min_ticks: 0,
        buckets: Buckets::Log,
        outermost,
        go_g: None,
        or_trampolines: false,
        by_trampolines: false,
        leads_on: false,
        trampolines: None,
    };
    let text: Vec<(Svma, u64)> = image.text_ranges().to_vec();
    let end = text.iter().map(|range| range.0.0 + range.1).max().expect("code");
    let space =
        AddressSpace { occupied: vec![(RemoteAddr(0), RemoteAddr(end + (64 << 20)))], heap_end: None };
    let tallies = filters.iter().flatten().filter_map(|filter| filter.tally.as_ref());
    let tally = tallies.fold(Default::default(), |most, tally| tally.shape().or(most));
    let counts =
        DataCounts { filtered: !filters.is_empty(), tally, ..bounds(image, &map, &traits, requests) };
    plan_module(&ModuleInput {
        image,
        bias: Bias(0),
        map: &map,
        traits: &traits,
        space: &space,
        code_region: None,
        patched: &[],
        alone: true,
        layout: &DataLayout::new(&counts),
        far: trapline_record::RemoteAddr(0x2000_0000_0000),
        own_page: trapline_record::RemoteAddr(0x3000_0000_0000),
        regions: u32::MAX,
        latency: Some(latency),
        calls: None,
        filters,
        requests,
    })
    .expect("a plan")
}

fn request(probe: u32, function: FunctionIndex, role: Action) -> ActionRequest {
    ActionRequest { probe, latency: role.is_timed().then_some(probe), function: Some(function), action: role }
}

fn recorded(texts: u8, returns: bool, stack: Unwind) -> Action {
    Action::Record {
        values: 1,
        returns,
        valued: false,
        texts,
        ended: 0,
        floats: Floats::default(),
        fields: 0,
        stack,
    }
}

fn words(image: &Image, function: FunctionIndex) -> Vec<u32> {
    let function = image.function(function);
    let bytes = image.text(function.start, function.len).expect("its code");
    bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

fn refusals(plan: &ModulePlan) -> Vec<String> {
    plan.refused.iter().map(|refused| refused.why.to_string()).collect()
}

/// The entry, a check of the stack's end through x28, is displaced although the program handles faults. Each
/// `ret` is an exit. So is the one behind a recovered panic, to which nothing branches.
#[test]
fn a_calls_ends_are_found() {
    let (grows, http) = (or_skip!(image()), or_skip!(image_of("http")));
    let all = ["main.outer", "main.deep", "main.leaf", "main.recovers"].map(|name| (&grows, name));
    for (image, name) in all.into_iter().chain([(&http, "main.countedWork")]) {
        let function = named(image, name);
        let words = words(image, function);
        let plan = planned(image, false, &[request(0, function, Action::Latency)]);
        assert!(plan.refused.is_empty(), "{name}: {:?}", refusals(&plan));
        let start = image.function(function).start;
        let index = |at: RemoteAddr| ((at.0 - start.0) / 4) as usize;
        let exits: Vec<usize> =
            plan.patches.iter().filter(|p| p.role == PatchRole::ExitRet).map(|p| index(p.addr)).collect();
        let returns: Vec<usize> = (0..words.len()).filter(|&n| words[n] == RET).collect();
        assert_eq!(exits, returns, "{name}");
        assert!(returns.len() > usize::from(name == "main.recovers"), "{name}: {returns:?}");
        assert_eq!(words[0] == LOOK, name != "main.leaf", "{name}");
        assert!(plan.patches.iter().any(|p| p.role == PatchRole::Entry && index(p.addr) == 0), "{name}");
    }
}

/// GO-2: the word below the stack pointer belongs to the program.
#[test]
fn stubs_begin_below_what_is_kept_there() {
    let image = or_skip!(image());
    let function = named(&image, "main.deep");
    for role in [Action::CountEntry, Action::Latency, recorded(0, true, Unwind::None)] {
        let plan = planned(&image, false, &[request(0, function, role)]);
        assert!(plan.refused.is_empty() && !plan.chunks.is_empty(), "{:?}", refusals(&plan));
        for (chunk, patch) in plan.chunks.iter().zip(&plan.patches) {
            let words: Vec<u32> = plan
                .chunk_bytes(chunk)
                .as_chunks::<4>()
                .0
                .iter()
                .map(|word| u32::from_le_bytes(*word))
                .collect();
            assert_eq!(words[0], DOWN, "{role:?}");
            let old = u32::from_le_bytes([patch.old[0], patch.old[1], patch.old[2], patch.old[3]]);
            assert!(words.windows(2).any(|two| two == [UP, old]), "{role:?}");
        }
    }
}

/// Functions that do not certainly have a goroutine, and stubs that need more of a goroutine's stack than is
/// known to be there.
#[test]
fn what_is_not_done_in_go_is_refused_by_name() {
    let image = or_skip!(image());
    let deep = named(&image, "main.deep");
    for (name, role, outermost, what) in [
        ("runtime.sigtrampgo", Action::Latency, false, Some("finds its goroutine")),
        ("runtime.sigtrampgo", recorded(0, true, Unwind::None), false, Some("finds its goroutine")),
        ("runtime.sigtrampgo", recorded(0, false, Unwind::None), false, None),
        ("runtime.sigtrampgo", Action::CountEntry, false, None),
        // It checks through x28 itself.
        ("runtime.newproc1", Action::Latency, false, None),
        ("main.deep", Action::Latency, true, None),
        ("runtime.sigtrampgo", Action::Latency, true, Some("finds its goroutine")),
        ("main.deep", recorded(1, false, Unwind::None), false, None),
        ("runtime.sigtrampgo", recorded(1, false, Unwind::None), false, Some("finds its goroutine")),
        ("main.deep", recorded(0, false, Unwind::Frames(9)), false, None),
        ("main.deep", Action::RecordAt(image.function(deep).start, Unwind::Frames(9)), false, None),
        ("main.deep", recorded(0, false, Unwind::Copy(4096)), false, Some("copy of a goroutine's stack")),
        (
            "main.deep",
            Action::RecordAt(image.function(deep).start, Unwind::Copy(4096)),
            false,
            Some("copy of a goroutine's stack"),
        ),
    ] {
        let plan = planned(&image, outermost, &[request(0, named(&image, name), role)]);
        let refused = refusals(&plan);
        assert_eq!(refused.is_empty(), what.is_none(), "{name} {role:?}: {refused:?}");
        assert!(
            refused.iter().all(|why| why.contains(what.unwrap_or_default())),
            "{name} {role:?}: {refused:?}"
        );
    }
}

/// What entries leave for returns belongs to the goroutine, wherever its stack is by then. Memory is copied
/// onto that stack where it has room. Threads are not known at returns.
#[test]
fn what_is_decided_or_added_up_at_returns_is_the_goroutines() {
    const INT: Int = Int { bits: 64, signed: true };
    let image = or_skip!(image());
    let (argument, took) = (Tree::Known(Known::Argument(0, INT)), Tree::Known(Known::Took));
    let passing = TargetFilter { condition: Some(argument.clone()), sample: 1, ..TargetFilter::default() };
    let late = Some(Late { condition: took.clone(), tick: 1 });
    let deferred = TargetFilter { late: late.clone(), ..passing.clone() };
    let tally = Tally { value: took, sort: Sort::Log2, group_by: GroupBy::Nothing };
    let gathered = TargetFilter { late, tally: Some(tally.clone()), sample: 1, ..TargetFilter::default() };
    let by_thread =
        TargetFilter { tally: Some(Tally { group_by: GroupBy::Thread, ..tally }), ..gathered.clone() };
    let of_thread = TargetFilter {
        late: Some(Late { condition: Tree::Known(Known::Thread), tick: 1 }),
        ..passing.clone()
    };
    let of_field = TargetFilter { fields: Some(Tree::Known(Known::Field(0, INT))), ..passing.clone() };
    let reads =
        TargetFilter { reads: vec![Read { register: 0, offsets: vec![0], bytes: 8 }], ..passing.clone() };
    let text = Tally { value: argument, sort: Sort::Text(0), group_by: GroupBy::Nothing };
    let text = TargetFilter { tally: Some(text), sample: 1, ..TargetFilter::default() };
    let record = |returns| recorded(0, returns, Unwind::None);
    let refusals = |name: &str, role, filter: &TargetFilter| {
        refusals(&decided(&image, false, &[Some(filter.clone())], &[request(0, named(&image, name), role)]))
    };
    for (role, filter) in [
        (record(true), &passing),
        (record(true), &deferred),
        (Action::Tally { exits: true }, &gathered),
        (record(false), &of_field),
        (record(false), &reads),
        (Action::Tally { exits: false }, &text),
    ] {
        assert_eq!(refusals("main.deep", role, filter), Vec::<String>::new(), "{role:?}");
        let refused = refusals("runtime.sigtrampgo", role, filter);
        assert!(refused.len() == 1 && refused[0].contains("finds its goroutine"), "{role:?}: {refused:?}");
    }
    for (role, filter, what) in [
        (record(false), &deferred, "what entries left"),
        (record(true), &of_thread, "in which thread"),
        (Action::Tally { exits: true }, &by_thread, "in which thread"),
        (Action::Latency, &passing, "what it times"),
    ] {
        let refused = refusals("main.deep", role, filter);
        assert!(refused.len() == 1 && refused[0].contains(what), "{role:?}: {refused:?}");
    }
}

/// Nearly all functions that are written in Go can be timed. Exceptions jump through a register, or begin by
/// reading what an argument points to.
#[test]
fn most_of_a_program_can_be_timed() {
    let image = or_skip!(image());
    let all: Vec<ActionRequest> = (0..image.functions().len() as u32)
        .map(FunctionIndex)
        .filter(|&index| {
            image.names(image.function(index)).any(|name| {
                ["fmt.", "strconv.", "os.", "sync.", "main."]
                    .iter()
                    .any(|package| name.raw.starts_with(package))
            })
        })
        .zip(0..)
        .map(|(index, probe)| request(probe, index, Action::Latency))
        .collect();
    let plan = planned(&image, false, &all);
    let why = refusals(&plan);
    println!("{} of {} refused: {why:#?}", why.len(), all.len());
    assert!(all.len() > 100 && 10 * why.len() < all.len(), "{} of {}: {why:#?}", why.len(), all.len());
}
