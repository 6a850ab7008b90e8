//! What attach points mean.
//!
//! In: a program. Out: for each attach point the functions or USDT probes, as the session's own search lists them; messages
//! about those that mean nothing. Does not: attach.

use std::collections::HashMap;

use trapline::Session;
use trapline::listing::Listed;
use trapline_script::{Probe, Program};

use super::places::spec;
use super::stop::{Stop, said, say};

/// What each attach point means, by its probe of the session.
#[derive(Debug, Default)]
pub(super) struct Found(HashMap<String, Vec<Listed>>);

impl Found {
    /// Looks up all attach points of programs. `missing_probes` says whether each must mean something.
    pub(super) fn of(program: &Program) -> Result<Self, Stop> {
        let mut found = Self::default();
        for probe in program.blocks.iter().flat_map(|block| &block.probes) {
            if let Some((text, _)) = spec(probe) {
                found.look_up(text, probe, &program.config.missing_probes)?;
            }
        }
        Ok(found)
    }
    fn look_up(&mut self, text: String, probe: &Probe, missing_probes: &str) -> Result<(), Stop> {
        let known = self.0.get(&text).map(|listed| Ok(listed.clone()));
        let listing = match known {
            Some(known) => known,
            None => Session::builder()
                .probe(&text)
                .map_err(|error| said(format!("{probe}: {error}")))?
                .list(false)
                .map(|listing| listing.listed),
        };
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
        self.0.insert(text, listing.unwrap_or_default());
        Ok(())
    }
    /// What an attach point means.
    pub(super) fn listed(&self, text: &str) -> &[Listed] {
        self.0.get(text).map_or(&[], Vec::as_slice)
    }
}
