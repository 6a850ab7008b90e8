//! Large batches: a second thread parses the file and looks at the code near the sites. Meanwhile the calling
//! thread does what needs neither.
//!
//! In: the requests of a batch. Out: their file, parsed; and, before anything is planned, what is known of
//! its code (`ModuleFile::code_map`). What fails here fails again, and is reported, when the batch itself
//! asks for it. Does not: change the outcome of a batch, or outlive it.
//!
//! | thread | batch |
//! |---|---|
//! | E1 opens the file: identity and stamp | B1 starts noticing mappings (`notice`): probes the loader's notice |
//! | E2 parses it | B2 asks for that file (`RegisteredFiles::file`), and waits for E3 |
//! | E3 hands it over | B3 takes it if identity and stamp are what it finds itself; makes sites, adds consumers |
//! | E4 makes the file's map of the code near the sites | B4 plans: asks for the map; E4 holds its lock |
//! | E5 plans speculatively (meeting B4: `plan_speculatively`) | B5 waits for the thread's end; drops plans not used |
//!
//! - *E4 has not begun at B4*: the batch makes the map; E4 finds that all is in it.
//! - *The file is written to, or replaced, between E1 and B3*: stamp or identity differ. It is parsed anew.
//! - *The batch ends before B2*: what is handed over is not used.
//! - *The calling thread is in the loader*, and a new thread may wait for the loader's lock, or *no thread
//!   can be made*: the batch does it all.
//! - *A fork* waits for the engine's lock, which the batch holds until B5: no child sees half of this.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, scope};

use super::check::{Stamp, opened};
use super::memory::{keep_blocks, make_own_room};
use super::own_process::OwnProcess;
use super::system::with_signals_blocked;
use super::{Request, arch, loader};
use crate::files::{Files, ModuleFile, parsed};

/// Number of requests about one file from which on a second thread pays.
const MANY: usize = 2000;

/// Task of the thread.
#[derive(Debug)]
pub(super) struct SpeculativeTask {
    path: PathBuf,
    offsets: Vec<u64>,
}

/// Its result (E3), which may still be awaited.
#[derive(Debug)]
pub(super) struct SpeculativePlan {
    path: PathBuf,
    file: Receiver<Parsed>,
    here: Option<Parsed>,
}

/// A file as it was when it was opened.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) file: Arc<ModuleFile>,
    pub(super) stamp: Stamp,
}

impl SpeculativeTask {
    /// `None` if there is nothing for a thread to do, or none may be made.
    pub(super) fn of(requests: &[Request], files: &Files, process: &mut OwnProcess) -> Option<Self> {
        let path = &requests.first().filter(|_| requests.len() >= MANY)?.file;
        let its = requests.iter().filter(|one| one.file.as_os_str() == path.as_os_str());
        let offsets: Vec<u64> = its.map(|one| one.offset).collect();
        let is_new = offsets.len() >= MANY && opened(path).is_ok_and(|(_, id, _)| !files.has(id));
        let alone = !is_new || loader::is_above(process.open().ok()?.process());
        (!alone).then(|| Self { path: path.clone(), offsets })
    }
    /// Runs a batch with that thread beside it. The batch gets the thread's result to come, if there is a
    /// thread.
    pub(super) fn beside<T>(self, batch: impl FnOnce(Option<SpeculativePlan>) -> T) -> T {
        let (hand, file) = sync_channel(1);
        let path = self.path.clone();
        keep_blocks(self.offsets.len());
        scope(|scope| {
            let thread = Builder::new().name("trapline-early".into());
            let thread = with_signals_blocked(|| thread.spawn_scoped(scope, || self.run(hand))).ok();
            let done = batch(thread.is_some().then(|| SpeculativePlan::new(path, file)));
            // B5. A panic in the thread does not affect the batch.
            let file = thread.and_then(|thread| thread.join().ok()).flatten();
            file.iter().for_each(|file| file.forget_speculative());
            done
        })
    }
    /// E1 to E5.
    fn run(self, hand: SyncSender<Parsed>) -> Option<Arc<ModuleFile>> {
        make_own_room(self.offsets.len());
        let (file, id, stamp) = opened(&self.path).ok()?;
        let file = parsed(&file, id, &self.path).ok()?;
        if hand.send(Parsed { file: file.clone(), stamp }).is_ok() {
            arch::code_map::know_near(&file, &self.offsets);
        }
        Some(file)
    }
}

impl SpeculativePlan {
    pub(super) const fn new(path: PathBuf, file: Receiver<Parsed>) -> Self {
        Self { path, file, here: None }
    }
    pub(super) fn is_of(&self, path: &Path) -> bool {
        self.path == path
    }
    /// Whether E3 is over; does not wait.
    pub(super) fn is_here(&mut self) -> bool {
        self.here = self.here.take().or_else(|| self.file.try_recv().ok());
        self.here.is_some()
    }
    /// B2: waits for the file. `None` if it could not be read.
    pub(super) fn wait(self) -> Option<Parsed> {
        self.here.or_else(|| self.file.recv().ok())
    }
}
