//! Plans over arm64 functions that are made for the purpose: which word, which stub, where, and what is
//! refused.

mod calls;
#[path = "../common/mod.rs"]
mod common;
mod decided;
mod durations;
mod return_addresses;
mod words;

use common::elf::library_for;
use trapline_image::{FunctionIndex, Image};
use trapline_insn::aarch64::encode;
use trapline_plan::{
    Action, ActionRequest, AddressSpace, Buckets, CodeMap, DataLayout, LatencyInput, ModuleInput, ModulePlan,
    ProcessTraits, RseqTraits, Scope, bounds, plan_module,
};
use trapline_record::addr::Bias;
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
        patched: &[],
        alone: true,
        layout: &layout,
        far: trapline_record::RemoteAddr(0x2000_0000_0000),
        own_page: trapline_record::RemoteAddr(0x3000_0000_0000),
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
