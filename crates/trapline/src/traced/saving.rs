//! Saves records undecoded: from the rings into blocks of a file.
//!
//! In: the rings of all segments. Out: blocks ([`crate::saved`]), written as they come. A ring's slots are
//! taken in pieces that stay in the CPU's own cache, and are packed: fresh memory for a file costs more than
//! packing. Records are read only to count them and to name their threads. What they mean is decoded when the
//! file is read. Invariant: LOSS-2: entries written + records dropped = hits.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use trapline_record::ring::{KIND_MASK, RecordKind as Kind};

use super::records::{Records, Ring};
use super::{Source, Traced};
use crate::decode::{Counts, Probes, word};
use crate::quick::Quick;
use crate::saved::frame::{Kind as Block, Put};
use crate::saved::pack::pack;
use crate::saved::tables::{Loss, Table, put_losses, put_names};

/// How often losses are noted, for the case that the tracer dies before it notes the last ones.
const LOSSES_EVERY: Duration = Duration::from_millis(500);

/// State of saving for one process.
#[derive(Debug, Default)]
pub(super) struct Saved {
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
}

impl Saved {
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
            counted += u64::from(place & KIND_MASK == Kind::Entry as u64);
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
}

impl Records {
    /// Writes the ring slots of one ring, block by block. Returns how many there were, or `None` if the head
    /// has an impossible value.
    fn save_ring<E>(
        &mut self,
        mut ring: Ring<'_>,
        number: u32,
        write: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<Option<usize>, E> {
        let (segment, slot) = (ring.segment, ring.slot());
        let mut block = std::mem::take(&mut self.saved.block);
        block.begin(Block::Slots);
        block.u32(number).u32(segment as u32).u32(ring.number).u32(slot as u32);
        let (begin, mut records) = (block.0.len(), 0);
        let mut slots = std::mem::take(&mut self.saved.slots);
        let (saved, decoder) = (&mut self.saved, &mut self.decoder);
        let whole = ring.empty(&mut slots, |slots| {
            records += saved.note(segment, slot, slots, &decoder.probes, &mut decoder.read);
            block.0.truncate(begin);
            pack(slots, slot, &mut block.0);
            Put::close(&mut block.0);
            write(&block.0)
        });
        (self.saved.slots, self.saved.block) = (slots, block);
        Ok(whole?.then_some(records))
    }
}

impl Traced {
    /// Writes what was recorded since the last call, and what is needed to read it. `next` is the number for
    /// the next process that appears in the file. Returns the number of records.
    pub(crate) fn save<E>(
        &mut self,
        next: &mut u32,
        last: bool,
        write: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        let last = self.is_last_round() || last;
        let more = self.know_probes();
        // Without a site there is nothing to save yet.
        if !more && self.records.saved.number.is_none() {
            return Ok(0);
        }
        let mut records = std::mem::take(&mut self.records);
        let number = *records.saved.number.get_or_insert_with(|| {
            *next += 1;
            *next - 1
        });
        let done = self.save_records(&mut records, number, more, last, write);
        self.records = records;
        done
    }
    fn save_records<E>(
        &mut self,
        records: &mut Records,
        number: u32,
        more: bool,
        last: bool,
        write: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        if more {
            let table = Table {
                process: number,
                pid: self.process.pid(),
                name: self.name.clone(),
                exits_name_no_thread: records.decoder.pairing.exits_name_no_thread,
                probes: std::mem::take(&mut records.decoder.probes),
            };
            let written = write(&table.put());
            records.decoder.probes = table.probes;
            written?;
        }
        let mut taken = 0;
        records.hand_on(self.attached.segments(), |records, ring| {
            let saved = records.save_ring(ring, number, write)?;
            taken += saved.unwrap_or(0);
            Ok::<bool, E>(saved.is_some())
        })?;
        if !records.saved.fresh.is_empty() {
            let fresh = std::mem::take(&mut records.saved.fresh);
            self.names.look(self.process.pid(), &self.children, &fresh, false);
            let names: Vec<_> = fresh.iter().map(|&tid| (tid, self.names.get(tid).comm)).collect();
            write(&put_names(number, &names))?;
        }
        self.save_losses(records, number, last, write)?;
        Ok(taken)
    }
    fn save_losses<E>(
        &self,
        records: &mut Records,
        number: u32,
        last: bool,
        write: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (at, before) = records.saved.losses.unwrap_or((Instant::now(), 0));
        if !last && records.saved.losses.is_some() && at.elapsed() < LOSSES_EVERY {
            return Ok(());
        }
        let losses = self.losses();
        let sum = losses.iter().map(|loss| loss.records).fold(0, u64::wrapping_add);
        records.saved.losses = Some((Instant::now(), sum));
        if sum == before { Ok(()) } else { write(&put_losses(number, &losses)) }
    }
    /// Dropped records, by probe and CPU.
    fn losses(&self) -> Vec<Loss> {
        let mut losses = Vec::new();
        let owned = self.attached.counts_by_cpu();
        for tracked in self.sites.iter().filter(|tracked| tracked.is_recorded()) {
            for source in &tracked.sources {
                let Source::Counter { segment, index, .. } = *source else { continue };
                let home = &self.attached.segments()[segment];
                let area = home.counters();
                for line in 0..area.lines {
                    let records = area.read_line(home.view(), index, line);
                    let cpu = (owned && line + 1 < area.lines).then_some(line);
                    let loss = Loss { segment: segment as u32, probe: index, cpu, records };
                    losses.extend((records > 0).then_some(loss));
                }
            }
        }
        losses
    }
}
