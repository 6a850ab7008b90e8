//! Maps of the code near sites: here, a site is one word, and nothing has to be known of the code around it.
//!
//! In, out: nothing.

use trapline_patch::own::Own;

use crate::files::ModuleFile;
use crate::inside::probed_site::ProbedSite;

/// Prepares planning near these offsets: nothing here takes long.
pub(in crate::inside) const fn know_near(_: &ModuleFile, _: &[u64]) {}

/// Finds out now what a look must know of these sites' files: nothing here takes long.
pub(in crate::inside) fn know_code<'a>(_: Option<&Own>, _: impl Iterator<Item = &'a ProbedSite>) {}
