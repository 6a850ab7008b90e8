//! VAL-1: fields of structures that arguments point to, by debug information: shown, in conditions, in
//! histograms; compared with what the kernel reads.

use std::path::Path;

use serde_json::{Value, json};
use trapline_tests::fetched::Fetched;
use trapline_tests::programs::Own;
use trapline_tests::running::Running;
use trapline_tests::tracing::{self, Report, Tracing, once};
use trapline_tests::victims::Variant;
use trapline_tests::{or_skip, victims};

const TIMES: u64 = 5;

fn traced(victim: &mut Running, words: &[&str]) -> Report {
    tracing::traced(victim, "trace", words, TIMES).0
}

/// Values of each call's arguments.
fn values(report: &Report) -> Vec<Value> {
    let calls = report.calls().into_iter();
    let of = |call: &Value| {
        call["args"].as_array().expect("args").iter().map(|one| one["value"].clone()).collect()
    };
    calls.map(of).collect()
}

#[test]
fn fields_are_read_through_pointers() {
    fields_are_there(&or_skip!(victims::plain("values")));
}

#[test]
fn fields_are_read_without_restartable_sequences_too() {
    fields_are_there(&or_skip!(victims::c("values", Variant::Musl)));
}

fn fields_are_there(path: &Path) {
    let mut victim = Running::start(path, &[]);
    let words = "handle(req->len, req->name, mode, req->next->weight, req->in.level, arg0->in.tag, req->table[1], req->mode)";
    let seen = values(&traced(&mut victim, &[words]));
    let expected = [
        json!([70000, "first", 0, -0.5, -9, "inside", -2, -1]),
        json!([-3, "second", 7, null, 0, "", 0, 7]),
        json!([null, null, -1, null, null, null, null, null]),
    ];
    assert_eq!(seen.len() as u64, 3 * TIMES);
    assert!(seen.iter().zip(expected.iter().cycle()).all(|(seen, expected)| seen == expected), "{seen:?}");
    let bits = values(&traced(&mut victim, &["handle(req->bits, req->in)"]));
    assert_eq!((&bits[0][0], &bits[0][1]["level"]), (&json!(5), &json!(-9)), "{:?}", bits[0]);
    let few = traced(&mut victim, &["handle(req->urgent, req->share, req->whole, req->part, req->next)"]);
    let first = &values(&few)[0];
    assert_eq!(first.as_array().expect("five")[..4], [json!(1), json!(0.25), json!(0xfe), json!(-2)]);
    let call = few.objects.iter().find(|object| object["type"] == "call").expect("a call");
    assert_eq!((&call["args"][0]["name"], &call["ret"]), (&json!("req->urgent"), &json!(-128)));
}

#[test]
fn the_kernel_reads_the_same_fields() {
    let path = Own::of(&or_skip!(victims::plain("values")), "fields");
    let mut victim = Running::start(&path, &[]);
    for (field, fetch) in [("req->len", "+4(%di):s32"), ("req->next->mode", "+32(+24(%di)):s32")] {
        let kernel = or_skip!(Fetched::new(&path, "handle", victim.pid(), fetch));
        victim.run(TIMES);
        // The kernel shows 0 for what it cannot read.
        let number = |text: &String| text.parse::<i64>().unwrap_or_else(|_| panic!("{text}"));
        let theirs: Vec<i64> = kernel.read().iter().map(number).collect();
        let probe = format!("handle({field})");
        let seen = values(&traced(&mut victim, &[&probe]));
        assert_eq!(
            seen.iter().filter(|one| one[0].is_null()).count() as u64,
            TIMES * if theirs[1] == 0 { 2 } else { 1 }
        );
        let ours: Vec<i64> = seen.iter().map(|one| one[0].as_i64().unwrap_or(0)).collect();
        assert_eq!(ours, theirs, "{field}");
    }
}

#[test]
fn conditions_and_distributions_know_fields() {
    fields_decide(&or_skip!(victims::plain("values")));
}

