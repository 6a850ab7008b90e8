//! Mappings that come and go: what reports them, what is armed when, and what is known of addresses.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use trapline::inside::{
    CodePlace, Consumer, NoticeMode, Registration, Request, Verdict, code, code_at, notice_by, noticed,
    register, register_all, rescan,
};

use crate::calls::{counting, word};
use crate::life::in_child;
use crate::victim::Victim;

const PAGE: u64 = 4096;
const CODE: i32 = libc::PROT_READ | libc::PROT_EXEC;

/// How a system call is made.
#[derive(Clone, Copy, Debug)]
pub(crate) enum By {
    Libc,
    Raw,
}

/// Two pages of a file's code, mapped by hand.
pub(crate) struct Pages {
    pub(crate) at: u64,
    inside: u64,
}

impl Pages {
    const LEN: usize = 2 * PAGE as usize;
    /// Maps pages around a place in a file; with `fixed`, at an address of this test's own, in place of what
    /// is there.
    pub(crate) fn map(by: By, file: &Path, offset: u64, prot: i32, fixed: Option<u64>) -> Self {
        let flags = libc::MAP_PRIVATE | if fixed.is_some() { libc::MAP_FIXED } else { 0 };
        Self::map_as(by, file, offset, (prot, flags), fixed)
    }
    fn map_as(by: By, file: &Path, offset: u64, (prot, flags): (i32, i32), fixed: Option<u64>) -> Self {
        let file = std::fs::File::open(file).expect("the victim");
        let start = offset & !(PAGE - 1);
        let (to, fd) = (fixed.unwrap_or(0), file.as_raw_fd());
        // SAFETY: a new mapping, or one in place of pages of this test's own.
        let at = unsafe {
            match by {
                By::Libc => libc::mmap(to as *mut _, Self::LEN, prot, flags, fd, start as i64) as i64,
                By::Raw => libc::syscall(
                    libc::SYS_mmap,
                    to,
                    Self::LEN,
                    i64::from(prot),
                    i64::from(flags),
                    i64::from(fd),
                    start,
                ),
            }
        };
        assert_ne!(at, -1);
        Self { at: at as u64, inside: offset - start }
    }
    /// Reserves room at an address of the kernel's choice, to map into.
    pub(crate) fn reserve(len: usize) -> u64 {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping that is not accessible.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        at as u64
    }
    fn protect(&self, by: By, prot: i32) {
        // SAFETY: pages of this test's own.
        let result = unsafe {
            match by {
                By::Libc => i64::from(libc::mprotect(self.at as *mut _, Self::LEN, prot)),
                By::Raw => libc::syscall(libc::SYS_mprotect, self.at, Self::LEN, i64::from(prot)),
            }
        };
        assert_eq!(result, 0);
    }
    pub(crate) fn unmap(&self) {
        // SAFETY: pages of this test's own, in which no thread is.
        unsafe { libc::syscall(libc::SYS_munmap, self.at, Self::LEN) };
    }
    fn function(&self) -> extern "C" fn(u64, u64) -> u64 {
        // SAFETY: `add` needs nothing but its own bytes.
        unsafe { std::mem::transmute(self.at + self.inside) }
    }
    fn bytes(&self) -> [u8; 16] {
        // SAFETY: inside the pages, which are readable.
        unsafe { *((self.at + self.inside) as *const [u8; 16]) }
    }
}

/// Waits until the condition is true; one that never becomes true fails the test.
pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(120), "never: {what} ({:?})", noticed());
        std::thread::yield_now();
    }
}

fn has_records() -> bool {
    let has = noticed().way == Some(NoticeMode::Records);
    if !has {
        println!("SKIP: the kernel refuses perf events of our own");
    }
    has
}

/// Whether loading can be waited for.
pub(crate) fn reads_loaders() -> bool {
    let notices = noticed().notice;
    if !notices {
        println!("SKIP: no jump fits the loader's notice here");
    }
    notices
}

fn patched(probe: &Registration) -> usize {
    probe.sites().len()
}

