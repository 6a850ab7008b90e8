//! What `Accessor` says of loads and stores, against a second decoder (INSN-4); `store_native` compares with
//! execution.

use disarm64::InsnOpcode as _;
use disarm64::decoder;
use trapline_insn::aarch64::Accessor;

use super::words::sweep;

/// `Accessor` covers every load and store except those that its module excludes, and no other instruction.
#[test]
fn loads_and_stores_are_those_of_a_second_decoder() {
    let looked = sweep(|word| {
        let ours = Accessor::decode(word, 0);
        let theirs = decoder::decode(word).map(|one| one.definition().mnemonic);
        let theirs = theirs.filter(|name| accesses(name) && !is_left_out(word, name));
        match (ours, theirs) {
            (None, Some(name)) => Some(format!("they say {name}, we nothing")),
            (Some(one), Some(name)) if one.writes() != writes(name) => {
                Some(format!("they say {name}, and that it writes: {}", writes(name)))
            }
            (Some(one), Some(name)) => {
                let is_exclusive = name.starts_with("stx") || name.starts_with("stlx");
                (one.is_exclusive() != is_exclusive).then(|| format!("{name}: exclusive: {is_exclusive}"))
            }
            // Which encodings of a name are allocated is checked by executing them.
            (Some(_), None) => decoder::decode(word)
                .map(|one| one.definition().mnemonic)
                .map(|name| format!("they say {name}, we that it accesses memory")),
            (None, None) => None,
        }
    });
    println!("{looked} words");
}

const CHANGES: [&str; 8] = ["ldadd", "ldclr", "ldeor", "ldset", "ldsmax", "ldsmin", "ldumax", "ldumin"];

fn accesses(name: &str) -> bool {
    ["ld", "st", "cas", "swp"].iter().any(|start| name.starts_with(start))
}

fn writes(name: &str) -> bool {
    ["st", "cas", "swp"].iter().chain(&CHANGES).any(|start| name.starts_with(start))
}

/// Excluded: vectors of SVE and SME, tags, blocks of 64 bytes, accesses of 128 bits, and later extensions
/// (FEAT_LRCPC3, FEAT_LSUI, FEAT_LSFE, FEAT_THE, FEAT_GCS).
fn is_left_out(word: u32, name: &str) -> bool {
    let is_of_the_group = word & 0x0A00_0000 == 0x0800_0000;
    let tags = ["stg", "stzg", "st2g", "stz2g", "ldg", "stgp", "stgm", "stzgm", "ldgm"];
    let blocks = ["ld64b", "st64b", "st64bv", "st64bv0"];
    let ordered = ["ldiapp", "stilp", "ldap1", "stl1", "ldap", "ldapp", "stlp"];
    let is_ordered_vector = word & 0x3F20_0C00 == 0x1D00_0800;
    let is_ordered_back = word & 0x3FA0_0C00 == 0x1980_0800;
    let is_wide = ["swpp", "ldclrp", "ldsetp"].iter().any(|start| name.starts_with(start));
    let is_unprivileged = word & 0x3F00_0000 == 0x0900_0000
        || word & 0x3F20_0C00 == 0x1920_0400
        || word & 0x3A00_0000 == 0x2800_0000 && word >> 30 == 3;
    let is_of_floats = word & 0x3F20_0C00 == 0x3C20_0000;
    !is_of_the_group
        || tags.contains(&name)
        || blocks.contains(&name)
        || ordered.contains(&name)
        || is_ordered_vector
        || is_ordered_back
        || is_wide
        || is_unprivileged
        || is_of_floats
        || is_unallocated(word)
}

/// Words that the second decoder decodes, though the manual leaves them unallocated: offsets by half a
/// register, vectors of 16 bytes with another size, elements that do not fit their index.
const fn is_unallocated(word: u32) -> bool {
    let by_register = word & 0x3B20_4C00 == 0x3820_0800;
    let wide_vector = word & 0x3E80_0000 == 0x3C80_0000 && word >> 30 != 0;
    let one = word & 0xBF00_0000 == 0x0D00_0000
        && match word >> 14 & 3 {
            0 => false,
            3 => word >> 22 & 1 == 0 || word >> 12 & 1 == 1,
            1 => word >> 10 & 1 == 1,
            _ => word >> 11 & 1 == 1 || word >> 10 & 1 == 1 && word >> 12 & 1 == 1,
        };
    let opcode = word >> 12 & 15;
    let half = word >> 30 == 0 && word >> 10 & 3 == 3 && opcode & 3 == 0;
    let several = word & 0xBF00_0000 == 0x0C00_0000 && (half || matches!(opcode, 1 | 3 | 5 | 9 | 11..));
    let literal = word >> 24 == 0xDC;
    by_register || wide_vector || one || several || literal
}
