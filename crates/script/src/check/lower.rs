//! Loads of a block → what the record of a hit must hold.
//!
//! In: a checked block of a program's probes. Out: its reads, texts and the bytes of what was returned, in
//! [`Needs`](crate::program::Needs); a message for each load that no record can hold. Loads that lie near each other
//! become one. Invariant: each load of the block has its bytes in the record, or there is a message.
//! Does not: load.

use std::collections::BTreeMap;

use trapline_order::Order as _;

use super::addresses::{Address, Finder, Origin, Unknown};
use super::checker::Checker;
use super::parts::Parts;
use crate::calls::Meaning;
use crate::diagnostic::{At, Diagnostic};
use crate::memory::{FileVariable, MOST_READS, READ_BYTES, RETURNED_BYTES, Read, Root};
use crate::program::{Op, Step, Typed};
use crate::types::Type;

/// Number of a function's arguments that are in registers of every record.
const REGISTERS: u8 = 6;
/// A page that no program has.
const FIRST_PAGE: i64 = 4096;

/// What is loaded through the same pointers: where it begins and ends.
type Spans = BTreeMap<(Root, Vec<i32>), Vec<(i64, i64)>>;

/// What one block needs of a record.
#[derive(Default)]
struct Wanted {
    spans: Spans,
    texts: Vec<u8>,
    returned: u32,
    /// Values that are no arguments in registers.
    values: Vec<Read>,
    /// Whether the probed instruction's address is asked for.
    place: bool,
    wrong: Vec<Unknown>,
}

impl Checker<'_> {
    /// Notes what a block's loads need.
    pub(super) fn lower(&mut self, body: &[Step], sort: &'static str) {
        let mut wanted = self.wanted(&Parts::of(body));
        let reads = wanted.reads();
        let Wanted { texts, returned, place, wrong, .. } = wanted;
        for Unknown { why, at } in wrong {
            let message =
                format!("what is behind a pointer of the program is not recorded at hits of {sort} probes");
            self.say(Diagnostic::error(message, at).hint(why));
        }
        if reads.len() > MOST_READS {
            let (at, count) = (self.tree.probes[self.block].body.span, reads.len());
            self.error(
                format!("the block needs {count} loads of the program's memory; a record holds {MOST_READS}"),
                at,
            );
        }
        self.needs.reads = reads;
        self.needs.texts = texts;
        self.needs.place = place;
        self.needs.returned_text = self.needs.returned_text.max(returned as u16);
    }
    /// What the loads of a block's expressions want, and which of them nothing can give.
    fn wanted(&self, parts: &Parts<'_>) -> Wanted {
        let mut finder = Finder::new(parts);
        let (at_mark, at_entry) = (self.sorts.contains(&"usdt"), self.sorts.contains(&"uprobe"));
        let mut wanted = Wanted::default();
        for expr in &parts.exprs {
            for (address, bytes) in loads(expr) {
                match finder.values(address) {
                    Ok(all) => all.iter().for_each(|one| wanted.load(one, bytes, &expr.at, at_mark)),
                    Err(unknown) => wanted.wrong.push(unknown),
                }
            }
            match &*expr.op {
                Op::Call { meaning: Meaning::Argument(nth), .. } if *nth >= REGISTERS && at_entry => {
                    wanted.value(Root::Argument(*nth));
                }
                Op::Call { meaning: Meaning::Reg, args } if at_entry && !at_mark => {
                    match args.first().and_then(Typed::literal).unwrap_or_default() {
                        b"ip" | b"pc" => wanted.place = true,
                        name => {
                            wanted.value(Root::Register(String::from_utf8_lossy(name).into_owned().into()))
                        }
                    }
                }
                Op::Call { meaning: Meaning::Uaddr, args } if at_entry => {
                    wanted.value(Root::Variable(variable(args)));
                }
                _ => {}
            }
        }
        wanted
    }
}

/// The variable that the arguments of `uaddr` name, once they are checked.
pub(super) fn variable(args: &[Typed]) -> FileVariable {
    let name =
        String::from_utf8_lossy(args.first().and_then(Typed::literal).unwrap_or_default()).into_owned();
    let at = args.get(1).and_then(Typed::constant).unwrap_or(0) as u64;
    FileVariable { name: name.into(), at, size: 0 }
}

/// The addresses from which an expression itself loads, with the number of bytes.
fn loads(expr: &Typed) -> Vec<(&Typed, u32)> {
    let by_address =
        |of: &Typed| of.ty.is_number() && of.literal().is_none() || matches!(of.ty, Type::Pointer(_));
    match &*expr.op {
        Op::Load { address, .. } => {
            // The type of a text in a structure has one byte more.
            let size = if let Type::Text(size) = &expr.ty { size.saturating_sub(1) } else { expr.ty.size() };
            vec![(address, size)]
        }
        Op::Call { meaning, args } => {
            let Some(first) = args.first() else { return Vec::new() };
            match meaning {
                Meaning::Str if by_address(first) => {
                    let length =
                        args.get(1).and_then(Typed::constant).map_or(u32::MAX, |length| length.max(0) as u32);
                    vec![(first, expr.ty.size().min(length))]
                }
                Meaning::Buf if by_address(first) => {
                    let Type::Buffer(most) = expr.ty else { return Vec::new() };
                    let length =
                        args.get(1).and_then(Typed::constant).map_or(u32::MAX, |length| length.max(0) as u32);
                    vec![(first, most.min(length))]
                }
                Meaning::Macaddr if by_address(first) => vec![(first, 6)],
                Meaning::Strncmp
                | Meaning::Strstr
                | Meaning::Strcontains
                | Meaning::Strlen
                | Meaning::StrConcat => {
                    let texts = args.iter().filter(|arg| matches!(arg.ty, Type::Pointer(_)));
                    texts.map(|arg| (arg, READ_BYTES)).collect()
                }
                _ => Vec::new(),
            }
        }
        _ => Vec::new(),
    }
}

