//! Lays out the code of a module's sites: its region, the stubs in it, the words that lead to them, and
//! islands if no region is near.
//!
//! In: sites, with their actions. Out: regions, chunks and patches of a [`ModulePlan`]. Invariants: PLAN-3.
//! Does not: choose words.

use trapline_insn::aarch64::Options;
use trapline_record::RemoteAddr;
use trapline_record::journal::MAX_PATCH;
use trapline_record::trampolines::Trampolines;

use super::code_region::{Islands, for_islands, for_text};
use super::emit::{Setting, patch};
use super::go::{BELOW, Lowered, begins};
use super::island::{self, IslandStub};
use super::refusal::Refusal as WordRefusal;
use super::site::{PatchedSite, PatchedWord as Word, Sites};
use super::stub::{Code as _, Latency, Machine, Rings, Rseq, SIGNATURE, trampoline_code};
use super::supported::may_fault;
use crate::AddressSpace;
use crate::hit::MapsAt;
use crate::input::ModuleInput;
use crate::layout::DataAt;
use crate::machine::ProcessTraits;
use crate::plan::{Chunk, ModulePlan, Patch, Region, Tactic};
use crate::refusal::{PlanError, Refusal};
use crate::request::LatencyInput;
use crate::space::PAGE;
use crate::unwind::TrampolineCode;

/// Alignment of stubs: each begins a cache line.
const LINE: u64 = 64;
/// Bytes left behind the stubs, as on x86-64; nothing is put there.
const SPARE: u64 = PAGE;

/// Lays out region, stubs and patches of all sites. Otherwise returns the request for which a site cannot be
/// laid out, and why.
pub(super) fn lay(
    input: &ModuleInput<'_>,
    sites: &Sites,
    plan: &mut ModulePlan,
) -> Result<Result<(), (u32, Refusal)>, PlanError> {
    (plan.patches, plan.chunks, plan.bytes, plan.pun_regions) = Default::default();
    let (Some(first), Some(last)) = (sites.keys().next(), sites.keys().next_back()) else {
        return Ok(Ok(()));
    };
    let (low, high) = (input.bias.live(*first), input.bias.live(*last));
    let stubs = sites.values().flat_map(|site| &site.actions).map(|one| one.1.room()).sum::<u64>();
    let len = stubs.next_multiple_of(PAGE) + SPARE;
    let none = PlanError::NoSpace { text: low, need: len, tried: 1 };
    let mut space = input.space.clone();
    let (code, islands) = match for_text(&space, (low.0, high.0 + 4), len) {
        Some(code) => (code, Islands::default()),
        None => match islands(input, sites, &mut space) {
            Ok(islands) => (space.find(len).ok_or(none.clone())?, islands),
            Err(without) => return Ok(Err(without)),
        },
    };
    plan.code = Region { addr: code, len };
    plan.spare = Region { addr: code + (len - SPARE), len: SPARE };
    plan.pun_regions = islands.regions;
    space.occupy(code, code + len);
    let data = space.find(input.layout.near).ok_or(none)?;
    plan.data = Region { addr: data, len: input.layout.near };
    let data = input.layout.mapped(data, input.far);
    let decided = (input.filters, input.traits.thread_id);
    let setting = Setting::new(machine(input.traits), (input.layout, data), input.latency, decided);
    let below = if input.traits.go { BELOW } else { 0 };
    let (rings, stacks) = (rings(input, data), input.traits.stacks);
    let maps = MapsAt { own_page: input.own_page.0, ..setting.maps };
    let setting = Setting { rings, stacks, below, maps, bias: input.bias, ..setting };
    let mut next = code;
    for (nth, site) in sites.values().enumerate() {
        let (head, island) = (next, islands.at.get(nth).copied());
        match stubs_of(input, &setting, (site, island), &mut next, plan) {
            Ok(new) => plan.patches.push(patch_of(input, site, (head, island), new)),
            // The other requests there need no more than this one: it is the word that cannot be patched.
            Err(why) => return Ok(Err((site.actions[0].0, why))),
        }
    }
    plan.free = next;
    plan.chunks.sort_unstable_by_key(|chunk| chunk.addr);
    Ok(Ok(()))
}

/// Chooses an island for each site. Otherwise returns the request for which a site has none.
fn islands(
    input: &ModuleInput<'_>,
    sites: &Sites,
    space: &mut AddressSpace,
) -> Result<Islands, (u32, Refusal)> {
    let at: Vec<u64> = sites.keys().map(|at| input.bias.live(*at).0).collect();
    for_islands(space, &at).map_err(|nth| {
        let request = sites.values().nth(nth).map_or(0, |site| site.actions[0].0);
        (request, Refusal::Word { why: WordRefusal::NoRoom { at: at[nth] } })
    })
}