#[test]
fn raw_calls_that_map_code_are_noticed_by_records() {
    let path = Victim::file();
    let offset = Victim::load_file(path.clone()).offset("add");
    let count = word();
    let probe = register(&path, offset, counting(count)).expect("registered");
    if !has_records() {
        return;
    }
    let records = noticed().by_record;
    let first = Pages::map(By::Raw, &path, offset, CODE, None);
    until("mmap of code", || patched(&probe) == 1);
    assert_eq!((first.function()(1, 1), count.load(Relaxed)), (4, 1));
    let second = Pages::map(By::Raw, &path, offset, libc::PROT_READ, None);
    rescan().expect("a look");
    assert_eq!(patched(&probe), 1, "what is not executable takes none");
    second.protect(By::Raw, CODE);
    until("mprotect to code", || patched(&probe) == 2);
    assert_eq!((second.function()(1, 1), count.load(Relaxed)), (4, 2));
    assert!(noticed().by_record >= records + 2, "{:?}", noticed());
    [first, second].iter().for_each(Pages::unmap);
}

#[test]
fn what_may_not_take_breakpoints_takes_none() {
    let path = Victim::file();
    let offset = Victim::load_file(path.clone()).offset("add");
    let probe = register(&path, offset, counting(word())).expect("registered");
    let writable = Pages::map(By::Raw, &path, offset, CODE | libc::PROT_WRITE, None);
    let plain = writable.bytes();
    rescan().expect("a look");
    assert_eq!((patched(&probe), writable.bytes()), (0, plain), "writable");
    assert_eq!(
        code_at(writable.at).map(|place| place.offset),
        Some(offset & !(PAGE - 1)),
        "known all the same"
    );
    let takes = |pages: &Pages| {
        let picture = code().expect("a picture");
        picture.iter().find(|one| one.start == pages.at).map(|one| one.takes_breakpoints)
    };
    assert_eq!(takes(&writable), Some(false));
    writable.protect(By::Raw, CODE);
    rescan().expect("a look");
    assert_eq!((patched(&probe), takes(&writable)), (1, Some(true)), "not writable any more");
    writable.unmap();
    let shared = Pages::map_as(By::Raw, &path, offset, (CODE, libc::MAP_SHARED), None);
    rescan().expect("a look");
    assert_eq!((patched(&probe), shared.bytes(), takes(&shared)), (0, plain, Some(false)), "shared");
    shared.unmap();
}

/// The addresses of one file's code are given to another file, to anonymous memory, and to the first again.
#[test]
fn another_mapping_at_the_same_place_is_another_mapping() {
    for by_trap in [false, true] {
        let (one, two) = (Victim::file(), Victim::file());
        let offset = Victim::load_file(one.clone()).offset("add");
        let counts = [word(), word()];
        let request = |file, count| Request { by_trap, ..Request::new(file, offset, counting(count)) };
        let mut probes =
            register_all([request(&one, counts[0]), request(&two, counts[1])]).expect("registered");
        if !has_records() {
            return;
        }
        let pages = Pages::map(By::Raw, &one, offset, CODE, None);
        until("the first", || patched(&probes[0]) == 1);
        let there = pages.at;
        let pages = Pages::map(By::Raw, &two, offset, CODE, Some(there));
        until("the second in its place", || patched(&probes[1]) == 1 && patched(&probes[0]) == 0);
        pages.function()(1, 1);
        assert_eq!(counts.map(|count| count.load(Relaxed)), [0, 1]);
        let pages = Pages::map(By::Raw, &one, offset, CODE, Some(there));
        until("the first again", || patched(&probes[0]) == 1 && patched(&probes[1]) == 0);
        pages.function()(1, 1);
        assert_eq!(counts.map(|count| count.load(Relaxed)), [1, 1]);
        // A fresh copy of the same file, at the same place: it has no probe, and gets one.
        let pages = Pages::map(By::Raw, &one, offset, CODE, Some(there));
        let plain = [0u8; 16];
        until("a fresh copy", || {
            pages.function()(1, 1);
            counts[0].load(Relaxed) > 1
        });
        assert_ne!(pages.bytes(), plain);
        // The site is a trap first and a jump later. This waits for the engine's lock, so the look that writes
        // both is over, and nothing is written any more when the pages go.
        let _ = noticed();
        // Memory of no file: it is neither written to nor taken for patched, though nothing reported the end
        // of the first mapping.
        // In one step: another test's pages may lie there as soon as these are gone.
        let anonymous = Pages::map(By::Raw, Path::new("/dev/zero"), 0, libc::PROT_READ, Some(there));
        assert!(rescan().is_ok());
        assert_eq!(probes.iter().map(patched).sum::<usize>(), 0);
        probes.pop().expect("two").unregister().expect("unregistered");
        drop(probes);
        assert_eq!(anonymous.bytes(), [0; 16]);
        anonymous.unmap();
    }
}

