//! What `Accessor` says of stores, against execution (INSN-4).

use super::classes::Class;
use super::machine::{Machine, Registers, STACK};
use super::{Rng, setting};
use trapline_insn::aarch64::{Accessor, Regs};
use trapline_insn::effect::Stored;

const fn class(name: &'static str, mask: u32, fixed: u32) -> Class {
    Class { name, mask, fixed }
}

const STORES: &[Class] = &[
    class("stp w", 0xFE40_0000, 0x2800_0000),
    class("stp x", 0xFE40_0000, 0xA800_0000),
    class("stp s", 0xFE40_0000, 0x2C00_0000),
    class("stp q", 0xFE40_0000, 0xAC00_0000),
    class("str imm9", 0x3FE0_0000, 0x3800_0000),
    class("str v imm9", 0x3F60_0000, 0x3C00_0000),
    class("str imm12", 0x3FC0_0000, 0x3900_0000),
    class("str v imm12", 0x3F40_0000, 0x3D00_0000),
    class("str register", 0x3FE0_4C00, 0x3820_4800),
    class("str v register", 0x3F60_4C00, 0x3C20_4800),
    class("ldadd and kin", 0x3F20_8C00, 0x3820_0000),
    class("swp", 0x3F20_FC00, 0x3820_8000),
    class("cas", 0x3FA0_7C00, 0x08A0_7C00),
    class("casp", 0xBFA1_7C01, 0x0820_7C00),
    class("stlr", 0x3FFF_FC00, 0x089F_FC00),
    class("stlur", 0x3FE0_0C00, 0x1900_0000),
    class("stxr", 0x3FE0_7C00, 0x0800_7C00),
    class("st1 to st4", 0xBFFF_0000, 0x0C00_0000),
    class("st1 to st4, post", 0xBFE0_0000, 0x0C80_0000),
    class("st1 to st4, one", 0xBFDF_0000, 0x0D00_0000),
];

/// The input of a run.
struct Run {
    one: Accessor,
    before: Registers,
    regs: Regs,
    /// Address of the first byte that it accesses.
    at: u64,
    len: u64,
}

impl Run {
    fn new(class: &Class, machine: &Machine, rng: &mut Rng) -> Option<Self> {
        let word = class.word(rng.next() as u32);
        let pc = machine.middle();
        let one = Accessor::decode(word, pc)?;
        let (base, index) = ((word >> 5 & 31) as usize, (word >> 16 & 31) as usize);
        // If the base register is also stored or loaded, and written back, the result is unpredictable.
        if [word & 31, word >> 10 & 31, word >> 16 & 31].contains(&(base as u32)) {
            return None;
        }
        let mut x: [u64; 31] = std::array::from_fn(|_| match rng.below(4) {
            0 => rng.next(),
            1 => rng.below(3),
            2 => u64::MAX - rng.below(3),
            _ => rng.next() >> 32,
        });
        if let Some(index) = x.get_mut(index).filter(|_| class.name.ends_with("register")) {
            *index = match rng.below(3) {
                0 => rng.below(200),
                1 => rng.below(200).wrapping_neg(),
                _ => rng.below(200) | rng.next() << 32,
            };
        }
        let middle = machine.stack + STACK as u64 / 2 + 64 * rng.below(16);
        // The processor ignores the top byte of an address.
        let tag = rng.below(2) * 0xA5 << 56;
        if let Some(base) = x.get_mut(base) {
            *base = (middle + rng.below(2) * rng.below(64)) | tag;
        }
        let v = std::array::from_fn(|_| u128::from(rng.next()) << 64 | u128::from(rng.next()));
        let before = Registers { x, sp: middle, pc, nzcv: 0, v };
        let regs = Regs { x, sp: middle, pc, pstate: 0 };
        let whole = one.effect(&regs, 0, 255);
        let (at, len) = (whole.at?, u64::from(whole.len));
        let inside = at >= machine.stack && at + len <= machine.stack + STACK as u64;
        // These were made so that they access the inside of the stack. If `effect` says outside, it is
        // wrong.
        let near = match class.name.ends_with("register") {
            true => word >> 13 & 7 == 6,
            false => !class.name.ends_with("imm12"),
        };
        assert!(inside || !near, "{}: {word:#010x}: {at:#x} on {before:x?}", class.name);
        machine.place(pc, &[word]);
        machine.pad(pc + 4);
        inside.then_some(Self { one, before, regs, at, len })
    }
    /// Compares memory before and after with what `effect` says of some bytes in it.
    fn check(&self, name: &str, start: u64, old: &[u8], new: &[u8], rng: &mut Rng) -> bool {
        let from = (self.at - start) as usize;
        let end = from + self.len as usize;
        assert!(old[..from] == new[..from] && old[end..] == new[end..], "{name}: {self:x?} stores beside");
        let watched = 1_u64 << rng.below(4);
        let at = (self.at + rng.below(self.len)) & !(watched - 1);
        let known = self.one.effect(&self.regs, at, watched as u8);
        let Some(place) = known.at.filter(|_| known.len <= 8) else { return false };
        let word = |memory: &[u8]| {
            let bytes = &memory[(place - start) as usize..][..known.len as usize];
            bytes.iter().rev().fold(0_u64, |word, byte| word << 8 | u64::from(*byte))
        };
        let after = match known.stored {
            Stored::Value { new, .. } => new,
            Stored::Changed(op) => op.apply(word(old), known.size),
            _ => return false,
        };
        assert_eq!(after, word(new), "{name}: {self:x?}: {known:x?}, over {:#x}", word(old));
        true
    }
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} on {:x?}", self.one, self.before)
    }
}

#[test]
fn stores_leave_what_is_reported() {
    let (machine, mut rng) = (Machine::new(), Rng(0x0570_4E50));
    let runs = setting("TRAPLINE_A64_RUNS", 100_000).max(4000) / 20;
    let around = 4096;
    for class in STORES {
        let (mut ran, mut known) = (0, 0);
        for _ in 0..runs {
            let Some(run) = Run::new(class, &machine, &mut rng) else { continue };
            let start = machine.stack.max(run.at.saturating_sub(around));
            let end = (machine.stack + STACK as u64).min(run.at + around);
            let mut old = vec![0; (end - start) as usize];
            old.iter_mut().for_each(|byte| *byte = rng.next() as u8);
            // In half of all compare-and-swaps the comparison succeeds.
            let expected = run.before.x[(rng.next() % 31) as usize].to_le_bytes();
            let at = (run.at - start) as usize;
            if let Some(place) = old.get_mut(at..at + 8).filter(|_| rng.below(2) == 0) {
                place.copy_from_slice(&expected);
            }
            machine.write(start, &old);
            let (_, signal) = machine.run(run.before.pc, &run.before);
            if signal.is_some() {
                continue;
            }
            let mut new = vec![0; old.len()];
            machine.read(start, &mut new);
            ran += 1;
            known += u64::from(run.check(class.name, start, &old, &new, &mut rng));
        }
        println!("{:20} {ran} ran, of {known} the value was known", class.name);
        assert!(ran * 20 > runs, "{}: {ran} of {runs}", class.name);
    }
}
