//! The actions at a site, as parts of a stub.
//!
//! In: an action, and everything that stubs depend on. Out: the part of the stub before the displaced code,
//! and what is appended behind that later. If a probe has a filter, the code of its action evaluates it,
//! whatever the action is. Does not: lay stubs out.

use trapline_code::NoCode;
use trapline_record::RemoteAddr;
use trapline_record::control::at;
use trapline_record::ring::{RecordKind, RingArea};
use trapline_record::trampolines::Trampolines;

use super::shared::Shared;
use super::{Emitter, Setting};
use crate::filter::TargetFilter;
use crate::machine::ThreadId;
use crate::request::{Floats, Hold};
use crate::x86_64::action::{PlacedAction, SiteAction, Stack};
use crate::x86_64::stub::Rings;
use crate::x86_64::stub::tally::TableLocation;
use crate::x86_64::stub::{self, Filtered, Latency, Liveness, RecordedExit, Traced, UnfinishedStub};

impl Emitter<'_, '_> {
    /// Emits one action. `shared`: where the code lies that it shares with other sites, if it does.
    pub(super) fn placed(&mut self, placed: &PlacedAction, shared: Option<(Shared, u64)>, base: RemoteAddr) {
        let set = self.set;
        let passed = set.arguments(placed.at, &placed.action);
        let here = base.0 + self.len();
        passed.before(&mut self.plan.bytes, here);
        let dead = passed.dead(placed.dead);
        let dead = Liveness { dead: dead.dead & !set.registers_read(&placed.action), ..dead };
        let placed = &PlacedAction { dead, ..*placed };
        let here = base.0 + self.len();
        let out = &mut self.plan.bytes;
        let timed = |function| set.timed(function, placed.dead);
        if placed.action.leads_to().is_some() {
            self.returning.push((self.pending.len(), *placed));
        }
        self.pending.extend(match placed.action {
            SiteAction::Count { probe, kind } => Some(set.count(out, here, placed.dead, (probe, kind))),
            SiteAction::Enter { latency, .. } => timed(latency)
                .zip(shared)
                .map(|(timed, (_, rare))| stub::latency_enter(out, here, &timed, rare)),
            SiteAction::Arm { latency } => {
                timed(latency).and_then(|timed| stub::latency_arm(out, here, &timed))
            }
            SiteAction::ArmRecord { .. } | SiteAction::ArmTally { .. } => {
                timed(0).and_then(|timed| stub::return_arm(out, here, &timed))
            }
            SiteAction::Exit { latency, .. } => {
                if let (Some(timed), Some((Shared::Timed(which), code))) = (timed(latency), shared) {
                    stub::latency_exit(out, here, &timed, (which, code));
                }
                None
            }
            SiteAction::Record { probe, .. } => match shared {
                Some((Shared::Record(exit), code)) => {
                    stub::recorded_exit(out, here, probe, (&exit, code));
                    None
                }
                _ => set.record(out, here, placed),
            },
            SiteAction::Tally { .. } => set.tally(out, here, placed),
            SiteAction::Hold(Hold::Load(state)) => {
                let words = (set.data.of(at::LOADED), set.data.of(at::LOOKED));
                stub::load(out, here, state, words, placed.dead.red_zone_live);
                None
            }
            SiteAction::Hold(hold) => {
                let words = (set.data.of(at::ASKED), set.data.of(at::CLOSED));
                stub::hold(out, here, hold, words, placed.dead.red_zone_live);
                None
            }
            SiteAction::Deliver { informed } => {
                stub::deliver(out, here, (set.data.of(0), informed), placed.dead.red_zone_live);
                None
            }
            SiteAction::Call { probe, ip, exit } => {
                if let (Some(gate), Some(callee)) = (set.gate, set.env.callee(probe)) {
                    let way = gate.way(exit, &callee);
                    let lead = if gate.arms(way) { stub::call_arming } else { stub::call };
                    lead(out, here, way, callee.argument, set.bias.live(ip).0);
                }
                None
            }
        });
        let here = base.0 + self.len();
        passed.after(&mut self.plan.bytes, here);
    }
}

impl Emitter<'_, '_> {
    /// Appends the code that a return trampoline leads on to when a call of this entry returns: the record or
    /// aggregation, then a return. The stub that arms the call ends in a word with the address of this code.
    ///
    /// # Errors
    /// The action has no code.
    pub(super) fn lead(&mut self, armed: &PlacedAction, at: RemoteAddr) -> Result<(), NoCode> {
        const ALIGN: u64 = 16;
        const RET: u8 = 0xC3;
        let Some(action) = armed.action.leads_to() else { return Ok(()) };
        let (set, word) = (self.set, self.plan.bytes.len() - 8);
        let padding = (at.0 + self.len()).wrapping_neg() & (ALIGN - 1);
        self.plan.bytes.resize(self.plan.bytes.len() + padding as usize, 0xCC);
        let here = at.0 + self.len();
        let placed = PlacedAction { action, dead: Liveness::default(), lowered: 0, ..*armed };
        let bytes = &mut self.plan.bytes;
        let pending = set.record(bytes, here, &placed).or_else(|| set.tally(bytes, here, &placed));
        self.plan.bytes.push(RET);
        let fixups = pending.map(|pending| pending.finish(&mut self.plan.bytes, None)).transpose()?;
        self.keep_fixups(fixups.unwrap_or_default());
        self.plan.bytes[word..word + 8].copy_from_slice(&here.to_le_bytes());
        Ok(())
    }
}

