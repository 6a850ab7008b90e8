//! A line for each call: for people (`plain`), as JSON (`json`, docs/guide/json.md), or as a row of comma-separated values
//! (`rows`, RFC 4180). `parts` has what they share.
//!
//! In: calls, and the signatures that were typed. Out: text. Does not: sort, count, write.

mod json;
mod parts;
mod plain;
mod rows;

use std::collections::HashMap;
use std::sync::Arc;

use trapline::stacks::CodeAt;
use trapline::{Call, ProbeSpec, Site};

use super::code_names::CodeNames;
use super::format::Format;
use super::site::asked_for;
use crate::args::types::Signature;
use json::json;
pub(super) use json::members;
pub(super) use parts::{nanos, value_type};
use plain::plain;
pub(super) use plain::{arguments, returned_value};
use rows::{numbers, row};

/// The signatures by which functions' values are shown.
#[derive(Debug)]
pub(crate) struct Signatures<'a> {
    probes: &'a [(ProbeSpec, Option<Signature>)],
    /// The signature for each probe text, looked up once.
    known: HashMap<String, Option<&'a Signature>>,
}

/// How calls are written, line by line.
#[derive(Debug)]
pub(crate) struct Shown<'a> {
    signatures: Signatures<'a>,
    format: Format,
    timestamps: bool,
    /// Number of columns for arguments, in a table.
    columns: usize,
    begun: bool,
    /// The last call's function, and its signature.
    last: Option<(Arc<Site>, Option<&'a Signature>)>,
    /// Names of functions; `None` if no value points to one.
    names: Option<Box<CodeNames>>,
}

impl<'a> Signatures<'a> {
    pub(crate) fn new(probes: &'a [(ProbeSpec, Option<Signature>)]) -> Self {
        Self { probes, known: HashMap::new() }
    }
    /// The first signature that was typed for any of the function's names.
    pub(crate) fn of(&mut self, site: &Site) -> Option<&'a Signature> {
        if let Some(known) = self.known.get(&site.probe) {
            return *known;
        }
        let found = asked_for(self.probes, site).find_map(|(_, (_, signature))| signature.as_ref());
        self.known.insert(site.probe.clone(), found);
        found
    }
}

impl<'a> Shown<'a> {
    pub(crate) fn new(
        probes: &'a [(ProbeSpec, Option<Signature>)],
        format: Format,
        timestamps: bool,
    ) -> Self {
        let widths = probes.iter().map(|(_, signature)| signature.as_ref().map_or(0, |s| s.parameters.len()));
        let columns = widths.max().unwrap_or(0);
        let signatures = || probes.iter().filter_map(|(_, signature)| signature.as_ref());
        let names = signatures().any(Signature::points_to_code).then(Box::default);
        let signatures = Signatures::new(probes);
        Self { signatures, format, timestamps, columns, begun: false, last: None, names }
    }
    /// Whether values point to functions, which have names where their code is noted.
    pub(crate) const fn names_code(&self) -> bool {
        self.names.is_some()
    }
    /// Takes the code that was noted.
    pub(crate) fn take_code(&mut self, noted: CodeAt) {
        if let Some(names) = &mut self.names {
            names.take(noted);
        }
    }
    /// Appends one call's line to `out`.
    pub(crate) fn line(&mut self, call: &Call, out: &mut Vec<u8>) {
        let signature = match &self.last {
            Some((site, signature)) if Arc::ptr_eq(site, &call.site) => *signature,
            _ => {
                let signature = self.signatures.of(&call.site);
                self.last = Some((Arc::clone(&call.site), signature));
                signature
            }
        };
        match self.format {
            Format::Json => out.extend_from_slice(json(call, signature, &mut self.names).as_bytes()),
            Format::Csv if self.begun && numbers(out, call, signature, self.columns) => {}
            Format::Csv => {
                let begun = std::mem::replace(&mut self.begun, true);
                out.extend_from_slice(row(call, signature, (begun, self.columns)).as_bytes());
            }
            _ => plain(out, call, signature, (self.timestamps, &mut self.names)),
        }
    }
}
