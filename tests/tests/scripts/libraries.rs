//! Scripts about libraries: OpenSSL, allocators, and C++'s exceptions.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;
use trapline_tests::or_skip;
use trapline_tests::programs::find;
use trapline_tests::running::Running;
use trapline_tests::scripts::{Copies, Ran};
use trapline_tests::twins::{Both, Started, interpreter};
use trapline_tests::victims;

const SSL: &[(&str, &str)] = &[("libssl", "/usr/lib/x86_64-linux-gnu/libssl.so.3")];

/// A certificate and its key, in one file that is removed when dropped.
struct Certificate(std::path::PathBuf);

impl Certificate {
    fn new(name: &str) -> Result<Self, String> {
        find(&["/usr/bin/openssl"])?;
        let file = std::env::temp_dir().join(format!("trapline-{name}-{}.pem", std::process::id()));
        let mut command = Command::new("openssl");
        command.args([
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
        ]);
        command.arg("-keyout").arg(&file).arg("-out").arg(file.with_extension("crt")).stderr(Stdio::null());
        assert!(command.status().is_ok_and(|status| status.success()));
        let both = std::fs::read(&file).and_then(|mut key| {
            key.extend(std::fs::read(file.with_extension("crt"))?);
            std::fs::remove_file(file.with_extension("crt"))?;
            std::fs::write(&file, key)
        });
        both.map(|()| Self(file)).map_err(|error| error.to_string())
    }
}

