//! VAL-1 and SAFE-2 at USDT probes: records hold the operands, wherever they are, and machine state is kept.

use trapline_image::Extend;
use trapline_plan::aarch64::stub::arguments::{ArgumentForm, Moved};
use trapline_plan::aarch64::stub::{Code as _, Traced, trace};
use trapline_plan::filter::{TargetFilter, Tree};
use trapline_plan::{KeptPointer, KeptText, Operand, Read, Unwind};
use trapline_record::addr::Bias;
use trapline_record::ring::{FIRST_TEXT, Record, RecordKind, RingArea, first_float};

use super::records::{Bench, kept, machines, on_cpu, view};
use super::stages::{Calls, late};
use super::{RET, by_hand, run};

/// Where the probe's file is mapped.
const FILE: Bias = Bias(0x5678_9ABC_D000);
const FLOATS: [u64; 8] = [0x3FF8_0000_0000_0000, 1, 2, 3, 4, 5, 6, 0xC000_0000_0000_0007];

/// Registers of a hit, by number; all differ, also in their low halves.
fn state() -> [u64; 32] {
    let mut state: [u64; 32] = std::array::from_fn(|n| (n as u64 + 1) * 0x0123_4567_89AB_CDEF);
    state[31] = 5 << 28;
    state
}

/// Operands, and what each is worth.
fn operands(state: &[u64; 32]) -> Vec<(Operand, u64)> {
    let sum = |base: usize, index: usize, scale: u8, extend| {
        let value = match extend {
            Extend::Whole => state[index],
            Extend::Signed => i64::from(state[index] as i32).cast_unsigned(),
            Extend::Unsigned => u64::from(state[index] as u32),
        };
        let operand = Operand::Sum { base: base as u8, index: index as u8, scale, extend };
        (operand, state[base].wrapping_add(value << scale))
    };
    let static_at = trapline_record::Svma(0x1234_5678_9abc);
    vec![
        (Operand::Register(5), state[5]),
        (Operand::Register(17), state[17]),
        (Operand::Constant(-2), u64::MAX - 1),
        (Operand::Vector(7), FLOATS[7]),
        sum(1, 4, 3, Extend::Whole),
        (Operand::Register(0), state[0]),
        sum(20, 0, 2, Extend::Signed),
        (Operand::Static(static_at), static_at.0 + 0x1000),
        sum(3, 21, 0, Extend::Unsigned),
        (Operand::Unknown, 0),
        sum(19, 22, 1, Extend::Whole),
        (Operand::Register(30), 0),
        (Operand::Constant(i64::MIN), 1 << 63),
    ]
}

#[test]
fn records_hold_operands_and_state_is_kept() {
    let state = state();
    let all = operands(&state);
    for machine in machines(by_hand) {
        // Each is once in a register of the record, and once on the stack.
        for turn in 0..all.len() {
            on_cpu(2);
            let turned: Vec<(Operand, u64)> = (0..all.len()).map(|n| all[(n + turn) % all.len()]).collect();
            let noted: Vec<Operand> = turned.iter().map(|one| one.0).collect();
            let word = |nth: i32| Read { register: Read::STACK, offsets: vec![8 * nth], bytes: 8 };
            let mut reads: Vec<Read> = (0..all.len() as i32 - 6).map(word).collect();
            // Where the file is mapped itself; what lies there would be copied by the kernel.
            reads.push(Read { register: Read::FILE, offsets: vec![], bytes: 8 });
            let words: usize = reads.iter().map(Read::words).sum();
            let slot = RingArea::slot_with_floats(6, 0, words);
            let mut bench = Bench::new(machine, 4 * slot, slot, kept());
            let form = ArgumentForm::AsNoted(&noted, Bias(0x1000));
            let at = bench.room.next();
            let traced = Traced { at_entry: false, fields: &reads, bias: FILE, ..bench.traced(Unwind::None) };
            let stub = trace(at + form.bytes_before(), traced, RecordKind::Entry, 6);
            let code = Moved::new(stub, form).finish(&[RET], None).expect("in reach");
            let code = bench.room.put(&code);
            assert_eq!(run(code, state, FLOATS), state, "{noted:?}");
            let (rings, mut seen) = (bench.rings, Vec::new());
            let first = first_float(6, 0) - FIRST_TEXT;
            for (ring, tail) in (0..).zip(&mut bench.tails) {
                let each = |record: &Record, word: &dyn Fn(u64) -> u64| {
                    let field = |n| [word(first + 2 * n), word(first + 2 * n + 1)];
                    let fields: Vec<[u64; 2]> = (0..reads.len() as u64).map(field).collect();
                    seen.push((record.values[..6].to_vec(), fields));
                };
                rings.area.take_with_texts(view(rings), ring, tail, each).expect("a head that can be");
            }
            let [(values, fields)] = &seen[..] else { panic!("one record") };
            assert_eq!(fields.last(), Some(&[8, FILE.0]));
            let is_known = |nth: usize| turned[nth].0 != Operand::Register(30);
            for nth in (0..all.len()).filter(|nth| is_known(*nth)) {
                let found = if nth < 6 { values[nth] } else { fields[nth - 6][1] };
                assert_eq!(found, turned[nth].1, "{machine:?} {nth}: {:?}", turned[nth].0);
                assert!(nth < 6 || fields[nth - 6][0] == 8, "read without the kernel, or by it");
            }
            bench.room.unmap();
        }
    }
}

