//! Processes with a thread that is not like others: it has ended, it is the kernel's, it cannot be stopped, its name is no text.

use trapline_tests::running::{Running, Told};
use trapline_tests::tracing::{Report, Tracing};
use trapline_tests::{or_skip, text, victims};

/// Attaches, lets the program do `meanwhile` and some work, detaches. What was reported and what the work told.
fn attached(verb: &str, victim: &mut Running, meanwhile: &str, times: u64) -> (Report, Told) {
    let pid = victim.pid().to_string();
    let tracing = Tracing::start(verb, &["-p", &pid, "work"]).unwrap_or_else(|report| {
        panic!("{verb} does not attach: {} {}", report.status, report.errors);
    });
    if !meanwhile.is_empty() {
        victim.send(meanwhile);
        while !is_zombie(victim.pid()) {
            std::thread::yield_now();
        }
    }
    let told = victim.run(times);
    (tracing.stop(), told)
}

fn is_zombie(pid: u32) -> bool {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).expect("it runs");
    String::from_utf8_lossy(&stat).contains(") Z ")
}

/// All that is executable is as in its file. `TID` shows the memory where the main thread does not.
fn is_clean(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let tids = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok());
    let tid = tids.filter(|&tid: &u32| tid != pid).last().expect("another thread");
    text::differences(tid).is_empty()
}

fn sound(verb: &str, kind: &str, meanwhile: &str) {
    let path = or_skip!(victims::plain("odd"));
    let mut victim = Running::start(&path, &[kind]);
    let (report, told) = attached(verb, &mut victim, meanwhile, 1000);
    assert!(report.status.success(), "{verb} {kind}: {}", report.errors);
    assert_eq!(told["sum"], 1_499_500, "{verb} {kind}");
    if verb == "count" {
        assert_eq!((report.hits("work"), report.number("missed")), (1000, 0), "{kind}: {}", report.errors);
    }
    assert!(is_clean(victim.pid()), "{verb} {kind}: patches stay: {}", report.errors);
}

#[test]
fn a_process_lives_on_when_its_main_thread_has_ended() {
    for verb in ["count", "lat"] {
        sound(verb, "leader", "");
    }
}

#[test]
fn a_process_lives_on_when_its_main_thread_ends_while_it_is_traced() {
    for verb in ["count", "lat"] {
        sound(verb, "plain", "leave");
    }
}
