//! Servers and terminals of the distribution that tests start for themselves, and that no other process uses.
//!
//! In: a folder in `/tmp`, which is removed at the end; perhaps another file to run as the server. Out: a running
//! server, its PID, and ways to ask it. Does not: trace.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::programs::find;
use crate::running::Running;

const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for a condition.
///
/// # Panics
/// If it does not come true in time.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The children of a process.
#[must_use]
pub fn children(pid: u32) -> Vec<u32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// A bash, or a copy of it, that reads lines from a terminal of its own; with the terminal's process, and its PID.
///
/// # Errors
/// There is no script(1).
///
/// # Panics
/// If bash does not start.
pub fn shell(bash: &Path) -> Result<(Running, u32), String> {
    find(&["/usr/bin/script"])?;
    let mut command = Command::new("script");
    command
        .args(["-qfc", &format!("exec {} --norc -i", bash.display()), "/dev/null"])
        .env("PS1", "$ ")
        .env("TERM", "dumb");
    let running = Running::spawn(command);
    let name = bash.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let is_bash = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name)
    };
    let found = || children(running.pid()).into_iter().find(is_bash);
    until("bash does not start", || found().is_some());
    let pid = found().expect("it was there");
    // It waits for its first line.
    let stat = format!("/proc/{pid}/stat");
    until("bash does not wait", || std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") S ")));
    Ok((running, pid))
}

fn folder(name: &str) -> Result<PathBuf, String> {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("trapline-{name}-{}-{number}", std::process::id()));
    std::fs::create_dir(&dir).map_err(|error| error.to_string())?;
    // Servers do not run as root.
    let owned = Command::new("chown").arg("nobody").arg(&dir).status();
    owned.map_err(|error| error.to_string())?;
    Ok(dir)
}

/// A PostgreSQL server.
#[derive(Debug)]
pub struct Postgres {
    dir: PathBuf,
    bin: PathBuf,
}

impl Postgres {
    /// Whether it is there.
    ///
    /// # Errors
    /// It is not.
    pub fn installed() -> Result<(), String> {
        find(&["/usr/lib/postgresql/15/bin/initdb"])?;
        find(&["/usr/lib/postgresql/15/bin/pgbench"]).map(drop)
    }
    /// Starts it, with these settings; from this file, if there is one.
    ///
    /// # Errors
    /// It is not installed, or what it prints.
    pub fn start(settings: &str, server: Option<&Path>) -> Result<Self, String> {
        Self::installed()?;
        let bin = Path::new("/usr/lib/postgresql/15/bin").to_path_buf();
        let one = Self { dir: folder("postgres")?, bin };
        let dir = one.dir.display();
        let server = server.map_or(String::new(), |file| format!("-p {}", file.display()));
        let settings = format!("-k {dir} -c listen_addresses= -c shared_buffers=16MB {settings}");
        let script = format!(
            "initdb -D {dir}/data -A trust -U postgres && \
             pg_ctl {server} -D {dir}/data -l {dir}/log -o '{settings}' -w start"
        );
        one.run(&script)?;
        Ok(one)
    }
    /// Runs a script as the server's user, with its programs; gives what that prints.
    ///
    /// # Errors
    /// What it prints, if it fails.
    pub fn run(&self, script: &str) -> Result<String, String> {
        let script = format!("export PATH={}:$PATH; cd /; {script}", self.bin.display());
        let output =
            Command::new("su").args(["-s", "/bin/sh", "nobody", "-c", &script]).stdin(Stdio::null()).output();
        let output = output.map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.success() {
            true => Ok(text),
            false => Err(format!("{script}: {text}{}", String::from_utf8_lossy(&output.stderr))),
        }
    }
    /// The answer to a query.
    ///
    /// # Panics
    /// If there is none.
    pub fn sql(&self, text: &str) -> String {
        let dir = self.dir.display();
        self.run(&format!("psql -h {dir} -U postgres postgres -qAtc \"{text}\"")).expect("an answer")
    }
    /// A client that reads statements, and the PID of the process that serves it.
    ///
    /// # Panics
    /// If it does not answer.
    #[must_use]
    pub fn client(&self) -> (Running, u32) {
        let mut command = Command::new("psql");
        command.arg("-h").arg(&self.dir).args(["-U", "postgres", "postgres", "-qAtX"]);
        let mut running = Running::spawn(command);
        running.send("select pg_backend_pid();");
        let pid = running.line().parse().expect("a number");
        (running, pid)
    }
    /// The PID of the first process.
    ///
    /// # Panics
    /// If it does not run.
    #[must_use]
    pub fn pid(&self) -> u32 {
        let file = std::fs::read_to_string(self.dir.join("data/postmaster.pid")).expect("it runs");
        file.lines().next().and_then(|line| line.parse().ok()).expect("a number")
    }
    /// Its folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.dir
    }
    /// What it wrote into its log.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.run(&format!("pg_ctl -D {}/data -m fast stop", self.dir.display())).ok();
        std::fs::remove_dir_all(&self.dir).ok();
    }
}

/// A MariaDB server that logs all statements.
#[derive(Debug)]
pub struct MariaDb {
    dir: PathBuf,
    server: Child,
}

impl MariaDb {
    /// Whether it is there.
    ///
    /// # Errors
    /// It is not.
    pub fn installed() -> Result<(), String> {
        ["/usr/sbin/mariadbd", "/usr/bin/mariadb", "/usr/bin/mariadb-install-db"]
            .iter()
            .try_for_each(|file| find(&[file]).map(drop))
    }
    /// Starts it; from this file, if there is one.
    ///
    /// # Errors
    /// It is not installed, or what it prints.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn start(server: Option<&Path>) -> Result<Self, String> {
        Self::installed()?;
        let dir = folder("mariadb")?;
        let data = format!("--datadir={}/data", dir.display());
        let made = Command::new("/usr/bin/mariadb-install-db")
            .args(["--no-defaults", &data, "--user=nobody", "--auth-root-authentication-method=normal"])
            .output();
        let made = made.map_err(|error| error.to_string())?;
        let text =
            || String::from_utf8_lossy(&made.stdout).into_owned() + &String::from_utf8_lossy(&made.stderr);
        assert!(made.status.success(), "{}", text());
        let file = |name: &str| format!("{}/{name}", dir.display());
        let mut command = Command::new(server.unwrap_or(Path::new("/usr/sbin/mariadbd")));
        command.args(["--no-defaults", &data, "--user=nobody", "--skip-networking", "--general-log=1"]);
        command.arg(format!("--socket={}", file("socket")));
        command.arg(format!("--general-log-file={}", file("log")));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let server = command.spawn().map_err(|error| error.to_string())?;
        let one = Self { dir, server };
        until("MariaDB does not start", || one.dir.join("socket").exists());
        Ok(one)
    }
    /// A client that reads statements.
    #[must_use]
    pub fn client(&self) -> Running {
        let mut command = Command::new("mariadb");
        command.args(["--no-defaults", "-uroot", "--batch", "--unbuffered", "-N"]);
        command.arg(format!("--socket={}/socket", self.dir.display()));
        Running::spawn(command)
    }
    /// The PID of the server.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.server.id()
    }
    /// What it wrote into its log of statements.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }
}

impl Drop for MariaDb {
    fn drop(&mut self) {
        self.server.kill().ok();
        self.server.wait().ok();
        std::fs::remove_dir_all(&self.dir).ok();
    }
}