/// TXT-2 for texts that a call keeps: of the entry, of the returned pointer, and of an argument at the return.
#[test]
fn calls_keep_texts_for_their_return() {
    let text = |pointer, at_return, bytes| KeptText { pointer, at_return, bytes };
    let argument = KeptPointer::Argument;
    let kept = vec![
        text(argument(0), false, 200),
        text(KeptPointer::Returned, true, 100),
        text(argument(1), true, 64),
        text(argument(2), true, 8),
    ];
    let (long, other): (Vec<u8>, Vec<u8>) = ((0..=255).collect(), (0..=255).rev().collect());
    let words: usize = kept.iter().map(KeptText::words).sum();
    let slot = RingArea::slot_with_floats(6, 0, words);
    for machine in machines(by_hand) {
        for kind in [RecordKind::Return, RecordKind::Tail] {
            on_cpu(2);
            let always = Tree::Number(1, false);
            let filter = TargetFilter { kept: kept.clone(), ..late(always) };
            let mut calls = Calls::new(machine, (4 * slot, slot), super::records::kept(), filter);
            let code = calls.whole(6, &[], kind);
            let mut state = state();
            (state[0], state[1], state[2]) = (long.as_ptr() as u64, other.as_ptr() as u64, 16);
            assert_eq!(run(code, state, FLOATS), state);
            let (rings, mut seen) = (calls.bench.rings, Vec::new());
            let first = first_float(6, 0) - FIRST_TEXT;
            for (ring, tail) in (0..).zip(&mut calls.bench.tails) {
                let each = |record: &Record, word: &dyn Fn(u64) -> u64| {
                    let all: Vec<u64> = (0..words as u64).map(|n| word(first + n)).collect();
                    seen.push((record.kind, record.values[..6].to_vec(), all));
                };
                rings.area.take_with_texts(view(rings), ring, tail, each).expect("a head that can be");
            }
            let [(RecordKind::Entry, values, all), (end, ..)] = &seen[..] else {
                panic!("two records: {seen:?}")
            };
            assert_eq!((*end, &values[..3]), (kind, &state[..3]));
            let (mut at, returned) = (0, kind == RecordKind::Return);
            for (text, from) in kept.iter().zip([Some(&long), Some(&long), Some(&other), None]) {
                let bytes: Vec<u8> =
                    all[at + 1..at + text.words()].iter().flat_map(|word| word.to_le_bytes()).collect();
                let len = usize::from(text.bytes);
                match from.filter(|_| returned || !text.at_return) {
                    Some(from) => {
                        assert_eq!((all[at], &bytes[..len]), (len as u64, &from[..len]), "{text:?}")
                    }
                    // Either the pointer leads nowhere, or the call has not returned.
                    None => assert_eq!(all[at].cast_signed(), -14, "{text:?}"),
                }
                at += text.words();
            }
            calls.bench.room.unmap();
        }
    }
}
