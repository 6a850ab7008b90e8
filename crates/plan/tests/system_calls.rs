//! SYS-1: which system calls of a program's own are found, where their numbers and arguments come from, and that
//! each can be held by a jump that covers none.
#![cfg(target_arch = "x86_64")]

mod common;

use std::collections::BTreeMap;

use common::{image, map, plan, traits_of};
use trapline_image::Image;
use trapline_plan::Origin::{Constant, Memory, Register, Unknown};
use trapline_plan::{Action, ActionRequest, Hold, Origin, SystemCall, system_calls};
use trapline_record::control::fact::{CLOCK, FAULTS, FILTER, TRAPS};
use trapline_tests::{or_skip, victims};

/// By the functions' names: the words of each call.
fn words(image: &Image, calls: &[SystemCall]) -> BTreeMap<String, Vec<[Origin; 3]>> {
    let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for call in calls {
        let Hold::Call(words) = call.hold else { panic!("{call:?}") };
        let function = image.function(call.function);
        for name in image.names(function) {
            all.entry(name.raw.to_owned()).or_default().push(words);
        }
    }
    all
}

/// Plans all of them.
fn assert_planned(image: &Image, calls: &[SystemCall]) {
    let requests: Vec<ActionRequest> = (0u32..)
        .zip(calls)
        .map(|(probe, call)| ActionRequest {
            probe,
            latency: None,
            function: Some(call.function),
            action: Action::HoldAt(call.at, call.hold),
        })
        .collect();
    let plan = plan(image, &map(image), &traits_of(image), &requests);
    assert!(plan.refused.is_empty(), "{:?}", plan.refused);
    assert_eq!(plan.patches.len(), calls.len());
    for patch in &plan.patches {
        let window = &patch.old[..usize::from(patch.len)];
        assert!(!window.windows(2).any(|two| two == [0x0F, 0x05]), "{patch:?}");
    }
}

#[test]
fn the_shapes_of_calls_are_found() {
    let image = image(or_skip!(victims::plain("own_calls")).to_str().expect("a path"));
    let calls = system_calls(&image);
    let found = words(&image, &calls);
    assert_eq!(found["wrapped"], [[Register(0), Register(7), Register(6)]], "at the last five bytes");
    assert_eq!(found["on_stack"], [[Memory { base: 4, offset: 8 }, Register(7), Register(6)]]);
    let all: Vec<_> = found.values().flatten().collect();
    for expected in [[Constant(157), Constant(26), Constant(2)], [Constant(13), Constant(11), Unknown]] {
        let is = |words: &&&[Origin; 3]| words[0] == expected[0] && words[1] == expected[1];
        assert!(all.iter().any(|words| is(&words)), "{expected:?} in {all:?}");
    }
    // It calls rt_sigreturn.
    assert!(!found.contains_key("restore"), "{found:?}");
    assert_planned(&image, &calls);
    let changed = calls.iter().fold(0, |all, call| all | call.facts);
    assert_eq!(changed, CLOCK | FAULTS | FILTER | TRAPS);
}

#[test]
fn gos_calls_are_found() {
    let image = image(or_skip!(victims::go("raw_calls")).to_str().expect("a path"));
    let calls = system_calls(&image);
    let found = words(&image, &calls);
    let (_, all) =
        found.iter().find(|(name, _)| name.ends_with("Syscall6")).expect("the function by which Go calls");
    assert_eq!(*all, [[Register(0), Register(3), Register(1)]], "as Go passes arguments");
    assert_planned(&image, &calls);
}

/// Its names are not used here.
#[test]
fn the_c_librarys_calls_are_found_by_their_code() {
    let image = image(or_skip!(victims::c("changes", victims::Variant::Static)).to_str().expect("a path"));
    let found = words(&image, &system_calls(&image));
    assert_eq!(found["prctl"][0][0], Constant(157), "{:?}", found["prctl"]);
    assert!(found.contains_key("syscall") && found.contains_key("__libc_sigaction"), "{found:?}");
}
