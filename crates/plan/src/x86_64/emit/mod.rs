//! Turns sites into code: stubs at their mirrored addresses or in the arena, patches, guards.
//!
//! In: sites, where the module's space is. Out: chunks, patches and guards of a [`ModulePlan`]. Invariant:
//! EMIT-1 a chunk ends before the next one begins; a stub too long for its place in the mirrored range is
//! reached from there by one jump.
//!
//! Where many sites are patched, what costs most is that their code does not fit into the caches. So the parts of
//! a stub that hits do not run (abort handlers, descriptors, paths of threads without an area) lie apart:
//!
//! ```text
//!   mirrored range   │ stub │ · │ stub │ · · · │ jump ▸ arena │ · │ stub │
//!   arena            │ stub │ stub │ … one block │ rest │ rest │ … one block │ shared │ stub │ …
//! ```
//!
//! Some code is the same at all sites but for a number. It is laid out once, before the first stub that leads to it
//! (`shared`).

mod actions;
mod blocks;
mod build;
mod guards;
mod patch;
mod setting;
mod shared;

use self::blocks::{Arena, Lane};
use self::shared::Shared;
use super::action::{PlacedAction, SiteAction};
use super::jump::{JUMP, jump};
use super::site::{PatchedSite, Reach};
use super::stub::UnfinishedStub;
use crate::plan::{Chunk, Delivery, Guard, ModulePlan, Original};
use crate::refusal::Refusal;
use core::mem::{Discriminant, discriminant};
pub(super) use setting::Setting;
use trapline_insn::x86_64::{Insn, Relocated};
use trapline_record::RemoteAddr;

/// Stubs go to the arena right away if the place has fewer bytes than this.
const LEAST_STUB: u64 = 128;
/// The same for stubs without what lies apart.
const LEAST_HIT_PATH: u64 = 72;
/// The same for stubs that lead to shared code.
const LEAST_SHARED: u64 = 24;
/// Bytes between the starts of two stubs in the arena; a cache line would be 64.
const ALIGN: u64 = 16;

type StubKind = (Option<Discriminant<SiteAction>>, bool);

/// Lays out code.
#[derive(Debug)]
pub(crate) struct Emitter<'a, 'p> {
    set: &'a Setting<'a>,
    plan: &'p mut ModulePlan,
    arena: Arena,
    /// Stubs in the arena, and what lies apart from stubs; the latter's bytes are kept until the end.
    stubs: Lane,
    rests: Lane,
    rest_bytes: Vec<u8>,
    rest_chunks: Vec<Chunk>,
    /// Whether parts of stubs lie apart.
    is_dense: bool,
    /// Bytes of the shortest stub so far, for each kind of first action and whether it leads to shared code. A place
    /// with fewer bytes is not tried: most stubs would have to be built again, in the arena.
    shortest: Vec<(StubKind, u64)>,
    /// Chunks in the arena, and the originals and deliveries of copies there. Each list is in order by itself; one list of
    /// all stubs would not be.
    behind: Vec<Chunk>,
    originals_behind: Vec<Original>,
    deliveries_behind: Vec<Delivery>,
    /// Where the stub under construction begins in the plan's bytes. It extends to their end.
    start: usize,
    /// Where in these bytes begins what lies apart; their end if nothing does.
    split: usize,
    pending: Vec<UnfinishedStub<'a>>,
    /// Code that sites share, and where it lies.
    shared: Vec<(Shared, u64)>,
    /// Which of `pending` arm a return trampoline that leads on to a record or aggregation.
    returning: Vec<(usize, PlacedAction)>,
    guards: Vec<Guard>,
    fixups: Vec<Guard>,
    deliveries: Vec<Delivery>,
    originals: Vec<Original>,
    insns: Vec<Insn>,
    moved: Relocated,
}

impl<'a, 'p> Emitter<'a, 'p> {
    pub(crate) fn new(
        set: &'a Setting<'a>,
        plan: &'p mut ModulePlan,
        arena: (RemoteAddr, RemoteAddr),
        is_dense: bool,
    ) -> Self {
        let mut arena = Arena::new(arena);
        let (rests, stubs) = (arena.lane(), if is_dense { arena.lane() } else { arena.whole() });
        Self {
            set,
            start: plan.bytes.len(),
            split: plan.bytes.len(),
            plan,
            arena,
            stubs,
            rests,
            rest_bytes: Vec::new(),
            rest_chunks: Vec::new(),
            is_dense,
            shortest: Vec::new(),
            behind: Vec::new(),
            originals_behind: Vec::new(),
            deliveries_behind: Vec::new(),
            pending: Vec::new(),
            shared: Vec::new(),
            returning: Vec::new(),
            guards: Vec::new(),
            fixups: Vec::new(),
            deliveries: Vec::new(),
            originals: Vec::new(),
            insns: Vec::new(),
            moved: Relocated::default(),
        }
    }

