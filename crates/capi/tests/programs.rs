//! Programs in C, linked with the installed library as shared object and as archive: the examples, and
//! `abi.c`, which tests the promises of the interface.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use trapline_tests::{examples, or_skip, tracing};

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Link {
    Shared,
    Archive,
}

/// Folder into which `install.sh` has installed this build.
fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("capi-{}", std::process::id()));
        // The libraries of this very build are beside the test.
        let exe = std::env::current_exe().expect("own path");
        let installed = Command::new(Path::new(CRATE).join("install.sh"))
            .arg(&prefix)
            .arg(exe.parent().expect("the folder deps"))
            .status();
        assert!(installed.expect("sh").success());
        prefix
    })
}

/// The answer of pkg-config.
fn flags(link: Link) -> Vec<String> {
    let folder = prefix().join("lib/pkgconfig");
    let asked = ["--cflags", "--libs"].into_iter().chain((link == Link::Archive).then_some("--static"));
    let answer =
        Command::new("pkg-config").env("PKG_CONFIG_PATH", folder).args(asked).arg("trapline").output();
    let answer = answer.expect("pkg-config");
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    let words = String::from_utf8(answer.stdout).expect("flags");
    let name = |word: &str| match link {
        Link::Archive if word == "-ltrapline" => "-l:libtrapline.a".to_owned(),
        _ => word.to_owned(),
    };
    words.split_whitespace().map(name).collect()
}

/// Compiles a program with all warnings on; returns the command that runs it.
fn program(source: &str, compiler: &str, link: Link) -> Command {
    let mut words = compiler.split(' ');
    let source = Path::new(CRATE).join(source);
    let name = source.file_stem().expect("a name").to_string_lossy();
    let out = prefix().join(format!("{name}-{}-{link:?}", compiler.replace([' ', '+', '='], "_")));
    let output = Command::new(words.next().expect("a compiler"))
        .args(words)
        .args(["-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
        .arg(&source)
        .args(["-x", "none", "-o"])
        .arg(&out)
        .args(flags(link))
        .output()
        .expect("a compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut command = Command::new(out);
    if link == Link::Shared {
        command.env("LD_LIBRARY_PATH", prefix().join("lib"));
    }
    command
}

const C: &str = "cc -std=c11";
const BOTH: [Link; 2] = [Link::Shared, Link::Archive];

#[test]
fn self_trace() {
    for link in BOTH {
        examples::self_trace(program("../trapline/examples/self_trace.c", C, link));
    }
}

#[test]
fn count() {
    for link in BOTH {
        or_skip!(examples::count(program("../trapline/examples/count.c", C, link)));
    }
}

#[test]
fn latency() {
    for link in BOTH {
        or_skip!(examples::latency(program("../trapline/examples/latency.c", C, link)));
    }
}

/// `calls`: what a shell looks up, as the shell shows it.
#[test]
fn calls() {
    const ENVIRONMENT: &str = "libc:getenv(str name) -> str";
    for link in BOTH {
        let mut command = program("../trapline/examples/calls.c", C, link);
        command.args([ENVIRONMENT, "--", "ls", "/proc/self/status"]);
        command.env("TRAPLINE", tracing::binary()).env("LC_ALL", "C.UTF-8");
        let output = command.output().expect("runs");
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
        let lines: Vec<&str> = stdout.lines().collect();
        assert!(lines.contains(&"/proc/self/status"), "{stdout}");
        let calls: Vec<&&str> =
            lines.iter().filter(|line| line.contains("getenv(name=\"LC_ALL\")")).collect();
        assert!(!calls.is_empty() && calls.iter().all(|line| line.ends_with(" = \"C.UTF-8\"")), "{stdout}");
    }
}

#[test]
fn the_interface_keeps_its_word() {
    for (compiler, link) in [(C, Link::Shared), (C, Link::Archive), ("c++ -x c++ -std=c++17", Link::Archive)]
    {
        let output = program("tests/abi.c", compiler, link).output().expect("runs");
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{compiler}: {stdout}{}", String::from_utf8_lossy(&output.stderr));
        assert!(stdout.ends_with("done\n"), "{stdout}");
    }
}

/// Runs of the command: the program that is launched is the judge.
#[test]
fn commands_are_run_and_read() {
    let output = program("tests/commands.c", C, Link::Shared)
        .env("TRAPLINE", tracing::binary())
        .output()
        .expect("runs");
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    assert!(stdout.ends_with("done\n"), "{stdout}");
}

/// Nothing else of the library can clash with a program's own names.
#[test]
fn the_shared_object_exports_what_the_header_declares() {
    let output =
        Command::new("nm").args(["-D", "--defined-only"]).arg(prefix().join("lib/libtrapline.so")).output();
    let stdout = String::from_utf8(output.expect("nm").stdout).expect("names");
    let mut exported: Vec<&str> = stdout.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    let header = std::fs::read_to_string(prefix().join("include/trapline.h")).expect("the header");
    let code =
        header.lines().filter(|line| !line.trim_start().starts_with("//") && !line.starts_with("typedef"));
    let mut declared: Vec<&str> = code
        .filter_map(|line| line.split_once('(').map(|(before, _)| before))
        .filter_map(|before| before.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("trapline_"))
        .collect();
    exported.sort_unstable();
    declared.sort_unstable();
    declared.dedup();
    assert!(declared.len() > 15, "{declared:?}");
    assert_eq!(exported, declared);
}
