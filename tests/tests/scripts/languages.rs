//! Scripts about interpreters and virtual machines, by their own USDT probes. The judges are the programs: what they
//! were asked to do, and what their garbage collectors count.

use std::path::Path;
use std::process::Command;

use serde_json::json;
use trapline_tests::or_skip;
use trapline_tests::programs::find;
use trapline_tests::running::Running;
use trapline_tests::scripts::Copies;
use trapline_tests::twins::{Both, interpreter};

const PYTHON: &[(&str, &str)] = &[("/usr/bin/python3.11", "/usr/bin/python3.11")];
const PHP: &[(&str, &str)] = &[("php8.2", "/usr/bin/php8.2")];
const RUBY: &[(&str, &str)] = &[("libruby-3.1", "/usr/lib/x86_64-linux-gnu/libruby-3.1.so.3.1")];

#[test]
fn pythoncalls() {
    let mut both = or_skip!(Both::python(
        "pythoncalls",
        &[],
        PYTHON,
        r"def inner(n): return n\ndef outer(n): return inner(n)"
    ));
    both.run("for n in range(25): outer(n)");
    both.run("inner(1)");
    let twice = both.stop();
    assert_eq!(twice.ours.maps["@returns"]["<string>,inner"], json!(26));
    assert_eq!(twice.ours.maps["@returns"]["<string>,outer"], json!(25));
    or_skip!(twice.equal_maps());
}

#[test]
fn pythongc() {
    let first = r"import gc; gc.disable(); gc.collect()\ndef cycle(): a = []; a.append(a)\nbefore = [one['collections'] for one in gc.get_stats()]";
    let mut both = or_skip!(Both::python("pythongc", &[], PYTHON, first));
    both.run("for n in [0, 1, 2, 2, 0, 2]: cycle(); gc.collect(n)");
    let counted = both.run("print(*[one['collections'] - was for one, was in zip(gc.get_stats(), before)])");
    let twice = both.stop();
    assert_eq!(counted[0], ["2 1 3"]);
    assert_eq!(twice.ours.maps["@collections"], json!({ "0": 2, "1": 1, "2": 3 }));
    // One cycle each.
    assert_eq!(twice.ours.maps["@collected"], json!(6));
    let mut pauses = twice.ours.totals("@pause_us");
    pauses.sort();
    assert_eq!(pauses, [("0".to_owned(), 2), ("1".to_owned(), 1), ("2".to_owned(), 3)]);
    or_skip!(twice.equal(|ran| (ran.maps["@collections"].clone(), ran.maps["@collected"].clone())));
}

/// Two of Debian's Ruby.
fn ruby(name: &str, first: &str) -> Result<Both, String> {
    let program = find(&["/usr/bin/ruby3.1"])?;
    let start = |copies: Option<&Copies>| {
        let mut command = Command::new(&program);
        command.args(["--disable-gems", "--disable-did_you_mean"]);
        interpreter(command, copies, "lines.rb", first)
    };
    Ok(Both::start(name, &[], RUBY, start))
}

const SHOP: &str = "class Shop; def price(n) = cost(n) + 1; def cost(n) = [n].sum; end; $shop = Shop.new; ";

#[test]
fn rubyflow() {
    let first = format!("{SHOP} TracePoint.new(:call, :return) {{}}.enable");
    let mut both = or_skip!(ruby("rubyflow", &first));
    both.run("3.times { |n| $shop.price(n) }");
    let twice = both.stop();
    let words = twice.ours.words_from(1);
    let own: Vec<&str> = words
        .iter()
        .filter(|line| line.contains("Shop#") || line.contains("Array#sum"))
        .filter_map(|line| line.split_once(' ').map(|(_, rest)| rest))
        .collect();
    let once = [
        "-> Shop#price line 1",
        "-> Shop#cost line 1",
        "-> Array#sum line 1",
        "<- Array#sum line 1",
        "<- Shop#cost line 1",
        "<- Shop#price line 1",
    ];
    assert_eq!(own, [once, once, once].concat(), "{words:?}");
    // Each method is one deeper than the one that calls it, at its begin and at its end.
    let depths = |what: &str| -> Vec<u64> {
        let depth = |line: &String| line.split(' ').next().and_then(|word| word.parse().ok());
        words.iter().filter(|line| line.contains(what)).filter_map(depth).collect()
    };
    let first = depths("Shop#price")[0];
    assert_eq!(depths("Shop#price"), [first; 6]);
    assert_eq!(depths("Shop#cost"), [first + 1; 6]);
    or_skip!(twice.equal(|ran| ran.words_from(1)));
}

