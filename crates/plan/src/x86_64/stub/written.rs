//! A record's code, from behind the saves to the loads of what was saved.
//!
//! In: a hit that is recorded, or that a filter rejects which only this code can evaluate; everything that
//! the code overwrites is saved (`saves`). Out: code that finds a ring, writes, commits, and loads what was
//! saved; and the rare paths: dropped records, threads without an area, late rejections. See `trace` for what
//! is counted where.
//!
//! ```text
//!   part                 rsp                   uses
//!   mark                 S - step              rax, rdx, r11; not if fields decide
//!   thread's number      S - step              rax, r10, r11; [rsp - 12] = the number
//!   room, texts, fields  S - step - depth      rax, rdx, r10, r11 (`text`)
//!   packed               the same              rax, rdx, r10, r11; of a compact ring with texts
//!   bound                the same              rcx, rdx, rsi (`stack`)
//!   section or lock      the same              rax, rdx, r10, r11 (`put`); rsi, rdi (`stack`)
//!   written              S - step              a mark, if fields decided
//!   without_texts        S - step              rseq_cs = 0, then all is loaded
//! ```
//!
//! The rare paths. Each counts by `[r11] += 1`, r11 being this CPU's word. A thread without an area counts on
//! the last line, by `lock`:
//!
//! ```text
//!   ring full, all locked, no area     dropped  ->  written
//!   no room on a goroutine's stack     dropped  ->  without_texts
//!   rejected by fields                 rsp += depth, then as the next line
//!   rejected                           mark taken away, rejected  ->  without_texts
//!   compact ring: another context      the second sequence (`programs::calls`)  ->  written
//!   compact ring full, may wait        `wait`  ->  the section again, or dropped
//! ```

use trapline_record::ring::RecordKind;

use super::asm::{Alu, Asm, Fix, Mem, R11};
use super::counted::{Counted, count, count_at};
use super::filtering::FilterExits;
use super::latency::{Mark, Marks};
use super::machine::Machine;
use super::passed::{DROPPED, dropped_of_passed};
use super::put::RingWriter;
use super::rseq::{self, Section};
use super::stack::Walk;
use super::threads;
use super::traced::Traced;
use crate::machine::Rseq;
use crate::programs::records::Behind;

/// What is left to append.
#[derive(Clone, Debug)]
pub(super) struct Written<'a> {
    machine: Machine,
    commit: Commit,
    full: Fix,
    compact: Option<Compact<'a>>,
    /// The jump of hits on a goroutine's stack without room for texts.
    cramped: Option<Fix>,
    /// Where the common path goes on.
    written: u64,
    /// The same for paths that left the common one before texts were copied.
    without_texts: u64,
    dropped: DroppedAt,
    passed: FilterExits,
    /// The mark that an entry leaves.
    marks: Option<(Marks, Mark)>,
    fixups: Vec<(u64, u64)>,
}

/// Address on line 0 of the counter of dropped records.
#[derive(Clone, Copy, Debug)]
enum DroppedAt {
    Known(u64),
    /// Of probe 0; the stub has passed the number of the one that was hit.
    Passed(u64),
}

/// Distance from line 0 to the last line.
fn last_line(machine: &Machine) -> u64 {
    (u64::from(machine.lines.max(1)) - 1) * 64
}

/// How a record gets into its ring, and the jump of those that found none.
#[derive(Clone, Copy, Debug)]
enum Commit {
    /// By a restartable sequence; the jump is of threads without an area.
    Section(Section, Fix),
    /// Into a locked ring; the jump is for the case that all rings were locked.
    Lock(Fix),
}

/// What a record in a compact ring has besides.
#[derive(Clone, Copy, Debug)]
struct Compact<'a> {
    writer: RingWriter<'a>,
    rseq: Rseq,
    behind: Behind,
    /// The jump of records that need another context.
    switch: Option<Fix>,
}

/// The second sequence, with its jumps of threads without an area and of records that found their ring full.
#[derive(Clone, Copy, Debug)]
struct Second {
    section: Section,
    unregistered: Option<Fix>,
    full: Option<Fix>,
}

