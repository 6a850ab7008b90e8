//! The head, and blocks other than slots: begin, probes, thread names, losses, rounds, end.
//!
//! In: values, or a block's bytes. Out: a block, or values; `None` for bytes that cannot be such a block.
//! Invariant: SAV-1: what is read from a block is bounded by its length, and probes' numbers are bounded by
//! [`MOST_PROBES`]. Does not: read or write files.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use trapline_image::MARK_ARGUMENTS;
use trapline_plan::filter::{Float, Int};
use trapline_plan::{KeptText, Results};

use super::frame::{Get, HEAD, Kind, MAGIC, Put, VERSION};
use crate::decode::{Clock, ProbeFacts, Probes, Shape};
use crate::report::{Site, Tactic};
use crate::values::{ArgumentSource, Marked, Number, Values};

/// Limit on numbers of segments.
const MOST_SEGMENTS: u32 = 1 << 12;
/// Limit on probes in all segments, unused numbers included.
const MOST_PROBES: u64 = 1 << 21;

/// First bytes of a file.
pub(crate) fn begin(clock: Clock, note: &[u8]) -> Vec<u8> {
    let mut file = Vec::with_capacity(HEAD);
    file.extend_from_slice(&MAGIC);
    file.extend_from_slice(&VERSION.to_le_bytes());
    file.extend_from_slice(&[0; 4]);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut block = Put::block(Kind::Begin);
    block.u64(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)).u64(clock.0).u64(clock.1.to_bits());
    block.bytes(note);
    file.append(&mut block.done());
    file
}

/// Last block of a file.
#[must_use]
pub fn end(note: &[u8]) -> Vec<u8> {
    let mut block = Put::block(Kind::End);
    block.bytes(note);
    block.done()
}

/// A process as it is saved.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// Number of the process in the file.
    pub(crate) process: u32,
    pub(crate) pid: u32,
    pub(crate) name: String,
    /// Exits do not name their thread.
    pub(crate) exits_name_no_thread: bool,
    pub(crate) probes: Probes,
}

/// Dropped records of a probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loss {
    /// Number of the segment in its process.
    pub segment: u32,
    /// Number of the probe in that segment.
    pub probe: u32,
    /// CPU; `None` for records that belong to no CPU.
    pub cpu: Option<u32>,
    /// Dropped records since the begin.
    pub records: u64,
}

/// Functions that were taken out of a recording of words while it ran.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct TakenOut {
    /// A tick behind the change of the last site.
    pub(crate) at: u64,
    /// The share of the process' time that recording cost before.
    pub(crate) share: f64,
    /// Nanoseconds that a record took, as measured.
    pub(crate) record_ns: f64,
    pub(crate) probes: Vec<TakenProbe>,
}

/// One of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TakenProbe {
    pub(crate) segment: u32,
    pub(crate) probe: u32,
    /// Calls that were written by then.
    pub(crate) calls: u64,
}

impl TakenOut {
    /// The block, for a process by its number.
    pub(crate) fn put(&self, process: u32) -> Vec<u8> {
        let mut put = Put::block(Kind::TakenOut);
        put.u32(process).u64(self.at).u64(self.share.to_bits()).u64(self.record_ns.to_bits());
        put.len(self.probes.len());
        for TakenProbe { segment, probe, calls } in &self.probes {
            put.u32(*segment).u32(*probe).u64(*calls);
        }
        put.done()
    }
    /// The process' number, and what it lost.
    pub(crate) fn get(bytes: &[u8]) -> Option<(u32, Self)> {
        let mut get = Get(bytes);
        let (process, at) = (get.u32()?, get.u64()?);
        let (share, record_ns) = (f64::from_bits(get.u64()?), f64::from_bits(get.u64()?));
        let probes =
            get.many(|get| Some(TakenProbe { segment: get.u32()?, probe: get.u32()?, calls: get.u64()? }))?;
        get.end()?;
        let usable = |number: f64| number.is_finite() && number >= 0.0;
        (usable(share) && usable(record_ns)).then_some((process, Self { at, share, record_ns, probes }))
    }
}

