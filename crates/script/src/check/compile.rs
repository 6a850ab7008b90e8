//! Text → program: all phases in their order.
//!
//! In: a source and options. Out: a program and its warnings, or the text of all errors. Does not: read files or the
//! environment; that is the caller's.

use std::rc::Rc;

use super::checker::{Checker, MOST_ROUNDS, NamedParam};
use super::options::Options;
use crate::attach::Probe;
use crate::config::Config;
use crate::diagnostic::{At, Diagnostic, Severity};
use crate::layout::Layouts;
use crate::parse::Parser;
use crate::program::{Block, MapInfo, Program};
use crate::source::Source;
use crate::tree::{MapDef, ProbeDef, Tree};
use crate::types::Type;

/// A program and what it is warned of.
#[derive(Debug)]
pub struct Compiled {
    /// The program.
    pub program: Program,
    /// Warnings, as they are written.
    pub warnings: String,
}

/// Compiles a script. The error is the text of all messages.
pub fn compile(source: Source, options: &Options) -> Result<Compiled, String> {
    let show =
        |messages: &[Diagnostic]| messages.iter().map(|message| message.text(&source)).collect::<String>();
    let tree = Parser::new(&source, &options.positional).tree().map_err(|error| show(&[*error]))?;
    let config = config(&tree, options).map_err(|errors| show(&errors))?;
    let mut layouts = Layouts::new(&tree.structs, &tree.enums).map_err(|error| show(&[*error]))?;
    if tree.probes.is_empty() {
        return Err("ERROR: No probes to attach\n".to_owned());
    }
    let attached = attach(&tree.probes).map_err(|errors| show(&errors))?;
    if let Some(declared) = &options.declared {
        let probes = attached.iter().flatten().filter(|probe| probe.is_of_program()).cloned();
        layouts.declare(Rc::clone(declared), probes.collect());
    }
    let mut checker = Checker::new(&tree, &layouts, &config, options);
    checker.declare_maps(&tree.maps);
    for _ in 0..MOST_ROUNDS {
        checker.begin_round(false);
        drop(checker.round(&attached));
        if !checker.changed {
            break;
        }
    }
    checker.begin_round(true);
    let blocks = checker.round(&attached);
    checker.check_maps(&tree.maps);
    let is_error = |message: &&Diagnostic| message.severity == Severity::Error;
    let messages = std::mem::take(&mut checker.messages);
    if messages.iter().any(|message| is_error(&message)) {
        return Err(show(&messages));
    }
    unexpected(&checker.named, &options.named)?;
    let warnings = show(&messages);
    let maps: Vec<MapInfo> = checker.maps.into_iter().map(|map| map.info).collect();
    let positional = options.positional.clone();
    let program = Program { blocks, maps, config, layouts, source, positional };
    Ok(Compiled { program, warnings })
}

/// The settings of the script and of the environment.
fn config(tree: &Tree, options: &Options) -> Result<Config, Vec<Diagnostic>> {
    let (mut config, mut errors) = (Config::default(), Vec::new());
    for setting in &tree.settings {
        if let Err(message) = config.set(&setting.name, &setting.value) {
            let mut error = Diagnostic::error(message, setting.span);
            let lower = setting.name.to_ascii_lowercase();
            if let Some(near) = crate::suggest::nearest(&lower, Config::names()) {
                error = error.hint(format!("Did you mean {near}?"));
            }
            errors.push(error);
        }
    }
    for (name, value) in &options.environment {
        // Names that are no settings are others' affair.
        drop(config.set(name, value));
    }
    if errors.is_empty() { Ok(config) } else { Err(errors) }
}

/// Where the blocks run.
fn attach(probes: &[ProbeDef]) -> Result<Vec<Vec<Probe>>, Vec<Diagnostic>> {
    let mut errors = Vec::new();
    let mut all = Vec::new();
    for def in probes {
        let mut here = Vec::new();
        for (text, span) in &def.attach {
            match Probe::parse(text) {
                Ok(probe) => here.push(probe),
                Err((message, hint)) => {
                    let error = Diagnostic::error(message, *span);
                    errors.push(match hint {
                        Some(hint) => error.hint(hint),
                        None => error,
                    });
                }
            }
        }
        all.push(here);
    }
    if errors.is_empty() { Ok(all) } else { Err(errors) }
}

