//! The process that benches measure from outside. It contains nothing of Trapline.
//!
//! In: lines (see `trapline_bench::victim`), or the arguments `sites CASE LIMIT`. Out: figures, or one offset a line.

#[cfg(target_arch = "x86_64")]
fn main() -> anyhow::Result<()> {
    use trapline_bench::victim;

    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [name, case, limit] = &words[..]
        && name == "sites"
    {
        victim::offsets(case, limit.parse()?)?.iter().for_each(|offset| println!("{offset}"));
        return Ok(());
    }
    victim::serve(|_| None)
}

#[cfg(not(target_arch = "x86_64"))]
fn main() {}
