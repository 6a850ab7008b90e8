//! LOAD-1, LOAD-2: a thread that has loaded libraries draws a ticket and waits for its answer, and goes on by itself
//! otherwise. Every register and the flags are as before (STUB-1).

use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::Duration;

use trapline_plan::aarch64::stub::{Code as _, Machine, load};

use super::{CodeMemory, RET};

type Function = extern "C" fn(u64, u64, u64) -> u64;

/// add x0, x0, x1, lsl #1; add x0, x0, x2, lsl #2; ret
const SUM: [u32; 3] = [0x8B01_0400, 0x8B02_0800, RET];

/// With and without atomic instructions.
fn machines() -> Vec<Machine> {
    let lse = std::arch::is_aarch64_feature_detected!("lse");
    let all = [false, true].into_iter().filter(|wants| lse || !wants);
    all.map(|lse| Machine { rseq: None, lse, lines: 1 }).collect()
}

/// Words: 0 is `LOADED`, 1 is `LOOKED`, 2 the loader's state.
fn loads(machine: &Machine) -> (Function, CodeMemory) {
    let room = CodeMemory::new();
    let word = |line| std::ptr::from_ref(room.word(line)) as u64;
    let stub =
        load(room.next(), machine, word(2), (word(0), word(1)), 0).finish(&SUM, None).expect("in reach");
    let code = room.put(&stub);
    // SAFETY: the code was just put there, is a function of that type, and stays until `unmap`.
    (unsafe { core::mem::transmute::<u64, Function>(code) }, room)
}

#[test]
fn a_thread_waits_where_all_is_mapped_until_its_ticket_is_answered() {
    for machine in machines() {
        let (function, room) = loads(&machine);
        let (loaded, looked, state) = (room.word(0), room.word(1), room.word(2));
        for busy in [1, 2] {
            state.store(busy, Ordering::SeqCst);
            assert_eq!((function(1, 2, 3), loaded.load(Ordering::SeqCst)), (17, 0), "{machine:?}");
        }
        state.store(7 << 32, Ordering::SeqCst);
        for ticket in 1..=3 {
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| function(1, 2, 3));
                while loaded.load(Ordering::SeqCst) != ticket {
                    std::thread::yield_now();
                }
                assert!(!waits.is_finished(), "{machine:?} ticket {ticket}");
                looked.store(ticket, Ordering::SeqCst);
                assert_eq!(waits.join().expect("returned"), 17, "{machine:?}");
            });
        }
        room.unmap();
    }
}

/// In a thread of its own, so that an endless wait fails.
#[test]
fn a_thread_that_waits_in_vain_goes_on_and_lets_the_next_pass() {
    for machine in machines() {
        let (function, room) = loads(&machine);
        let (done, waits) = channel();
        std::thread::spawn(move || {
            done.send((function(1, 2, 3), function(1, 2, 3))).expect("a thread waits")
        });
        assert_eq!(waits.recv_timeout(Duration::from_secs(300)).expect("an end"), (17, 17));
        let words = (room.word(0).load(Ordering::SeqCst), room.word(1).load(Ordering::SeqCst));
        assert_eq!(words, (2, u64::MAX), "{machine:?}");
    }
}
