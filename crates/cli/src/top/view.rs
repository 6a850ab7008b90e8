//! What the user has chosen by keys: order, filter, position, pace.
//!
//! In: keys. Out: which rows are shown, in which order. Does not: draw, or read keys.

use std::cmp::Ordering;
use std::time::Duration;

use clap::ValueEnum;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use trapline_order::Order as _;

use super::model::{Model, Percentiles, TopRow};

/// Columns to sort by.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Column {
    /// Hits a second
    Rate,
    /// Hits since attach
    Total,
    /// Median of the last interval
    P50,
    /// 99th percentile of the last interval
    P99,
    /// Function
    Name,
}

impl Column {
    const ALL: [Self; 5] = [Self::Rate, Self::Total, Self::P50, Self::P99, Self::Name];
    /// Whether only timed calls have it.
    pub(crate) const fn is_timed(self) -> bool {
        matches!(self, Self::P50 | Self::P99)
    }
    /// The next one to the right, or to the left.
    fn beside(self, right: bool, timed: bool) -> Self {
        let shown: Vec<Self> = Self::ALL.into_iter().filter(|column| timed || !column.is_timed()).collect();
        let place = shown.iter().position(|&column| column == self).unwrap_or(0);
        let step = if right { 1 } else { shown.len() - 1 };
        shown[(place + step) % shown.len()]
    }
}

/// Shortest and longest interval that keys lead to.
const PACE: (Duration, Duration) = (Duration::from_millis(125), Duration::from_secs(64));

/// What is to be seen.
#[derive(Debug)]
pub(crate) struct View {
    /// Rows have percentiles.
    pub(crate) timed: bool,
    /// Sorted by this,
    pub(crate) sort: Column,
    /// the other way round.
    pub(crate) reversed: bool,
    /// Only functions and processes with this in their names, in any case.
    pub(crate) filter: String,
    /// Keys go into the filter.
    pub(crate) typing: bool,
    /// No new samples.
    pub(crate) paused: bool,
    /// The first row shown.
    pub(crate) first: usize,
    /// Between two samples.
    pub(crate) interval: Duration,
    /// No character beyond ASCII.
    pub(crate) ascii: bool,
}

/// What a key asks the run to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyAction {
    /// Draw again.
    Draw,
    /// End.
    Quit,
}

impl View {
    /// A view to begin with.
    pub(crate) const fn new(timed: bool, sort: Column, interval: Duration, ascii: bool) -> Self {
        let filter = String::new();
        Self { timed, sort, reversed: false, filter, typing: false, paused: false, first: 0, interval, ascii }
    }
    /// A key was pressed; `page` is how many rows are shown.
    pub(crate) fn key(&mut self, key: KeyEvent, page: usize) -> KeyAction {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return KeyAction::Quit;
        }
        if key.modifiers.contains(KeyModifiers::ALT) {
            // Esc and a key after it, which arrived together.
            if !self.typing {
                return KeyAction::Draw;
            }
            self.type_filter(KeyCode::Esc);
            return self.key(KeyEvent::new(key.code, key.modifiers - KeyModifiers::ALT), page);
        }
        if self.typing {
            self.type_filter(key.code);
            return KeyAction::Draw;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return KeyAction::Quit,
            KeyCode::Char('<') | KeyCode::Left => self.sort = self.sort.beside(false, self.timed),
            KeyCode::Char('>') | KeyCode::Right => self.sort = self.sort.beside(true, self.timed),
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Char('/' | 'f') => self.typing = true,
            KeyCode::Char(' ') => self.paused = !self.paused,
            KeyCode::Char('+') => self.interval = (self.interval / 2).max(PACE.0),
            KeyCode::Char('-') => self.interval = (self.interval * 2).min(PACE.1),
            KeyCode::Up | KeyCode::Char('k') => self.first = self.first.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.first = self.first.saturating_add(1),
            KeyCode::PageUp => self.first = self.first.saturating_sub(page),
            KeyCode::PageDown => self.first = self.first.saturating_add(page),
            KeyCode::Home => self.first = 0,
            KeyCode::End => self.first = usize::MAX,
            _ => {}
        }
        KeyAction::Draw
    }
    fn type_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Char(c) => self.filter.push(c),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            _ => {}
        }
        self.first = 0;
    }
    /// Rows that pass the filter, sorted; and moves the place so that a page of them can be shown.
    pub(crate) fn rows<'m>(&mut self, model: &'m Model, page: usize) -> Vec<&'m TopRow> {
        let wanted = self.filter.to_lowercase();
        let name = |pid: u32| model.processes.iter().find(|one| one.0 == pid).map_or("", |one| &one.1);
        let holds = |text: &str| text.to_lowercase().contains(&wanted);
        let mut rows: Vec<&TopRow> =
            model.rows().iter().filter(|row| holds(&row.label) || holds(name(row.pid))).collect();
        sort(&mut rows, self.sort, self.reversed);
        self.first = self.first.min(rows.len().saturating_sub(page));
        rows
    }
}

