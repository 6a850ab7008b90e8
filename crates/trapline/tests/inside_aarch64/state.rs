//! SAFE-2: what a hit leaves unchanged, and what handlers see and change: registers, flags, vectors and the
//! stack, bit for bit, after jumps and after traps.
#![allow(unsafe_code, reason = "handlers that change registers and spoil vectors")]

use std::arch::asm;
use std::sync::atomic::Ordering::Relaxed;

use trapline::inside::{Consumer, Hit, Regs, Returns, Verdict, register_all};

use crate::victim::{Victim, word};

/// 32 vectors, flags, FPSR, x2 to x30, x1, x0.
type State = [u64; 97];
const FLAGS: usize = 64;
const FPSR: usize = 65;
const X2: usize = 66;
const X1: usize = 95;
const X0: usize = 96;
/// N, Z, C and V in PSTATE.
const NZCV: u64 = 0xF000_0000;

fn state(round: u64) -> State {
    let mut state: State =
        std::array::from_fn(|n| (round + n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(n as u32));
    state[FLAGS] &= NZCV;
    state[FPSR] = round & 0x1F;
    state[X0] = 0;
    state
}

/// State that the function leaves.
fn through(victim: &Victim, name: &str, from: &State) -> State {
    let mut to: State = [0; 97];
    victim.function(name)(from.as_ptr() as u64, to.as_mut_ptr() as u64);
    // The address of the state itself.
    to[X0] = to[X0].wrapping_sub(from.as_ptr() as u64 + 512);
    to
}

/// Overwrites what compiled code may, and some of what it may not.
fn spoil() {
    // SAFETY: the registers are named as spoiled; FPSR is what compiled code may change.
    unsafe {
        asm!("movi v0.2d, #0", "movi v7.2d, #0", "movi v8.2d, #0", "movi v15.2d, #0", "movi v16.2d, #0", "movi v31.2d, #0",
            "mov {0}, #0x9f", "msr fpsr, {0}", "cmp xzr, xzr", out(reg) _,
            out("v0") _, out("v7") _, out("v8") _, out("v15") _, out("v16") _, out("v31") _);
    }
}

#[test]
fn nothing_but_the_probe_is_noticed() {
    Victim::in_both_forms(|victim| {
        let (hits, wrong, expected) = (word(), word(), word());
        let handler = move |hit: &mut Hit<'_>| {
            // SAFETY: the state of this round, which outlives the call.
            let state = unsafe { &*(expected.load(Relaxed) as *const State) };
            let Regs { x, sp, pc, pstate } = hit.regs();
            let same = x[2..] == state[X2..X1] && x[1] == state[X1] && pstate & NZCV == state[FLAGS];
            let stands = *pc == hit.site() && sp % 16 == 0 && x[0] == state.as_ptr() as u64 + 512;
            wrong.fetch_add(u64::from(!(same && stands)), Relaxed);
            spoil();
            hits.fetch_add(1, Relaxed);
            Verdict::Continue
        };
        let at = victim.offset("around") + victim.address("around_at") - victim.address("around");
        let requests = (0..4).map(|n| victim.request(at + 4 * n, Consumer::entry(handler)));
        let probes = register_all(requests).expect("registered");
        assert!(probes.iter().all(|probe| probe.sites() == [victim.form]));
        for round in 0..100 {
            let from = state(round);
            expected.store(from.as_ptr() as u64, Relaxed);
            assert_eq!(through(victim, "around", &from), from, "{round}");
        }
        assert_eq!((hits.load(Relaxed), wrong.load(Relaxed)), (400, 0));
    });
}

#[test]
fn changed_registers_and_flags_are_what_goes_on() {
    Victim::in_both_forms(|victim| {
        let at = victim.offset("around") + victim.address("around_at") - victim.address("around");
        let handler = |hit: &mut Hit<'_>| {
            // SAFETY: the code after these words takes any value, except in x0.
            let regs = unsafe { hit.regs_mut() };
            regs.x[1..].iter_mut().for_each(|x| *x = !*x);
            regs.pstate ^= NZCV;
            Verdict::Continue
        };
        let _probe = victim.register_at(at + 4, Consumer::entry(handler));
        for round in 0..100 {
            let from = state(round);
            let mut changed = from;
            changed[X2..=X1].iter_mut().for_each(|x| *x = !*x);
            changed[FLAGS] ^= NZCV;
            assert_eq!(through(victim, "around", &from), changed, "{round}");
        }
    });
}

