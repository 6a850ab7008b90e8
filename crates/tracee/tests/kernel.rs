//! The kernel's own probes count the true number of hits.
mod common;

use std::io::Write;
use std::path::PathBuf;

use common::Victim;
use trapline_tracee::kernel::{KernelLatency, Uprobe, UprobeMulti};
use trapline_tracee::{MapWatcher, Process};

const SOURCE: &str = r#"
#include <stdio.h>
#include <dlfcn.h>
#include <unistd.h>
__attribute__((noinline)) int work(int x) { __asm__ volatile("" ::: "memory"); return x + 1; }
__attribute__((noinline)) int rest(int x) { __asm__ volatile("" ::: "memory"); return x + 2; }
int main() { printf("ready\n%p %p\n", work, rest); fflush(stdout); char c;
  while (read(0, &c, 1) == 1) {
    if (c == 'w') { for (int i = 0; i < 1000; i++) work(i); for (int i = 0; i < 10; i++) rest(i); }
    if (c == 'd') printf("%p\n", dlopen("libm.so.6", 2) ? dlopen("libutil.so.1", 2) : 0);
    puts("done"); fflush(stdout); } }
"#;

struct Case {
    victim: Victim,
    path: PathBuf,
    offsets: Vec<u64>,
}

fn case() -> Case {
    let mut victim = Victim::start(SOURCE);
    let line = victim.line();
    let process = Process::open(victim.pid()).unwrap();
    let maps = process.maps().unwrap();
    let offset = |text: &str| {
        let addr =
            trapline_record::RemoteAddr(u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap());
        let map = maps.iter().find(|m| m.contains(addr)).unwrap();
        map.offset.0 + (addr - map.start)
    };
    let offsets = line.split(' ').map(offset).collect();
    Case { path: process.exe_path().unwrap(), victim, offsets }
}

impl Case {
    fn run(&mut self, what: &[u8]) {
        self.victim.stdin.as_mut().unwrap().write_all(what).unwrap();
        while self.victim.line() != "done" {}
    }
}

fn skipped(test: &str) -> bool {
    let refusal = UprobeMulti::available().err();
    if let Some(why) = &refusal {
        eprintln!("SKIPPED {test}: {why}");
    }
    refusal.is_some()
}

#[test]
fn uprobe_multi_counts_to_the_hit() {
    if skipped("uprobe_multi") {
        return;
    }
    let mut case = case();
    let pid = Some(case.victim.pid());
    let probes: Vec<Uprobe> = case.offsets.iter().copied().map(Uprobe::from).collect();
    let entries = UprobeMulti::attach(&case.path, &probes, pid, false).unwrap();
    let returns = UprobeMulti::attach(&case.path, &probes, pid, true).unwrap();
    case.run(b"w");
    assert_eq!(entries.counts().unwrap(), [1000, 10]);
    assert_eq!(returns.counts().unwrap(), [1000, 10]);
    drop(entries);
    case.run(b"w");
    assert_eq!(returns.counts().unwrap(), [2000, 20]);
}

#[test]
fn the_kernel_histogram_holds_every_call() {
    if skipped("kernel latency") {
        return;
    }
    let mut case = case();
    let probe = KernelLatency::attach(&case.path, &case.offsets, Some(case.victim.pid())).unwrap();
    case.run(b"w");
    let buckets = probe.log2().unwrap();
    assert_eq!(buckets.iter().sum::<u64>(), 1010);
    assert!(buckets[6..20].iter().sum::<u64>() > 900, "{buckets:?}");
}

#[test]
fn a_library_that_is_opened_is_seen() {
    let mut case = case();
    let mut watcher = match MapWatcher::new(case.victim.pid()) {
        Ok(watcher) => watcher,
        Err(why) => return eprintln!("SKIPPED map watcher: {why}"),
    };
    assert_eq!(watcher.poll(), []);
    case.run(b"d");
    let seen = watcher.poll();
    let maps = Process::open(case.victim.pid()).unwrap().maps().unwrap();
    let new = seen.iter().find(|m| m.path.contains("libm")).unwrap_or_else(|| panic!("{seen:?}"));
    let map = maps.iter().find(|m| m.perms.exec && m.path.contains("libm")).unwrap();
    assert_eq!(
        (new.start, new.len, new.offset, Some(new.file)),
        (map.start, map.len(), map.offset, map.file)
    );
    assert_eq!((new.pid, watcher.lost()), (case.victim.pid(), 0));
}
