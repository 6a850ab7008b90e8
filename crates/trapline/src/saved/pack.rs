//! Packs a ring's slots into fewer bytes, and unpacks them.
//!
//! In: ring slots as [`trapline_record::ring`] lays them out; packed ones, which may hold anything. Out: the
//! other form. Invariants: PACK-1 unpacking gives what was packed, whatever the slots hold. PACK-2 unpacking
//! ends at [`MOST`] bytes, 1 MiB. Does not: know what a record's words mean, except which records follow each
//! other.
//!
//! Records of one kind and probe differ little: clocks go on, threads stay, pointers are near each other. So
//! a word is stored as its difference from the same word of the record before it in its row, in as many bytes
//! as the difference has. (Lengths are apart from the bytes of differences, as in Dean's group varint, WSDM
//! 2009.) A record with three arguments takes 13 bytes in 22 to 28 ns this way, where LZ4 (lz4_flex) took 21
//! bytes in 60 ns (`tools/bench/runs/2026-11-23-amd-25-1-one-run`). A packed record:
//!
//! | bytes | hold |
//! |---|---|
//! | 1 | its row, 0 to 15, as the writer chooses |
//! | one for each two words | how many bytes each has, 0 to 8: the first in the low half |
//! | as many as these state | the words' differences, low byte first: |
//! | | twice the difference, with all bits inverted if it is negative |
//!
//! The first record of a row differs from zeros; rows begin anew in each block.

use trapline_record::ring::KIND_MASK;

/// Most bytes of slots in a block.
pub(crate) const MOST: usize = 1 << 20;

/// Number of rows.
const ROWS: usize = 16;
const WORD: usize = 8;

/// Row of a record: with few probes, each has one row for each kind of record.
fn row(words: &[[u8; WORD]]) -> usize {
    let word = |nth: usize| words.get(nth).map_or(0, |&word| u64::from_le_bytes(word));
    let (probe, kind) = (u64::from(word(0) as u32), word(2) & KIND_MASK);
    (probe * 4 + kind) as usize % ROWS
}

/// Folds a difference so that values near 0 on either side become small.
const fn folded(difference: u64) -> u64 {
    difference << 1 ^ ((difference as i64 >> 63) as u64)
}

const fn unfolded(value: u64) -> u64 {
    value >> 1 ^ (value & 1).wrapping_neg()
}

/// Appends packed slots; at most [`MOST`] bytes of them, all with the same number of words, which must be
/// even.
pub(crate) fn pack(slots: &[u8], slot: usize, into: &mut Vec<u8>) {
    let zeros = vec![[0; WORD]; slot / WORD];
    let mut before: [&[[u8; WORD]]; ROWS] = [&zeros; ROWS];
    let mut at = into.len();
    // No word takes more bytes than itself.
    into.resize(at + slots.len() / slot * (1 + slot / WORD / 2 + slot), 0);
    for slot in slots.chunks_exact(slot) {
        let words = slot.as_chunks::<WORD>().0;
        let row = row(words);
        into[at] = row as u8;
        let (mut lens, pairs) = (at + 1, words.as_chunks::<2>().0);
        at = lens + pairs.len();
        for (now, before) in pairs.iter().zip(before[row].as_chunks::<2>().0) {
            let mut put = |nth: usize| {
                let difference = u64::from_le_bytes(now[nth]).wrapping_sub(u64::from_le_bytes(before[nth]));
                let value = folded(difference);
                let len = (u64::BITS - value.leading_zeros()).div_ceil(8);
                into[at..at + WORD].copy_from_slice(&value.to_le_bytes());
                at += len as usize;
                len as u8
            };
            let (low, high) = (put(0), put(1));
            into[lens] = low | high << 4;
            lens += 1;
        }
        before[row] = words;
    }
    into.truncate(at);
}