/// End of a round.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Round {
    pub(crate) clock: Clock,
    /// Number of processes that were looked at.
    pub(crate) processes: u32,
    /// Tick at which the round began. `None` for the last round, which reports all.
    pub(crate) until: Option<u64>,
}

impl Table {
    pub(crate) fn put(&self) -> Vec<u8> {
        let mut put = Put::block(Kind::Probes);
        put.u32(self.process).u32(self.pid).text(&self.name).u8(self.exits_name_no_thread.into());
        put.len(self.probes.iter().count());
        for (segment, probe, known) in self.probes.iter() {
            put.u32(u32::try_from(segment).unwrap_or(u32::MAX)).u32(probe);
            // Values that are not in registers have a bit of their own, so that older readers refuse what
            // they would misread.
            let others = known.values != Values::AsRecorded;
            put.u8(u8::from(known.waits) | u8::from(others) << 1 | u8::from(known.is_libcall) << 2);
            put_site(&mut put, &known.site);
            let shape = known.shape.as_ref();
            put_shape(&mut put, shape);
            put_values(&mut put, &known.values);
        }
        put.done()
    }
    pub(crate) fn get(bytes: &[u8]) -> Option<Self> {
        let mut get = Get(bytes);
        let mut table = Self { process: get.u32()?, pid: get.u32()?, name: get.text()?, ..Self::default() };
        table.exits_name_no_thread = flag(&mut get)?;
        let (mut ends, mut numbers): (Vec<u32>, u64) = (Vec::new(), 0);
        let mut before: Option<Arc<Site>> = None;
        for _ in 0..get.u32()? {
            let (segment, probe, bits) = (get.u32()?, get.u32()?, get.u8().filter(|bits| *bits < 8)?);
            let site = get_site(&mut get)?;
            // A site in several segments is one site.
            let site = before.filter(|other| **other == site).unwrap_or_else(|| Arc::new(site));
            before = Some(Arc::clone(&site));
            let shape = get_shape(&mut get)?;
            let values = if bits & 2 == 0 { Values::AsRecorded } else { get_values(&mut get)? };
            if segment >= MOST_SEGMENTS {
                return None;
            }
            let nth = segment as usize;
            ends.resize(ends.len().max(nth + 1), 0);
            let end = probe.checked_add(1)?.max(ends[nth]);
            numbers += u64::from(end - std::mem::replace(&mut ends[nth], end));
            if numbers > MOST_PROBES {
                return None;
            }
            table.probes.set(
                nth,
                probe,
                ProbeFacts {
                    site,
                    waits: bits & 1 == 1,
                    shape,
                    results: Results::INTEGER,
                    values,
                    is_libcall: bits & 4 != 0,
                    late: None,
                },
            );
        }
        get.end()?;
        Some(table)
    }
}

