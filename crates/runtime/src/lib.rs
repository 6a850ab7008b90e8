//! The code that runs in traced threads: trap handler, mapping table, registry of sites, return instances.
//! Internal to Trapline.
//!
//! In: a hit (a probe, or the address of a trap) and the machine's registers. Out: the consumers have been
//! called, and where the thread goes on. Invariants: RUN-1 code that runs at a hit does not allocate, lock,
//! panic or call libc. RUN-2 such code does not store to a line that another CPU writes (COST-2). RUN-3 what
//! it reads during a hit may change or be freed meanwhile, so it is validated or pinned.
//!
//! Writers (registration, mapping) run one at a time. Their caller holds the lock, and no hit ever waits for
//! it.
//! Does not: write code, read files, resolve names.
#![no_std]
#![allow(
    unsafe_code,
    reason = "raw memory that others change is what this crate is for; each block says why it is sound"
)]

extern crate alloc;
#[cfg(any(test, loom))]
extern crate std;

pub mod consumer;
#[cfg(not(loom))]
pub mod dispatch;
pub mod engine;
pub mod epoch;
mod file_site;
pub mod instances;
pub mod kernel;
#[cfg(all(test, loom))]
mod models;
pub mod pool;
pub mod probe;
pub mod regions;
pub mod registry;
mod sync;
mod table;
pub mod trampolines;
pub mod trap;

#[cfg(target_arch = "aarch64")]
pub mod aarch64;
#[cfg(target_arch = "x86_64")]
pub mod x86_64;
/// The module of the processor that this is built for; both modules have the same files.
#[cfg(target_arch = "aarch64")]
pub use aarch64 as native;
#[cfg(target_arch = "x86_64")]
pub use x86_64 as native;
