//! Draws model and view as cells: a title, the head of the table, its rows, the keys.
//!
//! In: values and a frame. Out: cells. They are drawn without colours of our own, so that the terminal's
//! theme applies.

use std::collections::VecDeque;

use ratatui::Frame;
use ratatui::style::{Modifier, Style};

use super::model::{Model, Percentiles, TopRow};
use super::view::{Column, View};
use crate::report::number::{duration, grouped, plural, rate};

/// Lines other than rows: title, head, keys.
const FRAME_LINES: u16 = 3;
/// Columns that a name gets before a sparkline gets any.
const NAME: usize = 28;
/// Narrowest and widest sparkline, in columns.
const SPARK: (usize, usize) = (8, 60);

/// The number of rows that are shown at this height.
pub(crate) fn page(height: u16) -> usize {
    usize::from(height.saturating_sub(FRAME_LINES))
}

/// Draws everything.
pub(crate) fn draw(frame: &mut Frame<'_>, model: &Model, view: &mut View) {
    let area = frame.area();
    let (width, page) = (usize::from(area.width), page(area.height));
    let rows = view.rows(model, page);
    let columns = Columns::new(model, view, width);
    let mut line = 0;
    let mut put = |text: &str, style: Style| {
        if line < area.height {
            frame.buffer_mut().set_stringn(area.x, area.y + line, text, width, style);
        }
        line += 1;
    };
    put(&title(model, view, rows.len()), Style::new().add_modifier(Modifier::BOLD));
    let head = format!("{:<width$}", columns.head(view));
    put(&head, Style::new().add_modifier(Modifier::REVERSED));
    let shown = rows.iter().skip(view.first).take(page);
    for row in shown.map(Some).chain(std::iter::repeat(None)).take(page) {
        match row {
            Some(row) if row.rate == 0.0 => {
                put(&columns.row(row, view), Style::new().add_modifier(Modifier::DIM))
            }
            Some(row) => put(&columns.row(row, view), Style::new()),
            None => put("", Style::new()),
        }
    }
    put(&keys(view), Style::new());
}

fn title(model: &Model, view: &View, shown: usize) -> String {
    let target = match &model.processes[..] {
        [(pid, name)] => format!("{name} ({pid})"),
        several => plural(several.len() as u64, "process", "processes"),
    };
    let of = match model.rows().len() {
        all if all == shown => String::new(),
        all => format!(" of {}", grouped(all as u64)),
    };
    let per_second: f64 = model.rows().iter().map(|row| row.rate).sum();
    let what = if view.timed { "calls/s" } else { "hits/s" };
    let mut title = format!(
        "trapline top: {target}, {:.0} s, {} {what}, {}{of}",
        model.seconds,
        rate(per_second),
        plural(shown as u64, "function", "functions")
    );
    if model.missed > 0 {
        title.push_str(&format!(", {} missed", grouped(model.missed)));
    }
    if !view.filter.is_empty() && !view.typing {
        title.push_str(&format!(", filter {}", view.filter));
    }
    if view.paused {
        title.push_str(", paused");
    }
    title
}

fn keys(view: &View) -> String {
    if view.typing {
        return format!("/{}_   Enter keeps the filter, Esc clears it", view.filter);
    }
    let interval = view.interval.as_secs_f64();
    format!("<> sort  r reverse  / filter  space pause  +- interval {interval} s  q quit")
}

/// The columns that fit.
struct Columns {
    pids: bool,
    spark: usize,
}

