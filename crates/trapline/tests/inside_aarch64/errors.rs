//! Each obstacle has an error of its own, with the kernel's number.
#![allow(unsafe_code, reason = "a thread's mask of signals, in a child")]

use trapline::inside::{Consumer, Error, Returns, find, register};

use crate::victim::{Victim, counting, word};

fn refused(victim: &Victim, offset: u64, consumer: Consumer) -> Error {
    register(&victim.path, offset, consumer).expect_err("in the way")
}

#[test]
fn what_takes_no_probe_is_refused_by_name() {
    let victim = Victim::load();
    let before = victim.text();
    let at = |name: &str, more: u64| refused(&victim, victim.offset(name) + more, counting(word()));
    let error = at("add", 2);
    let begins = victim.offset("add");
    assert!(matches!(error, Error::InsideInstruction { begins: b, .. } if b == begins), "{error}");
    let error = at("stops", 0);
    assert!(matches!(error, Error::Breakpoint { .. }), "{error}");
    assert_eq!(error.errno(), libc::EOPNOTSUPP);
    for (name, more, word, named) in [
        ("calls_kernel", 4, "immovable", "svc"),
        ("exclusive", 0, "immovable", "exclusive"),
        ("exclusive", 4, "exclusive", "exclusive"),
    ] {
        let error = at(name, more);
        assert!(matches!(error, Error::Refused { kind, .. } if kind == word), "{error}");
        assert!(error.to_string().contains(named), "{error}");
        assert_eq!(error.errno(), libc::EOPNOTSUPP);
    }
    assert!(victim.text() == before);
}

#[test]
fn functions_with_returns_that_cannot_all_be_seen_are_refused_by_name() {
    let victim = Victim::load();
    let before = victim.text();
    let returns = || Consumer::returns(|_| {});
    for (name, word) in [("tail", "tail-call"), ("jumps", "exits-unknown")] {
        let error = refused(&victim, victim.offset(name), returns());
        assert!(matches!(error, Error::Refused { kind, .. } if kind == word), "{error}");
    }
    for (file, name, says) in [
        ("libc", "setjmp", "reads the return address"),
        ("libc", "vfork", "may return twice"),
        ("libc", "dlsym", "a return address"),
        ("libc", "_exit", "no return is found"),
    ] {
        let (file, offset) = find(file, name).expect(name);
        let error = register(file, offset, returns().returns_by(Returns::Stack)).expect_err(name);
        let is_trampolines = matches!(error, Error::Refused { kind: "no-slot", .. });
        assert!(is_trampolines && error.to_string().contains(says), "{name}: {error}");
        assert_eq!(error.errno(), libc::EOPNOTSUPP);
    }
    let error = refused(&victim, victim.offset("add") + 4, returns());
    assert!(matches!(error, Error::NotAnEntry { .. }), "{error}");
    assert!(victim.text() == before);
}

#[test]
fn code_that_another_tool_changed_is_not_the_files() {
    let victim = Victim::load();
    let (at, page) = (victim.address("far_a"), 4096);
    let start = at & !(page - 1);
    // SAFETY: a page of this test's own library, which no thread runs meanwhile.
    let write = |word: u32| unsafe {
        let protect = |prot: i32| assert_eq!(libc::mprotect(start as *mut _, page as usize, prot), 0);
        protect(libc::PROT_READ | libc::PROT_WRITE);
        (at as *mut u32).write_volatile(word);
        protect(libc::PROT_READ | libc::PROT_EXEC);
    };
    // SAFETY: a word of the library's code.
    let old = unsafe { *(at as *const u32) };
    write(old ^ 0x20);
    let error = refused(&victim, victim.offset("far_a"), counting(word()));
    assert!(matches!(error, Error::Differs { .. }), "{error}");
    // In the same page: that page is left as it is.
    let count = word();
    let beside = register(&victim.path, victim.offset("far_a") + 4, counting(count)).expect("registered");
    write(old);
    assert_eq!((victim.function("far_a")(1, 2), beside.counts().hits), (3, 1));
}
