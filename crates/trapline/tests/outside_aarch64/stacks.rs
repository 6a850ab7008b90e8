//! Callers: by frame pointers, with return addresses that may be signed, and from copies.

use trapline::stacks::{StackSum, Symbols};
use trapline::{Session, Unwinding};

use crate::records::{NO_RSEQ, command, output};
use crate::victim::{OUTER, THREADS, Victim};

const TIMES: u64 = 200;

/// Names of a stack's frames, innermost first.
pub(crate) fn names(symbols: &mut Symbols, sum: &StackSum) -> Vec<String> {
    let frames = sum.frames.iter().map(|frame| symbols.of(sum.pid, frame));
    frames.flat_map(|functions| functions.iter().map(|one| one.name.clone()).collect::<Vec<_>>()).collect()
}

fn stacks(victim: &mut Victim, unwinding: Unwinding, time: bool) -> Vec<StackSum> {
    let builder = Session::builder().pid(victim.pid()).probe("victim_six").expect("a probe");
    let session = builder.stacks(unwinding, time).expect("a session");
    assert_eq!(victim.call(OUTER, TIMES), TIMES * THREADS);
    let finished = session.detach();
    assert_eq!(finished.summary.missed, 0, "{:?}", finished.summary.notices);
    finished.stacks
}

#[test]
fn callers_are_reported() {
    for variables in [&[][..], &NO_RSEQ] {
        for (unwinding, time) in [
            (Unwinding::FramePointers(16), false),
            (Unwinding::FramePointers(16), true),
            (Unwinding::Copied(4096), false),
        ] {
            let Some(mut victim) = Victim::start_with(variables) else { return };
            let sums = stacks(&mut victim, unwinding, time);
            let mut symbols = Symbols::default();
            let reported: Vec<(u64, Vec<String>)> =
                sums.iter().map(|sum| (sum.calls, names(&mut symbols, sum))).collect();
            println!("{unwinding:?}: {reported:#?}");
            assert_eq!(
                reported.iter().map(|one| one.0).sum::<u64>(),
                TIMES * THREADS,
                "every hit has a stack"
            );
            for (_, names) in &reported {
                let begins = ["victim_six", "victim_inner", "victim_outer"];
                assert!(names.iter().zip(begins).all(|(name, begin)| name == begin), "{names:?}");
                assert!(names.len() > begins.len(), "it has callers: {names:?}");
            }
            if time {
                assert!(sums.iter().all(|sum| !sum.time.is_zero()), "{sums:?}");
            }
        }
    }
}

#[test]
fn trapline_stack_tells_callers() {
    let Some(mut victim) = Victim::start() else { return };
    let Some(child) = command(&victim, "stack", &["victim_six"]) else { return };
    assert_eq!(victim.call(OUTER, 50), 50 * THREADS);
    let text = output(child);
    println!("{text}");
    assert!(text.contains("victim_inner") && text.contains("victim_outer"), "{text}");
}
