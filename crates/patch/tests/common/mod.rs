//! Victims: C programs that are compiled once and driven by lines on their standard input, and their files as
//! the planner sees them.
#![allow(dead_code, unreachable_pub, reason = "each test program uses some of it")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

use trapline_image::{Bytes, Image, NoDebugFiles};
use trapline_patch::{Module, Options, Request};
use trapline_plan::{Action, ActionRequest, CodeMap, Scope};
use trapline_record::addr::Bias;
use trapline_record::{RemoteAddr, Svma};
use trapline_tracee::{FileId, Process};

/// Compiles a victim of `tests/victims`.
pub fn compile(name: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/victims").join(name).with_extension("c");
    compile_source(&source, &format!("{name}{}", flags.concat().replace(['/', ' '], "")), flags)
}

/// Compiles any source.
pub fn compile_source(source: &Path, name: &str, flags: &[&str]) -> PathBuf {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let newer = |path: &Path| path.metadata().and_then(|m| m.modified()).ok();
    if newer(&out) < newer(source) || newer(&out).is_none() {
        let part = out.with_extension(format!("{}", std::process::id()));
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-g0", "-pthread", "-w"]).args(flags).arg(source).arg("-o").arg(&part);
        assert!(cc.status().expect("a C compiler").success(), "{}", source.display());
        std::fs::rename(part, &out).expect("moved");
    }
    out
}

/// A running victim.
pub struct Victim {
    pub child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pub process: Process,
    pub file: FileOnDisk,
    pub bias: Bias,
    pub id: FileId,
}

/// A program's file.
pub struct FileOnDisk {
    pub path: PathBuf,
    pub image: Image,
    pub map: CodeMap,
}

impl FileOnDisk {
    pub fn new(path: &Path) -> Self {
        let bytes = std::fs::read(path).expect("readable");
        let image = Image::parse(Bytes::from(bytes), &mut NoDebugFiles).expect("an ELF file");
        let map = CodeMap::build(&image, Scope::All, 2);
        Self { path: path.to_owned(), image, map }
    }
}

impl Victim {
    pub fn start(program: &Path, args: &[&str]) -> Self {
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let input = child.stdin.take().expect("piped");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        let process = Process::open(child.id()).expect("traceable");
        let file = FileOnDisk::new(program);
        let (bias, id) = place(&process, &file);
        Self { child, input, output, process, file, bias, id }
    }
    /// Sends a line, and returns the answer.
    pub fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.answer()
    }
    pub fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("the victim reads");
    }
    pub fn answer(&mut self) -> String {
        let mut answer = String::new();
        self.output.read_line(&mut answer).expect("the victim answers");
        assert!(!answer.is_empty(), "the victim died: {:?}", self.child.wait());
        answer.trim_end().to_owned()
    }
    /// The victim's own counts, and its number of wrong results.
    pub fn sums(&mut self) -> (Vec<u64>, u64) {
        let answer = self.ask("sums");
        let (counts, rest) = answer.split_once("wrong ").expect("sums");
        let wrong = rest.split(' ').next().and_then(|w| w.parse().ok()).expect("a number");
        (counts.split_whitespace().map(|n| n.parse().expect("a number")).collect(), wrong)
    }
    /// How it ended, from /proc; waiting would need it mutable.
    pub fn fate(&self) -> String {
        std::fs::read_to_string(format!("/proc/{}/stat", self.process.pid())).map_or_else(
            |_| "; no such process".into(),
            |stat| format!("; wait status {:?}", stat.split(' ').nth(51)),
        )
    }
    /// Makes it end, and checks that it does so in good health.
    pub fn quit(mut self) {
        self.tell("quit");
        let status = self.child.wait().expect("waited");
        assert!(status.success(), "{status:?}");
    }
    pub fn module<'a>(&'a self, requests: &'a [ActionRequest]) -> Module<'a> {
        module(&self.file, self.bias, self.id, requests)
    }
    /// Requests for these functions; probe `n` is for the n-th.
    pub fn requests(&self, names: &[&str], role: Action) -> Vec<ActionRequest> {
        names.iter().enumerate().map(|(n, name)| action_request(&self.file, n as u32, name, role)).collect()
    }
    /// Ranges of text that differ from the file.
    pub fn differences(&self) -> Vec<String> {
        differences(&self.process, &self.file, self.bias)
    }
    /// Disposition bits and handlers, as far as /proc shows them.
    pub fn caught(&self) -> (u64, u64) {
        let status = self.process.status().expect("alive");
        (status.caught, status.ignored)
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Load address and file of a mapped program.
pub fn place(process: &Process, file: &FileOnDisk) -> (Bias, FileId) {
    let path = file.path.to_str().expect("plain");
    let maps = process.maps().expect("alive");
    let text = maps.iter().find(|m| m.perms.exec && m.path == path).expect("mapped");
    let svma = file.image.svma_of(text.offset).expect("a segment's page");
    (Bias(text.start.0.wrapping_sub(svma.0)), text.file.expect("a file"))
}

pub fn module<'a>(file: &'a FileOnDisk, bias: Bias, id: FileId, requests: &'a [ActionRequest]) -> Module<'a> {
    Module { name: "victim", file: id, image: &file.image, bias, map: &file.map, requests, semaphores: &[] }
}

pub fn action_request(file: &FileOnDisk, probe: u32, name: &str, role: Action) -> ActionRequest {
    let found = file.image.functions().iter().position(|f| file.image.names(f).any(|n| n.raw == name));
    let function = found.map(|i| trapline_image::FunctionIndex(i as u32));
    assert!(function.is_some(), "{name}");
    ActionRequest { probe, latency: (role == Action::Latency).then_some(probe), function, action: role }
}

pub fn request<'a>(modules: &'a [Module<'a>]) -> Request<'a> {
    Request {
        modules,
        go: false,
        threads: Default::default(),
        durations: Default::default(),
        options: Options::default(),
        calls: None,
        filters: &[],
        unwinders: &[],
        own_code: &[],
    }
}

pub fn differences(process: &Process, file: &FileOnDisk, bias: Bias) -> Vec<String> {
    let mut found = Vec::new();
    for &(start, len) in file.image.text_ranges() {
        let disk = file.image.text(start, len).expect("in the file");
        let mut live = vec![0; len as usize];
        process.read(bias.live(start), &mut live).expect("readable");
        for (n, (a, b)) in disk.iter().zip(&live).enumerate() {
            if a != b {
                found.push(format!("{:?}: {a:02x} is {b:02x}", Svma(start.0 + n as u64)));
            }
        }
    }
    found
}

/// Live address of a stated one.
pub fn live(bias: Bias, at: Svma) -> RemoteAddr {
    bias.live(at)
}
