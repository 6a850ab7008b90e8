//! VAL-1 and SAFE-2 at USDT probes, and for values that no argument register holds: records hold what the program has
//! in registers, in its red zone and on its stack; machine state is kept.

use trapline_image::Extend;
use trapline_plan::x86_64::stub::arguments::ArgumentForm;
use trapline_plan::x86_64::stub::{Liveness, Machine, Traced, trace};
use trapline_plan::{Operand, Read};
use trapline_record::Svma;
use trapline_record::addr::Bias;
use trapline_record::ring::{FIRST_TEXT, RecordKind, RingArea, first_float};

use crate::arena::{Arena, machines};
use crate::records::{built, every_hit, rings_for, view};
use crate::state::{ONE, Random, State, assert_kept, back, tl_run};

const BIAS: u64 = 0x1000;
/// Offset from the stack pointer of the word of `State::red` with this index.
const fn red(nth: i32) -> i32 {
    8 * nth - 128
}

/// What an operand is worth, and what is read through it; a read of no offset takes the operand itself.
type Noted = (Operand, Vec<i32>, fn(&State) -> u64);

fn all() -> Vec<Noted> {
    let sum = |base, index, scale| Operand::Sum { base, index, scale, extend: Extend::Whole };
    vec![
        (Operand::Register(7), vec![], |state| state.regs[7]),
        (Operand::Register(12), vec![], |state| state.regs[12]),
        (Operand::Constant(-2), vec![], |_| u64::MAX - 1),
        (Operand::Vector(9), vec![], |state| state.zmm[9][0]),
        (sum(6, 2, 3), vec![], |state| state.regs[6].wrapping_add(state.regs[2] << 3)),
        (Operand::Register(4), vec![red(13)], |state| state.red[13]),
        (sum(8, 13, 2), vec![], |state| state.regs[8].wrapping_add(state.regs[13] << 2)),
        (Operand::Static(Svma(0x1234_5678_9abc)), vec![], |_| 0x1234_5678_9abc + BIAS),
        (Operand::Register(0), vec![], |state| state.regs[0]),
        (sum(14, 9, 1), vec![], |state| state.regs[14].wrapping_add(state.regs[9] << 1)),
        (Operand::Register(4), vec![red(2)], |state| state.red[2]),
        (Operand::Register(10), vec![], |state| state.regs[10]),
    ]
}

fn traced<'a>(
    machine: &'a Machine,
    rings: &'a trapline_plan::x86_64::stub::Rings,
    dropped: u64,
) -> Traced<'a> {
    Traced {
        site: Liveness { flags_dead: false, dead: 0, red_zone_live: true },
        at_entry: false,
        ..every_hit(machine, rings, dropped)
    }
}

/// The six values, and the words of the fields, of each record.
fn taken(
    rings: &trapline_plan::x86_64::stub::Rings,
    tails: &mut [u64],
    fields: u64,
) -> Vec<(Vec<u64>, Vec<[u64; 2]>)> {
    let mut seen = Vec::new();
    let first = first_float(6, 0) - FIRST_TEXT;
    for (ring, tail) in (0..).zip(tails) {
        let taken = rings.area.take_with_texts(view(rings), ring, tail, |record, word| {
            let field = |n| [word(first + 2 * n), word(first + 2 * n + 1)];
            seen.push((record.values[..6].to_vec(), (0..fields).map(field).collect()));
        });
        taken.expect("a head that can be");
    }
    seen
}

