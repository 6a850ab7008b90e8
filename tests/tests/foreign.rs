//! SAFE-6: other tools at work on the same functions: kernel uprobes and gdb's breakpoints that come and go
//! while Trapline counts, in either order. The victim lives on, and each hit is seen or reported as missing
//! (docs/guide/foreign-patches.md).

#![cfg(target_arch = "x86_64")]

use std::path::{Path, PathBuf};
use std::process::Command;

use trapline_tests::fetched::Fetched;
use trapline_tests::oracle::{Kernel, attach_at, offsets};
use trapline_tests::running::Running;
use trapline_tests::tracing::{Report, Tracing, once};
use trapline_tests::victims::{self, Variant, c};
use trapline_tests::{debugger, or_skip};

/// The windows of all of these begin behind their first instruction.
const SIDE_BY_SIDE: [&str; 8] =
    ["f_push", "f_endbr", "f_sub", "f_r15", "f_movee", "f_xor", "f_cmp", "f_movzx"];
/// The windows of these begin at their first instruction; what a uprobe leaves there is survived.
const AT_HEAD: [&str; 2] = ["h_lea", "h_pop"];
const TIMES: u64 = 1000;
/// Text of a report about changes by other tools.
const OVERWRITTEN: &str = "overwritten: ";

/// The displacement K is all int3 in a position-independent victim, but not in others.
const BUILT: [Variant; 2] = [Variant::Plain, Variant::NonPie];

fn calls(running: &mut Running, name: &str) {
    running.send(&format!("{name} {TIMES}"));
    let reported = running.reported();
    assert_eq!((reported["did"], reported["wrong"]), (TIMES, 0), "{name}");
}

fn bytes(running: &mut Running, name: &str) -> String {
    running.send(&format!("bytes {name}"));
    running.line()
}

/// The kernel's own probe, `behind` bytes after the start of a function.
fn uprobe(path: &Path, name: &str, behind: u64, pid: u32) -> Result<Kernel, String> {
    let at = offsets(path, &[name])[0] + behind;
    attach_at(path, &[(at, false)], pid)
}

fn start(verb: &str, running: &Running, names: &[&str]) -> Tracing {
    let pid = running.pid().to_string();
    Tracing::start(verb, &[&["-p", &pid][..], names].concat()).expect("attaches")
}

/// Waits until the tracer has compared its patches again, which it does every 50 ms.
fn a_look_later() {
    std::thread::sleep(std::time::Duration::from_millis(400));
}

/// Checks that the victim ends well, with the code of its file.
fn ends_well(mut running: Running) {
    let mut fresh = Running::start(&exe(&running), &[]);
    for name in SIDE_BY_SIDE.into_iter().chain(AT_HEAD) {
        assert_eq!(bytes(&mut running, name), bytes(&mut fresh, name), "{name}");
    }
    assert!(running.finish().success());
}

fn exe(running: &Running) -> PathBuf {
    std::fs::read_link(format!("/proc/{}/exe", running.pid())).expect("it runs")
}

fn hits(report: &Report, name: &str) -> u64 {
    report.field(name, "hits")
}

/// The kernel and Trapline both replace the return address of the same call. Whichever comes first, both see each return,
/// and one of them may go while the other stays.
#[test]
fn the_kernels_return_probe_and_our_return_trampoline_see_each_return() {
    let path = or_skip!(c("firsts", Variant::Plain));
    for name in SIDE_BY_SIDE {
        for kernel_first in [true, false] {
            let mut running = Running::start(&path, &[]);
            let at = offsets(&path, &[name])[0];
            let kernel = || attach_at(&path, &[(at, true)], running.pid());
            let early = kernel_first.then(kernel).transpose();
            let early = or_skip!(early);
            let tracing = start("lat", &running, &["--ret=stack", name]);
            let kernel = early.map_or_else(kernel, Ok);
            let kernel = or_skip!(kernel);
            calls(&mut running, name);
            assert_eq!(kernel.counts(), [TIMES], "{name} {kernel_first}");
            let report = if kernel_first {
                drop(kernel);
                calls(&mut running, name);
                tracing.stop()
            } else {
                let report = tracing.stop();
                calls(&mut running, name);
                assert_eq!(kernel.counts(), [2 * TIMES], "{name}");
                drop(kernel);
                report
            };
            let wanted = if kernel_first { 2 * TIMES } else { TIMES };
            assert_eq!(report.field(name, "calls"), wanted, "{name} {kernel_first}: {}", report.errors);
            ends_well(running);
        }
    }
}