/// A call that returns to a trampoline finds its caller's registers as its function left them, and x30 as
/// after any return.
#[test]
fn a_return_to_a_trampoline_leaves_all_registers_alone() {
    Victim::in_both_forms(|victim| {
        let (returns, wrong, expected) = (word(), word(), word());
        let handler = move |hit: &mut Hit<'_>| {
            // SAFETY: the state of this round, which outlives the call.
            let state = unsafe { &*(expected.load(Relaxed) as *const State) };
            let Regs { x, sp, pc, pstate } = hit.regs();
            let same = x[2..30] == state[X2..X1 - 1] && x[1] == state[X1] && pstate & NZCV == state[FLAGS];
            wrong.fetch_add(u64::from(!(same && *pc == x[30] && sp % 16 == 0)), Relaxed);
            spoil();
            returns.fetch_add(1, Relaxed);
        };
        let probe = victim.register("target", Consumer::returns(handler).returns_by(Returns::Stack));
        assert_eq!(probe.sites(), [victim.form]);
        let behind = victim.address("around_call_at") + 4;
        for round in 0..100 {
            let from = state(round);
            expected.store(from.as_ptr() as u64, Relaxed);
            let mut to = through(victim, "around_call", &from);
            assert_eq!(std::mem::replace(&mut to[X1 - 1], from[X1 - 1]), behind, "{round}");
            assert_eq!(to, from, "{round}");
        }
        assert_eq!((returns.load(Relaxed), wrong.load(Relaxed)), (100, 0));
    });
}

/// A jump leaves the target's address in x17, which is free there; a trap leaves all registers unchanged.
#[test]
fn a_handler_that_goes_elsewhere_takes_all_registers_along() {
    Victim::in_both_forms(|victim| {
        let elsewhere = victim.address("elsewhere");
        let handler = move |hit: &mut Hit<'_>| {
            // SAFETY: the other function takes and returns the same as this one.
            let regs = unsafe { hit.regs_mut() };
            regs.pc = elsewhere;
            regs.x[1..30].iter_mut().for_each(|x| *x = !*x);
            regs.pstate ^= NZCV;
            Verdict::Continue
        };
        let probe = victim.register("target", Consumer::entry(handler).moves_ip());
        assert_eq!(probe.sites(), [victim.form]);
        for round in 0..100 {
            let from = state(round);
            let mut changed = from;
            changed[X2..=X1].iter_mut().for_each(|x| *x = !*x);
            changed[FLAGS] ^= NZCV;
            let mut to = through(victim, "around_call", &from);
            if victim.form == trapline::inside::Tactic::Jump {
                assert_eq!(std::mem::replace(&mut to[X2 + 15], changed[X2 + 15]), elsewhere);
            }
            // That register belongs to the call itself.
            to[X1 - 1] = changed[X1 - 1];
            assert_eq!(to, changed, "{round}");
        }
    });
}

#[test]
fn a_moved_stack_pointer_is_the_functions() {
    Victim::in_both_forms(|victim| {
        let on_stack = victim.function("on_stack");
        let other = victim.address("other_stack");
        for (goes, more) in [(false, 0), (true, 1)] {
            let handler = move |hit: &mut Hit<'_>| {
                // SAFETY: the caller has so much room.
                let regs = unsafe { hit.regs_mut() };
                regs.sp = regs.sp.wrapping_add(regs.x[0]);
                regs.pc = if goes { other } else { regs.pc };
                Verdict::Continue
            };
            let probe = victim.register("stack", Consumer::entry(handler).moves_sp().moves_ip());
            assert_eq!(probe.sites(), [victim.form]);
            for by in [0_i64, 16, -16, 160, -160, 288, -288, 304, -304, 4096, -4096] {
                assert_eq!(on_stack(by.cast_unsigned(), 0).cast_signed(), by + more, "{goes}");
            }
        }
    });
}

/// Where vectors are longer than 128 bits, they are kept whole, with predicates and FFR.
#[test]
fn scalable_vectors_are_kept() {
    if !std::arch::is_aarch64_feature_detected!("sve") {
        println!("SKIP: no SVE");
        return;
    }
    let len: u64;
    // SAFETY: reads the length of a vector.
    unsafe { asm!(".arch_extension sve", "rdvl {}, #1", ".arch_extension nosve", out(reg) len) };
    Victim::in_both_forms(|victim| {
        let (count, at) = (word(), victim.offset("around_sve"));
        let at = at + victim.address("around_sve_at") - victim.address("around_sve");
        let handler = move |_: &mut Hit<'_>| {
            spoil();
            // SAFETY: as in `spoil`: all vectors are cut short there.
            unsafe {
                asm!(".arch_extension sve", "ptrue p0.b", "pfalse p1.b", "pfalse p7.b", "pfalse p15.b", "setffr",
                    ".arch_extension nosve", out("p0") _, out("p1") _, out("p7") _, out("p15") _, out("ffr") _);
            }
            count.fetch_add(1, Relaxed);
            Verdict::Continue
        };
        let requests = (0..2).map(|n| victim.request(at + 4 * n, Consumer::entry(handler)));
        let _probes = register_all(requests).expect("registered");
        let bytes = (32 * len + 17 * len / 8) as usize;
        for round in 0..50_u64 {
            let mut from: Vec<u8> = (0..bytes as u64)
                .map(|n| ((round + n).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8)
                .collect();
            // FFR has ones up to some place, and zeros from there on.
            let ffr = bytes - (len / 8) as usize;
            from[ffr..].iter_mut().enumerate().for_each(|(n, byte)| *byte = if n == 0 { 0x0F } else { 0 });
            let mut to = vec![0_u8; bytes];
            victim.function("around_sve")(from.as_ptr() as u64, to.as_mut_ptr() as u64);
            assert!(from == to, "{round}: {:?}", from.iter().zip(&to).position(|(a, b)| a != b));
        }
        assert_eq!(count.load(Relaxed), 100);
    });
}
