//! CODE-1 and CODE-4: on random programs and numbers at the edges, code on this processor does what the interpreter does,
//! and changes nothing but what it was given.
//!
//! `TRAPLINE_CODE_PROGRAMS` says how many programs are run; each runs on several inputs.
#![allow(unsafe_code, reason = "generated code is called")]

#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
mod machine;
mod memory;
mod programs;

use machine::{Machine, WORDS};
use programs::{INPUTS, Random, program};
use trapline_code::{End, Program, interpret};

/// What one run left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Left {
    end: End,
    /// Whether all else is as it was.
    kept: bool,
}

fn check(machine: &mut Machine, program: &Program, random: &mut Random, seed: u64) {
    let Ok(code) = machine.compile(program) else {
        panic!("seed {seed}: no room for\n{program}");
    };
    machine.with(&code, |at| {
        for _ in 0..4 {
            let inputs: [u64; INPUTS] = core::array::from_fn(|_| random.number());
            let expected = Left { end: interpret(program, &inputs), kept: true };
            let left = Machine::run(at, program, &inputs);
            assert_eq!(left, expected, "seed {seed}: inputs {inputs:x?}\n{program}");
        }
    });
}

#[test]
fn code_1_code_does_what_the_interpreter_does() {
    let programs = std::env::var("TRAPLINE_CODE_PROGRAMS").ok().and_then(|text| text.parse().ok());
    let programs: u64 = programs.unwrap_or(if cfg!(target_arch = "x86_64") { 60_000 } else { 1_500 });
    let mut machine = Machine::new();
    let mut skipped = 0;
    for seed in 1..=programs {
        let mut random = Random::new(seed);
        let program = program(&mut random);
        if machine.compile(&program).is_err() {
            skipped += 1;
            continue;
        }
        check(&mut machine, &program, &mut random, seed);
    }
    assert!(skipped <= programs / 4, "{skipped} of {programs} programs need more than {WORDS} words");
}

#[test]
fn code_4_what_needs_more_words_than_there_are_is_refused() {
    let machine = Machine::new_without_words();
    let refused =
        (1..2_000).filter(|seed| machine.compile(&program(&mut Random::new(*seed))).is_err()).count();
    assert!(refused > 100, "{refused}");
}
