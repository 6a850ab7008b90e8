//! A second opinion on PLAN-1: the direct branches that `objdump -d` sees are compared with the windows of
//! plans over real files.

mod common;

use common::{bias_of, every, image, plan, traits_of};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use trapline_image::{FunctionIndex, Image};
use trapline_plan::{Action, CodeMap, ModulePlan, PatchRole, Scope, TrapsPolicy};
use trapline_record::Svma;

/// Branches and calls that objdump finds: their addresses and targets.
fn branches(path: &str) -> Option<Vec<(u64, u64)>> {
    let mut child = Command::new("objdump")
        .args(["-d", "-w", "--no-show-raw-insn", path])
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let found = lines.map_while(Result::ok).filter_map(|line| branch(&line)).collect();
    assert!(child.wait().expect("objdump ends").success());
    Some(found)
}

/// Parses `  26c3f:\tjne    26c50 <name+0x10>`.
fn branch(line: &str) -> Option<(u64, u64)> {
    let (at, insn) = line.trim_start().split_once(":\t")?;
    let words = insn.trim_start_matches("bnd ").trim_start_matches("notrack ");
    let (mnemonic, rest) = words.split_once(' ')?;
    let direct = mnemonic.starts_with('j') || mnemonic.starts_with("call") || mnemonic.starts_with("loop");
    let target = rest.trim_start().split([' ', ',']).next()?;
    let target = u64::from_str_radix(target.trim_start_matches("0x"), 16).ok().filter(|_| direct)?;
    Some((u64::from_str_radix(at, 16).ok()?, target))
}

/// Branches from known code to an address strictly inside the changed bytes of a window.
fn into_windows(image: &Image, map: &CodeMap, plan: &ModulePlan, branches: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let bias = bias_of(image);
    let windows: Vec<(u64, u64)> = plan
        .patches
        .iter()
        .filter(|p| p.role != PatchRole::Island)
        .map(|p| (bias.stated(p.addr).0, u64::from(p.len)))
        .collect();
    let inside = |to: u64| {
        let below = windows.partition_point(|w| w.0 < to);
        below.checked_sub(1).is_some_and(|i| to - windows[i].0 < windows[i].1)
    };
    branches.iter().copied().filter(|&(at, to)| inside(to) && map.part_at(Svma(at)).is_ok()).collect()
}

#[test]
fn no_branch_leads_into_a_window() {
    for path in ["/usr/lib/x86_64-linux-gnu/libc.so.6", "/usr/bin/git", "/usr/bin/python3.11"] {
        if !std::path::Path::new(path).exists() {
            eprintln!("SKIPPED: {path} is not on this machine");
            continue;
        }
        let Some(branches) = branches(path) else {
            eprintln!("SKIPPED: objdump is not installed");
            return;
        };
        assert!(branches.len() > 10_000, "{} branches", branches.len());
        let image = image(path);
        let map = CodeMap::build(&image, Scope::All, 2);
        for role in [Action::CountEntry, Action::Latency] {
            let plan = plan(&image, &map, &traits_of(&image), &every(&image, role));
            let into = into_windows(&image, &map, &plan, &branches);
            assert!(into.is_empty(), "{path} {role:?}: {:x?}", &into[..into.len().min(8)]);
        }
        // Branches that a map of a few functions does not see are left to the guards. There are hardly any.
        let mut guarded = 0;
        let mut requests = every(&image, Action::Latency);
        for few in requests.chunks_mut(200) {
            for (n, request) in (0..).zip(few.iter_mut()) {
                (request.probe, request.latency) = (n, Some(n));
            }
            let map = CodeMap::build(&image, Scope::For(few), 2);
            let plan = plan(&image, &map, &traits_of(&image), few);
            let into = into_windows(&image, &map, &plan, &branches);
            let bias = bias_of(&image);
            assert!(into.iter().all(|&(_, to)| plan.resume(bias.live(Svma(to))).is_some()), "{into:x?}");
            guarded += into.len();
        }
        println!("{path}: {} branches, {guarded} of them only guarded when few are wanted", branches.len());
        assert!(guarded < 40, "{path}: {guarded}");
    }
}

