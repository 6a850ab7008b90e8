//! A small file with a block of every kind, to test and to fuzz.

use std::sync::Arc;

use trapline_record::ring::{FIRST_TEXT, RecordKind as Records, TEXT_WORDS};

use super::frame::{BLOCK, HEAD, Kind, Put};
use super::pack::pack;
use super::tables::{Loss, Round, Table, begin, end, put_losses, put_names};
use crate::decode::{Clock, ProbeFacts, Probes, Shape};
use crate::report::{Site, Tactic};
use crate::values::Values;

/// Bytes of its ring slots.
const SLOT: usize = 256;
const CLOCK: Clock = (1000, 0.5);

pub(super) fn site(name: &str, offset: u64) -> Arc<Site> {
    Arc::new(Site {
        probe: format!("uprobe:/bin/x:{name}"),
        aliases: vec![format!("uprobe:/bin/x:{name}_alias")],
        file: "/bin/x".to_owned(),
        offset,
        label: name.to_owned(),
        tactic: Tactic::Jump,
        slot: 0,
    })
}

/// A function of which everything is recorded, and one of which only entries are.
fn probes() -> Probes {
    let mut probes = Probes::default();
    let shape = Some(Shape { values: 6, texts: 1, floats: 2, fields: vec![8], kept: Vec::new() });
    probes.set(
        0,
        3,
        ProbeFacts {
            site: site("f", 0x1000),
            waits: true,
            shape,
            results: trapline_plan::Results::INTEGER,
            values: Values::AsRecorded,
            is_libcall: false,
            late: None,
        },
    );
    probes.set(
        1,
        0,
        ProbeFacts {
            site: site("g", 0x2000),
            waits: false,
            shape: None,
            results: trapline_plan::Results::INTEGER,
            values: Values::AsRecorded,
            is_libcall: false,
            late: None,
        },
    );
    probes
}

/// A record of probe 3: word n is n, except for its texts.
pub(super) fn slot(kind: Records, tid: u32, ticks: u64, sp: u64) -> Vec<u8> {
    let mut words: Vec<u64> = (0..SLOT as u64 / 8).collect();
    (words[0], words[1], words[2]) = (3 | u64::from(tid) << 32, ticks, sp | kind as u64);
    let text = FIRST_TEXT as usize;
    (words[text], words[text + 1]) = (8, u64::from_le_bytes(*b"a text\0!"));
    words[text + TEXT_WORDS + 1] = 8;
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}

pub(super) fn slots(process: u32, segment: u32, slot: usize, slots: &[Vec<u8>]) -> Vec<u8> {
    let mut block = Put::block(Kind::Slots);
    block.u32(process).u32(segment).u32(1).u32(slot as u32);
    pack(&slots.concat(), slot, &mut block.0);
    block.done()
}

/// Gives each block of a file the checksum of what it holds, as far as blocks follow each other. So changed bytes are read by
/// what is behind the checksum.
pub fn reseal(file: &mut [u8]) {
    let mut at = HEAD;
    while let Some(head) = file.get(at..at + BLOCK) {
        let len = head[8..].try_into().map_or(u64::MAX, u64::from_le_bytes);
        let end = usize::try_from(len).ok().and_then(|len| (at + BLOCK).checked_add(len));
        let Some(block) = end.and_then(|end| file.get_mut(at..end)) else { return };
        Put::close(block);
        at += block.len();
    }
}

/// The file.
#[must_use]
pub fn example() -> Vec<u8> {
    let table =
        Table { process: 0, pid: 7, name: "demo".to_owned(), exits_name_no_thread: false, probes: probes() };
    let loss = |cpu, records| Loss { segment: 0, probe: 3, cpu, records };
    let first = [slot(Records::Entry, 8, 2000, 0x90), slot(Records::Entry, 9, 2100, 0x190)];
    let scribbled = vec![0xff; SLOT];
    let second = [scribbled, slot(Records::Return, 8, 3000, 0x90)];
    [
        begin(CLOCK, b"a note"),
        table.put(),
        slots(0, 0, SLOT, &first),
        put_names(0, &[(8, Some("main\x1b".to_owned())), (9, None)]),
        Round { clock: CLOCK, processes: 1, until: Some(2500) }.put(),
        slots(0, 0, SLOT, &second),
        put_losses(0, &[loss(Some(1), 5), loss(None, 2)]),
        Round { clock: CLOCK, processes: 1, until: None }.put(),
        end(b"an end"),
    ]
    .concat()
}
