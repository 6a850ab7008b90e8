//! LOAD-1, LOAD-2: a thread that has loaded libraries draws a ticket and waits for its answer, and goes on by itself
//! otherwise.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use trapline_plan::x86_64::stub::load;

use crate::arena::Arena;

type Function = extern "C" fn(u64, u64, u64) -> u64;

/// The loader's state, and the two words.
struct Words {
    loaded: &'static AtomicU64,
    looked: &'static AtomicU64,
    state: &'static AtomicU64,
}

/// A function with such an entry. It returns a combination of its three arguments.
fn loads(arena: &mut Arena, red_zone: bool) -> (Function, Words) {
    let at = arena.word(0);
    let mut out = Vec::new();
    load(&mut out, arena.next(), at + 16, (at, at + 8), red_zone);
    // lea rax, [rdi + 2 * rsi]; lea rax, [rax + 4 * rdx]; ret
    out.extend([0x48, 0x8D, 0x04, 0x77, 0x48, 0x8D, 0x04, 0x90, 0xC3]);
    let code = arena.put(&out);
    // SAFETY: the code was just put there, is a function of that type, and stays. The words lie in the arena's
    // data, which stays too.
    unsafe {
        let word = |at: u64| &*(at as *const AtomicU64);
        let words = Words { loaded: word(at), looked: word(at + 8), state: word(at + 16) };
        (core::mem::transmute::<u64, Function>(code), words)
    }
}

#[test]
fn a_thread_waits_where_all_is_mapped_until_its_ticket_is_answered() {
    for red_zone in [false, true] {
        let mut arena = Arena::new();
        let (function, words) = loads(&mut arena, red_zone);
        // Libraries are being added, or removed; what lies behind the state is not looked at.
        for state in [1, 2] {
            words.state.store(state, Ordering::SeqCst);
            assert_eq!((function(1, 2, 3), words.loaded.load(Ordering::SeqCst)), (17, 0));
        }
        words.state.store(7 << 32, Ordering::SeqCst);
        for ticket in 1..=3 {
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| function(1, 2, 3));
                while words.loaded.load(Ordering::SeqCst) != ticket {
                    std::hint::spin_loop();
                }
                assert!(!waits.is_finished(), "ticket {ticket}");
                words.looked.store(ticket, Ordering::SeqCst);
                assert_eq!(waits.join().expect("returned"), 17);
            });
        }
        assert_eq!(words.looked.load(Ordering::SeqCst), 3);
        arena.unmap();
    }
}

/// In a thread of its own, so that an endless wait fails.
#[test]
fn a_thread_that_waits_in_vain_goes_on_and_lets_the_next_pass() {
    let mut arena = Arena::new();
    let (function, words) = loads(&mut arena, false);
    let (done, waits) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send((function(1, 2, 3), function(1, 2, 3))).expect("a thread waits"));
    assert_eq!(waits.recv_timeout(Duration::from_secs(120)).expect("an end"), (17, 17));
    assert_eq!((words.loaded.load(Ordering::SeqCst), words.looked.load(Ordering::SeqCst)), (2, u64::MAX));
}
