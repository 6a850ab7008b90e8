//! The kernel as the oracle of arguments: a uprobe event that fetches one, in its own instance of the trace
//! buffer.
//!
//! In: a function of a program, and what to fetch. Out: what the kernel read at each hit. Does not: run
//! beside our probes; a second, identical run is compared.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Folder of the kernel's trace files: the usual mount point, or one that was mounted for this test.
#[derive(Debug)]
struct Tracefs(PathBuf);

impl Tracefs {
    const USUAL: &str = "/sys/kernel/tracing";

    fn find() -> Result<Self, String> {
        let usual = Path::new(Self::USUAL);
        if usual.join("uprobe_events").exists() {
            return Ok(Self(usual.to_owned()));
        }
        let own = std::env::temp_dir().join(format!("trapline-tracefs-{}", std::process::id()));
        std::fs::create_dir_all(&own).map_err(|error| format!("{}: {error}", own.display()))?;
        let output = Command::new("mount").args(["-t", "tracefs", "tracefs"]).arg(&own).output();
        match output {
            Ok(output) if output.status.success() => Ok(Self(own)),
            _ => Err("the kernel's trace files cannot be mounted".to_owned()),
        }
    }
}

impl Drop for Tracefs {
    fn drop(&mut self) {
        if self.0 != Path::new(Self::USUAL) {
            Command::new("umount").arg("-l").arg(&self.0).status().ok();
            std::fs::remove_dir(&self.0).ok();
        }
    }
}

/// A uprobe event with one argument; removed when dropped.
#[derive(Debug)]
pub struct Fetched {
    root: Tracefs,
    instance: PathBuf,
    name: String,
    file: PathBuf,
}

impl Fetched {
    /// Probes a function of a process. `fetch` is the argument in the kernel's notation, as `%di:u64`.
    ///
    /// # Errors
    /// What the kernel or its trace files lack here.
    pub fn new(path: &Path, func: &str, pid: u32, fetch: &str) -> Result<Self, String> {
        let tracefs = Tracefs::find()?;
        let root = tracefs.0.clone();
        // Tests of one process run beside each other.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("trapline_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let instance = root.join("instances").join(&name);
        let offset = crate::oracle::offsets(path, &[func])[0];
        let failed = |what: &str, error: std::io::Error| format!("{what}: {error}");
        let append = |text: String| {
            let mut file = std::fs::File::options().append(true).open(root.join("uprobe_events"))?;
            std::io::Write::write_all(&mut file, text.as_bytes())
        };
        append(format!("p:{name}/hit {}:{offset:#x} first={fetch}\n", path.display()))
            .map_err(|error| failed("no uprobe events here", error))?;
        // From here on the event is removed when this is dropped.
        let kernel = Self { root: tracefs, instance, name, file: path.to_owned() };
        std::fs::create_dir(&kernel.instance).map_err(|error| failed("no trace instances here", error))?;
        let set = |file: &str, text: String| std::fs::write(kernel.instance.join(file), text);
        set("set_event_pid", pid.to_string())
            .and_then(|()| set(&format!("events/{}/hit/enable", kernel.name), "1".to_owned()))
            .map_err(|error| failed("enabling", error))?;
        Ok(kernel)
    }
    /// Number of hits, in all processes.
    ///
    /// # Panics
    /// If the kernel does not show the event.
    #[must_use]
    pub fn hits(&self) -> u64 {
        let text = std::fs::read_to_string(self.root.0.join("uprobe_profile")).expect("the profile");
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let own = text.lines().map(words).find(|words| {
            words.first().is_some_and(|file| Path::new(file) == self.file)
                && words.get(1).is_some_and(|event| event == "hit")
        });
        own.and_then(|words| words.get(2)?.parse().ok()).expect("a line for it")
    }
    /// What was fetched at each hit, as the kernel prints it; of a text with several lines, the first line.
    ///
    /// # Panics
    /// If there is no trace.
    #[must_use]
    pub fn read(self) -> Vec<String> {
        let text = std::fs::read_to_string(self.instance.join("trace")).expect("the trace");
        text.lines().filter_map(|line| Some(line.split_once("first=")?.1.trim().to_owned())).collect()
    }
}

impl Drop for Fetched {
    fn drop(&mut self) {
        std::fs::write(self.instance.join(format!("events/{}/hit/enable", self.name)), "0").ok();
        std::fs::remove_dir(&self.instance).ok();
        let events = self.root.0.join("uprobe_events");
        if let Ok(mut file) = std::fs::File::options().append(true).open(events) {
            std::io::Write::write_all(&mut file, format!("-:{}/hit\n", self.name).as_bytes()).ok();
        }
    }
}
