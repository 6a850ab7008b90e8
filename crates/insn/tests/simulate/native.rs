//! A million random states of each class, compared with the instruction itself.

use crate::machine::{AREA, FLAGS, Machine, Rng};
use crate::states::{aim, state};
use trapline_insn::x86_64::Options;
use trapline_insn::x86_64::simulate::{Memory, Op, Size, Verdict, simulate, verdict};

const STATES: u64 = 1 << 20;
/// Number of states for each encoding.
const PER_ENCODING: u64 = 256;

/// The machine's memory, as a model.
struct Area {
    start: u64,
    bytes: [u8; AREA],
}

impl Area {
    fn range(&self, addr: u64, size: Size) -> Result<std::ops::Range<usize>, u64> {
        let at = addr.wrapping_sub(self.start);
        let fits = at <= (AREA - size as usize) as u64;
        if fits { Ok(at as usize..at as usize + size as usize) } else { Err(addr) }
    }
}

impl Memory for Area {
    fn load(&mut self, addr: u64, size: Size) -> Result<u64, u64> {
        let mut word = [0; 8];
        word[..size as usize].copy_from_slice(&self.bytes[self.range(addr, size)?]);
        Ok(u64::from_le_bytes(word))
    }
    fn store(&mut self, addr: u64, size: Size, value: u64) -> Result<(), u64> {
        let range = self.range(addr, size)?;
        self.bytes[range].copy_from_slice(&value.to_le_bytes()[..size as usize]);
        Ok(())
    }
}

#[test]
fn nops_of_every_form() {
    class(1, |rng| match rng.below(6) {
        0 => vec![0x90],
        1 => vec![rng.pick(&[0x66, 0x2E, 0xF2, 0x48, 0x67]), 0x90],
        2 => rng.pick(&[[0xF3, 0x0F, 0x1E, 0xFA], [0xF3, 0x0F, 0x1E, 0xFB]]).to_vec(),
        _ => modrm(rng, &[0x0F, 0x1F], None, 0),
    });
}

#[test]
fn pushes() {
    class(2, |rng| match rng.below(5) {
        0 => [&[0x6A], &random(rng, 1)[..]].concat(),
        1 => [&[0x68], &random(rng, 4)[..]].concat(),
        2 => modrm(rng, &[0xFF], Some(6), 0),
        _ => with_rex(rng, 0x50),
    });
}

#[test]
fn pops() {
    class(3, |rng| match rng.below(3) {
        0 => modrm(rng, &[0x8F], Some(0), 0),
        1 => vec![0xC9],
        _ => with_rex(rng, 0x58),
    });
}

#[test]
fn moves() {
    class(4, |rng| match rng.below(8) {
        0 => {
            let wide = rng.one_in(2);
            let rex = rng.below(16) as u8;
            let size = if !wide {
                1
            } else if rex & 8 != 0 {
                8
            } else {
                4
            };
            let opcode = 0xB0 | if wide { 8 } else { 0 } | rng.below(8) as u8;
            [&[0x40 | rex, opcode], &random(rng, size)[..]].concat()
        }
        1 => {
            let opcode = 0xA0 + rng.below(4) as u8;
            [rng.pick(&[&[][..], &[0x48], &[0x66]]), &[opcode], &random(rng, 8)[..]].concat()
        }
        2 => modrm(rng, &[0xC6], Some(0), 1),
        3 => modrm(rng, &[0xC7], Some(0), 4),
        4 => {
            let opcode = rng.pick(&[0xB6, 0xB7, 0xBE, 0xBF]);
            modrm(rng, &[0x0F, opcode], None, 0)
        }
        5 => modrm(rng, &[0x63], None, 0),
        _ => {
            let opcode = 0x88 + rng.below(4) as u8;
            modrm(rng, &[opcode], None, 0)
        }
    });
}

#[test]
fn addresses() {
    class(5, |rng| modrm(rng, &[0x8D], None, 0));
}

#[test]
fn arithmetic() {
    class(6, |rng| {
        let row = rng.pick(&[0x00u8, 0x08, 0x20, 0x28, 0x30, 0x38]);
        match rng.below(6) {
            0 => [&[row | 4], &random(rng, 1)[..]].concat(),
            1 => [rng.pick(&[&[][..], &[0x48]]), &[row | 5], &random(rng, 4)[..]].concat(),
            2 => {
                let (opcode, size) = rng.pick(&[(0x80, 1), (0x81, 4), (0x83, 1)]);
                modrm(rng, &[opcode], Some(row >> 3), size)
            }
            3 => {
                let (opcode, group, size) =
                    rng.pick(&[(0x84, None, 0), (0x85, None, 0), (0xF6, Some(0), 1), (0xF7, Some(0), 4)]);
                modrm(rng, &[opcode], group, size)
            }
            _ => {
                let opcode = row | rng.below(4) as u8;
                modrm(rng, &[opcode], None, 0)
            }
        }
    });
}

