//! Threads that run while code changes under them.

use crate::victim::{ENDLESS, THREADS, Victim, of};

/// Attached and detached while two threads call: each value is right, and the text is the file's in the end.
#[test]
fn threads_that_call_meanwhile_are_not_harmed() {
    let Some(mut victim) = Victim::start() else { return };
    let before = victim.text();
    for name in ["victim_push", "victim_address", "victim_loop"] {
        victim.begin(name, ENDLESS);
        let mut seen = 0;
        for _ in 0..8 {
            let session = victim.count(name);
            std::thread::sleep(std::time::Duration::from_millis(20));
            let finished = session.detach();
            assert!(finished.reports.iter().all(|report| report.refused.is_empty()));
            seen += of(&finished.reports[0], name);
        }
        // Any line ends it; then it tells how many values were wrong.
        victim.begin(name, ENDLESS);
        assert_eq!(victim.end(), 0, "{name}: wrong values");
        println!("{name}: {seen} hits in 8 sessions, with {THREADS} threads that call it all the time");
        assert!(seen > 0, "{name}");
        assert_eq!(victim.text(), before, "{name}");
    }
}
