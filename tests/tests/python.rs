//! SAFE-1: python3 runs its own test suite with every function of the program probed. The same tests pass and
//! skip as without. More than 99 % of the functions are patched, and the log also has the hit total. The same
//! with calls of some functions recorded.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use trapline_tests::tracing::{Report, binary};
use trapline_tests::{or_skip, programs};

const MODULES: [&str; 7] =
    ["test_grammar", "test_math", "test_json", "test_exceptions", "test_threading", "test_socket", "test_re"];

fn suite(out: &Path, modules: &[&str]) -> Vec<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("victims/suite.py");
    let mut words = vec!["/usr/bin/python3.11".to_owned()];
    words.extend([script, out.to_path_buf()].iter().map(|path| path.display().to_string()));
    words.extend(modules.iter().map(|&name| name.to_owned()));
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

fn bare(modules: &[&str]) -> BTreeMap<String, String> {
    let out = place(&format!("bare-{}", modules.len()));
    let words = suite(&out, modules);
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
        .args(suite(&out, &MODULES));
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
    let without = bare(&MODULES);
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

/// Names, texts and values of calls are recorded while the suite runs. They are stored as they are, not
/// printed, so that the tracer keeps up.
#[test]
fn its_own_test_suite_with_calls_recorded() {
    or_skip!(programs::python());
    or_skip!(programs::find(&["/usr/lib/python3.11/test/test_grammar.py"]));
    let modules = &MODULES[..3];
    let without = bare(modules);
    let (out, file) = (place("recorded"), place("calls").with_extension("trapline"));
    let probes = [
        "/usr/bin/python3.11:PyUnicode_FromString(str text) -> ptr",
        "/usr/bin/python3.11:PyList_New(long size) -> ptr",
        "/usr/bin/python3.11:PyErr_SetString(ptr kind, str text)",
        "libc:read(int fd, ptr to, size_t most) -> ssize_t",
    ];
    let mut command = Command::new(binary());
    command.args(["trace", "-o"]).arg(&file).args(probes).arg("--").args(suite(&out, modules));
    let run = quiet(&mut command);
    let errors = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(run.status.success(), "{}: {errors}", run.status);
    let with = outcomes(&out);
    let changed: Vec<_> =
        without.iter().filter(|(name, outcome)| with.get(*name) != Some(*outcome)).collect();
    assert_eq!(changed, [], "outcomes differ under tracing; {errors}");
    let shown = quiet(Command::new(binary()).args(["trace", "--from"]).arg(&file));
    std::fs::remove_file(&file).ok();
    let lines = String::from_utf8_lossy(&shown.stdout);
    let of = |func: &str| lines.lines().filter(|line| line.contains(func)).count();
    let (texts, lists, reads) =
        (of(" PyUnicode_FromString(text=\""), of(" PyList_New(size="), of(":read(fd="));
    println!("{texts} texts, {lists} lists, {reads} reads\n{errors}");
    assert!(shown.status.success() && texts > 1000 && lists > 100_000 && reads > 100);
    let raised = of(" PyErr_SetString(kind=0x");
    let reported = texts + lists + reads + raised;
    let recorded = errors.split_once("hits: ").and_then(|(_, rest)| rest.split_once(" recorded"));
    let recorded = recorded.map(|(number, _)| number.replace(',', "").parse().expect("a number"));
    assert!(raised > 0 && recorded == Some(reported), "{reported} reported; {errors}");
}
