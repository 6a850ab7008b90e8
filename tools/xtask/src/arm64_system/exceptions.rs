//! Exceptions of each row of figures, from the emulator's own account of what its processor took (`-d int`).
//!
//! In: that account; a row begins at a `brk #0x700 + ROW` and ends at `brk #0x6ff`. Out: for each row how many traps, single steps, system
//! calls, and others. Interrupts are nobody's.

use std::collections::BTreeMap;
use std::io::BufRead;

use anyhow::Result;
use serde_json::{Value, json};

/// What was taken in one row.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Taken {
    /// `brk`.
    traps: u64,
    /// Single steps of the kernel's.
    steps: u64,
    /// `svc`.
    calls: u64,
    /// Of any other class: faults.
    others: u64,
}

/// Classes of exceptions, ESR_ELx.EC (Arm ARM D24.2.40).
const CALL: u64 = 0x15;
const STEP: u64 = 0x32;
const BREAK: u64 = 0x3C;
const BEGIN: u64 = 0x700;
const END: u64 = 0x6FF;

/// Of all rows.
pub(super) fn of_rows(account: impl BufRead) -> Result<BTreeMap<u64, Taken>> {
    let (mut rows, mut row): (BTreeMap<u64, Taken>, _) = (BTreeMap::new(), None);
    for line in account.split(b'\n') {
        // `...with ESR 0x3c/0xf2000000`
        let line = line?;
        let Some(syndrome) = std::str::from_utf8(&line).ok().and_then(syndrome) else { continue };
        let (class, number) = (syndrome >> 26, syndrome & 0xFFFF);
        match (class, number) {
            (BREAK, END) => row = None,
            (BREAK, BEGIN..=0x7FF) => row = Some(number - BEGIN),
            _ => {
                let Some(row) = row else { continue };
                let taken = rows.entry(row).or_default();
                *match class {
                    BREAK => &mut taken.traps,
                    STEP => &mut taken.steps,
                    CALL => &mut taken.calls,
                    _ => &mut taken.others,
                } += 1;
            }
        }
    }
    Ok(rows)
}

fn syndrome(line: &str) -> Option<u64> {
    let (_, word) = line.strip_prefix("...with ESR ")?.split_once('/')?;
    u64::from_str_radix(word.trim().strip_prefix("0x")?, 16).ok()
}

/// The rows with their exceptions for each hit; and what is not as the seed has it: a kernel that steps takes two, one that simulates one; ours
/// take the trap and the return from its handler.
pub(super) fn judge(rows: &[Value], counted: &BTreeMap<u64, Taken>) -> (Vec<String>, Vec<String>) {
    let (mut lines, mut faults) = (Vec::new(), Vec::new());
    if rows.is_empty() {
        faults.push("no rows".to_owned());
    }
    for row in rows {
        let taken = row["row"].as_u64().and_then(|number| counted.get(&number)).copied().unwrap_or_default();
        let hits = row["hits"].as_u64().unwrap_or(1) as f64;
        // The mark at the end comes by way of a few calls of its own; they are no part of a hit.
        let each = |n: u64| (n as f64 / hits * 10.0).round() / 10.0;
        let (traps, steps, calls) = (each(taken.traps), each(taken.steps), each(taken.calls));
        let mut row = row.clone();
        row["traps"] = json!(traps);
        row["steps"] = json!(steps);
        row["calls"] = json!(calls);
        row["other_exceptions"] = json!(each(taken.others));
        if let Some(expected) = expected(&row)
            && expected != [traps, steps, calls]
        {
            faults.push(format!("{row}: traps, steps and calls should be {expected:?}"));
        }
        lines.push(row.to_string());
    }
    (lines, faults)
}

/// Traps, single steps and calls that a hit takes; `None` for what is the kernel's business alone.
fn expected(row: &Value) -> Option<[f64; 3]> {
    let twice = if row["bench"] == "uretprobe" { 2.0 } else { 1.0 };
    match (row["how"].as_str()?, row["case"].as_str()?, row["bench"].as_str()?) {
        ("none", ..) => Some([0.0; 3]),
        ("kernel", "ret", "uprobe") => Some([1.0, 0.0, 0.0]),
        // Until Linux 6.13 a nop is stepped too; no kernel simulates the push.
        ("kernel", "push", "uprobe") => Some([1.0, 1.0, 0.0]),
        // Entry and exit are one instruction, and one trap; a return goes away from its copy.
        ("simulated" | "out-of-line" | "stepped", "ret", _) => Some([1.0, 0.0, 1.0]),
        ("stepped", ..) => Some([twice + 1.0, 0.0, twice + 1.0]),
        ("jump" | "jump, general registers only", ..) => Some([0.0; 3]),
        ("simulated" | "out-of-line", ..) => Some([twice, 0.0, twice]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Taken, judge, of_rows};
    use serde_json::json;

    #[test]
    fn rows_are_told_by_their_marks() {
        let account = "Taking exception 7 [Breakpoint]\n...with ESR 0x3c/0xf2000005\n...with ESR 0x3c/0xf2000702\n\
            ...with ESR 0x15/0x56000000\n...with ESR 0x3c/0xf2000000\n...with ESR 0x32/0xca000022\nTaking exception 5 [IRQ]\n\
            ...with ESR 0x24/0x92000047\n...with ESR 0x3c/0xf20006ff\n...with ESR 0x15/0x56000000\n";
        let rows = of_rows(account.as_bytes()).expect("read");
        assert_eq!(
            rows.into_iter().collect::<Vec<_>>(),
            [(2, Taken { traps: 1, steps: 1, calls: 1, others: 1 })]
        );
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let row = |how: &str| json!({"bench": "uprobe", "case": "push", "how": how, "row": 1, "hits": 100});
        let taken = [(1, Taken { traps: 100, steps: 100, calls: 0, others: 0 })].into_iter().collect();
        assert_eq!(judge(&[row("kernel")], &taken).1.len(), 0);
        assert_eq!(judge(&[row("simulated")], &taken).1.len(), 1);
        assert_eq!(judge(&[], &taken).1, ["no rows"]);
    }
}
