//! COST-3: `attach`: how long it takes to probe N functions, and to remove the probes, beside the kernel's
//! uprobe_multi.
//!
//! Ours is the attach itself as the session reports it: from known offsets until all sites are patched. The
//! kernel's is the bpf() call that makes the link, and the close that ends it. The victim's two threads run
//! the functions meanwhile.

use std::time::Instant;

use anyhow::{Result, ensure};

use crate::x86_64::hits::Effort;
use crate::x86_64::kernel::Kernel;
use crate::x86_64::ours::Ours;
use crate::x86_64::row::{AttachFigures, AttachRow, quartiles};
use crate::x86_64::victim::{Sites, Victim};
use trapline_bench::functions::MANY;

const SITES: [usize; 4] = [1, 100, 1000, 10_000];

/// Milliseconds of one attach and detach.
#[derive(Clone, Copy, Debug)]
struct Sample {
    attach: f64,
    detach: f64,
    stopped: Option<f64>,
}

/// Emits each row as soon as it is ready.
pub(crate) fn run(effort: Effort, mut emit: impl FnMut(&AttachRow) -> Result<()>) -> Result<()> {
    for sites in SITES {
        let (mut ours, mut kernel) = (Ok(Vec::new()), Ok(Vec::new()));
        for _ in 0..effort.rounds {
            // A fresh process each time, as a user would have it.
            let victim = Victim::start(true)?;
            push(&mut ours, ours_once(victim.pid(), sites));
            let victim = Victim::start(true)?;
            push(&mut kernel, kernel_once(victim.pid(), "walk", sites));
        }
        emit(&AttachRow::new("ours", sites, figures(ours)))?;
        emit(&AttachRow::new("kernel", sites, figures(kernel)))?;
    }
    let (mut inside, mut again, mut kernel) = (Ok(Vec::new()), Ok(Vec::new()), Ok(Vec::new()));
    for _ in 0..effort.rounds {
        let mut victim = Victim::inside()?;
        // The first time, the process reads its own file and creates code.
        push(&mut inside, inside_once(&mut victim));
        push(&mut again, inside_once(&mut victim));
        let victim = Victim::start(true)?;
        push(&mut kernel, kernel_once(victim.pid(), "many", MANY));
    }
    emit(&AttachRow::new("inside", MANY, figures(inside)))?;
    emit(&AttachRow::new("inside-again", MANY, figures(again)))?;
    emit(&AttachRow::new("kernel", MANY, figures(kernel)))
}

fn inside_once(victim: &mut Victim) -> Result<Sample> {
    let attach = victim.probe("many", MANY, "general")?;
    Ok(Sample { attach, detach: victim.unprobe()?, stopped: None })
}

fn push(samples: &mut Result<Vec<Sample>, String>, sample: Result<Sample>) {
    match (samples.as_mut(), sample) {
        (Ok(list), Ok(sample)) => list.push(sample),
        (Ok(_), Err(error)) => *samples = Err(format!("{error:#}")),
        (Err(_), _) => {}
    }
}

fn ours_once(pid: u32, sites: usize) -> Result<Sample> {
    let ours = Ours::count(pid, "walk", sites)?;
    ensure!(ours.sites() == sites as u64, "{} of {sites} sites were probed", ours.sites());
    let end = ours.finish()?;
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    Ok(Sample { attach: ms(end.attach), detach: ms(end.detach), stopped: Some(ms(end.stopped)) })
}

fn kernel_once(pid: u32, case: &str, sites: usize) -> Result<Sample> {
    let sites = Sites::of(case, sites)?;
    let begun = Instant::now();
    let link = Kernel::count(pid, &sites)?;
    let attach = begun.elapsed().as_secs_f64() * 1e3;
    let begun = Instant::now();
    drop(link);
    Ok(Sample { attach, detach: begun.elapsed().as_secs_f64() * 1e3, stopped: None })
}

fn figures(samples: Result<Vec<Sample>, String>) -> AttachFigures {
    let samples = match samples {
        Ok(samples) => samples,
        Err(skipped) => return AttachFigures::Skipped { skipped },
    };
    let of = |get: fn(&Sample) -> f64| quartiles(&samples.iter().map(get).collect::<Vec<_>>());
    let (attach_low_ms, attach_ms, attach_high_ms) = of(|sample| sample.attach);
    let (detach_low_ms, detach_ms, detach_high_ms) = of(|sample| sample.detach);
    let stopped: Vec<f64> = samples.iter().filter_map(|sample| sample.stopped).collect();
    AttachFigures::Times {
        attach_ms,
        attach_low_ms,
        attach_high_ms,
        detach_ms,
        detach_low_ms,
        detach_high_ms,
        stopped_ms: (!stopped.is_empty()).then(|| quartiles(&stopped).1),
        rounds: samples.len(),
    }
}
