//! Scripts that take any function. The program is SQLite in Debian's Python; its statements say which calls there
//! are. And the memory that a program leaves, where valgrind is the judge.

use serde_json::json;
use std::process::Command;
use trapline_tests::or_skip;
use trapline_tests::scripts;
use trapline_tests::tracing::once;
use trapline_tests::twins::Both;
use trapline_tests::victims;

const SQLITE: &[(&str, &str)] = &[("libsqlite3", "/usr/lib/x86_64-linux-gnu/libsqlite3.so.0")];
const FIRST: &str = "import sqlite3, time; db = sqlite3.connect(':memory:', isolation_level=None); \
                     db.execute('create table t(a, b)'); db.create_function('nap', 1, time.sleep)";
const TIMES: u64 = 12;

/// One row each time, after 5 ms.
fn naps() -> String {
    format!("for _ in range({TIMES}): db.execute('select nap(0.005)').fetchall()")
}

#[test]
fn funclatency() {
    let mut both = or_skip!(Both::python("funclatency", &["libsqlite3", "sqlite3_step"], SQLITE, FIRST));
    both.run(&naps());
    let twice = both.stop();
    // A row, and the end.
    let calls = twice.ours.totals("@ns")[0].1;
    assert_eq!((calls, &twice.ours.maps["@calls"]["count"]), (2 * TIMES, &json!(2 * TIMES)));
    let buckets = twice.ours.maps["@ns"].as_array().expect("a histogram");
    let slow = buckets.iter().filter(|bucket| bucket["min"].as_u64() >= Some(1 << 22));
    let slow: u64 = slow.map(|bucket| bucket["count"].as_u64().expect("a number")).sum();
    assert!(slow >= TIMES, "{buckets:?}");
    or_skip!(twice.equal(|ran| ran.totals("@ns")));
}

#[test]
fn funcslower() {
    let mut both =
        or_skip!(Both::python("funcslower", &["libsqlite3", "sqlite3_step", "4000"], SQLITE, FIRST));
    both.run(&naps());
    let twice = both.stop();
    let words = twice.ours.words_from(2);
    let micros = |line: &String| line.split(' ').next().and_then(|word| word.parse::<u64>().ok());
    assert!(words.iter().all(|line| micros(line) >= Some(4000)), "{words:?}");
    // 100 is a row.
    let rows = |words: Vec<String>| words.iter().filter(|line| line.ends_with(" 0x64")).count() as u64;
    assert_eq!(rows(words), TIMES);
    or_skip!(twice.equal(|ran| rows(ran.words_from(2))));
}

#[test]
fn funccount() {
    let mut both = or_skip!(Both::python("funccount", &["libsqlite3", "sqlite3_bind_*"], SQLITE, FIRST));
    both.run("db.executemany('insert into t values (?, ?)', [(n, 'text') for n in range(40)])");
    both.run("db.executemany('insert into t values (?, ?)', [(n, 1.5) for n in range(3)])");
    let twice = both.stop();
    let calls = &twice.ours.maps["@calls"];
    assert_eq!(calls["sqlite3_bind_int64"], json!(43), "{calls}");
    assert_eq!((&calls["sqlite3_bind_text"], &calls["sqlite3_bind_double"]), (&json!(40), &json!(3)));
    or_skip!(twice.equal_maps());
}

#[test]
fn argdist() {
    let words = ["libsqlite3", "sqlite3_bind_int64", "2"];
    let mut both = or_skip!(Both::python("argdist", &words, SQLITE, FIRST));
    both.run("db.executemany('insert into t values (?, 0.5)', [(n % 3 * 1000,) for n in range(30)])");
    let twice = both.stop();
    assert_eq!(twice.ours.maps["@often"], json!({ "0": 10, "1000": 10, "2000": 10 }));
    assert_eq!(twice.ours.maps["@returned"], json!({ "0": 30 }));
    assert_eq!(twice.ours.totals("@value")[0].1, 30);
    or_skip!(twice.equal_maps());
}

#[test]
fn sqlitesnoop() {
    let mut both = or_skip!(Both::python("sqlitesnoop", &[], SQLITE, FIRST));
    both.run("db.executemany('insert into t values (?, ?)', [(n, n) for n in range(30)])");
    let rows = both.run("print(len(db.execute('select * from t where a > 10').fetchall()))");
    let twice = both.stop();
    assert_eq!(rows[0], ["19"]);
    let statements = json!({ "insertintotvalues(?,?)": 1, "select*fromtwherea>10": 1 });
    assert_eq!(twice.ours.maps["@statements"], statements);
    // 100 is a row, 101 the end.
    assert_eq!(twice.ours.maps["@steps"], json!({ "100": 19, "101": 31 }));
    or_skip!(twice.equal_maps());
}

/// The program ends by itself; what it leaves is what valgrind says that it leaves.
#[test]
fn memleak() {
    let path = or_skip!(victims::plain("leaks"));
    let valgrind = Command::new("valgrind").arg("--run-libc-freeres=no").arg(&path).output();
    let valgrind = or_skip!(valgrind.map_err(|error| format!("no valgrind: {error}")));
    let text = String::from_utf8_lossy(&valgrind.stderr).into_owned();
    let said = text.split("in use at exit: ").nth(1).expect("a summary").replace(',', "");
    let numbers: Vec<u64> = said.split(' ').filter_map(|word| word.parse().ok()).take(2).collect();
    let script = scripts::file("memleak").display().to_string();
    let output = once(&["run", "-q", "-f", "json", "-c", &path.display().to_string(), &script]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let maps: Vec<serde_json::Value> =
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let map = |name: &str| {
        let found = maps.iter().find(|line| !line["data"][name].is_null());
        found.map(|line| line["data"][name].clone()).unwrap_or_else(|| panic!("no {name}: {text}"))
    };
    let blocks: u64 =
        map("@left").as_object().expect("a map").values().filter_map(|count| count.as_u64()).sum();
    assert_eq!((map("@left_bytes").as_u64(), blocks), (Some(numbers[0]), numbers[1]), "{text}");
}
