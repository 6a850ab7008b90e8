//! What runs in traced threads: the trap handler, regions, the registry, return instances. Internal to Trapline.
//!
//! In: a hit (a probe, or the address of a trap) and the machine's registers. Out: consumers that were called, and where the
//! thread goes on. Invariants: RUN-1 what runs at a hit neither allocates, nor locks, nor panics, nor calls libc; RUN-2 it stores
//! to no line that another CPU writes (COST-2); RUN-3 what it reads may change or go away meanwhile, and is validated or pinned.
//!
//! Writers (registration, mapping) are called one at a time; the lock is their caller's, and no hit ever waits for it.
//! Does not: write code, read files, know names.
#![no_std]
#![allow(
    unsafe_code,
    reason = "raw memory that others change is what this crate is for; each block says why it is sound"
)]

extern crate alloc;
#[cfg(any(test, loom))]
extern crate std;

pub mod calls;
pub mod consumer;
pub mod dispatch;
pub mod engine;
pub mod epoch;
#[cfg(all(test, loom))]
mod models;
pub mod pool;
pub mod probe;
pub mod regions;
pub mod registry;
mod sync;
mod table;
pub mod x86_64;
