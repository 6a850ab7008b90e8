//! SAFE-3 for remote calls. The tracer is killed before and after every request that reaches the target. The
//! target goes on with its own registers, vector state, red zone, signal mask, alternate stack and call.
mod common;

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use common::Victim;
use trapline_tracee::{Batch, BatchOptions, Process, RemoteOptions};

/// Runs with values in all registers and checks that they stay.
const CHECKER: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <poll.h>
#include <unistd.h>
#include <stdint.h>
static uint64_t in[16 * 4], out[16 * 4], general[8];
static void die(const char *what) { printf("BAD %s\n", what); fflush(stdout); _exit(9); }
__attribute__((target("avx"), noinline)) static uint64_t spin(void) { static uint64_t bad, mxcsr; bad = 0; mxcsr = 0x3f80;
 __asm__ volatile(
 ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n vmovdqu \\n*32(%[in]), %%ymm\\n\n .endr\n"
 "ldmxcsr %[mx]\n"
 "mov $0x1111, %%rax\n mov $0x2222, %%rbx\n mov $0x3333, %%rdx\n mov $0x4444, %%r8\n mov $0x5555, %%r9\n"
 "mov $0x6666, %%r10\n mov $0x7777, %%r11\n mov $0x8888, %%r12\n mov $0x9999, %%r13\n mov $0xaaaa, %%r14\n"
 ".irp n,8,16,24,32,40,48,56,64,72,80,88,96,104,112,120,128\n movq $\\n, -\\n(%%rsp)\n .endr\n"
 "mov $200000, %%ecx\n 1: dec %%ecx\n jnz 1b\n"
 ".irp n,8,16,24,32,40,48,56,64,72,80,88,96,104,112,120,128\n cmpq $\\n, -\\n(%%rsp)\n jne 2f\n .endr\n"
 "cmp $0x1111, %%rax\n jne 2f\n cmp $0x2222, %%rbx\n jne 2f\n cmp $0x3333, %%rdx\n jne 2f\n cmp $0x4444, %%r8\n jne 2f\n"
 "cmp $0x5555, %%r9\n jne 2f\n cmp $0x6666, %%r10\n jne 2f\n cmp $0x7777, %%r11\n jne 2f\n cmp $0x8888, %%r12\n jne 2f\n"
 "cmp $0x9999, %%r13\n jne 2f\n cmp $0xaaaa, %%r14\n jne 2f\n jmp 3f\n 2: movq $1, %[bad]\n 3:\n"
 ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n vmovdqu %%ymm\\n, \\n*32(%[out])\n .endr\n vzeroupper\n"
 "stmxcsr %[mx]\n"
 : [bad] "+m"(bad), [mx] "+m"(mxcsr) : [in] "S"(in), [out] "D"(out)
 : "rax","rbx","rcx","rdx","r8","r9","r10","r11","r12","r13","r14","memory","cc");
 if (mxcsr != 0x3f80) die("mxcsr"); return bad; }
int main() { for (int i = 0; i < 64; i++) in[i] = 0x0123456789abcdefull * (i + 1);
 stack_t alt = { .ss_sp = malloc(65536), .ss_size = 65536 }, now; sigaltstack(&alt, 0);
 sigset_t mask, seen; sigemptyset(&mask); sigaddset(&mask, SIGUSR2); sigprocmask(SIG_SETMASK, &mask, 0);
 puts("ready"); fflush(stdout);
 for (;;) { if (spin()) die("register or red zone"); if (memcmp(in, out, sizeof in)) die("vector");
  sigaltstack(0, &now); if (now.ss_sp != alt.ss_sp || now.ss_flags) die("alternate stack");
  sigprocmask(0, 0, &seen); if (memcmp(&seen, &mask, 8)) die("mask");
  struct pollfd p = { 0, POLLIN }; char c; if (poll(&p, 1, 0) == 1 && read(0, &c, 1) == 1) { puts("fine"); fflush(stdout); } } }
"#;

/// Sleeps in read, and prints the result.
const READER: &str = r#"
#include <stdio.h>
#include <errno.h>
#include <unistd.h>
int main() { puts("ready"); fflush(stdout); for (;;) { char c = 0; errno = 0; long r = read(0, &c, 1);
 puts(r == 1 && c == 'x' && !errno ? "fine" : "BAD read"); fflush(stdout); } }
"#;

/// Not a test: the tracer for the tests below, in a process of its own.
#[test]
#[ignore = "run by the other tests"]
fn tracer() {
    let pid = std::env::var("VICTIM").unwrap().parse().unwrap();
    let process = Process::open(pid).unwrap();
    Batch::run(&process, BatchOptions::default(), |batch| {
        let mut caller = batch.remote(&RemoteOptions::default(), &|_| None).unwrap();
        caller.call("getpid", libc::SYS_getpid, [0; 6]).unwrap();
        caller.tsc_allowed().unwrap();
        caller.sync_cores().unwrap();
        caller.finish().unwrap();
    })
    .unwrap();
}

/// Runs the tracer with a fault; returns true when the tracer came to its end.
fn survives(victim: &Victim, fault: &str) -> bool {
    let mut tracer = Command::new(std::env::current_exe().unwrap());
    tracer.args(["--exact", "tracer", "--ignored"]).stdout(Stdio::null()).stderr(Stdio::null());
    let status =
        tracer.env("VICTIM", victim.pid().to_string()).env("TRAPLINE_FAULT", fault).status().unwrap();
    assert!(status.success() || status.signal() == Some(libc::SIGKILL), "{fault}: {status}");
    status.success()
}

fn die_everywhere(source: &str) -> u32 {
    let mut victim = Victim::start(source);
    for number in 1..1000 {
        for side in ["before", "after"] {
            let fault = format!("{side}:{number}");
            let done = survives(&victim, &fault);
            assert!(victim.is_running(), "{fault} killed it: {:?}", victim.lines.next());
            victim.stdin.as_mut().unwrap().write_all(b"x").unwrap();
            assert_eq!(victim.line(), "fine", "{fault}");
            if done && side == "after" {
                return number - 1;
            }
        }
    }
    panic!("no end of fault points");
}

#[test]
fn a_running_thread_survives_the_tracer() {
    let points = die_everywhere(CHECKER);
    println!("killed at {points} points");
    assert!(points > 15, "only {points} fault points: are they counted?");
}

#[test]
fn a_reading_thread_survives_the_tracer() {
    let points = die_everywhere(READER);
    assert!(points > 15, "only {points} fault points: are they counted?");
}
