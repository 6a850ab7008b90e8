//! Stores a run: `runs/DATE-KIND/{README.md, raw.jsonl, summary.txt}`. The processor and the kernel are all
//! that describes the host.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::line::Line;
use anyhow::{Context as _, Result};

/// The open files of a run that is being stored.
#[derive(Debug)]
pub(crate) struct Run {
    raw: File,
    summary: File,
}

/// First value of a field of /proc/cpuinfo.
fn cpuinfo(field: &str) -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(field));
    line.and_then(|line| line.split_once(':')).map_or("unknown", |(_, value)| value.trim()).to_owned()
}

/// Days since 1970 as year, month, day (Howard Hinnant's `civil_from_days`).
fn date(days: i64) -> String {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

impl Run {
    /// Creates the run's folder below `root`, and describes host and command there.
    pub(crate) fn create(root: &Path) -> Result<Self> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).context("the clock")?;
        let model = cpuinfo("model name");
        let kind: String = model
            .split(['(', '@', ','])
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .chain(cpuinfo("model\t").split_whitespace())
            .collect::<Vec<_>>()
            .join("-")
            .to_lowercase();
        let dir = root.join(format!("{}-{kind}", date((now.as_secs() / 86_400).cast_signed())));
        std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        let open = |name: &str| -> Result<File> {
            let path: PathBuf = dir.join(name);
            File::options().create(true).append(true).open(&path).with_context(|| path.display().to_string())
        };
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.contains('/')).collect();
        let command = format!("trapline-bench {}", args.join(" "));
        writeln!(
            open("README.md")?,
            "# {command}\n\n- processor: {model}, family {}, model {}, {cpus} CPUs visible\n- kernel: {}\n- rows: raw.jsonl, one object each; the same as text in summary.txt\n- medians of interleaved rounds; the spread is the quartiles\n",
            cpuinfo("cpu family"),
            cpuinfo("model\t"),
            kernel.trim()
        )?;
        let mut summary = open("summary.txt")?;
        writeln!(summary, "# {command}")?;
        Ok(Self { raw: open("raw.jsonl")?, summary })
    }
    /// Stores one row.
    pub(crate) fn keep(&mut self, row: &impl Line) -> Result<()> {
        writeln!(self.raw, "{}", serde_json::to_string(row)?)?;
        writeln!(self.summary, "{}", row.text())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn dates() {
        assert_eq!(super::date(0), "1970-01-01");
        assert_eq!(super::date(11_016), "2000-02-29");
        assert_eq!(super::date(20_778), "2026-11-21");
    }
}