/// A uprobe comes and goes while each function is counted. Both tools see each call.
#[test]
fn a_uprobe_on_the_first_byte_and_our_jump_see_each_call() {
    for variant in BUILT {
        let path = or_skip!(c("firsts", variant));
        for name in SIDE_BY_SIDE {
            let mut running = Running::start(&path, &[]);
            let tracing = start("count", &running, &[name]);
            calls(&mut running, name);
            let kernel = or_skip!(uprobe(&path, name, 0, running.pid()));
            calls(&mut running, name);
            assert_eq!(kernel.counts(), [TIMES], "{name}");
            drop(kernel);
            calls(&mut running, name);
            let report = tracing.stop();
            assert_eq!(hits(&report, name), 3 * TIMES, "{name} {variant:?}: {}", report.errors);
            assert!(!report.errors.contains(OVERWRITTEN), "{}", report.errors);
            ends_well(running);
        }
    }
}

/// A kernel probe stands at a program's first instruction, where we hold the program.
#[test]
fn a_program_is_held_at_its_start_beside_a_uprobe_there() {
    let path = or_skip!(victims::plain("family"));
    // The probe is in all processes, but records only in one.
    let kernel = or_skip!(Fetched::new(&path, "_start", std::process::id(), "%di:u64"));
    let work = format!("{}:child_work", path.display());
    let output = once(&["count", &work, "--", &path.to_string_lossy(), "once"]);
    let output_text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{output_text}");
    assert!(output_text.contains("10 hits in 1 function"), "{output_text}");
    assert_eq!(kernel.hits(), 1, "{output_text}");
}

/// The uprobe may come before our patch, or stay after it.
#[test]
fn either_tool_may_come_first_and_go_last() {
    let path = or_skip!(c("firsts", Variant::Plain));
    let mut running = Running::start(&path, &[]);
    for name in SIDE_BY_SIDE {
        let kernel = or_skip!(uprobe(&path, name, 0, running.pid()));
        calls(&mut running, name);
        let tracing = start("count", &running, &[name]);
        calls(&mut running, name);
        let report = tracing.stop();
        calls(&mut running, name);
        assert_eq!(
            (hits(&report, name), kernel.counts()),
            (TIMES, vec![3 * TIMES]),
            "{name}: {}",
            report.errors
        );
        let tracing = start("count", &running, &[name]);
        drop(kernel);
        calls(&mut running, name);
        let report = tracing.stop();
        assert_eq!(hits(&report, name), TIMES, "{name}: {}", report.errors);
    }
    ends_well(running);
}

/// Stubs that read the stack and arguments are also reached from one instruction behind the entry. What they
/// record is what the entry had.
#[test]
fn what_is_recorded_or_timed_is_the_entrys() {
    let path = or_skip!(c("firsts", Variant::Plain));
    for verb in [&["lat"][..], &["lat", "--ret=stack"], &["trace"], &["stack"]] {
        for name in SIDE_BY_SIDE {
            let mut running = Running::start(&path, &[]);
            let tracing = start(verb[0], &running, &[&verb[1..], &[name]].concat());
            calls(&mut running, name);
            let kernel = or_skip!(uprobe(&path, name, 0, running.pid()));
            calls(&mut running, name);
            drop(kernel);
            calls(&mut running, name);
            let report = tracing.stop();
            assert!(report.status.success(), "{verb:?} {name}: {}", report.errors);
            assert!(
                report.errors.contains("hits: 3,000 recorded, 0 missed"),
                "{verb:?} {name}: {}",
                report.errors
            );
            assert!(!report.errors.contains(OVERWRITTEN), "{verb:?} {name}: {}", report.errors);
            if verb[0] == "lat" {
                assert_eq!(report.field(name, "calls"), 3 * TIMES, "{verb:?} {name}: {}", report.errors);
            }
            ends_well(running);
        }
    }
}

