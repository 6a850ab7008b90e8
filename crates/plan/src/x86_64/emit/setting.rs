//! Everything that stubs depend on, in addition to their site.
//!
//! In: the module's input, and where its code and data lie. Out: the values that stubs are made with, for each
//! probe. Does not: emit code.

use crate::hit::MapsAt;
use crate::input::ModuleInput;
use crate::layout::{DataAt, DataLayout};
use crate::machine::{ProcessTraits, ThreadId};
use crate::request::{Floats, LatencyInput, Unwind};
use crate::x86_64::action::SiteAction;
use crate::x86_64::code_region::ModuleSpace;
use crate::x86_64::env::Env;
use crate::x86_64::stub::arguments::ArgumentForm;
use crate::x86_64::stub::{
    Filtered, Gate, Latency, Liveness, Machine, PageNotes, Rings, Threads, Timed, Traced, Waits,
};
use trapline_record::addr::Bias;
use trapline_record::counters::filtered;
use trapline_record::ring::{RecordKind, RingArea};
use trapline_record::{RemoteAddr, Svma, control};

/// What stubs depend on, in addition to their site.
#[derive(Clone, Copy, Debug)]
pub(in crate::x86_64) struct Setting<'a> {
    pub(crate) env: Env<'a>,
    pub(crate) bias: Bias,
    pub(crate) place: ModuleSpace,
    /// Where the segment's data is mapped.
    pub(crate) data: DataAt,
    /// End of the mirrored range: no stub there may reach beyond it.
    pub(crate) mirrored_end: RemoteAddr,
    /// Sites of other batches may come between these, so the mirrored range holds only jumps.
    pub(crate) shared_space: bool,
    pub(crate) layout: &'a DataLayout,
    pub(crate) machine: Machine,
    /// Where a script's maps are.
    pub(crate) maps: MapsAt,
    /// Present if durations are measured.
    pub(crate) latency: Option<Latency>,
    /// Present if hits are counted by thread.
    pub(crate) threads: Option<Threads>,
    /// Present if records are written.
    pub(crate) rings: Option<Rings>,
    /// Present if consumers are called.
    pub(crate) gate: Option<Gate>,
}

impl<'a> Setting<'a> {
    pub(in crate::x86_64) fn new(
        input: &ModuleInput<'a>,
        env: Env<'a>,
        (place, mirrored_end): (ModuleSpace, RemoteAddr),
        gate: Option<Gate>,
    ) -> Self {
        let (layout, traits) = (input.layout, input.traits);
        let data = layout.mapped(place.data.addr, input.far);
        Self {
            env,
            bias: input.bias,
            place,
            data,
            mirrored_end,
            shared_space: input.code_region.is_some(),
            layout,
            maps: MapsAt {
                maps: data.of(layout.maps.off),
                own_page: input.own_page.0,
                sharers: data.of(control::at::SHARERS),
            },
            machine: Machine { rseq: traits.rseq, rdpid: traits.rdpid, lines: traits.lines },
            latency: input.latency.map(|latency| timing(latency, layout, data)),
            threads: by_thread(traits.thread_id, layout, data),
            rings: rings(traits, layout, data),
            gate,
        }
    }

    /// Where an action at an instruction finds arguments; as in C if it reads none.
    pub(super) fn arguments(&self, at: Svma, action: &SiteAction) -> ArgumentForm<'a> {
        let (SiteAction::Record { probe, kind: RecordKind::Entry, .. }
        | SiteAction::Tally { probe, kind: RecordKind::Entry }
        | SiteAction::Count { probe, kind: RecordKind::Entry }) = *action
        else {
            return ArgumentForm::AsInC;
        };
        let filter = self.env.filters.get(probe as usize).and_then(Option::as_ref);
        if let Some(filter) = filter.filter(|filter| !filter.operands.is_empty()) {
            return ArgumentForm::AsNoted(&filter.operands, self.bias);
        }
        let asks = !matches!(action, SiteAction::Count { .. }) || self.env.filter(probe).is_some();
        if asks && self.env.is_go_at(at) { ArgumentForm::AsInGo } else { ArgumentForm::AsInC }
    }

    /// Whether an action may read registers that are dead for the program: arguments, operands, all that a consumer
    /// sees.
    pub(super) fn reads_registers(&self, action: &SiteAction) -> bool {
        match *action {
            SiteAction::Count { probe, .. } => self.env.filter(probe).is_some(),
            SiteAction::Enter { .. } | SiteAction::Arm { .. } | SiteAction::Exit { .. } => false,
            SiteAction::Deliver { .. } => false,
            _ => true,
        }
    }

    /// The general registers that a probe's records and values have besides arguments, as bits. They are saved even
    /// if they are dead for the program.
    pub(super) fn registers_read(&self, action: &SiteAction) -> u16 {
        match *action {
            SiteAction::Record { probe, .. } | SiteAction::Tally { probe, .. } => {
                self.env.registers_read(probe)
            }
            _ => 0,
        }
    }
}

