//! Trapline for C.
//!
//! In: what `include/trapline.h` declares; that file is made from this crate. Out: the same as from the
//! `trapline` crate: consumers registered in the caller's own process, counts and durations of other
//! processes. And what the command writes: calls with values, histograms, stacks, maps of scripts. Invariants:
//! CAP-1 no panic crosses the boundary. CAP-2 a structure that is handed in or filled states its own size, and
//! bytes that this version does not know must be zero. CAP-3 a call that fails writes no result, and gives the
//! reason in words. CAP-4 a run of the command writes to a pipe of its own, of which a program that it launches
//! gets nothing. Does not: decide anything.
#![deny(unsafe_code)]

mod command;
mod commands;
mod error;
mod functions;
mod inside;
mod pointers;
mod report;
mod session;
mod value;

pub use command::{Command, CommandOptions, TRAPLINE_COMMAND_LAUNCHES};
pub use commands::{
    trapline_command_end, trapline_command_next, trapline_command_ready, trapline_command_start,
    trapline_command_stop, trapline_value_double, trapline_value_field, trapline_value_item,
    trapline_value_kind, trapline_value_len, trapline_value_name, trapline_value_signed, trapline_value_text,
    trapline_value_truth, trapline_value_unsigned,
};
pub use error::Error;
pub use functions::{
    trapline_count, trapline_detach, trapline_error_text, trapline_last_errno, trapline_last_error,
    trapline_latency, trapline_poll, trapline_read, trapline_register, trapline_register_all,
    trapline_report_count, trapline_report_counts, trapline_report_free, trapline_report_notice,
    trapline_report_percentile, trapline_report_refusal, trapline_report_refusals, trapline_report_time,
    trapline_report_times, trapline_rescan, trapline_tally_of, trapline_unregister, trapline_unregister_all,
};
pub use inside::{
    Filter, Handler, Hit, Probe, Registration, Regs, TRAPLINE_PROBE_BY_TRAP,
    TRAPLINE_PROBE_GENERAL_REGS_ONLY, TRAPLINE_PROBE_MOVES_IP, TRAPLINE_PROBE_MOVES_SP,
    TRAPLINE_RETURNS_AUTO, TRAPLINE_RETURNS_EXITS, TRAPLINE_RETURNS_STACK, Tally, Verdict,
};
pub use report::{Count, Refusal, Report, Times};
pub use session::{
    Options, Session, TRAPLINE_OPTION_FAULTS_ARE_FATAL, TRAPLINE_OPTION_FOLLOW,
    TRAPLINE_OPTION_KERNEL_UPROBES, TRAPLINE_OPTION_OUTERMOST, TRAPLINE_OPTION_STRICT,
};
pub use value::{Kind, Value};
