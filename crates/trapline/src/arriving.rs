//! `--all`: processes that map a probed file later.
//!
//! In: files that probes name, processes that map them. Out: the files to wait for, by path; processes that have
//! arrived (`tracee`'s `arrivals`). Does not: probe.
//!
//! A name without a slash may mean files that nobody maps yet. It is looked for where programs and libraries are
//! usually found: the folders of `PATH`, and those in which the loader looks, here and in the roots of processes that
//! are meant. A file elsewhere in another mount namespace is found if some process there maps it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use trapline_image::ProbeSpec;
use trapline_tracee::{Among, Arrival, Arrivals, Process};

use crate::modules::mapped;
use crate::roots::{is_library, other_roots, usual};

/// When processes are looked for once more, since one may have been on its way when all began.
const AGAIN: Duration = Duration::from_millis(500);

/// The processes of later.
#[derive(Debug)]
pub(crate) struct Arriving {
    arrivals: Arrivals,
    among: Among,
    begun: Instant,
    /// Whether processes are still to be looked for once more.
    again: bool,
}

impl Arriving {
    /// Begins to wait for the files that probes name.
    ///
    /// # Errors
    /// Why processes of later cannot be traced; what to do.
    pub(crate) fn start(specs: &[ProbeSpec], among: &Among) -> Result<Self, String> {
        let arrivals = Arrivals::start(among.clone()).map_err(|error| {
            format!(
                "programs that start later are not traced, as the kernel grants no permission events: {error}; run as root (CAP_SYS_ADMIN), or use -f or -c"
            )
        })?;
        let new = Self { arrivals, among: among.clone(), begun: Instant::now(), again: true };
        let roots = [vec![PathBuf::from("/")], other_roots(among)].concat();
        let files = || specs.iter().filter_map(|spec| spec.file.as_deref());
        let usual: BTreeSet<PathBuf> =
            roots.iter().flat_map(|root| files().flat_map(|file| usual(root, file))).collect();
        for path in usual {
            // A file that cannot be marked may be another one's neighbour of the same name.
            drop(new.want(&path));
        }
        Ok(new)
    }
    fn want(&self, path: &Path) -> std::io::Result<()> {
        self.arrivals.want(path, !is_library(path))
    }
    /// Waits for the files that this process maps and that probes name, too. Returns a notice for each that cannot
    /// be marked.
    pub(crate) fn want_mapped(&self, process: &Process, specs: &[ProbeSpec]) -> Vec<String> {
        let maps = process.maps().unwrap_or_default();
        let named =
            |path: &str| specs.iter().filter_map(|spec| spec.file.as_deref()).any(|file| path == file);
        let means = |one: &crate::modules::Mapped| {
            named(&one.mapping.path)
                || specs
                    .iter()
                    .filter_map(|spec| spec.file.as_deref())
                    .any(|file| one.is_named(process, file))
        };
        let files = mapped(process, &maps).into_iter().filter(means);
        let mark = |one: crate::modules::Mapped| {
            let by_path = self.want(&process.rooted(&one.mapping.path));
            let error = by_path.or_else(|_| self.want(&process.link_to(&one.mapping))).err()?;
            Some(format!("processes that map {} later are not traced: {error}", one.mapping.path))
        };
        files.filter_map(mark).collect()
    }
    /// Processes that are wanted.
    pub(crate) const fn among(&self) -> &Among {
        &self.among
    }
    /// Who has arrived since the last call.
    pub(crate) fn take(&self) -> Vec<Arrival> {
        self.arrivals.take()
    }
    /// Whether processes are to be looked for once more now; true once.
    pub(crate) fn looks_again(&mut self) -> bool {
        self.again && self.begun.elapsed() > AGAIN && std::mem::take(&mut self.again)
    }
    /// A descriptor that is readable when somebody has arrived.
    pub(crate) fn descriptor(&self) -> i32 {
        self.arrivals.descriptor()
    }
}
