//! PRB-1, PRB-2, REG-2: consumers and probes are added and removed beside a hit.

use std::boxed::Box;
use std::vec::Vec;

use loom::sync::Arc;
use loom::thread;
use trapline_record::{FileId, FileOffset};

use super::{FREED, READER, Thing, barrier, inside, leaked, lines, model, put, wait, writer};
use crate::consumer::{Consumer, ConsumerId, Flags, Installed};
use crate::engine::{Counts, Engine, Memory};
use crate::epoch::{Lines, Writer};
use crate::probe::{Consumers, Probe};
use crate::registry::{FileSite, Files, Registry};

/// A consumer with data that a call reads.
fn installed(id: u64, thing: &'static Thing) -> Installed {
    let data = thing.address() as *mut _;
    let consumer = Consumer { entry: None, ret: None, filter: None, data, flags: Flags::default() };
    Installed { id: ConsumerId(id), consumer }
}

/// What a hit does with a list; returns the numbers of the consumers that it called, newest first.
fn call(consumers: &Consumers, inside: &crate::epoch::Inside<'_>) -> Vec<u64> {
    let call = |one: &Installed| {
        assert_ne!(Thing::at(one.consumer.data as u64).read(), FREED);
        one.id.0
    };
    consumers.get(inside).into_iter().flat_map(|list| list.iter()).map(call).collect()
}

/// There is one consumer. Another is added, then the first is removed and its data is freed.
fn come_and_go(unregister: fn(&Consumers, &mut Writer, &Lines)) {
    model(Some(3), move || {
        let lines = lines();
        let mut writer = writer(lines, barrier);
        let consumers = Arc::new(Consumers::default());
        let first = Thing::leak(1);
        consumers.add(&mut writer, installed(1, first));
        let also = Arc::clone(&consumers);
        let hitting = thread::spawn(move || {
            for _ in 0..2 {
                let called = inside(&lines, READER, |inside| call(&also, inside));
                assert!([&[1][..], &[2, 1], &[2]].contains(&&called[..]), "{called:?}");
            }
        });
        consumers.add(&mut writer, installed(2, Thing::leak(2)));
        unregister(&consumers, &mut writer, &lines);
        first.free();
        hitting.join().expect("it hits");
    });
}

#[test]
fn a_hit_sees_one_list_and_calls_no_consumer_that_is_gone() {
    come_and_go(|consumers, writer, lines| {
        assert!(consumers.remove(writer, ConsumerId(1)));
        wait(writer.grace().expect("a barrier"), lines);
    });
}

#[test]
#[should_panic]
fn not_if_unregistering_returns_at_once() {
    come_and_go(|consumers, writer, _| assert!(consumers.remove(writer, ConsumerId(1))));
}

#[test]
#[should_panic]
fn not_if_it_waits_before_it_takes_out() {
    come_and_go(|consumers, writer, lines| {
        wait(writer.grace().expect("a barrier"), lines);
        assert!(consumers.remove(writer, ConsumerId(1)));
    });
}

/// A probe with its consumer is registered, hit, and unregistered: one grace period for the list, the
/// registry and the probe.
fn register(unregister: fn(&Registry, &Probe, &mut Writer, &Lines, FileSite)) {
    model(Some(3), move || {
        let memory = Memory { lines: leaked(2), words: leaked(Counts::words(2, 1)), places: leaked(1) };
        let engine: &Engine = Box::leak(Box::new(Engine::new(memory, 1).expect("lengths fit")));
        let lines = *engine.lines();
        let mut writer = writer(lines, barrier);
        let file = FileId { dev: 1, inode: 2 };
        let number = Files::default().number(file).expect("the first");
        let site = FileSite::new(number, FileOffset(16)).expect("a site");
        let registry = Arc::new(Registry::default());
        let also = Arc::clone(&registry);
        let hitting = thread::spawn(move || {
            let called = inside(&lines, READER, |inside| {
                also.find(inside, site).map(|probe| call(probe.consumers(), inside))
            });
            assert!([None, Some(Vec::new()), Some(Vec::from([1]))].contains(&called), "{called:?}");
        });
        let (probe, thing): (&Probe, _) =
            (Box::leak(Box::new(Probe::new(engine, 0, file, FileOffset(16)))), Thing::leak(1));
        probe.consumers().add(&mut writer, installed(1, thing));
        put(&registry, &mut writer, site, probe);
        unregister(&registry, probe, &mut writer, &lines, site);
        thing.free();
        hitting.join().expect("it hits");
    });
}

#[test]
fn a_hit_beside_registering_and_unregistering() {
    register(|registry, probe, writer, lines, site| {
        assert!(probe.consumers().remove(writer, ConsumerId(1)));
        registry.take_out(writer, site);
        wait(writer.grace().expect("a barrier"), lines);
    });
}

#[test]
#[should_panic]
fn not_if_the_probe_stays_registered_with_its_consumer() {
    register(|registry, _, writer, lines, site| {
        wait(writer.grace().expect("a barrier"), lines);
        registry.take_out(writer, site);
    });
}
