//! Exceptions of each row of figures, from the emulator's own account of what its processor took (`-d int`).
//!
//! In: that account; a row begins at a `brk #0x700 + ROW` and ends at `brk #0x6ff`. Out: for each row how many traps,
//! single steps, system calls, and others; and what is not as the seed has it. Interrupts belong to no row.

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

/// The rows with their exceptions for each hit.
pub(super) fn with_exceptions(mut rows: Vec<Value>, counted: &BTreeMap<u64, Taken>) -> Vec<Value> {
    for row in &mut rows {
        let Some(number) = row["row"].as_u64() else { continue };
        let taken = counted.get(&number).copied().unwrap_or_default();
        let hits = row["hits"].as_u64().unwrap_or(1) as f64;
        // The mark at the end comes by way of a few calls of its own; they are no part of a hit.
        let each = |n: u64| json!((n as f64 / hits * 10.0).round() / 10.0);
        row["traps"] = each(taken.traps);
        row["steps"] = each(taken.steps);
        row["calls"] = each(taken.calls);
        row["other_exceptions"] = each(taken.others);
    }
    rows
}

/// A row's name.
fn name(row: &Value) -> String {
    let text = |field: &str| row[field].as_str().unwrap_or_default().to_owned();
    format!("{}-{} {}", text("bench"), text("case"), text("how"))
}

/// Traps, single steps and calls that a hit took.
fn exceptions(row: &Value) -> [f64; 3] {
    ["traps", "steps", "calls"].map(|field| row[field].as_f64().unwrap_or(f64::NAN))
}

/// Of a hit, calls that are another thread's, as of the engine's own that looks at mappings: the account is
/// the processor's, not a thread's. Half a dozen were seen in a row; its own thread ran not one instruction
/// more. A way that makes one more for each hit is far above.
const OTHERS: f64 = 0.25;

/// Whether these are the traps, single steps and calls that are expected.
fn are(expected: [f64; 3], taken: [f64; 3]) -> bool {
    let [traps, steps, calls] = expected;
    taken[..2] == [traps, steps] && (calls..calls + OTHERS).contains(&taken[2])
}

/// A push that may reach into the signal's frame: where that ends is looked up first, which takes more than a copy that
/// jumps back.
const DEEP: &str = "push-64";

/// Each bench with each of its cases.
fn benches() -> impl Iterator<Item = (&'static str, &'static str)> {
    let cases = |bench| ["nop", "push", DEEP, "ret"].map(|case| (bench, case));
    ["uprobe", "uretprobe"].into_iter().flat_map(cases)
}

/// What is not as the seed has it, each by the row that it is about. A kernel that steps takes two exceptions, one that
/// simulates one; ours take the trap and the return from its handler. What is simulated takes half of what is stepped,
/// and less than a copy that jumps back but for a deep push. A jump leaves the kernel alone, and without vectors it is
/// the least of all.
pub(super) fn judge(rows: &[Value]) -> Vec<String> {
    let mut faults = Vec::new();
    for row in rows {
        match expected(row) {
            _ if row["skipped"].is_string() => faults.push(format!("{}: {}", name(row), row["skipped"])),
            Some(expected) if !are(expected, exceptions(row)) => {
                faults.push(format!("{}: {row}: traps, steps and calls should be {expected:?}", name(row)));
            }
            _ => {}
        }
    }
    let of = |wanted: &str, field: &str| {
        rows.iter().find(|row| name(row) == wanted).and_then(|row| row[field].as_f64())
    };
    let mut less_by =
        |field: &str, one: String, times: f64, other: String| match (of(&one, field), of(&other, field)) {
            (Some(few), Some(many)) if few < times * many => {}
            (few, many) => faults
                .push(format!("{one}: {few:?} {field}, which is not below {times} of {other}: {many:?}")),
        };
    // The kernel's part is the same, and now and then an interrupt's more: of what differs by so little, user space's
    // are counted, which nothing changes.
    for (bench, case) in benches().filter(|(_, case)| *case != DEEP) {
        let row = |how: &str| format!("{bench}-{case} {how}");
        less_by("user_instructions", row("simulated"), 1.0, row("out-of-line"));
    }
    let mut less = |one, times, other| less_by("instructions", one, times, other);
    for (bench, case) in benches() {
        let row = |how: &str| format!("{bench}-{case} {how}");
        less(row("jump"), 0.5, row("simulated"));
        if case != "ret" {
            less(row("simulated"), if bench == "uprobe" { 0.55 } else { 0.75 }, row("stepped"));
        }
    }
    less("uprobe-ret kernel".into(), 0.8, "uprobe-push kernel".into());
    less("uprobe-nop jump, general registers only".into(), 0.5, "uprobe-nop jump".into());
    faults
}

