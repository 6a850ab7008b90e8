//! Saves records undecoded: from the rings into blocks of a file.
//!
//! In: the rings of all segments. Out: blocks ([`crate::saved`]), written as they come. A ring's slots are
//! taken in pieces that stay in the CPU's own cache, and are packed: fresh memory for a file costs more than
//! packing. Records are read only to count them and to name their threads. What they mean is decoded when the
//! file is read. Invariant: LOSS-2: entries written + records dropped = hits.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use trapline_patch::{Attached, Segment};
use trapline_record::calls::{
    Behind, CONTEXT, KIND_BITS, PROBE_BITS, PROBE_SHIFT, THREAD_BITS, THREAD_SHIFT, VALUES, WORD,
};
use trapline_record::ring::{KIND_MASK, RecordKind};
use trapline_tracee::TickClock;

use super::rings::{Ring, Rings};
use super::sample::Sample;
use super::site_table::SiteTable;
use super::target_process::TargetProcess;
use super::thread_names::ThreadNames;
use crate::decode::{Counts, Decoder, ProbeFacts, Probes, word};
use crate::quick::Quick;
use crate::saved::frame::{Kind as Block, Put};
use crate::saved::pack::pack;
use crate::saved::tables::{Loss, Table, WordsHead, put_losses, put_names};

/// How often losses are noted, for the case that the tracer dies before it notes the last ones.
const LOSSES_EVERY: Duration = Duration::from_millis(500);

/// Kind of a return with its value.
const RETURN_OF_A_VALUE: u64 = VALUES | RecordKind::Return as u64;

/// State of saving for one process.
#[derive(Debug, Default)]
pub(super) struct Saver {
    /// Number of the process in the file, once it has one.
    number: Option<u32>,
    /// Threads that were met.
    threads: Quick<u32, ()>,
    /// Of these, threads without a name yet.
    fresh: HashSet<u32>,
    /// The thread met last.
    last: Option<u32>,
    slots: Vec<u8>,
    block: Put,
    losses: Option<(Instant, u64)>,
    /// The last context of each compact ring, by segment and number.
    contexts: Quick<(usize, u32), u64>,
    /// What the recording costs, if that is asked for.
    pub(super) sample: Option<Sample>,
}

