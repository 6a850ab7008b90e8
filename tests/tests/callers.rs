//! `stack`: callers in Go programs, compared with Go's own runtime; callers in libraries that are gone at the
//! time of the report, and in code that a program made itself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use trapline_tests::running::Running;
use trapline_tests::stacks::{addresses, all, names};
use trapline_tests::tracing::{Report, Tracing};
use trapline_tests::{or_skip, programs, target_dir, text, victims};

const TIMES: u64 = 30;

/// Names and return addresses of the callers, and how often each stack occurred.
type Callers = BTreeMap<(Vec<String>, Vec<u64>), u64>;

/// Most callers that a record holds.
const DEEPEST: usize = 122;

/// The stacks that Go's runtime reports.
fn reported(line: &str, with_inlined: bool) -> Callers {
    let reported: Value = serde_json::from_str(line).expect("JSON");
    let mut callers = Callers::new();
    for stack in reported.as_array().expect("stacks") {
        let name = |name: &Value| name.as_str().expect("a name").to_owned();
        let names: Vec<String> = stack["names"].as_array().expect("names").iter().map(name).collect();
        let pcs = stack["pcs"].as_array().expect("addresses").iter().map(|pc| pc.as_u64().expect("one"));
        let (mut shown, mut places, mut into) = (Vec::new(), Vec::new(), false);
        for (name, pc) in names.iter().zip(pcs) {
            // A frame begins with the most deeply inlined function; its address is the true one.
            if !into {
                places.push(pc);
            }
            into = name.ends_with("[i]");
            if with_inlined || !into {
                shown.push(name.trim_end_matches("[i]").to_owned());
            }
        }
        *callers.entry((shown, places)).or_default() += stack["hits"].as_u64().expect("hits");
    }
    callers
}

/// The stacks that our report has.
fn seen(report: &Report) -> Callers {
    let mut callers = Callers::new();
    for stack in all(report) {
        let names = names(stack).into_iter().skip(1).map(str::to_owned).collect();
        let places = addresses(stack).into_iter().skip(1).collect();
        *callers.entry((names, places)).or_default() += stack["hits"].as_u64().expect("hits");
    }
    callers
}

/// Go keeps frame pointers, which we walk; its own report comes from its tables. Both must agree.
fn go_knows_the_same(path: &Path, with_inlined: bool) {
    let mut victim = Running::start(path, &[]);
    let pid = victim.pid().to_string();
    let tracing = Tracing::start("stack", &["-p", &pid, "main.probed"]).expect("attaches");
    let hits = victim.run(TIMES)["main.probed"];
    let report = tracing.stop();
    assert!(report.status.success() && report.number("missed") == 0, "{}", report.errors);
    victim.send("stacks");
    let (reported, seen) = (reported(&victim.line(), with_inlined), seen(&report));
    let sum = |callers: &Callers| callers.values().sum::<u64>();
    assert_eq!((sum(&reported), sum(&seen), report.hits("main.probed")), (hits, hits, hits));
    // Go reports a fault by the address behind it, so fault frames are left out. All other places are
    // compared.
    let fault = |names: &[String]| names.iter().any(|name| name == "runtime.sigpanic");
    let comparable = |callers: Callers| -> Callers {
        let mut all = Callers::new();
        for ((mut names, mut places), hits) in callers {
            if places.len() >= DEEPEST {
                names.truncate(DEEPEST);
                places.truncate(DEEPEST);
            }
            if fault(&names) {
                places.clear();
            }
            *all.entry((names, places)).or_default() += hits;
        }
        all
    };
    let (reported, seen) = (comparable(reported), comparable(seen));
    assert!(reported.keys().any(|(names, _)| fault(names)), "a fault is among them");
    assert!(reported.keys().any(|(_, places)| places.len() == DEEPEST), "so is one that is too deep");
    assert!(reported.len() > 15, "{} stacks", reported.len());
    let others = |of: &Callers, than: &Callers| -> Callers {
        of.iter().filter(|(key, hits)| than.get(*key) != Some(hits)).map(|(k, v)| (k.clone(), *v)).collect()
    };
    assert_eq!(
        others(&seen, &reported),
        others(&reported, &seen),
        "ours that are not Go's, and Go's that are not ours"
    );
    let ends = |stack: &Value| stack["cut"] == true || names(stack).last() == Some(&"runtime.goexit");
    assert!(all(&report).all(ends), "each goroutine's stack has an end");
    assert_eq!(text::differences(victim.pid()), [""; 0]);
}

#[test]
fn go_has_the_same_callers_with_what_was_inlined() {
    go_knows_the_same(&or_skip!(victims::go_with_libc("goroutines")), true);
}

/// Its threads have no rseq areas. The callers must be the same.
#[test]
fn go_without_the_c_library_has_the_same_callers() {
    go_knows_the_same(&or_skip!(victims::go("goroutines")), true);
}

#[test]
fn a_stripped_go_program_has_names_too() {
    go_knows_the_same(&or_skip!(victims::go_with_libc_stripped("goroutines")), false);
}

/// Files that are removed after the test.
struct Gone(Vec<PathBuf>);

impl Drop for Gone {
    fn drop(&mut self) {
        for file in &self.0 {
            std::fs::remove_file(file).ok();
        }
    }
}

/// Callers in an unloaded and deleted library, and in generated code that was unmapped, still have names at
/// the end.
#[test]
fn callers_that_are_gone_have_names() {
    let built = or_skip!(victims::shared("caller"));
    let path = or_skip!(victims::plain("callers"));
    let library = target_dir().join(format!("victims/caller-{}.so", std::process::id()));
    programs::copy(&built, &library).expect("a copy");
    let mut victim = Running::start(&path, &[library.to_str().expect("text")]);
    let map = PathBuf::from(format!("/tmp/perf-{}.map", victim.pid()));
    let files = Gone(vec![library.clone(), map]);
    let pid = victim.pid().to_string();
    let mut tracing = Tracing::start("stack", &["-p", &pid, "probed"]).expect("attaches");
    let reported = victim.run(TIMES);
    assert_eq!((reported["done"], reported["probed"]), (1, 3 * TIMES));
    // By now these hits have been read, and the mappings have been looked at.
    tracing.wait_for(&format!("\"hits\":{},", 3 * TIMES));
    let reported = victim.run(TIMES);
    assert_eq!((reported["done"], reported["probed"]), (1, TIMES));
    std::fs::remove_file(&library).expect("ours");
    let report = tracing.stop();
    assert!(report.status.success() && report.number("missed") == 0, "{}", report.errors);
    let by = |caller: &str| {
        let by_it = |stack: &&Value| names(stack).get(1) == Some(&caller);
        let hits = all(&report).filter(by_it).map(|stack| stack["hits"].as_u64().expect("hits"));
        hits.sum::<u64>()
    };
    let ways = ["from_library", "made in memory", "made in a file"];
    assert_eq!(ways.map(by), [TIMES; 3], "{:?}", all(&report).map(names).collect::<Vec<_>>());
    let from_library = all(&report).find(|stack| names(stack)[1] == "from_library").expect("seen");
    let frame = &from_library["frames"][1];
    assert_eq!(frame["module"].as_str(), library.to_str(), "{frame}");
    assert!(frame["functions"][0]["line"].as_u64() > Some(0), "with debug information: {frame}");
    drop(files);
}
