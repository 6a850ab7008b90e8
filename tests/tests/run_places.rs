//! `run`: what attach points mean: source lines, addresses, names of USDT probes, files of other roots; and what a hit
//! knows of its place. The judge is the program, which prints how often each line ran.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use trapline_tests::or_skip;
use trapline_tests::running::{Printed, Running};
use trapline_tests::script::Script;
use trapline_tests::tracing::{errors, once, out};
use trapline_tests::victims::{self, Variant};

const TIMES: u64 = 20;

fn run(args: &[&str]) -> Output {
    once(&[&["run"], args].concat())
}

/// The lines that a script leaves while its victim runs, and what that printed.
fn whole(victim: &mut Running, words: &[&str]) -> (Vec<String>, Printed) {
    let pid = victim.pid().to_string();
    let script = Script::start(&[&["-q", "-p", &pid], words].concat());
    let printed = victim.run(TIMES);
    let (lines, told) = script.end();
    assert_eq!(told, "", "{words:?}");
    (lines, printed)
}

/// The same, but only lines of maps.
fn beside(victim: &mut Running, words: &[&str]) -> (Vec<String>, Printed) {
    let (mut lines, printed) = whole(victim, words);
    lines.retain(|line| line.starts_with('@'));
    (lines, printed)
}

/// The number of the line of `stepped.c` with a comment.
fn line(comment: &str) -> usize {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("victims/stepped.c");
    let text = fs::read_to_string(source).expect("the victim's source");
    text.lines().position(|line| line.contains(&format!("/* {comment} */"))).expect(comment) + 1
}

#[test]
fn a_line_of_a_source_file_is_hit_as_often_as_it_runs() {
    let path = or_skip!(victims::c("stepped", Variant::O0));
    let mut victim = Running::start(&path, &[]);
    for comment in ["each-turn", "the-branch", "the-last-line"] {
        let script = format!("uprobe:{}@stepped.c:{} {{ @ = count(); }}", path.display(), line(comment));
        let (lines, printed) = beside(&mut victim, &["-e", &script]);
        assert_eq!(lines, [format!("@: {}", printed[comment])], "{comment}");
    }
    let script = format!("uprobe:{}@stepped.c:1 {{ }}", path.display());
    let told = errors(&run(&["-e", &script]));
    assert!(told.contains("no code of stepped.c:1 ") && told.contains("did you mean stepped.c:"), "{told}");
}

#[test]
fn a_hit_knows_its_address() {
    let path = or_skip!(victims::c("stepped", Variant::O0));
    let script = format!(
        "uprobe:{0}:stepped, uprobe:{0}:inner {{ @[func, usym(reg(\"ip\")), reg(\"pc\") == reg(\"ip\")] = count(); }}",
        path.display()
    );
    let (lines, _) = beside(&mut Running::start(&path, &[]), &["-e", &script]);
    assert_eq!(lines, ["@[inner, inner, true]: 1", "@[stepped, stepped, true]: 1"]);
}

