//! Sessions: which consumers see a return, how often, and with which cookie. By the kernel's rule
//! (selftests/bpf: uprobe_multi, its session tests), and beside the kernel's own where it has them (Linux
//! 6.13).

use std::sync::atomic::Ordering::Relaxed;

use trapline::inside::{Consumer, Request, Verdict, register_all, unregister_all};
use trapline_tests::bpf::{self, Program};
use trapline_tests::or_skip;

use crate::calls::word;
use crate::consumers::of_kind;
use crate::kernel::Twins;
use crate::victim::Victim;

/// Sessions of the kernel's, each at a function, and whether its entry declines the return.
fn of_the_kernel(twins: &Twins, which: &[(&str, bool)]) -> Result<Vec<Program>, String> {
    let (path, pid) = (&twins.kernels.path, std::process::id());
    which
        .iter()
        .map(|(name, declines)| bpf::session(path, twins.kernels.offset(name), pid, *declines))
        .collect()
}

/// Sessions of this engine and of the kernel, in the same order, by jump and by trap. After a call of all
/// three functions, each has counted `expected`.
fn check(which: &[(&str, bool)], expected: &[u64]) {
    let twins = Twins::load();
    let kernels = of_the_kernel(&twins, which);
    for by_trap in [false, true] {
        let runs = || kernels.iter().flatten().map(Program::runs).collect::<Vec<_>>();
        let (words, had) = (which.iter().map(|_| word()).collect::<Vec<_>>(), runs());
        let requests = which.iter().zip(&words).map(|(&(name, declines), &count)| Request {
            by_trap,
            ..Request::new(
                &twins.ours.path,
                twins.ours.offset(name),
                of_kind(if declines { 3 } else { 2 }, count),
            )
        });
        let probes = register_all(requests).expect("registered");
        for victim in twins.both() {
            for (name, result) in [("add", 4), ("twice", 2), ("deep", 5)] {
                assert_eq!(victim.function(name)(1 - u64::from(name == "deep"), 1), result, "{name}");
            }
        }
        unregister_all(probes).expect("unregistered");
        let ours: Vec<u64> = words.iter().map(|count| count.load(Relaxed)).collect();
        assert_eq!(ours, expected, "by trap: {by_trap}");
        let theirs: Vec<u64> = runs().iter().zip(&had).map(|(now, had)| now - had).collect();
        assert!(kernels.is_err() || theirs == expected, "the kernel's: {theirs:?}");
    }
    drop(or_skip!(kernels));
}

/// session: of three functions, the first and the last decline the return; each has a session, and a second
/// one that does the same.
#[test]
fn a_session_that_declines_does_not_see_the_return() {
    let which = [("add", true), ("twice", false), ("deep", true)];
    let twice: Vec<_> = which.iter().chain(&which).copied().collect();
    check(&twice, &[1, 2, 1, 1, 2, 1]);
}

/// session_single: three on one function, of which the first and the third decline; each sees the return as
/// it chose itself.
#[test]
fn of_three_sessions_on_one_function_each_sees_the_return_as_it_chose() {
    check(&[("add", true), ("add", false), ("add", true)], &[1, 2, 1]);
    check(&[("add", false), ("add", true), ("add", false)], &[2, 1, 2]);
}

/// session_cookie: three on one function; each finds at the return what it set at the entry, and no other's.
#[test]
fn each_session_has_its_own_cookie() {
    for by_trap in [false, true] {
        let victim = Victim::load();
        let add = victim.function("add");
        let words = [1, 2, 3].map(|cookie| (cookie, word()));
        let requests = words.map(|(cookie, seen)| {
            let session = Consumer::session(
                move |hit| {
                    hit.set_cookie(cookie);
                    Verdict::Continue
                },
                move |hit| {
                    seen.fetch_add(hit.cookie(), Relaxed);
                },
            );
            Request { by_trap, ..Request::new(&victim.path, victim.offset("add"), session) }
        });
        let probes = register_all(requests).expect("registered");
        for round in 1..=10 {
            assert_eq!(add(1, 1), 4);
            assert_eq!(words.map(|(_, seen)| seen.load(Relaxed)), [round, 2 * round, 3 * round]);
        }
        unregister_all(probes).expect("unregistered");
    }
}

/// session_cookie_recursive's counts: as many as the kernel's, whether they decline or not.
#[test]
fn sessions_are_called_as_often_as_the_kernels() {
    let twins = Twins::load();
    for declines in [false, true] {
        let at = twins.kernels.offset("deep");
        let kernel = or_skip!(bpf::session(&twins.kernels.path, at, std::process::id(), declines));
        for by_trap in [false, true] {
            let (count, had) = (word(), kernel.runs());
            let consumer = of_kind(if declines { 3 } else { 2 }, count).maxactive(64);
            let request =
                Request { by_trap, ..Request::new(&twins.ours.path, twins.ours.offset("deep"), consumer) };
            let probe = register_all([request]).expect("registered");
            for victim in twins.both() {
                assert_eq!(victim.function("deep")(5, 0), (6 << 5) - 1);
            }
            unregister_all(probe).expect("unregistered");
            assert_eq!(count.load(Relaxed), if declines { 6 } else { 12 });
            assert_eq!(kernel.runs() - had, count.load(Relaxed));
        }
    }
}
