//! Accesses for tests.

use std::rc::Rc;
use std::time::Duration;

use trapline::watch::{
    Access, AccessKind, Accessed, Change, Encoding, Event, RemoteAddr, Tally, ValueSource, WatchEnd, Watched,
    Where,
};

use super::tally::Tallied;

pub(crate) fn place() -> Watched {
    Watched {
        pid: 42,
        process: "victim".into(),
        label: "server.small".into(),
        addr: RemoteAddr(0x1000),
        len: 1,
        access: Access::Write,
        encoding: Encoding::Signed,
    }
}

/// Two accesses of one writer, the second with a late value.
pub(crate) fn sample() -> (Tallied, Vec<Accessed>, WatchEnd) {
    let by = Rc::new(Where { function: "store+0x4".into(), line: Some(("/src/a.c".into(), 7)) });
    let caller = Rc::new(Where { function: "libfoo:run+0x9".into(), line: None });
    let one = |time_ns, before, after, how| Accessed {
        event: Event {
            time_ns,
            target: 0,
            point: 0,
            pid: 42,
            tid: 43,
            comm: "worker".into(),
            cpu: 1,
            ip: RemoteAddr(0x2000),
            kind: AccessKind::Write,
            change: Change { before: Some(before), before_exact: true, after: Some(after), how },
            stack: Vec::new(),
        },
        watched: 0,
        by: by.clone(),
        stack: vec![caller.clone()],
    };
    let accesses = vec![one(1500, 0xff, 5, ValueSource::Stored), one(2500, 5, 6, ValueSource::Late)];
    let mut tallied = Tallied::new(&[place()]);
    accesses.iter().for_each(|one| tallied.add(one));
    let tally = Tally {
        events: 2,
        lost: 3,
        threads: 2,
        born: 1,
        arming: Duration::from_micros(1),
        disarming: Duration::from_micros(2),
        watched: Duration::from_secs(2),
        ..Tally::default()
    };
    let end = WatchEnd {
        rest: Vec::new(),
        tally,
        ns_per_trap: Some(9000.0),
        cpu: Duration::from_millis(1),
        command: None,
    };
    (tallied, accesses, end)
}
