//! A64: decoding compared with a second decoder; simulation and relocation compared with known values. Where
//! this runs on aarch64 (emulated or not), both are also compared with the processor's own execution.
//!
//! `TRAPLINE_A64_STRIDE=1` checks every one of the 2^32 words; `TRAPLINE_A64_RUNS=1000000` runs a million
//! states of each class.

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

/// Random numbers by xorshift64*, so that a run is repeatable.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
    #[cfg(target_arch = "aarch64")]
    fn below(&mut self, bound: u64) -> u64 {
        ((self.next() >> 32) * bound) >> 32
    }
}

/// The number in the environment variable `name`, or `default`.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}