#[test]
fn records_hold_operands_and_state_is_kept() {
    let _one = ONE.lock();
    let all = all();
    for (machine, turn) in
        machines().iter().flat_map(|machine| (0..all.len()).map(move |turn| (machine, turn)))
    {
        let turned: Vec<&Noted> = (0..all.len()).map(|n| &all[(n + turn) % all.len()]).collect();
        let noted: Vec<Operand> = turned.iter().map(|one| one.0).collect();
        // Each is once in a register of the record, and once on the stack.
        let read = |nth: usize| match nth {
            0..6 => (!turned[nth].1.is_empty()).then(|| Read {
                register: nth as u8,
                offsets: turned[nth].1.clone(),
                bytes: 8,
            }),
            _ => {
                let offsets = [&[8 * (nth as i32 - 6)], &turned[nth].1[..]].concat();
                Some(Read { register: Read::STACK, offsets, bytes: 8 })
            }
        };
        let reads: Vec<(usize, Read)> = (0..all.len()).filter_map(|nth| Some((nth, read(nth)?))).collect();
        let fields: Vec<Read> = reads.iter().map(|one| one.1.clone()).collect();
        let words: usize = fields.iter().map(Read::words).sum();
        let mut arena = Arena::new();
        let slot = RingArea::slot_with_floats(6, 0, words);
        let rings = rings_for(&arena, machine, 64 * slot, slot);
        let traced = Traced { fields: &fields, ..traced(machine, &rings, arena.word(0)) };
        let form = ArgumentForm::AsNoted(&noted, Bias(BIAS));
        let (mut out, at) = (Vec::new(), arena.next());
        form.before(&mut out, at);
        let here = at + out.len() as u64;
        let pending = trace(&mut out, here, &traced, RecordKind::Entry, 6);
        let here = at + out.len() as u64;
        form.after(&mut out, here);
        out.extend(back());
        pending.finish(&mut out, None).expect("code");
        let code = arena.put(&out);
        let (mut random, mut tails) = (Random(0x0123_4567_89ab_cdef), vec![0; rings.area.rings as usize]);
        for _ in 0..5 {
            let mut state = random.state();
            let before = state.clone();
            // SAFETY: the code runs from tl_run's loaded state to tl_back, and the harness has one user at a time.
            unsafe { tl_run(code, &mut state) };
            let seen = taken(&rings, &mut tails, reads.len() as u64);
            let [(values, fields)] = &seen[..] else { panic!("one record, and not {}", seen.len()) };
            for (nth, one) in turned.iter().enumerate() {
                let field = reads.iter().position(|read| read.0 == nth);
                let found = field.map_or_else(|| values[nth], |field| fields[field][1]);
                let answer = field.map_or(8, |field| fields[field][0]);
                assert_eq!((answer, found), (8, one.2(&before)), "{nth}: {:?}", one.0);
            }
        }
        assert_kept(&format!("{noted:?}"), code, &traced.site, &mut random);
        arena.unmap();
    }
}

/// At a function's entry: words above the stack pointer, every register, and variables of the probe's file.
#[test]
fn registers_the_stack_and_variables_are_read_at_entries() {
    let _one = ONE.lock();
    let mut fields: Vec<Read> =
        (0..16).map(|nth| Read { register: Read::GENERAL + nth, offsets: vec![], bytes: 8 }).collect();
    fields.push(Read { register: Read::STACK, offsets: vec![0], bytes: 8 });
    // As a file's variables, from which the file is mapped so far away.
    const DISTANCE: i32 = 0x40_1230;
    let behind = 0x0123_4567_89ab_cdef_u64;
    let variables = [0x55aa_u64, (&raw const behind) as u64];
    let bias = Bias(((&raw const variables) as u64).wrapping_sub(DISTANCE as u64));
    fields.push(Read { register: Read::FILE, offsets: vec![DISTANCE], bytes: 8 });
    fields.push(Read { register: Read::FILE, offsets: vec![DISTANCE + 8, 4], bytes: 4 });
    for machine in machines() {
        for red_zone_live in [false, true] {
            let words: usize = fields.iter().map(Read::words).sum();
            let mut arena = Arena::new();
            let slot = RingArea::slot_with_floats(6, 0, words);
            let rings = rings_for(&arena, &machine, 64 * slot, slot);
            let plain = traced(&machine, &rings, arena.word(0));
            let site = Liveness { red_zone_live, ..plain.site };
            let traced = Traced { fields: &fields, site, at_entry: true, bias, ..plain };
            let code = built(&mut arena, &traced, RecordKind::Entry, 6, &back());
            let (mut random, mut tails) = (Random(0x0f0f_0f0f_89ab_cdef), vec![0; rings.area.rings as usize]);
            let mut state = random.state();
            let before = state.clone();
            // SAFETY: as above.
            unsafe { tl_run(code, &mut state) };
            let seen = taken(&rings, &mut tails, fields.len() as u64);
            let [(_, found)] = &seen[..] else { panic!("one record") };
            assert!(found[..18].iter().all(|one| one[0] == 8), "{found:x?}");
            assert_eq!(found[17][1], 0x55aa);
            assert_eq!((found[18][0], found[18][1] as u32), (4, 0x0123_4567));
            for nth in (0..16).filter(|nth| *nth != 4) {
                assert_eq!(found[nth][1], before.regs[nth], "register {nth}");
            }
            // The stack pointer is the harness' own.
            let here = (&raw const found) as u64;
            assert!(found[4][1].wrapping_sub(here).cast_signed().unsigned_abs() < 1 << 16, "{found:x?}");
            assert_kept("registers", code, &traced.site, &mut random);
            arena.unmap();
        }
    }
}
