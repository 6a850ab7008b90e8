//! SAFE-3: a program that waits at its start is let go also when no descriptor is left. A file of its own, since the limit
//! is one of the whole process.
mod common;

use std::fs::File;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::compile;
use trapline_tracee::{Launched, Process};

/// One test at a time: the limit is that of all.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All descriptors that this process may have, until it is dropped.
struct Full {
    held: Vec<File>,
    before: libc::rlimit,
}

impl Full {
    fn new() -> Self {
        let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a live structure of that type.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut before) }, 0);
        set(libc::rlimit { rlim_cur: 200, ..before });
        let held = std::iter::from_fn(|| File::open("/proc/self/stat").ok()).collect();
        Self { held, before }
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        self.held.clear();
        set(self.before);
    }
}

fn set(limit: libc::rlimit) {
    // SAFETY: a live structure of that type.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
}

/// TGT-20: what was begun can be undone.
#[test]
fn a_process_can_be_looked_at_when_no_descriptor_is_left() {
    let _alone = alone();
    let mut child = Command::new("sleep").arg("60").spawn().expect("sleep starts");
    let process = Process::open(child.id()).expect("it is ours");
    let full = Full::new();
    let looks: Vec<bool> = (0..100).map(|_| process.maps().is_ok() && process.threads().is_ok()).collect();
    let opened = Process::open(child.id());
    drop(full);
    drop((child.kill(), child.wait()));
    assert!(looks.into_iter().all(|seen| seen), "a use took a spare and did not give it back");
    assert!(opened.is_err(), "it cannot be patched without descriptors to clean up with");
}

/// Held at its loader's rendezvous, and, without a loader, at its entry point.
#[test]
fn a_parked_program_is_let_go_without_a_descriptor() {
    let _alone = alone();
    for flags in [&[][..], &["-static"]] {
        let path = compile("int main(void) { return 7; }", flags);
        let (mut launched, parked) = Launched::start(Command::new(&path)).expect("it starts");
        let parked = parked.expect("it is parked");
        let full = Full::new();
        let let_go = parked.release();
        drop(full);
        assert!(let_go.expect("it can be let go"), "{flags:?}: it did not wait any more");
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = launched.try_wait().expect("ours") {
                break status;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{flags:?}: it does not end");
            std::thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(status.code(), Some(7), "{flags:?}: {status}");
        std::fs::remove_dir_all(path.parent().expect("its folder")).expect("ours");
    }
}
