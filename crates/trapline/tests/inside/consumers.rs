//! Consumers of all kinds that come and go during a call: by the kernel's rule (selftests/bpf: uprobe_multi),
//! and beside the kernel's own probes in the same run.
#![allow(unsafe_code, reason = "a function of ours is called through a pointer that a C function hands on")]

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use trapline::inside::{Consumer, Hit, Registration, Verdict, register, unregister_all};
use trapline_tests::bpf::{self, Program};
use trapline_tests::{or_skip, setting};

use crate::calls::word;
use crate::kernel::Twins;
use crate::victim::Victim;

/// Code that runs in the middle of a call of `during`.
type Hook<'a> = &'a mut dyn FnMut();

/// Calls `during`, and in it the hook.
fn during(victim: &Victim, mut hook: impl FnMut()) {
    extern "C" fn run(hook: u64) {
        // SAFETY: the hook that `during` below was called with, alive until it returns.
        unsafe { (*(hook as *mut Hook<'_>))() }
    }
    let mut hook: Hook<'_> = &mut hook;
    let at = (&raw mut hook) as u64;
    assert_eq!(victim.function("during")(run as *const () as u64, at), at + 1);
}

/// One consumer of each kind: entry, return, session, session that declines. Each counts all its calls.
pub(crate) fn of_kind(kind: usize, into: &'static AtomicU64) -> Consumer {
    let count = move || into.fetch_add(1, Relaxed);
    let entry = move |verdict: Verdict| {
        move |_: &mut Hit<'_>| {
            count();
            verdict
        }
    };
    let exit = move |_: &mut Hit<'_>| {
        count();
    };
    match kind {
        0 => Consumer::entry(entry(Verdict::Continue)),
        1 => Consumer::returns(exit),
        2 => Consumer::session(entry(Verdict::Continue), exit),
        _ => Consumer::session(entry(Verdict::IgnoreReturn), exit),
    }
}

fn has(set: usize, kind: usize) -> bool {
    set >> kind & 1 == 1
}

/// How often each kind is called if `before` are registered at a call, and `after` from its middle on. First
/// those that go are taken out, then new ones come.
fn combination(victim: &Victim, before: usize, after: usize) -> [u64; 4] {
    let at = victim.offset("during");
    let words = [(); 4].map(|()| word());
    let attach = |kind: usize| register(&victim.path, at, of_kind(kind, words[kind])).expect("registered");
    let mut probes: [Option<Registration>; 4] =
        std::array::from_fn(|kind| has(before, kind).then(|| attach(kind)));
    during(victim, || {
        for (kind, probe) in probes.iter_mut().enumerate().filter(|(kind, _)| !has(after, *kind)) {
            if let Some(probe) = probe.take() {
                probe.unregister().unwrap_or_else(|error| panic!("{kind}: {error}"));
            }
        }
        for (kind, probe) in probes.iter_mut().enumerate().filter(|(kind, _)| has(after, *kind)) {
            probe.get_or_insert_with(|| attach(kind));
        }
    });
    unregister_all(probes.into_iter().flatten()).expect("unregistered");
    words.map(|word| word.load(Relaxed))
}

/// uprobe_multi_test's consumers: all 256 pairs, 16 threads, with the kernel's rule, except for one thing
/// that `inside` states. A consumer of returns that comes during a call sees its return if any consumer
/// waited for it, even if all that waited have gone.
#[test]
fn consumers_come_and_go_during_a_call() {
    std::thread::scope(|scope| {
        for before in 0..16_usize {
            scope.spawn(move || {
                let victim = Victim::load();
                let text = victim.text();
                for after in 0..16_usize {
                    let seen = combination(&victim, before, after);
                    let both = has(before, 2) && has(after, 2);
                    let expected = [
                        u64::from(has(before, 0)),
                        u64::from(has(after, 1) && before & 0b0110 != 0),
                        u64::from(has(before, 2)) + u64::from(both),
                        u64::from(has(before, 3)),
                    ];
                    assert_eq!(seen, expected, "{before:#b} {after:#b}");
                    assert_eq!(victim.text(), text);
                }
            });
        }
    });
}

/// One of the kernel's own programs, of the same kind.
fn of_the_kernel(twins: &Twins, kind: usize) -> Result<Program, String> {
    let (path, at, pid) = (&twins.kernels.path, twins.kernels.offset("during"), std::process::id());
    if kind < 2 { bpf::counting(path, at, pid, kind == 1) } else { bpf::session(path, at, pid, kind == 3) }
}

/// The same beside the kernel's own probes. Where the kernel calls a consumer and this engine does not, it is
/// the case that `inside` states.
#[test]
fn consumers_that_come_and_go_during_a_call_are_called_as_the_kernels_are() {
    let twins = Twins::load();
    for kind in 0..4 {
        drop(or_skip!(of_the_kernel(&twins, kind)));
    }
    // The kernel waits long whenever one of its own probes goes. To check this engine's part alone, a few
    // combinations suffice.
    let stride = setting("TRAPLINE_COMBINATIONS_STRIDE", 1) as usize;
    for (before, after) in (0..256_usize).step_by(stride).map(|number| (number / 16, number % 16)) {
        let ours = combination(&twins.ours, before, after);
        let attach = |kind: usize| of_the_kernel(&twins, kind).expect("as before");
        let mut probes: [Option<Program>; 4] =
            std::array::from_fn(|kind| has(before, kind).then(|| attach(kind)));
        let mut kernels = [0; 4];
        during(&twins.kernels, || {
            for kind in (0..4).filter(|kind| !has(after, *kind)) {
                kernels[kind] += probes[kind].take().map_or(0, |probe| probe.runs());
            }
            for kind in (0..4).filter(|kind| has(after, *kind)) {
                probes[kind].get_or_insert_with(|| attach(kind));
            }
        });
        for (count, probe) in kernels.iter_mut().zip(&probes) {
            *count += probe.as_ref().map_or(0, Program::runs);
        }
        // A return consumer came during a call, and all that had waited for its return have gone since.
        let stays = before & after & 0b0110 != 0;
        let keeps = before & 0b0110 != 0 && after & 0b0110 != 0 && before & 0b1001 != 0;
        let only_ours = has(after, 1) && before & 0b0110 != 0 && !stays && !keeps;
        // The kernel's consumer is called too if the call went on for longer than its lease of 100 ms: then
        // the call itself keeps the probe that the new consumer finds.
        let second = kernels[1].max(u64::from(only_ours));
        let expected = [kernels[0], second, kernels[2], kernels[3]];
        assert_eq!(ours, expected, "{before:#b} {after:#b}");
    }
}

/// A rule for the judge, without which it would see consumers that had been dropped: a forked child before
/// its exec keeps none of the kernel's probes.
#[test]
fn a_child_of_ours_keeps_none_of_the_kernels_probes() {
    let victim = Victim::load();
    let (at, pid) = (victim.offset("during"), std::process::id());
    // SAFETY: a function's first bytes, mapped for as long as the victim is.
    let text = || unsafe { std::ptr::read_volatile(victim.address("during") as *const [u8; 16]) };
    let was = text();
    let probe = or_skip!(bpf::counting(&victim.path, at, pid, true));
    assert_ne!(text(), was);
    // SAFETY: the child waits to be killed, and does nothing else.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            // SAFETY: as above.
            unsafe { libc::pause() };
        }
    }
    assert!(child > 0);
    drop(probe);
    let left = text();
    // SAFETY: this process' own child.
    unsafe { (libc::kill(child, libc::SIGKILL), libc::waitpid(child, std::ptr::null_mut(), 0)) };
    assert_eq!(left, was);
}
