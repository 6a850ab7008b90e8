//! Threads that run code while it changes.

use trapline::{Finished, Session};

use crate::victim::{ENDLESS, THREADS, Victim, of};

/// Sessions come and go while two threads call. Each value is right, and the code is that of the file in the
/// end. `seen` returns how many calls a session saw.
pub(crate) fn come_and_go(
    victim: &mut Victim,
    name: &str,
    sessions: u32,
    attach: impl Fn(&Victim) -> Session,
    seen: impl Fn(&Finished) -> u64,
) {
    let before = victim.text();
    victim.begin(name, ENDLESS);
    let one = |_| {
        let session = attach(victim);
        std::thread::sleep(std::time::Duration::from_millis(20));
        let finished = session.detach();
        assert!(finished.reports.iter().all(|report| report.refused.is_empty()));
        seen(&finished)
    };
    let seen: u64 = (0..sessions).map(one).sum();
    // Any line ends the calls; then the victim prints how many values were wrong.
    victim.begin(name, ENDLESS);
    assert_eq!(victim.end(), 0, "{name}: wrong values");
    println!("{name}: {seen} calls in {sessions} sessions, with {THREADS} threads that call it all the time");
    assert!(seen > 0, "{name}");
    assert!(victim.text() == before, "{name}");
}

/// Attaching and detaching while two threads call.
#[test]
fn threads_that_call_meanwhile_are_not_harmed() {
    let Some(mut victim) = Victim::start() else { return };
    for name in ["victim_push", "victim_address", "victim_loop"] {
        come_and_go(&mut victim, name, 8, |victim| victim.count(name), |done| of(&done.reports[0], name));
    }
}
