//! Plans over the programs and libraries of this machine, checked from outside, against the design's lower
//! bounds.

mod common;

use common::{bias_of, every, files, map, plan, plan_by, traits_of};
use std::time::Instant;
use trapline_image::{Bytes, Convention, FunctionIndex, Image, NoDebugFiles};
use trapline_plan::{Action, ModulePlan, Tactic};

#[test]
fn entries_take_a_jump() {
    for (path, image) in files() {
        let map = map(&image);
        let requests = every(&image, Action::CountEntry);
        let plan = plan(&image, &map, &traits_of(&image), &requests);
        let jumps = plan.stats.of(Tactic::Jump) + plan.stats.of(Tactic::Short) + plan.stats.of(Tactic::Pun);
        let share = 100.0 * f64::from(jumps) / requests.len() as f64;
        println!("{path}: {share:.2} % of {} entries; {:?}", requests.len(), plan.stats);
        // Functions where a uprobe on the first byte does not touch the jump: most of them, as measured on
        // the files here.
        let behind = requests.iter().filter_map(|request| request.function).filter(|&f| {
            let start = bias_of(&image).live(image.function(f).start).0;
            !plan.patches.iter().any(|p| p.addr.0 == start)
        });
        let behind = 100.0 * (behind.count() - plan.refused.len()) as f64 / requests.len() as f64;
        println!("{path}: {behind:.2} % of entries' windows leave the first byte alone");
        // Debian's python has 60 to 71 functions of 3 bytes side by side, without padding or names.
        let floor = if path.contains("python") { 98.5 } else { 99.5 };
        assert!(share >= floor, "{path}: {share:.2} %, {:?}", plan.refused.first());
        assert_eq!(jumps as usize + plan.refused.len(), requests.len());
    }
}

/// SAFE-5: a Go program with a function table of no known version. Its runtime may go on at each instruction, so a
/// jump displaces one; and nothing else is known that more than counting needs.
#[test]
fn an_unknown_version_of_go_is_guarded() {
    const GO: &str = "/usr/local/go/bin/gofmt";
    let Ok(mut bytes) = std::fs::read(GO) else { return println!("SKIP: no Go here") };
    let image = common::image(GO);
    let named = |image: &Image, name: &str| {
        let is = |n: &u32| image.names(image.function(FunctionIndex(*n))).any(|one| one.raw == name);
        image.function(FunctionIndex((0..image.functions().len() as u32).find(is).expect("a function"))).start
    };
    let functions = ["main.main", "runtime.memmove"].map(|name| named(&image, name));
    assert!(!image.is_unknown_go());
    assert_eq!(
        functions.map(|at| image.keeps_goroutine(at + 1)),
        [true, false],
        "it is Go's compiler that does"
    );
    let of_known = plan(&image, &map(&image), &traits_of(&image), &every(&image, Action::CountEntry));
    assert!(of_known.patches.iter().any(|patch| patch.starts != 0));

    // The header of Go 1.20 and later: this word, two zeros, the quantum, the size of a pointer.
    let header = [0xf1, 0xff, 0xff, 0xff, 0, 0, 1, 8];
    let at = bytes.windows(8).position(|some| some == header).expect("a function table");
    bytes[at] = 0xe0;
    let image = Image::parse(Bytes::from(bytes), &mut NoDebugFiles).expect("a program");
    assert!(image.is_go() && image.is_unknown_go());
    assert!(functions.iter().all(|&at| image.convention_at(at) == Convention::Unknown));
    assert_eq!(functions.map(|at| image.keeps_goroutine(at + 1)), [false; 2]);
    let map = map(&image);
    let counted = plan(&image, &map, &traits_of(&image), &every(&image, Action::CountEntry));
    println!("{:?}", counted.stats);
    assert!(counted.stats.of(Tactic::Jump) > 0, "an instruction of five bytes takes a jump");
    assert!(counted.patches.iter().all(|patch| patch.starts == 0), "more than one instruction is displaced");
    let timed = plan(&image, &map, &traits_of(&image), &every(&image, Action::Latency));
    assert!(timed.patches.is_empty() && !timed.refused.is_empty());
    assert!(timed.refused.iter().all(|refused| refused.why.kind() == "unknown-go"), "{:?}", timed.refused[0]);
}

#[test]
fn exits_are_patchable() {
    for (path, image) in files() {
        let map = map(&image);
        for role in [Action::Latency, Action::CountExits] {
            let requests = every(&image, role);
            let plan = plan(&image, &map, &traits_of(&image), &requests);
            let refused = plan.refused.iter().filter(|r| r.why.kind() != "no-exit").count();
            let share = 100.0 - 100.0 * refused as f64 / requests.len() as f64;
            println!("{path} {role:?}: {share:.2} % of {}; {:?}", requests.len(), plan.stats);
            assert!(share >= 96.0, "{path} {role:?}: {share:.2} %");
        }
    }
}

/// Two threads plan a half each. Only short jumps to padding near the other half are given up.
#[test]
fn two_threads_refuse_what_one_does() {
    const STRIPPED: &str = "/usr/lib/gcc/x86_64-linux-gnu/12/cc1plus";
    let stripped =
        std::fs::metadata(STRIPPED).is_ok().then(|| (STRIPPED.to_owned(), common::image(STRIPPED)));
    if stripped.is_none() {
        println!("SKIP: no {STRIPPED} here");
    }
    for (path, image) in files().into_iter().chain(stripped) {
        let (map, requests) = (map(&image), every(&image, Action::Latency));
        let by = |alone| plan_by(&image, &map, &traits_of(&image), &requests, (&[], alone));
        let (one, two) = (by(true), by(false));
        let refused =
            |plan: &ModulePlan| plan.refused.iter().map(|refused| refused.request).collect::<Vec<_>>();
        let more = refused(&two).into_iter().filter(|request| !refused(&one).contains(request)).count();
        println!(
            "{path}: {} requests, {:?} by one, {:?} by two, {more} more refused",
            requests.len(),
            one.stats,
            two.stats
        );
        assert!(more * 5000 <= requests.len(), "{path}: {more} of {}", requests.len());
    }
}

#[test]
fn speed_is_printed() {
    let Some((path, image)) = files().into_iter().max_by_key(|(_, i)| i.functions().len()) else { return };
    let start = Instant::now();
    let map = map(&image);
    println!("{path}: map of {} functions {:?}", image.functions().len(), start.elapsed());
    let mut requests = every(&image, Action::CountEntry);
    requests.truncate(10_000);
    let mut best = std::time::Duration::MAX;
    let (bias, traits) = (common::bias_of(&image), traits_of(&image));
    let space = common::space_of(&image, bias);
    let layout = trapline_plan::DataLayout::new(&trapline_plan::bounds(&image, &map, &traits, &requests));
    for _ in 0..100 {
        let input = trapline_plan::ModuleInput {
            image: &image,
            bias,
            map: &map,
            traits: &traits,
            space: &space,
            code_region: None,
            patched: &[],
            alone: false,
            layout: &layout,
            far: trapline_record::RemoteAddr(0x2000_0000_0000),
            own_page: trapline_record::RemoteAddr(0x3000_0000_0000),
            regions: u32::MAX,
            latency: None,
            calls: None,
            filters: &[],
            requests: &requests,
        };
        let start = Instant::now();
        let plan = trapline_plan::plan_module(&input).unwrap();
        best = best.min(start.elapsed());
        assert_eq!(plan.stats.sites.iter().sum::<u32>() + plan.stats.refused, requests.len() as u32);
    }
    println!("{} functions planned in {best:?} at best", requests.len());
}
