//! Times calls of functions in a running program, until Enter.
//!
//! ```text
//! cargo run --release -p trapline --example latency -- PID 'libc:malloc'
//! ```

use trapline::Session;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let pid = words.next().ok_or("usage: latency PID PROBE...")?.parse()?;
    let mut builder = Session::builder().pid(pid);
    for probe in words {
        builder = builder.probe(&probe)?;
    }
    let session = builder.latency()?;
    println!("timing");
    std::io::stdin().read_line(&mut String::new())?;
    for process in session.detach().reports {
        for times in process.times {
            let label = times.site.as_ref().map_or("", |site| &site.label);
            let p50 = times.histogram.percentile(0.5);
            println!("{:>10} {label}: {} to {} ns, p50 {p50}", times.calls, times.min_ns, times.max_ns);
        }
    }
    Ok(())
}
