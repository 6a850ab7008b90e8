//! Prints, for each file, by which tactics its functions' entries and exits would be reached: `patchability
//! FILE…`.

use std::collections::BTreeMap;
use std::time::Instant;
use trapline_image::{Bytes, FunctionIndex, Image, NoDebugFiles};
use trapline_plan::{Action, ActionRequest, CodeMap, ProcessTraits, Refusal, Scope, Tactic, preview};

fn main() {
    println!(
        "{:<24} {:>9} {:>8} | {:<24} {:>8} | {:<24}  refused",
        "file", "functions", "map ms", "entries: jump short pun", "some %", "exits: jump short pun  %"
    );
    for path in std::env::args().skip(1) {
        match std::fs::read(&path).map(|bytes| Image::parse(Bytes::from(bytes), &mut NoDebugFiles)) {
            Ok(Ok(image)) => row(&path, &image),
            Ok(Err(why)) => eprintln!("{path}: {why}"),
            Err(why) => eprintln!("{path}: {why}"),
        }
    }
}

fn row(path: &str, image: &Image) {
    let start = Instant::now();
    let map = CodeMap::build(image, Scope::All, 2);
    let took = start.elapsed();
    let traits = ProcessTraits { go: image.is_go(), ..ProcessTraits::usual(2) };
    let all: Vec<_> = (0..image.functions().len() as u32).map(FunctionIndex).collect();
    let answers = |role: Action| -> Vec<_> {
        let latency = |probe| role.is_timed().then_some(probe);
        let request = |(probe, &function): (u32, &FunctionIndex)| ActionRequest {
            probe,
            latency: latency(probe),
            function: Some(function),
            action: role,
        };
        let requests: Vec<ActionRequest> = (0..).zip(&all).map(request).collect();
        preview(image, &map, &traits, &requests, false).into_iter().map(|(answer, _)| answer).collect()
    };
    let (entries, exits) = (answers(Action::CountEntry), answers(Action::Latency));
    let name = path.rsplit('/').next().unwrap_or(path);
    println!(
        "{name:<24} {:>9} {:>8.1} | {} | {}  {} / {}",
        all.len(),
        took.as_secs_f64() * 1e3,
        shares(&entries),
        shares(&exits),
        reasons(&entries),
        reasons(&exits)
    );
}

fn shares(answers: &[Result<Tactic, Refusal>]) -> String {
    let of = |tactic| answers.iter().filter(|a| **a == Ok(tactic)).count();
    let percent = |n: usize| 100.0 * n as f64 / answers.len().max(1) as f64;
    let counts = [Tactic::Jump, Tactic::Short, Tactic::Pun].map(of);
    format!("{:>8} {:>7} {:>7} {:>8.2}", counts[0], counts[1], counts[2], percent(counts.iter().sum()))
}

fn reasons(answers: &[Result<Tactic, Refusal>]) -> String {
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for why in answers.iter().filter_map(|a| a.as_ref().err()) {
        let inner = match why {
            Refusal::ExitUnpatchable { why, .. } => format!("exit:{}", why.kind()),
            _ => why.kind().to_owned(),
        };
        *kinds.entry(inner).or_default() += 1;
    }
    format!("{kinds:?}")
}
