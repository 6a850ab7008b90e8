//! Which blocks run where, and what a recorded call is to them.
//!
//! In: attach points; calls. Out: places, known by file and offset; hits. What an attach point means is asked of the
//! session's own search, one by one. A function whose implementation is chosen at run time (IFUNC) is found at its
//! resolver, and probed at its implementation. So a call at a place that is not known belongs to the blocks of its names.
//! Invariant: a block does not run for a call that lacks a value for which it asks.
//! Does not: attach.

use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use trapline::Call;
use trapline::calls::{CallEnd, ReadOutcome, Text};
use trapline::listing::Listed;
use trapline::report::{Refused, Site};
use trapline_order::Order as _;
use trapline_script::{Hit, Memory, Needs, Probe, Program};

use super::frames::Frames;
use super::recorded::{self, Recorded};
use super::registers::PLACE;

/// A block that runs at a place.
#[derive(Debug, Clone)]
pub(super) struct Place {
    block: usize,
    /// The probe of the session.
    spec: usize,
    /// The entry, or the return.
    at_return: bool,
    /// What the block asks of a hit.
    needs: Needs,
    sort: &'static str,
    /// As `probe` gives it.
    name: String,
    /// As the session names it.
    probed: String,
    func: String,
    /// The records at the place are those of another probe, and lack what this block needs of memory.
    lacks: bool,
}

/// Where blocks run: by file and offset.
#[derive(Debug, Default)]
pub(super) struct Places {
    here: HashMap<(PathBuf, u64), Vec<Place>>,
    /// Files' own paths, by the names that records have for them.
    real: HashMap<String, PathBuf>,
    /// Frames of stacks.
    pub(super) frames: Frames,
    /// What records hold, by the probe of the session.
    recorded: Vec<Rc<Recorded>>,
}

/// A hit, and a block that it runs.
pub(super) type Event = (usize, Hit);

/// The probe of an attach point in a session, and whether the return is meant.
pub(super) fn spec(probe: &Probe) -> Option<(String, bool)> {
    match probe {
        Probe::Uprobe(file, function) => Some((format!("uprobe:{file}:{}", place(file, function)), false)),
        Probe::Uretprobe(file, function) => Some((format!("uprobe:{file}:{}", place(file, function)), true)),
        Probe::Usdt(file, provider, name) if provider.is_empty() => {
            Some((format!("usdt:{file}:{name}"), false))
        }
        Probe::Usdt(file, provider, name) => Some((format!("usdt:{file}:{provider}:{name}"), false)),
        _ => None,
    }
}

/// A function as the session names it. A plain number is an address, unless it is a line of a source file.
fn place(file: &str, function: &str) -> String {
    match function.parse::<u64>() {
        Ok(at) if !file.contains('@') => format!("{at:#x}"),
        _ => function.to_owned(),
    }
}

/// What `probe` gives at a place. At a line of a source file this is the place in its function.
pub(super) fn name(probe: &Probe, one: &Listed) -> String {
    match probe {
        Probe::Usdt(..) => one.probe.clone(),
        Probe::Uprobe(file, at) | Probe::Uretprobe(file, at) => {
            let is_line = at.starts_with(|letter: char| letter.is_ascii_digit());
            let file = file.split_once('@').filter(|_| is_line).map_or(file.as_str(), |(program, _)| program);
            format!("{}:{file}:{}", probe.sort(), one.function)
        }
        _ => probe.to_string(),
    }
}

/// A file's own path. One that is only in a process's own root has the path that it has there.
pub(super) fn real(path: &str) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| {
        let inside = path.strip_prefix("/proc/").and_then(|rest| rest.split_once("/root/"));
        let is_pid = |pid: &str| pid.bytes().all(|byte| byte.is_ascii_digit());
        let inside = inside.filter(|(pid, _)| is_pid(pid)).map(|(_, inside)| format!("/{inside}"));
        inside.map_or_else(|| PathBuf::from(path), PathBuf::from)
    })
}

/// A probe of the session with its file's own path.
pub(super) fn whole(probe: &str) -> String {
    let mut parts = probe.splitn(3, ':');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(sort), Some(file), Some(name)) => format!("{sort}:{}:{name}", real(file).display()),
        _ => probe.to_owned(),
    }
}

