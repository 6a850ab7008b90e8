//! The programs that `values` looks at, and what they do meanwhile.
//!
//! In: what is installed, or can be built from source packages. Out: programs with their words and input. What is not
//! there is said. Does not: run them.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A program.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) name: String,
    /// The file whose functions are probed.
    pub(super) path: PathBuf,
    pub(super) words: Vec<String>,
    pub(super) folder: PathBuf,
    pub(super) environment: Vec<(String, String)>,
    /// What it reads from its standard input.
    pub(super) input: String,
    /// Makes the folder what it is before each run.
    pub(super) prepare: fn(&Path),
    /// What else it is asked for, once it runs.
    pub(super) feed: Option<Feed>,
    /// Calls of a function at most: records of hot ones would not all be read in time.
    pub(super) calls: u64,
}

/// [`Program::calls`], where functions are few.
const CALLS: u64 = 100;

/// Commands for a server, over its socket.
#[derive(Debug, Clone)]
pub(super) struct Feed {
    socket: PathBuf,
    commands: String,
}

impl Feed {
    /// Sends all commands, one after the other.
    pub(super) fn run(&self) {
        let connected = (0..2000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(20));
            UnixStream::connect(&self.socket).ok()
        });
        let Some(mut stream) = connected else { return };
        stream.set_read_timeout(Some(Duration::from_millis(500))).ok();
        let mut answer = [0; 65536];
        for command in self.commands.lines() {
            if stream.write_all(format!("{command}\r\n").as_bytes()).is_err() {
                return;
            }
            // A blocking command answers later, or never.
            drop(stream.read(&mut answer));
        }
    }
}

/// Makes a program's files in a folder, if it is there.
type Make = fn(&Path) -> Option<Program>;

const MAKES: [(&str, Make); 6] = [
    ("redis", |folder| redis(folder, "redis", crate::redis::ensure()?)),
    ("clang", |folder| redis(folder, "clang", clang()?)),
    ("ninja", ninja),
    ("python", python),
    ("rust", rust),
    ("go", go),
];

/// Names of all programs.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    MAKES.into_iter().map(|(name, _)| name)
}

/// Those that are wanted and there.
pub(super) fn all(folder: &Path, is_wanted: impl Fn(&str) -> bool) -> Vec<Program> {
    let wanted = MAKES.into_iter().filter(|(name, _)| is_wanted(name));
    let made = wanted.filter_map(|(name, make)| {
        let program = make(folder);
        if program.is_none() {
            println!("SKIP {name}: it is not there with debug information");
        }
        program
    });
    made.collect()
}

/// Redis by clang, with link-time optimisation.
fn clang() -> Option<PathBuf> {
    crate::redis::built(("redis", "redis-clang"), Path::new("src/redis-server"), &|source| {
        let mut command = Command::new("make");
        command.args([
            "-s",
            "-j2",
            "MALLOC=libc",
            "DEBUG=-g",
            "CC=clang",
            "AR=llvm-ar",
            "RANLIB=llvm-ranlib",
        ]);
        command.args(["OPTIMIZATION=-O2 -flto", "LDFLAGS=-flto -fuse-ld=lld", "redis-server"]);
        command.current_dir(source.join("src"));
        command
    })
}

/// A redis server.
fn redis(folder: &Path, name: &str, path: PathBuf) -> Option<Program> {
    let socket = folder.join(format!("{name}.socket"));
    let own = folder.join(name);
    fs::create_dir_all(&own).ok()?;
    let words = [
        &*path.to_string_lossy(),
        "--port",
        "0",
        "--unixsocket",
        &socket.to_string_lossy(),
        "--save",
        "",
        "--appendonly",
        "yes",
        "--enable-debug-command",
        "yes",
    ]
    .map(str::to_owned);
    let commands = include_str!("../../values/redis.txt").to_owned();
    Some(Program {
        name: name.to_owned(),
        words: words.to_vec(),
        path,
        folder: own,
        environment: Vec::new(),
        input: String::new(),
        prepare: emptied,
        feed: Some(Feed { socket, commands }),
        calls: CALLS,
    })
}

/// C++: ninja, from the distribution's source package, built here.
fn ninja(folder: &Path) -> Option<Program> {
    let path = crate::redis::built(("ninja-build", "ninja-build"), Path::new("ninja"), &|source| {
        let mut command = Command::new("python3");
        command.args(["configure.py", "--bootstrap"]).env("CXXFLAGS", "-O2 -g").current_dir(source);
        command
    })?;
    let own = folder.join("ninja");
    fs::create_dir_all(&own).ok()?;
    Some(Program {
        name: "ninja".to_owned(),
        words: vec![
            path.to_string_lossy().into_owned(),
            "-d".to_owned(),
            "stats".to_owned(),
            "-k".to_owned(),
            "0".to_owned(),
        ],
        path,
        folder: own,
        environment: Vec::new(),
        input: String::new(),
        prepare: ninja_rules,
        feed: None,
        calls: CALLS,
    })
}

