//! `values`: what `trace` shows of arguments, beside what gdb shows of the same calls.
//!
//! In: real programs with debug information. Out: for each program, how many functions ran, and of how many all
//! arguments are equal, some unknown here, some different; each difference. Both look at the same process: it is held
//! before `main`, `trace` attaches, and gdb stops once at each function, with its breakpoint over our jump. So the
//! first record of a function is of the call at which gdb stopped. Does not: compare returned values.

mod compare;
mod programs;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use compare::{Verdict, of_call};
use programs::Program;

/// Functions of one glob at most, of which `trace` reads prototypes.
const MOST: usize = 900;
/// How long a program may run under both.
const PATIENCE: Duration = Duration::from_secs(400);

/// What a program's functions showed.
#[derive(Debug, Default)]
struct Counts {
    equal: usize,
    unknown: usize,
    differ: usize,
    /// gdb has no debug information of them.
    without: usize,
    arguments: usize,
    unknown_arguments: usize,
}

/// Runs all programs that are there, or those that are named. `-v` tells what is unknown, too.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let verbose = args.iter().any(|arg| arg == "-v");
    let named: Vec<&String> = args.iter().filter(|arg| *arg != "-v").collect();
    for name in &named {
        let all: Vec<&str> = programs::names().collect();
        ensure!(all.contains(&name.as_str()), "`{name}` is no program here; there are {}", all.join(", "));
    }
    let folder = std::env::temp_dir().join(format!("trapline-values-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let gate = build_gate(&folder)?;
    let (mut all, mut failed) = (0, 0);
    let is_wanted = |name: &str| named.is_empty() || named.iter().any(|one| *one == name);
    for program in programs::all(&folder, is_wanted) {
        let counts = match of_program(&program, &folder, &gate, verbose) {
            Ok(counts) => counts,
            Err(why) => {
                println!("{}: {why:#}", program.name);
                failed += 1;
                continue;
            }
        };
        let ran = counts.equal + counts.unknown + counts.differ;
        println!(
            "{}: {ran} functions ran: {} equal, {} unknown, {} differ ({} of {} arguments unknown here; {} without debug information)",
            program.name,
            counts.equal,
            counts.unknown,
            counts.differ,
            counts.unknown_arguments,
            counts.arguments,
            counts.without
        );
        all += ran;
        failed += counts.differ;
    }
    fs::remove_dir_all(&folder).ok();
    println!("{all} functions in all");
    ensure!(failed == 0, "{failed} differ or could not be looked at");
    Ok(())
}

fn build_gate(folder: &Path) -> Result<PathBuf> {
    let (source, library) = (folder.join("gate.c"), folder.join("gate.so"));
    fs::write(&source, include_str!("../../values/gate.c"))?;
    fs::write(folder.join("values.py"), include_str!("../../values/values.py"))?;
    let status =
        Command::new("gcc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).status()?;
    ensure!(status.success(), "gcc does not compile the gate");
    Ok(library)
}

fn trapline() -> PathBuf {
    PathBuf::from("target/release/trapline")
}

fn wait_for(what: &str, child: &mut Child, mut is: impl FnMut() -> bool) -> Result<()> {
    let begun = Instant::now();
    while !is() {
        if let Some(status) = child.try_wait()? {
            bail!("{what}: it ended with {status}");
        }
        ensure!(begun.elapsed() < PATIENCE, "{what}: not in {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn of_program(program: &Program, folder: &Path, gate: &Path, verbose: bool) -> Result<Counts> {
    let file = |end: &str| folder.join(format!("{}.{end}", program.name));
    let counted = with_target(program, &file, gate, |target| counts(program, &file, target))?;
    with_target(program, &file, gate, |target| both(program, folder, target, &counted))?;
    let counts = compared(&file("calls"), &file("gdb"), &file("functions"), verbose)?;
    ensure!(counts.equal > 0, "nothing was compared");
    Ok(counts)
}

/// Starts a program that is held, and ends it when it was looked at.
fn with_target<T>(
    program: &Program,
    file: &dyn Fn(&str) -> PathBuf,
    gate: &Path,
    look: impl FnOnce(&mut Child) -> Result<T>,
) -> Result<T> {
    for end in ["gate.ready", "gate.go", "calls", "gdb"] {
        fs::remove_file(file(end)).ok();
    }
    (program.prepare)(&program.folder);
    let mut command = Command::new(&program.words[0]);
    command.args(&program.words[1..]).current_dir(&program.folder);
    command
        .env("LD_PRELOAD", gate)
        .env("VALUES_GATE", file("gate"))
        .envs(program.environment.iter().cloned());
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut target = command.spawn().with_context(|| format!("{:?}", program.words))?;
    let held = wait_for("the gate", &mut target, || file("gate.ready").exists());
    let looked = held.and_then(|()| look(&mut target));
    drop(target.kill());
    drop(target.wait());
    looked
}

/// How often a program that is held calls each of its functions.
fn counts(
    program: &Program,
    file: &dyn Fn(&str) -> PathBuf,
    target: &mut Child,
) -> Result<BTreeMap<String, u64>> {
    let pid = target.id().to_string();
    let functions = functions(&pid, &program.path)?;
    let mut count = Command::new(trapline());
    count.args(["count", "--json", "-q", "-o"]).arg(file("calls")).args(["-p", &pid]);
    count.args(globs(&program.path, functions.iter().map(|(_, name)| name.as_str())));
    let mut count = count.stdin(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let (memory, places) =
        (fs::File::open(format!("/proc/{pid}/mem"))?, places(target.id(), program, &functions)?);
    let before = code_at(&memory, &places);
    patched(&memory, &places, &before, &mut count)?;
    fs::write(file("gate.go"), "")?;
    asked(program, target, || Ok(false))?;
    drop(target.kill());
    let output = count.wait_with_output()?;
    ensure!(output.status.success(), "count: {}", String::from_utf8_lossy(&output.stderr));
    let mut all = BTreeMap::new();
    let text = fs::read_to_string(file("calls"))?;
    let last: Value = serde_json::from_str(text.lines().last().unwrap_or_default())?;
    for one in last["probes"].as_array().into_iter().flatten() {
        if let (Some(name), Some(hits)) = (one["probe"].as_str().and_then(named), one["hits"].as_u64()) {
            all.insert(name.to_owned(), hits);
        }
    }
    Ok(all)
}

/// Lets a program do its work until it ends, `is_over`, or it has taken too long.
fn asked(program: &Program, target: &mut Child, mut is_over: impl FnMut() -> Result<bool>) -> Result<()> {
    let mut input = target.stdin.take();
    if let Some(input) = &mut input {
        input.write_all(program.input.as_bytes()).ok();
    }
    drop(input);
    let feeding = program.feed.clone().map(|feed| std::thread::spawn(move || feed.run()));
    let begun = Instant::now();
    while target.try_wait()?.is_none() && !is_over()? && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(target.kill());
    feeding.map(std::thread::JoinHandle::join);
    Ok(())
}

/// Where functions are in a process.
fn places<'a>(pid: u32, program: &Program, functions: &'a [(u64, String)]) -> Result<Vec<(u64, &'a str)>> {
    let bias = mapped(pid, &program.path)?;
    Ok(functions.iter().filter_map(|(offset, name)| Some((bias.at(*offset)?, name.as_str()))).collect())
}

/// Has `trace` and gdb look at a program that is held.
fn both(program: &Program, folder: &Path, target: &mut Child, counted: &BTreeMap<String, u64>) -> Result<()> {
    let file = |end: &str| folder.join(format!("{}.{end}", program.name));
    let pid = target.id().to_string();
    let mut functions = functions(&pid, &program.path)?;
    functions.retain(|(_, name)| counted.get(name).is_some_and(|hits| (1..=program.calls).contains(hits)));
    let places = places(target.id(), program, &functions)?;
    let memory = fs::File::open(format!("/proc/{pid}/mem"))?;
    let before = code_at(&memory, &places);
    let mut trace = Command::new(trapline());
    trace.args(["trace", "--json", "-q", "-o"]).arg(file("calls")).args(["-p", &pid]);
    trace.args(functions.iter().map(|(_, name)| format!("{}:{name}", program.path.display())));
    trace.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut trace = trace.spawn()?;
    let probed = patched(&memory, &places, &before, &mut trace)?;
    let lines =
        places.iter().zip(&probed).filter(|(_, is)| **is).map(|((at, name), _)| format!("{at:#x} {name}\n"));
    fs::write(file("functions"), lines.collect::<String>())?;
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-p", &pid, "-x"]).arg(folder.join("values.py"));
    gdb.current_dir(folder)
        .env("VALUES_FUNCTIONS", file("functions"))
        .env("VALUES_OUT", file("gdb"))
        .env("VALUES_GATE", file("gate"));
    gdb.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut gdb = gdb.spawn()?;
    wait_for("gdb", &mut gdb, || file("gate.go").exists())?;
    asked(program, target, || Ok(gdb.try_wait()?.is_some()))?;
    drop(gdb.kill());
    let said = gdb.wait_with_output()?.stderr;
    let output = trace.wait_with_output()?;
    ensure!(file("gdb").exists(), "gdb: {}", String::from_utf8_lossy(&said));
    ensure!(output.status.success(), "trace: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// The functions of a program that can be probed: offsets in its file, and names.
fn functions(pid: &str, path: &Path) -> Result<Vec<(u64, String)>> {
    let output = Command::new(trapline())
        .args(["list", "--json", "-p", pid, &format!("{}:*", path.display())])
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut all = Vec::new();
    for line in text.lines() {
        let one: Value = serde_json::from_str(line)?;
        let name = one["probe"].as_str().and_then(named);
        let is_possible = one["tactic"].is_string();
        // A bracket in a glob would begin a signature, and so would one in the types of a generic function of Go's.
        let is_plain = |name: &&str| {
            name.starts_with(|letter: char| letter.is_ascii_alphanumeric() || letter == '_')
                && !(name.contains("[go.shape") && name.contains([' ', '(']))
        };
        if let (Some(offset), Some(name), true) = (one["offset"].as_u64(), name.filter(is_plain), is_possible)
        {
            all.push((offset, name.to_owned()));
        }
    }
    ensure!(!all.is_empty(), "list: {}", String::from_utf8_lossy(&output.stderr));
    // Calls of functions that share a name cannot be told apart.
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    all.iter().for_each(|(_, name)| *names.entry(name.clone()).or_default() += 1);
    all.retain(|(_, name)| names[name] == 1);
    Ok(all)
}

/// The function in `uprobe:FILE:FUNCTION`.
fn named(probe: &str) -> Option<&str> {
    probe.splitn(3, ':').nth(2)
}

/// Probes that mean all of these functions, few enough at a time.
fn globs<'a>(path: &Path, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut starts: Vec<(String, Vec<&str>)> = vec![(String::new(), names.collect())];
    let mut globs = Vec::new();
    while let Some((start, names)) = starts.pop() {
        // Of all functions, none may stand for itself alone.
        if names.len() <= MOST && !start.is_empty() {
            globs.push(format!("{}:{start}*", path.display()));
            continue;
        }
        let mut longer: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for name in names {
            match name[start.len()..].chars().next() {
                Some(next) => longer.entry(format!("{start}{next}")).or_default().push(name),
                None => globs.push(format!("{}:{name}", path.display())),
            }
        }
        starts.extend(longer);
    }
    globs
}

/// Where the code of a file is mapped.
struct Mapped(Vec<(u64, u64, u64)>);

impl Mapped {
    fn at(&self, offset: u64) -> Option<u64> {
        let found = self.0.iter().find(|(from, start, end)| (*from..*from + (end - start)).contains(&offset));
        found.map(|(from, start, _)| start + (offset - from))
    }
}

fn mapped(pid: u32, path: &Path) -> Result<Mapped> {
    let (maps, path) = (fs::read_to_string(format!("/proc/{pid}/maps"))?, fs::canonicalize(path)?);
    let mut all = Vec::new();
    for line in maps.lines().filter(|line| line.ends_with(&*path.to_string_lossy())) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (start, end) = words[0].split_once('-').context("a range")?;
        let number = |text: &str| u64::from_str_radix(text, 16);
        if words[1].contains('x') {
            all.push((number(words[2])?, number(start)?, number(end)?));
        }
    }
    Ok(Mapped(all))
}

/// The first instructions of functions.
fn code_at(memory: &fs::File, places: &[(u64, &str)]) -> Vec<[u8; 5]> {
    let mut read = |(at, _): &(u64, &str)| {
        let mut code = [0; 5];
        drop(memory.read_exact_at(&mut code, *at));
        code
    };
    places.iter().map(&mut read).collect()
}

/// Waits until functions are patched: all, or as many as will be. Which of them are.
fn patched(
    memory: &fs::File,
    places: &[(u64, &str)],
    before: &[[u8; 5]],
    trace: &mut Child,
) -> Result<Vec<bool>> {
    /// So long nothing more is patched, when some are refused.
    const SETTLED: Duration = Duration::from_secs(5);
    let (mut count, mut changed, mut is_patched) = (0, Instant::now(), Vec::new());
    wait_for("trace", trace, || {
        let now = code_at(memory, places);
        is_patched = now.iter().zip(before).map(|(now, before)| now != before).collect();
        let patched = is_patched.iter().filter(|is| **is).count();
        if patched != count {
            (count, changed) = (patched, Instant::now());
        }
        count == places.len() || count > 0 && changed.elapsed() > SETTLED
    })?;
    Ok(is_patched)
}

fn compared(calls: &Path, gdb: &Path, functions: &Path, verbose: bool) -> Result<Counts> {
    let names: BTreeMap<u64, String> = fs::read_to_string(functions)?
        .lines()
        .filter_map(|line| {
            let (at, name) = line.split_once(' ')?;
            Some((u64::from_str_radix(at.trim_start_matches("0x"), 16).ok()?, name.to_owned()))
        })
        .collect();
    let (mut first, mut missed): (BTreeMap<String, Value>, u64) = (BTreeMap::new(), 0);
    for line in fs::read_to_string(calls)?.lines() {
        let Ok(one) = serde_json::from_str::<Value>(line) else { continue };
        missed += one["missed"].as_u64().unwrap_or(0);
        let Some(name) = one["probe"].as_str().and_then(named) else { continue };
        let before = first.get(name).is_none_or(|other| other["time_ns"].as_u64() > one["time_ns"].as_u64());
        if one["type"] == "call" && before {
            first.insert(name.to_owned(), one.clone());
        }
    }
    ensure!(missed == 0, "{missed} records were lost; let the program do less");
    let mut counts = Counts::default();
    for line in fs::read_to_string(gdb)?.lines() {
        let stop: Value = serde_json::from_str(line)?;
        let Some(name) = stop["at"].as_u64().and_then(|at| names.get(&at)) else { continue };
        let Some(call) = first.get(name) else {
            if verbose {
                println!("  {name}: no call was recorded");
            }
            continue;
        };
        let (Some(theirs), true) = (stop["args"].as_array(), call["tid"] == stop["tid"]) else {
            counts.without += 1;
            continue;
        };
        let ours = call["args"].as_array().map_or(&[][..], Vec::as_slice);
        let found = of_call(ours, theirs);
        counts.arguments += theirs.len();
        counts.unknown_arguments +=
            found.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Unknown)).count();
        let differ = found.iter().find_map(|(argument, verdict)| match verdict {
            Verdict::Differs(why) => Some((argument, why)),
            _ => None,
        });
        match differ {
            Some((argument, why)) => {
                counts.differ += 1;
                println!("  DIFFERS {name}({argument}): {why}");
            }
            None if found.iter().any(|(_, verdict)| matches!(verdict, Verdict::Unknown)) => {
                counts.unknown += 1;
                if verbose {
                    println!("  unknown {name}: {found:?}");
                }
            }
            None => counts.equal += 1,
        }
    }
    Ok(counts)
}
