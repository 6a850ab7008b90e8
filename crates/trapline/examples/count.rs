//! Counts calls of functions in a running program, until Enter.
//!
//! ```text
//! cargo run --release -p trapline --example count -- PID 'libc:malloc' 'uprobe:/usr/bin/x:main_*'
//! ```

use trapline::Session;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let pid = words.next().ok_or("usage: count PID PROBE...")?.parse()?;
    let mut builder = Session::builder().pid(pid);
    for probe in words {
        builder = builder.probe(&probe)?;
    }
    let session = builder.count()?;
    println!("counting");
    // A program that loads libraries meanwhile should call session.poll() a few times a second.
    std::io::stdin().read_line(&mut String::new())?;
    for process in session.detach().reports {
        for count in process.counts {
            println!("{:>10} {}", count.hits, count.site.label);
        }
    }
    Ok(())
}
