//! SAFE-1: python3 with every function of the program probed runs its own test suite; the same names pass and skip as
//! without, more than 99 % of the functions are patched, and the hit total stands in the same log.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use trapline_tests::tracing::{Report, binary};
use trapline_tests::{or_skip, programs};

const MODULES: [&str; 7] =
    ["test_grammar", "test_math", "test_json", "test_exceptions", "test_threading", "test_socket", "test_re"];

fn suite(out: &Path) -> Vec<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("victims/suite.py");
    let mut words = vec!["/usr/bin/python3.11".to_owned()];
    words.extend([script, out.to_path_buf()].iter().map(|path| path.display().to_string()));
    words.extend(MODULES.map(str::to_owned));
    words
}

fn place(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("trapline-python-{}-{name}", std::process::id()))
}

fn outcomes(out: &Path) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(out).expect("the suite wrote its outcomes");
    std::fs::remove_file(out).ok();
    serde_json::from_str(&text).expect("outcomes")
}

fn quiet(command: &mut Command) -> std::process::Output {
    command.current_dir("/tmp").stdin(Stdio::null()).output().expect("it runs")
}

fn bare() -> BTreeMap<String, String> {
    let out = place("bare");
    let words = suite(&out);
    let run = quiet(Command::new(&words[0]).args(&words[1..]));
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    outcomes(&out)
}

fn traced() -> (BTreeMap<String, String>, Report) {
    let (out, json) = (place("traced"), place("json"));
    let mut command = Command::new(binary());
    command
        .args(["count", "--json", "-o"])
        .arg(&json)
        .arg("/usr/bin/python3.11:*")
        .arg("--")
        .args(suite(&out));
    let run = quiet(&mut command);
    let errors = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(run.status.success(), "{}: {errors}", run.status);
    let text = std::fs::read_to_string(&json).unwrap_or_default();
    std::fs::remove_file(&json).ok();
    let objects = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    (outcomes(&out), Report { status: run.status, errors, objects })
}

#[test]
fn its_own_test_suite_with_every_function_probed() {
    or_skip!(programs::python());
    or_skip!(programs::find(&["/usr/lib/python3.11/test/test_grammar.py"]));
    let without = bare();
    let (with, report) = traced();
    let count = |outcome: &str| with.values().filter(|o| *o == outcome).count();
    println!("{} tests: {} ok, {} skipped", with.len(), count("ok"), count("skipped"));
    let (patched, refused) = (report.probes().count(), report.refused().len());
    let percent = 100.0 * patched as f64 / (patched + refused) as f64;
    let hit = report.probes().filter(|probe| probe["hits"].as_u64() > Some(0)).count();
    println!("{patched} functions patched ({percent:.2} %), {hit} hit; {} hits in all", report.total_hits());
    for (probe, why) in report.refused().iter().take(10) {
        println!("  refused {probe}: {why}");
    }
    let changed: Vec<_> =
        without.iter().filter(|(name, outcome)| with.get(*name) != Some(*outcome)).collect();
    assert_eq!(changed, [], "outcomes differ under tracing; {}", report.errors);
    assert_eq!(with.len(), without.len());
    assert!(with.len() > 1000, "the suite ran");
    assert!(patched + refused > 6000 && percent > 99.0);
    assert!(report.total_hits() > 100_000_000, "an interpreter's own functions are hit all the time");
}