impl Columns {
    fn new(model: &Model, view: &View, width: usize) -> Self {
        let pids = model.processes.len() > 1;
        let fixed = 10 + 14 + if view.timed { 22 } else { 0 } + if pids { 9 } else { 0 } + 2;
        let left = width.saturating_sub(fixed + NAME + 2);
        let spark = if left < SPARK.0 { 0 } else { left.min(SPARK.1) };
        Self { pids, spark }
    }
    fn head(&self, view: &View) -> String {
        let mark = match (view.ascii, view.reversed) {
            (false, false) => '▼',
            (false, true) => '▲',
            (true, false) => 'v',
            (true, true) => '^',
        };
        let name = |column: Column, text: &str| {
            if column == view.sort { format!("{mark}{text}") } else { text.to_owned() }
        };
        let (rate, total) = if view.timed { ("CALLS/S", "CALLS") } else { ("HITS/S", "HITS") };
        let times = [name(Column::P50, "P50"), name(Column::P99, "P99")];
        let cells = [name(Column::Rate, rate), name(Column::Total, total)];
        self.line(&cells, view.timed.then_some(&times), "RATE BEFORE", "PID", &name(Column::Name, "FUNCTION"))
    }
    fn row(&self, row: &TopRow, view: &View) -> String {
        let times = row.recent.map_or(["-".to_owned(), "-".to_owned()], |Percentiles { p50, p99 }| {
            [duration(p50), duration(p99)]
        });
        let cells = [rate(row.rate), grouped(row.total)];
        let spark = sparkline(&row.history, self.spark, view.ascii);
        self.line(&cells, view.timed.then_some(&times), &spark, &row.pid.to_string(), &row.label)
    }
    fn line(
        &self,
        counts: &[String; 2],
        times: Option<&[String; 2]>,
        spark: &str,
        pid: &str,
        name: &str,
    ) -> String {
        let mut line = format!("{:>10} {:>13}", counts[0], counts[1]);
        if let Some([p50, p99]) = times {
            line.push_str(&format!(" {p50:>10} {p99:>10}"));
        }
        if self.spark > 0 {
            line.push_str(&format!("  {spark:<width$.width$}", width = self.spark));
        }
        if self.pids {
            line.push_str(&format!(" {pid:>8}"));
        }
        format!("{line}  {name}")
    }
}

/// The last rates, the newest to the right. The highest of them has the full height.
fn sparkline(history: &VecDeque<f64>, width: usize, ascii: bool) -> String {
    let bars: Vec<char> = if ascii { " .:-=+*#@" } else { " ▁▂▃▄▅▆▇█" }.chars().collect();
    let shown = history.iter().skip(history.len().saturating_sub(width));
    let most = shown.clone().copied().fold(0.0, f64::max);
    let bar =
        |&rate: &f64| if rate > 0.0 { bars[((rate / most * 8.0).ceil() as usize).clamp(1, 8)] } else { ' ' };
    let drawn: String = shown.map(bar).collect();
    format!("{drawn:>width$}")
}

#[cfg(test)]
mod tests {
    use super::{draw, sparkline};
    use crate::report::samples::{sample, timed};
    use crate::top::model::Model;
    use crate::top::model::tests::later;
    use crate::top::view::{Column, View};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::style::Modifier;
    use std::time::Duration;

    fn model() -> Model {
        let mut model = Model::default();
        model.feed(&[sample()]);
        for more in [[0, 0, 900], [100, 0, 1700], [500, 0, 1750], [700, 0, 2750]] {
            model.feed(&[later(more, 1.0)]);
        }
        model
    }
    fn view(timed: bool) -> View {
        View::new(timed, Column::Rate, Duration::from_secs(1), false)
    }
    fn screen(width: u16, height: u16, model: &Model, view: &mut View) -> TestBackend {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("memory");
        terminal.draw(|frame| draw(frame, model, view)).expect("memory");
        terminal.backend().clone()
    }
    fn check(backend: &TestBackend, expected: &[&str]) {
        let shown = backend.to_string();
        let shown: Vec<&str> = shown.lines().map(|line| line.trim_matches('"').trim_end()).collect();
        assert_eq!(shown, expected, "\n{}", shown.join("\n"));
    }

