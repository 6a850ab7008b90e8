//! Signals of kinds for which the engine has no handler in front of the program's, sent to a thread in
//! displaced code. The program's handler sees the program's own address, and the program sees its own
//! handlers when it asks for them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use trapline::inside::{noticed, rescan};

use crate::program::{Library, call};

/// `cpuid` in `slow`, five bytes after its start.
const CPUID: [u8; 2] = [0x0F, 0xA2];

/// Addresses of `cpuid` and of its copies. Each test has signals of its own, and so a `Watch` of its own.
#[derive(Debug)]
struct Watch {
    at: AtomicU64,
    copy: AtomicU64,
    seen_there: AtomicU64,
    seen_copy: AtomicU64,
    seen: AtomicU64,
}

static WATCHES: [Watch; 65] = [const {
    Watch {
        at: AtomicU64::new(0),
        copy: AtomicU64::new(0),
        seen_there: AtomicU64::new(0),
        seen_copy: AtomicU64::new(0),
        seen: AtomicU64::new(0),
    }
}; 65];

extern "C" fn handler(signal: i32, _: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: installed with SA_SIGINFO.
    let pc = unsafe { (*context).uc_mcontext.gregs[libc::REG_RIP as usize].cast_unsigned() };
    let watch = &WATCHES[signal as usize];
    let near = |at: u64| (at..=at + 2).contains(&pc);
    // The first of these addresses is also that of the jump; the third is after the instruction, where only
    // it leads.
    watch.seen_there.fetch_add(u64::from(near(watch.at.load(Relaxed))), Relaxed);
    watch.seen_copy.fetch_add(u64::from(near(watch.copy.load(Relaxed))), Relaxed);
    watch.seen.fetch_add(1, Relaxed);
}

extern "C" fn other(_: i32) {}

fn action(handler: usize) -> libc::sigaction {
    // SAFETY: integers and an empty set.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    action
}

/// How a handler is set.
#[derive(Clone, Copy, Debug)]
enum By {
    Libc,
    Raw,
}

/// Sets an action, or only reads it; returns the previous one.
fn set(by: By, signal: i32, new: Option<&libc::sigaction>) -> libc::sigaction {
    let mut old = action(0);
    let pointer = new.map_or(std::ptr::null(), std::ptr::from_ref);
    match by {
        // SAFETY: handlers of the kind that the flags say.
        By::Libc => assert_eq!(unsafe { libc::sigaction(signal, pointer, &raw mut old) }, 0),
        By::Raw => {
            // In the kernel's form; the restorer is libc's, from an action that libc has set for another
            // signal.
            let borrowed = set(By::Libc, libc::SIGBUS, None).sa_restorer;
            const RESTORER: u64 = 0x0400_0000;
            let raw = new.map(|new| {
                [
                    new.sa_sigaction as u64,
                    new.sa_flags as u64 | RESTORER,
                    borrowed.map_or(0, |f| f as usize as u64),
                    0,
                ]
            });
            let mut was = [0_u64; 4];
            let pointer = raw.as_ref().map_or(std::ptr::null(), |raw| raw.as_ptr());
            // SAFETY: as above.
            let result =
                unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, pointer, was.as_mut_ptr(), 8) };
            assert_eq!(result, 0);
            old.sa_sigaction = was[0] as usize;
        }
    }
    old
}

/// Address of the copy of `cpuid` in generated code; there is one, as only one site displaces it here.
fn copy_of_cpuid(library: &Library, at: u64) -> u64 {
    // The jump's or trap's target is within this engine's mappings; each is searched.
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let mut found = Vec::new();
    for line in maps.lines().filter(|line| line.contains("memfd:trapline") && line.contains("r-x")) {
        let (start, end) = line.split(' ').next().and_then(|range| range.split_once('-')).expect("a range");
        let [start, end] = [start, end].map(|at| u64::from_str_radix(at, 16).expect("an address"));
        // SAFETY: mapped, readable, and never unmapped.
        let bytes = unsafe { std::slice::from_raw_parts(start as *const u8, (end - start) as usize) };
        let near = |at: u64| at.abs_diff(library.address("slow")) < 1 << 31;
        let all =
            bytes.windows(2).enumerate().filter(|(_, two)| *two == CPUID).map(|(n, _)| start + n as u64);
        found.extend(all.filter(|&copy| near(copy) && leads_back(copy, at + 7)));
    }
    assert_eq!(found.len(), 1, "{found:x?}");
    found[0]
}

/// Whether a copy continues at that address, at once or after the nops behind it.
fn leads_back(copy: u64, to: u64) -> bool {
    // SAFETY: in generated code: its last page has room left.
    let after = unsafe { std::slice::from_raw_parts((copy + 2) as *const u8, 8) };
    let nops = after.iter().take_while(|byte| **byte == 0x90).count();
    let jump = &after[nops..];
    jump.len() >= 5 && jump[0] == 0xE9 && {
        let by = i32::from_le_bytes([jump[1], jump[2], jump[3], jump[4]]);
        let target = (copy + 2 + nops as u64 + 5).wrapping_add_signed(by.into());
        (to - 5..=to).contains(&target)
    }
}