/// Most first, names from A on; the other way round if `reversed`. Of equals, more hits first, then by name.
pub(crate) fn sort(rows: &mut [&TopRow], by: Column, reversed: bool) {
    let ns = |row: &TopRow, of: fn(Percentiles) -> u64| row.recent.map(of);
    let order = |a: &TopRow, b: &TopRow| match by {
        Column::Rate => b.rate.total_cmp(&a.rate),
        Column::Total => b.total.cmp(&a.total),
        Column::P50 => ns(b, |times| times.p50).cmp(&ns(a, |times| times.p50)),
        Column::P99 => ns(b, |times| times.p99).cmp(&ns(a, |times| times.p99)),
        Column::Name => Ordering::Equal,
    };
    let name = |a: &TopRow, b: &TopRow| a.label.cmp(&b.label).then(a.pid.cmp(&b.pid));
    rows.order_by(|a, b| {
        let chosen = if by == Column::Name { name(a, b) } else { order(a, b) };
        let chosen = if reversed { chosen.reverse() } else { chosen };
        chosen.then_with(|| b.total.cmp(&a.total)).then_with(|| name(a, b))
    });
}

#[cfg(test)]
mod tests {
    use super::{Column, KeyAction, View};
    use crate::report::samples::sample;
    use crate::top::model::Model;
    use crate::top::model::tests::later;
    use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
    use std::time::Duration;

    fn view() -> View {
        View::new(false, Column::Rate, Duration::from_secs(1), false)
    }
    fn press(view: &mut View, keys: &str) -> KeyAction {
        let mut last = KeyAction::Draw;
        for key in keys.chars() {
            let code = match key {
                '\n' => KeyCode::Enter,
                '\x1b' => KeyCode::Esc,
                '\x08' => KeyCode::Backspace,
                other => KeyCode::Char(other),
            };
            last = view.key(KeyEvent::new(code, KeyModifiers::NONE), 2);
        }
        last
    }
    fn labels(view: &mut View, model: &Model) -> Vec<String> {
        view.rows(model, 2).iter().map(|row| row.label.clone()).collect()
    }
    fn model() -> Model {
        let mut model = Model::default();
        model.feed(&[sample()]);
        model.feed(&[later([40, 0, 4], 1.0)]);
        model
    }

    #[test]
    fn keys_sort() {
        let (mut view, model) = (view(), model());
        assert_eq!(labels(&mut view, &model), ["work", "libfoo:bar", "idle"]);
        press(&mut view, "r");
        assert_eq!(labels(&mut view, &model), ["idle", "libfoo:bar", "work"]);
        press(&mut view, "r>");
        assert_eq!(labels(&mut view, &model), ["libfoo:bar", "work", "idle"], "by total");
        press(&mut view, ">");
        assert_eq!(view.sort, Column::Name, "no percentiles without times");
        assert_eq!(labels(&mut view, &model), ["idle", "libfoo:bar", "work"]);
        press(&mut view, ">");
        assert_eq!(view.sort, Column::Rate, "round and round");
        press(&mut view, "<");
        assert_eq!(view.sort, Column::Name);
        view.timed = true;
        press(&mut view, "<");
        assert_eq!(view.sort, Column::P99);
    }

    #[test]
    fn keys_filter() {
        let (mut view, model) = (view(), model());
        assert_eq!(press(&mut view, "/qO"), KeyAction::Draw, "q is a letter here");
        assert!(labels(&mut view, &model).is_empty() && view.typing);
        press(&mut view, "\x08\x08foo\n");
        assert_eq!((labels(&mut view, &model), view.typing), (vec!["libfoo:bar".to_owned()], false));
        press(&mut view, "/\x1b");
        assert_eq!(labels(&mut view, &model).len(), 3, "the filter is gone");
        press(&mut view, "/foo");
        view.key(KeyEvent::new(KeyCode::Char('r'), KeyModifiers::ALT), 2);
        assert!(view.filter.is_empty() && view.reversed && !view.typing, "Esc and r in one");
        press(&mut view, "r/VICTIM");
        assert_eq!(labels(&mut view, &model).len(), 3, "a process' name counts too");
    }

    #[test]
    fn keys_move_and_never_past_the_end() {
        let (mut view, model) = (view(), model());
        press(&mut view, "jjjj");
        view.rows(&model, 2);
        assert_eq!(view.first, 1, "three rows, two of them shown");
        press(&mut view, "kk");
        assert_eq!(view.first, 0);
        view.key(KeyCode::End.into(), 2);
        view.rows(&model, 5);
        assert_eq!(view.first, 0, "all fit");
    }

    #[test]
    fn keys_pace_and_end() {
        let mut view = view();
        press(&mut view, "+");
        assert_eq!(view.interval, Duration::from_millis(500));
        press(&mut view, "++++++++");
        assert_eq!(view.interval, Duration::from_millis(125));
        press(&mut view, "-");
        assert_eq!(view.interval, Duration::from_millis(250));
        press(&mut view, " ");
        assert!(view.paused);
        assert_eq!((press(&mut view, "x"), press(&mut view, "q")), (KeyAction::Draw, KeyAction::Quit));
        view.typing = true;
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(view.key(control_c, 2), KeyAction::Quit, "also while typing");
    }
}
