//! A debugger's backtrace through replaced return addresses (`docs/gdb/trapline_slots.py`).

use trapline_record::control::at;
use trapline_record::slots::{self, Slots};
use trapline_tests::debugger::{backtraces, names};
use trapline_tests::running::Running;
use trapline_tests::tracing::Tracing;
use trapline_tests::{or_skip, victims};

#[test]
fn gdb_walks_through_slots() {
    let path = or_skip!(victims::cpp("returning"));
    let mut running = Running::start(&path, &[]);
    running.begin(2);
    assert_eq!(running.line(), "blocking", "two calls deep");
    let bare = or_skip!(backtraces(running.pid(), true));
    running.send("go");
    let told = running.told();

    let pid = running.pid().to_string();
    let words = ["-p", &pid, "-F", "--ret=stack", "outer", "inner", "blocked"];
    let tracing = Tracing::start("lat", &words).expect("attaches");
    running.begin(2);
    assert_eq!(running.line(), "blocking", "two calls deep");
    let armed = or_skip!(backtraces(running.pid(), true));
    running.send("go");
    assert_eq!(running.told(), told);
    assert_eq!(tracing.stop().field("outer", "calls"), 1);

    let bare = names(&bare[0]);
    assert!(["blocked", "inner", "outer", "main"].iter().all(|name| bare.contains(name)), "{bare:?}");
    let armed = names(&armed[0]);
    assert_eq!(armed.iter().filter(|name| **name == "??").count(), 3, "{armed:?}");
    let theirs: Vec<&str> = armed.into_iter().filter(|name| *name != "??").collect();
    assert_eq!(theirs, bare);
}

/// The script's constants are those of the crate that declares them.
#[test]
fn the_script_knows_the_layout() {
    let script = include_str!("../../docs/gdb/trapline_slots.py");
    let control = format!(
        "SLOTS_CODE, SLOTS_TABLE, SLOTS_COUNT = {}, {}, {}\n",
        at::SLOTS_CODE,
        at::SLOTS_TABLE,
        at::SLOTS_COUNT
    );
    let entries = format!(
        "HOMES_LEN, CODE, ENTRY, REAL, CHAIN = {}, {}, {}, {}, {}\n",
        Slots::LENT_OFF,
        slots::CODE,
        slots::ENTRY,
        slots::at::REAL,
        slots::CHAIN
    );
    assert!(script.contains(&control), "{control}");
    assert!(script.contains(&entries), "{entries}");
    assert!(script.contains(&format!("/memfd:{}\"", trapline_record::control::MEMFD_NAME)));
}
