//! A debugger's backtrace through replaced return addresses (`docs/gdb/trapline_return_trampolines.py`).

use std::path::Path;
use std::process::Command;

use trapline_record::control::at;
use trapline_record::trampolines::{self, Trampolines};
use trapline_tests::debugger::{self, backtraces, names};
use trapline_tests::running::Running;
use trapline_tests::tracing::Tracing;
use trapline_tests::{or_skip, victims};

#[test]
fn gdb_walks_through_trampolines() {
    let path = or_skip!(victims::cpp("returning"));
    let mut running = Running::start(&path, &[]);
    running.begin(2);
    assert_eq!(running.line(), "blocking", "two calls deep");
    let bare = or_skip!(backtraces(running.pid(), true));
    running.send("go");
    let reported = running.reported();

    let pid = running.pid().to_string();
    let words = ["-p", &pid, "-F", "--ret=stack", "outer", "inner", "blocked"];
    let tracing = Tracing::start("lat", &words).expect("attaches");
    running.begin(2);
    assert_eq!(running.line(), "blocking", "two calls deep");
    let armed = or_skip!(backtraces(running.pid(), true));
    running.send("go");
    assert_eq!(running.reported(), reported);
    assert_eq!(tracing.stop().field("outer", "calls"), 1);

    let bare = names(&bare[0]);
    assert!(["blocked", "inner", "outer", "main"].iter().all(|name| bare.contains(name)), "{bare:?}");
    let armed = names(&armed[0]);
    assert_eq!(armed.iter().filter(|name| **name == "??").count(), 3, "{armed:?}");
    let theirs: Vec<&str> = armed.into_iter().filter(|name| *name != "??").collect();
    assert_eq!(theirs, bare);
}

/// Checks what the script does for a frame with its program counter in a return trampoline, on either
/// processor. gdb's own Python runs it on a made-up process and frame.
const MADE_UP: &str = r#"
import gdb
CODE_AT, ENTRIES = 0x7f0000100000, 0x7f0000200000
REALS = {ENTRIES + 64 * 3: CODE_AT + 32 * 5 + 4, ENTRIES + 64 * 5: 0x555500001234}
tables = lambda inferior: [(CODE_AT, 64, ENTRIES)]
word = lambda inferior, address: REALS[address]
class Inferior:
    pid = 1
gdb.selected_inferior = lambda: Inferior
class Frame:
    def __init__(self, name, **registers):
        self.name, self.registers, self.saved = name, registers, {}
    def architecture(self):
        return type("Architecture", (), {"name": lambda _: self.name})()
    def read_register(self, name):
        return gdb.Value(self.registers.get(name, 7)).cast(gdb.lookup_type("long long"))
    def create_unwind_info(self, at):
        return self
    def add_saved_register(self, name, value):
        self.saved[name] = int(value)
slot = CODE_AT + 32 * 3 + 4
for name, sp, pc, signed in [("i386:x86-64", "rsp", "rip", 0), ("aarch64", "sp", "pc", 0), ("aarch64", "sp", "pc", 0x2a << 48)]:
    found = ReturnTrampolines()(Frame(name, **{sp: 4096, pc: slot | signed}))
    print("FOUND", name, hex(found.saved[pc]), found.saved[sp], len(found.saved), set(found.saved.values()) == {7, 4096, found.saved[pc]})
for name, pc, at in [("aarch64", "pc", CODE_AT - 4), ("arm", "pc", slot)]:
    print("NONE", ReturnTrampolines()(Frame(name, **{pc: at})))
"#;

#[test]
fn the_script_knows_both_processors() {
    or_skip!(debugger::ready());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/gdb/trapline_return_trampolines.py");
    let made_up = std::env::temp_dir().join(format!("trapline-gdb-{}.py", std::process::id()));
    std::fs::write(&made_up, MADE_UP).expect("a temporary file");
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch"]);
    [&script, &made_up].into_iter().for_each(|file| _ = gdb.arg("-x").arg(file));
    let output = gdb.output().expect("gdb");
    std::fs::remove_file(&made_up).expect("ours");
    let output_text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    // The script goes through one trampoline to another, and from there to the program. All registers but the
    // program counter stay.
    let found = |name: &str, registers: u32| format!("FOUND {name} 0x555500001234 4096 {registers} True\n");
    let expected =
        [found("i386:x86-64", 17), found("aarch64", 33).repeat(2), "NONE None\n".repeat(2)].concat();
    assert_eq!(output_text, expected, "{errors}");
}

/// The script's constants are those of the crate that declares them.
#[test]
fn the_script_knows_the_layout() {
    let script = include_str!("../../docs/gdb/trapline_return_trampolines.py");
    let control = format!(
        "TRAMPOLINES_CODE, TRAMPOLINES_TABLE, TRAMPOLINES_COUNT = {}, {}, {}\n",
        at::TRAMPOLINES_CODE,
        at::TRAMPOLINES_TABLE,
        at::TRAMPOLINES_COUNT
    );
    let entries = format!(
        "HINTS_LEN, CODE, ENTRY, REAL, CHAIN = {}, {}, {}, {}, {}\n",
        Trampolines::LENT_OFF,
        trampolines::CODE,
        trampolines::ENTRY,
        trampolines::at::REAL,
        trampolines::CHAIN
    );
    assert!(script.contains(&control), "{control}");
    assert!(script.contains(&entries), "{entries}");
    assert!(script.contains(&format!("/memfd:{}\"", trapline_record::control::MEMFD_NAME)));
}
