//! A live process seen from outside: threads, maps, memory, remote calls, stops. The only user of ptrace and
//! perf_event_open.
//!
//! Input: a pid and what to do with it. Output: facts from /proc, bytes, a shared mapping, counts of the
//! kernel's own probes. Invariants:
//! - TGT-1 at every instant of a remote call the tracer may die, and the thread restores itself;
//! - TGT-2 no stop is consumed by waiting, so a signal is never lost with the tracer;
//! - TGT-3 a call that the tracer interrupts is restarted, and one that had a finite timeout is counted;
//! - TGT-4 no byte that the program may read lies under a frame while a thread can run;
//! - TGT-14 a process lives while any thread of it does.
//!
//! Does not: decide what is patched, or know what a patch is.
#![deny(unsafe_code)]
#[cfg(target_arch = "aarch64")]
mod aarch64;
mod ambush;
mod among;
mod arrivals;
mod auxv;
mod batch;
mod bell;
mod call_rights;
mod calls;
mod clock;
mod entry_trap;
mod error;
mod features;
mod files;
pub mod filter;
mod find;
mod follow;
mod handler;
mod host;
mod hurry;
mod interrupt;
pub mod kernel;
mod launch;
mod living;
mod maps;
mod memory_group;
mod opener;
mod own;
mod park;
pub mod perf;
mod permission;
pub mod permitted;
mod process;
pub mod procfs;
mod remote_options;
mod renames;
mod rendezvous;
mod repair;
mod room;
mod seizing;
mod session;
mod shared;
mod shield;
mod spare;
mod status;
mod stuck;
mod sys;
mod taken;
mod waiting;
mod watch;
#[cfg(target_arch = "x86_64")]
mod x86_64;

/// The twin module of the processor that this runs on.
#[cfg(target_arch = "aarch64")]
use aarch64 as native;
use native::{frame, gadget, numbers, regs};
#[cfg(target_arch = "x86_64")]
use x86_64 as native;

#[cfg(target_arch = "aarch64")]
pub use aarch64::{Spare, is_emulated};
pub use among::{Among, AmongError};
pub use arrivals::{Arrival, Arrivals};
pub use batch::{Batch, BatchOptions, BatchReport, Event, RemoteCaller, Served, StopReport, StoppedAll};
pub use bell::Bell;
pub use clock::{TickClock, time_of_day};
pub use error::{TargetError, remedy};
pub use features::CpuFeatures;
pub use find::{busiest, by_mapped_file, by_name, users_of};
pub use follow::{Followed, Follower};
pub use handler::Handler;
pub use host::FollowerThread;
pub use hurry::Hurry;
pub use interrupt::{Interrupt, Interrupts};
pub use launch::Launched;
pub use living::{comm, cpu_ticks, folder as folder_of, runs, start_time};
pub use maps::{FileId, FileOf, Mapping, Perms};
pub use memory_group::{MemoryGroup, MemoryLeft, machine_has};
pub use own::OwnCaller;
pub use park::Parked;
pub use permission::why_not_held;
pub use process::Process;
pub use regs::Regs;
pub use remote_options::{RemoteOptions, RemoteReport, Rseq};
pub use renames::{Changed, NameWatcher};
pub use shared::SharedMap;
pub use shield::{Forks, LostTrap, Shield};
pub use status::{InCall, Seccomp, ThreadStatus};
pub use sys::fd::withhold;
pub use watch::{Family, MapWatcher, NewMapping};
#[cfg(target_arch = "x86_64")]
pub use x86_64::ExtendedState;