/// Of rows where nothing was simulated, but done in this way: those that [`judge`] does not object to. A deep push that
/// is done out of line takes no more.
pub(super) fn unnoticed(rows: &[Value], way: &str) -> Vec<String> {
    let faults = judge(rows);
    let is_simulated = |case: &str| case != "ret" && (case != DEEP || way == "stepped");
    let simulated =
        benches().filter(|(_, case)| is_simulated(case)).map(|(bench, case)| format!("{bench}-{case}"));
    let noticed = |name: &str| faults.iter().any(|fault| fault.starts_with(&format!("{name} simulated")));
    let missed = simulated.filter(|name| !noticed(name));
    missed.map(|name| format!("{name}: is {way}, and it was not noticed")).collect()
}

/// The seed's table: of each row instructions as a multiple of stepping's, and exceptions (traps + steps + calls).
pub(super) fn table(rows: &[Value]) -> String {
    const HOWS: [&str; 6] =
        ["kernel", "stepped", "out-of-line", "simulated", "jump", "jump, general registers only"];
    let mut lines = vec![
        "emulated: instructions of a hit as a multiple of stepping over a copy; traps + single steps + calls"
            .to_owned(),
        format!("| | {} |", HOWS.join(" | ")),
    ];
    for (bench, case) in benches() {
        let cell = |how: &&str| {
            let row = rows.iter().find(|row| name(row) == format!("{bench}-{case} {how}"))?;
            let [traps, steps, calls] = exceptions(row);
            Some(format!("{:.4}; {traps} + {steps} + {calls}", row["of_stepped"].as_f64()?))
        };
        let cells: Vec<String> = HOWS.iter().map(|how| cell(how).unwrap_or("-".to_owned())).collect();
        lines.push(format!("| {bench}-{case} | {} |", cells.join(" | ")));
    }
    lines.join("\n")
}

