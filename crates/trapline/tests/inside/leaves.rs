//! Handlers that do not return: they leave by longjmp, or their thread ends. Nothing stays held, and no
//! thread waits for them.
#![allow(unsafe_code, reason = "a jump out of a handler, a thread that ends in one")]

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;

use trapline::inside::{Consumer, Hit, Registration, Verdict, register};

use crate::calls::{counting, every_way, word};
use crate::victim::Victim;

/// The C library's jmp_buf, with room to spare.
#[repr(C, align(16))]
struct Place([u64; 64]);

unsafe extern "C" {
    fn _setjmp(place: *mut Place) -> i32;
    fn longjmp(place: *mut Place, value: i32) -> !;
}

/// Calls a function with a handler that jumps back to here, through the buffer that it finds in `to`.
#[inline(never)]
fn leave(add: extern "C" fn(u64, u64) -> u64, to: &AtomicU64) {
    let mut place = Place([0; 64]);
    to.store(&raw mut place as u64, Relaxed);
    // SAFETY: this frame exists when it is jumped to, and reads no variable after that.
    unsafe {
        if _setjmp(&raw mut place) == 0 {
            add(1, 1);
            unreachable!("the handler jumps");
        }
    }
}

/// How often the handler is left in one thread. Each of its hits is a hit of its own; none is taken for one
/// inside another.
const ROUNDS: u64 = 100;

/// By jump and by trap, with vector registers saved and without: no thread waits for hits that were left, by
/// a thread that goes on and by one that is blocked above them. In a process of its own, since a thread that
/// has the place of one that ended in a handler may miss hits.
#[test]
fn a_handler_may_leave_by_longjmp() {
    trapline_tests::alone("leaves::a_handler_may_leave_by_longjmp", || {
        every_way(|victim, probing| {
            let (add, twice) = (victim.function("add"), victim.function("twice"));
            let (count, above) = (word(), word());
            let to = word();
            let leaves = Consumer::entry(move |_: &mut Hit<'_>| {
                count.fetch_add(1, Relaxed);
                // SAFETY: set a moment ago by the frame that called; nothing in between has anything to drop.
                unsafe { longjmp(to.load(Relaxed) as *mut Place, 1) }
            });
            let (probe, other) = (probing("add", leaves), probing("twice", counting(above)));
            let left = move || (0..ROUNDS).for_each(|_| leave(add, to));
            let seen =
                |probe: &Registration| (count.load(Relaxed), probe.counts().hits, probe.counts().missed());
            left();
            assert_eq!(seen(&probe), (ROUNDS, ROUNDS, 0));
            std::thread::scope(|scope| {
                let (done, is_done) = mpsc::channel();
                let (end, may_end) = mpsc::channel::<()>();
                scope.spawn(move || {
                    left();
                    done.send(()).expect("a thread waits");
                    may_end.recv().expect_err("dropped");
                    assert_eq!(twice(1, 1), 2);
                });
                is_done.recv().expect("no panic");
                assert_eq!(seen(&probe), (2 * ROUNDS, 2 * ROUNDS, 0));
                // By their own account, both threads are in a handler for ever.
                probe.unregister().expect("unregistered");
                drop(end);
            });
            // A hit above shows that the old one is over.
            assert_eq!((twice(1, 1), other.counts().hits, above.load(Relaxed)), (2, 2, 2));
            assert_eq!((add(1, 1), count.load(Relaxed)), (4, 2 * ROUNDS));
            other.unregister().expect("unregistered");
        });
    });
}

/// Calls from a frame that has a large hole, in which values from earlier calls stay.
#[inline(never)]
fn with_a_hole<T>(then: impl FnOnce() -> T) -> T {
    let mut hole = std::mem::MaybeUninit::<[u8; 64 << 10]>::uninit();
    std::hint::black_box(&mut hole);
    let made = then();
    std::hint::black_box(&mut hole);
    made
}