fn flag(get: &mut Get<'_>) -> Option<bool> {
    match get.u8()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

fn put_site(put: &mut Put, site: &Site) {
    put.text(&site.probe).len(site.aliases.len());
    for alias in &site.aliases {
        put.text(alias);
    }
    put.text(&site.file).u64(site.offset).text(&site.label).u8(site.tactic as u8);
}

fn get_site(get: &mut Get<'_>) -> Option<Site> {
    Some(Site {
        probe: get.text()?,
        aliases: get.many(Get::text)?,
        file: get.text()?,
        offset: get.u64()?,
        label: get.text()?,
        tactic: *Tactic::ALL.get(usize::from(get.u8()?))?,
        slot: 0,
    })
}

/// Writes 0 if there is none; 2 if texts of returns follow, so that older readers refuse what they would misread.
fn put_shape(put: &mut Put, shape: Option<&Shape>) {
    let Some(Shape { values, texts, floats, fields, kept }) = shape else {
        put.u8(0);
        return;
    };
    put.u8(if kept.is_empty() { 1 } else { 2 });
    put.u8(*values).u8(*texts).u8(*floats).bytes(fields);
    if !kept.is_empty() {
        put.len(kept.len());
        for bytes in kept {
            put.u32((*bytes).into());
        }
    }
}

fn get_shape(get: &mut Get<'_>) -> Option<Option<Shape>> {
    let form = get.u8()?;
    if form == 0 {
        return Some(None);
    }
    let (values, texts, floats) = (get.u8()?, get.u8()?, get.u8()?);
    let fields = get.bytes()?.to_vec();
    let kept = match form {
        1 => Vec::new(),
        2 => get.many(|get| u16::try_from(get.u32()?).ok().filter(|bytes| *bytes <= KeptText::MAX))?,
        _ => return None,
    };
    Some(Some(Shape { values, texts, floats, fields, kept }))
}

/// Writes nothing if values are as registers hold them; else what each argument is, and which fields are
/// texts.
fn put_values(put: &mut Put, values: &Values) {
    let int = |put: &mut Put, int: Int| {
        put.u8(int.bits).u8(int.signed.into());
    };
    let float = |put: &mut Put, float: Float| {
        put.u8((float == Float::Double).into());
    };
    match values {
        Values::AsRecorded => {}
        Values::Unknown => {
            put.u8(0);
        }
        Values::Marked(marked) => {
            let len = if fits_first_form(marked) { FIRST_FORM } else { MARK_ARGUMENTS };
            put.u8(if len == FIRST_FORM { 1 } else { 2 });
            for source in &marked.sources[..len] {
                match *source {
                    ArgumentSource::Unknown => {
                        put.u8(0);
                    }
                    ArgumentSource::Value(Number::Int(of)) => int(put.u8(1), of),
                    ArgumentSource::Field(field, Number::Int(of)) => int(put.u8(2).u8(field), of),
                    ArgumentSource::Value(Number::Float(of)) => float(put.u8(3), of),
                    ArgumentSource::Field(field, Number::Float(of)) => float(put.u8(4).u8(field), of),
                }
            }
            put.len(marked.texts.len());
            for &(argument, field) in &marked.texts {
                put.u8(argument).u8(field);
            }
        }
    }
}

/// Number of arguments in the first form of a USDT probe's values, which has integers alone.
const FIRST_FORM: usize = 6;

/// Whether older readers can read these values, too.
fn fits_first_form(marked: &Marked) -> bool {
    let is_float = |source: &ArgumentSource| {
        matches!(source, ArgumentSource::Value(Number::Float(_)) | ArgumentSource::Field(_, Number::Float(_)))
    };
    let is_unknown = |source: &ArgumentSource| *source == ArgumentSource::Unknown;
    !marked.sources.iter().any(is_float)
        && marked.sources[FIRST_FORM..].iter().all(is_unknown)
        && marked.texts.iter().all(|&(nth, _)| usize::from(nth) < FIRST_FORM)
}

fn get_values(get: &mut Get<'_>) -> Option<Values> {
    let len = match get.u8()? {
        0 => return Some(Values::Unknown),
        1 => FIRST_FORM,
        2 => MARK_ARGUMENTS,
        _ => return None,
    };
    let int = |get: &mut Get<'_>| {
        let (bits, signed) = (get.u8()?, flag(get)?);
        matches!(bits, 8 | 16 | 32 | 64).then_some(Int { bits, signed })
    };
    let float = |get: &mut Get<'_>| Some(if flag(get)? { Float::Double } else { Float::Single });
    let mut marked = Marked { sources: [ArgumentSource::Unknown; MARK_ARGUMENTS], texts: Vec::new() };
    for source in &mut marked.sources[..len] {
        *source = match get.u8()? {
            0 => ArgumentSource::Unknown,
            1 => ArgumentSource::Value(Number::Int(int(get)?)),
            2 => ArgumentSource::Field(get.u8()?, Number::Int(int(get)?)),
            3 if len > FIRST_FORM => ArgumentSource::Value(Number::Float(float(get)?)),
            4 if len > FIRST_FORM => ArgumentSource::Field(get.u8()?, Number::Float(float(get)?)),
            _ => return None,
        };
    }
    // Only the six values of a record are values.
    if marked.sources[FIRST_FORM..].iter().any(|source| matches!(source, ArgumentSource::Value(_))) {
        return None;
    }
    marked.texts = get.many(|get| Some((get.u8().filter(|nth| usize::from(*nth) < len)?, get.u8()?)))?;
    Some(Values::Marked(Box::new(marked)))
}

