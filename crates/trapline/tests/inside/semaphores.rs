//! USDT semaphores: raised while a consumer is registered, in every mapping, as soon as the data is mapped.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use trapline::inside::{
    Error, NoticeMode, Registration, Request, notice_by, register_all, rescan, unregister_all,
};

use crate::calls::{counting, word};
use crate::life::in_child;
use crate::maps::{By, Pages, until};
use crate::victim::Victim;

fn on(victim: &Victim, name: &str, semaphore: Option<u64>) -> Result<Registration, Error> {
    let request = Request::new(&victim.path, victim.offset(name), counting(word()));
    let request = Request { semaphore, ..request };
    Ok(register_all([request])?.pop().expect("one"))
}

fn read(at: u64) -> u16 {
    // SAFETY: the address of the library's semaphore, which stays mapped meanwhile.
    unsafe { (at as *const u16).read_volatile() }
}

#[test]
fn a_semaphore_counts_the_sites_that_are_active() {
    let victim = Victim::load();
    let at = victim.address("semaphore");
    let offset = Some(victim.offset_of_address(at));
    assert_eq!(read(at), 0);
    let first = on(&victim, "add", offset).expect("registered");
    assert_eq!(read(at), 1);
    let same = on(&victim, "add", offset).expect("registered");
    assert_eq!(read(at), 1, "one site");
    let other = on(&victim, "twice", offset).expect("registered");
    assert_eq!(read(at), 2);
    drop(first);
    assert_eq!(read(at), 2, "another probe is still there");
    unregister_all([same, other]).expect("unregistered");
    assert_eq!(read(at), 0);
    let again = on(&victim, "add", offset).expect("registered");
    assert_eq!(read(at), 1);
    drop(again);
    assert_eq!(read(at), 0);
}

#[test]
fn a_library_that_is_loaded_later_finds_its_semaphore_raised() {
    let path = Victim::file();
    let victim = Victim::load_file(path.clone());
    let offset = Some(victim.offset_of_address(victim.address("semaphore")));
    let function = victim.offset("add");
    drop(victim);
    let request = Request { semaphore: offset, ..Request::new(&path, function, counting(word())) };
    let probes = register_all([request]).expect("registered");
    for _ in 0..3 {
        let victim = Victim::load_file(path.clone());
        let at = victim.address("semaphore");
        until("the semaphore", || read(at) == 1);
    }
    let victim = Victim::load_file(path);
    let at = victim.address("semaphore");
    until("the semaphore", || read(at) == 1);
    unregister_all(probes).expect("unregistered");
    assert_eq!(read(at), 0);
}

/// Code first, data much later, by raw calls: the semaphore is delayed, and then raised without a request.
#[test]
fn a_semaphore_waits_for_its_data() {
    let path = Victim::file();
    let victim = Victim::load_file(path.clone());
    let (code, data) = (victim.address("add"), victim.address("semaphore"));
    let (function, semaphore) = (victim.offset("add"), victim.offset_of_address(data));
    drop(victim);
    let request = Request { semaphore: Some(semaphore), ..Request::new(&path, function, counting(word())) };
    let probes = register_all([request]).expect("registered");
    if trapline::inside::noticed().way != Some(trapline::inside::NoticeMode::Records) {
        return println!("SKIP: the kernel refuses perf events of our own");
    }
    // Room for the whole library, so that its data is as far from its code as it should be.
    let room = Pages::reserve(1 << 20);
    let text = Pages::map(
        By::Raw,
        &path,
        function,
        libc::PROT_READ | libc::PROT_EXEC,
        Some((room + (code & 4095)) & !4095),
    );
    until("the code", || probes[0].sites().len() == 1);
    let at = text.at + (code & 4095) + (data - code);
    let page = Pages::map(By::Raw, &path, semaphore, libc::PROT_READ | libc::PROT_WRITE, Some(at & !4095));
    until("the data", || read(at) == 1);
    unregister_all(probes).expect("unregistered");
    assert_eq!(read(at), 0);
    [text, page].iter().for_each(Pages::unmap);
}

