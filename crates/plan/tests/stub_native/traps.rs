//! Guard traps: served if they are ours; otherwise the effect is what it would be without us (GUARD-1).

use trapline_plan::x86_64::stub::{TrapHandler, trap_handler};
use trapline_record::control::{RegionKind, at};
use trapline_tests::{or_skip, oracle};

use crate::arena::{Arena, call, get, set};

const INT3: [u8; 7] = [0xCC, 0xB8, 1, 0, 0, 0, 0xC3]; // int3; mov eax, 1; ret
const UNDEFINED: [u8; 7] = [0x06, 0xB8, 1, 0, 0, 0, 0xC3];
const FAULTS: [u8; 7] = [0x31, 0xC9, 0x48, 0x8B, 0x01, 0x90, 0xC3]; // xor ecx, ecx; mov rax, [rcx]; nop; ret
const RESUMED: [u8; 6] = [0xB8, 42, 0, 0, 0, 0xC3]; // mov eax, 42; ret

/// A segment's words as a tracer writes them, and the handler.
pub(crate) struct Served {
    pub(crate) arena: Arena,
    pub(crate) handler: TrapHandler,
}

impl Served {
    pub(crate) fn new() -> Self {
        let mut arena = Arena::new();
        let mut out = Vec::new();
        let handler = trap_handler(&mut out, arena.next(), arena.data());
        arena.put(&out);
        Self { arena, handler }
    }
    /// A second segment half a page later; the first one's own table is empty then.
    pub(crate) fn segment(&self, n: u64) -> u64 {
        self.arena.data() + n * 0x800
    }
    pub(crate) fn guards(&self, segment: u64, guards: &[(u64, u64)]) {
        let mut guards = guards.to_vec();
        guards.sort_unstable();
        for (n, (from, to)) in (0..).zip(&guards) {
            set(segment + 0x400 + n * 16, *from);
            set(segment + 0x408 + n * 16, *to);
        }
        set(segment + at::GUARD_OFF, 0x400);
        set(segment + at::GUARD_COUNT, guards.len() as u64);
    }
    pub(crate) fn install(&self, signal: i32) {
        let action: [u64; 4] =
            [self.handler.entry, libc::SA_SIGINFO as u64 | 0x0400_0000, self.handler.restorer, 0];
        let old = match signal {
            libc::SIGTRAP => at::OLD_SIGTRAP,
            libc::SIGILL => at::OLD_SIGILL,
            libc::SIGSEGV => at::OLD_SIGSEGV,
            _ => at::OLD_SIGBUS,
        };
        let old = self.arena.data() + old;
        // SAFETY: the kernel's own layout, with a handler and a restorer that stay mapped; `old` is ours to
        // write.
        let done = unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, action.as_ptr(), old, 8) };
        assert_eq!(done, 0);
    }
}

/// Runs `body` in a child process. Returns its wait status.
pub(crate) fn child(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs only `body`, which neither allocates nor locks, and _exit.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            libc::_exit(body());
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        status
    }
}
pub(crate) fn exited(status: i32) -> Option<i32> {
    libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
}
fn killed(status: i32) -> Option<i32> {
    libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status))
}
fn disposition(signal: i32, handler: usize, flags: i32) {
    // SAFETY: callers pass default, ignore, or functions of this file that only set a register.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        libc::sigaction(signal, &raw const action, core::ptr::null_mut());
    }
}

#[test]
fn guards_of_every_segment_resume_in_the_copy() {
    let mut served = Served::new();
    let sites: Vec<u64> =
        (0..9).map(|n| served.arena.put(if n % 2 == 0 { &INT3 } else { &UNDEFINED })).collect();
    let resume = served.arena.put(&RESUMED);
    let (first, second) = (served.segment(0), served.segment(1));
    let guards: Vec<(u64, u64)> = sites.iter().map(|site| (*site, resume)).collect();
    served.guards(first, &guards[..6]);
    served.guards(second, &guards[6..]);
    set(first + at::NEXT_SEGMENT, second);
    let status = child(|| {
        served.install(libc::SIGTRAP);
        served.install(libc::SIGILL);
        sites.iter().all(|site| call(*site, 0) == 42).into()
    });
    assert_eq!(exited(status), Some(1), "{status:#x}");
    assert_eq!((get(first + at::GUARD_HITS), get(second + at::GUARD_HITS)), (6, 3));
}

