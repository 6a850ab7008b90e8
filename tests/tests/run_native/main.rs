//! `run`: blocks that hits run in the target. Judges are the program's own count of its calls, the same blocks
//! interpreted by the tracer, and the kernel's own bpftrace.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use trapline_tests::running::{Printed, Running};
use trapline_tests::tracing::binary;
use trapline_tests::victims::{self, Variant};
use trapline_tests::{or_skip, text};

mod changes;
mod keys;
mod namespaces;
mod said;

const TIMES: u64 = 10;
/// The line that says that everything is attached.
const NOTIFY: &str = "__BPFTRACE_NOTIFY_PROBES_ATTACHED";
/// What `-v` says of blocks that the target runs.
const IN_TARGET: &str = "Run in the target: uprobe:";

/// What a run wrote: its maps by name, and its messages.
struct Ran {
    maps: Value,
    /// What `printf` wrote.
    said: Vec<String>,
    messages: String,
    /// What the victim says of its calls.
    printed: Printed,
}

/// Runs a tracer beside a victim that runs once the tracer is attached, and ends the tracer with Ctrl-C.
fn beside(victim: &mut Running, tracer: Command, times: u64) -> Ran {
    beside_with(victim, (tracer, None), times)
}

/// The same with a tracer that is stopped while the victim runs.
fn beside_stopped(victim: &mut Running, tracer: Command, times: u64) -> Ran {
    beside_while(victim, (tracer, None), &mut |victim, tracer| {
        signal(tracer, "-STOP");
        let printed = victim.run(times);
        signal(tracer, "-CONT");
        printed
    })
}

/// The same with a tracer whose last probe is on this program.
fn beside_with(victim: &mut Running, tracer: (Command, Option<&Path>), times: u64) -> Ran {
    beside_while(victim, tracer, &mut |victim, _| victim.run(times))
}

fn beside_while(
    victim: &mut Running,
    (mut tracer, last): (Command, Option<&Path>),
    run: &mut dyn FnMut(&mut Running, u32) -> Printed,
) -> Ran {
    let output = std::env::temp_dir().join(format!("trapline-native-{}", victim.pid()));
    let errors = output.with_extension("errors");
    let file = |path: &Path| Stdio::from(fs::File::create(path).expect("a temporary file"));
    tracer.stdout(file(&output)).stderr(file(&errors)).env(NOTIFY, "1");
    let mut child = tracer.spawn().expect("the tracer starts");
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    let begun = Instant::now();
    while !read(&output).contains("attached_probes") {
        let ended = child.try_wait().is_ok_and(|ended| ended.is_some());
        assert!(!ended && begun.elapsed().as_secs() < 60, "not attached: {}{}", read(&output), read(&errors));
        std::thread::sleep(Duration::from_millis(20));
    }
    // The kernel's bpftrace says so before its uprobes are there. Its last probe is on another program.
    if let Some(last) = last {
        while !read(&output).contains("at the last probe") {
            assert!(begun.elapsed().as_secs() < 60, "not attached: {}{}", read(&output), read(&errors));
            let mut last = Command::new(last);
            assert!(last.stdin(Stdio::null()).stdout(Stdio::null()).status().expect("it runs").success());
        }
    }
    let printed = run(victim, child.id());
    assert!(interrupt(&mut child).success(), "{}", read(&errors));
    let (mut maps, mut said) = (json!({}), Vec::new());
    for line in read(&output).lines() {
        let Ok(line) = serde_json::from_str::<Value>(line) else { continue };
        if line["type"] == "printf" {
            said.extend(line["data"].as_str().map(str::to_owned));
        } else if line["type"] != "attached_probes" {
            let named = line["data"].as_object().into_iter().flatten();
            named.for_each(|(name, map)| maps[name] = map.clone());
        }
    }
    let messages = read(&errors);
    fs::remove_file(&output).ok();
    fs::remove_file(&errors).ok();
    Ran { maps, said, messages, printed }
}

fn signal(pid: u32, which: &str) {
    let sent = Command::new("kill").args([which, &pid.to_string()]).status();
    assert!(sent.is_ok_and(|status| status.success()));
}