#[test]
fn a_narrow_map_leads_to_the_same_plan_as_a_whole_one() {
    for path in ["/usr/lib/x86_64-linux-gnu/libcrypto.so.3", "/usr/bin/git"] {
        if !std::path::Path::new(path).exists() {
            continue;
        }
        let image = image(path);
        let whole = CodeMap::build(&image, Scope::All, 2);
        let count = image.functions().len() as u32;
        let mut differ = 0;
        for n in (0..count).step_by(1 + count as usize / 150) {
            let mut request = every(&image, Action::Latency)[n as usize];
            (request.probe, request.latency, request.function) = (0, Some(0), Some(FunctionIndex(n)));
            let narrow = CodeMap::build(&image, Scope::For(&[request]), 1);
            let traits = traits_of(&image);
            differ += u32::from(
                plan(&image, &narrow, &traits, &[request]).patches
                    != plan(&image, &whole, &traits, &[request]).patches,
            );
        }
        assert_eq!(differ, 0, "{path}: of {count}");
    }
}

#[test]
fn a_map_that_grew_is_as_one_made_at_once() {
    let path = "/usr/lib/x86_64-linux-gnu/libc.so.6";
    if !std::path::Path::new(path).exists() {
        return;
    }
    let image = image(path);
    // Some code is analysed in pieces, and some functions between them not at all; in order, and out of
    // order.
    let requests: Vec<_> = every(&image, Action::CallExits).into_iter().step_by(7).collect();
    let once = CodeMap::build(&image, Scope::For(&requests), 2);
    let mut grown = CodeMap::build(&image, Scope::For(&requests[..1]), 1);
    assert!(!grown.covers(&image, &requests));
    for few in requests.chunks(100).rev() {
        grown.cover(&image, few, 2);
        assert!(grown.covers(&image, few));
    }
    assert!(grown.covers(&image, &requests) && once.covers(&image, &requests));
    let mut targets = 0;
    for (n, function) in image.functions().iter().enumerate() {
        let index = FunctionIndex(n as u32);
        let of = |map: &CodeMap| (map.exit_bound(index), map.is_looped(index));
        assert_eq!(of(&grown), of(&once), "{}", function.start);
        for at in (function.start.0..function.end().0).map(Svma) {
            assert_eq!(grown.is_target(at), once.is_target(at), "{at}");
            targets += u32::from(once.is_target(at));
        }
        let holes = |map: &CodeMap| map.holes(&image, function.end(), 64).collect::<Vec<_>>();
        assert_eq!(holes(&grown), holes(&once), "{}", function.start);
    }
    assert!(targets > 10_000, "{targets}");
}

#[test]
fn restartable_sequences_are_left_alone() {
    let path = "/usr/lib/x86_64-linux-gnu/libc.so.6";
    if !std::path::Path::new(path).exists() {
        return;
    }
    let image = image(path);
    let map = CodeMap::build(&image, Scope::All, 2);
    let plan = plan(&image, &map, &traits_of(&image), &every(&image, Action::Latency));
    for section in image.rseq_sections() {
        let (from, to) =
            (bias_of(&image).live(section.start), bias_of(&image).live(section.start + section.len));
        assert!(plan.patches.iter().all(|p| p.addr + u64::from(p.len) <= from || to <= p.addr));
    }
}

#[test]
fn where_no_thread_may_trap_fewer_windows_have_seams() {
    let path = "/usr/bin/git";
    if !std::path::Path::new(path).exists() {
        return;
    }
    let image = image(path);
    let map = CodeMap::build(&image, Scope::All, 2);
    let requests = every(&image, Action::CountEntry);
    let usual = plan(&image, &map, &traits_of(&image), &requests);
    let strict = trapline_plan::ProcessTraits { traps: TrapsPolicy::MustNotTrap, ..traits_of(&image) };
    let strict = plan(&image, &map, &strict, &requests);
    println!("windows with a seam: {} usually, {} without traps", usual.stats.guarded, strict.stats.guarded);
    // Islands are used up by windows that would not have needed one.
    assert!(strict.stats.refused <= usual.stats.refused + 3);
    assert!(strict.stats.guarded < usual.stats.guarded);
}
