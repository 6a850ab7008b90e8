//! Where a module's generated code and its data may lie.
//!
//! In: what is mapped, what is requested. Out: a displacement K, of which all bytes trap, and the module space that it
//! leads to. Invariant: SPACE-2 module, data alias and code region lie within 2 GiB of each other, end to end.
//!
//! ```text
//!   K                 CC CC k2 k3, lowest byte first; k2 and k3 are of TRAPPING
//!   a jump's target   site + JUMP + K
//!   data              ends where the mirrored range begins, or lies elsewhere if both are too long for one free range
//!   mirrored range    text.start + JUMP + K, rounded down to a page .. text.end + JUMP + K, rounded up, + PAGE
//!   arena             behind it
//! ```

use super::jump::{REACH, TRAPPING};
use super::room::{GATE, SPARE, arena_per_site, stubs};
use crate::bounds::{bounds, has_exits};
use crate::input::ModuleInput;
use crate::plan::Region;
use crate::refusal::PlanError;
use crate::request::Action;
use crate::space::{AddressSpace, CodeRegion, HEAP_GROWTH, PAGE, ROOMY_HEAP};
use trapline_image::Image;
use trapline_record::addr::Bias;
use trapline_record::{RemoteAddr, Svma};

type Span = (RemoteAddr, RemoteAddr);

/// What a module needs room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Need {
    /// Live range of the whole module, which displaced instructions may refer to.
    pub(crate) module: (RemoteAddr, RemoteAddr),
    /// Live range of the text that may be patched.
    pub(crate) text: (RemoteAddr, RemoteAddr),
    /// Bytes of the data alias.
    pub(crate) data: u64,
    /// Bytes behind the mirrored range.
    pub(crate) arena: u64,
}

/// A module's space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ModuleSpace {
    pub(crate) k: i32,
    pub(crate) data: Region,
    pub(crate) code: Region,
    /// First byte behind the mirrored range.
    pub(crate) arena: RemoteAddr,
}

impl ModuleSpace {
    /// From the first byte of data and code to the last.
    pub(crate) fn span(&self) -> Span {
        (self.data.addr.min(self.code.addr), self.data.end().max(self.code.end()))
    }
}

impl CodeRegion {
    pub(crate) fn of(place: ModuleSpace) -> Self {
        let ModuleSpace { k, data, code, arena } = place;
        Self { k, data, code, mirrored_end: arena, free: arena }
    }
    pub(crate) const fn place(&self) -> ModuleSpace {
        ModuleSpace { k: self.k, data: self.data, code: self.code, arena: self.mirrored_end }
    }
    /// A space anywhere, for `data` and `stubs` bytes. No jump leads there, but traps do.
    #[must_use]
    pub fn anywhere(space: &AddressSpace, data: u64, stubs: u64) -> Option<Self> {
        let at = space.find(data + stubs)?;
        let (data, code) = (Region { addr: at, len: data }, Region { addr: at + data, len: stubs });
        Some(Self { k: displacements().next()?, data, code, mirrored_end: code.addr, free: code.addr })
    }
}

/// The displacements to try: all bytes int3 first, then as many as possible; of these the small distances come first. Near
/// the module, more punned jumps find a target within reach of both.
fn displacements() -> impl Iterator<Item = i32> {
    let pairs = TRAPPING.iter().flat_map(|&k2| TRAPPING.iter().map(move |&k3| (k2, k3)));
    let mut all: Vec<[u8; 4]> = pairs.map(|(k2, k3)| [0xCC, 0xCC, k2, k3]).collect();
    let others = |k: &[u8; 4]| k.iter().filter(|byte| **byte != 0xCC).count();
    all.sort_by_key(|k| (others(k), i32::from_le_bytes(*k).unsigned_abs()));
    all.into_iter().map(i32::from_le_bytes)
}

/// How often the arena is halved, if there is no room for all of it. The bound is for the longest stubs of all sites;
/// most need a tenth of that. What finds no room in the end is refused, site by site.
const HALVINGS: u32 = 5;
/// Bytes of the smallest arena: what a batch needs itself, and a few stubs.
const LEAST_ARENA: u64 = GATE + SPARE + 4 * PAGE;

/// Chooses K and the space behind it, with as much of the arena as there is room for. The heap keeps more room than it needs,
/// unless nothing else is free. Of a large module, several plans may follow each other in one process, each while the code
/// of those before is still there; then the data lies elsewhere, before the arena is halved.
///
/// # Errors
/// [`PlanError::NoSpace`] when no displacement leads to free memory.
pub(crate) fn choose(space: &AddressSpace, need: &Need) -> Result<ModuleSpace, PlanError> {
    let half = |nth: u32| (need.arena >> nth).next_multiple_of(PAGE).max(LEAST_ARENA.min(need.arena));
    for arena in (0..=HALVINGS).map(half) {
        let need = &Need { arena, ..*need };
        for growth in [ROOMY_HEAP, HEAP_GROWTH] {
            if let Some(place) = displacements().find_map(|k| place_at((space, growth), need, k)) {
                return Ok(place);
            }
        }
        if let Some(place) = displacements().find_map(|k| place_apart(space, need, k)) {
            return Ok(place);
        }
    }
    let len = need.data + (need.text.1 - need.text.0) + half(HALVINGS);
    Err(PlanError::NoSpace { text: need.text.0, need: len, tried: displacements().count() as u32 })
}

