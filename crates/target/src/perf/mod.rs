//! perf events as values: what the kernel counts for us.

pub mod breakpoint;
