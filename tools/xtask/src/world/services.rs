//! Services that answer while they are attached to and detached from, again and again.
//!
//! In: the list of services (`tools/xtask/world/services.sh`) and the command. Out: a line for each service, and a
//! failed check for each that died, gave another answer than before, could not be left, or kept other code than its
//! file has. Does not: compare counts; other tests do that beside the kernel's own probes.
//!
//! Steps for one service:
//! 1. It starts in a folder and at a port of its own. Its first answer is the right one.
//! 2. Two threads ask it without a pause. Each answer must be the right one.
//! 3. It is attached to for 0.1 s and left, with all functions of its program, under one verb after the other.
//!    Another tracer may work beside ([`super::setting`]); where that one holds the service at the moment, the attach
//!    is refused.
//! 4. It is asked once more, so that calls have ended that began while it was traced. Then it is attached to and left once
//!    more. Its code must be what its files hold. It is ended with all that it started.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::list::LISTS;
use super::setting::Setting;
use crate::descendants;
use crate::outcome::Outcome;

/// Those of `services.sh`.
const NAMES: [&str; 12] = [
    "nginx",
    "haproxy",
    "lighttpd",
    "memcached",
    "redis",
    "postgres",
    "mariadb",
    "go",
    "node",
    "java",
    "python",
    "php",
];

/// Verbs that patch code, and what they are given beside the functions.
const VERBS: [&[&str]; 4] = [&["count"], &["lat"], &["stack"], &["trace"]];

/// A service that does not answer for so long has not started, or is dead.
const PATIENCE: Duration = Duration::from_secs(60);

/// The port of the first service; the others follow.
const PORT: u16 = 28_400;

/// Attaches to each service so many times. `names`: those alone, all if there are none.
pub(super) fn run(cycles: u64, names: &[String], setting: &Setting, trapline: &Path) -> Outcome {
    let mut outcome = Outcome::default();
    for (index, name) in NAMES.iter().enumerate() {
        if !names.is_empty() && !names.iter().any(|wanted| wanted == name) {
            continue;
        }
        match Service::new(name, PORT + index as u16) {
            Err(error) => {
                println!("LOUD SKIP: service {name}: {error:#}");
                outcome.skipped.push(format!("world: service {name}: {error:#}"));
            }
            Ok(mut service) => match service.cycles(cycles, setting, trapline) {
                Ok(line) => {
                    println!("{name}: {line}");
                    outcome.passed += 1;
                }
                Err(error) => {
                    println!("FAILED {name}: {error:#}");
                    outcome.failed += 1;
                    outcome.failures.push(format!("world: service {name}: {error:#}"));
                }
            },
        }
    }
    outcome
}

/// A service that runs.
struct Service {
    name: &'static str,
    folder: PathBuf,
    port: u16,
    child: Option<Child>,
    program: PathBuf,
    /// Its first answer.
    answer: Vec<u8>,
}

