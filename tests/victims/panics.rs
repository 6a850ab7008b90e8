//! Panics that unwind through probed frames and are caught, with destructors on the way.
use std::io::BufRead as _;

struct Guard<'a>(&'a mut u64);
impl Drop for Guard<'_> {
    fn drop(&mut self) {
        *self.0 += 1;
    }
}
#[inline(never)]
fn panicker(depth: u64, dropped: &mut u64) -> u64 {
    let guard = Guard(dropped);
    if depth == 0 {
        std::panic::resume_unwind(Box::new("bottom"));
    }
    std::hint::black_box(panicker(depth - 1, guard.0)) + 1
}
#[inline(never)]
fn catcher(depth: u64) -> u64 {
    let mut dropped = 0;
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| panicker(depth, &mut dropped)));
    dropped + u64::from(caught.is_err())
}
#[inline(never)]
fn collector(n: u64) -> u64 {
    let words: Vec<String> = (0..n % 5).map(|i| format!("{i}{n}")).collect();
    words.join("-").len() as u64
}
fn main() {
    println!("ready");
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let Some(times) = line.strip_prefix("run ").and_then(|n| n.parse::<u64>().ok()) else { break };
        let (mut check, mut panickers) = (0, 0);
        for i in 0..times {
            check += catcher(i % 6) + collector(i);
            panickers += i % 6 + 1;
        }
        println!("panicker={panickers} catcher={times} collector={times} check={check}");
    }
}
