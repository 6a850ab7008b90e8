//! Checks a plan from outside: with iced-x86, without the planner's own types for instructions.
#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod elf;

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};
use std::collections::HashMap;
use std::path::Path;
use trapline_image::{Bytes, FunctionIndex, Image, ImageKind, NoDebugFiles};
use trapline_plan::{
    Action, ActionRequest, AddressSpace, Buckets, CodeMap, DataLayout, LatencyInput, ModuleInput, ModulePlan,
    Patch, PatchRole, ProcessTraits, Scope, Tactic, bounds, plan_module,
};
use trapline_record::addr::Bias;
use trapline_record::trampolines::Trampolines;
use trapline_record::{RemoteAddr, Svma};

/// Files that most machines have; missing ones are left out.
pub(crate) fn files() -> Vec<(String, Image)> {
    let libs = "/usr/lib/x86_64-linux-gnu";
    let mut paths: Vec<String> = ["libc.so.6", "libstdc++.so.6", "libcrypto.so.3", "libm.so.6"]
        .map(|l| format!("{libs}/{l}"))
        .to_vec();
    paths.extend(["/usr/bin/git", "/usr/bin/python3.11", "/usr/local/go/bin/gofmt"].map(str::to_owned));
    paths.extend(std::env::var("CARGO").ok());
    paths.iter().filter(|p| Path::new(p).exists()).map(|p| (p.clone(), image(p))).collect()
}

pub(crate) fn image(path: &str) -> Image {
    Image::parse(Bytes::from(std::fs::read(path).unwrap()), &mut NoDebugFiles).unwrap()
}

pub(crate) fn every(image: &Image, role: Action) -> Vec<ActionRequest> {
    let latency = |n| role.is_timed().then_some(n);
    (0..image.functions().len() as u32)
        .map(|n| ActionRequest {
            probe: n,
            latency: latency(n),
            function: Some(FunctionIndex(n)),
            action: role,
        })
        .collect()
}

pub(crate) fn bias_of(image: &Image) -> Bias {
    Bias(if image.kind() == ImageKind::Exec { 0 } else { 0x7f12_3456_7000 })
}

pub(crate) fn space_of(image: &Image, bias: Bias) -> AddressSpace {
    let mut space = AddressSpace::default();
    for load in image.loads() {
        let end = (load.svma.0 + load.memsz).next_multiple_of(4096);
        space.occupy(bias.live(Svma(load.svma.0 & !4095)), bias.live(Svma(end)));
    }
    space
}

pub(crate) fn traits_of(image: &Image) -> ProcessTraits {
    ProcessTraits { go: image.is_go(), ..ProcessTraits::usual(2) }
}

/// Return trampolines that belong to no process.
const TRAMPOLINES: Trampolines = Trampolines { code: 0x1100_0000_0000, table: 0x1200_0000_0000, count: 64 };

pub(crate) fn plan(
    image: &Image,
    map: &CodeMap,
    traits: &ProcessTraits,
    requests: &[ActionRequest],
) -> ModulePlan {
    plan_beside(image, map, traits, requests, &[])
}

/// The same beside earlier patches, which need these ranges.
pub(crate) fn plan_beside(
    image: &Image,
    map: &CodeMap,
    traits: &ProcessTraits,
    requests: &[ActionRequest],
    patched: &[(Svma, Svma)],
) -> ModulePlan {
    plan_by(image, map, traits, requests, (patched, false))
}

/// The same, by one thread if `alone`.
pub(crate) fn plan_by(
    image: &Image,
    map: &CodeMap,
    traits: &ProcessTraits,
    requests: &[ActionRequest],
    (patched, alone): (&[(Svma, Svma)], bool),
) -> ModulePlan {
    let bias = bias_of(image);
    let space = space_of(image, bias);
    let layout = DataLayout::new(&bounds(image, map, traits, requests));
    let latency = LatencyInput {
        stamps: RemoteAddr(0x1000_0000_0000),
        shape: Default::default(),
        min_ticks: 0,
        buckets: Buckets::Log,
        outermost: false,
        go_g: image.is_go().then_some(-8),
        or_trampolines: false,
        by_trampolines: false,
        leads_on: false,
        trampolines: Some(TRAMPOLINES),
    };
    let input = ModuleInput {
        image,
        bias,
        map,
        traits,
        space: &space,
        code_region: None,
        patched,
        alone,
        layout: &layout,
        far: trapline_record::RemoteAddr(0x2000_0000_0000),
        own_page: trapline_record::RemoteAddr(0x3000_0000_0000),
        regions: u32::MAX,
        latency: Some(latency),
        calls: None,
        filters: &[],
        requests,
    };
    let plan = plan_module(&input).unwrap();
    assert!(plan.patches.len() <= layout.journal_cap as usize, "journal bound");
    assert!(plan.guards.len() <= layout.guard_cap as usize, "guard bound");
    check(image, bias, &space, &plan);
    plan
}

