//! SCR-5: random blocks leave in maps by their programs what the interpreter leaves.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use trapline::Site;
use trapline::maps::hit::{HitProgram, input};
use trapline::maps::{KeyPart, KeyWord, MapContents, MapKind, MapRow};
use trapline::report::Tactic;
use trapline::stacks::{Frame, HitStack};
use trapline_code::{Bytes, interpret_in};
use trapline_record::maps::{MapArea, Missed};
use trapline_record::view::View;
use trapline_script::{
    Clock, Hit, Machine, Meaning, Options, Program, Source, StackMode, Stream, Style, World, compile,
};

use trapline_script::native::{Natives, Processes};

use super::super::ran::{Known, contents_into};
use super::super::said::said;
use super::NativeScript;

/// A world in which only output matters.
#[derive(Default)]
struct Quiet(Vec<u8>);

impl World for Quiet {
    fn write(&mut self, stream: Stream, bytes: &[u8]) {
        if stream == Stream::Output {
            self.0.extend(bytes);
        }
    }
    fn now(&mut self, _: Clock) -> u64 {
        0
    }
    fn number(&mut self, _: Meaning) -> Option<u64> {
        None
    }
    fn file(&mut self, _: &str, _: u64) -> Result<Vec<u8>, String> {
        Err(String::new())
    }
    fn command(&mut self, _: &str) -> Result<Vec<u8>, String> {
        Err(String::new())
    }
    fn signal(&mut self, _: u32, _: i32) -> Result<(), String> {
        Err(String::new())
    }
    fn user(&mut self, _: u32) -> Option<String> {
        None
    }
    fn cgroup_path(&mut self, _: u64) -> String {
        String::new()
    }
    fn symbol(&mut self, _: u32, _: u64) -> String {
        String::new()
    }
    fn stack(&self, frames: &[u64], mode: StackMode) -> Vec<u8> {
        format!("{frames:?} {mode:?}").into_bytes()
    }
    fn ahead(&self, _: i64) -> i32 {
        0
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
    fn one_of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len() as u64) as usize]
    }
    fn number(&mut self) -> u64 {
        match self.below(4) {
            0 => self.below(20),
            1 => (1 << self.below(64)) - 1,
            2 => (1_u64 << self.below(64)).wrapping_neg(),
            _ => self.0,
        }
    }
    /// An expression that is a number.
    fn expression(&mut self, depth: u32) -> String {
        if depth == 0 || self.below(4) == 0 {
            return match self.below(6) {
                0 => self.below(1000).to_string(),
                1 => "nsecs".to_owned(),
                2 => "$x".to_owned(),
                3 => self
                    .one_of(&[
                        "@v[tid]",
                        "tid",
                        "@w[arg0 % 5]",
                        "@g",
                        "@live[arg1 % 7].0",
                        "@live[arg1 % 7].2",
                    ])
                    .to_owned(),
                _ => format!("arg{}", self.below(6)),
            };
        }
        let depth = depth - 1;
        let (left, right) = (self.expression(depth), self.expression(depth));
        match self.below(12) {
            0 => format!("({left} {} {right})", self.one_of(&["==", "!=", "<", "<=", ">", ">="])),
            1 => format!("({left} {} {})", self.one_of(&["/", "%"]), self.below(300) + 1),
            2 => format!("({left} {} {})", self.one_of(&["<<", ">>"]), self.below(64)),
            3 => format!("({left} {} {right})", self.one_of(&["&&", "||"])),
            4 => format!("({}{left})", self.one_of(&["!", "~", "-"])),
            5 => {
                let ty = self.one_of(&[
                    "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool",
                ]);
                format!("(({ty}){left})")
            }
            6 => format!("({left} ? {right} : (int64)7)"),
            _ => format!("({left} {} {right})", self.one_of(&["+", "-", "*", "&", "|", "^"])),
        }
    }
    fn statement(&mut self, depth: u32) -> String {
        let value = self.expression(2);
        match self.below(30) {
            26 => format!("printf(\"%d %s %llx\\n\", {value}, ustack(3), (uint64){});", self.expression(1)),
            27 => format!("unroll(2) {{ printf(\"%s %d %s|\", comm, (int64){value}, func); $x++; }}"),
            28 => format!("print({value}); print(ustack(perf, 2));"),
            29 => format!("@b[{value} % 2] = hist({}, {});", self.expression(1), self.below(6)),
            17 => format!("@named[comm, {value} % 3] = sum((int64)arg1); @biggest[comm] = max(arg2);"),
            20 => format!("@w[{value} % 5] = (int64){};", self.expression(1)),
            21 => format!("delete(@w[{value} % 5]);"),
            22 => format!("@g = (int64){value};"),
            23 => format!(
                "@live[{value} % 7] = ((int64){}, ustack(3), tid, func); @who[{value} % 3] = comm;",
                self.expression(1)
            ),
            24 => format!("if (has_key(@live, {value} % 7)) {{ delete(@live[{value} % 7]); @g++; }}"),
            18 => format!("@k[ustack, {value} % 3] = sum((int64){});", self.expression(1)),
            19 => format!("@k[ustack(2), 1] = sum((int64){value}); @u[tid, ustack(3)] = count();"),
            16 => format!("@n[{value} % 5]++; @m += (int64){};", self.expression(1)),
            25 => "@m--; unroll(3) { @n[arg0 % 5]--; }".to_owned(),
            14 => format!("@min[pid] = min((int64){value});"),
            15 => format!("@max[{value} % 3, probetype] = max((uint64){value});"),
            0 => format!("@c[{value}] = count();"),
            1 => format!("@s[{value} % 3, func] = sum((int64){});", self.expression(1)),
            2 => format!("@a[\"{}\"] = avg((int64){value});", self.one_of(&["x", "y"])),
            3 => format!("@t = stats((int64){value});"),
            4 => format!("@h = hist({value});"),
            5 => format!("@l[tid] = lhist({value}, -50, 1000, 25);"),
            6 | 7 => format!("@v[tid] = (int64){value};"),
            8 => "delete(@v[tid]);".to_owned(),
            9 => "@v[tid]++;".to_owned(),
            10 | 11 => format!("$x = (int64){value};"),
            12 if depth > 0 => {
                let (one, other) = (self.statement(depth - 1), self.statement(depth - 1));
                format!("if ({value}) {{ {one} }} else {{ {other} }}")
            }
            _ => format!("if ({value}) {{ {} return; }}", self.statement(0)),
        }
    }
    fn block(&mut self) -> String {
        let predicate = if self.below(3) == 0 { format!("/{}/ ", self.expression(2)) } else { String::new() };
        let predicate = predicate.replace("$x", "arg0");
        let body: String = (0..1 + self.below(4)).map(|_| self.statement(1)).collect();
        format!("uprobe:p:f {predicate}{{ $x = (int64)3; {body} }}\n")
    }
    /// `nth`: all times are different.
    fn hit(&mut self, nth: u64) -> Hit {
        let tid = 5 + self.below(3) as u32;
        Hit {
            pid: 1,
            tid,
            comm: name(tid.into()).into(),
            nsecs: Some(self.number() & !63 | nth),
            stack: frames(self.below(5)),
            args: (0..6).map(|_| self.number()).collect(),
            func: "f".to_owned(),
            probe: "uprobe:p:f".to_owned(),
            sort: "uprobe",
            ..Hit::default()
        }
    }
}

