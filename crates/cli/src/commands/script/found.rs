//! What attach points mean.
//!
//! In: a program. Out: for each block its attach points, one for each file that a pattern matches; for each of them the
//! functions or USDT probes, as the session's own search lists them; messages about those that mean nothing. Does not:
//! attach.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use trapline::Session;
use trapline::listing::Listed;
use trapline_script::{Probe, Program, Severity};

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
    /// Folders in which separate debug information is looked for first.
    folders: Vec<PathBuf>,
}

impl Found {
    /// Looks up all attach points of programs. `missing_probes` says whether each must mean something.
    pub(super) fn of(program: &Program, pid: Option<u32>, folders: &[PathBuf]) -> Result<Self, Stop> {
        let mut found = Self { folders: folders.to_vec(), ..Self::default() };
        for (nth, block) in program.blocks.iter().enumerate() {
            let mut probes = Vec::new();
            for (probe, alone) in block.probes.iter().flat_map(|probe| expanded(probe, pid)) {
                let probe = found.in_process(probe, pid);
                if let Some((text, _)) = spec(&probe) {
                    // One of several files need not have it.
                    let missing = if alone { program.config.missing_probes.as_str() } else { "ignore" };
                    if let Some(why) = found.look_up(text, &probe)? {
                        found.miss((program, nth), &probe, missing, &why)?;
                    }
                }
                probes.push(probe);
            }
            found.probes.push(probes);
        }
        Ok(found)
    }
    /// A probe of a process, where the name of its file means another file on the system than in the process: the
    /// process's. A file that is only in the process's own root is meant as well.
    fn in_process(&self, probe: Probe, pid: Option<u32>) -> Probe {
        let file = probe.file().unwrap_or_default();
        let inside = pid.filter(|_| file.starts_with('/') && !Path::new(file).exists());
        if let Some(path) =
            inside.map(|pid| format!("/proc/{pid}/root{file}")).filter(|path| Path::new(path).exists())
        {
            return probe.in_file(path);
        }
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
        Ok(builder.debug_folders(&self.folders).list(false).map(|listing| listing.listed))
    }
    /// Looks up what an attach point means; why it is nothing.
    fn look_up(&mut self, text: String, probe: &Probe) -> Result<Option<String>, Stop> {
        let listing = self.list(&text, probe)?;
        let why = match &listing {
            Ok(listed) if !listed.is_empty() => None,
            Ok(_) => Some("nothing matches".to_owned()),
            Err(error) => Some(error.to_string()),
        };
        self.listed.insert(text, listing.unwrap_or_default());
        Ok(why)
    }
    /// Says that an attach point means nothing, as the setting `missing_probes` has it.
    fn miss(
        &self,
        (program, block): (&Program, usize),
        probe: &Probe,
        missing_probes: &str,
        why: &str,
    ) -> Result<(), Stop> {
        let own = probe.to_string();
        let (sort, place) = own.split_once(':').unwrap_or((&own, ""));
        let message = format!("No matches for {sort} {place}.");
        match missing_probes {
            "error" => Err(Stop::Said(match self.special_miss(probe) {
                Some(message) => format!("ERROR: {message}\nHINT: {why}\n"),
                None => program.about_probe(block, probe, (Severity::Error, &message, why)),
            })),
            "warn" => {
                let message = message + " Skipping.";
                say(&program.about_probe(block, probe, (Severity::Warning, &message, why)));
                Ok(())
            }
            _ => Ok(()),
        }
    }
    /// What bpftrace says of an address that is in no function, and of an offset behind the end of one.
    fn special_miss(&self, probe: &Probe) -> Option<String> {
        let (file, function) = match probe {
            Probe::Uprobe(file, function) | Probe::Uretprobe(file, function) => (file, function),
            _ => return None,
        };
        let (text, _) = spec(probe)?;
        if let Some(address) = text.rsplit(':').next().filter(|place| place.starts_with("0x")) {
            return Some(format!("Could not resolve address: {file}:{address}"));
        }
        let (name, _) = function.rsplit_once('+')?;
        let whole = Probe::Uprobe(file.clone(), name.to_owned());
        let size = self.list(&spec(&whole)?.0, &whole).ok()?.ok()?.first()?.size;
        Some(format!("Offset outside the function bounds ('{name}' size is {size})"))
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
