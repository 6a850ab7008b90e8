//! Turns functions and a picture of the address space into patches and the code they lead to, or refusals.
//! Internal to Trapline.
//!
//! In: an [`Image`], a [`CodeMap`] of it, what the process allows ([`ProcessTraits`]), what its address space
//! looks like ([`AddressSpace`]), where the shared data's parts lie ([`DataLayout`]), and the requests
//! ([`ActionRequest`]). Out: a [`ModulePlan`] with every byte to be written, and a [`Refusal`] for each
//! request that got no patch.
//!
//! Invariants: PLAN-1 a window begins and ends at instruction boundaries, no known branch leads inside it,
//! and nothing that returns stands before its last instruction; PLAN-2 every instruction boundary inside a
//! patched window holds a trapping byte and has a guard entry; PLAN-3 nothing is planned into memory that the
//! picture shows occupied, nor into another function's body; PLAN-4 what cannot be proven safe is refused by
//! name (SAFE-5).
//!
//! Does not: touch a process, order the writes, or read any file.
#![forbid(unsafe_code)]

pub mod aarch64;
pub mod bounds;
pub mod calls;
pub mod charge;
pub mod codemap;
pub mod filter;
mod fits;
mod held_calls;
pub mod hit;
pub mod input;
pub mod layout;
pub mod machine;
mod marked;
pub mod module;
pub mod plan;
pub mod preview;
mod programs;
pub mod refusal;
pub mod request;
mod sections;
pub mod space;
mod system_calls;
mod unwind;
pub mod x86_64;

pub use bounds::bounds;
pub use calls::{CallFunctions, CallInput, Callee, ExtendedState, InlinedPath};
pub use charge::{Charged, MemoryLimits, TooLittle, charge};
pub use codemap::CodeMap;
pub use fits::fits;
pub use input::ModuleInput;
pub use layout::{DataAt, DataCounts, DataLayout};
pub use machine::{Buckets, KernelUprobes, ProcessTraits, Rseq as RseqTraits, Stacks, ThreadId, TrapsPolicy};
pub use module::{plan_module, trampolines_for};
pub use plan::{
    Call, Chunk, Delivery, Guard, KernelSite, ModulePlan, Original, Patch, PatchRole, Refused, Region, Stats,
    Tactic,
};
pub use preview::preview;
pub use refusal::{NoTrampoline, PlanError, Refusal};
pub use request::{
    Action, ActionRequest, Floats, Hold, KeptPointer, KeptText, LatencyInput, Operand, Read, Results, Scope,
    Unwind,
};
pub use space::{AddressSpace, CodeRegion};
pub use system_calls::{SystemCall, system_calls};
/// The file that a plan is for.
pub use trapline_image::Image;
/// Where a system call's number and arguments come from.
pub use trapline_insn::origin::Origin;
pub use unwind::TrampolineCode;
pub use x86_64::{find_code_region, room_for_calls};