#[test]
fn fields_are_added_up_in_the_target() {
    for path in [or_skip!(victims::plain("values")), or_skip!(victims::c("values", Variant::Musl))] {
        let mut victim = Running::start(&path, &[]);
        for (words, in_target) in [
            (&["--top", "req->len"][..], "unseen"),
            (&["req->len"], "unseen"),
            (&["--linear", "0:100000:100", "req->len + mode"], "unseen"),
            (&["--top", "req->next->mode", "--if", "req->flags >= 0"], "unseen"),
            (&["req->flags", "--if", "mode != 7 || req->len > 0"], "unseen"),
            (&["req->len + ret"], "unseen"),
            (&["--top", "ret", "--if", "req->flags & 1 || ret == 99"], "unseen"),
            // A duration is unknown where a call goes on as another function, so no condition with it is too
            // long for the target. The comparison below is left out for these.
            (&["--top", "req->next->mode * 2", "--if", "dur < 3600s && req->flags >= 0"], ""),
            (&["req->flags", "--by", "cpu", "--if", "dur >= 0"], ""),
            (&["mode", "--by", "tid", "--if", "req->len > 0"], ""),
            (&["req->len", "--by", "cpu"], ""),
        ] {
            let run = |victim: &mut Running, also: Option<&str>| {
                let pid = victim.pid().to_string();
                let (words, asked): (Vec<&str>, Vec<&str>) =
                    match words.iter().position(|word| *word == "--if") {
                        Some(at) => ([&words[..at], &words[at + 2..]].concat(), vec![words[at + 1]]),
                        None => (words.to_vec(), Vec::new()),
                    };
                let all: Vec<String> = asked.into_iter().chain(also).map(|one| format!("({one})")).collect();
                let condition = all.join(" && ");
                let condition = if all.is_empty() { vec![] } else { vec!["--if", &condition] };
                let words = ["-p", &pid].into_iter().chain(condition).chain(words);
                let words: Vec<&str> = words.chain(["handle"]).collect();
                let tracing =
                    Tracing::start("hist", &words).unwrap_or_else(|report| panic!("{}", report.errors));
                victim.run(TIMES);
                let report = tracing.stop();
                assert!(report.status.success(), "{}", report.errors);
                report
            };
            let ours = run(&mut victim, None);
            assert!(!ours.errors.contains("added up here"), "{words:?}: {}", ours.errors);
            if in_target.is_empty() {
                continue;
            }
            // A condition that always holds, and is too long for code in the target, leaves the aggregation
            // to the reader.
            let mut always = "ret".to_owned();
            (0..8).for_each(|_| always = format!("({always} || mode) + 1"));
            let theirs = run(&mut victim, Some(&always));
            assert!(theirs.errors.contains("added up here"), "{words:?}: {}", theirs.errors);
            let reported = |report: &Report| {
                let last =
                    report.objects.iter().rfind(|object| object["type"] == "hist").expect("a histogram");
                let probe = &last["probes"][0];
                (probe["parts"].clone(), probe["unseen"].clone(), probe["overflow"].clone())
            };
            assert_eq!(reported(&ours), reported(&theirs), "{words:?}");
        }
    }
}

#[test]
fn fields_decide_without_restartable_sequences_too() {
    fields_decide(&or_skip!(victims::c("values", Variant::Musl)));
}

/// Conditions on fields are decided in the target: calls that do not pass are not recorded. One of the three
/// calls has no readable structure.
fn fields_decide(path: &Path) {
    let mut victim = Running::start(path, &[]);
    for (condition, per_run) in [
        ("req->flags & 4", 1),
        ("req->flags & 1 && req->len > 1000 && mode == MODE_FAST", 1),
        ("req->weight < 0", 1),
        ("req->next->flags == 4 || urgent", 1),
        ("req->table[2] == 3", 1),
        ("req->mode == MODE_SAFE && ret == 7", 1),
        ("req->flags >= 0", 2),
        ("!(req->flags < 0)", 2),
        ("req->flags >= 0 || ret != 99", 3),
        ("(req->flags >= 0 || ret == 99) + 1 == 2 && dur < 3600s", 2),
    ] {
        for options in [&["--if", condition, "handle"][..], &["--entry-only", "--if", condition, "handle"]] {
            if options.len() > 3 && (condition.contains("ret") || condition.contains("dur")) {
                continue;
            }
            let report = traced(&mut victim, options);
            let (reported, field) = (TIMES * per_run, |name: &str| report.field("handle", name));
            assert_eq!(values(&report).len() as u64, reported, "{condition}: {}", report.errors);
            assert_eq!((field("hits"), field("filtered")), (reported, 3 * TIMES - reported), "{condition}");
            assert_eq!((field("left_out"), report.number("missed")), (0, 0), "{condition}");
        }
    }
}

#[test]
fn what_is_no_field_is_refused_under_its_name() {
    let path = or_skip!(victims::plain("values"));
    let victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    for (words, output_text) in [
        (&["handle(req->lne)"][..], "`req` has no field `lne`…\n    req->lne\n         ^^^"),
        (&["handle(reg->len)"], "there is no argument or variable `reg`"),
        (&["handle(mode->x)"], "`mode` is no structure and points to none\n    mode->x\n          ^"),
        (&["handle(*mode)"], "`mode` is no pointer\n    *mode\n    ^"),
        (&["handle(share->x)"], "`share` is in no register of its own"),
        (
            &["handle(req->table[4])"],
            "`req->table` has 4 elements; 4 is none of them\n    req->table[4]\n              ^^^",
        ),
        (
            &["--if", "mode && req->lenn > 3", "handle"],
            "has no field `lenn`…\n    mode && req->lenn > 3\n                 ^^^^",
        ),
        (&["--if", "req->name == 3", "handle"], "this is text"),
        (&["--if", "req->len > 3", "handle(ptr req)"], "where no types were typed"),
    ] {
        let output = once(&[&["trace", "-p", &pid], words].concat());
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        let all = output_text.split('…').all(|part| error.contains(part));
        assert!(output.status.code() == Some(2) && all, "{words:?}: {error}");
    }
}