fn place_at((space, growth): (&AddressSpace, u64), need: &Need, k: i32) -> Option<ModuleSpace> {
    let shift = i64::from(k) + 5;
    let low = need.text.0.0.checked_add_signed(shift)? & !(PAGE - 1);
    let arena = need.text.1.0.checked_add_signed(shift)?.next_multiple_of(PAGE) + PAGE;
    let end = arena.checked_add(need.arena)?;
    let data = low.checked_sub(need.data)?;
    if !space.is_free_beyond(growth, (RemoteAddr(data), RemoteAddr(end))) {
        return None;
    }
    let (first, last) = (data.min(need.module.0.0), end.max(need.module.1.0));
    (last - first <= REACH).then(|| ModuleSpace {
        k,
        data: Region { addr: RemoteAddr(data), len: need.data },
        code: Region { addr: RemoteAddr(low), len: end - low },
        arena: RemoteAddr(arena),
    })
}

/// The same with the data in the first free range that is within reach.
fn place_apart(space: &AddressSpace, need: &Need, k: i32) -> Option<ModuleSpace> {
    let place = place_at((space, HEAP_GROWTH), &Need { data: 0, ..*need }, k)?;
    let (first, last) = (place.code.addr.min(need.module.0), place.code.end().max(need.module.1));
    let own = (place.code.addr, place.code.end());
    let gaps = space.gaps(last.0.saturating_sub(REACH), first.0.saturating_add(REACH), own);
    let fits = |&(start, end): &(u64, u64)| {
        let at = start.next_multiple_of(PAGE);
        (at.checked_add(need.data)? <= end).then_some(RemoteAddr(at))
    };
    let addr = gaps.iter().find_map(fits)?;
    Some(ModuleSpace { data: Region { addr, len: need.data }, ..place })
}

/// Chooses a space for a module's whole text, with `data` bytes for its segment, and `stubs` bytes for code.
///
/// # Errors
/// [`PlanError::NoSpace`], [`PlanError::NoText`].
pub fn find_code_region(
    image: &Image,
    bias: Bias,
    space: &AddressSpace,
    data: u64,
    stubs: u64,
) -> Result<CodeRegion, PlanError> {
    let text = image.text_ranges().iter().fold(None, |all: Option<(Svma, Svma)>, &(start, len)| {
        let (low, high) = all.unwrap_or((start, start));
        Some((low.min(start), high.max(start + len)))
    });
    let text = text.ok_or(PlanError::NoText)?;
    let need = Need { module: module(image, bias)?, text: around(text, bias), data, arena: stubs };
    choose(space, &need).map(CodeRegion::of)
}

/// What the module needs room for. The mirrored range covers the requested functions only.
pub(super) fn need(input: &ModuleInput<'_>) -> Result<Need, PlanError> {
    let module = module(input.image, input.bias)?;
    let low = input.bias.stated(module.0);
    let text = requested_text(input).unwrap_or((low, low + PAGE));
    let counts = bounds(input.image, input.map, input.traits, input.requests);
    let arena =
        stubs(&counts, arena_per_site(input)) + if input.calls.is_some() { GATE + PAGE } else { PAGE };
    Ok(Need { module, text: around(text, input.bias), data: input.layout.near, arena })
}

/// Range of the text that the requests are about, if there is any.
fn requested_text(input: &ModuleInput<'_>) -> Option<(Svma, Svma)> {
    let mut text = (Svma(u64::MAX), Svma(0));
    let mut cover = |start: Svma, end: Svma| text = (text.0.min(start), text.1.max(end));
    for request in input.requests {
        if let Action::CountAt(at)
        | Action::CallAt(at)
        | Action::HoldAt(at, _)
        | Action::RecordAt(at, _)
        | Action::RecordMark(at, _)
        | Action::RunAt(at) = request.action
        {
            cover(at, at + 16);
        }
        let Some(function) = request.function.map(|f| input.image.function(f)) else { continue };
        cover(function.start, function.end());
        function.cold.iter().for_each(|&(start, len)| cover(start, start + len));
    }
    if input.requests.iter().any(|w| has_exits(w.action)) {
        input.image.fragments().iter().for_each(|&(start, len)| cover(start, start + len));
    }
    (text.0 < text.1).then_some(text)
}

/// Range of live addresses of a whole module.
fn module(image: &Image, bias: Bias) -> Result<Span, PlanError> {
    let loads = image.loads();
    let low = loads.iter().map(|s| s.svma).min().ok_or(PlanError::NoText)?;
    let high = loads.iter().map(|s| s.svma + s.memsz).max().ok_or(PlanError::NoText)?;
    Ok((bias.live(low), bias.live(high)))
}

