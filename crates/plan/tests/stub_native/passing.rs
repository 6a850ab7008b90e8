//! FLT-1, LOSS-1 and SAFE-2 for hits that are counted behind a filter. Each is counted or filtered as the
//! language defines, also while threads migrate and are interrupted. At exits the returned value decides, and
//! a value that a tail call leaves unknown does not pass.

use trapline_plan::filter::{
    Facts, Int, Known, MAX_TEMPORARIES, Symbol, TargetFilter, Tree, parse, registers,
};
use trapline_plan::x86_64::stub::filter::code_bytes;
use trapline_plan::x86_64::stub::{Filtered, Liveness, Machine, Rings, Traced, count, count_filtered};
use trapline_record::ring::RecordKind;

use crate::arena::{Arena, LINES, call, get, machines, unregister};
use crate::counts::{THREADS, everywhere, storm};
use crate::filters::{float, leaf, number, tree};
use crate::records::{every_hit, rings_for};
use crate::state::{ONE, Random, assert_kept, back, tl_run};

const FILTERED: u64 = 1;
/// mov rax, rdi; ret
const RETURN_ARGUMENT: [u8; 4] = [0x48, 0x89, 0xF8, 0xC3];

struct Set {
    machine: Machine,
    rings: Rings,
    filter: TargetFilter,
}

impl Set {
    fn new(arena: &Arena, machine: &Machine, condition: Option<Tree>, sample: u32) -> Self {
        let filter = TargetFilter { condition, sample, ..TargetFilter::default() };
        Self { machine: *machine, rings: rings_for(arena, machine, 1 << 12, 64), filter }
    }
    fn code(&self, arena: &Arena, site: Liveness, kind: RecordKind, body: &[u8]) -> Vec<u8> {
        let traced = Traced {
            probe: 0,
            site,
            filter: Some(Filtered { filter: &self.filter, words: arena.word(FILTERED), names: None }),
            ..every_hit(&self.machine, &self.rings, arena.word(0))
        };
        let mut out = Vec::new();
        let pending = count_filtered(&mut out, arena.next(), &traced, kind);
        out.extend(body);
        pending.finish(&mut out, None).expect("code");
        out
    }
    fn build(&self, arena: &mut Arena, site: Liveness, kind: RecordKind, body: &[u8]) -> u64 {
        let code = self.code(arena, site, kind, body);
        arena.put(&code)
    }
}

/// Hits that passed, and hits that did not.
fn counted(arena: &Arena) -> (u64, u64) {
    (arena.counted(0), arena.counted(FILTERED))
}

#[test]
fn conditions_decide_as_the_language_says() {
    let _one = ONE.lock();
    machines().iter().for_each(conditions_decide);
}

fn conditions_decide(machine: &Machine) {
    let mut random = Random(0x0f17_7e25_9876_1234);
    let (mut passed, mut rejected) = (0, 0);
    // SAFETY: gettid has no precondition.
    let tid = unsafe { libc::gettid() } as u32;
    for round in 0..600 {
        let condition = tree(&mut random, 1 + round % 4, leaf);
        if condition.temporaries() > MAX_TEMPORARIES {
            continue;
        }
        let mut arena = Arena::new();
        let set = Set::new(&arena, machine, Some(condition.clone()), 1);
        let site = Liveness { flags_dead: round & 1 == 1, dead: 0, red_zone_live: round & 2 == 2 };
        let mut plain = Vec::new();
        count(&mut plain, arena.next(), machine, arena.word(0), &site)
            .finish(&mut plain, None)
            .expect("code");
        let with = set.code(&arena, site, RecordKind::Entry, &[]).len();
        assert!(with <= plain.len() + 320 + code_bytes(&set.filter), "{condition:?}: {with}");
        let code = set.build(&mut arena, site, RecordKind::Entry, &back());
        for _ in 0..20 {
            let mut state = random.state();
            for reg in [7, 6, 2, 1, 8, 9] {
                state.regs[reg] = number(&mut random);
            }
            for vector in &mut state.zmm[..8] {
                vector[0] = float(&mut random);
            }
            let facts = Facts {
                arguments: [7, 6, 2, 1, 8, 9].map(|reg: usize| state.regs[reg]),
                floats: core::array::from_fn(|n| state.zmm[n][0]),
                tid,
                ..Facts::default()
            };
            let (before, kept) = (counted(&arena), (state.regs, state.zmm));
            // SAFETY: the code runs from tl_run's loaded state to tl_back, and the harness has one user at a
            // time.
            unsafe { tl_run(code, &mut state) };
            assert_eq!((state.regs, state.zmm), kept, "{condition:?}");
            let (holds, now) = (condition.holds(&facts).expect("all is known"), counted(&arena));
            let grown = (now.0 - before.0, now.1 - before.1);
            assert_eq!(grown, (u64::from(holds), u64::from(!holds)), "{condition:?} {facts:x?}");
            if holds { passed += 1 } else { rejected += 1 }
        }
        assert_kept(&format!("{condition:?} {site:?}"), code, &site, &mut random);
        arena.unmap();
    }
    assert!(passed > 1000 && rejected > 1000, "{passed} {rejected}");
}