#[test]
fn rubygc() {
    let mut both = or_skip!(ruby("rubygc", "GC.disable"));
    let counted = both.run("before = GC.count; 4.times { GC.start }; puts GC.count - before");
    let twice = both.stop();
    assert_eq!(counted[0], ["4"]);
    assert_eq!(twice.ours.maps["@times"]["mark"], json!(4));
    let marks = twice.ours.totals("@us").into_iter().find(|(key, _)| key == "mark");
    assert_eq!(marks, Some(("mark".to_owned(), 4)));
    or_skip!(twice.equal(|ran| ran.maps["@times"]["mark"].clone()));
}

#[test]
fn rubyobjects() {
    let mut both = or_skip!(ruby("rubyobjects", SHOP));
    let counted = both.run(
        "GC.disable; before = ObjectSpace.each_object(Shop).count; 30.times { Shop.new; Array.new(1) }; \
         puts ObjectSpace.each_object(Shop).count - before",
    );
    let twice = both.stop();
    assert_eq!(counted[0], ["30"]);
    assert_eq!(twice.ours.maps["@objects"]["Shop,lines,1"], json!(30), "{}", twice.ours.maps);
    or_skip!(twice.equal_maps());
}

#[test]
fn phpflow() {
    let program = or_skip!(find(&["/usr/bin/php8.2"]));
    let start = |copies: Option<&Copies>| {
        let copy = copies.and_then(|copies| copies.get("php8.2"));
        let mut command = Command::new(copy.unwrap_or(&program));
        command.arg("-n").env("USE_ZEND_DTRACE", "1");
        let first = "class Shop { function price($n) { return cost($n) + 1; } } function cost($n) { return $n * 2; } $shop = new Shop;";
        interpreter(command, copies, "lines.php", first)
    };
    let mut both = Both::start("phpflow", &[], PHP, start);
    both.run("for ($n = 0; $n < 5; $n++) $shop->price($n);");
    let twice = both.stop();
    let words = twice.ours.words_from(2);
    let own: Vec<&String> =
        words.iter().filter(|line| line.contains("cost") || line.contains("Shop::")).collect();
    let once = ["-> Shop::price line 1", "-> cost line 1", "<- cost line 1", "<- Shop::price line 1"];
    assert_eq!(own, [once; 5].concat(), "{words:?}");
    or_skip!(twice.equal(|ran| ran.words_from(1)));
}

/// Debian's OpenJDK with a program of ours; the collector's own lines go to standard output.
fn java(name: &str) -> Result<(Both, Folder), String> {
    let java = find(&["/usr/lib/jvm/java-17-openjdk-amd64/bin/java"])?;
    let compiler = find(&["/usr/lib/jvm/java-17-openjdk-amd64/bin/javac"])?;
    let folder = Folder::new(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("victims/Lines.java");
    let compiled = Command::new(compiler).arg("-d").arg(&folder.0).arg(source).status();
    assert!(compiled.is_ok_and(|status| status.success()));
    let mut command = Command::new(java);
    command.args(["-Xint", "-XX:+UseSerialGC", "-XX:+DTraceMethodProbes", "-Xlog:gc", "-cp"]);
    let running = Running::spawn({
        command.arg(&folder.0).arg("Lines");
        command
    });
    while running.line() != "ready" {}
    Ok((Both::alone(name, &[], running), folder))
}

/// A temporary folder, removed when dropped.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("trapline-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

#[test]
fn javacalls() {
    let (mut both, _folder) = or_skip!(java("javacalls"));
    // As fast as it can: the script's block runs in the target, so nothing waits for the tracer, however late that is.
    both.run("20000");
    both.run("7");
    let calls = both.stop().ours.maps["@calls"].clone();
    assert_eq!((&calls["Lines,cost,(I)I"], &calls["Lines,price,(I)I"]), (&json!(20007), &json!(20007)));
    assert_eq!(calls["java/lang/System,gc,()V"], json!(2));
}

#[test]
fn javagc() {
    let (mut both, _folder) = or_skip!(java("javagc"));
    let printed: Vec<String> = (1..=3).flat_map(|_| both.run("1").swap_remove(0)).collect();
    let twice = both.stop();
    let told = printed.iter().filter(|line| line.contains("Pause Full")).count();
    assert_eq!(told, 3, "{printed:?}");
    assert_eq!(twice.ours.maps["@times"], json!({ "full": 3 }));
    assert_eq!(twice.ours.totals("@full_us")[0].1, 3);
}

#[test]
fn javathreads() {
    let (mut both, _folder) = or_skip!(java("javathreads"));
    both.run("11");
    both.run("12");
    let words = both.stop().ours.words_from(1);
    let own = |line: &&String| line.contains("worker-");
    let seen: Vec<String> = words
        .iter()
        .filter(own)
        .map(|line| {
            line.split(' ')
                .enumerate()
                .filter(|(nth, _)| *nth != 1)
                .map(|(_, word)| word)
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect();
    assert_eq!(seen, ["start worker-11", "stop worker-11", "start worker-12", "stop worker-12"]);
}
