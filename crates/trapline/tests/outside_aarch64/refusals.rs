//! What is not done is refused by name.

use crate::victim::Victim;

#[test]
fn words_that_take_no_probe_are_named() {
    let Some(victim) = Victim::start() else { return };
    for (name, kind, reason) in
        [("victim_call", "immovable", "a system call"), ("victim_exclusive", "immovable", "exclusive")]
    {
        let error = trapline::Session::builder().pid(victim.pid()).probe(name).expect("a probe").count();
        let error = error.expect_err("refused").to_string();
        println!("{error}");
        assert!(error.contains(reason), "{kind}: {error}");
    }
}

#[test]
fn what_is_not_made_here_is_named() {
    let Some(victim) = Victim::start() else { return };
    let before = victim.text();
    let builder = || trapline::Session::builder().pid(victim.pid()).probe("victim_push").expect("a probe");
    let slot = builder().returns(trapline::Returns::Stack).latency();
    let error = slot.expect_err("refused").to_string();
    println!("{error}");
    assert!(error.contains("not on arm64 yet"), "{error}");
    assert_eq!(victim.text(), before);
}

/// A function whose exits cannot all be found.
#[test]
fn what_cannot_be_timed_is_named() {
    let Some(victim) = Victim::start() else { return };
    let before = victim.text();
    let builder = trapline::Session::builder().pid(victim.pid()).probe("victim_jumps").expect("a probe");
    let error = builder.latency().expect_err("refused").to_string();
    println!("{error}");
    assert!(error.contains("a jump through a register"), "{error}");
    assert_eq!(victim.text(), before);
}