/// The name of a thread; two threads have one name.
fn name(tid: u64) -> String {
    format!("t{}", tid / 2)
}

/// The frames of a stack with this number.
fn frames(number: u64) -> Vec<u64> {
    (0..2 + number).map(|nth| if nth < 2 { nth } else { number }).collect()
}

const LINE: u64 = 0x10_0000;
/// All memory.
const ALL: std::ops::Range<u64> = 0..u64::MAX;

/// What a program leaves in empty maps after these hits.
fn contents(script: &NativeScript, hit_program: &HitProgram, hits: &[Hit]) -> MapContents {
    let bytes = script.bytes;
    let mut memory = Bytes { at: LINE, bytes: vec![0; bytes.before_stacks(1) as usize] };
    for hit in hits {
        let mut inputs = vec![0; 33];
        inputs[..6].copy_from_slice(&hit.args);
        [input::THREAD, input::MEMBER].iter().for_each(|nth| inputs[usize::from(*nth)] = hit.tid.into());
        inputs[usize::from(input::STACK)] = hit.stack.len() as u64 - 2;
        inputs[usize::from(input::NANOS)] = hit.nsecs.unwrap_or(0);
        [input::ASSIGNED, input::OWN].iter().for_each(|nth| inputs[usize::from(*nth)] = LINE);
        // Half of the hits are of threads that were moved; there is one line.
        [input::LINE, input::OTHERS]
            .iter()
            .for_each(|nth| inputs[usize::from(*nth)] = LINE + u64::from(bytes.once));
        inputs[usize::from(input::MOVED)] = hit.args[0] & 1;
        // The numbers of the probe's name, and of its sort; that of the function is 0.
        (1..3).for_each(|nth| inputs[usize::from(input::NAME) + nth] = nth as u64);
        let end = interpret_in(hit_program.program(), &inputs, &mut memory);
        assert_eq!(end.outcome, 0);
    }
    let words = memory
        .bytes
        .chunks_exact(8)
        .map(|word| AtomicU64::new(u64::from_le_bytes(word.try_into().expect("8"))));
    let words: Vec<AtomicU64> = words.collect();
    let area = MapArea { off: 0, lines: 1, bytes, ..MapArea::default() };
    let site = Arc::new(Site {
        probe: String::new(),
        aliases: Vec::new(),
        file: String::new(),
        offset: 0,
        label: String::new(),
        tactic: Tactic::Jump,
        slot: 0,
    });
    let mut contents = MapContents::default();
    for (map, table) in script.tables.iter().enumerate() {
        let row = |key: &[u64], value: &[u64]| {
            let part = |(word, is): (&u64, &KeyWord)| match is {
                KeyWord::Thread => KeyPart::Thread(*word as u32),
                KeyWord::Process => KeyPart::Process(1),
                KeyWord::ThreadName => KeyPart::Name(Some(name(*word))),
                KeyWord::Stack => {
                    let here = Frame { address: *word, place: None, is_return: false };
                    let callers = Arc::new([]);
                    let stack = Arc::new(HitStack { here, callers, cut: false });
                    KeyPart::Stack(Some((Arc::clone(&site), stack)))
                }
                _ => KeyPart::Number(*word),
            };
            let parts = |words: &[u64], are| words.iter().zip(are).map(part).collect();
            MapRow { pid: 1, map, key: parts(key, &table.keys), value: parts(value, &table.values) }
        };
        let (view, all) = (View::new(&words), std::slice::from_ref(&ALL));
        if table.kind == MapKind::Said {
            area.take(view, table.shape, all, |key, value| {
                contents.said.push(row(key, value));
                true
            });
            contents.missed.push(Missed::default());
            continue;
        }
        let missed = area.read(view, (table.shape, 0), all, |key, value| {
            let Some(value) = value else { return };
            let row = row(key, value);
            // Of one key the first counts.
            if table.kind != MapKind::Assigned
                || !contents.rows.iter().any(|one: &MapRow| one.map == map && one.key == row.key)
            {
                contents.rows.push(row);
            }
        });
        contents.missed.push(missed);
    }
    contents
}