/// A uprobe on the head of a window. When it is removed, the kernel puts the file's first byte in front of
/// our displacement. That is survived, found, corrected and reported.
#[test]
fn a_uprobe_on_our_jump_is_survived_and_reported() {
    for variant in BUILT {
        let path = or_skip!(c("firsts", variant));
        let heads = AT_HEAD.map(|name| (name, 0)).into_iter().chain([("f_push", 1), ("f_r15", 2)]);
        for (name, behind) in heads {
            let mut running = Running::start(&path, &[]);
            let mut tracing = start("count", &running, &[name]);
            calls(&mut running, name);
            let patched = bytes(&mut running, name);
            let kernel = or_skip!(uprobe(&path, name, behind, running.pid()));
            calls(&mut running, name);
            assert_eq!(kernel.counts(), [TIMES], "{name}");
            drop(kernel);
            // At once, before anything is corrected.
            calls(&mut running, name);
            a_look_later();
            assert_eq!(bytes(&mut running, name), patched, "{name}+{behind} is put right");
            calls(&mut running, name);
            tracing.wait_for("probes");
            let report = tracing.stop();
            let seen = hits(&report, name);
            assert!((2 * TIMES..=4 * TIMES).contains(&seen), "{name}: {seen}, {}", report.errors);
            assert!(report.errors.contains(OVERWRITTEN), "{name}: {}", report.errors);
            assert!(report.errors.contains("another tool"), "{name}: {}", report.errors);
            ends_well(running);
        }
    }
}

/// Uprobes come and go many times while the function runs all the time.
#[test]
fn uprobes_come_and_go_while_the_function_runs() {
    let path = or_skip!(c("firsts", Variant::Plain));
    drop(or_skip!(uprobe(&path, "f_push", 0, std::process::id())));
    for name in SIDE_BY_SIDE.into_iter().chain(AT_HEAD) {
        let mut running = Running::start(&path, &[]);
        let tracing = start("count", &running, &[name]);
        let (pid, file) = (running.pid(), path.clone());
        let others = std::thread::spawn(move || {
            (0..8).for_each(|_| drop(uprobe(&file, name, 0, pid).expect("a uprobe")));
        });
        let mut rounds = 0;
        while !others.is_finished() {
            calls(&mut running, name);
            rounds += 1;
        }
        others.join().expect("the other tool");
        let report = tracing.stop();
        if SIDE_BY_SIDE.contains(&name) {
            assert_eq!(hits(&report, name), rounds * TIMES, "{name}: {}", report.errors);
        }
        ends_well(running);
    }
}

/// gdb's breakpoint on the first byte: both see each call, and gdb puts back the byte that it found.
#[test]
fn a_debuggers_breakpoint_on_the_first_byte_is_hit() {
    or_skip!(debugger::ready());
    let path = or_skip!(c("firsts", Variant::Plain));
    for name in ["f_push", "f_sub", "f_xor", "f_movee"] {
        let mut running = Running::start(&path, &[]);
        let tracing = start("count", &running, &[name]);
        let place = format!("break *{name}");
        let gdb = gdb(running.pid(), &[&place, "ignore 1 20", "continue", "delete", "detach"]);
        let mut rounds = 1;
        while !gdb.is_finished() {
            calls(&mut running, name);
            rounds += 1;
        }
        let output_text = gdb.join().expect("gdb ends");
        assert!(output_text.contains("Breakpoint 1, "), "{name}: {output_text}");
        calls(&mut running, name);
        let report = tracing.stop();
        assert_eq!(hits(&report, name), rounds * TIMES, "{name}: {}", report.errors);
        ends_well(running);
    }
}

/// gdb's breakpoint behind the prologue, and on the jump itself. Both lie inside our window, and gdb writes
/// and removes them.
#[test]
fn a_debuggers_breakpoint_in_our_window_is_taken_out_again() {
    or_skip!(debugger::ready());
    let path = or_skip!(c("firsts", Variant::Plain));
    for place in ["*f_push+1", "*f_push+4", "f_push", "f_sub", "*h_lea"] {
        let name = place.trim_start_matches('*').split('+').next().expect("a name");
        let mut running = Running::start(&path, &[]);
        let tracing = start("count", &running, &[name]);
        calls(&mut running, name);
        let place = format!("break {place}");
        let inserted = "set breakpoint always-inserted on";
        gdb(running.pid(), &[inserted, &place, "detach"]).join().expect("gdb ends");
        calls(&mut running, name);
        let report = tracing.stop();
        assert_eq!(hits(&report, name), 2 * TIMES, "{place}: {}", report.errors);
        ends_well(running);
    }
}

/// Runs gdb on a process with these commands. Returns what it prints.
fn gdb(pid: u32, commands: &[&str]) -> std::thread::JoinHandle<String> {
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-p", &pid.to_string()]);
    commands.iter().for_each(|command| _ = gdb.args(["-ex", command]));
    std::thread::spawn(move || {
        let output = gdb.output().expect("gdb");
        String::from_utf8_lossy(&output.stdout).into_owned()
    })
}
