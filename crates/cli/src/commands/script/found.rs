//! What attach points mean.
//!
//! In: a program. Out: for each block its attach points, one for each file that a pattern matches; for each of them the
//! functions or USDT probes, as the session's own search lists them; messages about those that mean nothing. Does not:
//! attach.

use std::collections::HashMap;

use trapline::Session;
use trapline::listing::Listed;
use trapline_script::{Probe, Program};

use super::files::{files, is_pattern, named};
use super::places::{real, spec};
use super::stop::{Stop, said, say};

/// What attach points mean.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// By block.
    probes: Vec<Vec<Probe>>,
    /// By the probe of the session.
    listed: HashMap<String, Vec<Listed>>,
}

impl Found {
    /// Looks up all attach points of programs. `missing_probes` says whether each must mean something.
    pub(super) fn of(program: &Program, pid: Option<u32>) -> Result<Self, Stop> {
        let mut found = Self::default();
        for block in &program.blocks {
            let mut probes = Vec::new();
            for (probe, alone) in block.probes.iter().flat_map(|probe| expanded(probe, pid)) {
                let probe = found.in_process(probe, pid);
                if let Some((text, _)) = spec(&probe) {
                    // One of several files need not have it.
                    let missing = if alone { program.config.missing_probes.as_str() } else { "ignore" };
                    found.look_up(text, &probe, missing)?;
                }
                probes.push(probe);
            }
            found.probes.push(probes);
        }
        Ok(found)
    }
    /// A probe of a process, where the name of its file means another file on the system than in the process: the
    /// process's.
    fn in_process(&self, probe: Probe, pid: Option<u32>) -> Probe {
        let file = probe.file().unwrap_or_default();
        let own = pid.map_or_else(Vec::new, |pid| named(file, pid));
        let (Some(first), Some((text, _))) = (own.first(), spec(&probe)) else { return probe };
        let is_own = |one: &Listed| own.iter().any(|path| real(path) == real(&one.file));
        match self.list(&text, &probe) {
            Ok(Ok(listed)) if listed.iter().any(is_own) => probe,
            _ => probe.in_file(first.clone()),
        }
    }
    /// What a text means, from before if it was asked.
    fn list(&self, text: &str, probe: &Probe) -> Result<Result<Vec<Listed>, trapline::Error>, Stop> {
        if let Some(listed) = self.listed.get(text) {
            return Ok(Ok(listed.clone()));
        }
        let builder = Session::builder().probe(text).map_err(|error| said(format!("{probe}: {error}")))?;
        Ok(builder.list(false).map(|listing| listing.listed))
    }
    fn look_up(&mut self, text: String, probe: &Probe, missing_probes: &str) -> Result<(), Stop> {
        let listing = self.list(&text, probe)?;
        let why = match &listing {
            Ok(listed) if !listed.is_empty() => None,
            Ok(_) => Some("nothing matches".to_owned()),
            Err(error) => Some(error.to_string()),
        };
        match (why, missing_probes) {
            (Some(reason), "error") => return Err(said(format!("No matches for {probe}: {reason}"))),
            (Some(reason), "warn") => say(&format!("WARNING: No matches for {probe}: {reason}\n")),
            _ => {}
        }
        self.listed.insert(text, listing.unwrap_or_default());
        Ok(())
    }
    /// A block's attach points.
    pub(super) fn probes(&self, block: usize) -> &[Probe] {
        self.probes.get(block).map_or(&[], Vec::as_slice)
    }
    /// What an attach point means.
    pub(super) fn listed(&self, text: &str) -> &[Listed] {
        self.listed.get(text).map_or(&[], Vec::as_slice)
    }
}

/// The attach points that one means: one for each file that its pattern matches; and whether it is the only one.
fn expanded(probe: &Probe, pid: Option<u32>) -> Vec<(Probe, bool)> {
    let Some(file) = probe.file().filter(|file| file.is_empty() || is_pattern(file)) else {
        return vec![(probe.clone(), true)];
    };
    let all: Vec<(Probe, bool)> =
        files(file, pid).into_iter().map(|file| (probe.in_file(file), false)).collect();
    if all.is_empty() { vec![(probe.clone(), true)] } else { all }
}
