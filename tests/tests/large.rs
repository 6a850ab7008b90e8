//! Large programs: memory bounds what one batch probes, a module without room near it is refused by itself, and an attach
//! may be interrupted at any moment.

use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Instant;

use trapline_tests::running::Running;
use trapline_tests::tracing::Tracing;
use trapline_tests::{or_skip, text};

// 30,000 functions. The program calls 1,000 of them in a hundred rounds.
const LIBRARIES: usize = 5;
const FUNCTIONS: usize = 6000;
/// At so many moments an attach is interrupted.
const MOMENTS: u32 = 8;

fn run(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?}: {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

/// Writes a library of many functions as assembly. A compiler would take a minute.
fn library(dir: &Path, number: usize) -> Result<(), String> {
    let mut text = String::from(".text\n");
    for nth in 0..FUNCTIONS {
        let name = format!("l{number}_f{nth}");
        let _ = write!(
            text,
            ".p2align 4\n.globl {name}\n.type {name}, @function\n{name}:\nimul ${nth}, %edi, %eax\nadd $7, %eax\nadd %edi, %eax\nnop\nret\n\
             .size {name}, . - {name}\n"
        );
    }
    let source = dir.join(format!("l{number}.s"));
    std::fs::write(&source, text).map_err(|error| error.to_string())?;
    run(Command::new("cc").args(["-shared", "-o"]).arg(dir.join(format!("libmany{number}.so"))).arg(source))
}

/// A program with all these libraries, which calls two functions of each. It is built once, for all tests.
fn program() -> Result<PathBuf, String> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BUILT.get_or_init(built).clone()
}

fn built() -> Result<PathBuf, String> {
    let dir = trapline_tests::target_dir().join("victims").join("many");
    let path = dir.join("many");
    if path.exists() {
        return Ok(path);
    }
    std::fs::create_dir_all(&dir).map_err(|error| error.to_string())?;
    let (mut declared, mut called) = (String::new(), String::new());
    for number in 1..=LIBRARIES {
        library(&dir, number)?;
        let _ = writeln!(declared, "int l{number}_f7(int); int l{number}_f5999(int);");
        let _ = writeln!(called, "s += l{number}_f7(s); s += l{number}_f5999(s);");
    }
    let source = format!(
        "#include <stdio.h>\n{declared}\nint main(void) {{ char w[9]; long n, s = 0; puts(\"ready\"); fflush(stdout);\n\
         while (scanf(\"%8s %ld\", w, &n) == 2) {{ for (long i = 0; i < n; i++) {{ {called} }}\n\
         printf(\"calls=%ld sum=%ld\\n\", n, s & 0xff); fflush(stdout); }} return 0; }}\n"
    );
    let main = dir.join("many.c");
    std::fs::write(&main, source).map_err(|error| error.to_string())?;
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wl,-rpath,$ORIGIN", "-L"]).arg(&dir).arg("-o").arg(dir.join("many.new")).arg(main);
    run(cc.args((1..=LIBRARIES).map(|number| format!("-lmany{number}"))))?;
    std::fs::rename(dir.join("many.new"), &path).map_err(|error| error.to_string())?;
    Ok(path)
}

/// All functions of all libraries.
fn probes() -> Vec<String> {
    (1..=LIBRARIES).map(|number| format!("libmany{number}:l{number}_f*")).collect()
}

/// The libraries lie close together, and each maps the part that all have in common.
#[test]
fn many_functions_of_several_libraries_are_timed_and_traced() {
    let path = or_skip!(program());
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let reported = victim.run(1);
    let probes = probes();
    for verb in ["count", "lat", "trace"] {
        let mut words = vec!["-p", &pid];
        words.extend(probes.iter().map(String::as_str));
        let tracing =
            Tracing::start(verb, &words).unwrap_or_else(|report| panic!("{verb}: {}", report.errors));
        assert_eq!(victim.run(100).get("calls"), Some(&100));
        let output_text = tracing.stop().errors;
        assert!(
            output_text.contains("sites: 30,000 matched, 30,000 probed, 0 refused"),
            "{verb}: {output_text}"
        );
        assert!(output_text.contains("hits: 1,000 recorded, 0 missed"), "{verb}: {output_text}");
    }
    assert_eq!(victim.run(1).get("calls"), reported.get("calls"));
}

/// Ctrl-C at moments all over an attach. The command ends well, and the program is as it was.
#[test]
fn an_attach_that_is_interrupted_leaves_nothing() {
    let path = or_skip!(program());
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let reported = victim.run(1);
    let before = text::signals(victim.pid());
    let probes = probes();
    let words: Vec<&str> = ["-p", &pid].into_iter().chain(probes.iter().map(String::as_str)).collect();
    let begun = Instant::now();
    let tracing = Tracing::start("lat", &words).unwrap_or_else(|report| panic!("{}", report.errors));
    let took = begun.elapsed();
    drop(tracing.stop());
    for moment in 1..=MOMENTS {
        let mut tracing = Tracing::spawn("lat", &words);
        std::thread::sleep(took * moment / (MOMENTS + 1));
        assert_eq!(victim.run(1).get("calls"), reported.get("calls"), "moment {moment} of {took:?}");
        tracing.signal(libc::SIGINT);
        let report = tracing.end();
        // Before it catches signals it has done nothing.
        let is_early = report.status.signal() == Some(libc::SIGINT) && report.errors.is_empty();
        let is_planning = report.status.code() == Some(1)
            && report.errors.contains("interrupted before anything was changed in process");
        let is_well = report.status.success() || is_early || is_planning;
        assert!(is_well, "moment {moment} of {took:?}: {} {}", report.status, report.errors);
        text::assert_clean(victim.pid(), &before);
    }
    assert_eq!(victim.run(1).get("calls"), reported.get("calls"));
}
