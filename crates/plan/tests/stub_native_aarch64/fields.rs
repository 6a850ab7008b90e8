//! FLT-1 and TXT-2 for fields. Generated code decides at an entry, and at a return, as the language defines,
//! whether fields can be read, in part, or not at all. The record holds what was read, every hit is recorded
//! or counted as filtered, and machine state is preserved.

use std::arch::naked_asm;
use std::cell::OnceCell;
use std::sync::OnceLock;

use trapline_insn::aarch64::encode;
use trapline_plan::aarch64::stub::Machine;
use trapline_plan::filter::{Facts, Float, Int, Known, MAX_TEMPORARIES, TargetFilter, Tree};
use trapline_plan::{Read, ThreadId};
use trapline_record::counters::filtered::{REJECTED, REJECTED_LATE};
use trapline_record::ring::{FIRST_TEXT, Record, RecordKind, RingArea, first_float};

use super::filters::{Random, leaf, number, tree};
use super::latency::on_cpu;
use super::records::{machines, view};
use super::stages::{Calls, holds, late, leaf_at_return};
use super::threads::{ids, tid};
use super::{CodeMemory, RET, by_hand, changes, run};

const SVC: u32 = 0xD400_0001;
/// movz x8, #270: process_vm_readv
const READV: u32 = 0xD280_21C8;

/// Whether the system has process_vm_readv; user-mode emulators may lack it.
pub(super) fn has_readv() -> bool {
    // SAFETY: there are no vectors, so nothing is read or written.
    let tried =
        unsafe { libc::process_vm_readv(libc::getpid(), std::ptr::null(), 0, std::ptr::null(), 0, 0) };
    !(tried == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS))
}

/// Puts code at a room's next place. If the system has no process_vm_readv, its calls lead to a function that
/// does the same.
pub(super) fn put_with_kernel(room: &CodeMemory, mut words: Vec<u32>) -> u64 {
    let code = room.next();
    let calls: Vec<usize> = (1..words.len()).filter(|&n| words[n] == SVC && words[n - 1] == READV).collect();
    if calls.is_empty() || has_readv() {
        return room.put(&words);
    }
    let first = (code + 4 * words.len() as u64).next_multiple_of(64);
    let detours: Vec<(u64, usize)> = (0..).map(|n| first + 64 * n).zip(calls).collect();
    for &(there, call) in &detours {
        words[call] = encode::b(code + 4 * call as u64, there).expect("near");
    }
    assert_eq!(room.put(&words), code);
    let kernel = kernel as *const () as u64;
    for (there, call) in detours {
        // stp x16, x30, [sp, #-16]!; ldr x16, +16; blr x16; ldp x16, x30, [sp], #16; b back; the function.
        let back = encode::b(there + 16, code + 4 * (call as u64 + 1)).expect("near");
        let detour = [
            0xA9BF_7BF0,
            0x5800_00B0,
            0xD63F_0200,
            0xA8C1_7BF0,
            back,
            0,
            kernel as u32,
            (kernel >> 32) as u32,
        ];
        assert_eq!(room.put(&detour), there);
    }
    code
}

/// Like the kernel, it preserves all registers but x0.
#[unsafe(naked)]
unsafe extern "C" fn kernel() {
    naked_asm!(
        "sub sp, sp, #240",
        "stp x1, x2, [sp]",
        "stp x3, x4, [sp, #16]",
        "stp x5, x6, [sp, #32]",
        "stp x7, x8, [sp, #48]",
        "stp x9, x10, [sp, #64]",
        "stp x11, x12, [sp, #80]",
        "stp x13, x14, [sp, #96]",
        "stp x15, x16, [sp, #112]",
        "mrs x16, nzcv",
        "stp x17, x16, [sp, #128]",
        "stp x29, x30, [sp, #144]",
        "stp d0, d1, [sp, #160]",
        "stp d2, d3, [sp, #176]",
        "stp d4, d5, [sp, #192]",
        "stp d6, d7, [sp, #208]",
        "bl {readv}",
        "ldp d6, d7, [sp, #208]",
        "ldp d4, d5, [sp, #192]",
        "ldp d2, d3, [sp, #176]",
        "ldp d0, d1, [sp, #160]",
        "ldp x29, x30, [sp, #144]",
        "ldp x17, x16, [sp, #128]",
        "msr nzcv, x16",
        "ldp x15, x16, [sp, #112]",
        "ldp x13, x14, [sp, #96]",
        "ldp x11, x12, [sp, #80]",
        "ldp x9, x10, [sp, #64]",
        "ldp x7, x8, [sp, #48]",
        "ldp x5, x6, [sp, #32]",
        "ldp x3, x4, [sp, #16]",
        "ldp x1, x2, [sp]",
        "add sp, sp, #240",
        "ret",
        readv = sym readv,
    )
}