impl Setting<'_> {
    pub(super) const fn timed(&self, function: u32, site: Liveness) -> Option<Timed<'_>> {
        match &self.latency {
            Some(latency) => Some(Timed { machine: &self.machine, latency, function, site }),
            None => None,
        }
    }

    /// Address of a probe's counter on line 0.
    pub(super) const fn counter(&self, probe: u32) -> u64 {
        self.data.of(self.layout.counters.word(probe))
    }

    /// The filter of a probe, with the words in which its rejected hits are counted.
    pub(super) fn filtered(&self, probe: u32) -> Option<Filtered<'_>> {
        let words = self.data.of(self.layout.filtered.word(filtered::WORDS * probe));
        let names = self.layout.names;
        let names_at = self.data.of(names.off);
        self.env.filter(probe).map(|filter| {
            let by_name = filter.by_name && !names.is_empty();
            Filtered { filter, words, names: by_name.then_some(names_at) }
        })
    }

    /// Rings for hits that write no record: only the way to read thread numbers is used.
    pub(super) fn no_rings(&self, area: RingArea, id: ThreadId) -> Rings {
        let known = known(self.layout, self.data);
        Rings { area, base: self.data.of(0), id, stacks: self.env.traits.stacks, known, waits: None }
    }

    /// A hit without values, texts, fields or a stack: only that it happened, and passed the filter.
    pub(super) fn plain<'t>(&'t self, rings: &'t Rings, probe: u32, site: Liveness) -> Traced<'t> {
        Traced {
            machine: &self.machine,
            rings,
            probe,
            passed: None,
            dropped: self.counter(probe),
            site,
            filter: self.filtered(probe),
            texts: 0,
            ended: 0,
            floats: Floats::default(),
            by_go: false,
            valued: false,
            fields: &[],
            marks: None,
            unwind: Unwind::None,
            at_entry: true,
            trampolines: None,
            bias: self.bias,
        }
    }
}

fn timing(input: LatencyInput, layout: &DataLayout, data: DataAt) -> Latency {
    Latency {
        area: data.of(layout.latency_off),
        functions: layout.latency_count,
        stamps: input.stamps.0,
        shape: input.shape,
        missed: data.of(control::at::MISSED),
        min_ticks: input.min_ticks,
        buckets: input.buckets,
        outermost: input.outermost,
        go: input.go_g,
        trampolines: input.trampolines,
    }
}

fn by_thread(id: ThreadId, layout: &DataLayout, data: DataAt) -> Option<Threads> {
    let area = layout.threads;
    (!area.is_empty()).then(|| Threads { area, tags: data.of(area.off), id })
}

/// Where stubs find the notes about pages that texts may be loaded from.
fn known(layout: &DataLayout, data: DataAt) -> Option<PageNotes> {
    (!layout.pages.is_empty()).then_some(PageNotes {
        tables: data.of(layout.pages.off),
        handler: data.of(control::at::FAULT_HANDLER),
    })
}

fn rings(traits: &ProcessTraits, layout: &DataLayout, data: DataAt) -> Option<Rings> {
    let (area, base) = (layout.rings, data.of(layout.rings.off));
    let known = known(layout, data);
    let waits = traits.waits.map(|ticks| Waits {
        may_wait: data.of(control::at::MAY_WAIT),
        beat: data.of(control::at::BEAT),
        ticks,
    });
    let (id, stacks) = (traits.thread_id, traits.stacks);
    (!area.is_empty()).then_some(Rings { area, base, id, stacks, known, waits })
}