/// What the handler left on the stack is in the hole of a frame that is in use again when its thread
/// unregisters. A handler that is not left is recognized as one, however deep it is.
#[test]
fn a_thread_that_left_a_handler_may_unregister_however_deep() {
    trapline_tests::alone("leaves::a_thread_that_left_a_handler_may_unregister_however_deep", || {
        every_way(|victim, probing| {
            let add = victim.function("add");
            let (to, inside) = (word(), word());
            let leaves = Consumer::entry(move |_: &mut Hit<'_>| {
                inside.fetch_add(u64::from(with_a_hole(trapline::inside::is_inside_handler)), Relaxed);
                // SAFETY: as above.
                unsafe { longjmp(to.load(Relaxed) as *mut Place, 1) }
            });
            let probe = probing("add", leaves);
            leave(add, to);
            leave(add, to);
            with_a_hole(|| probe.unregister()).expect("unregistered");
            assert_eq!(inside.load(Relaxed), 2, "the handler knew what it was");
        });
    });
}

extern "C" fn run(add: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: the function's address.
    let add: extern "C" fn(u64, u64) -> u64 = unsafe { std::mem::transmute(add) };
    add(1, 1);
    unreachable!("the handler ends the thread")
}

/// A probe with a handler that ends the thread, and the thread pointer of a thread that it has ended.
fn ended_in_a_handler(victim: &Victim) -> (Registration, u64) {
    let consumer = Consumer::entry(|_| {
        // SAFETY: the thread is made below for this, and holds nothing.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
        Verdict::Continue
    });
    let probe = register(&victim.path, victim.offset("add"), consumer).expect("registered");
    let (mut thread, add) = (0, victim.function("add") as *mut libc::c_void);
    // SAFETY: plain pthread calls; the thread is joined.
    unsafe {
        assert_eq!(libc::pthread_create(&raw mut thread, std::ptr::null(), run, add), 0);
        assert_eq!(libc::pthread_join(thread, std::ptr::null_mut()), 0);
    }
    (probe, thread)
}

#[test]
fn a_thread_that_ends_in_a_handler_delays_no_other() {
    let victim = Victim::load();
    let (probe, _) = ended_in_a_handler(&victim);
    probe.unregister().expect("unregistered");
}

/// The C library gives stack and control block of an ended thread to the next one. That is no hit, however
/// deep it is.
#[test]
fn a_thread_in_the_place_of_one_that_ended_in_a_handler_delays_no_other() {
    extern "C" fn blocked(pipe: *mut libc::c_void) -> *mut libc::c_void {
        let (mut room, mut byte) = ([0u8; 1 << 15], 0u8);
        // SAFETY: a write to each byte of the array, so whatever the last thread left there is overwritten.
        room.iter_mut().for_each(|byte| unsafe { std::ptr::from_mut(byte).write_volatile(1) });
        // SAFETY: a descriptor, and room for a byte.
        unsafe { libc::read(pipe as i32, (&raw mut byte).cast(), 1) };
        std::hint::black_box(&room);
        std::ptr::null_mut()
    }
    let victim = Victim::load();
    let mut pipe = [0; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    let mut met = false;
    for _ in 0..20 {
        let (probe, before) = ended_in_a_handler(&victim);
        let mut thread = 0;
        // SAFETY: a plain pthread call; the thread is joined below.
        let made = unsafe {
            libc::pthread_create(&raw mut thread, std::ptr::null(), blocked, pipe[0] as *mut libc::c_void)
        };
        assert_eq!(made, 0);
        met |= thread == before;
        probe.unregister().expect("unregistered");
        // SAFETY: the thread reads one byte, and ends.
        unsafe {
            assert_eq!(libc::write(pipe[1], c"x".as_ptr().cast(), 1), 1);
            assert_eq!(libc::pthread_join(thread, std::ptr::null_mut()), 0);
        }
    }
    if !met {
        println!("SKIP: this C library gave no thread the place of one that had ended");
    }
}
