//! Scripts that look at what a program asks of the C library. The program is Debian's Python; what it is asked to do,
//! and what it answers, is what the scripts have to show.

use serde_json::json;
use trapline_tests::or_skip;
use trapline_tests::scripts::Ran;
use trapline_tests::twins::Both;

const LIBC: &[(&str, &str)] = &[("libc", "/lib/x86_64-linux-gnu/libc.so.6")];
const C: &str = "import ctypes, os, socket, time; c = ctypes.CDLL(None); c.malloc.restype = ctypes.c_void_p; \
                 c.getenv.restype = ctypes.c_char_p; c.free.argtypes = [ctypes.c_void_p]";

#[test]
fn getenvsnoop() {
    let mut both = or_skip!(Both::python("getenvsnoop", &[], LIBC, C));
    both.run("for _ in range(20): c.getenv(b'NO_SUCH_NAME')");
    let printed = both.run("print(c.getenv(b'PATH') is None, c.secure_getenv(b'HOME') == 0)");
    assert!(printed.iter().all(|lines| lines == &["False False"]), "{printed:?}");
    let twice = both.stop();
    assert_eq!(
        twice.ours.maps,
        json!({ "@unset": { "NO_SUCH_NAME": 20 }, "@set": { "PATH": 1, "HOME": 1 } })
    );
    or_skip!(twice.equal_maps());
}

#[test]
fn gethostlatency() {
    let mut both = or_skip!(Both::python("gethostlatency", &[], LIBC, C));
    both.run("for name in ['localhost', '127.0.0.1', 'localhost']: socket.getaddrinfo(name, 80)");
    both.run("c.gethostbyname(b'127.0.0.2')");
    let twice = both.stop();
    assert_eq!(twice.ours.words_from(3), ["localhost", "127.0.0.1", "localhost", "127.0.0.2"]);
    assert!(twice.ours.words_from(0)[0].starts_with(|digit: char| digit.is_ascii_digit()));
    or_skip!(twice.equal(|ran| ran.words_from(3)));
}

#[test]
fn naptime() {
    let mut both = or_skip!(Both::python("naptime", &[], LIBC, C));
    both.run("for micros in [1500, 2, 1000001 - 999999]: c.usleep(micros)");
    // Python sleeps until a moment of its own choice.
    let until = both.run("begun = time.monotonic(); time.sleep(0.01); print(begun, time.monotonic())");
    let twice = both.stop();
    let words = twice.ours.words_from(1);
    let naps =
        ["for 0.001500000", "for 0.000002000", "for 0.000002000"].map(|nap| format!("python3.11 {nap}"));
    assert_eq!(words[..3], naps);
    let bounds: Vec<f64> = until[0][0].split(' ').map(|word| word.parse().expect("a number")).collect();
    let moment: f64 = words[3].rsplit(' ').next().and_then(|word| word.parse().ok()).expect("a number");
    assert!(words[3].contains(" until "), "{words:?}");
    assert!(bounds[0] + 0.01 <= moment + 1e-6 && moment <= bounds[1], "{bounds:?} {moment}");
    or_skip!(twice.equal(|ran| ran.words_from(1)[..3].to_vec()));
}

#[test]
fn killsnoop() {
    let mut both = or_skip!(Both::python("killsnoop", &[], LIBC, C));
    both.run("import signal; signal.signal(signal.SIGUSR1, lambda *_: None)");
    both.run("os.kill(os.getpid(), signal.SIGUSR1); os.kill(os.getpid(), 0)");
    let pid = both.pid();
    let twice = both.stop();
    assert_eq!(twice.ours.words_from(2), [format!("10 {pid}"), format!("0 {pid}")]);
    let signals = |words: Vec<String>| -> Vec<String> {
        words.iter().map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect()
    };
    or_skip!(twice.equal(|ran| signals(ran.words_from(2))));
}

