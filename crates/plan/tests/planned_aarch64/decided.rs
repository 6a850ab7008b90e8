//! Filters and aggregations: what is planned for them, and what no code decides.

use super::{BIAS, BTI_C, CBZ, NOP, RET, latency, library, request, space, traits};
use trapline_image::Image;
use trapline_plan::filter::{Float, GroupBy, Int, Known, Late, Sort, Tally, TargetFilter, Tree};
use trapline_plan::{
    Action, ActionRequest, CodeMap, DataCounts, DataLayout, Floats, ModuleInput, ModulePlan, PatchRole,
    ProcessTraits, Read, Scope, ThreadId, Unwind, bounds, plan_module,
};
use trapline_record::Svma;

/// Plans with these filters; with `by_thread` hits are counted by thread.
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
        patched: &[],
        alone: true,
        layout: &DataLayout::new(&counts),
        far: trapline_record::RemoteAddr(0x2000_0000_0000),
        own_page: trapline_record::RemoteAddr(0x3000_0000_0000),
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
    let recorded = |returns| Action::Record {
        values: 1,
        returns,
        valued: false,
        texts: 0,
        ended: 0,
        floats,
        fields: 0,
        stack,
    };
    let copied = Action::Record {
        values: 0,
        returns: false,
        valued: false,
        ended: 0,
        texts: 0,
        floats,
        fields: 0,
        stack: Unwind::Copy(256),
    };
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
        let role = Action::Record {
            values: 1,
            returns,
            valued: false,
            texts: 0,
            ended: 0,
            floats,
            fields: 0,
            stack,
        };
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
