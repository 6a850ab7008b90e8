//! A process that may not be traced is refused with the one obstacle, and the reported facts agree with the
//! kernel's.
mod common;

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use common::Victim;
use trapline_tracee::{Batch, BatchOptions, Process, by_mapped_file, by_name};

const IDLE: &str = r#"
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <sys/prctl.h>
int main(int c, char **v) { if (c > 1 && !strcmp(v[1], "nodump")) prctl(PR_SET_DUMPABLE, 0);
 puts("ready"); fflush(stdout); for (;;) pause(); }
"#;

fn refusal(pid: u32) -> String {
    Process::open(pid).unwrap_err().to_string()
}

/// Not a test: tries to open `VICTIM` and prints why that failed.
#[test]
#[ignore = "run by the other tests"]
fn opener() {
    let pid = std::env::var("VICTIM").unwrap().parse().unwrap();
    println!("\nsays: {}", Process::open(pid).map_or_else(|e| e.to_string(), |_| "opened".into()));
}

/// The answer that another user gets about `pid`.
fn error_as(uid: u32, pid: u32) -> String {
    // The test binary itself may lie where the other user has no access.
    let copy = std::env::temp_dir().join(format!("trapline-opener-{}-{pid}", std::process::id()));
    // Another process copies the file. Otherwise a child that another test starts now could hold the copy
    // open for writing (ETXTBSY).
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&copy).status().unwrap();
    assert!(copied.success());
    let mut command = Command::new(&copy);
    command.args(["--exact", "opener", "--ignored", "--nocapture"]).env("VICTIM", pid.to_string());
    let output = command.uid(uid).gid(uid).current_dir("/").stderr(Stdio::null()).output().unwrap();
    std::fs::remove_file(&copy).unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().find_map(|l| l.strip_prefix("says: ")).unwrap_or_else(|| panic!("{text}")).to_owned()
}

fn is_root() -> bool {
    let root = std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
    if !root {
        eprintln!("SKIPPED: only root can drop to another user");
    }
    root
}

#[test]
fn what_is_no_process_is_refused() {
    assert_eq!(refusal(4_000_000), "cannot trace process 4000000: there is no such process");
    let mut child = Command::new("true").spawn().unwrap();
    while !std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap().contains(") Z ") {
        std::thread::yield_now();
    }
    let text = refusal(child.id());
    assert!(text.contains("zombie") && text.contains(&std::process::id().to_string()), "{text}");
    child.wait().unwrap();
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|comm| comm == "kthreadd\n") {
        assert_eq!(refusal(2), "cannot trace process 2: it is a kernel thread (kthreadd)");
    }
}

/// A process gives its memory back before it becomes a zombie. It is no kernel thread in between.
#[test]
fn a_process_that_is_ending_is_no_kernel_thread() {
    let mut ends = std::collections::BTreeMap::<&str, u32>::new();
    for _ in 0..400 {
        let mut child = Command::new("true").spawn().unwrap();
        let text = loop {
            match Process::open(child.id()) {
                Ok(_) => {}
                Err(error) => break error.to_string(),
            }
        };
        child.wait().unwrap();
        assert!(!text.contains("kernel thread"), "{text}");
        *ends.entry(if text.contains("zombie") { "zombie" } else { "ending" }).or_default() += 1;
    }
    println!("{ends:?}");
}

#[test]
fn a_thread_is_refused_by_the_name_of_its_process() {
    let tid = std::fs::read_link("/proc/thread-self").unwrap();
    let tid: u32 = tid.file_name().unwrap().to_str().unwrap().parse().unwrap();
    assert_eq!(
        refusal(tid),
        format!("cannot trace {tid}: it is a thread of process {0}; use -p {0}", std::process::id())
    );
}

#[test]
fn a_traced_process_is_refused_with_its_tracer() {
    let victim = Victim::start(IDLE);
    let process = Process::open(victim.pid()).unwrap();
    let uid = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap());
    let text = Batch::run(&process, BatchOptions::default(), |_| error_as(uid, victim.pid())).unwrap();
    // A thread of ours traces it; its process is what a user can stop.
    let tracer = format!("is already traced by process {} (", std::process::id());
    assert!(text.contains(&tracer), "{text}");
    // Once it is detached, it can be opened at once.
    Process::open(victim.pid()).unwrap();
}