impl Service {
    /// Starts it, and waits for its first answer.
    fn new(name: &'static str, port: u16) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("trapline-service-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).context("its folder")?;
        let (child, program, answer) = (None, PathBuf::new(), Vec::new());
        let mut service = Self { name, folder, port, child, program, answer };
        let prepared = service.shell("prepare").output().context("sh")?;
        ensure!(prepared.status.success(), "it cannot be prepared: {}", last_line(&prepared.stderr));
        let program = service.shell("program").output().context("sh")?;
        ensure!(program.status.success(), "it is not installed");
        let path = String::from_utf8_lossy(&program.stdout).trim().to_string();
        service.program = Path::new(&path).canonicalize().with_context(|| format!("its program `{path}`"))?;
        ensure!(!service.ask()?.status.success(), "something else answers at port {port} already");
        let log = std::fs::File::create(service.folder.join("log")).context("its log")?;
        service.child = Some(service.shell("start").stdout(Stdio::null()).stderr(log).spawn().context("sh")?);
        let begun = Instant::now();
        while service.answer.is_empty() {
            let ended = service.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            if ended.is_some() || begun.elapsed() > PATIENCE {
                let log = std::fs::read(service.folder.join("log")).unwrap_or_default();
                bail!("it gives no answer: {}", last_line(&log));
            }
            let output = service.ask()?;
            if output.status.success() {
                service.answer = output.stdout;
            } else {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        Ok(service)
    }

    fn shell(&self, act: &str) -> Command {
        let mut command = Command::new("sh");
        command.arg(Path::new(LISTS).join("services.sh")).args([act, self.name]).stdin(Stdio::null());
        command.env("DIR", &self.folder).env("PORT", self.port.to_string());
        command
    }

    fn ask(&self) -> Result<Output> {
        self.shell("ask").output().context("sh")
    }

    fn pid(&self) -> Result<u32> {
        Ok(self.child.as_ref().context("it was not started")?.id())
    }

    /// Attaches and detaches while it is asked. What to print, or what was wrong.
    fn cycles(&mut self, cycles: u64, setting: &Setting, trapline: &Path) -> Result<String> {
        let pid = self.pid()?;
        let beside = setting.begin(&self.program, Some(pid), trapline)?;
        let before = Ours::of(pid)?;
        let (over, right) = (AtomicBool::new(false), AtomicU64::new(0));
        let this = &*self;
        let refused = std::thread::scope(|scope| {
            let askers = [(); 2].map(|()| scope.spawn(|| this.ask_on(&over, &right)));
            let result = (0..cycles).try_fold(0, |refused, cycle| {
                ensure!(
                    !askers.iter().any(std::thread::ScopedJoinHandle::is_finished),
                    "an answer was wrong"
                );
                Ok(refused
                    + u64::from(
                        !this.attach(cycle, setting, trapline).with_context(|| format!("cycle {cycle}"))?,
                    ))
            });
            over.store(true, Ordering::Relaxed);
            for asker in askers {
                asker.join().unwrap_or_else(|_| bail!("what asks it panicked"))?;
            }
            result
        })?;
        // What a thread may be in stays mapped until the next session. So the last one is made while nothing is asked, and
        // after an answer: a server that waits for a request may be in a call that was traced.
        ensure!(self.ask()?.status.success(), "no answer after the last cycle");
        let last = self.attach(0, setting, trapline).context("the last cycle")?;
        drop(beside);
        let ended = self.child.as_mut().context("it was not started")?.try_wait().context("wait")?;
        ensure!(ended.is_none(), "it ended: {ended:?}");
        let wrong = trapline_tests::text::differences(pid);
        ensure!(wrong.is_empty(), "its code is not its files': {}", wrong.join(", "));
        let (right, after) = (right.into_inner(), Ours::of(pid)?);
        Ok(format!(
            "{cycles} cycles, {} refused, {right} right answers; {} KiB of memory stay in {} KiB of addresses",
            refused + u64::from(!last),
            after.resident.saturating_sub(before.resident),
            after.addresses.saturating_sub(before.addresses),
        ))
    }

    /// Asks until it is to end. An error names the first answer that was not the right one.
    fn ask_on(&self, over: &AtomicBool, right: &AtomicU64) -> Result<()> {
        while !over.load(Ordering::Relaxed) {
            let output = self.ask()?;
            ensure!(
                output.status.success() && output.stdout == self.answer,
                "answer `{}` ({}) and not `{}`; {}",
                String::from_utf8_lossy(&output.stdout),
                output.status,
                String::from_utf8_lossy(&self.answer),
                last_line(&output.stderr),
            );
            right.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// One attach and detach. False: it was refused, with nothing probed.
    fn attach(&self, cycle: u64, setting: &Setting, trapline: &Path) -> Result<bool> {
        let verb = VERBS[cycle as usize % VERBS.len()];
        let mut command = Command::new("timeout");
        command.args(["-s", "INT", "120"]).arg(trapline).args(verb).args(["-q", "-d", "0.1", "-o"]);
        command.arg(self.folder.join("report")).args(["-p", &self.pid()?.to_string()]);
        for pid in descendants::of(self.pid()?) {
            command.args(["-p", &pid.to_string()]);
        }
        let output = command.arg(format!("{}:*", self.program.display())).output().context("trapline")?;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        match output.status.code() {
            Some(0) => Ok(true),
            // A process that was to be traced has ended before: the service's own children come and go.
            Some(_) if stderr.contains("is gone: it ended") => Ok(false),
            Some(_) if setting.may_hold() && stderr.contains("is already traced by process") => Ok(false),
            _ => bail!(
                "{} ended with {}: {}",
                verb[0],
                output.status,
                stderr.lines().take(3).collect::<Vec<_>>().join(" / ")
            ),
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            descendants::kill(child.id());
            child.kill().ok();
            child.wait().ok();
        }
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

/// Memory of a process that may be ours, in KiB.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Ours {
    addresses: u64,
    resident: u64,
}

impl Ours {
    fn of(pid: u32) -> Result<Self> {
        Ok(Self::read(&std::fs::read_to_string(format!("/proc/{pid}/smaps")).context("it has ended")?))
    }
    /// What has our name, and code that is no file's. Under the line of each mapping are its numbers.
    fn read(smaps: &str) -> Self {
        let (mut ours, mut is_ours) = (Self::default(), false);
        for line in smaps.lines() {
            let resident =
                line.strip_prefix("Rss:").map(|kib| kib.trim_end_matches("kB").trim().parse().unwrap_or(0));
            match resident {
                Some(kib) if is_ours => ours.resident += kib,
                // Mappings begin with an address, numbers with their names.
                None if line.split_whitespace().next().is_some_and(|word| !word.ends_with(':')) => {
                    let bytes = ours_in(line);
                    is_ours = bytes.is_some();
                    ours.addresses += bytes.unwrap_or(0) >> 10;
                }
                _ => {}
            }
        }
        ours
    }
}

/// Bytes of one line of `/proc/PID/maps` that may be ours.
fn ours_in(line: &str) -> Option<u64> {
    let mut words = line.split_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let is_code = words.next()?.contains('x');
    let name = words.nth(3).unwrap_or_default();
    let address = |text| u64::from_str_radix(text, 16).ok();
    let is_ours = name.contains("trapline") || (is_code && name.is_empty());
    is_ours.then(|| Some(address(end)? - address(start)?)).flatten()
}

fn last_line(text: &[u8]) -> String {
    String::from_utf8_lossy(text).lines().last().unwrap_or_default().to_string()
}

#[cfg(test)]
mod tests {
    use super::{Ours, ours_in};

    #[test]
    fn numbers_belong_to_the_mapping_above_them() {
        let smaps = "7f0000000000-7f0000002000 rw-s 00000000 00:01 1029 /memfd:trapline (deleted)
Size:                  8 kB
Rss:                   4 kB
7f0000003000-7f0000004000 r-xp 00000000 08:01 77 /usr/bin/nginx
Rss:                  40 kB
VmFlags: rd ex
";
        assert_eq!(Ours::read(smaps), Ours { addresses: 8, resident: 4 });
    }

    #[test]
    fn memory_with_our_name_and_code_without_one_may_be_ours() {
        for (line, bytes) in [
            ("7f0000000000-7f0000002000 rw-s 00000000 00:01 1029 /memfd:trapline (deleted)", Some(0x2000)),
            ("7f0000000000-7f0000001000 r-xp 00000000 00:00 0", Some(0x1000)),
            ("7f0000000000-7f0000001000 rw-p 00000000 00:00 0", None),
            ("7f0000000000-7f0000001000 r-xp 00000000 08:01 77 /usr/bin/nginx", None),
        ] {
            assert_eq!(ours_in(line), bytes, "{line}");
        }
    }
}