/// What stands before the words of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct WordsHead {
    pub(crate) process: u32,
    pub(crate) segment: u32,
    pub(crate) ring: u32,
    /// Number of words that were taken from the ring before.
    pub(crate) from: u64,
    /// The ring's last context before them; 0 if none is known.
    pub(crate) context: u64,
    /// A tick behind which none of them was written.
    pub(crate) taken: u64,
}

impl WordsHead {
    /// Its bytes.
    pub(crate) const BYTES: usize = 40;

    pub(crate) fn put(&self, block: &mut Put) {
        block.u32(self.process).u32(self.segment).u32(self.ring).u32(0);
        block.u64(self.from).u64(self.context).u64(self.taken);
    }
    /// Writes it over the head of a block that has one.
    pub(crate) fn fill(&self, block: &mut [u8]) {
        let mut put = Put::default();
        self.put(&mut put);
        let at = block.len().saturating_sub(Self::BYTES);
        block[at..].copy_from_slice(&put.0);
    }
    pub(crate) fn get(get: &mut Get<'_>) -> Option<Self> {
        let (process, segment, ring, _) = (get.u32()?, get.u32()?, get.u32()?, get.u32()?);
        Some(Self { process, segment, ring, from: get.u64()?, context: get.u64()?, taken: get.u64()? })
    }
}

/// Threads by number, with their names if they have any.
pub(crate) type Names = Vec<(u32, Option<String>)>;

/// Block with thread names of a process.
pub(crate) fn put_names(process: u32, names: &[(u32, Option<String>)]) -> Vec<u8> {
    let mut put = Put::block(Kind::Names);
    put.u32(process).len(names.len());
    for (tid, comm) in names {
        put.u32(*tid).u8(comm.is_some().into()).text(comm.as_deref().unwrap_or_default());
    }
    put.done()
}

pub(crate) fn get_names(bytes: &[u8]) -> Option<(u32, Names)> {
    let mut get = Get(bytes);
    let process = get.u32()?;
    let names = get.many(|get| {
        let (tid, named, name) = (get.u32()?, flag(get)?, get.text()?);
        Some((tid, named.then_some(name)))
    })?;
    get.end()?;
    Some((process, names))
}

pub(crate) fn put_losses(process: u32, losses: &[Loss]) -> Vec<u8> {
    let mut put = Put::block(Kind::Losses);
    put.u32(process).len(losses.len());
    for loss in losses {
        put.u32(loss.segment).u32(loss.probe).u32(loss.cpu.unwrap_or(u32::MAX)).u64(loss.records);
    }
    put.done()
}

pub(crate) fn get_losses(bytes: &[u8]) -> Option<(u32, Vec<Loss>)> {
    let mut get = Get(bytes);
    let process = get.u32()?;
    let losses = get.many(|get| {
        let (segment, probe, cpu, records) = (get.u32()?, get.u32()?, get.u32()?, get.u64()?);
        Some(Loss { segment, probe, cpu: (cpu != u32::MAX).then_some(cpu), records })
    })?;
    get.end()?;
    Some((process, losses))
}

impl Round {
    pub(crate) fn put(&self) -> Vec<u8> {
        let mut put = Put::block(Kind::Round);
        let (started, ns_per_tick) = self.clock;
        put.u64(started).u64(ns_per_tick.to_bits()).u64(self.until.unwrap_or(0));
        put.u32(self.processes).u32(self.until.is_none().into());
        put.done()
    }
    pub(crate) fn get(bytes: &[u8]) -> Option<Self> {
        let mut get = Get(bytes);
        let clock = (get.u64()?, f64::from_bits(get.u64()?));
        let (until, processes, last) = (get.u64()?, get.u32()?, get.u32()?);
        get.end()?;
        let usable = clock.1.is_finite() && clock.1 >= 0.0 && last <= 1;
        usable.then_some(Self { clock, processes, until: (last == 0).then_some(until) })
    }
}
