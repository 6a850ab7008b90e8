//! arm64 has no figures of stubs alone; `trapline-bench` measures whole probes there.

pub(crate) fn measure(_: usize) {
    println!("stub_cost measures the stubs of x86-64; for arm64 there is trapline-bench");
}
