//! A program that watches its own calls of `malloc`: which sizes are requested, and how long the C library
//! takes to answer.
//!
//! ```text
//! cargo run --release -p trapline --example self_trace
//! ```

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use trapline::inside::{Consumer, Error, Gpr, Verdict, register};

static BYTES: AtomicU64 = AtomicU64::new(0);
static LARGEST: AtomicU64 = AtomicU64::new(0);

fn main() -> Result<(), Error> {
    let (libc, offset) = trapline::inside::find("libc", "malloc")?;
    // A handler runs in the thread that hits, as a signal handler does, so it works with atomics.
    let probe = register(
        libc,
        offset,
        Consumer::entry(|hit| {
            let size = hit.regs().get(Gpr::Rdi);
            BYTES.fetch_add(size, Relaxed);
            LARGEST.fetch_max(size, Relaxed);
            Verdict::Continue
        }),
    )?;

    let words: Vec<String> = (0..1000).map(|n| "x".repeat(n)).collect();

    println!(
        "{} calls, {} bytes, {} at most",
        probe.counts().hits,
        BYTES.load(Relaxed),
        LARGEST.load(Relaxed)
    );
    drop(words);
    probe.unregister() // no handler of it runs any more
}