/// Ends a tracer with Ctrl-C. bpftrace 0.17 sleeps on if the signal comes right before it begins to wait, so
/// the signal is sent again.
fn interrupt(child: &mut Child) -> ExitStatus {
    loop {
        signal(child.id(), "-INT");
        let begun = Instant::now();
        while begun.elapsed().as_secs() < 5 {
            if let Some(status) = child.try_wait().expect("a child of ours") {
                return status;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Waits until a tracer has attached.
fn attached(child: &mut Child) {
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains(NOTIFY)), "not attached");
}

fn ours(victim: &mut Running, script: &str, more: &[&str], times: u64) -> Ran {
    let mut command = Command::new(binary());
    command.args(["run", "-v", "-f", "json", "-p", &victim.pid().to_string(), "-e", script]).args(more);
    beside(victim, command, times)
}

/// What is written in the target.
fn in_target(victim: &mut Running, script: &str) -> Value {
    let ran = ours(victim, script, &[], TIMES);
    assert!(!ran.messages.contains("Interpreted"), "{script}\n{}", ran.messages);
    assert!(!ran.messages.contains("WARNING"), "{script}\n{}", ran.messages);
    ran.maps
}

/// Scripts whose maps depend on the calls alone.
const SCRIPTS: [&str; 19] = [
    "uprobe:FILE:step { @[arg1 & 0xff, arg2] = count(); }",
    "uprobe:FILE:step /(int32)arg1 < 0/ { @n = count(); @sum = sum((int64)arg0); }",
    "uprobe:FILE:step { $n = (int64)arg0; if ($n < 0) { @below[-$n] = count(); } else { @above[$n * 2] = count(); } }",
    "uretprobe:FILE:step { @ret[retval % 7, 1] = count(); } uprobe:FILE:round_of { @f[func, 1] = count(); }",
    "uretprobe:FILE:step { @h = hist((int64)retval); @l = lhist((int64)retval, 0, 30, 5); }",
    "uprobe:FILE:round_of { @in[tid] = arg0; } uprobe:FILE:step /@in[tid] == 3/ { @of3 = count(); }
     uretprobe:FILE:round_of { delete(@in[tid]); }",
    "uprobe:FILE:round_of { @calls[tid] = 0; } uprobe:FILE:step { @calls[tid] = @calls[tid] + 1; }
     uretprobe:FILE:round_of { @made[@calls[tid]] = count(); delete(@calls[tid]); }",
    "uprobe:FILE:step { @s[\"step\", (uint8)arg2] = sum((int64)arg0); } uprobe:FILE:round_of { @s[\"round\", (uint8)0] = sum((int64)arg0); }",
    "uprobe:FILE:step { @a[(int32)arg1 == 3 ? 1 : 2] = avg((int64)arg0 + 100); }",
    "uprobe:FILE:step /arg1 == 2 || arg2 > 200/ { @either = count(); } uprobe:FILE:step /!(arg1 == 2)/ { @others[arg2 >> 4, (arg2 << 2) & 0xff] = count(); }",
    "uprobe:FILE:step { @t = stats(arg2 * 3 - 1); if (arg2 > 100) { return; } @small[arg2 / 10, arg2 % 3] = count(); }",
    "uprobe:FILE:step /tid > 5/ { $t = tid; @by[$t - tid + 2] = count(); } uprobe:FILE:step /tid == 5/ { @no[tid] = count(); }",
    "uprobe:FILE:step { @last[arg1 & 0xff] = arg2; @all = (int64)arg0; }",
    "uprobe:FILE:step { @had[arg2 % 7] = @had[arg2 % 7] + 1; if (@had[arg2 % 7] > 3) { delete(@had[arg2 % 7]); @gone[arg1 & 7]++; } }",
    "uprobe:FILE:step /arg1 == 2/ { @two[(int64)arg0] = (uint64)1; } uretprobe:FILE:step /@two[(int64)retval] == 1/ { @met[retval & 15] = count(); }",
    "uprobe:FILE:step { @pair[arg1 & 7] = ((int64)arg0, arg2); } uretprobe:FILE:round_of { delete(@pair[retval & 7]); }",
    "uprobe:FILE:step { @was[1] = (arg2, (int64)arg0); if (@was[1].0 > 100) { @sum[@was[1].1 & 3] = count(); } }",
    "uprobe:FILE:round_of { @now = (int64)arg0; } uprobe:FILE:step { @sum[@now % 3] = sum((int64)arg0); @n++; if (@n > 40) { @n = 0; @over++; } }",
    "uprobe:FILE:step { @x[(int8)arg0, (uint16)arg0, arg2 ^ 5, ~arg2 & 3] = count(); }",
];

/// Names of threads. Records of a thread that has ended by now may be without one.
const BY_NAME: &str = "uprobe:FILE:step { @by[comm, arg1 & 7] = sum((int64)arg0); @who[arg1 & 7] = comm; }";

fn at(script: &str, path: &Path) -> String {
    script.replace("FILE", &path.display().to_string())
}

#[test]
fn each_call_is_added_up_once() {
    for variant in [Variant::Plain, Variant::O0, Variant::O3, Variant::Static] {
        let path = or_skip!(victims::c("rounds", variant));
        let mut victim = Running::start(&path, &[]);
        // The C library's handlers come with the first thread.
        victim.run(1);
        let before = text::signals(victim.pid());
        let script = "uprobe:FILE:step { @steps[arg1 & 7] = count(); @t[tid, func] = count(); }
            uprobe:FILE:round_of { @began[tid] = nsecs; }
            uretprobe:FILE:round_of /@began[tid]/ { @took = stats(nsecs - @began[tid]); delete(@began[tid]); }";
        let ran = ours(&mut victim, &at(script, &path), &[], 1000);
        assert!(ran.messages.contains(IN_TARGET), "{}", ran.messages);
        let rounds = 200_000 + 2 * 1000 * 100_u64.div_ceil(64).max(1) / 2;
        let steps = ran.maps["@steps"].as_object().expect("a map");
        let kinds: Vec<u64> = steps.values().map(|count| count.as_u64().expect("a number")).collect();
        assert_eq!(kinds.len(), 5, "{steps:?}");
        assert!(kinds.iter().all(|count| *count == kinds[0] && *count > 200_000), "{kinds:?} {rounds}");
        let by_thread: u64 = ran.maps["@t"]
            .as_object()
            .expect("a map")
            .values()
            .map(|count| count.as_u64().expect("a number"))
            .sum();
        assert_eq!(by_thread, 5 * kinds[0]);
        // The handler's rounds take the note of the round that they interrupt.
        let took = ran.maps["@took"]["count"].as_u64().expect("a number");
        assert!(took <= kinds[0] && took >= kinds[0] - kinds[0] / 50, "{took} of {}", kinds[0]);
        assert_eq!(ran.maps.get("@began"), None, "{:?}", ran.maps["@began"]);
        text::assert_clean(victim.pid(), &before);
    }
}

#[test]
fn maps_are_those_that_the_tracer_makes_of_records() {
    let path = or_skip!(victims::c("rounds", Variant::Plain));
    let mut victim = Running::start(&path, &[]);
    for script in SCRIPTS.map(|script| at(script, &path)) {
        let interpreted = ours(&mut victim, &script, &["--interpret"], TIMES);
        assert!(!interpreted.messages.contains("WARNING"), "{script}\n{}", interpreted.messages);
        assert_eq!(in_target(&mut victim, &script), interpreted.maps, "{script}");
    }
}

#[test]
fn maps_are_those_of_the_kernels_bpftrace() {
    let built = or_skip!(victims::c("rounds", Variant::Plain));
    // A file of its own: bpftrace 0.17 sees the hits of all processes.
    let path = std::env::temp_dir().join(format!("trapline-rounds-{}", std::process::id()));
    fs::copy(built, &path).expect("room");
    let mut victim = Running::start(&path, &[]);
    for script in SCRIPTS.into_iter().chain([BY_NAME]).map(|script| at(script, &path)) {
        let theirs = or_skip!(of_bpftrace(&mut victim, &script));
        assert_eq!(in_target(&mut victim, &script), theirs, "{script}");
    }
    fs::remove_file(path).ok();
}

/// What the kernel's bpftrace leaves in maps, if it runs here; in a mount namespace of its own. It sees all processes.
fn of_bpftrace(victim: &mut Running, script: &str) -> Result<Value, &'static str> {
    const TRACEFS: &str = "mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null";
    let unshare = |command: String| {
        let mut unshare = Command::new("unshare");
        unshare.args(["-m", "bash", "-c", &command]);
        unshare
    };
    let works = unshare(format!("{TRACEFS}; bpftrace -e 'BEGIN {{ exit() }}'")).output();
    if !works.is_ok_and(|output| output.status.success()) {
        return Err("bpftrace does not run here");
    }
    let last = std::env::temp_dir().join(format!("trapline-last-{}-{}", std::process::id(), victim.pid()));
    fs::copy(victims::plain("counter").map_err(|_| "no compiler")?, &last).expect("room");
    let script = format!("{script} uprobe:{}:main {{ printf(\"at the last probe\\n\"); }}", last.display());
    let mut command = unshare(format!("{TRACEFS}; exec bpftrace -f json -p \"$0\" -e \"$1\""));
    command.args([&victim.pid().to_string(), &script]);
    let maps = beside_with(victim, (command, Some(&last)), TIMES).maps;
    fs::remove_file(last).ok();
    Ok(maps)
}

/// Values by thread and stack; a stack is its addresses, with which lines begin.
fn by_addresses(map: &Value) -> BTreeMap<Vec<String>, i64> {
    let first = |line: &str| line.split_whitespace().next().map(str::to_owned);
    let entries = map.as_object().into_iter().flatten();
    let parts = entries.map(|(stack, value)| (stack.lines().filter_map(first).collect(), value));
    parts.map(|(stack, value)| (stack, value.as_i64().expect("a number"))).collect()
}

/// HIT-2. Chains of frames of up to 200 callers, from two threads.
#[test]
fn stacks_in_keys_are_those_of_the_kernels_bpftrace() {
    let built = or_skip!(victims::c("stacks", Variant::Framed));
    let path = std::env::temp_dir().join(format!("trapline-stacks-{}", std::process::id()));
    fs::copy(built, &path).expect("room");
    let mut victim = Running::start(&path, &[]);
    // bpftrace tells stacks of two threads apart, so the thread is a part of the key.
    let script = at(
        "uprobe:FILE:probed { @sum[tid, ustack(perf, 20)] = sum(arg0 & 0xff); @calls[tid, ustack(perf, 20)] = count(); }
         uretprobe:FILE:probed { @returned[tid, ustack(perf, 20)] = sum(retval & 0xff); }",
        &path,
    );
    let theirs = or_skip!(of_bpftrace(&mut victim, &script));
    for form in ["exits", "stack"] {
        let ran = self::ours(&mut victim, &script.replace("perf", "raw"), &["--ret", form], TIMES);
        assert!(!ran.messages.contains("Interpreted"), "{}", ran.messages);
        let ours = ran.maps;
        for map in ["@calls", "@sum", "@returned"] {
            let (ours, theirs) = (by_addresses(&ours[map]), by_addresses(&theirs[map]));
            assert!(theirs.len() > 10 && theirs.keys().any(|stack| stack.len() == 1 + 20), "{theirs:?}");
            assert_eq!(ours, theirs, "{map} {form}");
        }
    }
    let script = at("uprobe:FILE:probed { @[ustack] = count(); }", &path);
    let interpreted = self::ours(&mut victim, &script, &["--interpret"], TIMES).maps;
    assert_eq!(in_target(&mut victim, &script), interpreted);
    // With frame pointers of every kind, and on other stacks, what lies there may be different each time.
    let mut wild = Running::start(&path, &["wild"]);
    let (before, calls) = (wild.run(TIMES), |maps: &Value| by_addresses(&maps["@"]).values().sum::<i64>());
    let interpreted = calls(&self::ours(&mut wild, &script, &["--interpret"], TIMES).maps);
    assert_eq!((calls(&in_target(&mut wild, &script)), wild.run(TIMES)), (interpreted, before));
    fs::remove_file(path).ok();
}

/// HIT-3. Four threads take blocks and give back each other's. What is left in the map are the blocks that are left.
#[test]
fn a_live_heap_is_what_the_program_left_and_what_the_kernels_bpftrace_says() {
    let built = or_skip!(victims::c("heap", Variant::Framed));
    let path = std::env::temp_dir().join(format!("trapline-heap-{}", std::process::id()));
    fs::copy(built, &path).expect("room");
    let mut victim = Running::start(&path, &[]);
    let script = at(
        "uprobe:FILE:take { @bytes[tid] = arg0; }
         uretprobe:FILE:take { @live[retval] = (@bytes[tid], ustack(perf, 2)); @taken = count(); }
         uprobe:FILE:give { delete(@live[arg0]); @given = count(); }
         END { clear(@bytes); }",
        &path,
    );
    // How many blocks are left, how many bytes, from how many places.
    let left = |maps: &Value| {
        let live = maps["@live"].as_object().expect("a map");
        let bytes: u64 = live.values().map(|value| value[0].as_u64().expect("a number")).sum();
        let first =
            |value: &Value| value[1].as_str().map(|stack| stack.trim().lines().next().map(str::to_owned));
        let places: std::collections::BTreeSet<_> = live.values().map(first).collect();
        (live.len() as u64, bytes, places.len())
    };
    let theirs = or_skip!(of_bpftrace(&mut victim, &script));
    let script = script.replace("perf", "raw").replace("END {", "END { print(len(@live));");
    for times in [1, TIMES, 300] {
        let ran = ours(&mut victim, &script, &[], times);
        assert!(
            !ran.messages.contains("Interpreted") && !ran.messages.contains("WARNING"),
            "{}",
            ran.messages
        );
        let said = &ran.printed;
        assert_eq!(left(&ran.maps), (said["blocks"], said["bytes"], 1), "{times}");
        let taken = ran.maps["@taken"].as_u64().expect("a number");
        assert_eq!(taken - ran.maps["@given"].as_u64().expect("a number"), said["blocks"]);
        assert!(taken >= times * 4000, "{taken}");
        if times == TIMES {
            assert_eq!(left(&ran.maps), left(&theirs), "{theirs:?}");
            assert_eq!(ran.maps["@taken"], theirs["@taken"]);
        }
    }
    fs::remove_file(path).ok();
}

/// HIT-1 and HIT-3: more keys than a map has room for, from eight threads, while the tracer is stopped.
#[test]
fn what_finds_no_room_is_counted_to_the_hit() {
    let path = or_skip!(victims::c("keys", Variant::Plain));
    let scripts = [
        "uprobe:FILE:probed { @m[arg0] = count(); }",
        "uprobe:FILE:probed { @m[arg0] = arg1; }",
        "uprobe:FILE:probed { @m[arg0] = (arg1, arg0, arg1); }",
        "uprobe:FILE:probed { @m[tid, arg0] = arg1; }",
    ];
    for script in scripts.map(|script| at(script, &path)) {
        let mut victim = Running::start(&path, &[]);
        let mut command = Command::new(binary());
        command.args(["run", "-v", "-f", "json", "-p", &victim.pid().to_string(), "-e", &script]);
        let ran = beside_stopped(&mut victim, command, 20_000);
        assert!(ran.messages.contains(IN_TARGET), "{}", ran.messages);
        let lost = ran.messages.split("WARNING: @m: ").nth(1).expect("more than there is room for");
        let lost: u64 = lost.split(' ').next().and_then(|number| number.parse().ok()).expect("a number");
        let held = ran.maps["@m"].as_object().expect("a map");
        assert_eq!(held.len() as u64 + lost, ran.printed["probed"], "{script}");
        assert!(held.len() >= 4096, "{} keys", held.len());
        for (key, value) in held {
            let key: u64 = key.rsplit(',').next().and_then(|key| key.parse().ok()).expect("a number");
            let value = if value.is_array() { value[2].as_u64() } else { value.as_u64() };
            assert!(script.contains("count") || value == Some(key * 3), "{key}: {value:?}");
        }
    }
}