#[test]
fn another_user_is_named_as_the_obstacle() {
    if !is_root() {
        return;
    }
    let victim = Victim::start(IDLE);
    let text = error_as(65534, victim.pid());
    assert!(
        text.contains("it runs as uid 0 (effective 0, saved 0), we are uid 65534; run trapline as"),
        "{text}"
    );
}

#[test]
fn an_undumpable_process_is_named_as_the_obstacle() {
    if !is_root() {
        return;
    }
    let program = common::compile(IDLE, &[]);
    let start = |arg: &str| {
        let mut command = Command::new(&program);
        let mut child = command.arg(arg).uid(65534).gid(65534).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
            .unwrap();
        child
    };
    for (arg, expected) in [("nodump", "it is not dumpable"), ("plain", "opened")] {
        let mut child = start(arg);
        let text = error_as(65534, child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        let yama = text.contains("ptrace_scope is");
        assert!(text.contains(expected) || yama && arg == "plain", "{arg}: {text}");
    }
    std::fs::remove_dir_all(program.parent().unwrap()).unwrap();
}

#[test]
fn a_32_bit_program_is_refused() {
    let dir = std::env::temp_dir().join(format!("trapline-32-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(
        dir.join("a.c"),
        "void _start(void) { for (;;) { int r; __asm__ volatile(\"int $0x80\" : \"=a\"(r) : \"0\"(29)); } }",
    )
    .unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-m32", "-nostdlib", "-static", "-fno-pic", "-no-pie", "-o"])
        .arg(dir.join("a"))
        .arg(dir.join("a.c"));
    let built = cc.stderr(Stdio::null()).status().is_ok_and(|s| s.success());
    match built.then(|| Command::new(dir.join("a")).spawn()) {
        Some(Ok(mut child)) => {
            let text = refusal(child.id());
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(text.contains("it runs a 32-bit program"), "{text}");
        }
        _ => eprintln!("SKIPPED a_32_bit_program_is_refused: no compiler or kernel for 32-bit programs"),
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn files_and_names_are_found() {
    let victim = Victim::start(IDLE);
    let process = Process::open(victim.pid()).unwrap();
    let name = process.exe_name().unwrap();
    assert_eq!(by_name(&name), [victim.pid()]);
    let maps = process.maps().unwrap();
    let own = maps.iter().find(|m| m.perms.exec && m.path.ends_with(&name)).unwrap();
    assert_eq!(by_mapped_file(own.file.unwrap()), [victim.pid()]);
    let opened = process.open_file_of(own).unwrap();
    assert!(!opened.replaced, "{opened:?}");
    let path = process.exe_path().unwrap();
    std::fs::rename(&path, path.with_extension("old")).unwrap();
    std::fs::copy(path.with_extension("old"), &path).unwrap();
    let maps = process.maps().unwrap();
    let own = maps.iter().find(|m| m.perms.exec && m.path.contains(&name)).unwrap();
    std::fs::remove_file(path.with_extension("old")).unwrap();
    let gone = process.maps().unwrap();
    let unlinked = gone.iter().find(|m| m.perms.exec && m.path.contains(&name)).unwrap();
    assert!(!own.deleted && unlinked.deleted);
    match process.open_file_of(unlinked) {
        Ok(found) => {
            use std::os::unix::fs::MetadataExt;
            assert!(found.replaced);
            assert_eq!(found.file.metadata().unwrap().ino(), own.file.unwrap().inode);
        }
        Err(error) => assert!(error.to_string().contains("replaced on disk"), "{error}"),
    }
}

#[test]
fn facts_agree_with_the_kernel() {
    let victim = Victim::start(IDLE);
    let process = Process::open(victim.pid()).unwrap();
    let raw = std::fs::read_to_string(format!("/proc/{}/maps", victim.pid())).unwrap();
    let maps = process.maps().unwrap();
    assert_eq!(maps.len(), raw.lines().count());
    for (map, line) in maps.iter().zip(raw.lines()) {
        assert!(line.starts_with(&format!("{:x}-{:x} ", map.start.0, map.end.0)), "{line}");
        assert!(line.ends_with(&map.path), "{line}");
    }
    assert!(process.alive());
    let features = process.features().unwrap();
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    assert_eq!(features.rdpid, info.contains(" rdpid"));
    assert_eq!(features.fsgsbase, info.contains(" fsgsbase"));
    assert!(features.cpus as usize >= info.matches("processor\t").count());
    let start = process.start_time();
    assert!(start > 0);
    drop(victim);
    assert!(!process.alive());
    assert!(process.maps().unwrap_err().is_gone());
}