/// Unpacks slots. `None` if the bytes were not packed this way, or are more than [`MOST`] bytes.
pub(crate) fn unpack(mut packed: &[u8], slot: usize) -> Option<Vec<u8>> {
    let mut slots = Vec::new();
    let mut before = [None; ROWS];
    while let Some((&row, rest)) = packed.split_first() {
        let before = before.get_mut(usize::from(row))?;
        let (lens, mut rest) = rest.split_at_checked(slot / WORD / 2)?;
        let start = slots.len();
        if start + slot > MOST {
            return None;
        }
        let each = lens.iter().flat_map(|&len| [len & 15, len >> 4]).enumerate();
        for (nth, len) in each {
            let (bytes, behind) = rest.split_at_checked(usize::from(len))?;
            let mut value = [0; WORD];
            value.get_mut(..bytes.len())?.copy_from_slice(bytes);
            let mut word = [0; WORD];
            if let Some(before) = *before {
                let at: usize = before + nth * WORD;
                word.copy_from_slice(slots.get(at..at + WORD)?);
            }
            let word = u64::from_le_bytes(word).wrapping_add(unfolded(u64::from_le_bytes(value)));
            slots.extend_from_slice(&word.to_le_bytes());
            rest = behind;
        }
        (*before, packed) = (Some(start), rest);
    }
    Some(slots)
}

#[cfg(test)]
mod tests {
    use super::{MOST, pack, unpack};

    fn packed(words: &[u64], slot: usize) -> Vec<u8> {
        let slots: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut packed = b"head".to_vec();
        pack(&slots, slot, &mut packed);
        assert_eq!(&packed[..4], b"head");
        let packed = packed.split_off(4);
        assert_eq!(unpack(&packed, slot).as_deref(), Some(&slots[..]), "{words:x?}");
        packed
    }

    #[test]
    fn the_layout_is_a_contract() {
        let first = [7 << 32 | 3, 1000, 0x7ffd_1000, 5, u64::MAX, 0, 0, 1 << 63];
        let second = [7 << 32 | 3, 1200, 0x7ffd_1000, 6, 0, 0, 0, 1 << 63];
        let other = [7 << 32 | 3, 1201, 0x7ffd_1001, 5, 0, 0, 0, 0];
        assert_eq!(
            packed(&[first, second, other].concat(), 64),
            [
                &b"\x0c\x25\x14\x01\x80\x06\0\0\0\x0e\xd0\x07\0\x20\xfa\xff\x0a\x01"[..],
                b"\xff\xff\xff\xff\xff\xff\xff\xff",
                b"\x0c\x20\x10\x01\0\x90\x01\x02\x02",
                b"\x0d\x25\x14\0\0\x06\0\0\0\x0e\x62\x09\x02\x20\xfa\xff\x0a",
            ]
            .concat()
        );
    }

    /// PACK-1, for words of every length on both sides of the previous one, in slots of every size.
    #[test]
    fn what_was_packed_is_what_is_unpacked() {
        let mut seed = 11_u64;
        let mut chance = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seed ^ seed >> 31
        };
        for slot in [64, 128, 256, 4096] {
            let words: Vec<u64> = (0..slot * 4).map(|_| chance() >> (chance() % 64)).collect();
            let len = packed(&words, slot).len();
            assert!(len < words.len() * 8);
            packed(&(0..slot as u64).map(|_| chance()).collect::<Vec<_>>(), slot);
        }
        for edge in [0, 1, 1 << 63, u64::MAX, 0x7f, 0x80, 0xff, 0x100, u64::MAX >> 1] {
            for before in [0, 1, 1 << 63, u64::MAX] {
                packed(&[[before; 8], [edge; 8], [before; 8]].concat(), 64);
            }
        }
        assert_eq!(packed(&[], 64), [0; 0]);
    }

    #[test]
    fn what_nobody_packed_is_refused() {
        let whole = packed(&(0..16).collect::<Vec<u64>>(), 64);
        assert!((1..whole.len()).all(|cut| unpack(&whole[..cut], 64).is_some_and(|slots| slots.len() == 64)
            == (cut == whole.len() / 2)));
        for (at, byte) in [(0, 16), (1, 9), (1, 0x90)] {
            let mut wrong = whole.clone();
            wrong[at] = byte;
            // Long enough that only the changed byte is wrong.
            wrong.resize(64, 0);
            assert_eq!(unpack(&wrong, 64), None, "{at}");
        }
        // PACK-2: only zeros, of which five bytes are a slot.
        assert_eq!(unpack(&vec![0; MOST / 64 * 5], 64).map(|slots| slots.len()), Some(MOST));
        assert_eq!(unpack(&vec![0; MOST / 64 * 5 + 5], 64), None);
    }
}