/// A library goes and comes back at the same place without a notice, and a look comes first. The look sees
/// the same maps as before, so it must not take the new word for the old one.
#[test]
fn a_word_that_is_fresh_is_raised_once() {
    let path = Victim::file();
    let victim = Victim::load_file(path.clone());
    let (code, data) = (victim.address("add"), victim.address("semaphore"));
    let (function, semaphore) = (victim.offset("add"), victim.offset_of_address(data));
    drop(victim);
    let status = in_child(|| {
        notice_by(NoticeMode::Asked).expect("nothing is registered here");
        let room = Pages::reserve(1 << 20);
        let at = ((room + (code & 4095)) & !4095) + (code & 4095);
        let word_at = at + (data - code);
        let map = || {
            let code = libc::PROT_READ | libc::PROT_EXEC;
            Pages::map(By::Raw, &path, function, code, Some(at & !4095));
            Pages::map(By::Raw, &path, semaphore, libc::PROT_READ | libc::PROT_WRITE, Some(word_at & !4095));
        };
        map();
        let request =
            Request { semaphore: Some(semaphore), ..Request::new(&path, function, counting(word())) };
        let probes = register_all([request]).expect("registered");
        assert_eq!((probes[0].sites().len(), read(word_at)), (1, 1));
        map();
        // Registering elsewhere reads the maps, and checks all words.
        let other = Victim::load();
        let elsewhere = on(&other, "add", None).expect("registered");
        assert_eq!(read(word_at), 0, "no site of ours is there");
        rescan().expect("a look");
        assert_eq!(read(word_at), 1);
        unregister_all(probes).expect("unregistered");
        assert_eq!(read(word_at), 0);
        drop(elsewhere);
        0
    });
    assert_eq!(status, 0);
}

/// The kernel's uprobe_syscall race: half of the threads call, the others come and go at the same site with
/// the same semaphore.
#[test]
fn a_semaphore_is_down_behind_threads_that_come_and_go() {
    const ROUNDS: u64 = 200;
    let victim = Victim::load();
    let at = victim.address("semaphore");
    let offset = Some(victim.offset_of_address(at));
    let (add, plain) = (victim.function("add"), victim.bytes("add"));
    let pairs = std::thread::available_parallelism().map_or(2, |cpus| cpus.get().max(2));
    let left = AtomicUsize::new(pairs);
    std::thread::scope(|scope| {
        for _ in 0..pairs {
            scope.spawn(|| {
                for n in 0..ROUNDS {
                    let probe = on(&victim, "add", offset).expect("registered");
                    assert!(read(at) >= 1, "round {n}");
                    drop(probe);
                }
                left.fetch_sub(1, Relaxed);
            });
            scope.spawn(|| {
                let mut n = 0;
                while left.load(Relaxed) > 0 {
                    assert_eq!(add(n, 1), 3 * n + 1);
                    n += 1;
                }
            });
        }
    });
    assert_eq!((read(at), victim.bytes("add")), (0, plain));
}

#[test]
fn what_is_no_semaphore_or_another_is_refused() {
    let victim = Victim::load();
    let semaphore = victim.offset_of_address(victim.address("semaphore"));
    let first = on(&victim, "add", Some(semaphore)).expect("registered");
    for other in [None, Some(semaphore + 2)] {
        let error = on(&victim, "add", other).expect_err("another");
        assert!(
            matches!(error, Error::OtherSemaphore { have: Some(one), asked, .. } if one == semaphore && asked == other)
        );
        assert_eq!(error.errno(), libc::EINVAL);
    }
    assert_eq!(read(victim.address("semaphore")), 1, "nothing of it happened");
    drop(first);
    // No consumer is left, so the semaphore may be another one now.
    drop(on(&victim, "add", None).expect("registered"));
    for (bad, because) in [
        (semaphore + 1, "odd"),
        (1 << 40, "behind the file's end"),
        (victim.offset("twice") & !1, "code"),
        (victim.path.metadata().expect("a file").len() & !1, ""),
    ] {
        let error = on(&victim, "add", Some(bad)).expect_err(because);
        assert!(matches!(error, Error::BadSemaphore { .. }), "{error}");
        assert!(error.to_string().contains(because), "{error}");
    }
    // In one batch too, which fails as a whole.
    let at = |semaphore| Request {
        semaphore,
        ..Request::new(&victim.path, victim.offset("add"), counting(word()))
    };
    let error = register_all([at(Some(semaphore)), at(Some(semaphore + 2))]).expect_err("two semaphores");
    assert!(matches!(error, Error::OtherSemaphore { .. }), "{error}");
    assert_eq!(read(victim.address("semaphore")), 0);
}
