//! Entry and return: sessions, cookies, recursion, and the kernel's combinations of consumers before and
//! after.

use trapline_runtime::consumer::{ConsumerId, Verdict};
use trapline_runtime::instances::SESSIONS;
use trapline_runtime::probe::Probe;

use crate::support::{Kind, Log, add, engine, enter, leave, log, logging, probe, regs, remove, taken};

#[test]
fn a_session_finds_its_cookie_unless_it_declined() {
    let (engine, log) = (engine(4), log());
    let probe = probe(engine, 0);
    add(probe, logging(log, 's', Kind::Session, Verdict::CONTINUE));
    add(probe, logging(log, 'd', Kind::Session, Verdict::IGNORE_RETURN));
    add(probe, logging(log, 'r', Kind::Return, Verdict::CONTINUE));
    enter(probe, &mut regs(0x7000));
    assert_eq!(taken(log), [('d', "entry", 0), ('s', "entry", 0)]);
    leave(probe, &mut regs(0x7008));
    assert_eq!(taken(log), [], "another call's exit");
    leave(probe, &mut regs(0x7000));
    assert_eq!(taken(log), [('r', "return", 0), ('s', "return", u64::from(b's'))]);
    leave(probe, &mut regs(0x7000));
    assert_eq!(taken(log), [], "once");
}

fn call(probe: &Probe, depth: u64) {
    enter(probe, &mut regs(0x7000 - depth * 0x20));
}

fn exit(probe: &Probe, depth: u64) {
    leave(probe, &mut regs(0x7000 - depth * 0x20));
}

/// Six levels deep; cookies come back in reverse order.
#[test]
fn recursion_keeps_a_cookie_for_each_depth() {
    let (engine, log) = (engine(4), log());
    let probe = probe(engine, 1);
    for depth in 0..6_u64 {
        let says = if depth % 2 == 0 { Verdict::CONTINUE } else { Verdict::IGNORE_RETURN };
        let name = char::from(b'0' + depth as u8);
        let id = add(probe, logging(log, name, Kind::Session, says));
        call(probe, depth);
        remove(probe, id);
        // The same consumer would have this number if it were still there; it was removed during its call.
    }
    taken(log);
    let id = add(probe, logging(log, 'x', Kind::Session, Verdict::CONTINUE));
    (0..6).rev().for_each(|depth| exit(probe, depth));
    assert_eq!(
        taken(log),
        [],
        "sessions that were taken out during the call are not called, new ones neither"
    );
    remove(probe, id);
    add(probe, logging(log, 'y', Kind::Session, Verdict::CONTINUE));
    (0..6).for_each(|depth| call(probe, depth));
    taken(log);
    (0..6).rev().for_each(|depth| exit(probe, depth));
    assert_eq!(taken(log), [('y', "return", u64::from(b'y')); 6]);
}

#[test]
fn sessions_beyond_the_record_are_counted() {
    let (engine, log) = (engine(4), log());
    let probe = probe(engine, 2);
    for _ in 0..SESSIONS + 2 {
        add(probe, logging(log, 's', Kind::Session, Verdict::CONTINUE));
    }
    enter(probe, &mut regs(0x7000));
    assert_eq!(probe.counts().unreturned, 2);
    taken(log);
    leave(probe, &mut regs(0x7000));
    assert_eq!(taken(log).len(), SESSIONS);
}

/// One consumer of each kind: entry, return, session, session that declines.
const KINDS: [(char, Kind, Verdict); 4] = [
    ('0', Kind::Entry, Verdict::CONTINUE),
    ('1', Kind::Return, Verdict::CONTINUE),
    ('2', Kind::Session, Verdict::CONTINUE),
    ('3', Kind::Session, Verdict::IGNORE_RETURN),
];

fn attach(probe: &Probe, log: &'static Log, which: usize) -> ConsumerId {
    let (name, kind, says) = KINDS[which];
    add(probe, logging(log, name, kind, says))
}

/// All 256 pairs of consumers before and during a call, with 16 threads. The rule is the kernel's, with one
/// difference. A consumer of returns that is added during the call is called if any consumer waited for this
/// return. In the kernel it is called only if the probe itself has survived the change, too.
#[test]
fn consumers_come_and_go_during_a_call() {
    let engine = engine(64);
    std::thread::scope(|scope| {
        for before in 0..16_usize {
            scope.spawn(move || {
                for after in 0..16_usize {
                    combination(engine, before, after);
                }
            });
        }
    });
}

fn combination(engine: &'static trapline_runtime::engine::Engine, before: usize, after: usize) {
    let (log, probe) = (log(), probe(engine, (before % 8) as u32));
    let has = |set: usize, which: usize| set >> which & 1 == 1;
    let mut ids = [None; 4];
    (0..4).filter(|&n| has(before, n)).for_each(|n| ids[n] = Some(attach(probe, log, n)));
    let sp = 0x7000 + before as u64 * 0x1000;
    enter(probe, &mut regs(sp));
    for (n, id) in ids.iter().enumerate() {
        match (id, has(after, n)) {
            (Some(id), false) => remove(probe, *id),
            (None, true) => {
                attach(probe, log, n);
            }
            _ => {}
        }
    }
    leave(probe, &mut regs(sp));
    let events = taken(log);
    let count = |name: char| events.iter().filter(|event| event.0 == name).count();
    let both = |which| usize::from(has(before, which) && has(after, which));
    assert_eq!(count('0'), usize::from(has(before, 0)), "{before} {after}");
    assert_eq!(count('1'), usize::from(has(after, 1) && before & 0b0110 != 0), "{before} {after}");
    assert_eq!(count('2'), usize::from(has(before, 2)) + both(2), "{before} {after}");
    assert_eq!(count('3'), usize::from(has(before, 3)), "{before} {after}");
}
