//! The process that benches measure from outside. It contains nothing of Trapline.
//!
//! In: lines (see `trapline_bench::victim`), or the arguments `sites CASE LIMIT`. Out: figures, or one offset a line.

fn main() -> anyhow::Result<()> {
    trapline_bench::victim::run(&std::env::args().skip(1).collect::<Vec<_>>())
}
