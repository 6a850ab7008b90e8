//! 10,000 functions: what attach and detach cost, and how long each part takes (COST-3). The bound is checked
//! on request, on a quiet machine: TRAPLINE_FIGURES=1.

mod common;

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use common::{Victim, compile_source, request};
use trapline_patch::{Options, attach};
use trapline_plan::{Action, ActionRequest};

const FUNCTIONS: usize = 10_000;

fn source() -> std::path::PathBuf {
    let mut text =
        String::from("#include <stdio.h>\n#include <string.h>\n#include <unistd.h>\nvolatile long x;\n");
    for n in 0..FUNCTIONS {
        let _ = writeln!(
            text,
            "__attribute__((noinline,noipa)) void w{n}(long a) {{ x += a * {n} + (a >> {}); }}",
            n % 60
        );
    }
    text.push_str("static void (*const all[])(long) = {");
    for n in 0..FUNCTIONS {
        let _ = write!(text, "w{n},");
    }
    text.push_str(
        "};\nint main(void) { char line[64]; setvbuf(stdout, NULL, _IOLBF, 0); puts(\"ready\");\n\
         while (fgets(line, 64, stdin) && strcmp(line, \"quit\\n\")) {\n\
         for (unsigned i = 0; i < sizeof all / sizeof *all; i++) all[i](i); puts(\"done\"); } _exit(0); }\n",
    );
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("many.c");
    if std::fs::read_to_string(&path).ok().as_deref() != Some(&text) {
        std::fs::write(&path, text).expect("writable");
    }
    path
}

#[test]
fn ten_thousand_functions() {
    let mut victim = Victim::start(&compile_source(&source(), "many", &["-O1"]), &[]);
    let names: Vec<String> = (0..FUNCTIONS).map(|n| format!("w{n}")).collect();
    let index: std::collections::HashMap<&str, u32> = victim
        .file
        .image
        .functions()
        .iter()
        .enumerate()
        .flat_map(|(i, f)| victim.file.image.names(f).map(move |n| (n.raw, i as u32)))
        .collect();
    let requests: Vec<ActionRequest> = names
        .iter()
        .enumerate()
        .map(|(probe, name)| ActionRequest {
            probe: probe as u32,
            latency: None,
            function: Some(trapline_image::FunctionIndex(index[name.as_str()])),
            action: Action::CountEntry,
        })
        .collect();
    let mut best = [Duration::MAX; 2];
    for round in 0..5 {
        let (mut attached, report) =
            attach(&victim.process, &request(&[victim.module(&requests)])).expect("attached");
        assert_eq!(report.refused.len() + report.placed.len(), FUNCTIONS);
        assert!(report.placed.len() * 1000 >= FUNCTIONS * 995, "{:?}", &report.refused[..3]);
        let attach = report.timings;
        assert_eq!(victim.ask("run"), "done");
        let segment = &attached.segments()[0];
        for placed in &report.placed {
            assert_eq!(segment.counters().read(segment.view(), placed.probe), 1, "{placed:?}");
        }
        let gone = attached.detach(&victim.process, &Options::default());
        let restored = &gone.restored[0];
        assert_eq!(restored.sites as usize, report.placed.len());
        eprintln!("round {round}: {attach:?}\n  stopped {:?}", report.batch.remote_stop);
        eprintln!(
            "  detach {:?}: restore {:?} quiesce {:?}",
            restored.total, restored.restore, restored.quiesce
        );
        best = [best[0].min(attach.total), best[1].min(restored.total)];
    }
    assert_eq!(victim.differences(), Vec::<String>::new());
    eprintln!("best: attach {:?} detach {:?}", best[0], best[1]);
    if std::env::var_os("TRAPLINE_FIGURES").is_some() {
        assert!(best[0] <= Duration::from_millis(30) && best[1] <= Duration::from_millis(40), "{best:?}");
    }
    victim.quit();
}
