//! A process that probes itself with an empty handler: the victim's side.
#![allow(unsafe_code, reason = "an empty handler promises to use general registers only")]

use std::time::Instant;

use anyhow::{Result, ensure};
use trapline::Returns;
use trapline::inside::{Consumer, Functions, Registration, Request, raw, register_all, unregister_all};

use crate::x86_64::victim::Sites;

/// Names of rows, and what the victim is asked for: handlers at entries, and handlers of returns. A session
/// has both.
pub(crate) const ENTRIES: &[(&str, &str)] =
    &[("inside", "general"), ("inside-state", "state"), ("inside-trap", "trap")];
pub(crate) const RETURNS: &[(&str, &str)] = &[
    ("inside", "return"),
    ("inside-state", "return-state"),
    ("inside-session", "session"),
    ("inside-session-state", "session-state"),
    ("inside-slot", "return-slot"),
];

/// The empty handler.
unsafe extern "C" fn nothing(_: *mut std::ffi::c_void, _: *mut raw::Hit) -> raw::Verdict {
    raw::Verdict::CONTINUE
}

/// Probes a case's first functions. Returns milliseconds.
pub(crate) fn probe(probes: &mut Vec<Registration>, case: &str, limit: usize, how: &str) -> Result<f64> {
    let Sites { path, offsets } = Sites::own(case, limit)?;
    let request = |offset| {
        let (entry, returns) = match how.split('-').next() {
            Some("return") => (None, Some(nothing as raw::Handler)),
            Some("session") => (Some(nothing as raw::Handler), Some(nothing as raw::Handler)),
            _ => (Some(nothing as raw::Handler), None),
        };
        let functions = Functions { entry, returns, filter: None, data: std::ptr::null_mut() };
        // SAFETY: `nothing` touches neither its data nor its hit.
        let consumer = unsafe { Consumer::functions(functions) };
        let consumer = match how.ends_with("state") {
            true => consumer,
            // SAFETY: as above; `nothing` uses no vector register.
            false => unsafe { consumer.general_regs_only() },
        };
        let consumer = match how.contains("slot") {
            true => consumer.returns_by(Returns::Stack),
            false => consumer,
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

/// Removes all these probes. Returns milliseconds.
pub(crate) fn unprobe(probes: &mut Vec<Registration>) -> Result<f64> {
    let begun = Instant::now();
    unregister_all(probes.drain(..))?;
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}