impl Wanted {
    fn value(&mut self, root: Root) {
        let read = Read { root, offsets: Vec::new(), bytes: 8 };
        if !self.values.contains(&read) {
            self.values.push(read);
        }
    }
    /// A load from an address.
    fn load(&mut self, from: &Address, bytes: u32, at: &At, at_mark: bool) {
        let first = *from.through.first().unwrap_or(&from.add);
        let done = match &from.origin {
            Origin::Own if from.through.is_empty() => Ok(()),
            Origin::Own => Err("the pointer is in a variable of the script to which a pointer leads"),
            // What is behind no pointer at all cannot be read by any program.
            Origin::Constant if (0..FIRST_PAGE).contains(&first) => Ok(()),
            Origin::Constant => Err("its address is a number of the script, and no value of the hit"),
            Origin::Returned => self.returned(from, bytes),
            Origin::Root(Root::Argument(nth)) if at_mark => self.at_mark(*nth, from, bytes),
            Origin::Root(root) => self.at_entry(root, from, bytes),
        };
        if let Err(why) = done {
            self.wrong.push(Unknown { why, at: at.clone() });
        }
    }
    fn returned(&mut self, from: &Address, bytes: u32) -> Result<(), &'static str> {
        let end = from.add.saturating_add(i64::from(bytes));
        if !from.through.is_empty() || from.add < 0 || end > i64::from(RETURNED_BYTES) {
            return Err(
                "of what a returned value points to, the first 4096 bytes are recorded, and no further pointers",
            );
        }
        self.returned = self.returned.max(end as u32);
        Ok(())
    }
    /// At a USDT probe, a record holds the first bytes of what an argument points to.
    fn at_mark(&mut self, nth: u8, from: &Address, bytes: u32) -> Result<(), &'static str> {
        let end = from.add.saturating_add(i64::from(bytes));
        if !from.through.is_empty() || from.add < 0 || end > i64::from(READ_BYTES) {
            return Err(
                "of what an argument of a usdt probe points to, the first 64 bytes are recorded, and no further pointers",
            );
        }
        self.text(nth);
        Ok(())
    }
    fn text(&mut self, nth: u8) {
        if !self.texts.contains(&nth) {
            self.texts.push(nth);
        }
    }
    fn at_entry(&mut self, root: &Root, from: &Address, bytes: u32) -> Result<(), &'static str> {
        if let Root::Argument(nth) = root
            && *nth < REGISTERS
            && from.through.is_empty()
            && from.add == 0
            && bytes == READ_BYTES
        {
            self.text(*nth);
            return Ok(());
        }
        let mut through = Vec::new();
        for step in &from.through {
            self.span(root, &through, *step, 8);
            through.push(i32::try_from(*step).map_err(|_| "it is too far from its pointer")?);
        }
        i32::try_from(from.add.saturating_add(i64::from(bytes)))
            .map_err(|_| "it is too far from its pointer")?;
        i32::try_from(from.add).map_err(|_| "it is too far from its pointer")?;
        self.span(root, &through, from.add, bytes);
        Ok(())
    }
    fn span(&mut self, root: &Root, through: &[i32], from: i64, bytes: u32) {
        if bytes > 0 {
            let spans = self.spans.entry((root.clone(), through.to_vec())).or_default();
            spans.push((from, from + i64::from(bytes)));
        }
    }
    /// All loads: those of one structure are put together as far as one load reaches.
    fn reads(&mut self) -> Vec<Read> {
        let mut reads = std::mem::take(&mut self.values);
        for ((root, through), spans) in &mut self.spans {
            spans.order();
            for (from, to) in joined(spans) {
                let offsets = through.iter().copied().chain([from as i32]).collect();
                reads.push(Read { root: root.clone(), offsets, bytes: (to - from) as u8 });
            }
        }
        reads
    }
}

/// Covers sorted spans by pieces that one load can read. A span that fits into one piece is not divided.
fn joined(spans: &[(i64, i64)]) -> Vec<(i64, i64)> {
    const MOST: i64 = READ_BYTES as i64;
    let mut pieces: Vec<(i64, i64)> = Vec::new();
    for &(mut from, to) in spans {
        if let Some(last) = pieces.last_mut() {
            let room = last.0 + MOST;
            if to <= room {
                last.1 = last.1.max(to);
                continue;
            }
            // What is longer than a piece begins in the one before it.
            if to - from > MOST && from < room {
                last.1 = room;
                from = room;
            }
        }
        while from < to {
            pieces.push((from, to.min(from + MOST)));
            from += MOST;
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::joined;

    #[test]
    fn near_spans_become_one_piece() {
        assert_eq!(joined(&[(0, 4), (2, 3), (8, 16), (60, 64)]), [(0, 64)]);
        assert_eq!(joined(&[(0, 4), (60, 68)]), [(0, 4), (60, 68)], "a word is not divided");
        assert_eq!(joined(&[(0, 150)]), [(0, 64), (64, 128), (128, 150)]);
        assert_eq!(joined(&[(-8, 0), (40, 120)]), [(-8, 56), (56, 120)]);
        assert_eq!(joined(&[(0, 64), (0, 100)]), [(0, 64), (64, 100)]);
        assert_eq!(joined(&[]), []);
    }
}