/// A function that the kernel has a probe on.
#[unsafe(no_mangle)]
extern "C" fn stub_native_with_a_kernel_uprobe(word: u64) -> u64 {
    std::hint::black_box(word)
}

/// In such a process the kernel first checks each int3 itself. Its signal for an int3 that is not its own
/// does not name the exception; it holds the thread's last exception instead.
#[test]
fn guards_are_served_beside_the_kernels_probes() {
    let program = std::env::current_exe().expect("our name");
    let place = oracle::offsets(&program, &["stub_native_with_a_kernel_uprobe"])[0];
    // SAFETY: the call has no arguments.
    let tid = unsafe { libc::gettid() } as u32;
    let kernel = or_skip!(oracle::attach_at(&program, &[(place, false)], tid));
    // Called by its address, so that the compiler keeps the function.
    let probed: extern "C" fn(u64) -> u64 = std::hint::black_box(stub_native_with_a_kernel_uprobe);
    assert_eq!(probed(3), 3);
    assert_eq!(kernel.counts(), [1]);
    let mut served = Served::new();
    let sites = [INT3, UNDEFINED].map(|code| served.arena.put(&code));
    let resume = served.arena.put(&RESUMED);
    let first = served.segment(0);
    served.guards(first, &sites.map(|site| (site, resume)));
    let status = child(|| {
        served.install(libc::SIGTRAP);
        served.install(libc::SIGILL);
        let all = sites.iter().all(|site| {
            let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            // SAFETY: a page of our own that was never touched, so the store faults once.
            unsafe {
                libc::mmap(core::ptr::null_mut(), 4096, prot, flags, -1, 0).cast::<u8>().write_volatile(1)
            };
            call(*site, 0) == 42
        });
        all.into()
    });
    assert_eq!(exited(status), Some(1), "{status:#x}");
    assert_eq!(get(first + at::GUARD_HITS), 2);
}

extern "C" fn foreign(_: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes this signal's own information and context, and no other code writes them.
    unsafe {
        let context = context.cast::<libc::ucontext_t>();
        assert!(!info.is_null());
        let rip = &mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize];
        // An int3 leaves rip behind it. Steps over the undefined byte too, and past `mov eax, 1` in both
        // cases.
        *rip = (*rip & !63) + 6;
        (*context).uc_mcontext.gregs[libc::REG_RAX as usize] = 7;
    }
}

#[test]
fn foreign_traps_reach_the_old_handler() {
    for (signal, code) in [(libc::SIGTRAP, INT3), (libc::SIGILL, UNDEFINED), (libc::SIGSEGV, FAULTS)] {
        for flags in [libc::SA_SIGINFO, libc::SA_SIGINFO | libc::SA_RESETHAND] {
            let mut served = Served::new();
            let site = served.arena.put(&code);
            served.guards(served.segment(0), &[(site + 1, site), (site - 1, site)]);
            let status = child(|| {
                disposition(signal, foreign as *const () as usize, flags);
                served.install(signal);
                if flags & libc::SA_RESETHAND != 0 {
                    assert_eq!(call(site, 0), 7);
                    call(site, 0);
                }
                call(site, 0) as i32
            });
            if flags & libc::SA_RESETHAND == 0 {
                assert_eq!(exited(status), Some(7), "{status:#x}");
            } else {
                assert_eq!(killed(status), Some(signal), "{status:#x}");
            }
        }
    }
}

#[test]
fn default_and_ignored_end_as_they_would_have() {
    for (signal, code) in [(libc::SIGTRAP, INT3), (libc::SIGILL, UNDEFINED), (libc::SIGSEGV, FAULTS)] {
        for (old, sent, expected) in [
            (libc::SIG_DFL, false, Some(signal)),
            (libc::SIG_DFL, true, Some(signal)),
            (libc::SIG_IGN, false, Some(signal)),
            (libc::SIG_IGN, true, None),
        ] {
            let mut served = Served::new();
            let site = served.arena.put(&code);
            let status = child(|| {
                disposition(signal, old, 0);
                served.install(signal);
                if sent {
                    // SAFETY: sends a signal to this thread; its handler is installed.
                    unsafe { libc::raise(signal) };
                } else {
                    call(site, 0);
                }
                0
            });
            assert_eq!(killed(status), expected, "signal {signal}, old {old}, sent {sent}: {status:#x}");
        }
    }
}