    #[test]
    fn a_wide_terminal_shows_all() {
        check(
            &screen(82, 8, &model(), &mut view(false)),
            &[
                "trapline top: victim (42), 3 s, 1,200 hits/s, 3 functions, 1 missed",
                "   ▼HITS/S          HITS  RATE BEFORE                 FUNCTION",
                "     1,000         4,250                       █▅▅▁▆  libfoo:bar",
                "       200           720                       ▁ ▂█▄  work",
                "         0             0                              idle",
                "",
                "",
                "<> sort  r reverse  / filter  space pause  +- interval 1 s  q quit",
            ],
        );
    }

    #[test]
    fn a_narrow_one_shows_what_fits() {
        check(
            &screen(44, 5, &model(), &mut view(false)),
            &[
                "trapline top: victim (42), 3 s, 1,200 hits/s",
                "   ▼HITS/S          HITS  FUNCTION",
                "     1,000         4,250  libfoo:bar",
                "       200           720  work",
                "<> sort  r reverse  / filter  space pause  +",
            ],
        );
    }

    #[test]
    fn calls_have_percentiles_and_processes_numbers() {
        let mut model = Model::default();
        let other = trapline::ProcessReport { pid: 43, missed: 0, ..sample() };
        model.feed(&[timed(), other]);
        let mut view = view(true);
        view.ascii = true;
        check(
            &screen(100, 7, &model, &mut view),
            &[
                "trapline top: 2 processes, 2 s, 1,523 calls/s, 4 functions, 1 missed",
                "  vCALLS/S         CALLS        P50        P99  RATE BEFORE        PID  FUNCTION",
                "     1,500         1,500          -          -              @       43  libfoo:bar",
                "        20            20          -          -              @       43  work",
                "       3.0             3     102 ns     310 ns              @       42  work",
                "         0             0          -          -                      43  idle",
                "<> sort  r reverse  / filter  space pause  +- interval 1 s  q quit",
            ],
        );
    }

    #[test]
    fn the_last_line_is_for_keys_and_the_filter() {
        let mut view = view(false);
        (view.filter, view.typing) = ("foo".to_owned(), true);
        check(
            &screen(61, 4, &model(), &mut view),
            &[
                "trapline top: victim (42), 3 s, 1,200 hits/s, 1 function of 3",
                "   ▼HITS/S          HITS  FUNCTION",
                "     1,000         4,250  libfoo:bar",
                "/foo_   Enter keeps the filter, Esc clears it",
            ],
        );
        (view.typing, view.paused, view.reversed) = (false, true, true);
        check(
            &screen(110, 4, &model(), &mut view),
            &[
                "trapline top: victim (42), 3 s, 1,200 hits/s, 1 function of 3, 1 missed, filter foo, paused",
                "   ▲HITS/S          HITS  RATE BEFORE                                             FUNCTION",
                "     1,000         4,250                                                   █▅▅▁▆  libfoo:bar",
                "<> sort  r reverse  / filter  space pause  +- interval 1 s  q quit",
            ],
        );
    }

    #[test]
    fn a_terminal_may_be_tiny() {
        for (width, height) in [(1, 1), (3, 2), (20, 3), (0, 0)] {
            screen(width, height, &model(), &mut view(true));
        }
    }

    #[test]
    fn the_head_is_reversed_and_quiet_rows_are_dim() {
        let backend = screen(60, 6, &model(), &mut view(false));
        let style = |line: u16| backend.buffer()[(1, line)].modifier;
        assert_eq!(style(1), Modifier::REVERSED);
        assert_eq!((style(2), style(4)), (Modifier::empty(), Modifier::DIM), "idle has no hit");
    }

    #[test]
    fn bars_are_relative_and_the_newest_is_right() {
        let rates = [0.0, 1.0, 4.0, 8.0, 2.0].into_iter().collect();
        assert_eq!(sparkline(&rates, 6, false), "  ▁▄█▂");
        assert_eq!(sparkline(&rates, 3, true), "=@:");
        assert_eq!(sparkline(&[0.0, 0.0].into_iter().collect(), 2, false), "  ");
    }
}