/// The stubs of a site, one behind the other, and the word that leads to the first one.
fn stubs_of(
    input: &ModuleInput<'_>,
    setting: &Setting<'_>,
    (site, island): (&PatchedSite, Option<RemoteAddr>),
    next: &mut RemoteAddr,
    plan: &mut ModulePlan,
) -> Result<u32, Refusal> {
    let start = input.bias.live(site.start).0;
    let at = start + 4 * site.index as u64;
    let word = |why| Refusal::Word { why };
    let incomplete = || Refusal::Incomplete { at: site.at() };
    let head = next.0;
    let lowered = input.traits.go;
    // If there is an island, it leads to the first of them.
    let begin = |at: RemoteAddr, action| {
        let far = island.is_some() && at.0 == head;
        let stub = setting.begin(RemoteAddr(begins(island::begins(at.0, far), lowered)), action)?;
        Some(IslandStub::new(Lowered::new(stub, lowered), far))
    };
    let (last, others) = site.actions.split_last().ok_or_else(incomplete)?;
    for &(_, action) in others {
        let stub = begin(*next, action).ok_or_else(incomplete)?;
        let words = stub.finish(&[], Some(next.0 + action.room()));
        let words = words.map_err(|why| word(WordRefusal::of(why, at, next.0)))?;
        put(plan, next, &words, action.room());
    }
    let place = Word { words: &site.words, start, index: site.index, options: Options::default() };
    let stub = begin(*next, last.1).ok_or_else(incomplete)?;
    let made = patch::patch_with(&place, stub, head, island.map(|island| island.0)).map_err(word)?;
    debug_assert!(4 * made.stub.len() as u64 <= last.1.room(), "a stub of {} words", made.stub.len());
    let len = (4 * made.stub.len() as u64).next_multiple_of(LINE);
    put(plan, next, &made.stub, len);
    if let (patch::Tactic::Island { words }, Some(mut island)) = (&made.tactic, island) {
        put(plan, &mut island, words, island::LEN);
    }
    Ok(made.new)
}

fn put(plan: &mut ModulePlan, next: &mut RemoteAddr, words: &[u32], taken: u64) {
    debug_assert!(4 * words.len() as u64 <= taken, "a stub of {} words", words.len());
    let (off, len) = (plan.bytes.len() as u32, 4 * words.len() as u32);
    plan.bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    plan.chunks.push(Chunk { addr: *next, off, len });
    *next = *next + taken;
}

fn patch_of(
    input: &ModuleInput<'_>,
    site: &PatchedSite,
    (head, island): (RemoteAddr, Option<RemoteAddr>),
    new: u32,
) -> Patch {
    let bytes = |word: u32| {
        let mut bytes = [0; MAX_PATCH];
        bytes[..4].copy_from_slice(&word.to_le_bytes());
        bytes
    };
    let request = site.actions.first().map_or(0, |one| one.0);
    Patch {
        probe: input.requests.get(request as usize).map_or(0, |request| request.probe),
        request,
        role: site.role,
        tactic: if island.is_some() { Tactic::Short } else { Tactic::Jump },
        addr: input.bias.live(site.at()),
        len: 4,
        relies: 4,
        old: bytes(site.words.get(site.index).copied().unwrap_or(0)),
        new: bytes(new),
        head: island.unwrap_or(head),
        crosses_line: false,
        starts: 0,
        faults: may_fault(site.words.get(site.index).copied().unwrap_or(0)),
        faults_before: false,
    }
}

/// The code of a process' return trampolines.
pub(crate) fn trampolines_for(
    traits: &ProcessTraits,
    trampolines: Trampolines,
    input: &LatencyInput,
) -> Option<TrampolineCode> {
    let latency = Latency {
        area: 0,
        functions: 0,
        stamps: 0,
        shape: input.shape,
        missed: 0,
        min_ticks: input.min_ticks,
        buckets: input.buckets,
        outermost: false,
        trampolines: Some(trampolines),
    };
    // No action on this processor lets a return trampoline lead on.
    (!input.leads_on).then(|| trampoline_code(&machine(traits), &latency)).flatten()
}

fn machine(traits: &ProcessTraits) -> Machine {
    // An abort handler behind another signature would end the program.
    let rseq = traits.rseq.filter(|rseq| rseq.signature == SIGNATURE);
    Machine { rseq: rseq.map(|rseq| Rseq { offset: rseq.offset }), lse: traits.lse, lines: traits.lines }
}

/// Where records go, if records are requested.
fn rings(input: &ModuleInput<'_>, data: DataAt) -> Option<Rings> {
    let (area, traits) = (input.layout.rings, input.traits);
    let rings = Rings { area, base: data.of(area.off), id: traits.thread_id, stacks: traits.stacks };
    (!area.is_empty()).then_some(rings)
}