#[test]
fn returns_decide_too_and_a_tail_call_passes_nothing() {
    let _one = ONE.lock();
    machines().iter().for_each(returns_decide);
}

fn returns_decide(machine: &Machine) {
    let mut random = Random(0x0f17_0002_9876_1234);
    let names = [
        ("ret".to_owned(), Symbol::Known(Known::Returned(Int { bits: 32, signed: true }))),
        ("tid".to_owned(), Symbol::Known(Known::Thread)),
    ];
    for text in ["ret < 0", "!(ret < 0)", "ret >= 0 && tid", "ret < 0 || tid > 0"] {
        let condition = parse(text, &names).expect("reads");
        for kind in [RecordKind::Return, RecordKind::Tail] {
            let mut arena = Arena::new();
            let set = Set::new(&arena, machine, Some(condition.clone()), 1);
            let code = set.build(&mut arena, Liveness::default(), kind, &[0xC3]);
            // mov rax, rdi; jmp code
            let mut out = vec![0x48, 0x89, 0xF8, 0xE9];
            out.extend((code.wrapping_sub(arena.next() + 8) as u32).to_le_bytes());
            let function = arena.put(&out);
            let mut expected = 0;
            for value in [0, 1 << 31, 0x1_0000_0000, u64::MAX, 7] {
                assert_eq!(call(function, value), value);
                let returned = (kind == RecordKind::Return).then_some(value);
                let facts = Facts { returned, tid: 1, ..Facts::default() };
                expected += u64::from(condition.holds(&facts) == Some(true));
            }
            assert_eq!(counted(&arena), (expected, 5 - expected), "{text} {kind:?}");
            let code = set.build(&mut arena, Liveness::default(), kind, &back());
            assert_kept(&format!("{text} {kind:?}"), code, &Liveness::default(), &mut random);
            arena.unmap();
        }
    }
}

/// Threads that migrate and are interrupted, with samples; and one without an area, which has no share of a
/// sample.
#[test]
fn each_hit_is_counted_or_rejected() {
    const CALLS: u64 = 100_000;
    let _one = ONE.lock();
    for (machine, sample) in machines().into_iter().flat_map(|machine| [(machine, 1), (machine, 2)]) {
        let mut arena = Arena::new();
        let condition = Some(parse("arg0 % 3 != 1", &registers()).expect("reads"));
        let set = Set::new(&arena, &machine, condition, sample);
        let code = set.build(&mut arena, Liveness::default(), RecordKind::Entry, &RETURN_ARGUMENT);
        let handled = storm(code, || everywhere(|| (0..CALLS).for_each(|n| assert_eq!(call(code, n), n))));
        let (passed, rejected) = counted(&arena);
        assert_eq!(passed + rejected, THREADS * CALLS + handled, "{machine:?} {sample}");
        // Handlers call with 1, which does not pass.
        let all = THREADS * (CALLS * 2).div_ceil(3);
        let expected = all / u64::from(sample);
        assert!(passed.abs_diff(expected) <= u64::from(LINES) * u64::from(sample - 1), "{passed} of {all}");
        if machine.rseq.is_some() {
            let line = |word: u64| get(arena.word(word) + u64::from(LINES - 1) * 64);
            // The storm's timer belongs to the process, so it may also interrupt a thread of another test
            // that has no area.
            let before = (line(0), line(FILTERED));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    unregister();
                    (0..9).for_each(|n| assert_eq!(call(code, n), n));
                });
            });
            let alone = if sample == 1 { (6, 3) } else { (0, 9) };
            assert_eq!((line(0) - before.0, line(FILTERED) - before.1), alone, "{sample}");
        }
        arena.unmap();
    }
}
