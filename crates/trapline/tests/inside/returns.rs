//! Return handlers: what they see and change, whose they are.

use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

use trapline::inside::{Consumer, Error, Gpr, Tactic, Verdict, register};

use crate::calls::{counting, word};
use crate::victim::Victim;

#[test]
fn a_return_handler_sees_and_changes_the_value() {
    let victim = Victim::load();
    let before = victim.text();
    let (sum, twice) = (word(), victim.function("twice"));
    let consumer = Consumer::returns(move |hit| {
        sum.fetch_add(hit.regs().get(Gpr::Rax), Relaxed);
        // SAFETY: the caller takes any value.
        unsafe { hit.regs_mut() }.set(Gpr::Rax, 7);
    });
    let probe = register(&victim.path, victim.offset("twice"), consumer).expect("registered");
    for n in 0..200 {
        assert_eq!(twice(n, 0), 7);
    }
    let value = |n: u64| if n > 100 { n * 3 + n + 1 } else { n * 2 };
    assert_eq!(sum.load(Relaxed), (0..200).map(value).sum::<u64>());
    drop(probe);
    assert_eq!(twice(4, 0), 8);
    assert_eq!(before, victim.text());
}

#[test]
fn recursive_calls_find_their_own_cookies_and_those_that_declined_are_not_told() {
    let victim = Victim::load();
    let fib = victim.function("fib");
    static SEEN: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());
    // Room made beforehand: a handler may not allocate.
    SEEN.lock().unwrap().reserve(1000);
    let consumer = Consumer::session(
        |hit| {
            let n = hit.regs().get(Gpr::Rdi);
            hit.set_cookie(n + 1000);
            if n % 2 == 0 { Verdict::Continue } else { Verdict::IgnoreReturn }
        },
        |hit| SEEN.lock().unwrap().push((hit.cookie(), hit.regs().get(Gpr::Rax))),
    );
    let probe = register(&victim.path, victim.offset("fib"), consumer).expect("registered");
    assert_eq!(fib(10, 0), 55);
    drop(probe);
    let plain = |n: u64| (0..n).fold((0, 1), |(a, b), _| (b, a + b)).0;
    let seen = std::mem::take(&mut *SEEN.lock().unwrap());
    assert!(seen.iter().all(|&(cookie, value)| cookie % 2 == 0 && plain(cookie - 1000) == value), "{seen:?}");
    // fib(n) is entered fib(11 - n) times under fib(10), and fib(0) as often as fib(2).
    let times = |n: u64| if n == 0 { plain(9) } else { plain(11 - n) };
    // The compiler may turn one of two recursive calls into a loop: whatever it left, each even n returned as often as it was entered.
    let counted = |n: u64| seen.iter().filter(|&&(cookie, _)| cookie == n + 1000).count() as u64;
    assert_eq!(counted(10), 1);
    assert!((0..=10).step_by(2).all(|n| counted(n) <= times(n)));
    assert!(seen.len() > 5);
}

#[test]
fn returns_may_be_wanted_later_and_entries_go_on() {
    let victim = Victim::load();
    let (entries, returns, add) = (word(), word(), victim.function("add"));
    let offset = victim.offset("add");
    let first = register(&victim.path, offset, counting(entries)).expect("registered");
    add(1, 1);
    let second = register(
        &victim.path,
        offset,
        Consumer::returns(move |_| {
            returns.fetch_add(1, Relaxed);
        }),
    )
    .expect("registered");
    (0..10).for_each(|n| assert_eq!(add(n, 0), n * 3));
    assert_eq!((entries.load(Relaxed), returns.load(Relaxed)), (11, 10));
    drop(second);
    add(1, 1);
    assert_eq!((entries.load(Relaxed), returns.load(Relaxed)), (12, 10));
    assert_eq!(first.sites(), [Tactic::Jump]);
}

#[test]
fn a_tail_call_has_no_return_here() {
    let victim = Victim::load();
    let consumer = Consumer::returns(|_| {});
    let error = register(&victim.path, victim.offset("tail"), consumer).expect_err("refused");
    assert!(matches!(error, Error::Refused { kind: "tail-call", .. }), "{error}");
    let count = word();
    let _probe = register(&victim.path, victim.offset("tail"), counting(count)).expect("registered");
    assert_eq!(victim.function("tail")(1, 0), 13);
    assert_eq!(count.load(Relaxed), 1);
}