#[test]
fn a_library_is_armed_before_its_constructors_run() {
    let path = Victim::file();
    let victim = Victim::load_file(path.clone());
    let offset = victim.offset("born");
    drop(victim);
    let count = word();
    let _probe = register(&path, offset, counting(count)).expect("registered");
    if !reads_loaders() {
        return;
    }
    let impatient = noticed().impatient;
    let _victim = Victim::load_file(path);
    assert!(count.load(Relaxed) == 1 || noticed().impatient > impatient, "{:?}", noticed());
}

#[test]
fn threads_that_load_and_unload_lose_no_call() {
    let paths: Vec<_> = (0..4).map(|_| Victim::file()).collect();
    let offset = Victim::load_file(paths[0].clone()).offset("add");
    let (count, called) = (word(), AtomicU64::new(0));
    let impatient = noticed().impatient;
    let probes = register_all(paths.iter().map(|path| Request::new(path, offset, counting(count))))
        .expect("registered");
    if !reads_loaders() {
        return;
    }
    std::thread::scope(|scope| {
        for path in &paths {
            let called = &called;
            scope.spawn(move || {
                for n in 0..20 {
                    let victim = Victim::load_file(path.clone());
                    assert_eq!(victim.function("add")(n, 1), n * 3 + 1);
                    called.fetch_add(1, Relaxed);
                }
            });
        }
    });
    let (called, counted) = (called.into_inner(), count.load(Relaxed));
    assert!(counted == called || noticed().impatient > impatient, "{counted} of {called}: {:?}", noticed());
    assert!(counted <= called);
    drop(probes);
}

#[test]
fn an_address_leads_to_its_file_everywhere() {
    let victim = Victim::load();
    let (offset, at) = (victim.offset("add"), victim.address("add"));
    let here = word();
    // In a handler as well: the call locks and allocates nothing.
    let consumer = Consumer::entry(move |hit| {
        here.store(code_at(hit.site()).map_or(0, |place| place.offset), Relaxed);
        Verdict::Continue
    });
    let _probe = register(&victim.path, offset, consumer).expect("registered");
    let place = code_at(at).expect("known");
    assert_eq!(place.offset, offset);
    assert_eq!(code_at(at + 3), Some(CodePlace { offset: offset + 3, ..place }));
    assert_eq!(code_at(std::ptr::from_ref(&place) as u64), None, "a stack");
    victim.function("add")(1, 1);
    assert_eq!(here.load(Relaxed), offset);
    let picture = code().expect("a picture");
    let one = picture.iter().find(|one| (one.start..one.end).contains(&at)).expect("in the picture");
    assert_eq!((one.place.file, one.place.offset + (at - one.start)), (place.file, offset));
    assert!(one.takes_breakpoints);
}

/// Stops the other threads when a test ends, however it ends.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// While other threads map and unmap, every picture is whole: in order, nothing twice, and what never changes
/// is always there.
#[test]
fn a_picture_is_of_one_moment_while_threads_map() {
    let (stays, path) = (Victim::load(), Victim::file());
    let offset = stays.offset("add");
    let _probe = register(&path, offset, counting(word())).expect("registered");
    rescan().expect("a look");
    let (stop, at) = (AtomicBool::new(false), stays.address("add"));
    let mapped_at = code_at(at).expect("known");
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    let pages = Pages::map(By::Raw, &path, offset, CODE, None);
                    rescan().expect("a look");
                    pages.unmap();
                    rescan().expect("a look");
                }
            });
        }
        let _stop = Stop(&stop);
        for _ in 0..200 {
            let picture = code().expect("a picture");
            assert!(picture.windows(2).all(|pair| pair[0].end <= pair[1].start), "{picture:x?}");
            assert!(picture.iter().any(|one| (one.start..one.end).contains(&at)));
            assert_eq!(code_at(at), Some(mapped_at));
        }
    });
}

