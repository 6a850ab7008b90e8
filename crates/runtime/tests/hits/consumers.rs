//! Order, verdicts, filters, registers.

use std::ffi::c_void;

use trapline_runtime::consumer::{Flags, Hit, Verdict};
use trapline_runtime::dispatch::GoOn;

use crate::support::{
    Kind, add, calling, engine, enter, hit, log, logging, probe, regs, remove, taken, writer,
};

#[test]
fn newest_first() {
    let (engine, log) = (engine(4), log());
    let probe = probe(engine, 0);
    hit(probe);
    for name in ['a', 'b', 'c'] {
        add(probe, logging(log, name, Kind::Entry, Verdict::CONTINUE));
    }
    hit(probe);
    assert_eq!(taken(log), [('c', "entry", 0), ('b', "entry", 0), ('a', "entry", 0)]);
    assert_eq!(probe.counts().hits, 2);
}

#[test]
fn one_that_was_taken_out_is_not_called() {
    let (engine, log) = (engine(4), log());
    let probe = probe(engine, 1);
    let ids = ['a', 'b', 'c'].map(|name| add(probe, logging(log, name, Kind::Entry, Verdict::CONTINUE)));
    remove(probe, ids[1]);
    hit(probe);
    assert_eq!(taken(log).iter().map(|event| event.0).collect::<String>(), "ca");
    ids.iter().filter(|id| **id != ids[1]).for_each(|&id| remove(probe, id));
    hit(probe);
    assert_eq!(taken(log), []);
    assert!(!probe.consumers().remove(&mut writer(engine), ids[0]), "only once");
}

/// The kernel's rule: a breakpoint is removed if every consumer says so.
#[test]
fn removal_takes_all() {
    let (engine, log) = (engine(4), log());
    let probe = probe(engine, 2);
    add(probe, logging(log, 'a', Kind::Entry, Verdict::REMOVE));
    let stays = add(probe, logging(log, 'b', Kind::Entry, Verdict::CONTINUE));
    hit(probe);
    assert!(!probe.take_removal());
    remove(probe, stays);
    let waits = add(probe, logging(log, 'c', Kind::Return, Verdict::REMOVE));
    hit(probe);
    assert!(!probe.take_removal(), "one that waits for returns has not been asked");
    remove(probe, waits);
    let declines = add(probe, logging(log, 'd', Kind::Session, Verdict::IGNORE_RETURN));
    hit(probe);
    assert!(!probe.take_removal());
    remove(probe, declines);
    hit(probe);
    assert!(probe.take_removal());
    assert!(!probe.take_removal(), "asked and forgotten");
}

unsafe extern "C" fn never(_: *mut c_void, _: *const Hit) -> bool {
    false
}

#[test]
fn a_filter_decides_first() {
    let (engine, log) = (engine(4), log());
    let probe = probe(engine, 3);
    let mut filtered = logging(log, 'f', Kind::Session, Verdict::CONTINUE);
    filtered.filter = Some(never);
    add(probe, filtered);
    hit(probe);
    assert_eq!(taken(log), []);
    assert!(!probe.take_removal(), "it was not requested");
    add(probe, logging(log, 'a', Kind::Entry, Verdict::REMOVE));
    hit(probe);
    assert!(probe.take_removal(), "one that declined the hit has no say");
}

unsafe extern "C" fn unknown(_: *mut c_void, _: *mut Hit) -> Verdict {
    Verdict(77)
}

#[test]
fn an_unknown_verdict_goes_on() {
    let probe = probe(engine(4), 0);
    add(probe, calling(unknown, std::ptr::null_mut()));
    hit(probe);
    assert!(!probe.take_removal());
}

/// Changes what `data` selects: bit 0 adds to the instruction pointer, bit 1 to the stack pointer, bit 2 to
/// the result.
unsafe extern "C" fn change(data: *mut c_void, hit: *mut Hit) -> Verdict {
    let what = data as u64;
    // SAFETY: these are the registers of this hit.
    let regs = unsafe { &mut *(*hit).regs };
    regs.set_ip(regs.ip() + (what & 1) * 0x100);
    regs.set_sp(regs.sp() + (what >> 1 & 1) * 8);
    regs.set_result(regs.result() + (what >> 2 & 1));
    Verdict::CONTINUE
}

#[test]
fn what_a_consumer_changes_decides_where_the_thread_goes_on() {
    let engine = engine(4);
    let cases = [
        (0, GoOn::Original),
        (4, GoOn::Original),
        (2, GoOn::OtherStack),
        (1, GoOn::Elsewhere),
        (7, GoOn::Elsewhere),
    ];
    for (what, expected) in cases {
        let probe = probe(engine, 4);
        add(probe, calling(change, what as *mut c_void));
        let mut regs = regs(0x7000);
        let before = regs;
        assert_eq!(enter(probe, &mut regs), expected as u64, "{what}");
        assert_eq!(regs.ip(), before.ip() + (what & 1) * 0x100);
        assert_eq!(regs.sp(), before.sp() + (what >> 1 & 1) * 8);
        assert_eq!(regs.result(), what >> 2 & 1);
    }
}

#[test]
fn a_probe_knows_what_its_consumers_declare() {
    let engine = engine(4);
    let (probe, writer) = (probe(engine, 5), writer(engine));
    let general = Flags::GENERAL_REGS_ONLY;
    assert!(!probe.all_declare(&writer, general), "no consumer is not every consumer");
    let mut light = calling(unknown, std::ptr::null_mut());
    light.flags = general.with(Flags::MOVES_IP);
    add(probe, light);
    assert!(probe.all_declare(&writer, general) && probe.any_declares(&writer, Flags::MOVES_IP));
    let heavy = add(probe, calling(unknown, std::ptr::null_mut()));
    assert!(!probe.all_declare(&writer, general) && probe.any_declares(&writer, Flags::MOVES_IP));
    assert!(!probe.any_declares(&writer, Flags::MOVES_SP));
    remove(probe, heavy);
    assert!(probe.all_declare(&writer, general));
}