impl Compact<'_> {
    /// Appends the second sequence, which goes on at `written`.
    fn second(self, asm: &mut Asm<'_>, written: u64) -> Second {
        self.switch.into_iter().for_each(|switch| asm.bind(switch));
        let (section, [unregistered, full, _]) =
            rseq::section_with(asm, self.rseq, R11, |asm| self.writer.write_compact(asm, true, self.behind));
        asm.jmp(written);
        Second { section, unregistered, full }
    }
    /// Appends the wait for room, where threads may wait. It runs on where the record is dropped all the same.
    fn wait(self, asm: &mut Asm<'_>, again: Section) {
        if let Some(waits) = self.writer.rings.waits {
            // No sequence is announced while the thread sleeps.
            rseq::clear(asm, self.rseq);
            waits.append(asm, &self.writer.rings.area, again.restart());
        }
    }
}

/// A record in a compact ring: the first sequence.
fn commit_compact<'a>(
    asm: &mut Asm<'_>,
    writer: &RingWriter<'a>,
    rseq: Rseq,
    behind: Behind,
) -> (Commit, Fix, Compact<'a>) {
    let (section, [unregistered, full, switch]) =
        rseq::section_with(asm, rseq, R11, |asm| writer.write_compact(asm, false, behind));
    // A part that has no code has no jumps; then the stub is never finished.
    let [unregistered, full] = [unregistered, full].map(|fix| fix.unwrap_or_else(|| asm.jmp_later()));
    (Commit::Section(section, unregistered), full, Compact { writer: *writer, rseq, behind, switch })
}

/// Finds a ring and writes. Also returns the jump of records that found their ring full.
fn commit(asm: &mut Asm<'_>, writer: &RingWriter<'_>, values: usize, walk: Option<Walk>) -> (Commit, Fix) {
    let bound = |asm: &mut Asm<'_>| walk.iter().for_each(|walk| walk.bound(asm));
    let full = writer.rings.area.full();
    if let Some(rseq) = writer.machine.rseq {
        let (section, (unregistered, full)) = rseq::section_with(asm, rseq, R11, |asm| {
            // What `bound` leaves in rcx is used up by the walk, so a new start needs it again.
            bound(asm);
            let fixes = writer.find(asm, full);
            writer.write(asm, values, walk);
            fixes
        });
        return (Commit::Section(section, unregistered), full);
    }
    bound(asm);
    let (busy, full) = writer.lock(asm, full);
    writer.write(asm, values, walk);
    (Commit::Lock(busy), full)
}