/// process_vm_readv of one vector from the process itself. It copies byte by byte through a pipe, which
/// reports unreadable memory.
extern "C" fn readv(
    pid: u64,
    to: *const [u64; 2],
    one: u64,
    from: *const [u64; 2],
    also: u64,
    flags: u64,
) -> i64 {
    thread_local! {
        static PIPE: OnceCell<[i32; 2]> = const { OnceCell::new() };
    }
    assert_eq!((pid as u32, one, also, flags), (tid(), 1, 1, 0));
    // SAFETY: two vectors in the stub's frame; unreadable memory becomes an error of write(2).
    unsafe {
        let [read, write] = PIPE.with(|pipe| {
            *pipe.get_or_init(|| {
                let mut pipe = [0; 2];
                assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
                pipe
            })
        });
        let ([to, room], [from, len]) = (*to, *from);
        assert_eq!(room, len);
        for at in 0..len {
            if libc::write(write, (from.wrapping_add(at)) as *const _, 1) != 1 {
                return if at == 0 { -i64::from(libc::EFAULT) } else { at as i64 };
            }
            assert_eq!(libc::read(read, (to + at) as *mut _, 1), 1);
        }
        len as i64
    }
}

/// Offsets and lengths of the fields, by argument. The second one is read through a pointer; the third one
/// may lie at the end of mapped memory.
pub(super) fn reads() -> Vec<Read> {
    let read = |register, offsets: &[i32], bytes| Read { register, offsets: offsets.to_vec(), bytes };
    vec![read(0, &[16], 8), read(0, &[8, 4], 4), read(1, &[0], 2), read(0, &[24], 4)]
}

fn field(random: &mut Random) -> Tree {
    let word = random.next();
    let signed = word >> 10 & 1 == 1;
    Tree::Known(match word % 4 {
        0 => Known::Field(0, Int { bits: 64, signed }),
        1 => Known::Field(1, Int { bits: 32, signed }),
        2 => Known::Field(2, Int { bits: 16, signed }),
        _ => Known::FloatField(3, Float::Single),
    })
}

pub(super) fn leaf_with_fields(random: &mut Random) -> Tree {
    if random.next().is_multiple_of(2) { field(random) } else { leaf(random) }
}

pub(super) fn leaf_of_all(random: &mut Random) -> Tree {
    if random.next().is_multiple_of(3) { field(random) } else { leaf_at_return(random) }
}

/// Address of the end of a page behind which nothing can be accessed.
pub(super) fn edge() -> u64 {
    static EDGE: OnceLock<u64> = OnceLock::new();
    *EDGE.get_or_init(|| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping of two pages, of which the second is protected.
        unsafe {
            let page =
                libc::mmap(std::ptr::null_mut(), 8192, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            assert_ne!(page, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(page.wrapping_byte_add(4096), 4096, libc::PROT_NONE), 0);
            page as u64 + 4096
        }
    })
}

/// Memory of a hit: a structure, what it points to, and numbers that perhaps cannot all be read.
pub(super) struct Memory {
    own: Box<[u64; 4]>,
    other: Box<[u64; 2]>,
}

impl Memory {
    pub(super) fn new() -> Self {
        Self { own: Box::default(), other: Box::default() }
    }
    /// Chooses two arguments. Returns them, the fields that they lead to, and the kernel's answers.
    pub(super) fn choose(&mut self, random: &mut Random) -> ([u64; 2], [Option<u64>; 4], [i64; 4]) {
        self.own.fill_with(|| number(random));
        self.other.fill_with(|| number(random));
        let (own, other) = (self.own.as_ptr() as u64, self.other.as_ptr() as u64);
        self.own[1] = if random.next().is_multiple_of(4) { 8 } else { other };
        let word = random.next();
        let first = if word.is_multiple_of(5) { word & 0xff0 } else { own };
        let there = |value: u64| (first == own).then_some(value);
        let (second, third, answer) = match word >> 8 & 3 {
            0 => (edge() - 1, None, 1),
            1 => (0, None, -14),
            _ => (own, Some(self.own[0] & 0xffff), 2),
        };
        let behind = there(self.other[0] >> 32).filter(|_| self.own[1] == other);
        let fields = [there(self.own[2]), behind, third, there(self.own[3] & 0xffff_ffff)];
        let mut answers = [8, 4, answer, 4];
        for (answer, field) in answers.iter_mut().zip(fields) {
            if field.is_none() && *answer != 1 {
                *answer = -14;
            }
        }
        ([first, second], fields, answers)
    }
}

#[test]
fn fields_decide_at_entries_as_the_language_says() {
    decide(None);
}

#[test]
fn fields_decide_at_returns_as_the_language_says() {
    [RecordKind::Return, RecordKind::Tail].into_iter().for_each(|kind| decide(Some(kind)));
}