    /// Puts the chunks in order. Returns the first free address of the arena.
    pub(crate) fn finish(mut self) -> RemoteAddr {
        self.plan.bytes.truncate(self.start);
        let off = self.plan.add_bytes(self.rest_bytes);
        self.plan.chunks.append(&mut self.behind);
        self.plan.chunks.extend(self.rest_chunks.iter().map(|one| Chunk { off: one.off + off, ..*one }));
        self.plan.originals.append(&mut self.originals_behind);
        self.plan.deliveries.append(&mut self.deliveries_behind);
        self.arena.first_free(&self.stubs)
    }

    /// Lays out one site's stub, then its patches. A thread enters at `stub_start`; `room` is the number of
    /// bytes from there to the next site's place.
    ///
    /// # Errors
    /// The refusal, if an instruction cannot be moved after all. Nothing is planned then.
    pub(crate) fn site(
        &mut self,
        site: &PatchedSite,
        stub_start: RemoteAddr,
        room: u64,
    ) -> Result<(), Refusal> {
        self.share(site)?;
        let head = self.place(site, stub_start, room)?;
        self.keep_rest();
        self.chunk(head);
        if head != stub_start && site.reach != Reach::Trap {
            self.plan.bytes.extend_from_slice(&jump(stub_start, head));
            self.chunk(stub_start);
        }
        if let Reach::Pun(pun) = site.reach {
            for target in pun.others() {
                self.plan.bytes.extend_from_slice(&jump(target, head));
                self.chunk(target);
            }
        }
        if self.set.gate.is_some() {
            self.calls(site);
        }
        let (originals, deliveries) = match self.is_behind(head) {
            true => (&mut self.originals_behind, &mut self.deliveries_behind),
            false => (&mut self.plan.originals, &mut self.plan.deliveries),
        };
        originals.append(&mut self.originals);
        deliveries.append(&mut self.deliveries);
        self.plan.fixups.append(&mut self.fixups);
        self.keep_guards(site);
        self.padding_guards(site);
        self.astray_guard(site, head);
        self.patch(site, head);
        Ok(())
    }

    /// Builds the stub where it fits: at the address where threads enter, or in the arena. Returns where that is.
    fn place(
        &mut self,
        site: &PatchedSite,
        stub_start: RemoteAddr,
        room: u64,
    ) -> Result<RemoteAddr, Refusal> {
        /// More than an address may change the length of code by its alignment.
        const ALIGNED: u64 = 64;
        let is_short = site.actions.iter().all(|placed| self.is_short(site, placed));
        let least = match is_short {
            true => LEAST_SHARED,
            false if self.is_dense => LEAST_HIT_PATH,
            false => LEAST_STUB,
        };
        let kind = (site.actions.first().map(|placed| discriminant(&placed.action)), is_short);
        let known = self.shortest.iter().position(|one| one.0 == kind);
        let at = known.unwrap_or(self.shortest.len());
        if known.is_none() {
            self.shortest.push((kind, u64::MAX));
        }
        let least = known.map_or(least, |at| least.max(self.shortest[at].1));
        let mut direct = room >= least && !matches!(site.reach, Reach::Pun(..) | Reach::Trap);
        loop {
            let head = if direct { stub_start } else { self.stubs.next(ALIGN) };
            self.build(site, head)?;
            let (len, rest) = (self.hit_len(), self.len() - self.hit_len());
            self.shortest[at].1 = self.shortest[at].1.min(len);
            if direct && len > room {
                direct = false;
                continue;
            }
            let lane = if !direct && !self.stubs.has(head, len) {
                &mut self.stubs
            } else if rest > 0 && !self.rests.has(self.rests.next(1), rest) {
                &mut self.rests
            } else {
                if !direct {
                    self.stubs.take(head, len);
                }
                return Ok(head);
            };
            if !lane.renew(&mut self.arena, len.max(rest) + ALIGNED) {
                return Err(Refusal::NoRoom { site: self.set.env.place(site.start, JUMP) });
            }
        }
    }

    /// Keeps what lies apart from the stub under construction.
    fn keep_rest(&mut self) {
        let (at, len) = (self.rests.next(1), self.len() - self.hit_len());
        if len == 0 {
            return;
        }
        self.rests.take(at, len);
        let off = self.rest_bytes.len() as u32;
        self.rest_bytes.extend(self.plan.bytes.drain(self.split..));
        match self.rest_chunks.last_mut() {
            Some(last) if last.addr + u64::from(last.len) == at => last.len += len as u32,
            _ => self.rest_chunks.push(Chunk { addr: at, off, len: len as u32 }),
        }
    }

    fn chunk(&mut self, addr: RemoteAddr) {
        let (off, len) = (self.start as u32, self.len() as u32);
        self.start = self.plan.bytes.len();
        let list = if self.is_behind(addr) { &mut self.behind } else { &mut self.plan.chunks };
        list.push(Chunk { addr, off, len });
    }

    /// Whether the address lies in the arena.
    fn is_behind(&self, addr: RemoteAddr) -> bool {
        addr >= self.set.place.arena && self.set.place.code.contains(addr)
    }

    /// Length in bytes of the stub under construction.
    const fn len(&self) -> u64 {
        (self.plan.bytes.len() - self.start) as u64
    }
    /// The same of the part that lies together.
    const fn hit_len(&self) -> u64 {
        (self.split - self.start) as u64
    }
}
