//! Consumers that request the hits of one process only, in children of ours: with their own memory, and with
//! ours. (selftests/bpf: uprobe_multi, filter_fork and filter_clone_vm.) Beside them run the kernel's own
//! probes, which count by process, on a twin of the library.
#![allow(unsafe_code, reason = "children that share our memory, and that share a page")]

use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use trapline::inside::{Consumer, Registration, Request, Verdict, register_all, unregister_all};
use trapline_tests::bpf::{self, Program};
use trapline_tests::or_skip;

use crate::calls::{counting, word};
use crate::kernel::Twins;
use crate::victim::no_loading;

const CHILDREN: usize = 3;

type Function = extern "C" fn(u64, u64) -> u64;

/// State on a page that this process and all children share.
struct Shared {
    functions: [Function; 2],
    /// Number of each child's process; 0 before it has started.
    pids: [AtomicU64; CHILDREN],
    /// Number of children that may go on.
    may: AtomicU64,
    /// What each consumer saw: hits of its own child, and hits of other processes.
    own: [AtomicU64; CHILDREN],
    unknown: [AtomicU64; CHILDREN],
}

fn pid() -> u64 {
    // SAFETY: the call has no arguments.
    unsafe { libc::syscall(libc::SYS_getpid) as u64 }
}

impl Shared {
    fn new(twins: &Twins) -> &'static Self {
        let zeros = || [(); CHILDREN].map(|()| AtomicU64::new(0));
        let functions = twins.both().map(|victim| victim.function("add"));
        let may = AtomicU64::new(0);
        let all = Self { functions, pids: zeros(), may, own: zeros(), unknown: zeros() };
        let (how, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new page of zeros that is never unmapped, and that is large enough.
        unsafe {
            let page = libc::mmap(std::ptr::null_mut(), 4096, how, kind, -1, 0);
            assert_ne!(page, libc::MAP_FAILED);
            page.cast::<Self>().write(all);
            &*page.cast::<Self>()
        }
    }
    /// Child `nth`: stores its number, waits until it may go on, calls both functions. It uses no function of
    /// the C library that keeps state, because its memory may be the parent's.
    fn child(&self, nth: usize) -> i32 {
        self.pids[nth].store(pid(), SeqCst);
        while self.may.load(SeqCst) <= nth as u64 {
            // SAFETY: the call has no arguments.
            unsafe { libc::sched_yield() };
        }
        i32::from(self.functions.iter().any(|add| add(2, 3) != 9))
    }
    /// What the consumer of child `nth` does at a hit that its filter let pass.
    fn seen(&self, nth: usize) {
        let by = if self.pids[nth].load(SeqCst) == pid() { &self.own } else { &self.unknown };
        by[nth].fetch_add(1, Relaxed);
    }
    fn counts(&self) -> [[u64; CHILDREN]; 2] {
        [&self.own, &self.unknown].map(|by| by.each_ref().map(|count| count.load(Relaxed)))
    }
}

/// Registers one consumer for each child, on the same function, that requests hits of that child.
fn register(twins: &Twins, shared: &'static Shared, returns: bool, by_trap: bool) -> Vec<Registration> {
    let requests = (0..CHILDREN).map(|nth| {
        let consumer = match returns {
            false => Consumer::entry(move |_| {
                shared.seen(nth);
                Verdict::Continue
            }),
            true => Consumer::returns(move |_| shared.seen(nth)),
        };
        let consumer = consumer.filter(move |_| shared.pids[nth].load(SeqCst) == pid());
        Request { by_trap, ..Request::new(&twins.ours.path, twins.ours.offset("add"), consumer) }
    });
    register_all(requests).expect("registered")
}

/// Starts a child, by fork or in our own memory, and returns its process number. The argument is the child's
/// index.
type Begin<'a> = &'a dyn Fn(usize) -> libc::pid_t;