fn decide(at: Option<RecordKind>) {
    let mut random = Random(0x0f1e_1d50_1234_9877);
    let (machines, ids, mut memory) = (machines(by_hand), ids(), Memory::new());
    let (mut passed, mut rejected) = (0, 0);
    for round in 0..300_u32 {
        let leaf = if at.is_some() { leaf_of_all } else { leaf_with_fields };
        let condition = tree(&mut random, 1 + round % 4, leaf);
        let mut known = condition.temporaries() <= MAX_TEMPORARIES;
        // The record has no floats of arguments here.
        condition.each_known(&mut |one| known &= !(at.is_some() && matches!(one, Known::Float(..))));
        let fits =
            if at.is_some() { condition.is_known_at_return() } else { condition.is_known_with_fields() };
        if !known || !fits {
            continue;
        }
        let filter = match at {
            Some(_) => late(condition.clone()),
            None => TargetFilter { fields: Some(condition.clone()), sample: 1, ..TargetFilter::default() },
        };
        let (machine, id) = (machines[round as usize % machines.len()], ids[round as usize / 2 % ids.len()]);
        let (mut calls, code) =
            function(machine, id, filter, at.or(round.is_multiple_of(3).then_some(RecordKind::Return)));
        on_cpu(round % 8);
        for _ in 0..10 {
            let (mut state, floats) = (random.state(), [0; 8]);
            state[..6].fill_with(|| number(&mut random));
            let (arguments, fields, answers) = memory.choose(&mut random);
            state[..2].copy_from_slice(&arguments);
            let arguments: [u64; 6] = core::array::from_fn(|n| state[n]);
            let mut facts = Facts { arguments, floats, tid: tid(), ..Facts::default() };
            facts.fields[..4].copy_from_slice(&fields);
            let what = format!("{machine:?} {id:?} {at:?} {condition:?} {facts:x?}");
            let word = if at.is_some() { REJECTED_LATE } else { REJECTED };
            let before = calls.counted(word);
            assert_eq!(run(code, state, floats), state, "{what}");
            let holds = at.map_or_else(
                || condition.holds(&facts) == Some(true),
                |kind| holds(&condition, &facts, kind),
            );
            assert_eq!(calls.counted(word) - before, u64::from(!holds), "{what}");
            let seen = taken(&mut calls);
            let records = usize::from(holds) * (1 + usize::from(calls.marked));
            assert_eq!(seen.len(), records, "{what}");
            for (record, words) in seen.iter().filter(|seen| seen.0.kind == RecordKind::Entry) {
                assert_eq!(record.values[..6], arguments, "{what}");
                check(words, fields, answers);
            }
            if holds { passed += 1 } else { rejected += 1 }
        }
        assert_eq!(calls.bench.dropped(), 0, "nothing was dropped");
        for flags in 0..16 {
            let (before, after) = changes(code, flags);
            assert_eq!(after, before, "{machine:?} {condition:?}");
        }
        calls.bench.room.unmap();
    }
    assert!(passed > 200 && rejected > 500, "{passed} {rejected}");
}

/// A function of which fields are read, and its exit if that is recorded too.
fn function(machine: Machine, id: ThreadId, filter: TargetFilter, exit: Option<RecordKind>) -> (Calls, u64) {
    let words: usize = reads().iter().map(Read::words).sum();
    let slot = RingArea::slot_with_floats(6, 0, words);
    let mut calls = Calls::new(machine, (1 << 12, slot), id, filter);
    (calls.reads, calls.marked) = (reads(), exit.is_some());
    let code = match exit {
        Some(kind) => calls.whole(6, &[], kind),
        None => calls.alone(6, &[RET]),
    };
    (calls, code)
}

/// Records with the words of their fields.
fn taken(calls: &mut Calls) -> Vec<(Record, Vec<u64>)> {
    let (rings, mut seen) = (calls.bench.rings, Vec::new());
    let first = first_float(6, 0) - FIRST_TEXT;
    for (ring, tail) in (0..).zip(&mut calls.bench.tails) {
        let each = |record: &Record, word: &dyn Fn(u64) -> u64| {
            seen.push((*record, (0..8).map(|n| word(first + n)).collect()));
        };
        rings.area.take_with_texts(view(rings), ring, tail, each).expect("a head that can be");
    }
    seen
}

/// TXT-2: checks what could be read, and how much that was.
fn check(words: &[u64], fields: [Option<u64>; 4], answers: [i64; 4]) {
    let found: Vec<i64> = words.chunks(2).map(|pair| pair[0].cast_signed()).collect();
    assert_eq!(found, answers);
    for ((pair, field), bytes) in words.chunks(2).zip(fields).zip([8, 4, 2, 4]) {
        if let Some(field) = field {
            assert_eq!(pair[1] << (64 - 8 * bytes) >> (64 - 8 * bytes), field);
        }
    }
}

/// Fields that no condition uses are read all the same.
#[test]
fn fields_are_what_could_be_read() {
    let mut random = Random(0x0f1e_1d51_1234_9877);
    let mut memory = Memory::new();
    for (machine, id) in
        machines(by_hand).into_iter().flat_map(|machine| ids().into_iter().map(move |id| (machine, id)))
    {
        on_cpu(3);
        let (mut calls, code) =
            function(machine, id, TargetFilter { sample: 1, ..TargetFilter::default() }, None);
        for _ in 0..40 {
            let mut state = random.state();
            let (arguments, fields, answers) = memory.choose(&mut random);
            state[..2].copy_from_slice(&arguments);
            assert_eq!(run(code, state, [0; 8]), state, "{machine:?} {id:?}");
            let seen = taken(&mut calls);
            let [(record, words)] = &seen[..] else { panic!("one") };
            assert_eq!(record.values[..2], arguments);
            check(words, fields, answers);
        }
    }
}