impl Places {
    /// None, whose frames will be numbered here.
    pub(super) fn new(frames: Frames) -> Self {
        Self { frames, ..Self::default() }
    }
    /// How many probes are at these places, without those that were refused at all of theirs. A USDT probe may have
    /// several places.
    pub(super) fn count(&self, refused: &[Refused]) -> usize {
        let mut places: HashMap<(usize, &str), usize> = HashMap::new();
        for place in self.here.values().flatten() {
            *places.entry((place.block, place.probed.as_str())).or_default() += 1;
        }
        let refused = |probed: &str| refused.iter().filter(|one| whole(&one.probe) == probed).count();
        places.iter().filter(|((_, probed), count)| **count > refused(probed)).count()
    }
    /// Notes the places that an attach point means; whether there are any.
    pub(super) fn find(
        &mut self,
        listed: &[Listed],
        (probe, spec): (&Probe, usize),
        block: usize,
        program: &Program,
    ) -> bool {
        for one in listed {
            let needs = program.blocks[block].needs.clone();
            let (at_return, sort) = (matches!(probe, Probe::Uretprobe(..)), probe.sort());
            let (name, func) = (name(probe, one), one.function.clone());
            let place = Place {
                block,
                spec,
                at_return,
                needs,
                sort,
                name,
                probed: whole(&one.probe),
                func,
                lacks: false,
            };
            self.here.entry((real(&one.file), one.offset)).or_default().push(place);
        }
        !listed.is_empty()
    }
    /// Sets what the records of each probe hold, from what the blocks at it need. Probes that share a place share their
    /// records.
    pub(super) fn record(&mut self, needed: Vec<Recorded>) {
        let mut shared: Vec<usize> = (0..needed.len()).collect();
        for here in self.here.values() {
            let specs: Vec<usize> = here.iter().map(|place| shared[place.spec]).collect();
            let least = specs.iter().copied().min().unwrap_or(0);
            shared.iter_mut().filter(|one| specs.contains(one)).for_each(|one| *one = least);
        }
        let whole = |least: usize| {
            let mut all = Recorded::default();
            let own = needed.iter().zip(&shared).filter(|(_, of)| **of == least);
            own.for_each(|(one, _)| all.merge(one));
            Rc::new(all)
        };
        self.recorded = shared.iter().map(|least| whole(*least)).collect();
    }
    /// What the records of each probe hold.
    pub(super) fn recorded(&self) -> &[Rc<Recorded>] {
        &self.recorded
    }
    /// The places whose blocks a call runs now, and for how many a value that they ask for is not known.
    pub(super) fn of(&mut self, call: &Call) -> (Vec<(&Place, &Recorded)>, u64) {
        let at_return = match call.how {
            CallEnd::Entered => false,
            CallEnd::Returned | CallEnd::TailCall => true,
            CallEnd::Unfinished => return (Vec::new(), 0),
        };
        let file = &call.site.file;
        if !self.real.contains_key(file) {
            self.real.insert(file.clone(), real(file));
        }
        let key = (self.real[file].clone(), call.site.offset);
        if !self.here.contains_key(&key) {
            self.here.insert(key.clone(), self.named(&call.site));
        }
        let all = &self.here[&key];
        if all.is_empty() {
            return (Vec::new(), 1);
        }
        let here = all.iter().filter(|place| place.at_return == at_return);
        let is_known =
            |place: &&Place| !place.lacks && is_known(&place.needs, &self.recorded[place.spec], call);
        let (known, unknown): (Vec<_>, Vec<_>) = here.partition(is_known);
        let recorded = |place: &'_ Place| &*self.recorded[place.spec];
        (known.into_iter().map(|place| (place, recorded(place))).collect(), unknown.len() as u64)
    }
    /// The places that have one of a site's names. Its records are those of the first probe that means it.
    fn named(&self, site: &Site) -> Vec<Place> {
        let names: Vec<String> =
            [&site.probe].into_iter().chain(&site.aliases).map(|name| whole(name)).collect();
        let mut found: Vec<Place> =
            self.here.values().flatten().filter(|place| names.contains(&place.probed)).cloned().collect();
        let key = |place: &Place| (place.block, place.at_return, place.spec, place.probed.clone());
        found.order_by_key(key);
        // Versions of a function have the same name.
        found.dedup_by_key(|place| key(place));
        let Some(first) = found.iter().map(|place| place.spec).min() else { return found };
        for place in &mut found {
            let is_same = Rc::ptr_eq(&self.recorded[place.spec], &self.recorded[first]);
            place.lacks = !is_same && !place.needs.reads.is_empty();
            place.spec = first;
        }
        found
    }
}

/// Whether a call has all values for which a block asks.
fn is_known(needs: &Needs, recorded: &Recorded, call: &Call) -> bool {
    let unread = |argument: &u8| {
        let of = |text: &&Text| text.argument == *argument;
        call.texts.iter().find(of).is_none_or(|text| matches!(text.reading, ReadOutcome::Failed(_)))
    };
    call.unseen & needs.args == 0
        && (needs.reads.is_empty() || recorded.is_known(call))
        && !(needs.retval && call.returned.is_none())
        && (needs.returned_text == 0 || returned_text(call).is_some())
        && !needs.texts.iter().any(unread)
}

/// The text to which a call's value points, if it was read.
fn returned_text(call: &Call) -> Option<&Text> {
    call.kept.first().filter(|text| !matches!(text.reading, ReadOutcome::Failed(_)))
}

/// What a call is to a block.
pub(super) fn event(
    (place, recorded): (&Place, &Recorded),
    call: &Call,
    frames: &Frames,
    (pid, comm): (u32, String),
    start: u64,
) -> Event {
    let at = call.at + if place.at_return { call.took.unwrap_or_default() } else { Duration::ZERO };
    let mut hit = Hit {
        probe: place.name.clone(),
        sort: place.sort,
        func: place.func.clone(),
        pid,
        tid: call.tid,
        comm: comm.into_bytes(),
        nsecs: Some(start + nanos(at)),
        args: call.arguments.to_vec(),
        registers: Vec::new(),
        variables: Vec::new(),
        retval: call.returned.unwrap_or(0),
        memory: Memory::default(),
        stack: call.stack.as_ref().map(|stack| frames.numbers(call.pid, stack)).unwrap_or_default(),
    };
    if place.needs.place {
        let at = frames.address(call.pid, &call.site.file, call.site.offset).unwrap_or(0);
        hit.registers.extend(PLACE.map(|name| (name.into(), at)));
    }
    // What the entry read is older than the return.
    match (place.at_return, returned_text(call)) {
        (false, _) => recorded.fill(call, &mut hit),
        (true, Some(text)) => recorded::add(&mut hit.memory, hit.retval, text),
        (true, None) => {}
    }
    (place.block, hit)
}

/// A time in nanoseconds.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
