//! The words and bytes that all crates agree on.
//!
//! Input: nothing. Output: address types, the layout of the memory that tracer and target share, bucket
//! arithmetic. Invariants: REC-1 every word shared between processes is declared in this crate, once, with
//! its offset. REC-2 readers reach shared words only through the accessors of [`view::View`], which check
//! bounds and never tear a word.
//! Does not: map memory, call the system, depend on an instruction set (but for one offset,
//! [`trampolines::RETURN`]).
#![cfg_attr(not(loom), no_std)]
#![forbid(unsafe_code)]

#[cfg(target_arch = "aarch64")]
mod aarch64;
pub mod addr;
pub mod calls;
pub mod control;
pub mod counters;
pub mod hist;
pub mod journal;
pub mod key_texts;
pub mod latency;
pub mod maps;
pub mod names;
pub mod pages;
pub mod ring;
pub mod said;
pub mod sharers;
pub mod stack;
pub mod sync;
pub mod tally;
pub mod threads;
pub mod trampolines;
pub mod view;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as native;
#[cfg(target_arch = "x86_64")]
use x86_64 as native;

pub use addr::{FileId, FileOffset, RemoteAddr, Svma};