/// Where programs are built.
fn built_here() -> Option<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    Some(std::path::absolute(target).ok()?.join("values"))
}

/// Rust: this project's own command, which lists a library's functions.
fn rust(folder: &Path) -> Option<Program> {
    let target = built_here()?;
    let mut command = Command::new(crate::cargo::cargo_path());
    command.args([
        "build",
        "--release",
        "-p",
        "trapline-cli",
        "--config",
        "profile.release.debug=2",
        "--target-dir",
    ]);
    let output = command.arg(&target).output().ok()?;
    if !output.status.success() {
        println!(
            "LOUD SKIP: no own command with debug information: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        return None;
    }
    let path = target.join("release/trapline");
    let words = ["list", "--json", "libc:m*"].map(str::to_owned);
    Some(Program {
        name: "rust".to_owned(),
        words: [path.to_string_lossy().into_owned()].into_iter().chain(words).collect(),
        path,
        folder: folder.to_owned(),
        environment: Vec::new(),
        input: String::new(),
        prepare: |_| {},
        feed: None,
        calls: CALLS,
    })
}

/// Go: its compiler, which compiles one file. It is linked with the C library, since the gate is.
fn go(folder: &Path) -> Option<Program> {
    let path = built_here()?.join("go-compile");
    let mut command = Command::new("go");
    command.args(["build", "-ldflags=-linkmode=external", "-o"]).arg(&path).arg("cmd/compile");
    let output = command.env("CGO_ENABLED", "1").current_dir(folder).output().ok()?;
    if !output.status.success() {
        println!("LOUD SKIP: Go's compiler is not built: {}", String::from_utf8_lossy(&output.stderr));
        return None;
    }
    let source = folder.join("compiled.go");
    fs::write(&source, include_str!("../../values/compiled.go")).ok()?;
    let path = fs::canonicalize(path).ok()?;
    let words = ["-p", "main", "-c", "1", "-o", "compiled.o", "compiled.go"].map(str::to_owned);
    // One thread at a time, and nothing that time decides.
    let environment = [("GOMAXPROCS", "1"), ("GOGC", "off"), ("GODEBUG", "asyncpreemptoff=1")];
    Some(Program {
        name: "go".to_owned(),
        words: [path.to_string_lossy().into_owned()].into_iter().chain(words).collect(),
        path,
        folder: folder.to_owned(),
        environment: environment.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
        input: String::new(),
        prepare: |_| {},
        feed: None,
        calls: 12,
    })
}

/// An empty folder.
fn emptied(folder: &Path) {
    fs::remove_dir_all(folder).ok();
    fs::create_dir_all(folder).ok();
}

fn ninja_rules(folder: &Path) {
    emptied(folder);
    let mut rules =
        "rule touch\n  command = touch $out\n  description = touch $out\n  depfile = $out.d\n  deps = gcc\n\
                     rule list\n  command = cat $in > $out\n  pool = few\npool few\n  depth = 2\n"
            .to_owned();
    for nth in 0..12 {
        rules += &format!("build a{nth}: touch | b\nbuild l{nth}: list a{nth} || a0\n");
    }
    rules += "build b: phony\nbuild all: phony l0 l1 l2 l3 l4 l5\ndefault all\n";
    fs::write(folder.join("build.ninja"), rules).ok();
}

/// The system's python, if its debug information is installed.
fn python(folder: &Path) -> Option<Program> {
    let path = fs::canonicalize("/usr/bin/python3").ok()?;
    let notes = Command::new("readelf").arg("-n").arg(&path).output().ok()?.stdout;
    let text = String::from_utf8_lossy(&notes).into_owned();
    let id = text.lines().find_map(|line| line.trim().strip_prefix("Build ID: "))?;
    let debug = format!("/usr/lib/debug/.build-id/{}/{}.debug", &id[..2], &id[2..]);
    Path::new(&debug).exists().then(|| Program {
        name: "python".to_owned(),
        words: vec![path.to_string_lossy().into_owned(), "-E".to_owned(), "-S".to_owned(), "-".to_owned()],
        path,
        folder: folder.to_owned(),
        environment: vec![("PYTHONHASHSEED".to_owned(), "0".to_owned())],
        input: include_str!("../../values/python.py").to_owned(),
        prepare: |_| {},
        feed: None,
        calls: CALLS,
    })
}