/// Traps, single steps and calls that a hit takes; `None` for what is the kernel's business alone.
fn expected(row: &Value) -> Option<[f64; 3]> {
    let twice = if row["bench"] == "uretprobe" { 2.0 } else { 1.0 };
    match (row["how"].as_str()?, row["case"].as_str()?, row["bench"].as_str()?) {
        ("none", ..) => Some([0.0; 3]),
        ("kernel", "ret", "uprobe") => Some([1.0, 0.0, 0.0]),
        // Until Linux 6.13 a nop is stepped too; no kernel simulates the push.
        ("kernel", "push" | DEEP, "uprobe") => Some([1.0, 1.0, 0.0]),
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
    use super::{DEEP, Taken, benches, exceptions, expected, judge, of_rows, unnoticed, with_exceptions};
    use serde_json::{Value, json};

    #[test]
    fn rows_are_known_by_their_marks() {
        let account = "Taking exception 7 [Breakpoint]\n...with ESR 0x3c/0xf2000005\n...with ESR 0x3c/0xf2000702\n\
            ...with ESR 0x15/0x56000000\n...with ESR 0x3c/0xf2000000\n...with ESR 0x32/0xca000022\nTaking exception 5 [IRQ]\n\
            ...with ESR 0x24/0x92000047\n...with ESR 0x3c/0xf20006ff\n...with ESR 0x15/0x56000000\n";
        let rows = of_rows(account.as_bytes()).expect("read");
        assert_eq!(
            rows.into_iter().collect::<Vec<_>>(),
            [(2, Taken { traps: 1, steps: 1, calls: 1, others: 1 })]
        );
    }

    /// A row for each way of each case, where a hit takes so many instructions, and exceptions as expected of `done`.
    fn rows(instructions: impl Fn(&str, &str) -> u64, done: impl Fn(&str) -> &str) -> Vec<Value> {
        let hows = ["kernel", "simulated", "out-of-line", "stepped", "jump", "jump, general registers only"];
        let mut rows = Vec::new();
        for (bench, case) in benches() {
            for how in hows {
                let row = |how: &str| {
                    let all = instructions(case, done(how));
                    json!({"bench": bench, "case": case, "how": how, "instructions": all, "user_instructions": all % 1000})
                };
                let [traps, steps, calls] = expected(&row(done(how))).unwrap_or_default();
                let mut row = row(how);
                (row["traps"], row["steps"], row["calls"]) = (json!(traps), json!(steps), json!(calls));
                rows.push(row);
            }
        }
        rows
    }
    fn instructions(case: &str, how: &str) -> u64 {
        match (how, case) {
            ("kernel", "ret") => 1700,
            ("kernel", _) => 2400,
            ("simulated", DEEP) => 6190,
            ("simulated", _) => 6098,
            ("stepped", _) => 12_000,
            ("jump", _) => 400,
            ("jump, general registers only", _) => 100,
            _ => 6100,
        }
    }

    #[test]
    fn what_does_not_fit_is_reported() {
        let good = rows(instructions, |how| how);
        assert_eq!(judge(&good), Vec::<String>::new());
        assert_eq!(unnoticed(&good, "stepped").len(), 6);
        assert_eq!(unnoticed(&good, "out-of-line").len(), 4);
        // Nothing is simulated: stepped instead.
        let stepped = rows(instructions, |how| if how == "simulated" { "stepped" } else { how });
        assert_eq!(unnoticed(&stepped, "stepped"), Vec::<String>::new());
        // Out of line instead.
        let copied = rows(instructions, |how| if how == "simulated" { "out-of-line" } else { how });
        assert_eq!(unnoticed(&copied, "out-of-line"), Vec::<String>::new());
        assert_eq!(unnoticed(&copied, "stepped").len(), 2);
        // One that takes as much as its copy.
        for worse in ["nop", "push"] {
            let no_better = |case: &str, how: &str| {
                if (case, how) == (worse, "simulated") { 6100 } else { instructions(case, how) }
            };
            let named = [format!("uprobe-{worse} simulated"), format!("uretprobe-{worse} simulated")];
            let faults = judge(&rows(no_better, |how| how));
            assert_eq!(faults.len(), 2);
            assert!(faults.iter().zip(&named).all(|(fault, name)| fault.starts_with(name)), "{faults:?}");
        }
        // Rows that are missing, or skipped.
        assert!(judge(&[]).iter().any(|fault| fault.starts_with("uprobe-push simulated: None")));
        let skipped = [json!({"bench": "uprobe", "case": "push", "how": "simulated", "skipped": "why"})];
        assert!(judge(&skipped).contains(&"uprobe-push simulated: \"why\"".to_owned()));
    }

    #[test]
    fn calls_of_another_thread_are_left_out() {
        for (row, field, value, is_fine) in [
            ("uretprobe-push simulated", "calls", 2.1, true),
            ("uretprobe-push simulated", "calls", 1.9, false),
            ("uretprobe-push simulated", "calls", 2.3, false),
            ("uretprobe-push simulated", "traps", 2.1, false),
            ("uprobe-nop jump", "calls", 0.1, true),
            ("uprobe-push kernel", "steps", 1.1, false),
        ] {
            let mut all = rows(instructions, |how| how);
            let changed = all.iter_mut().find(|one| super::name(one) == row).expect("a row");
            changed[field] = json!(value);
            let faults = judge(&all);
            assert_eq!(faults.is_empty(), is_fine, "{row} {field} {value}: {faults:?}");
        }
    }

    #[test]
    fn exceptions_are_of_one_hit() {
        let row = json!({"bench": "uprobe", "case": "push", "how": "kernel", "row": 1, "hits": 100});
        let taken = [(1, Taken { traps: 100, steps: 100, calls: 1, others: 0 })].into_iter().collect();
        let with = with_exceptions(vec![row], &taken);
        assert_eq!(exceptions(&with[0]), [1.0, 1.0, 0.0]);
    }
}