impl Saver {
    /// Counts slots that are about to be written, and notes their threads. Returns the number of slots.
    fn note(
        &mut self,
        segment: usize,
        slot: usize,
        slots: &[u8],
        probes: &Probes,
        read: &mut Counts,
    ) -> usize {
        let (mut counted, mut probe, mut known) = (0, u32::MAX, false);
        for bytes in slots.chunks_exact(slot) {
            let (ids, place) = (word(bytes, 0), word(bytes, 2));
            if ids as u32 != probe {
                if known {
                    read.add(segment, probe, std::mem::take(&mut counted));
                }
                (counted, probe) = (0, ids as u32);
                known = probes.get(segment, probe).is_some();
            }
            counted += u64::from(place & KIND_MASK == RecordKind::Entry as u64);
            let tid = (ids >> 32) as u32;
            if self.last != Some(tid) {
                self.last = Some(tid);
                if self.threads.insert(tid, ()).is_none() {
                    self.fresh.insert(tid);
                }
            }
        }
        if known && counted > 0 {
            read.add(segment, probe, counted);
        }
        slots.len() / slot
    }
    /// Number of the process in the file; it gets one with its first site. `more`: there are new sites.
    pub(super) fn number(&mut self, more: bool, next: &mut u32) -> Option<u32> {
        if more && self.number.is_none() {
            self.number = Some(*next);
            *next += 1;
        }
        self.number
    }
    /// Number of the process in the file, if it has one.
    pub(super) const fn numbered(&self) -> Option<u32> {
        self.number
    }
    /// Writes what is known of the probes.
    pub(super) fn write_probes<E>(
        number: u32,
        target: &TargetProcess,
        decoder: &mut Decoder,
        write: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let table = Table {
            process: number,
            pid: target.pid(),
            name: target.name.clone(),
            exits_name_no_thread: decoder.pairing.exits_name_no_thread,
            probes: std::mem::take(&mut decoder.probes),
        };
        let written = write(&table.put());
        decoder.probes = table.probes;
        written
    }
    /// Writes the slots of all rings. Returns how many there were.
    pub(super) fn save_rings<E>(
        &mut self,
        number: u32,
        segments: &[Segment],
        rings: &mut Rings,
        decoder: &mut Decoder,
        write: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        let mut taken = 0;
        rings.each(segments, |ring| {
            let saved = match ring.is_compact() {
                true => self.save_words(ring, number, decoder, write)?,
                false => self.save_ring(ring, number, decoder, write)?,
            };
            taken += saved.unwrap_or(0);
            Ok(saved.is_some())
        })?;
        Ok(taken)
    }
    /// Writes the slots of one ring, block by block. Returns how many there were, or `None` if the head
    /// has an impossible value.
    fn save_ring<E>(
        &mut self,
        mut ring: Ring<'_>,
        number: u32,
        decoder: &mut Decoder,
        write: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<Option<usize>, E> {
        let (segment, slot) = (ring.segment, ring.slot());
        let mut block = std::mem::take(&mut self.block);
        block.begin(Block::Slots);
        block.u32(number).u32(segment as u32).u32(ring.number).u32(slot as u32);
        let (begin, mut records) = (block.0.len(), 0);
        let mut slots = std::mem::take(&mut self.slots);
        let whole = ring.empty(&mut slots, |slots| {
            records += self.note(segment, slot, slots, &decoder.probes, &mut decoder.read);
            block.0.truncate(begin);
            pack(slots, slot, &mut block.0);
            Put::close(&mut block.0);
            write(&block.0)
        });
        (self.slots, self.block) = (slots, block);
        Ok(whole?.then_some(records))
    }
    /// Writes the words of one compact ring, block by block, as they are. Returns how many there were, or `None` if the head
    /// has an impossible value.
    fn save_words<E>(
        &mut self,
        mut ring: Ring<'_>,
        number: u32,
        decoder: &mut Decoder,
        write: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<Option<usize>, E> {
        let (segment, key) = (ring.segment, (ring.segment, ring.number));
        let mut block = std::mem::take(&mut self.block);
        block.begin(Block::Words);
        let mut head =
            WordsHead { process: number, segment: segment as u32, ring: ring.number, ..WordsHead::default() };
        head.put(&mut block);
        let (begin, mut words) = (block.0.len(), 0);
        head.context = self.contexts.get(&key).copied().unwrap_or(0);
        let Decoder { probes, read, .. } = decoder;
        let whole = ring.empty_words(&mut block.0, |before, bytes, goes_on| {
            // Their clock was read before they were published, and so before they were taken.
            (head.from, head.taken) = (before, TickClock::ticks());
            head.fill(&mut bytes[..begin]);
            let (cut, context) = self.note_words(segment, &bytes[begin..], probes, read);
            if let Some(sample) = &mut self.sample {
                sample.look(segment, bytes[begin..].as_chunks().0, probes);
            }
            head.context = context.unwrap_or(head.context);
            // A block begins with a whole record. What ends with half of one is the target's own doing, if nothing follows.
            let next = if goes_on { bytes.split_off(begin + cut) } else { Vec::new() };
            words += (bytes.len() - begin) / WORD as usize;
            Put::close(bytes);
            write(bytes).map(|()| next)
        });
        self.block = block;
        let whole = whole?;
        // A ring that is taken up again elsewhere has no context that is known.
        self.contexts.insert(key, if whole { head.context } else { 0 });
        Ok(whole.then_some(words))
    }
    /// Counts words that are about to be written, and notes their threads. Returns the number of bytes in front of a record
    /// whose values are not all there (else all), and the last context among them.
    fn note_words(
        &mut self,
        segment: usize,
        bytes: &[u8],
        probes: &Probes,
        read: &mut Counts,
    ) -> (usize, Option<u64>) {
        let known = probes.len_of(segment);
        let counts = read.of(segment, known);
        let (words, mut context) = (bytes.as_chunks::<8>().0, None);
        let mut rest = words;
        while let Some((word, behind)) = rest.split_first() {
            let before = rest.len();
            rest = behind;
            let word = u64::from_le_bytes(*word);
            let probe = (word >> PROBE_SHIFT) as usize & ((1 << PROBE_BITS) - 1);
            match word & ((1 << KIND_BITS) - 1) {
                0 => {
                    if let Some(count) = counts.get_mut(probe) {
                        *count += 1;
                    }
                }
                kind @ (VALUES | RETURN_OF_A_VALUE) => {
                    let known = match kind {
                        VALUES => {
                            probes.get(segment, probe as u32).map_or(Behind::default(), ProbeFacts::behind)
                        }
                        _ => Behind { fixed: 1, texts: 0 },
                    };
                    let Some(values) = known.len(rest) else {
                        return ((words.len() - before) * WORD as usize, context);
                    };
                    rest = &rest[values..];
                    if kind == VALUES
                        && let Some(count) = counts.get_mut(probe)
                    {
                        *count += 1;
                    }
                }
                CONTEXT => {
                    context = Some(word);
                    let tid = (word >> THREAD_SHIFT) as u32 & ((1 << THREAD_BITS) - 1);
                    if self.last != Some(tid) {
                        self.last = Some(tid);
                        if self.threads.insert(tid, ()).is_none() {
                            self.fresh.insert(tid);
                        }
                    }
                }
                _ => {}
            }
        }
        (bytes.len(), context)
    }
    /// Writes the names of threads that are new.
    pub(super) fn save_names<E>(
        &mut self,
        number: u32,
        target: &TargetProcess,
        names: &mut ThreadNames,
        write: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.fresh.is_empty() {
            return Ok(());
        }
        let fresh = std::mem::take(&mut self.fresh);
        names.look(target, &fresh, false);
        let names: Vec<_> = fresh.iter().map(|&tid| (tid, names.get(tid).comm)).collect();
        write(&put_names(number, &names))
    }
    /// Writes losses, if there are more, twice a second and at the end.
    pub(super) fn save_losses<E>(
        &mut self,
        number: u32,
        sites: &SiteTable,
        attached: &Attached,
        last: bool,
        write: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (at, before) = self.losses.unwrap_or((Instant::now(), 0));
        if !last && self.losses.is_some() && at.elapsed() < LOSSES_EVERY {
            return Ok(());
        }
        let losses = losses(sites, attached);
        let sum = losses.iter().map(|loss| loss.records).fold(0, u64::wrapping_add);
        self.losses = Some((Instant::now(), sum));
        if sum == before { Ok(()) } else { write(&put_losses(number, &losses)) }
    }
}

/// Dropped records, by probe and CPU.
fn losses(sites: &SiteTable, attached: &Attached) -> Vec<Loss> {
    let mut losses = Vec::new();
    let owned = attached.counts_by_cpu();
    let recorded = sites.iter().filter(|tracked| tracked.is_recorded());
    for (segment, probe) in recorded.flat_map(|tracked| tracked.counters()) {
        let one = &attached.segments()[segment];
        let area = one.counters();
        for line in 0..area.lines {
            let records = area.read_line(one.view(), probe, line);
            let cpu = (owned && line + 1 < area.lines).then_some(line);
            let loss = Loss { segment: segment as u32, probe, cpu, records };
            losses.extend((records > 0).then_some(loss));
        }
    }
    losses
}