/// All children have started before the first one goes on. They go on one after the other, since children in
/// our memory use our thread's variables.
fn each_sees_its_own(
    twins: &Twins,
    shared: &'static Shared,
    returns: bool,
    begin: Begin<'_>,
) -> Result<(), String> {
    let children: Vec<libc::pid_t> = (0..CHILDREN).map(begin).collect();
    for (nth, &child) in children.iter().enumerate() {
        while shared.pids[nth].load(SeqCst) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(shared.pids[nth].load(SeqCst), child as u64);
    }
    let at = twins.kernels.offset("add");
    let kernels: Result<Vec<Program>, String> =
        children.iter().map(|&child| bpf::counting(&twins.kernels.path, at, child as u32, returns)).collect();
    for child in children {
        shared.may.fetch_add(1, SeqCst);
        let mut status = 0;
        // SAFETY: our own child, and a local variable for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
    }
    // No consumer's filter lets our own hits pass.
    assert_eq!(shared.functions.map(|add| add(1, 1)), [4, 4]);
    assert_eq!(shared.counts(), [[1; CHILDREN], [0; CHILDREN]]);
    let kernels: Vec<u64> = kernels?.iter().map(Program::runs).collect();
    assert_eq!(kernels, [1; CHILDREN]);
    Ok(())
}

/// Entry, then return, each by jump and by trap.
fn all_ways(begin: impl Fn(&'static Shared, usize) -> libc::pid_t) {
    let mut kernels = Ok(());
    for (returns, by_trap) in [(false, false), (false, true), (true, false), (true, true)] {
        let twins = Twins::load();
        let shared = Shared::new(&twins);
        let probes = register(&twins, shared, returns, by_trap);
        kernels = kernels.and(each_sees_its_own(&twins, shared, returns, &|nth| begin(shared, nth)));
        unregister_all(probes).expect("unregistered");
    }
    or_skip!(kernels);
}

#[test]
fn filter_fork() {
    all_ways(|shared, nth| {
        let guard = no_loading();
        // SAFETY: the child calls only what takes no lock, and ends; it does not outlive this process.
        let child = unsafe { libc::fork() };
        drop(guard);
        if child == 0 {
            // SAFETY: plain numbers.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                libc::_exit(shared.child(nth))
            }
        }
        assert!(child > 0);
        child
    });
}

#[test]
fn filter_clone_vm() {
    extern "C" fn run(at: *mut libc::c_void) -> libc::c_int {
        // SAFETY: plain numbers; the pair that the parent has passed is leaked.
        let (shared, nth) = unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            &*at.cast::<(&'static Shared, usize)>()
        };
        shared.child(*nth)
    }
    all_ways(|shared, nth| {
        // Both are leaked, because the child uses them until it ends.
        let stack = vec![0_u128; 1 << 14].leak().as_mut_ptr_range().end;
        let given: &mut (&'static Shared, usize) = Box::leak(Box::new((shared, nth)));
        // SAFETY: a child on a stack of its own, which calls only what takes no lock, and ends.
        let child = unsafe {
            libc::clone(run, stack.cast(), libc::CLONE_VM | libc::SIGCHLD, std::ptr::from_mut(given).cast())
        };
        assert!(child > 0);
        child
    });
}

/// A child that shares our memory is probed as we are. (The kernel's events are not compared: what they count
/// for a task that inherited them is added only when the task is gone for good.)
#[test]
fn a_child_that_shares_our_memory_is_counted() {
    extern "C" fn run(twins: *mut libc::c_void) -> libc::c_int {
        // SAFETY: passed by the parent, which waits for this child.
        let twins = unsafe { &*twins.cast::<[extern "C" fn(u64, u64) -> u64; 2]>() };
        i32::from(twins.iter().any(|add| add(2, 3) != 9))
    }
    for by_trap in [false, true] {
        let twins = Twins::load();
        let count = word();
        let request =
            Request { by_trap, ..Request::new(&twins.ours.path, twins.ours.offset("add"), counting(count)) };
        let probe = register_all([request]).expect("registered");
        let functions = twins.both().map(|victim| victim.function("add"));
        functions.iter().for_each(|add| assert_eq!(add(1, 1), 4));
        let mut stack = vec![0u128; 1 << 14];
        let mut status = 0;
        // SAFETY: a child on a stack of its own that calls two functions while we wait for it.
        unsafe {
            let top = stack.as_mut_ptr().add(stack.len()).cast();
            let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
            let pid = libc::clone(run, top, flags, functions.as_ptr().cast_mut().cast());
            assert!(pid > 0);
            assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        }
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
        assert_eq!((count.load(Relaxed), probe[0].counts().missed()), (2, 0));
        unregister_all(probe).expect("unregistered");
    }
}