impl<'a> Written<'a> {
    /// Appends a record's code, behind the code in which `passed` rejects.
    pub(super) fn emit(
        asm: &mut Asm<'_>,
        traced: &Traced<'a>,
        kind: RecordKind,
        values: usize,
        mut passed: FilterExits,
    ) -> Self {
        let (machine, hits) = (*traced.machine, traced.hit_filter(kind));
        let (writer, texts) = (traced.ring_writer(kind), traced.texts(kind));
        let is_entry = kind == RecordKind::Entry;
        // Rejections by fields come late, and so does the mark of a call that they let pass.
        let by_fields = is_entry && traced.filter.is_some_and(|filtered| filtered.filter.fields.is_some());
        let mark = |asm: &mut Asm<'_>, now: bool| {
            let marks = traced.entry_marks().filter(|_| is_entry && now)?;
            Some((marks, marks.mark(asm, true)))
        };
        let early = mark(asm, !by_fields);
        if !is_entry || !hits.by_thread() {
            threads::ask(writer.number(), asm);
        }
        let cramped = texts.room(asm);
        let fixups = texts.fetch(asm);
        passed.deep = hits.pass_fields(asm);
        let (commit, full, compact) = match machine.rseq.filter(|_| writer.rings.area.is_compact()) {
            Some(rseq) => {
                let behind = writer.behind(values, traced.valued);
                writer.pack(asm, behind);
                let (commit, full, compact) = commit_compact(asm, &writer, rseq, behind);
                (commit, full, Some(compact))
            }
            None => {
                let (commit, full) = commit(asm, &writer, values, traced.walk(kind));
                (commit, full, None)
            }
        };
        let written = asm.here();
        texts.drop(asm);
        let marks = early.or(mark(asm, by_fields));
        let without_texts = asm.here();
        if let Some(rseq) = machine.rseq {
            rseq::clear(asm, rseq);
        }
        traced.saves(kind).leave(asm);
        Self {
            machine,
            commit,
            full,
            compact,
            cramped,
            written,
            without_texts,
            dropped: match traced.passed {
                Some(_) => DroppedAt::Passed(traced.dropped),
                None => DroppedAt::Known(traced.dropped),
            },
            passed,
            marks,
            fixups,
        }
    }
    /// Appends the paths of records that are not written, descriptors and addresses. Returns the instructions
    /// that may fault, and where a thread goes on then.
    pub(super) fn finish(self, asm: &mut Asm<'_>) -> Vec<(u64, u64)> {
        let second = self.compact.map(|compact| compact.second(asm, self.written));
        asm.bind(self.full);
        second.and_then(|second| second.full).into_iter().for_each(|fix| asm.bind(fix));
        match self.commit {
            Commit::Lock(busy) => asm.bind(busy),
            Commit::Section(section, _) => {
                self.compact.into_iter().for_each(|compact| compact.wait(asm, section));
            }
        }
        let DroppedAt::Known(dropped_at) = self.dropped else {
            return self.finish_shared(asm);
        };
        let dropped = count(asm, &self.machine);
        asm.jmp(self.written);
        let cramped = self.cramped.map(|fix| {
            asm.bind(fix);
            let cramped = count(asm, &self.machine);
            asm.jmp(self.without_texts);
            cramped
        });
        if let Commit::Section(_, unregistered) = self.commit {
            asm.bind(unregistered);
            second.and_then(|second| second.unregistered).into_iter().for_each(|fix| asm.bind(fix));
            dropped.bind_unregistered(asm);
            self.on_last_line(asm, dropped_at, self.written);
            if let Some(cramped) = cramped {
                cramped.bind_unregistered(asm);
                self.on_last_line(asm, dropped_at, self.without_texts);
            }
        }
        let filtered = self.reject(asm, dropped_at);
        if let Some((marks, mark)) = self.marks {
            marks.finish_marked(asm, mark);
        }
        if let (Some(rseq), Commit::Section(section, _)) = (self.machine.rseq, self.commit) {
            rseq::descriptors(asm, rseq, &[section]);
            second.into_iter().for_each(|second| rseq::descriptors(asm, rseq, &[second.section]));
        }
        let counts = [Some(dropped), cramped].into_iter().flatten().filter_map(|counted| counted.section());
        for section in counts.chain(self.passed.sections(filtered)) {
            self.machine.rseq.into_iter().for_each(|rseq| rseq::descriptors(asm, rseq, &[section]));
        }
        asm.align(8);
        asm.bind(dropped.line);
        cramped.into_iter().for_each(|cramped| asm.bind(cramped.line));
        asm.u64(dropped_at);
        self.passed.addresses(asm, filtered);
        self.fixups
    }
    /// The rest of shared code, behind what finds its ring full: it has neither a filter nor texts.
    fn finish_shared(&self, asm: &mut Asm<'_>) -> Vec<(u64, u64)> {
        let DroppedAt::Passed(first) = self.dropped else { return Vec::new() };
        dropped_of_passed(asm, &self.machine, first);
        let counted = count_at(asm, &self.machine, DROPPED);
        asm.jmp(self.written);
        if let (Some(rseq), Commit::Section(section, unregistered), Some((counts, no_area))) =
            (self.machine.rseq, self.commit, counted)
        {
            asm.bind(unregistered);
            dropped_of_passed(asm, &self.machine, first);
            asm.bind(no_area);
            asm.load(R11, DROPPED);
            asm.alu_mem_imm(Alu::Add, Mem::At(R11, last_line(&self.machine) as i32), 1, true);
            asm.jmp(self.written);
            rseq::descriptors(asm, rseq, &[section, counts]);
        }
        Vec::new()
    }
    /// The path of a hit that is rejected late.
    fn reject(&self, asm: &mut Asm<'_>, dropped_at: u64) -> Option<Counted> {
        if !self.passed.bind(asm) {
            return None;
        }
        let mark = self.marks.map(|(marks, _)| (marks, marks.mark(asm, false)));
        let counted = count(asm, &self.machine);
        asm.jmp(self.without_texts);
        if counted.section().is_some() {
            counted.bind_unregistered(asm);
            self.on_last_line(asm, self.passed.words, self.without_texts);
        }
        if let Some((marks, mark)) = mark {
            marks.finish_removed(asm, mark);
        }
        if !self.passed.unregistered.is_empty() {
            self.passed.unregistered.iter().for_each(|&fix| asm.bind(fix));
            self.on_last_line(asm, dropped_at, self.without_texts);
        }
        Some(counted)
    }
    /// Adds one for a thread without an area.
    fn on_last_line(&self, asm: &mut Asm<'_>, word: u64, behind: u64) {
        let last = word.wrapping_add(last_line(&self.machine));
        asm.alu_mem_imm(Alu::Add, Mem::Rip(last), 1, true);
        asm.jmp(behind);
    }
}
