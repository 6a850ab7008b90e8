//! SAFE-3, SAFE-4, SAFE-5: what a program does with its signals and its rights while it is traced, and
//! programs that another program executes. The target lives on, and its code is that of the file at the end.
//! A message and the exit status report what could not be undone.

use std::process::Command;

use trapline_tests::running::Running;
use trapline_tests::tracing::{Tracing, once};
use trapline_tests::{or_skip, skip, victims};

fn work(victim: &mut Running, line: &str) {
    victim.send(line);
    assert_eq!(victim.line(), "done", "{line}: the target lives on");
}

/// The target's filter kills for a call that detaching would make. So detaching makes no call.
#[test]
fn code_is_put_back_when_no_calls_may_be_made_any_more() {
    let path = or_skip!(victims::plain("afterwards"));
    for how in ["filter", "strict"] {
        let mut victim = Running::start(&path, &[]);
        let pid = victim.pid().to_string();
        let tracing = Tracing::start("count", &["-p", &pid, "work"])
            .unwrap_or_else(|report| panic!("{how}: {}: {}", report.status, report.errors));
        work(&mut victim, "run");
        work(&mut victim, how);
        work(&mut victim, "run");
        let report = tracing.stop();
        assert_eq!((report.status.code(), report.hits("work")), (Some(1), 2000), "{how}: {}", report.errors);
        assert!(report.errors.contains("its code is as it was"), "{how}: {}", report.errors);
        work(&mut victim, "run");
        let status = once(&["status", "-p", &pid]);
        let output_text = String::from_utf8_lossy(&status.stdout);
        assert!(output_text.contains("; 0 of 5 sites in place"), "{how}: {output_text}");
    }
}

/// A guard's trap that occurs while SIGTRAP is blocked makes the kernel reset the signal's action. Another
/// thread would then die of the program's own int3.
#[test]
fn a_program_with_traps_of_its_own_keeps_them() {
    let path = or_skip!(victims::plain("own_traps"));
    for verb in ["count", "lat"] {
        let mut victim = Running::start(&path, &["8"]);
        let pid = victim.pid().to_string();
        let mut attached = 0;
        while victim.alive() && victim.output_text().is_none() {
            let output = once(&[verb, "-d", "0.1", "-p", &pid, "own_traps:f*"]);
            attached += u32::from(output.status.success());
        }
        assert!(victim.finish().success(), "{verb}: died, or lost a trap, after {attached} attaches");
        assert!(attached > 2, "{verb}: {attached} attaches");
    }
}

/// Valgrind would translate our patches together with the program's code.
#[test]
fn a_program_that_runs_as_a_translation_is_refused() {
    let path = or_skip!(victims::plain("afterwards"));
    if !std::path::Path::new("/usr/bin/valgrind").exists() {
        skip!("no valgrind (package valgrind)");
    }
    let mut command = Command::new("/usr/bin/valgrind");
    command.args(["-q", "--tool=none"]).arg(&path);
    let mut victim = Running::spawn(command);
    assert_eq!(victim.line(), "ready");
    let pid = victim.pid().to_string();
    for verb in ["count", "lat", "trace", "stack"] {
        let output = once(&[verb, "-d", "0.2", "-p", &pid, "work"]);
        let output_text = String::from_utf8_lossy(&output.stderr);
        let refused = output.status.code() == Some(1) && output_text.contains("runs under valgrind");
        assert!(refused, "{verb}: {output_text}");
    }
    work(&mut victim, "run");
}

/// A program that QEMU's user mode runs is not mapped as a program, so no probe would find its function
/// there.
#[test]
fn a_program_that_qemu_runs_is_refused_by_name() {
    let path = or_skip!(victims::plain("afterwards"));
    let qemu = std::path::Path::new("/usr/bin/qemu-x86_64-static");
    if !qemu.exists() {
        skip!("no QEMU (package qemu-user-static)");
    }
    let mut command = Command::new(qemu);
    command.arg(&path);
    let mut victim = Running::spawn(command);
    assert_eq!(victim.line(), "ready");
    let pid = victim.pid().to_string();
    for probe in ["work", "afterwards:work", "libc:malloc"] {
        let output = once(&["count", "-d", "0.2", "-p", &pid, probe]);
        let output_text = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && output_text.contains("runs under QEMU"),
            "{probe}: {output_text}"
        );
    }
    work(&mut victim, "run");
}
