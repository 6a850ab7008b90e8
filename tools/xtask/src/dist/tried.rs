//! Runs what users get where nothing else is: the binary beside one program, and the packages in a fresh Debian.
//!
//! In: the binary, the packages. Out: an outcome for each try. What this machine cannot do is a skip by name. Does not:
//! compare figures; it looks whether each verb shows the program's functions.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, ensure};

use super::chroot::Chroot;
use super::control::MULTIARCH;
use crate::outcome::Outcome;
use crate::tree;

/// Programs of others, with words that make them write something and end.
const PROGRAMS: [&[&str]; 4] = [
    &["/usr/bin/redis-server", "--version"],
    &["/usr/sbin/nginx", "-v"],
    &["/usr/bin/python3.11", "--version"],
    &["/bin/ls", "/"],
];
const TRAPLINE: &str = "/trapline";

/// Tries the binary.
pub(super) fn binary(file: &Path) -> Outcome {
    tried("the binary in an empty folder", || {
        let chroot = Chroot::empty("bare")?;
        chroot.copy(file, TRAPLINE)?;
        chroot.run(&[TRAPLINE, "--version"], 0)?;
        says(&chroot.run(&[TRAPLINE, "doctor"], 0)?, "ok  launch")?;
        // The sample program that needs no library.
        says(&chroot.run(&[TRAPLINE, "demo", "-d", "0.2"], 0)?, "cost of a hit")?;
        for words in PROGRAMS.iter().filter(|words| Path::new(words[0]).exists()) {
            chroot.copy_program(words[0])?;
            verbs(&chroot, words)?;
        }
        Ok(())
    })
}

/// Tries the binary in a Debian of essential packages alone: there is no compiler and no library of ours.
pub(super) fn minimal(file: &Path) -> Outcome {
    tried("the binary in a minimal Debian", || {
        let chroot = Chroot::debian("minimal", &[])?;
        for absent in
            ["/usr/bin/cc", "/usr/bin/gcc", "/usr/bin/rustc", "/usr/lib/x86_64-linux-gnu/libtrapline.so.0"]
        {
            ensure!(!chroot.has(absent), "{absent} is there");
        }
        chroot.copy(file, TRAPLINE)?;
        says(&chroot.run(&[TRAPLINE, "doctor"], 0)?, "ok  launch")?;
        says(&chroot.run(&[TRAPLINE, "demo", "-d", "0.2"], 0)?, "cost of a hit")?;
        for words in [["/bin/ls", "/"], ["/usr/bin/perl", "-v"], ["/bin/bash", "--version"]] {
            verbs(&chroot, &words)?;
        }
        println!("in a minimal Debian: doctor, demo, and those verbs");
        Ok(())
    })
}

/// Starts a binary of another processor under emulation. That has no ptrace, so nothing is traced.
pub(super) fn emulated(machine: &str, file: &Path) -> Outcome {
    let emulator = format!("qemu-{machine}-static");
    let run = |word: &str| super::printed(Command::new(&emulator).arg(file).arg(word));
    let all = || {
        says(&run("--version")?, &format!("trapline {}", env!("CARGO_PKG_VERSION")))?;
        says(&run("--help")?, "Exit status:")
    };
    let result = all();
    match &result {
        Ok(()) => println!("{emulator}: --version and --help"),
        Err(error) => println!("{emulator}: {error:#}"),
    }
    Outcome::single(result.is_ok())
}

