//! A speculative plan equals the plan that is made, or is not used.

mod common;

use common::elf::library;
use common::{bias_of, every, map, space_of};
use trapline_image::{FunctionIndex, Image};
use trapline_plan::{
    Action, CallFunctions, CallInput, Callee, CodeMap, DataLayout, ExtendedState, ModuleInput, ModulePlan,
    ProcessTraits, Tactic, bounds, plan_module,
};

/// Functions as long as a jump, with different bytes, each followed by padding.
fn functions(bodies: usize) -> Image {
    let (mut text, mut functions) = (Vec::new(), Vec::new());
    for n in 0..bodies {
        functions.push((text.len() as u64, 8));
        // sub rsp, n; add rsp, n; ret
        let n = n as u8 & 0x78;
        text.extend_from_slice(&[0x48, 0x83, 0xEC, n, 0x48, 0x83, 0xC4, n]);
        text.extend_from_slice(&[0xCC; 8]);
    }
    library(&text, &functions)
}

fn planned(image: &Image, map: &CodeMap, traits: &ProcessTraits, by_trap: bool) -> ModulePlan {
    let functions = CallFunctions {
        entry: 0x1111,
        general: 0x2222,
        begin: 0x3333,
        exit: 0x4444,
        general_exit: 0x5555,
        begins: None,
        arms: None,
        ends: None,
        state: ExtendedState { mask: 3, len: 576, shows_use: false },
    };
    let requests = every(image, Action::CallEntry);
    let callee = |n| Callee { argument: n, saves_state: false, only_returns: false, arms: false, by_trap };
    let callees: Vec<Callee> = (0..requests.len() as u64).map(callee).collect();
    let (bias, layout) = (bias_of(image), DataLayout::new(&bounds(image, map, traits, &requests)));
    plan_module(&ModuleInput {
        image,
        bias,
        map,
        traits,
        space: &space_of(image, bias),
        code_region: None,
        patched: &[],
        alone: true,
        layout: &layout,
        far: trapline_record::RemoteAddr(0x2000_0000_0000),
        own_page: trapline_record::RemoteAddr(0x3000_0000_0000),
        regions: u32::MAX,
        latency: None,
        calls: Some(CallInput { functions, callees: &callees, may_trap: true }),
        filters: &[],
        requests: &requests,
    })
    .expect("room")
}

fn all(image: &Image) -> Vec<FunctionIndex> {
    (0..image.functions().len() as u32).map(FunctionIndex).collect()
}

#[test]
fn what_is_foreseen_is_what_is_planned() {
    let (image, traits) = (functions(40), ProcessTraits::usual(2));
    let plain = planned(&image, &map(&image), &traits, false);
    assert_eq!(plain.stats.of(Tactic::Jump), 40, "{:?}", plain.refused);
    let known = map(&image);
    known.plan_speculatively(&image, &all(&image));
    assert_eq!(planned(&image, &known, &traits, false), plain);
    // The speculative plan was used up, so the next plan is made anew.
    known.plan_speculatively(&image, &all(&image)[..3]);
    assert_eq!(planned(&image, &known, &traits, false), plain);
}

#[test]
fn another_batch_or_process_than_was_foreseen_is_planned() {
    let image = functions(40);
    let usual = ProcessTraits::usual(2);
    let strict = ProcessTraits { traps: trapline_plan::TrapsPolicy::MustNotTrap, ..usual };
    for (foreseen, traits, by_trap) in [(40, usual, true), (39, usual, false), (40, strict, false)] {
        let known = map(&image);
        known.plan_speculatively(&image, &all(&image)[..foreseen]);
        let plain = planned(&image, &map(&image), &traits, by_trap);
        assert_eq!(planned(&image, &known, &traits, by_trap), plain, "{foreseen} {traits:?} {by_trap}");
    }
}

#[test]
fn what_depends_on_more_than_the_file_is_not_foreseen() {
    // A function of one byte gets a trap, a pun, or nothing.
    let text = [0x48, 0x83, 0xEC, 0x08, 0x48, 0x83, 0xC4, 0x08, 0xC3, 0xC3, 0x31, 0xC0, 0xC3];
    let image = library(&text, &[(0, 9), (9, 1), (10, 3)]);
    let traits = ProcessTraits::usual(2);
    let plain = planned(&image, &map(&image), &traits, false);
    let known = map(&image);
    known.plan_speculatively(&image, &all(&image));
    assert_eq!(planned(&image, &known, &traits, false), plain);
    assert_ne!(plain.stats.of(Tactic::Jump), 3);
}