impl Drop for Certificate {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

/// Client and server in one process, which count their own calls.
const PAIR: &str = r"import ssl\nto, back = ssl.MemoryBIO(), ssl.MemoryBIO()\nsays = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); says.load_cert_chain('PEM')\nasks = ssl.create_default_context(); asks.check_hostname = False; asks.verify_mode = ssl.CERT_NONE\nclient = asks.wrap_bio(back, to); server = says.wrap_bio(to, back, server_side=True)\nshakes = [0, 0]\ndef shake(one):\n  shakes[0] += 1\n  try: one.do_handshake(); return True\n  except ssl.SSLWantReadError: shakes[1] += 1; return False";

#[test]
fn ssllatency() {
    let certificate = or_skip!(Certificate::new("ssllatency"));
    let first = PAIR.replace("PEM", &certificate.0.display().to_string());
    let mut both = or_skip!(Both::python("ssllatency", &["--ret=stack"], SSL, &first));
    both.run(r"while not all([shake(client), shake(server)]): pass");
    both.run(r"for n in range(20): client.write(b'x' * 100); server.read(100)");
    let tried = both.run(r"try: client.read(1)\nexcept ssl.SSLWantReadError: print(*shakes)");
    let twice = both.stop();
    let (all, unfinished) = tried[0][0].split_once(' ').expect("two numbers");
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let totals = |ran: &Ran| {
        let mut totals = ran.totals("@us");
        totals.sort();
        totals.into_iter().map(|(_, total)| total).collect::<Vec<_>>()
    };
    // Handshakes, reads, writes.
    assert_eq!(totals(&twice.ours), [number(all), 21, 20]);
    assert_eq!(twice.ours.maps["@unfinished"], json!({ "handshake": number(unfinished), "read": 1 }));
    or_skip!(twice.equal(|ran| (totals(ran), ran.maps["@unfinished"].clone())));
}

/// A server that prints what it receives, and sends it back in two lines.
const ECHO: &str = r"import ssl, socket\ncontext = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); context.load_cert_chain('PEM')\nlistener = socket.create_server(('127.0.0.1', 0)); print(listener.getsockname()[1], flush=True)\ncame = context.wrap_socket(listener.accept()[0], server_side=True)\nwhile True:\n  text = came.recv(1000)\n  if not text: break\n  print(repr(text), flush=True)\n  came.sendall(text + b'done\x0a')";

#[test]
fn sslsnoop() {
    let certificate = or_skip!(Certificate::new("sslsnoop"));
    let python = or_skip!(trapline_tests::programs::python());
    let start = |copies: Option<&Copies>| {
        let mut server = interpreter(Command::new(&python), None, "lines.py", "pass");
        server.send(&ECHO.replace("PEM", &certificate.0.display().to_string()));
        let mut command = Command::new("openssl");
        command.args(["s_client", "-quiet", "-connect", &format!("127.0.0.1:{}", server.line())]);
        if let Some(copies) = copies {
            command.env("LD_LIBRARY_PATH", copies.folder());
        }
        let mut running = Running::spawn({
            command.stderr(Stdio::null());
            command
        });
        running.send("first");
        assert_eq!([running.line(), running.line()], ["first", "done"]);
        assert_eq!(server.line(), r"b'first\n'");
        Started { pid: running.pid(), running, kept: vec![Box::new(server)] }
    };
    let mut both = Both::start("sslsnoop", &[], SSL, start);
    let secrets = ["the password is hunter2", "and the other one, too"];
    secrets.iter().for_each(|secret| drop(both.run(secret)));
    let server = both.kept::<Running>().expect("a server");
    let received = [server.line(), server.line()];
    let twice = both.stop();
    assert_eq!(received, secrets.map(|secret| format!(r"b'{secret}\n'")));
    let mut expected = Vec::new();
    for secret in secrets {
        expected.push(format!(r"write {} {secret}\x0a", secret.len() + 1));
        expected.push(format!("read {}", secret.len() + 1 + "done\n".len()));
    }
    assert_eq!(twice.ours.words_from(2), expected);
    or_skip!(twice.equal(|ran| ran.words_from(2)));
}

/// A Python with another allocator, and how often it was asked for five million bytes.
fn allocator(name: &str, library: &str, file: &str, more: &str) -> Result<(Both, Vec<Vec<String>>), String> {
    let python = trapline_tests::programs::python()?;
    find(&[file])?;
    let start = |copies: Option<&Copies>| {
        let mut command = Command::new(&python);
        let copy = copies.and_then(|copies| copies.get(library)).unwrap_or(Path::new(file));
        command.env("LD_PRELOAD", copy);
        let first = "import ctypes; c = ctypes.CDLL(None); c.malloc.restype = ctypes.c_void_p; c.free.argtypes = [ctypes.c_void_p]";
        let mut running = interpreter(command, None, "lines.py", first);
        running.send(more);
        assert_eq!(running.line(), "done");
        running
    };
    let mut both = Both::start(name, &[], &[(library, file)], start);
    both.run("for n in range(40): c.free(c.malloc(5000000))");
    let printed = both.run("print(large() - before)");
    Ok((both, printed))
}

/// How many requests there were for four to eight million bytes.
fn large(ran: &Ran) -> Option<u64> {
    let buckets = ran.maps["@size"].as_array().expect("a histogram");
    buckets.iter().find(|bucket| bucket["min"] == json!(1 << 22)).and_then(|bucket| bucket["count"].as_u64())
}

#[test]
fn jemallocrate() {
    // What jemalloc itself counts.
    let more = r"def ask(name, new=None):\n  value, size = ctypes.c_uint64(1), ctypes.c_size_t(8)\n  c.mallctl(name, ctypes.byref(value), ctypes.byref(size), new and ctypes.byref(new), 8 if new else 0)\n  return value.value\ndef large():\n  ask(b'epoch', ctypes.c_uint64(1))\n  return ask(b'stats.arenas.4096.large.nmalloc')\nc.free(c.malloc(5000000)); before = large()";
    let file = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";
    let (both, printed) = or_skip!(allocator("jemallocrate", "libjemalloc", file, more));
    let twice = both.stop();
    assert_eq!(printed[0], ["40"]);
    assert_eq!(large(&twice.ours), Some(40));
    assert!(twice.ours.maps["@calls"]["free"].as_u64() >= Some(40));
    or_skip!(twice.equal(large));
}

#[test]
fn tcmallocrate() {
    let file = "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4";
    let more = "large = lambda: 0; before = 0";
    let (both, _) = or_skip!(allocator("tcmallocrate", "libtcmalloc_minimal", file, more));
    let twice = both.stop();
    assert_eq!(large(&twice.ours), Some(40));
    assert!(twice.ours.maps["@bytes"].as_u64() >= Some(40 * 5_000_000));
    or_skip!(twice.equal(large));
}

#[test]
fn cppthrow() {
    let path = or_skip!(victims::cpp("exceptions"));
    let files = [("libstdc++", "/usr/lib/x86_64-linux-gnu/libstdc++.so.6")];
    let start = |copies: Option<&Copies>| {
        let mut command = Command::new(&path);
        if let Some(copies) = copies {
            command.env("LD_LIBRARY_PATH", copies.folder());
        }
        let running = Running::spawn(command);
        assert_eq!(running.line(), "ready");
        running
    };
    let mut both = Both::start("cppthrow", &[], &files, start);
    let printed = both.victims(30);
    let twice = both.stop();
    let (errors, numbers) = (printed["errors"], printed["numbers"]);
    assert_eq!(twice.ours.maps["@thrown"], json!({ "St13runtime_error": errors, "i": numbers }));
    assert_eq!(twice.ours.maps["@rethrown"], json!(printed["again"]));
    assert_eq!(twice.ours.maps["@caught"], json!(errors + numbers + printed["again"]));
    or_skip!(twice.equal_maps());
}