pub(crate) fn map(image: &Image) -> CodeMap {
    CodeMap::build(image, Scope::All, 2)
}

const TRAPS: [u8; 20] = [
    0xCC, 0x60, 0x61, 0x3F, 0x37, 0x2F, 0x27, 0x1F, 0x1E, 0x17, 0x16, 0x0E, 0x07, 0x06, 0xCE, 0xD4, 0xD6,
    0xEA, 0x9A, 0x82,
];

/// Checks everything that a plan promises about itself.
pub(crate) fn check(image: &Image, bias: Bias, space: &AddressSpace, plan: &ModulePlan) {
    check_places(space, plan);
    let mut before = RemoteAddr(0);
    for patch in &plan.patches {
        assert!(patch.addr >= before, "patches overlap at {}", patch.addr);
        before = patch.addr + u64::from(patch.len);
        let file = image.text(bias.stated(patch.addr), u64::from(patch.len)).unwrap();
        assert_eq!(&patch.old[..usize::from(patch.len)], file);
        assert_eq!(patch.crosses_line, patch.addr.0 / 64 != (before.0 - 1) / 64);
        check_way(image, bias, plan, patch);
        check_boundaries(image, bias, plan, patch);
    }
    let patched = |at: RemoteAddr| {
        plan.patches
            .iter()
            .any(|p| p.addr < at && at < p.addr + u64::from(p.len) && p.role != PatchRole::Island)
    };
    for guard in plan.guards.iter().step_by(1 + plan.guards.len() / 500) {
        assert!(patched(guard.at), "guard at {} is in no window", guard.at);
    }
    assert!(plan.guards.is_sorted_by(|a, b| a.at < b.at));
}

fn check_places(space: &AddressSpace, plan: &ModulePlan) {
    assert_eq!(plan.data.end(), plan.code.addr);
    assert!(space.is_free(plan.data.addr, plan.code.end()));
    assert_eq!(plan.code.end(), plan.spare.end());
    assert!(plan.spare.len >= 4096);
    for region in &plan.pun_regions {
        assert!(space.is_free(region.addr, region.end()));
        assert!(region.end() <= plan.data.addr || plan.code.end() <= region.addr);
    }
    let mut before = RemoteAddr(0);
    for chunk in &plan.chunks {
        assert!(chunk.addr >= before, "chunks overlap at {}", chunk.addr);
        before = chunk.addr + u64::from(chunk.len);
        let inside = |r: &trapline_plan::Region| r.addr <= chunk.addr && before <= r.end();
        let main = inside(&plan.code) && before <= plan.spare.addr;
        assert!(main || plan.pun_regions.iter().any(inside), "chunk at {} outside", chunk.addr);
    }
}

fn live_bytes(image: &Image, bias: Bias, plan: &ModulePlan, at: RemoteAddr) -> [u8; 5] {
    let mut bytes: [u8; 5] = image.text(bias.stated(at), 5).unwrap().try_into().unwrap();
    for patch in &plan.patches {
        for n in 0..u64::from(patch.len) {
            let off = (patch.addr + n).0.wrapping_sub(at.0);
            if off < 5 {
                bytes[off as usize] = patch.new[n as usize];
            }
        }
    }
    bytes
}

