//! Texts in records: what arguments point to is there as far as it can be read. No state is disturbed,
//! whatever they point to.

use std::cell::Cell;

use trapline_plan::x86_64::stub::{Liveness, Machine, Rings, Traced};
use trapline_plan::{Read, Stacks};
use trapline_record::ring::{RecordKind, RingArea, TEXT_BYTES, TEXT_WORDS};
use trapline_tests::alone;

use crate::arena::{Arena, machines, thread_pointer};
use crate::records::{Reader, built, every_hit, rings_for};
use crate::state::{ONE, Random, assert_kept, back, tl_run};

pub(crate) const EFAULT: i64 = 14;
/// Numbers of the six argument registers in `State::regs`.
const REGS: [usize; 6] = [7, 6, 2, 1, 8, 9];

/// Two pages, of which only the first is mapped.
pub(crate) fn edge() -> u64 {
    // SAFETY: a fresh mapping; unmapping its second half touches nothing else.
    unsafe {
        let at = libc::mmap(
            core::ptr::null_mut(),
            8192,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(at, libc::MAP_FAILED);
        core::ptr::write_bytes(at.cast::<u8>(), b'e', 4096);
        assert_eq!(libc::munmap(at.byte_add(4096), 4096), 0);
        at as u64 + 4096
    }
}

#[test]
fn texts_are_there_as_far_as_they_can_be_read() {
    let _one = ONE.lock();
    machines().iter().for_each(texts_are_there);
}

fn texts_are_there(machine: &Machine) {
    let mut random = Random(0x7e47_0001_4321_9876);
    let edge = edge();
    let long: Vec<u8> = (0..200).map(|n| n as u8 ^ 0x5a).collect();
    let here = long.as_ptr() as u64;
    // Pointer, and the kernel's answer: the bytes that can be read, or an error.
    let cases = [
        (here, TEXT_BYTES as i64),
        (here + 7, TEXT_BYTES as i64),
        (edge - 64, TEXT_BYTES as i64),
        (edge - 63, 63),
        (edge - 1, 1),
        (edge, -EFAULT),
        (0, -EFAULT),
        (u64::MAX - 5, -EFAULT),
        (1 << 63, -EFAULT),
    ];
    for texts in [0b1, 0b10, 0b100, 0b11_1111, 0b10_0100_u8] {
        let mut arena = Arena::new();
        let slot = RingArea::slot_for_texts(texts.count_ones() as usize);
        let rings = rings_for(&arena, machine, 64 * slot, slot);
        let mut reader = Reader::new(&rings);
        for n in 0..4 {
            let site = Liveness { flags_dead: n & 1 == 1, dead: 0, red_zone_live: n & 2 == 2 };
            let dropped = arena.word(0);
            let traced = Traced { site, texts, ..every_hit(machine, &rings, dropped) };
            let code = built(&mut arena, &traced, RecordKind::Entry, 6, &back());
            assert_kept(&format!("{texts:b} {site:?}"), code, &site, &mut random);
            reader.take(|_| ());
            for (round, _) in cases.iter().enumerate() {
                let mut state = random.state();
                let of = |register: usize| cases[(round + register) % cases.len()];
                REGS.iter().enumerate().for_each(|(n, &reg)| state.regs[reg] = of(n).0);
                let before = (state.regs, state.red);
                // SAFETY: the code runs from tl_run's loaded state to tl_back, and the harness has one user
                // at a time.
                unsafe { tl_run(code, &mut state) };
                assert_eq!((state.regs, !site.red_zone_live || state.red == before.1), (before.0, true));
                let mut seen = Vec::new();
                for ring in 0..rings.area.rings {
                    let tail = &mut reader.tails[ring as usize];
                    let view = crate::records::view(&rings);
                    let each = |record: &trapline_record::ring::Record, word: &dyn Fn(u64) -> u64| {
                        let words: Vec<u64> =
                            (0..u64::from(texts.count_ones()) * TEXT_WORDS as u64).map(word).collect();
                        seen.push((*record, words));
                    };
                    rings.area.take_with_texts(view, ring, tail, each).expect("a head that can be");
                }
                let [(record, words)] = &seen[..] else { panic!("{} records", seen.len()) };
                assert_eq!(record.values[..6], REGS.map(|reg| before.0[reg]), "arguments beside the texts");
                let arguments = (0..6).filter(|n| texts >> n & 1 == 1);
                for (nth, argument) in arguments.enumerate() {
                    let text = &words[nth * TEXT_WORDS..][..TEXT_WORDS];
                    let (at, answer) = of(argument);
                    assert_eq!(text[0].cast_signed(), answer, "{at:#x}");
                    let bytes: Vec<u8> = text[1..].iter().flat_map(|word| word.to_le_bytes()).collect();
                    let read = usize::try_from(answer).unwrap_or(0);
                    // SAFETY: the kernel has just reported that this many bytes can be read there.
                    let expected = unsafe {
                        core::slice::from_raw_parts(if read == 0 { here } else { at } as *const u8, read)
                    };
                    assert_eq!(&bytes[..read], expected);
                }
            }
        }
    }
}

/// Expected content of a field's record: the kernel's answer, and the bytes if it is the requested length.
fn field(word: &dyn Fn(u64) -> u64, at: u64, read: &Read) -> Result<Vec<u8>, i64> {
    let answer = word(at).cast_signed();
    let bytes = (1..read.words() as u64).flat_map(|n| word(at + n).to_le_bytes());
    if answer == i64::from(read.bytes) { Ok(bytes.take(read.bytes.into()).collect()) } else { Err(answer) }
}

#[test]
fn fields_are_read_through_pointers_or_reported_as_out_of_reach() {
    let _one = ONE.lock();
    machines().iter().for_each(fields_are_read);
}

fn fields_are_read(machine: &Machine) {
    let mut random = Random(0x1357_9bdf_4321_9876);
    let edge = edge();
    let far: [u64; 4] = core::array::from_fn(|n| 0x1111_1111_1111_1111 * (n as u64 + 1));
    // Nothing is mapped behind the second pointer; the third field is cut by the end of mapped memory.
    let near = [far.as_ptr() as u64, edge, edge - 4, 0xaabb_ccdd_eeff_0011];
    let read = |register, offsets: &[i32], bytes| Read { register, offsets: offsets.to_vec(), bytes };
    let reads = [
        read(0, &[28], 4),
        read(0, &[0, 8], 8),
        read(1, &[0, 20], 12),
        read(0, &[8, 0], 8),
        read(0, &[16, 0], 8),
        read(2, &[-8], 1),
        read(5, &[0, 0, 0], 8),
    ];
    let bytes = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let wanted = [
        Ok(bytes(&near[3..])[4..].to_vec()),
        Ok(bytes(&far[1..2])),
        Ok(bytes(&far)[20..32].to_vec()),
        Err(-EFAULT),
        Err(4),
        Ok(vec![b'e']),
        Err(-EFAULT),
    ];
    let words: usize = reads.iter().map(Read::words).sum();
    for n in 0..4 {
        let mut arena = Arena::new();
        let slot = RingArea::slot_with_floats(6, 0, words);
        let rings = rings_for(&arena, machine, 64 * slot, slot);
        let mut reader = Reader::new(&rings);
        let site = Liveness { flags_dead: n & 1 == 1, dead: 0, red_zone_live: n & 2 == 2 };
        let traced = Traced { site, fields: &reads, ..every_hit(machine, &rings, arena.word(0)) };
        let code = built(&mut arena, &traced, RecordKind::Entry, 6, &back());
        assert_kept(&format!("{site:?}"), code, &site, &mut random);
        reader.take(|_| ());
        let mut state = random.state();
        let here = near.as_ptr() as u64;
        (state.regs[7], state.regs[6], state.regs[2], state.regs[9]) = (here, here, edge, 0);
        let before = (state.regs, state.red);
        // SAFETY: the code runs from tl_run's loaded state to tl_back, and the harness has one user at a
        // time.
        unsafe { tl_run(code, &mut state) };
        assert_eq!((state.regs, !site.red_zone_live || state.red == before.1), (before.0, true));
        let mut seen = Vec::new();
        for ring in 0..rings.area.rings {
            let tail = &mut reader.tails[ring as usize];
            let each = |record: &trapline_record::ring::Record, word: &dyn Fn(u64) -> u64| {
                let mut at = trapline_record::ring::first_float(6, 0);
                let mut all = Vec::new();
                for read in &reads {
                    all.push(field(word, at, read));
                    at += read.words() as u64;
                }
                assert_eq!(record.values[..6], REGS.map(|reg| before.0[reg]));
                seen.push(all);
            };
            rings
                .area
                .take_words(crate::records::view(&rings), ring, tail, each)
                .expect("a head that can be");
        }
        assert_eq!(seen, [wanted.to_vec()]);
        arena.unmap();
    }
}

thread_local! {
    /// The first words of a goroutine's g: the start of its stack, and the first address behind it. `G` is
    /// the address of these words.
    static BOUNDS: [Cell<u64>; 2] = const { [const { Cell::new(0) }; 2] };
    static G: Cell<u64> = const { Cell::new(0) };
}

#[test]
fn a_goroutine_without_room_for_texts_drops_the_record() {
    alone("texts::a_goroutine_without_room_for_texts_drops_the_record", || {
        machines().iter().for_each(without_room);
    });
}

fn without_room(machine: &Machine) {
    const TEXTS: u8 = 0b11_1111;
    let mut arena = Arena::new();
    let slot = RingArea::slot_for_texts(6);
    let g = G.with(|g| core::ptr::from_ref(g) as u64).wrapping_sub(thread_pointer());
    let stacks = Stacks { go: Some(g as i32), ..Stacks::default() };
    let rings = Rings { stacks, ..rings_for(&arena, machine, 64 * slot, slot) };
    let (dropped, mut random) = (arena.word(0), Random(0x6060_0001));
    let traced = Traced {
        site: Liveness { flags_dead: false, dead: 0, red_zone_live: false },
        texts: TEXTS,
        ..every_hit(machine, &rings, dropped)
    };
    let code = built(&mut arena, &traced, RecordKind::Entry, 6, &back());
    let bounds = BOUNDS.with(|bounds| [0, 1].map(|n| core::ptr::from_ref(&bounds[n])));
    let mut reader = Reader::new(&rings);
    // One call instruction for the stub, so that the stack pointer is the same each time. First without a g,
    // which shows the stack pointer; then with stacks that begin above it and below it; then with the least
    // room that was enough.
    let (mut lows, mut sp, mut refused, mut touched) = (vec![None], 0, Vec::new(), 0);
    while let Some(low) = lows.pop() {
        let mut state = random.state();
        let bytes = low.unwrap_or(0) as *mut u64;
        let last = lows.is_empty() && low.is_some();
        // SAFETY: the cells are this thread's own. The code runs from tl_run's loaded state to tl_back, and
        // one thread of this process does so. Memory that far below the used part of this stack is not in
        // use.
        unsafe {
            (*bounds[0]).set(low.unwrap_or(0));
            (*bounds[1]).set(low.unwrap_or(0) + (1 << 16));
            G.set(if low.is_some() { bounds[0] as u64 } else { 0 });
            let before = (state.regs, arena.counted(0));
            if last {
                (1..=64).for_each(|n| bytes.sub(n).write_volatile(0x5a5a));
            }
            tl_run(code, &mut state);
            if last {
                (1..=64).for_each(|n| touched += u64::from(bytes.sub(n).read_volatile() != 0x5a5a));
            }
            assert_eq!(state.regs, before.0);
            let mut seen = Vec::new();
            reader.take(|record| seen.push(record.sp));
            assert_eq!(seen.len() as u64 + arena.counted(0) - before.1, 1);
            refused.extend(low.filter(|_| seen.is_empty()));
            assert!(low.is_none_or(|_| seen.iter().all(|&seen| seen == sp)) && !(last && seen.is_empty()));
            sp = seen.first().copied().unwrap_or(sp);
        }
        if low.is_none() {
            lows = (0..200).map(|n| Some(sp + 64 - n * 8)).collect();
            lows.insert(0, Some(0));
        } else if lows == [Some(0)] {
            refused.sort_unstable();
            lows = vec![Some(refused[0] - 8)];
        }
    }
    G.set(0);
    let depth = refused.len() as u64 * 8;
    let expected: Vec<u64> = (1..=depth / 8).map(|n| sp - depth + n * 8).collect();
    assert_eq!(refused, expected, "one that begins above is not the one it is on");
    assert!(depth > 6 * 72 && depth < 790, "{depth}");
    assert_eq!(touched, 0, "at least room, nothing below is touched");
}