/// Each verb, on one program: `write` is a function that all of them call.
fn verbs(chroot: &Chroot, words: &[&str]) -> Result<()> {
    const LIBC: &str = "/lib/x86_64-linux-gnu/libc.so.6";
    let with = |verb: &[&'static str]| [&[TRAPLINE], verb, &["--"], words].concat();
    says(&chroot.run(&with(&["count", "libc:w*"]), 0)?, "libc.so.6:write")?;
    says(&chroot.run(&with(&["trace", "libc:write(int fd, ptr at, u64 n) -> long"]), 0)?, "write(fd=")?;
    says(&chroot.run(&with(&["lat", "libc:write"]), 0)?, "p99 = ")?;
    says(&chroot.run(&with(&["stack", "libc:write"]), 0)?, "write (libc.so.6)")?;
    let script = format!("uprobe:{LIBC}:write {{ @[probe] = count(); }}");
    says(&chroot.run(&[TRAPLINE, "run", "-e", &script, "-c", &words.join(" ")], 0)?, ":write]: ")?;
    println!("count, trace, lat, stack and run with {}", words[0]);
    Ok(())
}

/// Tries the packages: install, run, remove, purge. No compiler is there. What a user would see is printed, with the time
/// that it took from nothing to the first result.
pub(super) fn packages(files: &[PathBuf]) -> Outcome {
    tried("the packages in a fresh Debian", || {
        let chroot = Chroot::debian("debian", &[])?;
        copied(&chroot, files)?;
        let begun = Instant::now();
        let first = "cd /packages && apt-get install -y ./trapline_*.deb && trapline demo -d 0.5";
        let shown = chroot.run(&["sh", "-c", first], 0)?;
        println!(
            "# {first}\n{shown}from nothing to the first results: {:.1} s",
            begun.elapsed().as_secs_f64()
        );
        says(&shown, "lookup")?;
        says(&shown, "cost of a hit")?;
        chroot.run(&["sh", "-c", "dpkg -i /packages/libtrapline0_*.deb"], 0)?;
        let names = ["trapline", "libtrapline0"];
        let installed = chroot.run(&["dpkg", "-L", names[0], names[1]], 0)?;
        chroot.run(&["dpkg", "--verify", names[0], names[1]], 0)?;
        says(&chroot.run(&["trapline"], 0)?, "trapline count 'libc:*alloc*' -- ls /")?;
        says(&chroot.run(&["trapline", "count", "libc:*alloc*", "--", "ls", "/"], 0)?, "libc.so.6:malloc")?;
        chroot.run(&["dpkg", "--remove", names[0], names[1]], 0)?;
        chroot.run(&["dpkg", "--purge", names[0], names[1]], 0)?;
        let left: Vec<&str> =
            installed.lines().filter(|line| line.contains("trapline") && chroot.has(line)).collect();
        ensure!(left.is_empty(), "purging left {left:?}");
        println!("in a fresh Debian: installed, run, removed and purged");
        Ok(())
    })
}

/// Copies packages into a Debian.
fn copied(chroot: &Chroot, files: &[PathBuf]) -> Result<()> {
    let name = |file: &Path| format!("/packages/{}", file.file_name().unwrap_or_default().display());
    files.iter().try_for_each(|file| chroot.copy(file, &name(file)))
}

/// Programs in C beside the Rust examples.
const EXAMPLES: [&str; 4] = ["self_trace", "count", "latency", "calls"];
/// Compiles an example and runs it; `$1` is its name, `$2` how it is linked.
const COMPILE: &str = "cd /examples && cc -std=c11 -O2 -Wall -Wextra -Werror \"$1.c\" -o \"$1\" \
    $(pkg-config --cflags $2 --libs trapline | sed \"s/ -ltrapline/ ${3:--ltrapline}/\")";
/// The same with packages that are not installed; `$1` is the program.
const UNPACKED: &str = "cc -std=c11 -O2 -Wall -Wextra -Werror \"${1##*/}.c\" -o \"$1\" \
    $(pkg-config --cflags --libs trapline)";
/// Counts in a program that writes all the time. Its first line says that it runs, and no longer is the shell that started it.
/// The end of its input ends the example.
const COUNTED: &str = "mkfifo /lines; yes > /lines & yes=$!; exec 3< /lines; read line <&3; cat <&3 > /dev/null & \
    sleep 1 | /examples/count $yes libc:write; kill $yes";
/// As the Python package's page begins.
const MODULE: &str =
    "import trapline; print(trapline.run(['ls', '/']).count('libc:malloc')['malloc'].hits, 'calls')";

/// Tries what programs use: the C library by its examples, and the wheel.
pub(super) fn libraries(files: &[PathBuf], folder: &Path) -> Outcome {
    tried("the libraries in a fresh Debian", || {
        let chroot = Chroot::debian("developer", &["gcc", "libc6-dev", "pkg-config", "python3-venv"])?;
        copied(&chroot, files)?;
        chroot.run(&["sh", "-c", "dpkg -i /packages/*.deb"], 0)?;
        let examples = tree::root().join("crates/trapline/examples");
        for name in EXAMPLES {
            chroot.copy(&examples.join(format!("{name}.c")), &format!("/examples/{name}.c"))?;
            chroot.run(&["sh", "-c", COMPILE, "sh", name, "--static", "-l:libtrapline.a"], 0)?;
            chroot.run(&["sh", "-c", COMPILE, "sh", name, ""], 0)?;
        }
        says(&chroot.run(&["/examples/self_trace"], 0)?, "calls, ")?;
        let counted = chroot.run(&["sh", "-c", COUNTED], 0)?;
        let hits = counted
            .lines()
            .find_map(|line| line.trim().strip_suffix(" libc.so.6:write")?.trim().parse::<u64>().ok());
        ensure!(hits.is_some_and(|hits| hits > 0), "no hits of write:\n{counted}");
        // It runs the command that was installed, and reads what that writes.
        let calls = "LC_ALL=C.UTF-8 /examples/calls 'libc:getenv(str name) -> str' -- ls /";
        says(&chroot.run(&["sh", "-c", calls], 0)?, "getenv(name=\"LC_ALL\") = \"C.UTF-8\"")?;
        println!("in a fresh Debian: the C examples compiled, with both libraries, and run");
        let wheels = super::wheel::of_host(folder);
        ensure!(!wheels.is_empty(), "no wheel was made");
        copied(&chroot, &wheels)?;
        let install = "python3 -m venv /venv && /venv/bin/pip install --no-index /packages/*.whl";
        let python = format!("{install} && /venv/bin/python -c \"{MODULE}\"");
        let shown = chroot.run(&["sh", "-c", &python], 0)?;
        println!("# {python}\n{shown}");
        says(&shown, " calls")
    })
}

/// Compiles the C examples on this machine with what lies in the packages, and runs two of them. `command` is the binary.
pub(super) fn unpacked(packages: &[PathBuf], command: &Path) -> Outcome {
    tried("the packages for C, unpacked", || {
        let root = Chroot::empty("unpacked")?;
        for package in packages {
            super::printed(Command::new("dpkg-deb").arg("-x").arg(package).arg(root.path()))?;
        }
        let libraries = root.path().join("usr/lib").join(MULTIARCH);
        let examples = tree::root().join("crates/trapline/examples");
        for name in EXAMPLES {
            let mut compile = Command::new("sh");
            compile.arg("-c").arg(UNPACKED).arg("sh").arg(root.path().join(name)).current_dir(&examples);
            compile.env("PKG_CONFIG_PATH", libraries.join("pkgconfig"));
            // Else pkg-config leaves out what a compiler finds by itself, in the machine's own folders.
            compile.env("PKG_CONFIG_ALLOW_SYSTEM_CFLAGS", "1").env("PKG_CONFIG_ALLOW_SYSTEM_LIBS", "1");
            super::printed(compile.env("PKG_CONFIG_SYSROOT_DIR", root.path()))?;
        }
        let run = |name: &str, words: &[&str]| {
            let mut program = Command::new(root.path().join(name));
            program.args(words).env("LD_LIBRARY_PATH", &libraries).env("TRAPLINE", command);
            super::printed(program.env("LC_ALL", "C.UTF-8"))
        };
        says(&run("self_trace", &[])?, "calls, ")?;
        let called = run("calls", &["libc:getenv(str name) -> str", "--", "ls", "/"])?;
        says(&called, "getenv(name=\"LC_ALL\") = \"C.UTF-8\"")?;
        println!("with the packages for C: {} examples compiled, two of them run", EXAMPLES.len());
        Ok(())
    })
}

fn says(text: &str, what: &str) -> Result<()> {
    ensure!(text.contains(what), "no `{what}` in:\n{text}");
    Ok(())
}

/// Runs a try, if this machine may have roots of its own.
fn tried(name: &str, work: impl FnOnce() -> Result<()>) -> Outcome {
    let may = Chroot::empty("may").and_then(|chroot| chroot.run(&["/none"], 127));
    if let Err(error) = may {
        let why = format!("dist: {name}: {}", error.to_string().lines().next().unwrap_or_default());
        println!("LOUD SKIP: {why}");
        return Outcome { skipped: vec![why], ..Outcome::default() };
    }
    let result = work();
    if let Err(error) = &result {
        println!("{name}: {error:#}");
    }
    Outcome::single(result.is_ok())
}

#[cfg(test)]
mod tests {
    use super::says;

    #[test]
    fn a_text_that_lacks_a_word_is_shown() {
        assert!(says("one two", "two").is_ok());
        let error = says("one two", "three").expect_err("it is not there").to_string();
        assert!(error.contains("`three`") && error.contains("one two"));
    }
}
