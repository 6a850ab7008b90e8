//! From sites to be patched to jumps and traps: one batch, planned together.
//!
//! In: sites, each with a mapping of its file and what is needed there. Out: groups of words that belong
//! together, because one site needs all of them, or because a word serves several; and why others could not
//! be patched. A word is a trap if one of the sites that it serves asks for that. Does not: know consumers,
//! or whether a jump fits (`patch::own`).

use std::collections::{BTreeMap, HashMap};

use smallvec::SmallVec;
use trapline_image::FunctionIndex;
use trapline_patch::own::{Own, Ready, Word};
use trapline_patch::{PatchError, Why};
use trapline_plan::aarch64::site::PatchedWord;
use trapline_plan::aarch64::{Options, Refusal, exits, landings, may_arm, trapped};
use trapline_plan::{PatchRole, Tactic};
use trapline_record::addr::Bias;
use trapline_record::{RemoteAddr, Svma};
use trapline_runtime::native::{Called, Role};

use super::check::word;
use super::setting::Setting;
use crate::files::ModuleFile;
use crate::inside::group::{Group, Sets};
use crate::inside::mapped_files::MappedFiles;
use crate::inside::placing::{Placing, StubCall};
use crate::inside::site_request::SiteRequest;

/// A word to be patched, and the sites that it serves: their indices, each with whether this is a return.
struct CalledWord {
    word: Word<'static>,
    called: SmallVec<[(usize, bool); 1]>,
}

impl CalledWord {
    /// What is called there, if a jump will do for all.
    fn by_jump(&self, site_requests: &[SiteRequest]) -> Option<Vec<Called>> {
        let traps = |&(which, exit): &(usize, bool)| {
            let part = site_requests[which].part;
            if exit { part.exits_trap } else { part.entry_traps }
        };
        let one = |&(which, exit): &(usize, bool)| {
            let role = if exit { Role::Exit } else { Role::Entry };
            Called { probe: site_requests[which].probe, role }
        };
        (!self.called.iter().any(traps)).then(|| self.called.iter().map(one).collect())
    }
}

/// Patches each of the `site_requests` as a whole or not at all. New groups come after all others. Returns
/// those that are refused: their index, and why.
pub(in crate::inside) fn place(
    own: &mut Own,
    site_requests: &[SiteRequest],
    setting: Setting,
    (known, all): (&mut MappedFiles, &mut Vec<Group>),
) -> Result<Vec<(usize, Why)>, PatchError> {
    let mut refused: HashMap<usize, Why> = HashMap::new();
    let sites = sites(site_requests, &mut refused);
    let mut sets = Sets::new(site_requests.len());
    for site in &sites {
        site.called.iter().skip(1).for_each(|other| sets.join(site.called[0].0, other.0));
    }
    let by_jump: Vec<Option<Vec<Called>>> = sites.iter().map(|site| site.by_jump(site_requests)).collect();
    let words = sites.iter().zip(&by_jump);
    let words: Vec<Word<'_>> =
        words.map(|(site, called)| Word { by_jump: called.as_deref(), ..site.word }).collect();
    let mut placing = Placing::new(site_requests, known, setting.shadow_stack);
    let mut announce = |all: &[Ready]| {
        placing.expect(all.len());
        for &Ready { index, copy, tactic, .. } in all {
            let CalledWord { word, called } = &sites[index];
            placing.announce(StubCall {
                head: word.at,
                at: word.at,
                copy,
                is_trap: tactic == Tactic::Trap,
                request: called[0].0,
                called: called.iter().copied(),
            });
        }
    };
    let added = own.add(&words, &mut announce)?;
    for (index, why) in added.refused {
        for &(which, _) in &sites[index].called {
            refused.entry(which).or_insert_with(|| why.clone());
        }
    }
    let written = added.sites.into_iter().map(|(index, site)| (sites[index].called[0].0, site));
    placing.group((own, all), written, sets, refused)
}

/// Words of all sites, by address, each once; none for a site that is refused.
fn sites(site_requests: &[SiteRequest], refused: &mut HashMap<usize, Why>) -> Vec<CalledWord> {
    let mut all: BTreeMap<RemoteAddr, CalledWord> = BTreeMap::new();
    for (index, one) in site_requests.iter().enumerate() {
        match words_of(one) {
            Ok(words) => {
                for (word, exit) in words {
                    let site =
                        all.entry(word.at).or_insert_with(|| CalledWord { word, called: SmallVec::new() });
                    if !exit {
                        site.word.role = PatchRole::Entry;
                    }
                    site.called.push((index, exit));
                }
            }
            Err(why) => drop(refused.insert(index, Why::Word(why))),
        }
    }
    // Consumers before the instruction come before consumers of the call that it ends.
    all.values_mut().for_each(|site| site.called.sort_by_key(|one| one.1));
    all.into_values().collect()
}

/// Words that a site needs, each with whether it is a return.
fn words_of(one: &SiteRequest) -> Result<SmallVec<[(Word<'static>, bool); 2]>, Refusal> {
    let bias = Bias(one.load.bias);
    let (start, words) = code(&one.file, one.function, one.at);
    let live = bias.live(start).0;
    if let Some(function) = one.function.filter(|_| one.part.armed) {
        may_arm(&one.file.image, one.file.image.function(function), bias)?;
    }
    let mut needed: SmallVec<[(usize, bool); 2]> = SmallVec::new();
    if one.part.entry {
        needed.push(((one.at - start) as usize / 4, false));
    }
    if one.part.returns {
        let landings = landings(&one.file.image, start, words.len());
        needed.extend(exits(&words, live, &landings)?.into_iter().map(|index| (index, true)));
    }
    let word = |(index, exit): (usize, bool)| {
        let options = Options::default();
        let step = trapped(&PatchedWord { words: &words, start: live, index, options })?;
        let missing = Refusal::NoWord { start: live, index };
        let at = start + 4 * index as u64;
        let offset = one.file.image.offset_of(at).ok_or(missing)?;
        let role = if exit { PatchRole::ExitRet } else { PatchRole::Entry };
        let word = Word {
            at: bias.live(at),
            old: words.get(index).copied().ok_or(missing)?,
            step,
            options,
            role,
            place: (one.load.file, offset),
            by_jump: None,
        };
        Ok((word, exit))
    };
    needed.into_iter().map(word).collect()
}

/// Words of a function, and where they begin. Outside all known functions: the words around an instruction.
fn code(file: &ModuleFile, function: Option<FunctionIndex>, at: Svma) -> (Svma, Vec<u32>) {
    /// Distance, in bytes, up to which exclusive sequences are searched
    /// (`trapline_insn::aarch64::in_exclusive`).
    const AROUND: u64 = 128;
    if let Some(function) = function {
        let function = file.image.function(function);
        let len = function.end() - function.start;
        if let Some(bytes) = file.image.text(function.start, len) {
            let words =
                bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
            return (function.start, words.collect());
        }
    }
    let before =
        (1..=AROUND).take_while(|n| at.0 >= 4 * n && word(file, Svma(at.0 - 4 * n)).is_some()).count() as u64;
    let start = Svma(at.0 - 4 * before);
    (start, (0..before + AROUND).map_while(|n| word(file, start + 4 * n)).collect())
}
