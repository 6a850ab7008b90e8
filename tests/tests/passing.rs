//! Counts behind a filter, through the library. Hits that pass are counted, the filtered ones are reported
//! beside them. A condition that no part could decide is an error before anything is touched (LOSS-2).

use trapline::filter::{Filter, Int, Known, Symbol, Undecided};
use trapline::{Builder, By, Error, Read, Session, Unwinding};
use trapline_tests::running::Running;
use trapline_tests::victims::{self, Variant};
use trapline_tests::{or_skip, text};

const TIMES: u64 = 600;
const INT: Int = Int { bits: 64, signed: true };

/// `a` and `b` are arguments, `p->a` is a field; the other names are those of the command's conditions.
fn filter(text: &str) -> Filter {
    let names = [
        ("a", Known::Argument(0, Int::U64)),
        ("b", Known::Argument(1, Int::U64)),
        ("field", Known::Field(0, INT)),
        ("ret", Known::Returned(INT)),
        ("dur", Known::Took),
        ("tid", Known::Thread),
    ];
    let names = names.map(|(name, known)| (name.to_owned(), Symbol::Known(known)));
    Filter::default().condition(text, &names).expect(text)
}

/// Hits that passed, hits that did not, and the victim's own count.
fn counted(victim: &mut Running, probe: &str, filter: Filter) -> (u64, u64, u64) {
    let session = builder(victim, probe, filter).count().expect("attaches");
    let reported = victim.run(TIMES);
    let finished = session.detach();
    let counts: Vec<_> = finished.reports.iter().flat_map(|process| &process.counts).collect();
    let [count] = counts[..] else { panic!("one site: {counts:?}") };
    let filtered = count.filtered.expect("there is a filter");
    assert_eq!((filtered.by_reader, filtered.unended), (0, 0), "{probe}");
    let func = probe.rsplit(':').next().expect("a name");
    (count.hits, filtered.in_target, reported[func])
}

fn builder(victim: &Running, probe: &str, filter: Filter) -> Builder {
    Session::builder().pid(victim.pid()).probe(probe).expect("reads").filters(vec![filter])
}

/// A C library with restartable sequences, and one without. With the latter, a system call finds the thread's
/// number.
fn variants() -> impl Iterator<Item = Variant> {
    [Variant::Plain, Variant::Musl].into_iter()
}

#[test]
fn entries_are_counted_by_what_is_known_there() {
    for variant in variants() {
        let path = or_skip!(victims::c("counter", variant));
        let mut victim = Running::start(&path, &[]);
        let before = text::signals(victim.pid());
        let own = format!("tid == {}", victim.pid());
        for (condition, passes) in [
            ("a % 3 == 1 && b == 2", &(|a: u64| a % 3 == 1) as &dyn Fn(u64) -> bool),
            ("a >= 100 || a == 7", &|a| a >= 100 || a == 7),
            ("b == 3", &|_| false),
            (own.as_str(), &|_| true),
            ("tid == 1 || a < 5", &|a| a < 5),
        ] {
            let (hits, filtered, reported) = counted(&mut victim, "many_args", filter(condition));
            let want = (0..TIMES).filter(|&a| passes(a)).count() as u64;
            assert_eq!((hits, filtered, reported), (want, TIMES - want, TIMES), "{variant:?} {condition}");
        }
        text::assert_clean(victim.pid(), &before);
    }
}

#[test]
fn returns_are_counted_by_what_is_returned() {
    for variant in variants() {
        let path = or_skip!(victims::c("counter", variant));
        let mut victim = Running::start(&path, &[]);
        let before = text::signals(victim.pid());
        for (probe, condition, want) in [
            ("uretprobe:early", "ret == 7", TIMES / 2),
            // Of the others, one in three goes on as another function.
            ("uretprobe:early", "!(ret == 7) && tid > 0", TIMES / 3),
            ("uretprobe:factorial", "ret == 24", TIMES),
            ("uretprobe:factorial", "tid == 1", 0),
        ] {
            let (hits, filtered, reported) = counted(&mut victim, probe, filter(condition));
            assert_eq!((hits, filtered), (want, reported - want), "{variant:?} {probe} {condition}");
        }
        // The function goes on as another one, and the return value of that is not known yet. A condition
        // that needs it is not fulfilled.
        for (condition, want) in [("ret > 0", 0), ("ret <= 0", 0), ("ret > 0 || tid > 0", TIMES)] {
            let (hits, filtered, reported) = counted(&mut victim, "uretprobe:tail_caller", filter(condition));
            assert_eq!((hits, filtered, reported), (want, TIMES - want, TIMES), "{variant:?} {condition}");
        }
        text::assert_clean(victim.pid(), &before);
    }
}

#[test]
fn samples_are_counted() {
    let path = or_skip!(victims::plain("counter"));
    let mut victim = Running::start(&path, &[]);
    let (hits, filtered, reported) = counted(&mut victim, "many_args", filter("a % 2 == 0").sample(10));
    assert_eq!(hits + filtered, reported);
    // At most one more for each CPU that it ran on.
    assert!((TIMES / 20..TIMES / 20 + 64).contains(&hits), "{hits}");
}