#[test]
fn room_on_the_stack() {
    class(7, |rng| {
        let modrm = rng.pick(&[0xC4u8, 0xEC, 0xE4]);
        let rex = rng.pick(&[0x48u8, 0x4A, 0x40]);
        match rng.below(2) {
            0 => [&[rex, 0x83, modrm], &random(rng, 1)[..]].concat(),
            _ => [&[rex, 0x81, modrm], &random(rng, 4)[..]].concat(),
        }
    });
}

#[test]
fn relative_branches() {
    class(8, |rng| match rng.below(6) {
        0 => vec![0xEB, 0],
        1 => vec![0xE9, 0, 0, 0, 0],
        2 => vec![0x70 | rng.below(16) as u8, 0],
        3 => vec![0x0F, 0x80 | rng.below(16) as u8, 0, 0, 0, 0],
        4 => vec![0xE0 | rng.below(4) as u8, 0],
        _ => vec![0x67, 0xE0 | rng.below(4) as u8, 0],
    });
}

#[test]
fn calls() {
    class(9, |rng| match rng.below(2) {
        0 => vec![0xE8, 0, 0, 0, 0],
        _ => modrm(rng, &[0xFF], Some(2), 0),
    });
}

#[test]
fn indirect_jumps() {
    class(10, |rng| modrm(rng, &[0xFF], Some(4), 0));
}

#[test]
fn returns() {
    class(11, |rng| match rng.below(3) {
        0 => vec![0xC3],
        1 => vec![0xF3, 0xC3],
        _ => [&[0xC2], &random(rng, 2)[..]].concat(),
    });
}

fn random(rng: &mut Rng, bytes: usize) -> Vec<u8> {
    rng.next().to_le_bytes()[..bytes].to_vec()
}

fn with_rex(rng: &mut Rng, opcode: u8) -> Vec<u8> {
    let opcode = opcode | rng.below(8) as u8;
    if rng.one_in(2) { vec![opcode] } else { vec![0x40 | rng.below(16) as u8, opcode] }
}

/// An opcode with random prefixes, ModRM, SIB, displacement and immediate. `group` is ModRM's middle field if
/// it is part of the opcode. `immediate` is its size in bytes.
fn modrm(rng: &mut Rng, opcode: &[u8], group: Option<u8>, immediate: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let data_size = rng.one_in(6);
    if data_size {
        bytes.push(0x66);
    }
    if rng.one_in(6) {
        bytes.push(0x67);
    }
    if rng.one_in(20) {
        bytes.push(rng.pick(&[0x2E, 0x3E]));
    }
    let rex = if rng.one_in(3) { 0 } else { 0x40 | rng.below(16) as u8 };
    if rex != 0 {
        bytes.push(rex);
    }
    bytes.extend(opcode);
    let mode = rng.below(4) as u8;
    let (reg, rm) = (group.unwrap_or(rng.below(8) as u8), rng.below(8) as u8);
    bytes.push(mode << 6 | reg << 3 | rm);
    let mut displacement = [0, 1, 4, 0][mode as usize];
    if mode != 3 && rm == 4 {
        let sib = rng.next() as u8;
        bytes.push(sib);
        if mode == 0 && sib & 7 == 5 {
            displacement = 4;
        }
    } else if mode == 0 && rm == 5 {
        displacement = 4;
    }
    bytes.extend(random(rng, displacement));
    bytes.extend(random(rng, if immediate == 4 && data_size && rex & 8 == 0 { 2 } else { immediate }));
    bytes
}

fn class(seed: u64, mut encoding: impl FnMut(&mut Rng) -> Vec<u8>) {
    let mut machine = Machine::new();
    let mut rng = Rng(0x9E37_79B9_7F4A_7C15 ^ seed << 32);
    let (mut states, mut left_out) = (0, 0);
    while states < STATES {
        let mut bytes = encoding(&mut rng);
        if !aim(&mut bytes, &machine, &mut rng) {
            left_out += 1;
            continue;
        }
        let Verdict::Simulate(op) = verdict(&bytes, Options::default()) else {
            left_out += 1;
            continue;
        };
        assert_eq!(usize::from(op.len), bytes.len(), "{bytes:02x?}");
        machine.set(&bytes);
        for _ in 0..PER_ENCODING {
            compare(&mut machine, &op, &bytes, &mut rng);
            states += 1;
        }
    }
    println!("{states} states; {left_out} encodings left out");
    assert!(left_out < states / PER_ENCODING * 2, "{left_out} encodings left out: few were left");
}

fn compare(machine: &mut Machine, op: &Op, bytes: &[u8], rng: &mut Rng) {
    let mut before = [0; AREA];
    before.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&rng.next().to_le_bytes()));
    let state = state(machine, op, &mut before, rng);
    *machine.memory() = before;
    let native = machine.run(&state);
    let mut area = Area { start: machine.area(), bytes: before };
    let mut ours = state;
    let result = simulate(op, &mut ours, &mut area);
    ours.rflags &= FLAGS;
    assert!(
        result == Ok(()) && ours == native && area.bytes == *machine.memory(),
        "{bytes:02x?} {op:x?}\nfrom   {state:x?}\nours   {ours:x?} {result:x?}\nnative {native:x?}\nmemory equal: {}",
        area.bytes == *machine.memory()
    );
}