/// Calls the handler as the kernel would. Returns rip as the handler left it.
fn handle(served: &Served, signal: i32, code: i32, fault: u64, rip: u64) -> u64 {
    let mut info = [0_u64; 16];
    info[1] = u64::from(code as u32);
    info[2] = fault;
    let mut context = [0_u64; 128];
    context[21] = rip;
    // SAFETY: the generated handler has this signature; both buffers are as large as what it reads.
    let handler: extern "C" fn(i32, *mut u64, *mut u64) =
        unsafe { core::mem::transmute(served.handler.entry) };
    handler(signal, info.as_mut_ptr(), context.as_mut_ptr());
    context[21]
}

/// Offset of a segment's list of regions, in bytes of the block that have no other use.
const LIST: u64 = 2048;

#[test]
fn a_thread_that_was_moved_already_is_left_alone() {
    let mut served = Served::new();
    let inside = served.arena.put(&RESUMED);
    let first = served.segment(0);
    set(first + at::REGION_COUNT, 2);
    set(first + at::REGIONS_OFF, LIST);
    for (n, (from, kind)) in (0..).zip([(inside, RegionKind::Data), (inside, RegionKind::Code)]) {
        let record = first + LIST + n * 32;
        set(record, from);
        set(record + 8, 64);
        set(record + 24, kind as u64);
    }
    let seen = first + at::OLD_SIGTRAP;
    extern "C" fn chained(_: i32, _: *mut u64, context: *mut u64) {
        // SAFETY: `context` is `handle`'s buffer.
        unsafe { *context.add(21) = 99 };
    }
    set(seen, chained as *const () as u64);
    set(first + at::OLD_SIGILL, chained as *const () as u64);
    assert_eq!(handle(&served, libc::SIGTRAP, 0x80, 0, inside + 1), inside + 1);
    assert_eq!(handle(&served, libc::SIGILL, 2, 5, inside + 1), inside + 1);
    // Faults that are no traps of ours: by its kind, inside the copy; outside of it; or sent by a process.
    assert_eq!(handle(&served, libc::SIGILL, 2, inside + 1, inside + 1), 99);
    assert_eq!(handle(&served, libc::SIGTRAP, 0x80, 0, inside + 64), 99);
    assert_eq!(handle(&served, libc::SIGTRAP, 0, 0, inside + 1), 99);
    // A chain that leads back to itself ends.
    set(first + at::NEXT_SEGMENT, first);
    set(first + at::GUARD_COUNT, u64::MAX);
    set(first + at::REGION_COUNT, u64::MAX);
    assert_eq!(handle(&served, libc::SIGTRAP, 0x80, 0, inside + 1), 99);
}

#[test]
fn faults_of_our_loads_go_on_and_others_do_not() {
    let mut served = Served::new();
    let inside = served.arena.put(&RESUMED);
    let first = served.segment(0);
    served.guards(first, &[(inside + 1, inside + 5)]);
    set(first + at::REGION_COUNT, 1);
    set(first + at::REGIONS_OFF, LIST);
    for (n, word) in (0..).zip([inside, 64, 0, RegionKind::Code as u64]) {
        set(first + LIST + n * 8, word);
    }
    extern "C" fn chained(_: i32, _: *mut u64, context: *mut u64) {
        // SAFETY: `context` is `handle`'s buffer.
        unsafe { *context.add(21) = 99 };
    }
    for (signal, old) in [(libc::SIGSEGV, at::OLD_SIGSEGV), (libc::SIGBUS, at::OLD_SIGBUS)] {
        set(first + old, chained as *const () as u64);
        assert_eq!(handle(&served, signal, 1, 0x1000, inside + 1), inside + 5, "a load");
        assert_eq!(
            handle(&served, signal, 0x80, 0, inside + 1),
            inside + 5,
            "from an address that cannot be"
        );
        assert_eq!(handle(&served, signal, 1, inside + 1, inside + 1), 99, "the instruction itself is gone");
        assert_eq!(handle(&served, signal, 0, 0x1000, inside + 1), 99, "sent by someone");
        assert_eq!(handle(&served, signal, 1, 0x1000, inside + 2), 99, "displaced code that faults");
    }
    assert_eq!(get(first + at::GUARD_HITS), 4);
}
