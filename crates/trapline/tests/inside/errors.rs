//! Each obstacle has an error of its own, with the kernel's number. And one that is no obstacle: code that
//! /proc/self/mem does not write.

use std::io::Write as _;
use std::sync::atomic::Ordering::Relaxed;

use trapline::inside::{Error, Request, Tactic, register, register_all};

use crate::calls::{counting, word};
use crate::life::in_child;
use crate::maps::refuse;
use crate::victim::Victim;

fn refused(path: &std::path::Path, offset: u64) -> Error {
    register(path, offset, counting(word())).expect_err("in the way")
}

#[test]
fn a_file_that_cannot_be_read_is_reported_with_the_systems_reason() {
    for (path, errno) in
        [("/nowhere", libc::ENOENT), ("/etc/passwd/below", libc::ENOTDIR), ("", libc::ENOENT)]
    {
        let error = refused(path.as_ref(), 0);
        assert!(matches!(error, Error::Unreadable { .. }), "{error}");
        assert_eq!(error.errno(), errno);
    }
    for path in ["/", "/dev/null", "/etc/passwd"] {
        let error = refused(path.as_ref(), 0);
        assert!(matches!(error, Error::File { .. }), "{error}");
        assert_eq!(error.errno(), libc::EBADF);
    }
}

#[test]
fn a_file_that_was_written_to_is_not_believed_any_more() {
    let path = Victim::file();
    let offset = Victim::load_file(path.clone()).offset("add");
    drop(register(&path, offset, counting(word())).expect("registered"));
    let mut file = std::fs::File::options().append(true).open(&path).expect("writable");
    file.write_all(b"more").expect("written");
    let error = refused(&path, offset);
    assert!(matches!(error, Error::Changed { .. }), "{error}");
    // Another file at the same path is another file.
    let other = Victim::file();
    std::fs::rename(other, &path).expect("replaced");
    drop(register(&path, offset, counting(word())).expect("registered"));
}

#[test]
fn an_offset_inside_an_instruction_is_refused_though_the_file_is_not_mapped() {
    let path = Victim::file();
    let victim = Victim::load_file(path.clone());
    let (inside, own) = (victim.offset("add") + 1, victim.offset("stops"));
    let begins = victim.offset("add");
    drop(victim);
    let error = refused(&path, inside);
    assert!(matches!(error, Error::InsideInstruction { begins: at, .. } if at == begins), "{error}");
    assert_eq!(error.errno(), libc::EINVAL);
    let error = refused(&path, own);
    assert!(matches!(error, Error::Breakpoint { offset, .. } if offset == own), "{error}");
    assert_eq!(error.errno(), libc::EOPNOTSUPP);
}

#[test]
fn code_that_was_patched_is_not_the_files() {
    let victim = Victim::load();
    let at = victim.address("after");
    let mem = std::fs::File::options().write(true).open("/proc/self/mem").expect("our memory");
    let write =
        |byte: u8| assert_eq!(std::os::unix::fs::FileExt::write_at(&mem, &[byte], at).expect("written"), 1);
    // SAFETY: a byte of the library's code.
    let old = unsafe { *(at as *const u8) };
    write(old ^ 1);
    let error = refused(&victim.path, victim.offset("after"));
    assert!(matches!(error, Error::Differs { .. }), "{error}");
    write(old);
    drop(register(&victim.path, victim.offset("after"), counting(word())).expect("registered"));
}

/// As on a kernel that forbids writes to read-only memory through that file.
#[test]
fn where_our_memory_file_refuses_writes_pages_are_made_writable_for_the_moment() {
    let victim = Victim::load();
    let status = in_child(|| {
        refuse(libc::SYS_pwrite64, libc::EIO);
        let (before, count, add) = (victim.text(), word(), victim.function("add"));
        let probe = register(&victim.path, victim.offset("add"), counting(count)).expect("registered");
        assert_eq!((add(1, 1), count.load(Relaxed)), (4, 1));
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        assert!(!maps.lines().any(|line| line.contains("rwx")), "{maps}");
        probe.unregister().expect("unregistered");
        assert_eq!((add(1, 1), count.load(Relaxed)), (4, 1));
        assert!(before == victim.text());
        0
    });
    assert_eq!(status, 0);
}

#[test]
fn where_code_cannot_be_written_at_all_nothing_is_registered() {
    const SET_MDWE: i32 = 65;
    let victim = Victim::load();
    let status = in_child(|| {
        // SAFETY: plain numbers: from here on no page is both writable and executable.
        if unsafe { libc::prctl(SET_MDWE, 1, 0, 0, 0) } != 0 {
            println!("SKIP: this kernel does not know PR_SET_MDWE");
            return 0;
        }
        refuse(libc::SYS_pwrite64, libc::EIO);
        let before = victim.text();
        let error = refused(&victim.path, victim.offset("add"));
        assert!(matches!(error, Error::Locked(_)), "{error}");
        assert_eq!(error.errno(), libc::EPERM);
        assert!(before == victim.text());
        0
    });
    assert_eq!(status, 0);
}

/// A trap would end the process there (`experiments/blocked_sigtrap.c`). Sites that need one are refused by
/// name, and jumps that need none are placed.
#[test]
fn while_a_thread_blocks_traps_only_jumps_that_need_none_are_placed() {
    let victim = Victim::load();
    let status = in_child(|| {
        // SAFETY: the calling thread's mask: all signals.
        unsafe {
            let mut all = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
        }
        let before = victim.text();
        let request = |name| Request::new(&victim.path, victim.offset(name), counting(word()));
        let error = register_all([request("whole").by_trap()]).expect_err("a trap");
        assert!(matches!(error, Error::Refused { kind: "must-not-trap", .. }), "{error}");
        assert!(before == victim.text());
        // What is placed is then hit by a thread that could not be sent on from a trap.
        for (name, result) in [("whole", 6), ("add", 5), ("fib", 1), ("twice", 2)] {
            let Ok(probes) = register_all([request(name)]) else { continue };
            assert!(probes[0].sites().iter().all(|tactic| *tactic < Tactic::Trap), "{name}");
            assert_eq!((victim.function(name)(1, 2), probes[0].counts().hits), (result, 1), "{name}");
        }
        match register_all([request("whole")]) {
            Ok(whole) => assert_eq!(whole[0].sites(), [Tactic::Jump]),
            // No thread can be inside its first instruction. But where no write is known to be seen whole,
            // its patch goes through traps too.
            Err(Error::Refused { kind: "needs-traps", why, .. }) => {
                assert!(why.contains("not proven"), "{why}")
            }
            Err(error) => panic!("{error}"),
        }
        0
    });
    assert_eq!(status, 0);
}
