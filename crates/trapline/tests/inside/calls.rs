//! Handlers are called, as often as the functions are, and what they see and change holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use trapline::inside::{Consumer, Gpr, Tactic, Verdict, register};

use crate::victim::Victim;

fn counter() -> (Arc<AtomicU64>, Arc<AtomicU64>) {
    let count = Arc::new(AtomicU64::new(0));
    (count.clone(), count)
}

#[test]
fn an_entry_handler_is_called_at_every_call() {
    let victim = Victim::load();
    let (count, seen) = counter();
    let add = victim.function("add");
    let probe = register(
        &victim.path,
        victim.offset("add"),
        Consumer::entry(move |hit| {
            count.fetch_add(hit.regs().get(Gpr::Rdi), Relaxed);
            Verdict::Continue
        }),
    )
    .expect("registered");
    assert_eq!(probe.sites(), [Tactic::Jump]);
    for n in 0..100 {
        assert_eq!(add(n, 7), n * 3 + 7);
    }
    assert_eq!(seen.load(Relaxed), 99 * 100 / 2);
    assert_eq!(probe.counts().hits, 100);
    probe.unregister().expect("unregistered");
    assert_eq!(add(5, 7), 22);
    assert_eq!(seen.load(Relaxed), 99 * 100 / 2);
}
