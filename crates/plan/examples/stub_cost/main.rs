//! What generated code costs: a function is called in a loop, bare and with each stub, in interleaved rounds.
//!
//! `cargo run --release -p trapline-plan --example stub_cost [ROUNDS]`. Every row is the median over eight
//! placements of the same code (branch predictors and decoded caches make one placement a lottery of ±1 ns).
//! Each placement is the median of its rounds. The lowest and highest placement follow. `private` is the
//! control: one plain increment of a word that no other code uses, reached by the same jump.

#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
mod native;

fn main() {
    native::measure(std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(25));
}