#[test]
fn connectsnoop() {
    let mut both = or_skip!(Both::python("connectsnoop", &[], LIBC, C));
    both.run("server = socket.create_server(('127.0.0.9', 0)); one = socket.socket()");
    let asked = both.run("one.connect(server.getsockname()); print(one.getpeername()[1])");
    both.run("print(socket.socket().connect_ex(('127.0.0.1', 258)))");
    both.run("print(socket.socket(socket.AF_UNIX).connect_ex('/no/such/socket'))");
    let twice = both.stop();
    assert_eq!(twice.ours.words_from(2), [format!("127.0.0.9 {}", asked[0][0]), "127.0.0.1 258".to_owned()]);
    or_skip!(twice.equal(|ran| (ran.lines.len(), ran.words_from(2)[1].clone())));
}

#[test]
fn opensnoop() {
    let mut both = or_skip!(Both::python("opensnoop", &[], LIBC, C));
    let opened = both.run("print(os.open('/etc/hostname', os.O_RDONLY), os.O_RDONLY | os.O_CLOEXEC)");
    both.run(r"try: os.open('/no/such/file', os.O_RDWR | os.O_CREAT)\nexcept OSError: pass");
    let twice = both.stop();
    assert_eq!(opened[0].len(), 1);
    let (fd, flags) = opened[0][0].split_once(' ').expect("two numbers");
    let flags: u32 = flags.parse().expect("a number");
    assert_eq!(twice.ours.words_from(2)[0], format!("{flags:#x} {fd} /etc/hostname"));
    assert_eq!(twice.ours.words_from(2)[1], "0x80042 -1 /no/such/file");
    or_skip!(twice.equal(|ran| ran.words_from(2)));
}

#[test]
fn rwsize() {
    let mut both = or_skip!(Both::python("rwsize", &[], LIBC, C));
    let ends = both.run("r, w = os.pipe(); print(r, w)");
    both.run("for n in range(10): os.write(w, b'x' * 100); os.read(r, 4096)");
    let twice = both.stop();
    let (r, w) = ends[0][0].split_once(' ').expect("two numbers");
    let (read, write) = (format!("read,{r}"), format!("write,{w}"));
    let (asked, got) = (&twice.ours.maps["@asked"], &twice.ours.maps["@got"]);
    assert_eq!((&asked[&read], &asked[&write]), (&json!(40960), &json!(1000)));
    assert_eq!((&got[&read], &got[&write]), (&json!(1000), &json!(1000)));
    or_skip!(twice.equal_maps());
}

#[test]
fn dlopensnoop() {
    let mut both = or_skip!(Both::python("dlopensnoop", &[], LIBC, C));
    both.run("ctypes.CDLL('libm.so.6')");
    let failed = both.run(r"try: ctypes.CDLL('libnothing.so.9')\nexcept OSError as error: print(error)");
    let twice = both.stop();
    assert!(failed[0][0].contains("cannot open shared object file"), "{failed:?}");
    assert_eq!(twice.ours.words_from(2), ["yes libm.so.6", "no libnothing.so.9"]);
    or_skip!(twice.equal(|ran| ran.words_from(2)));
}

#[test]
fn mallocsize() {
    let mut both = or_skip!(Both::python("mallocsize", &[], LIBC, C));
    both.run("for n in range(30): c.free(c.malloc(5000000))");
    let twice = both.stop();
    // Python itself allocates when it likes to.
    let large = |ran: &Ran| {
        let buckets = ran.maps["@bytes"].as_array().expect("a histogram");
        buckets.iter().find(|bucket| bucket["min"] == json!(1 << 22)).expect("a bucket").clone()
    };
    assert_eq!(large(&twice.ours), json!({ "min": 1 << 22, "max": (1 << 23) - 1, "count": 30 }));
    assert!(twice.ours.maps["@asked"]["total"].as_u64().is_some_and(|total| total >= 30 * 5_000_000));
    or_skip!(twice.equal(large));
}
