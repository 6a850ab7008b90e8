//! A64: decoding against a second decoder, simulation and relocation by value, and, where this runs on
//! aarch64 (emulated or not), both against the processor's own execution.
//!
//! `TRAPLINE_A64_STRIDE=1` checks all of the 2^32 words; `TRAPLINE_A64_RUNS=1000000` runs a million states of
//! each class.

mod classes;
mod exclusive;
mod live;
#[cfg(not(target_arch = "aarch64"))]
mod llvm;
mod relocate;
mod simulate;
mod store;
mod words;

#[cfg(target_arch = "aarch64")]
mod machine;
#[cfg(target_arch = "aarch64")]
mod native;
#[cfg(target_arch = "aarch64")]
mod store_native;

/// xorshift64*, since a run must be repeatable.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}

/// The number in the environment variable `name`, or `default`.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}