#[test]
fn what_means_nothing_is_marked_in_the_script() {
    let path = or_skip!(victims::c("stepped", Variant::O0)).display().to_string();
    let script = format!("uprobe:{path}:stepped, uprobe:{path}:steped {{ exit(); }}");
    let first = format!("uprobe:{path}:stepped, ").len() + 1;
    let output = run(&["-e", &script]);
    let told = errors(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(told.starts_with(&format!("stdin:1:{first}-")), "{told}");
    assert!(told.contains(&format!(": ERROR: No matches for uprobe {path}:steped.\n")), "{told}");
    assert!(told.contains("\nHINT: ") && told.contains("did you mean stepped"), "{told}");
    let lenient = format!("config = {{ missing_probes = \"warn\" }} {script}");
    let told = errors(&run(&["-c", &path, "-e", &lenient]));
    assert!(told.contains(&format!(": WARNING: No matches for uprobe {path}:steped. Skipping.\n")), "{told}");
    for (place, message) in [
        ("10", format!("ERROR: Could not resolve address: {path}:0xa\n")),
        ("stepped+100000", "ERROR: Offset outside the function bounds ('stepped' size is ".to_owned()),
    ] {
        let told = errors(&run(&["-e", &format!("uprobe:{path}:{place} {{ }}")]));
        assert!(told.starts_with(&message), "{told}");
    }
}

#[test]
fn a_usdt_probe_with_two_places_is_one_probe() {
    let path = or_skip!(victims::c("marked", Variant::Plain));
    let script = format!("usdt:{}:*:twice {{ @ = count(); }} begin {{ exit(); }}", path.display());
    let victim = Running::start(&path, &[]);
    let told = errors(&run(&["-p", &victim.pid().to_string(), "-e", &script]));
    assert!(told.starts_with("Attached 2 probes\n"), "one, and begin: {told}");
}

#[test]
fn names_of_the_first_thread_and_of_the_parent() {
    let path = or_skip!(victims::plain("names"));
    let script = format!("uprobe:{}:named {{ @[leader_comm, pcomm] = count(); }}", path.display());
    let (lines, printed) = beside(&mut Running::start(&path, &[]), &["-e", &script]);
    let own = fs::read_to_string(format!("/proc/{}/comm", std::process::id())).expect("our name");
    assert_eq!(lines, [format!("@[names, {}]: {}", own.trim_end(), printed["named"])]);
}

#[test]
fn numbers_of_the_first_namespace_are_the_tracers_if_it_is_there() {
    let first =
        fs::read_link("/proc/self/ns/pid").is_ok_and(|of| of.to_string_lossy().contains("4026531836"));
    if !first {
        eprintln!("skipped: the tests run in a PID namespace of their own");
        return;
    }
    let path = or_skip!(victims::c("stepped", Variant::O0));
    let mut victim = Running::start(&path, &[]);
    let script = format!("uprobe:{}:inner {{ @[pid(init), tid(init)] = count(); }}", path.display());
    let (lines, _) = beside(&mut victim, &["-e", &script]);
    assert_eq!(lines, [format!("@[{0}, {0}]: 1", victim.pid())]);
}

#[test]
fn a_stack_is_found_without_frame_pointers() {
    let path = or_skip!(victims::c("stepped", Variant::O3));
    let script = format!(
        "uprobe:{}:inner {{ @[dw_ustack] = count(); @few[dw_ustack(2)] = count(); }}",
        path.display()
    );
    let script = format!("config = {{ show_debug_info = false }} {script}");
    let (lines, _) = whole(&mut Running::start(&path, &[]), &["-e", &script]);
    let text = lines.join("\n");
    let names = |map: &str| -> Vec<String> {
        let lines = text.lines().skip_while(|line| !line.starts_with(&format!("{map}["))).skip(1);
        let lines = lines.take_while(|line| !line.starts_with(']'));
        lines.map(|line| line.trim().split('+').next().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(names("@")[..3], ["inner", "middle", "outer"], "{text}");
    assert_eq!(names("@few"), ["inner", "middle"], "{text}");
}

/// A folder of our own, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("trapline-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

#[test]
fn debug_information_is_found_where_it_is_said_to_be() {
    let path = or_skip!(victims::c("stepped", Variant::O0));
    let folder = Folder::new("debuginfo");
    let (program, debug) = (folder.0.join("program"), folder.0.join("apart"));
    fs::create_dir_all(&debug).expect("a folder");
    let objcopy = |words: &[&str], to: &Path| {
        let status = Command::new("objcopy").args(words).arg(&path).arg(to).status();
        assert!(status.is_ok_and(|status| status.success()), "objcopy");
    };
    objcopy(&["--strip-debug"], &program);
    objcopy(&["--only-keep-debug"], &debug.join("program.debug"));
    let listed = |more: &[&str]| {
        let probe = format!("uprobe:{}:stepped", program.display());
        out(&run(&[&["-lv", &probe], more].concat()))
    };
    assert!(!listed(&[]).contains("limit"), "{}", listed(&[]));
    assert!(listed(&["--debuginfo", &debug.display().to_string()]).contains("    u64 limit\n"));
    assert!(listed(&["--debuginfo=apart"]).contains("    u64 limit\n"), "a folder beside the file");
    let script = format!("uprobe:{}:stepped {{ @ = args.limit; }}", program.display());
    let words = ["--debuginfo", &debug.display().to_string(), "-e", &script];
    assert_eq!(beside(&mut Running::start(&program, &[]), &words).0, [format!("@: {TIMES}")]);
    fs::rename(&debug, folder.0.join(".debug")).expect("the usual name");
    assert!(listed(&[]).contains("    u64 limit\n"), "the usual folder");
}

#[test]
fn a_file_of_the_processs_own_root_is_meant() {
    let path = or_skip!(victims::c("stepped", Variant::O0));
    let folder = Folder::new("own-root");
    let (here, there) = (folder.0.display(), folder.0.join("program").display().to_string());
    let command = format!("mount -t tmpfs tmpfs {here} && cp {} {there} && exec {there}", path.display());
    let mut unshare = Command::new("unshare");
    unshare.args(["-m", "sh", "-c", &command]);
    if !Command::new("unshare").args(["-m", "true"]).status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: no mount namespace can be made here");
        return;
    }
    let mut victim = Running::spawn(unshare);
    assert_eq!(victim.line(), "ready");
    let root = format!("/proc/{}/root{there}", victim.pid());
    for file in [there, root] {
        let script = format!("uprobe:{file}:outer {{ @[func, arg0] = count(); }}");
        assert_eq!(beside(&mut victim, &["-e", &script]).0, [format!("@[outer, {TIMES}]: 1")], "{file}");
    }
}

#[test]
fn a_watchpoint_runs_its_block_at_each_access() {
    let path = or_skip!(victims::plain("writers"));
    let mut victim = Running::start(&path, &["threads"]);
    let probe = once(&["watch", "-p", &victim.pid().to_string(), "-d", "1ms", "own_count"]);
    if errors(&probe).contains("no debug registers") {
        eprintln!("skipped: {}", errors(&probe));
        return;
    }
    let script = "watchpoint:own_count:8:w { @[pid == $1, comm] = count(); @at[probe] = count(); }";
    let pid = victim.pid().to_string();
    let script = Script::start(&["-q", "-p", &pid, "-e", script, &pid]);
    let printed = victim.run(TIMES);
    let (lines, told) = script.end();
    let maps: Vec<&String> = lines.iter().filter(|line| line.starts_with('@')).collect();
    let writes = printed["plain"];
    assert!(!told.contains("lost"), "{told}");
    assert_eq!(
        maps,
        [&format!("@[true, writers]: {writes}"), &format!("@at[watchpoint:own_count:8:w]: {writes}")]
    );
    let alone = run(&["-e", "watchpoint:0x1000:8:w { }"]);
    assert!(errors(&alone).contains("name the process with -p"), "{}", errors(&alone));
}

#[test]
fn memory_that_a_command_maps_later_can_be_watched() {
    let path = or_skip!(victims::plain("mapped")).display().to_string();
    let script = "watchpoint:0x10000000:4:w { @ = count(); }";
    let output = run(&["-q", "-c", &format!("{path} 7"), "-e", script]);
    if errors(&output).contains("no debug registers") {
        eprintln!("skipped: {}", errors(&output));
        return;
    }
    assert_eq!(out(&output).trim(), "@: 7", "{}", errors(&output));
}

#[test]
fn frames_can_be_build_ids_and_offsets() {
    let path = or_skip!(victims::c("stepped", Variant::O0));
    let notes = Command::new("readelf").arg("-n").arg(&path).output().expect("readelf");
    let notes = String::from_utf8_lossy(&notes.stdout).into_owned();
    let id =
        notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: ")).expect("a build id").to_owned();
    let script = format!("uprobe:{}:inner {{ print(ustack(build_id, 2)); exit(); }}", path.display());
    let mut victim = Running::start(&path, &[]);
    let (lines, _) = whole(&mut victim, &["-e", &script]);
    let (mut frames, mut offsets) = (0, Vec::new());
    for line in lines.iter().filter(|line| !line.is_empty()) {
        let (own, offset) = line.split_once(" 0x").expect("an offset");
        assert_eq!(own, id, "{lines:?}");
        offsets.push(u64::from_str_radix(offset, 16).expect("a number"));
        frames += 1;
    }
    assert_eq!(frames, 2, "{lines:?}");
    // `inner` stands before `middle`, which calls it.
    assert!(offsets[0] < offsets[1] && offsets[1] - offsets[0] < 256, "{lines:?}");
}
