//! Scripts run in a world of which everything is known.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::rc::Rc;

use trapline_script::{
    Clock, Hit, Machine, Meaning, Memory, Options, Probe, Source, StackMode, Stream, Style, World, compile,
};

/// A world that keeps what is written. Its time stands still.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) output: Vec<u8>,
    pub(crate) errors: Vec<u8>,
}

impl World for Known {
    fn write(&mut self, stream: Stream, bytes: &[u8]) {
        let to = if stream == Stream::Output { &mut self.output } else { &mut self.errors };
        to.extend(bytes);
    }
    fn now(&mut self, clock: Clock) -> u64 {
        match clock {
            Clock::Monotonic => 1_000,
            Clock::Boot => 2_000,
            Clock::Tai => 37_000_000_000,
            Clock::Wall => 86_400_000_002_000,
        }
    }
    fn number(&mut self, of: Meaning) -> Option<u64> {
        match of {
            Meaning::Uid => Some(7),
            Meaning::Cpu => Some(3),
            _ => None,
        }
    }
    fn file(&mut self, path: &str, _: u64) -> Result<Vec<u8>, String> {
        if path == "/there" { Ok(b"text\n".to_vec()) } else { Err("No such file or directory".to_owned()) }
    }
    fn command(&mut self, text: &str) -> Result<Vec<u8>, String> {
        Ok(format!("ran {text}").into_bytes())
    }
    fn signal(&mut self, _: u32, _: i32) -> Result<(), String> {
        Ok(())
    }
    fn user(&mut self, uid: u32) -> Option<String> {
        (uid == 7).then(|| "seven".to_owned())
    }
    fn cgroup_path(&mut self, id: u64) -> String {
        format!("unified:/{id}")
    }
    fn symbol(&mut self, _: u32, address: u64) -> String {
        format!("{address:#x}")
    }
    fn stack(&self, frames: &[u64], _: StackMode) -> Vec<u8> {
        format!("{frames:x?}").into_bytes()
    }
    fn ahead(&self, _: i64) -> i32 {
        0
    }
}

/// What a run wrote.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) output: String,
    pub(crate) errors: String,
    pub(crate) status: Option<i32>,
}

/// A hit as our own process has it.
pub(crate) fn own() -> Hit {
    let mut memory = Memory::default();
    memory.add(0x1000, (0..64).collect(), true);
    Hit { pid: 12, tid: 13, comm: b"tester".to_vec(), memory, ..Hit::default() }
}

/// Runs the blocks at begin, each interval once, then those at end.
pub(crate) fn run_with(script: &str, options: &Options, style: Style) -> Ran {
    let compiled = compile(Source::new("stdin", script.as_bytes()), options)
        .unwrap_or_else(|errors| panic!("{script}\n{errors}"));
    let mut world = Known::default();
    let mut machine = Machine::new(Rc::new(compiled.program), style, &mut world);
    machine.series_clock("@clock");
    machine.run_all(|probe| *probe == Probe::Begin, &own(), &mut world);
    machine.run_all(|probe| matches!(probe, Probe::Interval(..)), &own(), &mut world);
    machine.end();
    machine.run_all(|probe| *probe == Probe::End, &own(), &mut world);
    machine.finish(&mut world);
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ran {
        output: text(world.output),
        errors: compiled.warnings + &text(world.errors),
        status: machine.exit(),
    }
}

/// The output of a script as text, without the empty lines before the maps.
pub(crate) fn output(script: &str) -> String {
    let ran = run_with(script, &Options::default(), Style::default());
    assert_eq!(ran.errors, "", "{script}");
    ran.output.replacen("\n\n\n", "\n", 1).trim_matches('\n').to_owned()
}

/// The messages about a script that does not compile.
pub(crate) fn errors(script: &str) -> String {
    match compile(Source::new("stdin", script.as_bytes()), &Options::default()) {
        Ok(_) => panic!("{script} compiles"),
        Err(errors) => errors,
    }
}