/// Sends signals to a thread in `slow` until one arrived at the instruction; none may have seen its copy.
fn sees_the_original(library: &Library, signal: i32) {
    let at = library.address("slow+5");
    let watch = &WATCHES[signal as usize];
    watch.copy.store(copy_of_cpuid(library, at), Relaxed);
    watch.at.store(at, Relaxed);
    // SAFETY: this thread's own number.
    let (pid, tid) = unsafe { (libc::getpid(), libc::gettid()) };
    let (done, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let enough = || watch.seen.load(Relaxed) >= 300 && watch.seen_there.load(Relaxed) > 0;
            while !enough() && watch.seen.load(Relaxed) < 100_000 {
                let before = calls.load(Relaxed);
                // SAFETY: to a thread that outlives this scope, with a handler.
                unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal) };
                // Signals in quick succession would arrive at the same place as the first.
                while calls.load(Relaxed) == before {
                    std::thread::yield_now();
                }
            }
            done.store(true, Relaxed);
        });
        while !done.load(Relaxed) {
            assert_eq!(library.call("slow", 0, 0), 0);
            calls.fetch_add(1, Relaxed);
        }
    });
    let [there, copy, seen] = [&watch.seen_there, &watch.seen_copy, &watch.seen].map(|n| n.load(Relaxed));
    assert_eq!(copy, 0, "of {seen} signals");
    assert!(there > 0, "of {seen} signals");
}

/// The handler as the kernel has it.
fn in_the_kernel(signal: i32) -> usize {
    set(By::Raw, signal, None).sa_sigaction
}

#[test]
fn handlers_that_were_there_and_handlers_that_come_see_the_original() {
    for (by_trap, [before, after, raw]) in
        [(false, [libc::SIGUSR1, libc::SIGPROF, 40]), (true, [libc::SIGUSR2, libc::SIGALRM, 41])]
    {
        let library = Library::load();
        let own = action(handler as *const () as usize);
        set(By::Libc, before, Some(&own));
        let probe = library.quiet("slow+5", by_trap);
        sees_the_original(&library, before);
        assert_eq!(set(By::Libc, before, None).sa_sigaction, own.sa_sigaction);

        if noticed().handlers {
            set(By::Libc, after, Some(&own));
            sees_the_original(&library, after);
        } else {
            println!("SKIP: no jump fits libc's sigaction here");
        }
        set(By::Raw, raw, Some(&own));
        assert_eq!(in_the_kernel(raw), own.sa_sigaction);
        rescan().expect("a look");
        sees_the_original(&library, raw);
        drop(probe);
    }
}

#[test]
fn the_program_sees_its_own_handlers() {
    let signal = libc::SIGURG;
    let first = libc::sigaction {
        sa_flags: libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER,
        ..action(handler as *const () as usize)
    };
    let mut masked = first;
    // SAFETY: a set of its own.
    unsafe { libc::sigaddset(&raw mut masked.sa_mask, libc::SIGWINCH) };
    set(By::Libc, signal, Some(&masked));
    let library = Library::load();
    let probe = library.quiet("load", false);
    if !noticed().handlers {
        return println!("SKIP: no jump fits libc's sigaction here");
    }
    // The wrapper is in its place, with all that belongs to the action.
    assert_ne!(in_the_kernel(signal), masked.sa_sigaction);
    let returned = set(By::Libc, signal, Some(&action(other as *const () as usize)));
    assert_eq!(returned.sa_sigaction, masked.sa_sigaction);
    const RESTORER: i32 = 0x0400_0000;
    assert_eq!(returned.sa_flags & !RESTORER, masked.sa_flags);
    // SAFETY: a set that the call has filled.
    let has = |one| unsafe { libc::sigismember(&raw const returned.sa_mask, one) };
    assert_eq!([libc::SIGWINCH, libc::SIGUSR1].map(has), [1, 0]);
    // SAFETY: a plain handler, and what was there.
    unsafe {
        assert_eq!(libc::signal(signal, libc::SIG_IGN), other as *const () as usize);
        assert_eq!(libc::signal(signal, other as *const () as usize), libc::SIG_IGN);
        assert_eq!(libc::signal(signal, libc::SIG_DFL), other as *const () as usize);
        assert_eq!(set(By::Libc, signal, None).sa_sigaction, libc::SIG_DFL);
        // Refused, as by glibc.
        for none in [0, 32, 33, 65] {
            assert_eq!(libc::sigaction(none, std::ptr::null(), std::ptr::null_mut()), -1);
            assert_eq!(*libc::__errno_location(), libc::EINVAL);
        }
        assert_eq!(libc::sigaction(libc::SIGKILL, &raw const first, std::ptr::null_mut()), -1);
    }
    assert_eq!((call(library.address("inner"), 3, 4), probe.counts().hits), (7, 0));
}
