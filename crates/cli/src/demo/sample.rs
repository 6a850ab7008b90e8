//! The demo's workload, a program of its own that `build.rs` compiles: two threads call functions of different speed;
//! with an argument, none do. Each byte of standard input asks for a round of calls of `hot`, and is answered by a line,
//! nanoseconds per call. It ends when the input does.
//!
//! It uses the C library alone, so that it is small and holds few functions beside those that it shows.
#![no_std]
#![no_main]

use core::ffi::{c_char, c_int, c_void};
use core::hint::black_box;
use core::ptr::{null, null_mut};

#[repr(C)]
struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

type Routine = extern "C" fn(*mut c_void) -> *mut c_void;

#[link(name = "c")]
unsafe extern "C" {
    fn pthread_create(
        thread: *mut usize,
        attributes: *const c_void,
        run: Routine,
        with: *mut c_void,
    ) -> c_int;
    fn write(file: c_int, bytes: *const u8, many: usize) -> isize;
    fn read(file: c_int, bytes: *mut u8, most: usize) -> isize;
    fn nanosleep(pause: *const Timespec, left: *mut Timespec) -> c_int;
    fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int;
}

const CLOCK_MONOTONIC: c_int = 1;

/// Some work that a compiler does not shorten.
#[inline(always)]
fn mixed(mut sum: u64, steps: u32) -> u64 {
    for _ in 0..steps {
        sum = sum.wrapping_mul(31).wrapping_add(sum >> 7);
    }
    sum
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn parse(x: u64) -> u64 {
    mixed(x, 20)
}

/// Usually short, sometimes eight times as long, rarely much longer.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lookup(x: u64) -> u64 {
    let steps = match x {
        _ if x % 64 == 0 => 20_000,
        _ if x % 8 == 0 => 800,
        _ => 100,
    };
    mixed(x, steps)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn commit() {
    let pause = Timespec { seconds: 0, nanoseconds: 2_000_000 };
    // SAFETY: it reads one time, and may write to no place.
    unsafe { nanosleep(&raw const pause, null_mut()) };
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn request(n: u64) -> u64 {
    let x = black_box(parse as extern "C" fn(u64) -> u64)(n);
    let sum = x.wrapping_add(black_box(lookup as extern "C" fn(u64) -> u64)(n));
    if n % 100 == 0 {
        commit();
    }
    sum
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn hot(x: u64) -> u64 {
    x.wrapping_mul(3).wrapping_add(1)
}

extern "C" fn serve(from: *mut c_void) -> *mut c_void {
    let mut n = from.addr() as u64;
    loop {
        black_box(request(n));
        n += 1;
    }
}

/// Nanoseconds of a clock that never goes back.
fn now() -> f64 {
    let mut time = Timespec { seconds: 0, nanoseconds: 0 };
    // SAFETY: it writes one time.
    unsafe { clock_gettime(CLOCK_MONOTONIC, &raw mut time) };
    time.seconds as f64 * 1e9 + time.nanoseconds as f64
}

/// One round of calls: about 10 ms, whatever a call costs, since the clock is looked at every few of them.
fn measured() -> f64 {
    const FEW: u64 = 500;
    let (start, mut calls) = (now(), 0_u64);
    loop {
        for i in 0..FEW {
            black_box(hot(black_box(i)));
        }
        calls += FEW;
        let took = now() - start;
        if took >= 1e7 {
            return took / calls as f64;
        }
    }
}

/// Writes a line to standard output.
fn print(line: &[u8]) {
    // SAFETY: so many bytes are there.
    unsafe { write(1, line.as_ptr(), line.len()) };
}

/// A number as a line, with three places behind the point and zeros before it. The C library's own `printf` would be half of
/// the program.
fn line(number: f64) -> [u8; 24] {
    let (mut left, mut text) = ((number * 1e3) as u64, [0; 24]);
    for (place, byte) in text.iter_mut().rev().enumerate() {
        *byte = match place {
            0 => b'\n',
            4 => b'.',
            _ => b'0' + (left % 10) as u8,
        };
        if *byte >= b'0' {
            left /= 10;
        }
    }
    text
}

#[unsafe(no_mangle)]
extern "C" fn main(words: c_int, _: *const *const c_char) -> c_int {
    print(b"ready\n");
    if words == 1 {
        for first in [1_usize, 7] {
            let mut thread = 0;
            // SAFETY: the thread's number fits; what it is given is a number, not a place.
            unsafe { pthread_create(&raw mut thread, null(), serve, null_mut::<c_void>().with_addr(first)) };
        }
    }
    let mut byte = 0;
    // SAFETY: one byte has room.
    while unsafe { read(0, &raw mut byte, 1) } > 0 {
        print(&line(measured()));
    }
    0
}

#[panic_handler]
fn panicked(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