/// Range of live addresses of a text, and what lies close. An island may lie this far off, and padding behind
/// the last function is covered too.
fn around(text: (Svma, Svma), bias: Bias) -> Span {
    const NEAR: u64 = 256;
    (bias.live(text.0 - NEAR.min(text.0.0)), bias.live(text.1 + NEAR))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::HEAP_GROWTH;

    fn need(text: u64) -> Need {
        let text = (RemoteAddr(text), RemoteAddr(text + 0x10_0000));
        Need { module: text, text, data: 0x4000, arena: 0x10_0000 }
    }

    #[test]
    fn near_displacements_come_first() {
        let all: Vec<i32> = super::displacements().collect();
        assert_eq!((all.len(), all[0]), (TRAPPING.len() * TRAPPING.len(), i32::from_le_bytes([0xCC; 4])));
        // Those with one byte of another kind, then those with two.
        let one = 2 * (TRAPPING.len() - 1);
        for part in [&all[1..=one], &all[one + 1..]] {
            assert!(part.is_sorted_by_key(|k| k.unsigned_abs()), "{part:x?}");
        }
        assert!(all[1].unsigned_abs() < 128 << 20, "{:x}", all[1]);
    }

    #[test]
    fn every_displacement_traps_everywhere() {
        let all: Vec<i32> = displacements().collect();
        assert_eq!(all.len(), 400);
        assert_eq!(all[0].to_le_bytes(), [0xCC; 4]);
        assert!(all.iter().all(|k| k.to_le_bytes().iter().all(|b| TRAPPING.contains(b))));
    }

    #[test]
    fn prefers_int3_and_keeps_off_what_is_there() {
        let mut space = AddressSpace::default();
        let text = 0x7f00_0000_0000;
        let first = choose(&space, &need(text)).unwrap();
        assert_eq!(first.k.to_le_bytes(), [0xCC; 4]);
        assert_eq!(first.data.end(), first.code.addr);
        space.occupy(first.code.addr, first.code.addr + 1);
        let second = choose(&space, &need(text)).unwrap();
        assert_ne!(second.k, first.k);
        assert!(space.is_free(second.data.addr, second.code.end()));
    }

    #[test]
    fn the_arena_is_as_large_as_the_room_between_mappings() {
        let (text, every) = (0x40_0000, 0x80_0000);
        let page = |nth: u64| (RemoteAddr(nth * every), RemoteAddr(nth * every + PAGE));
        let space = AddressSpace { occupied: (1..256).map(page).collect(), heap_end: None };
        let need = Need { arena: 0x400_0000, ..need(text) };
        let place = choose(&space, &need).unwrap();
        assert!(space.is_free(place.data.addr, place.code.end()));
        let arena = place.code.end() - place.arena;
        // The next larger one would be as long as what is between two mappings.
        assert_eq!(arena, 0x40_0000, "{arena:#x}");
    }

    #[test]
    fn data_lies_elsewhere_if_no_range_holds_all() {
        let (text, every) = (0x40_0000, 0x80_0000);
        let page = |nth: u64| (RemoteAddr(nth * every), RemoteAddr(nth * every + PAGE));
        let space = AddressSpace { occupied: (1..256).map(page).collect(), heap_end: None };
        let need = Need { data: 0x50_0000, arena: 0x30_0000, ..need(text) };
        let place = choose(&space, &need).unwrap();
        assert_eq!((place.code.end() - place.arena, place.data.len), (need.arena, need.data));
        for region in [place.data, place.code] {
            assert!(space.is_free(region.addr, region.end()), "{region:x?}");
        }
        assert!(place.data.end() <= place.code.addr || place.code.end() <= place.data.addr, "{place:x?}");
        let last = place.data.end().max(place.code.end());
        assert!(last.0 - text <= REACH, "{place:x?}");
    }

    #[test]
    fn a_program_at_4_mib_goes_above_its_heap_or_nowhere() {
        let space = AddressSpace {
            occupied: vec![(RemoteAddr(0x40_0000), RemoteAddr(0x80_0000))],
            heap_end: Some(RemoteAddr(0x6666_6666)),
        };
        let place = choose(&space, &need(0x40_0000)).unwrap();
        assert!(place.k > 0);
        assert!(!(place.data.addr.0 < 0x6666_6666 + HEAP_GROWTH && place.code.end().0 > 0x6666_6666));
        // A small heap keeps far more than it needs now.
        let small = AddressSpace { heap_end: Some(RemoteAddr(0x90_0000)), ..space };
        assert!(choose(&small, &need(0x40_0000)).unwrap().data.addr.0 >= 0x90_0000 + ROOMY_HEAP);
        let full = AddressSpace { occupied: vec![(RemoteAddr(0), RemoteAddr(1 << 47))], heap_end: None };
        assert!(matches!(choose(&full, &need(0x40_0000)), Err(PlanError::NoSpace { tried: 400, .. })));
    }
}
