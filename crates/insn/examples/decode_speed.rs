//! Speed of decoding: `cargo run --release -p trapline-insn --example decode_speed [ELF file]`.

use object::{Object, ObjectSection};
use std::time::Instant;
use trapline_insn::x86_64::{Insn, relocate, sweep, sweep_into};

fn main() {
    let path = std::env::args().nth(1).unwrap_or_else(|| "/lib/x86_64-linux-gnu/libc.so.6".into());
    let data = std::fs::read(&path).expect("readable file");
    let file = object::File::parse(&*data).expect("ELF file");
    let text = file.section_by_name(".text").expect(".text");
    let (start, bytes) = (text.address(), text.data().expect("bytes of .text"));

    let mut best = f64::MAX;
    let (mut count, mut sum) = (0, 0_u64);
    for _ in 0..10 {
        let begin = Instant::now();
        count = sweep(bytes, start).map(|insn| sum = sum.wrapping_add(insn.end())).count();
        best = best.min(begin.elapsed().as_secs_f64());
    }
    println!(
        "sweep: {:.0} MB/s, {:.1} ns per instruction",
        bytes.len() as f64 / best / 1e6,
        best * 1e9 / count as f64
    );

    // By parts as long as functions, which stay in the caches.
    let (mut best, mut count) = (f64::MAX, 0);
    for _ in 0..10 {
        let (mut insns, begin) = (Vec::new(), Instant::now());
        count = 0;
        for (part, addr) in bytes.chunks(2000).zip((start..).step_by(2000)) {
            insns.clear();
            sweep_into(part, addr, &mut insns);
            count += insns.len();
        }
        best = best.min(begin.elapsed().as_secs_f64());
    }
    let (speed, each) = (bytes.len() as f64 / best / 1e6, best * 1e9 / count as f64);
    println!("by tables: {speed:.0} MB/s, {each:.1} ns per instruction");

    let starts: Vec<usize> =
        (0..bytes.len() - 64).step_by((bytes.len() / 10_000).next_multiple_of(16)).collect();
    let mut moved = 0;
    let (mut decode, mut both) = (f64::MAX, f64::MAX);
    for _ in 0..10 {
        let begin = Instant::now();
        for &at in &starts {
            sum = sum.wrapping_add(window(bytes, start, at).1 as u64);
        }
        decode = decode.min(begin.elapsed().as_secs_f64());
        let begin = Instant::now();
        moved = starts
            .iter()
            .filter(|&&at| {
                let (insns, len) = window(bytes, start, at);
                relocate(&insns, &bytes[at..at + len], start + (64 << 20)).is_ok()
            })
            .count();
        both = both.min(begin.elapsed().as_secs_f64());
    }
    let windows = starts.len();
    println!(
        "{windows} windows: decoded in {:.2} ms, decoded and displaced in {:.2} ms ({moved} moved; {sum:x})",
        decode * 1e3,
        both * 1e3
    );
}

/// The instructions of the window at offset `at`, and the window's length in bytes.
fn window(bytes: &[u8], start: u64, at: usize) -> (Vec<Insn>, usize) {
    let (mut insns, mut len) = (Vec::with_capacity(5), 0);
    for insn in sweep(&bytes[at..(at + 32).min(bytes.len())], start + at as u64) {
        len += usize::from(insn.len);
        insns.push(insn);
        if len >= 5 {
            break;
        }
    }
    (insns, len)
}