/// Follows the patch as a processor would, to the stub's start.
fn check_way(image: &Image, bias: Bias, plan: &ModulePlan, patch: &Patch) {
    let near = plan.patches.binary_search_by_key(&patch.addr, |p| p.addr).unwrap();
    let around = &plan.patches[near.saturating_sub(48)..(near + 48).min(plan.patches.len())];
    let part = ModulePlan { patches: around.to_vec(), ..ModulePlan::default() };
    let mut at = patch.addr;
    for _ in 0..4 {
        if at == patch.head {
            return;
        }
        let code = if plan.code.contains(at) || plan.pun_regions.iter().any(|r| r.contains(at)) {
            let i =
                plan.chunks.binary_search_by_key(&at, |c| c.addr).expect("a jump leads to a chunk's start");
            plan.chunk_bytes(&plan.chunks[i])[..5].to_vec()
        } else {
            live_bytes(image, bias, &part, at).to_vec()
        };
        let insn = decode(&code, at.0);
        assert!(insn.flow_control() == FlowControl::UnconditionalBranch, "{insn:?} at {at}");
        at = RemoteAddr(insn.near_branch_target());
    }
    panic!("{} does not lead to its stub", patch.addr);
}

pub(crate) fn decode(bytes: &[u8], at: u64) -> Instruction {
    Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode()
}

/// Every instruction that starts inside the changed bytes is guarded, traps, and resumes at its copy.
fn check_boundaries(image: &Image, bias: Bias, plan: &ModulePlan, patch: &Patch) {
    if patch.role == PatchRole::Island {
        return;
    }
    let end = patch.addr + u64::from(patch.len);
    let stated = bias.stated(patch.addr);
    let bytes = (5..=40).rev().find_map(|n| image.text(stated, n)).unwrap();
    let mut decoder = Decoder::with_ip(64, bytes, patch.addr.0, DecoderOptions::NONE);
    let mut left = false;
    let mut inside = 0;
    loop {
        let insn = decoder.decode();
        if insn.ip() >= end.0 || insn.is_invalid() || (left && insn.mnemonic() != Mnemonic::Nop) {
            break;
        }
        if insn.ip() > patch.addr.0 {
            inside |= u8::from(!left) << (insn.ip() - patch.addr.0);
            let at = RemoteAddr(insn.ip());
            let byte = patch.new[(at - patch.addr) as usize];
            assert!(TRAPS.contains(&byte), "{byte:#x} at {at} does not trap");
            // Padding that runs into int3 would have trapped without us, too.
            let resume = plan.resume(at);
            assert!(resume.is_some() || left, "no guard at {at}");
            resume.into_iter().for_each(|resume| check_copy(plan, &insn, resume));
        }
        left |= matches!(
            insn.flow_control(),
            FlowControl::Return | FlowControl::UnconditionalBranch | FlowControl::IndirectBranch
        );
    }
    assert_eq!(patch.starts, inside, "{}", patch.addr);
}

/// At `resume` stands the same instruction, unless a count comes before it.
fn check_copy(plan: &ModulePlan, insn: &Instruction, resume: RemoteAddr) {
    let Some(chunk) = chunk_with(plan, resume) else {
        assert_eq!(insn.mnemonic(), Mnemonic::Nop, "{insn:?} resumes outside at {resume}");
        return;
    };
    let off = (resume - plan.chunks[chunk].addr) as usize;
    let copy = decode(&plan.chunk_bytes(&plan.chunks[chunk])[off..], resume.0);
    assert!(!copy.is_invalid());
    // A counted nop resumes before its count.
    let same = copy.mnemonic() == insn.mnemonic() || insn.mnemonic() == Mnemonic::Nop;
    let exit = matches!(
        insn.flow_control(),
        FlowControl::Return
            | FlowControl::UnconditionalBranch
            | FlowControl::ConditionalBranch
            | FlowControl::IndirectBranch
    );
    let call = matches!(insn.flow_control(), FlowControl::Call | FlowControl::IndirectCall)
        && matches!(copy.code(), Code::Lea_r64_m | Code::Pushq_imm32);
    assert!(same || exit || call, "{insn:?} became {copy:?}");
}

fn chunk_with(plan: &ModulePlan, at: RemoteAddr) -> Option<usize> {
    let i = plan.chunks.partition_point(|c| c.addr <= at).checked_sub(1)?;
    (at - plan.chunks[i].addr < u64::from(plan.chunks[i].len)).then_some(i)
}

/// For each request, the least preferred tactic among its sites.
pub(crate) fn worst(plan: &ModulePlan) -> HashMap<u32, Tactic> {
    let mut all = HashMap::new();
    for patch in &plan.patches {
        let worst = all.entry(patch.request).or_insert(patch.tactic);
        *worst = (*worst).max(patch.tactic);
    }
    all
}
