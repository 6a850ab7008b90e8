//! SAFE-3: a program that waits at its start is let go also when no descriptor is left. A file of its own, since the limit
//! is one of the whole process.
mod common;

use std::process::Command;
use std::time::{Duration, Instant};

use common::compile;
use trapline_tracee::Launched;

/// Sets how many descriptors this process may have; returns how many it might have before.
fn allow(descriptors: u64) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls take a live structure of that type.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        let before = std::mem::replace(&mut limit.rlim_cur, descriptors);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
        before
    }
}

/// Held at its loader's rendezvous, and, without a loader, at its entry point.
#[test]
fn a_parked_program_is_let_go_without_a_descriptor() {
    for flags in [&[][..], &["-static"]] {
        let path = compile("int main(void) { return 7; }", flags);
        let (mut launched, parked) = Launched::start(Command::new(&path)).expect("it starts");
        let parked = parked.expect("it is parked");
        let before = allow(0);
        assert!(std::fs::File::open("/proc/self/stat").is_err(), "descriptors are left");
        let let_go = parked.release();
        allow(before);
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