/// What is written at the end.
fn written(machine: &mut Machine) -> String {
    let mut world = Quiet::default();
    machine.finish(&mut world);
    String::from_utf8_lossy(&world.0).into_owned()
}

fn machine(program: &Rc<Program>) -> Machine {
    Machine::new(Rc::clone(program), Style::default(), &mut Quiet::default())
}

#[test]
fn scr_5_programs_leave_what_the_interpreter_leaves() {
    let mut random = Random(0x5c41_0001_9876_1234);
    let (mut native, mut unfit, mut spoke) = (0, 0, 0);
    for _ in 0..600 {
        let text: String = (0..1 + random.below(2)).map(|_| random.block()).collect();
        let Ok(compiled) = compile(Source::new("test", text.as_bytes()), &Options::default()) else {
            continue;
        };
        let program = Rc::new(compiled.program);
        let natives = Natives::of(&program, &[], (Processes { one: true, same_tids: true }, true));
        let blocks: Vec<usize> = (0..program.blocks.len()).collect();
        if !blocks.iter().all(|block| natives.runs(*block)) {
            continue;
        }
        let script = NativeScript::new(natives.native, &program, random.below(2) == 0);
        let hit_program = match script.program(&program, &blocks) {
            Ok(hit_program) => hit_program,
            Err(why) => {
                assert!(
                    ["register", "operations", "in memory"].iter().any(|word| why.contains(word)),
                    "{text}{why}"
                );
                unfit += 1;
                continue;
            }
        };
        native += 1;
        let hits: Vec<Hit> = (0..40).map(|nth| random.hit(nth)).collect();
        let mut interpreted = machine(&program);
        // What is written comes in the order of time.
        let mut lines = std::collections::BTreeMap::new();
        for hit in &hits {
            let mut world = Quiet::default();
            blocks.iter().for_each(|block| interpreted.run(*block, hit, &mut world));
            lines.insert(hit.nsecs, world.0);
        }
        let lines: Vec<u8> = lines.into_values().flatten().collect();
        let contents = contents(&script, &hit_program, &hits);
        let mut in_target = machine(&program);
        let names = [hits[0].func.as_str(), hits[0].probe.as_str(), hits[0].sort];
        let name = |number: u64| names.get(number as usize).map(|&name| name.to_owned());
        let known = Known { name: &name, stack: &|_, (_, stack)| frames(stack.here.address) };
        let mut world = Quiet::default();
        for line in said(&script, std::slice::from_ref(&contents), &known) {
            line.write(&script.native, &mut in_target, (&hits[0], &mut world));
        }
        assert_eq!(String::from_utf8_lossy(&world.0), String::from_utf8_lossy(&lines), "{text}");
        spoke += usize::from(!lines.is_empty());
        contents_into(&script, &mut in_target, &[contents], &known);
        assert_eq!(written(&mut in_target), written(&mut interpreted), "{text}\n{}", hit_program.program());
    }
    assert!(native > 120 && unfit < native && spoke > 20, "{native} ran, {unfit} had no room, {spoke} wrote");
}