/// Parameters for which no `getopt` asks.
fn unexpected(known: &[NamedParam], given: &[String]) -> Result<(), String> {
    let name = |param: &str| param.split('=').next().unwrap_or_default().to_owned();
    let is_known = |param: &&String| known.iter().any(|other| other.name == name(param));
    let unexpected: Vec<String> =
        given.iter().filter(|param| !is_known(param)).map(|param| format!("--{}", name(param))).collect();
    if unexpected.is_empty() {
        return Ok(());
    }
    let line = |param: &NamedParam| match param.description.is_empty() {
        true => format!("--{}", param.name),
        false => format!("--{}: {}", param.name, param.description),
    };
    let expected: Vec<String> = known.iter().map(line).collect();
    let hint = match &expected[..] {
        [] => String::new(),
        [one] if !one.contains(':') => format!("HINT: expected program options: {one}\n"),
        several => format!("HINT: expected program options:\n{}\n", several.join("\n")),
    };
    let help = unexpected == ["--help"];
    let error = format!("ERROR: unexpected program command line options: {}\n", unexpected.join(", "));
    Err(if help { hint } else { error + &hint })
}

impl Checker<'_> {
    /// Goes through all blocks once.
    fn round(&mut self, attached: &[Vec<Probe>]) -> Vec<Block> {
        let mut blocks = Vec::new();
        for (index, def) in self.tree.probes.iter().enumerate() {
            self.begin_block(index, &attached[index]);
            let body = self.probe_body(def);
            if let (Some(sort), true) = (self.of_program(), self.last) {
                self.lower(&body, sort);
                self.check_needs(sort);
            }
            let (locals, needs) = (self.locals[index].clone(), std::mem::take(&mut self.needs));
            let at = At::from(def.attach.first().map_or(def.body.span, |(_, span)| *span));
            let probes = attached[index].clone();
            blocks.push(Block { probes, body, locals, needs, at, attached: def.attach.clone() });
        }
        blocks
    }
    /// What a hit of a program cannot tell is an error: it must not become another value.
    fn check_needs(&mut self, sort: &str) {
        for (what, at) in std::mem::take(&mut self.needs.unavailable) {
            let message = format!("{what} is not recorded at hits of {sort} probes");
            let hint =
                "records hold arguments, retval, what these point to, pid, tid, comm, nsecs, func and probe";
            self.say(Diagnostic::error(message, at).hint(hint));
        }
    }
    /// Maps that the script declares.
    fn declare_maps(&mut self, maps: &[MapDef]) {
        for def in maps {
            let index = self.map_index(&def.name);
            let map = &mut self.maps[index].info;
            map.room = usize::try_from(def.entries).unwrap_or(usize::MAX);
            map.evicts = def.kind.contains("lru");
        }
    }
    /// Maps that are never used or never assigned.
    fn check_maps(&mut self, declared: &[MapDef]) {
        for def in declared {
            let kinds = ["hash", "lruhash", "percpuhash", "percpulruhash"];
            if !kinds.contains(&def.kind.as_str()) {
                let message = format!("Invalid bpf map type: {}", def.kind);
                let hint = format!("Valid map types: {}", kinds.join(", "));
                self.say(Diagnostic::error(message, def.span).hint(hint));
            }
            if def.entries == 0 {
                self.error("a map must have room for one key at least", def.span);
            }
            let index = self.map_index(&def.name);
            if !self.maps[index].used {
                self.say(Diagnostic::new(
                    Severity::Warning,
                    format!("Unused map: {}", def.name),
                    At::from(def.span),
                ));
            }
        }
        for map in &mut self.maps {
            if map.keyed == Some(false) {
                map.info.key = None;
            } else if map.keyed == Some(true) && map.info.key.is_none() {
                map.info.key = Some(Type::None);
            }
        }
    }
}
