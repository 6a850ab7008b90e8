//! CODE-1 and CODE-4: on random programs and numbers at the edges, code on this processor does what the interpreter does,
//! and changes nothing but what it was given, in memory, too.
//!
//! `TRAPLINE_CODE_PROGRAMS` says how many programs are run, or `TRAPLINE_CODE_SECONDS` for how long: then they begin at a
//! random one. Each runs on several inputs. A failure names its seed; `TRAPLINE_CODE_FIRST` begins there.
#![allow(unsafe_code, reason = "generated code is called")]

#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
mod machine;
mod memory;
mod programs;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use machine::{function, kept};
use memory::Memory;
use programs::{HANDED, INPUTS, NUMBERS, REACH, Random, program};
use trapline_code::{Builder, Bytes, Compute, End, Memory as Kind, Program, Run, Value};

/// Stack words of a program.
const WORDS: usize = 8;

/// What one run left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Left {
    end: End,
    /// What a part of a sequence hands on.
    handed: [u64; HANDED],
    /// Whether all else is as it was.
    kept: bool,
}

/// Calls a function that `machine` made.
fn run(at: u64, program: &Program, inputs: &[u64; INPUTS]) -> Left {
    let mut left = [0_u64; 3 + HANDED];
    // SAFETY: `function` has made one of this type, which stays within its frame (what this test is about).
    let run: extern "C" fn(*const u64, *mut u64) = unsafe { core::mem::transmute(at as *const u8) };
    run(inputs.as_ptr(), left.as_mut_ptr());
    let outcome = left[0] as u8;
    let result = program.result().filter(|_| outcome == 0).map(|_| left[1]);
    Left { end: End { outcome, result }, handed: [left[3], left[4]], kept: left[2] == 0 }
}

/// Memory that programs load from and store to, with small numbers, ends of texts and claimed words.
fn bytes(random: &mut Random) -> Vec<u8> {
    let mut word = || match random.next() >> 61 {
        0 => 1 << 63,
        1..=3 => 0,
        4 | 5 => random.next() & 15,
        _ => random.number(),
    };
    (0..2 * REACH / 8).flat_map(|_| word().to_le_bytes()).collect()
}

/// Runs a seed's program on some inputs. Returns whether it has room.
fn check(memory: &mut Memory, seed: u64) -> bool {
    let mut random = Random::new(seed);
    let program = program(&mut random);
    agree(memory, &program, seed, &mut random)
}

/// Runs a program on some inputs. Returns whether it has room.
fn agree(memory: &mut Memory, program: &Program, seed: u64, random: &mut Random) -> bool {
    let Ok(code) = function(program, (seed, WORDS), memory.address()) else { return false };
    memory.with(&code, |at| {
        for _ in 0..4 {
            let mut native = bytes(random);
            let begin = native.as_mut_ptr() as u64;
            assert_eq!(begin % 8, 0);
            let mut expected_bytes = Bytes { at: begin, bytes: native.clone() };
            let pointer = begin + REACH as u64 / 2;
            let inputs: [u64; INPUTS] = core::array::from_fn(|nth| match nth {
                0..NUMBERS => random.number(),
                nth => pointer + 8 * (nth as u64 & 1),
            });
            let mut steps = Run::new(program, &inputs);
            let end = core::iter::repeat_with(|| steps.step(&mut expected_bytes)).flatten().next();
            let end = end.expect("a program ends");
            let mut handed = [0; HANDED];
            if end.outcome == 0 {
                handed.iter_mut().zip(steps.handed()).for_each(|(to, value)| *to = value);
            }
            let expected = Left { end, handed, kept: true };
            let left = run(at, program, &inputs);
            assert_eq!(left, expected, "seed {seed}: inputs {inputs:x?}\n{program}");
            let differs = native.iter().zip(&expected_bytes.bytes).position(|(one, other)| one != other);
            assert_eq!(differs, None, "seed {seed}: memory at {begin:#x}, inputs {inputs:x?}\n{program}");
        }
    });
    true
}

/// A walk that reads an input, then divides. x86-64 divides in rdx, where inputs are too.
#[test]
fn code_1_a_walk_reads_an_input_again_after_a_division() {
    let (mut memory, mut random) = (Memory::new(), Random::new(1));
    for input in 0..NUMBERS as u16 {
        for op in [Compute::Divide, Compute::Remainder, Compute::DivideSigned, Compute::RemainderSigned] {
            let mut builder = Builder::new();
            let (entry, sum) = (builder.pointer(7, Kind::Own), builder.var());
            let input = builder.input(input);
            builder.set(sum, Value::Number(0));
            let walk = builder.walk(entry, 8, 3);
            builder.begin(walk);
            builder.set_computed(sum, Compute::Add, Value::Var(sum), input);
            builder.set_computed(sum, op, Value::Var(sum), Value::Number(7));
            builder.next(walk);
            let program = builder.finish(Some(Value::Var(sum))).expect("a sound program");
            for seed in 0..12 {
                assert!(agree(&mut memory, &program, seed, &mut random));
            }
        }
    }
}

fn asked(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect(name))
}

#[test]
fn code_1_code_does_what_the_interpreter_does() {
    let time = asked("TRAPLINE_CODE_SECONDS").map(Duration::from_secs);
    let most = asked("TRAPLINE_CODE_PROGRAMS").unwrap_or(match time {
        Some(_) => u64::MAX,
        None => machine::PROGRAMS,
    });
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.as_nanos() as u64);
    let first = asked("TRAPLINE_CODE_FIRST").unwrap_or(if time.is_some() { now } else { 1 });
    let (mut memory, begun) = (Memory::new(), Instant::now());
    let (mut programs, mut skipped) = (0, 0);
    while programs < most && time.is_none_or(|time| begun.elapsed() < time) {
        skipped += u64::from(!check(&mut memory, first.wrapping_add(programs)));
        programs += 1;
    }
    println!("{programs} programs from seed {first} on");
    // About a quarter of them: values that stay in use for long are what registers run out for.
    assert!(skipped <= programs / 3, "{skipped} of {programs} programs need more than {WORDS} words");
}

#[test]
fn code_4_what_needs_more_words_than_there_are_is_refused() {
    let has_room = |seed| function(&program(&mut Random::new(seed)), (seed, 0), 0x1000).is_ok();
    let refused = (1..2_000).filter(|seed| !has_room(*seed)).count();
    assert!(refused > 100, "{refused}");
}

#[test]
fn code_that_is_kept_is_the_code_of_its_place() {
    for seed in 1..3_000 {
        let program = program(&mut Random::new(seed));
        for at in [0x1000, 0x1004 + 4 * seed] {
            if let Some((made, again)) = kept(&program, (seed, WORDS), at) {
                assert_eq!(made, again, "seed {seed} at {at:#x}\n{program}");
            }
        }
    }
}
