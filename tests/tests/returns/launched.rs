//! LOSS-2: a launched program: its unwinder is informed of return trampolines by the parked thread, where its C
//! library is ready for the call. Elsewhere it is refused at once.

use std::path::Path;
use std::process::Output;

use serde_json::Value;
use trapline_tests::tracing::once;
use trapline_tests::{or_skip, victims};

/// What `throws` prints: the sums of what `caught` returned in a constructor and in `main`.
fn expected(times: u64) -> String {
    let caught = |n: u64| if (2 * n).is_multiple_of(3) { 7 } else { (2 * n + 1) * 10 };
    format!("early={} sum={}\n", caught(3) + caught(4), (0..times).map(caught).sum::<u64>())
}

/// Runs `VERB --json --ret=RET PROBES… -- PROGRAM ARG`, and checks the program's output and status.
fn launched(verb: &str, ret: &str, probes: &[&str], program: (&Path, &str, &str)) -> (Vec<Value>, String) {
    let (path, arg, prints) = program;
    let (path, ret) = (path.display().to_string(), format!("--ret={ret}"));
    let Output { status, stdout, stderr } =
        once(&[&[verb, "--json", &ret], probes, &["--", &path, arg]].concat());
    let rest = String::from_utf8_lossy(&stderr).into_owned();
    assert_eq!(String::from_utf8_lossy(&stdout), prints, "{rest}");
    assert_eq!(status.code(), Some(5), "the program's own status; {rest}");
    (rest.lines().filter_map(|line| serde_json::from_str(line).ok()).collect(), rest)
}

/// The probe's entry in the last report.
fn entry<'a>(objects: &'a [Value], func: &str) -> &'a Value {
    let probes = objects.iter().rev().find_map(|object| object["probes"].as_array()).expect("a report");
    let is_it = |probe: &&Value| probe["probe"].as_str().is_some_and(|probe| probe.ends_with(func));
    probes.iter().find(is_it).expect("it is probed")
}

/// A third of the calls of `passes` end by an exception. It ends by a tail call, so its return address is
/// replaced.
#[test]
fn exceptions_pass_replaced_return_addresses_from_the_first_call_on() {
    const TIMES: u64 = 3000;
    let path = or_skip!(victims::cpp("throws"));
    let output_text = expected(TIMES);
    let program = (path.as_path(), "3000", output_text.as_str());
    for ret in ["auto", "stack"] {
        let (objects, rest) = launched("lat", ret, &["passes", "caught"], program);
        let (passes, caught) = (entry(&objects, ":passes"), entry(&objects, ":caught"));
        // One of the two calls in the constructor throws.
        assert_eq!(passes["calls"], TIMES / 3 * 2 + 1, "{rest}");
        assert_eq!(passes["tail_exits"], 0, "it ended with its callee; {rest}");
        // LOSS-2: the process has ended, and with it the trampolines of the calls that were left.
        let left = ["in_flight", "unreturned"].map(|field| passes[field].as_u64().unwrap_or(0));
        assert_eq!(left.iter().sum::<u64>(), TIMES / 3 + 1, "left by exceptions: {left:?}; {rest}");
        assert_eq!(caught["calls"], TIMES + 2, "{rest}");
    }
    let (objects, rest) = launched("trace", "auto", &["passes", "caught"], program);
    let calls = |func: &str| -> Vec<(Option<u64>, Option<u64>)> {
        let is_it = |object: &&Value| object["probe"].as_str().is_some_and(|probe| probe.ends_with(func));
        let pair = |call: &Value| (call["args"][0]["value"].as_u64(), call["ret"].as_u64());
        objects.iter().filter(is_it).map(pair).collect()
    };
    let order = || [3, 4].into_iter().chain(0..TIMES);
    assert_eq!(calls(":passes").len() as u64, TIMES + 2, "{rest}");
    for ((argument, value), n) in calls(":passes").into_iter().zip(order()) {
        let right = (!n.is_multiple_of(3)).then_some(2 * n + 1);
        assert_eq!((argument, value), (Some(n), right), "{rest}");
    }
    assert_eq!(calls(":caught").len() as u64, TIMES + 2, "{rest}");
    for (_, value) in calls(":caught") {
        assert!(value.is_some_and(|value| value == 7 || value.is_multiple_of(10)), "{rest}");
    }
}

/// A program that another one executes waits at its entry point too.
#[test]
fn a_followed_program_is_informed_at_its_entry_point() {
    let path = or_skip!(victims::cpp("throws")).display().to_string();
    let script = format!("{path} 300; exit 6");
    let output = once(&["lat", "-f", "--json", "passes", "--", "sh", "-c", &script]);
    let rest = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(6), "{rest}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected(300), "{rest}");
    let objects: Vec<Value> = rest.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let passes = entry(&objects, ":passes");
    assert_eq!((&passes["calls"], &passes["tail_exits"]), (&201.into(), &0.into()), "{rest}");
}

/// In a static program nothing is relocated at the entry point. With musl no constructor has run. `auto`
/// patches exits there, and `stack` refuses.
#[test]
fn a_program_with_a_c_library_that_is_not_ready_keeps_its_return_addresses() {
    const WHY: &str = "at its entry point its C library may not be ready for that";
    let musl = ["-O2", "-fPIE", "-pie", "-Wl,-u,__register_frame,-u,_Unwind_Find_FDE", "-lgcc_eh"];
    let cases = [
        ("static glibc", victims::cpp_static("throws"), expected(30), 32),
        ("dynamic musl", victims::c_by("own_unwinder", "musl-gcc", &musl), "sum=100\n".to_owned(), 10),
    ];
    for (what, path, output_text, calls) in cases {
        let Ok(path) = path.inspect_err(|why| println!("SKIP: {what}: {why}")) else { continue };
        let program = (path.as_path(), "30", output_text.as_str());
        let (objects, rest) = launched("lat", "auto", &["passes"], program);
        let passes = entry(&objects, ":passes");
        // Its tail call is the end of each call, of those too whose callee throws.
        let ended = passes["tail_exits"].as_u64();
        assert_eq!((ended, passes["calls"].as_u64()), (Some(calls), ended), "{what}: {rest}");
        let (_, rest) = launched("lat", "stack", &["passes"], program);
        assert!(rest.contains(WHY), "{what}: {rest}");
    }
}
