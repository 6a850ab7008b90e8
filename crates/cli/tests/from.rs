//! The page for people who know other tracers (`docs/guide/from.md`): each of Trapline's commands there works on the
//! guide's program, and shows what it should.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::text;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A word of each command, and what it has to show. A command stands here once for each of its rows, in their order.
const SHOWN: &[(&str, &str)] = &[
    ("count(); }", "@["),
    ("printf", "paid"),
    ("run -l 'u", "shop:handle"),
    ("count -p PID -d 1 '/tmp/shop:*'", " price\n"),
    ("lat ", "p99 = "),
    ("dur > 200us", "store("),
    ("items price", "items"),
    ("--top", "ret"),
    ("ret != 1", "handle("),
    ("libc:malloc", "store at "),
    ("record ", ""),
    ("report ", "handle"),
    ("replay ", "} /* handle */"),
    ("--from calls", "store"),
    ("--chrome", "\"handle\""),
    ("--flame", "handle;store "),
    ("graph -p", "store"),
    ("'libc:malloc(size_t n) -> hex'", "malloc(n="),
    ("'libc:*' -- ls /", "libc.so.6:"),
    ("getenv", "getenv(name=\""),
    ("trace -f ", "getenv(name=\""),
    ("'libc:usleep(u32 us)'", "usleep(us=500)"),
    ("-d 1 store", "store(order="),
    ("graph --each", "store"),
    ("--depth 2", "store at "),
    ("-d 1 price", "price(order="),
    ("--max 5", "malloc(n="),
    ("'libc.so.6:usleep(u32 us) -> int'", "usleep(us=500) = 0 <0.00"),
    ("count -p PID -d 1 '/tmp/shop:*'", " price\n"),
    ("--entry-only", "price(items="),
    ("'handle() -> int'", "handle() = 0"),
    ("stack -p PID -d 1 store", "handle at "),
    ("list ", "store"),
    ("status", "no probes of ours"),
    ("order->id", "order->id="),
    ("'handle() -> int'", "handle() = 0"),
    ("shop.c:33", "hits in 1 "),
    ("run -lv", "items"),
    ("list ", "store"),
    ("stack -p PID -d 1 price", "handle at "),
    ("items > 20", "price(order="),
    ("count -p PID -d 1 price", " price\n"),
    ("status", "no probes of ours"),
    ("detach", ""),
];

/// The guide's program, running, in a folder of its own; all gone at the end.
struct Shop {
    folder: PathBuf,
    child: Child,
}

impl Shop {
    fn start() -> Self {
        let folder = std::env::temp_dir().join(format!("trapline-from-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::copy(Path::new(ROOT).join("docs/guide/shop.c"), folder.join("shop.c")).expect("copied");
        let flags = ["-O2", "-g", "-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer", "-pthread"];
        let built =
            Command::new("cc").current_dir(&folder).args(flags).args(["-o", "shop", "shop.c"]).status();
        assert!(built.expect("a C compiler").success());
        let child = Command::new(folder.join("shop")).stdin(Stdio::null()).spawn().expect("it runs");
        Self { folder, child }
    }

    /// Runs a command of the page on it, as a shell does, but for a shorter time; what it shows on both outputs.
    fn run(&self, command: &str) -> String {
        let shop = self.folder.join("shop").display().to_string();
        let words = command
            .replace("/tmp/shop", &shop)
            .replace("-d 1 ", "-d 0.4 ")
            .replace("PID", &self.child.id().to_string())
            .replacen("trapline", env!("CARGO_BIN_EXE_trapline"), 1);
        let mut shell = Command::new("sh");
        let output = shell.current_dir(&self.folder).args(["-c", &words]).stdin(Stdio::null()).output();
        let output = output.expect("a shell");
        let shown = text(&[output.stdout, output.stderr].concat());
        assert!(output.status.success(), "{command}: {}: {shown}", output.status);
        shown
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

/// Trapline's commands on the page: the last cell of each row.
fn commands() -> Vec<String> {
    let page = std::fs::read_to_string(Path::new(ROOT).join("docs/guide/from.md")).expect("the page");
    let of = |line: &str| {
        let cell = line.strip_suffix(" |")?.rsplit_once("| `")?.1.strip_suffix('`')?;
        cell.starts_with("trapline ").then(|| cell.to_owned())
    };
    page.lines().filter_map(of).collect()
}

#[test]
fn each_command_shows_what_it_should() {
    let shop = Shop::start();
    let commands = commands();
    assert_eq!(commands.len(), SHOWN.len(), "a row of the page has no test: {commands:#?}");
    for (command, (word, shows)) in commands.iter().zip(SHOWN) {
        assert!(command.contains(word), "{command}: the list is in another order, at {word}");
        let shown = shop.run(command);
        assert!(shown.contains(shows), "{command}: no `{shows}` in:\n{shown}");
        println!("{command}: shows `{shows}`");
    }
}
