//! Generated code, run in this process, where it can be observed.
//!
//! Each module tests one promise: state is preserved (SAFE-2), counts are exact (LOSS-1), durations are
//! right, guard traps are served. `rdpid` emulates an instruction that the CPU may lack. `write_set` runs
//! hits in an emulator that shows every store (COST-2).
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod aborted;
mod apart;
mod arena;
mod call;
mod compact;
mod counts;
mod delivered;
mod durations;
mod extended;
mod fields;
mod filters;
mod gathered;
mod goroutines;
mod held;
mod keyed;
mod known_pages;
mod load;
mod locked;
#[path = "../common/map_programs.rs"]
mod map_programs;
mod marks;
mod names;
mod owned;
mod paired;
mod passing;
mod ran;
mod rdpid;
mod read_tallies;
mod records;
mod return_trampolines;
mod shared_records;
mod stacks;
mod stage_counts;
mod stages;
mod state;
mod summed;
mod tallies;
mod text_tallies;
mod texts;
mod threads;
mod took;
mod traps;
mod write_set;