impl Setting<'_> {
    fn count(
        &self,
        out: &mut Vec<u8>,
        here: u64,
        site: Liveness,
        (probe, kind): (u32, RecordKind),
    ) -> UnfinishedStub<'static> {
        match &self.threads {
            // Nothing by thread is planned with a filter.
            Some(threads) => stub::count_by_thread(out, here, threads, probe, &site),
            None if self.env.filter(probe).is_some() => {
                let rings = self.no_rings(self.layout.rings, self.env.traits.thread_id);
                stub::count_filtered(out, here, &self.plain(&rings, probe, site), kind)
            }
            None => stub::count(out, here, &self.machine, self.counter(probe), &site),
        }
    }

    fn record(&self, out: &mut Vec<u8>, here: u64, placed: &PlacedAction) -> Option<UnfinishedStub<'_>> {
        let SiteAction::Record { probe, kind, values, valued, marked, texts, ended, floats, stack } =
            placed.action
        else {
            return None;
        };
        let rings = self.rings.as_ref()?;
        let filter = self.filtered(probe);
        let deferred = filter.is_some_and(|filtered| filtered.filter.late.is_some());
        let marks = self.latency.filter(|_| marked);
        let marks = marks.map(|latency| if deferred { latency.for_deferred() } else { latency.for_marks() });
        let Stack { unwind, at_entry } = stack;
        let fields = self.env.reads(probe);
        let plain = self.plain(rings, probe, placed.dead);
        let trampolines = self.trampolines();
        let by_go = self.env.is_go_at(placed.at);
        let traced = Traced {
            texts,
            ended,
            floats,
            by_go,
            valued,
            fields,
            marks,
            unwind,
            at_entry,
            trampolines,
            ..plain
        };
        Some(stub::trace(out, here, &traced, kind, values.into()))
    }

    /// What the code depends on that recorded exits share.
    pub(super) fn recorded_exit<'t>(&'t self, rings: &'t Rings, exit: &RecordedExit) -> Traced<'t> {
        Traced {
            passed: Some(exit.passed()),
            filter: None,
            floats: Floats { results: exit.results, ..Floats::default() },
            by_go: exit.by_go,
            valued: exit.valued,
            ..self.plain(rings, 0, exit.site())
        }
    }

    /// Return trampolines that may stand on stacks.
    fn trampolines(&self) -> Option<Trampolines> {
        self.latency.and_then(|latency| latency.trampolines)
    }

    fn tally(&self, out: &mut Vec<u8>, here: u64, placed: &PlacedAction) -> Option<UnfinishedStub<'static>> {
        let SiteAction::Tally { probe, kind } = placed.action else { return None };
        if let Some(hit) = self.env.program(probe) {
            let rings = self.no_rings(self.layout.rings, self.env.traits.thread_id);
            let filter = self.env.filters.get(probe as usize).and_then(Option::as_ref);
            let traced = Traced {
                trampolines: self.trampolines(),
                filter: filter.map(|filter| Filtered { filter, words: 0, names: None }),
                fields: self.env.reads(probe),
                at_entry: !filter.is_some_and(|filter| filter.inside),
                ..self.plain(&rings, probe, placed.dead)
            };
            return Some(stub::run(out, here, &traced, (hit, self.maps), kind));
        }
        let tally = self.env.tally(probe)?;
        let area = self.layout.tallies;
        let table = TableLocation { area, base: self.data.of(area.table(probe)) };
        let filter = self.env.filter(probe);
        let deferred = filter.is_some_and(|filter| filter.late.is_some());
        // Of the rings only two things are used: how to read thread numbers, and the size of a record that
        // waits for its return.
        let asked = !deferred || filter.is_some_and(TargetFilter::asks_for_thread);
        let id = if asked { self.env.traits.thread_id } else { ThreadId::Unknown };
        let slot = self.latency.map_or(0, |latency| 1 << latency.shape.cell_bits());
        let rings = self.layout.rings;
        let rings = self.no_rings(if deferred { RingArea { slot, most: slot, ..rings } } else { rings }, id);
        let traced = Traced {
            texts: tally.texts(),
            fields: self.env.reads(probe),
            floats: filter.map(TargetFilter::left_floats).unwrap_or_default(),
            marks: self.latency.filter(|_| deferred).map(Latency::for_deferred),
            ..self.plain(&rings, probe, placed.dead)
        };
        Some(stub::tally(out, here, &traced, (tally, table), kind))
    }
}
