//! `run`: names and numbers of threads and processes that have ended when their hits are read; `exit()`. Judges are the
//! programs themselves: what they are called, and how often they call.

use std::process::{Command, Stdio};

use trapline_tests::running::Running;
use trapline_tests::script::Script;
use trapline_tests::victims;
use trapline_tests::{or_skip, programs};

const THREADS: u64 = 200;

/// How many lines there are of each kind.
fn counted(lines: &[String]) -> Vec<(String, usize)> {
    let mut kinds: Vec<&String> = lines.iter().filter(|line| !line.is_empty()).collect();
    kinds.sort();
    let each = kinds.chunk_by(|a, b| a == b);
    each.map(|same| (same[0].clone(), same.len())).collect()
}

/// Each thread calls once and ends. Records are read later, and so are maps.
#[test]
fn threads_that_have_ended_have_their_names() {
    let path = or_skip!(victims::plain("brief"));
    for script in
        ["print(comm);", "@[comm, tid > 0] = count();", "printf(\"%s\", comm); @ = ustack; clear(@);"]
    {
        let mut victim = Running::start(&path, &[]);
        let pid = victim.pid().to_string();
        let block = format!("uprobe:{}:work {{ {script} }}", path.display());
        let running = Script::start(&["-p", &pid, "-e", &block]);
        victim.run(THREADS);
        let lines = running.stop();
        let expected = match script {
            "print(comm);" => vec![("brief".to_owned(), THREADS as usize)],
            script if script.starts_with('@') => vec![(format!("@[brief, true]: {THREADS}"), 1)],
            _ => vec![("brief".repeat(THREADS as usize), 1)],
        };
        assert_eq!(counted(&lines), expected, "{script}");
    }
}

/// Programs of later: each one is over before its hits are read. A child that was forked has its own number.
#[test]
fn programs_that_have_ended_have_their_names() {
    let path = or_skip!(victims::plain("family"));
    let copy = path.with_file_name(format!("ended-{}", std::process::id()));
    programs::copy(&path, &copy).expect("a copy");
    let block = format!("uprobe:{}:child_work {{ printf(\"%s %d\\n\", comm, pid == tid); }}", copy.display());
    let running = Script::start(&["-e", &block]);
    for _ in 0..20 {
        let mut once = Command::new(&copy);
        assert!(once.arg("once").stdout(Stdio::null()).status().expect("it runs").success());
    }
    let lines = running.stop();
    std::fs::remove_file(&copy).expect("ours");
    let name: String = copy.file_name().expect("a name").to_string_lossy().chars().take(15).collect();
    if lines.iter().all(String::is_empty) {
        println!("SKIP the kernel grants no permission events");
        return;
    }
    assert_eq!(counted(&lines), [(format!("{name} 1"), 200)]);
}

/// As bpftrace: the block ends, nothing more is written, no other hit runs blocks, `end` runs, maps are written.
#[test]
fn exit_ends_the_block_and_all_others() {
    let path = or_skip!(victims::plain("counter"));
    let mut victim = Running::start(&path, &[]);
    let (file, pid) = (path.display(), victim.pid().to_string());
    let script = format!(
        "uprobe:{file}:leaf {{ @n++; printf(\"hit %d\\n\", @n); if (@n == 3) {{ exit(); printf(\"behind\\n\"); @behind = 1; }} }}
         uprobe:{file}:leaf {{ printf(\"second %d\\n\", @n); @seen = @n; }}
         end {{ printf(\"end %d\\n\", @n); }}"
    );
    let running = Script::start(&["-p", &pid, "-e", &script]);
    victim.run(20);
    let (lines, _) = running.ended();
    let expected = ["hit 1", "second 1", "hit 2", "second 2", "hit 3", "end 3", "", "", "@n: 3", "@seen: 3"]
        .map(str::to_owned);
    assert_eq!(lines, expected);
}

/// What hits say in the target is written up to the moment of `exit()`, and not beyond.
#[test]
fn exit_cuts_what_hits_say_in_the_target() {
    let path = or_skip!(victims::plain("counter"));
    let mut victim = Running::start(&path, &[]);
    let (file, pid) = (path.display(), victim.pid().to_string());
    let script = format!(
        "uprobe:{file}:leaf {{ printf(\"hit %llu %d %s\\n\", nsecs, arg0, ustack(1)); }}
         i:ms:100 {{ printf(\"exit %llu \\n\", nsecs); exit(); }}"
    );
    let running = Script::start(&["-v", "-p", &pid, "-e", &script]);
    victim.begin(300_000);
    let (lines, told) = running.ended();
    assert!(told.contains("Run in the target: uprobe:"), "{told}");
    let times = |kind: &str| -> Vec<u64> {
        let of = lines.iter().filter_map(|line| line.strip_prefix(kind));
        of.filter_map(|rest| rest.split(' ').next()?.parse().ok()).collect()
    };
    let (hits, exit) = (times("hit "), times("exit "));
    assert!(hits.len() > 100 && exit.len() == 1, "{} {exit:?} {told}", hits.len());
    assert!(hits.iter().all(|at| *at <= exit[0]), "{:?} {exit:?}", hits.iter().max());
}
