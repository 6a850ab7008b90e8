//! A process that probes itself with an empty handler: the victim's side.
#![allow(unsafe_code, reason = "an empty handler promises to use general registers only")]

use std::time::Instant;

use anyhow::{Result, ensure};
use trapline::inside::{Consumer, Registration, Request, Verdict, register_all, unregister_all};

use crate::kernel::sites;

/// The rows' names, and what the victim is asked for.
pub(crate) const WAYS: [(&str, &str); 3] =
    [("inside", "general"), ("inside-state", "state"), ("inside-trap", "trap")];

/// Probes a case's first functions. Milliseconds.
pub(crate) fn probe(probes: &mut Vec<Registration>, case: &str, limit: usize, how: &str) -> Result<f64> {
    let (path, offsets) = sites(case, limit)?;
    let request = |offset| {
        let consumer = Consumer::entry(|_| Verdict::Continue);
        let consumer = match how {
            "state" => consumer,
            // SAFETY: an empty closure uses no vector register.
            _ => unsafe { consumer.general_regs_only() },
        };
        let request = Request::new(&path, offset, consumer);
        if how == "trap" { request.by_trap() } else { request }
    };
    let requests: Vec<Request> = offsets.into_iter().map(request).collect();
    let begun = Instant::now();
    let made = register_all(requests)?;
    let took = begun.elapsed();
    ensure!(made.iter().all(|one| one.sites().len() == 1), "a site is not patched");
    probes.extend(made);
    Ok(took.as_secs_f64() * 1e3)
}

/// Ends all of that. Milliseconds.
pub(crate) fn unprobe(probes: &mut Vec<Registration>) -> Result<f64> {
    let begun = Instant::now();
    unregister_all(probes.drain(..))?;
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}