#[test]
fn a_forked_child_learns_by_itself() {
    let path = Victim::file();
    let offset = Victim::load_file(path.clone()).offset("add");
    let count = word();
    let probe = register(&path, offset, counting(count)).expect("registered");
    let has_records = has_records();
    if !reads_loaders() {
        return;
    }
    let status = in_child(|| {
        // The loader's notice is received before the child has called anything.
        let victim = Victim::load_file(path.clone());
        victim.function("add")(1, 1);
        let by_notice = count.load(Relaxed) == 1;
        drop(victim);
        // After that, the child has a thread and records of its own.
        rescan().expect("a look");
        let pages = Pages::map(By::Raw, &path, offset, CODE, None);
        if has_records {
            until("a raw call in a child", || patched(&probe) == 1);
        } else {
            rescan().expect("a look");
        }
        pages.function()(1, 1);
        let by_record = count.load(Relaxed) == 2;
        i32::from(!by_notice) | i32::from(!by_record) << 1
    });
    assert_eq!(status, 0);
    assert_eq!((count.load(Relaxed), patched(&probe)), (0, 0), "nothing of it happened here");
}

/// Makes a system call fail with that error in this process from here on.
pub(crate) fn refuse(call: i64, errno: i32) {
    let (load, equal, answer) = (0x20, 0x15, 0x06);
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let filter = [
        step(load, 0, 0, 0),
        step(equal, 0, 1, call as u32),
        step(answer, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        step(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the program is live and as long as it says.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

#[test]
fn where_records_are_refused_calls_report_and_what_only_a_look_finds_is_counted() {
    let path = Victim::file();
    let offset = Victim::load_file(path.clone()).offset("add");
    let status = in_child(|| {
        refuse(libc::SYS_perf_event_open, libc::EACCES);
        let count = word();
        let probe = register(&path, offset, counting(count)).expect("registered");
        assert_eq!(noticed().way, Some(NoticeMode::Calls));
        // What threads of other tests had just mapped when this process began.
        rescan().expect("a look");
        let before = noticed();
        let first = Pages::map(By::Libc, &path, offset, CODE, None);
        until("libc's mmap", || patched(&probe) == 1);
        let second = Pages::map(By::Libc, &path, offset, libc::PROT_READ, None);
        second.protect(By::Libc, CODE);
        until("libc's mprotect", || patched(&probe) == 2);
        assert_eq!(noticed().by_call, before.by_call + 2, "{:?}", noticed());
        let raw = Pages::map(By::Raw, &path, offset, CODE, None);
        raw.function()(1, 1);
        assert_eq!((count.load(Relaxed), noticed().by_look), (0, before.by_look), "no notice came");
        rescan().expect("a look");
        assert_eq!((patched(&probe), noticed().by_look), (3, before.by_look + 1));
        let victim = Victim::load_file(path.clone());
        for add in [first.function(), second.function(), raw.function(), victim.function("add")] {
            assert_eq!(add(1, 1), 4);
        }
        assert_eq!(count.load(Relaxed), 4);
        // A question about an address that is not known leads to a look.
        let other = Pages::map(By::Raw, &path, offset, CODE, None);
        let misses = noticed().misses;
        until("a miss leads to a look", || code_at(other.at).is_some());
        until("what a miss found is armed", || patched(&probe) == 5);
        assert_eq!((noticed().by_look, noticed().misses > misses), (before.by_look + 2, true));
        assert_eq!((other.function()(1, 1), count.load(Relaxed)), (4, 5));
        // Libc's calls return what they returned before.
        // SAFETY: a call that maps nothing.
        let refused = unsafe { libc::mmap(std::ptr::null_mut(), 0, CODE, libc::MAP_PRIVATE, -1, 0) };
        assert_eq!(refused, libc::MAP_FAILED);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EBADF));
        0
    });
    assert_eq!(status, 0);
}

#[test]
fn a_process_may_learn_by_being_asked_alone() {
    let path = Victim::file();
    let offset = Victim::load_file(path.clone()).offset("add");
    let status = in_child(|| {
        notice_by(NoticeMode::Asked).expect("nothing is registered here");
        let count = word();
        let probe = register(&path, offset, counting(count)).expect("registered");
        assert!(notice_by(NoticeMode::Records).is_err(), "too late");
        assert_eq!((noticed().way, noticed().notice), (Some(NoticeMode::Asked), false));
        let threads = std::fs::read_dir("/proc/self/task").expect("threads").count();
        assert_eq!(threads, 1);
        let victim = Victim::load_file(path.clone());
        victim.function("add")(1, 1);
        assert_eq!((count.load(Relaxed), patched(&probe)), (0, 0));
        rescan().expect("a look");
        victim.function("add")(1, 1);
        assert_eq!((count.load(Relaxed), patched(&probe)), (1, 1));
        0
    });
    assert_eq!(status, 0);
}
