//! A row: the instructions of one hit, done in one way.

use serde::Serialize;

use crate::line::Line;

/// Instructions of one hit, minus those of the same call without a probe.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    #[serde(rename = "type")]
    kind: &'static str,
    schema: u32,
    bench: &'static str,
    case: &'static str,
    /// `none`, `kernel`, `simulated`, `out-of-line` (a copy with a jump back), `stepped` (a copy with a trap
    /// behind it), `jump`.
    how: &'static str,
    /// The processor is emulated.
    emulated: bool,
    #[serde(flatten)]
    figures: Figures,
}

/// Figures, or the reason why there are none.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
enum Figures {
    Counted(Counted),
    /// This way was not measured.
    Skipped {
        skipped: String,
    },
}

#[derive(Clone, Debug, Serialize)]
struct Counted {
    /// Number of the marks around this row, for a program that watches the processor.
    row: u64,
    hits: u64,
    instructions: f64,
    user_instructions: f64,
    /// Ratios to a hit that steps over a copy, to one with a copy that jumps back, and to the kernel's.
    of_stepped: Option<f64>,
    of_out_of_line: Option<f64>,
    of_kernel: Option<f64>,
}

/// Whether this processor is emulated: Arm gives implementer number 0 to processors in software (Arm ARM,
/// MIDR_EL1).
fn is_emulated() -> bool {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines().any(|line| line.starts_with("CPU implementer") && line.ends_with(": 0x00"))
}

impl Row {
    pub(super) fn new(
        bench: &'static str,
        case: &'static str,
        how: &'static str,
        (row, hits): (u64, u64),
        instructions: [f64; 2],
    ) -> Self {
        let [instructions, user_instructions] = instructions.map(|n| (n * 10.0).round() / 10.0);
        let figures = Counted {
            row,
            hits,
            instructions,
            user_instructions,
            of_stepped: None,
            of_out_of_line: None,
            of_kernel: None,
        };
        Self::with(bench, case, how, Figures::Counted(figures))
    }
    pub(super) fn skipped(
        bench: &'static str,
        case: &'static str,
        how: &'static str,
        skipped: String,
    ) -> Self {
        Self::with(bench, case, how, Figures::Skipped { skipped })
    }
    fn with(bench: &'static str, case: &'static str, how: &'static str, figures: Figures) -> Self {
        Self { kind: "bench", schema: 1, bench, case, how, emulated: is_emulated(), figures }
    }
}

/// Fills in how the rows of one case compare.
pub(super) fn with_ratios(rows: &mut [Row]) {
    let find = |how: &str| {
        rows.iter().find_map(|row| match &row.figures {
            Figures::Counted(counted) if row.how == how => Some(counted.instructions),
            _ => None,
        })
    };
    let others = ["stepped", "out-of-line", "kernel"].map(find);
    for row in rows.iter_mut().filter(|row| row.how != "none") {
        if let Figures::Counted(counted) = &mut row.figures {
            let of = others.map(|other| Some((counted.instructions / other? * 1e4).round() / 1e4));
            [counted.of_stepped, counted.of_out_of_line, counted.of_kernel] = of;
        }
    }
}

impl Line for Row {
    fn text(&self) -> String {
        let name = format!("{}-{} {}", self.bench, self.case, self.how);
        let times = |by: Option<f64>| by.map_or("      -".to_owned(), |by| format!("{by:7.4}"));
        match &self.figures {
            Figures::Counted(one) => format!(
                "{name:46} {} of stepped  {} of out of line  {} of the kernel's  ({:.1} instructions, {:.1} of user space){}",
                times(one.of_stepped),
                times(one.of_out_of_line),
                times(one.of_kernel),
                one.instructions,
                one.user_instructions,
                if self.emulated { "  emulated" } else { "" }
            ),
            Figures::Skipped { skipped } => format!("{name:46} skipped: {skipped}"),
        }
    }
}