#[test]
fn conditions_that_nothing_can_decide_are_an_error() {
    let path = or_skip!(victims::plain("counter"));
    let victim = Running::start(&path, &[]);
    let before = text::signals(victim.pid());
    let why = |result: Result<Session, Error>| match result {
        Err(Error::Filter { why, .. }) => Some(why),
        Err(other) => panic!("{other}"),
        Ok(_) => None,
    };
    let named = || Filter::default().named(vec!["counter".to_owned()]);
    let (entry, exit) = ("many_args", "uretprobe:many_args");
    for (probe, filter, want) in [
        (entry, filter("ret == 7"), Undecided::Return),
        (entry, filter("a == 1 && dur > 5"), Undecided::Return),
        (entry, filter("field == 7").reads(vec![read()]), Undecided::Fields),
        (entry, named(), Undecided::Names),
        (exit, filter("ret == a"), Undecided::Arguments),
        (exit, filter("a == 1"), Undecided::Arguments),
        (exit, filter("ret == 1 && dur > 5"), Undecided::Duration),
        (exit, named(), Undecided::Names),
    ] {
        assert_eq!(why(builder(&victim, probe, filter).count()), Some(want), "{probe} {want:?}");
    }
    let timed = || builder(&victim, entry, filter("a == 1"));
    assert_eq!(why(timed().latency()), Some(Undecided::Timed));
    assert_eq!(why(timed().tally(false)), Some(Undecided::NotTallied));
    assert_eq!(why(timed().by(Some(By::Thread)).count()), Some(Undecided::ByThread));
    assert_eq!(why(timed().by(Some(By::Cpu)).count()), None);
    assert_eq!(why(builder(&victim, entry, Filter::default()).latency()), None, "it says nothing");
    let line = builder(&victim, exit, filter("a == 1")).count().expect_err("not decided").to_string();
    let why = "arguments are not known where a return is counted; record the calls, or tally them";
    assert_eq!(line, format!("the filter of {exit} cannot decide: {why}"));
    text::assert_clean(victim.pid(), &before);
}

/// Recorded calls: what the filter needs at the return is recorded even if it was not asked for. A condition
/// on what no record has is an error.
#[test]
fn records_have_what_their_filter_needs() {
    let path = or_skip!(victims::plain("counter"));
    let mut victim = Running::start(&path, &[]);
    let before = text::signals(victim.pid());
    // The function returns three times its argument, plus one.
    for arguments in [0, 1, 6] {
        let builder = builder(&victim, "leaf", filter("ret - 3 * a == 1 && a % 2 == 1"));
        let session = builder.record(arguments, true).expect("attaches");
        let reported = victim.run(TIMES);
        let finished = session.detach();
        let odd = finished.calls.iter().filter(|call| call.arguments[0] % 2 == 1).count();
        let filtered = finished.reports[0].counts[0].filtered.expect("there is a filter");
        assert!(odd > 0, "{arguments}");
        assert_eq!(finished.calls.len(), odd, "{arguments}");
        let all = odd as u64 + filtered.in_target + filtered.by_reader + filtered.unended;
        assert_eq!((all, finished.summary.missed), (reported["leaf"], 0), "{arguments}");
    }
    let why = |result: Result<Session, Error>| match result {
        Err(Error::Filter { why, .. }) => Some(why),
        Err(other) => panic!("{other}"),
        Ok(_) => None,
    };
    let of = |text: &str| builder(&victim, "leaf", filter(text));
    for text in ["ret == 7", "a == 1 && dur > 5", "a == 1 || ret == 7"] {
        assert_eq!(why(of(text).record(6, false)), Some(Undecided::Unrecorded), "{text}");
    }
    let stacks = Unwinding::FramePointers(16);
    for text in ["a == 1 || ret == 7", "a == 1 && ret == 7", "a == 1 && dur > 5"] {
        assert_eq!(why(of(text).stacks(stacks, true)), Some(Undecided::Stacks), "{text}");
    }
    let named = filter("a == 1").named(vec!["counter".to_owned()]);
    assert_eq!(why(builder(&victim, "leaf", named).stacks(stacks, true)), Some(Undecided::Names));
    assert_eq!(why(of("a == 1").stacks(stacks, true)), None);
    assert_eq!(why(of("a == 1").record(0, false)), None);
    text::assert_clean(victim.pid(), &before);
}

/// Threads are distinguished without the system call, where a filter would kill the process for it.
#[test]
fn threads_are_known_where_asking_is_punished() {
    let path = or_skip!(victims::plain("filtered"));
    let mut victim = Running::start(&path, &["gettid"]);
    let own = format!("tid == {}", victim.pid());
    let session = builder(&victim, "leaf", filter(&own)).count().expect("attaches");
    for _ in 0..20 {
        victim.send("");
        assert_eq!(victim.line(), "alive");
    }
    let finished = session.detach();
    let hits: Vec<u64> = finished.reports.iter().flat_map(|of| &of.counts).map(|count| count.hits).collect();
    assert_eq!(hits, [20]);
}

fn read() -> Read {
    Read { register: 0, offsets: vec![0], bytes: 8 }
}
