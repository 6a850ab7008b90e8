//! Numbers in the form in which people read them.

use std::time::Duration;

/// A number with a separator at each thousand: `1,234,567`.
pub(crate) fn grouped(value: u64) -> String {
    thousands(&value.to_string())
}

/// The same for a number that may be negative: `-1,234`.
pub(crate) fn signed(value: i128) -> String {
    let sign = if value < 0 { "-" } else { "" };
    format!("{sign}{}", thousands(&value.unsigned_abs().to_string()))
}

/// A quotient with two decimals, rounded: `1,234.57`.
pub(crate) fn quotient(of: i128, by: u64) -> String {
    let (all, by) = (of.unsigned_abs(), u128::from(by.max(1)));
    let (mut whole, mut hundredths) = (all / by, (all % by * 100 + by / 2) / by);
    if hundredths == 100 {
        (whole, hundredths) = (whole + 1, 0);
    }
    let sign = if of < 0 && (whole, hundredths) != (0, 0) { "-" } else { "" };
    format!("{sign}{}.{hundredths:02}", thousands(&whole.to_string()))
}

fn thousands(digits: &str) -> String {
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// A rate: whole above 10, one decimal below.
pub(crate) fn rate(value: f64) -> String {
    if value >= 10.0 || value == 0.0 { grouped(value.round() as u64) } else { format!("{value:.1}") }
}

/// A power-of-two size: `512`, `1K`, `64K`, `2M`, as bpftrace labels histogram rows.
pub(crate) fn binary(value: u64) -> String {
    let units = ["", "K", "M", "G", "T", "P", "E"];
    let mut value = value;
    let mut unit = 0;
    while value >= 1024 && value.is_multiple_of(1024) && unit + 1 < units.len() {
        value /= 1024;
        unit += 1;
    }
    format!("{value}{}", units[unit])
}

/// A share: `0.04 %`, `12 %`.
pub(crate) fn percent(share: f64) -> String {
    match share * 100.0 {
        p if p >= 10.0 => format!("{p:.0} %"),
        p if p >= 1.0 => format!("{p:.1} %"),
        p if p >= 0.01 => format!("{p:.2} %"),
        p if p > 0.0 => "less than 0.01 %".to_owned(),
        _ => "0 %".to_owned(),
    }
}

/// A duration in the unit that leaves one to three digits before the point.
pub(crate) fn duration(ns: u64) -> String {
    let ns = ns as f64;
    match ns {
        _ if ns < 1e3 => format!("{ns:.0} ns"),
        _ if ns < 1e6 => format!("{:.3} us", ns / 1e3),
        _ if ns < 1e9 => format!("{:.3} ms", ns / 1e6),
        _ => format!("{:.3} s", ns / 1e9),
    }
}

/// A duration in three digits: `13.9 ms`. That is enough where nothing is compared.
pub(crate) fn rough(time: Duration) -> String {
    let ns = time.as_nanos() as f64;
    let (value, unit) = match ns {
        _ if ns < 1e3 => return format!("{ns:.0} ns"),
        _ if ns < 999.5e3 => (ns / 1e3, "us"),
        _ if ns < 999.5e6 => (ns / 1e6, "ms"),
        _ => (ns / 1e9, "s"),
    };
    let decimals = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.decimals$} {unit}")
}

/// Bytes: `96 KiB`.
pub(crate) fn bytes(value: u64) -> String {
    match value {
        0..1024 => format!("{value} B"),
        1024..1_048_576 => format!("{} KiB", value.div_ceil(1024)),
        _ => format!("{:.1} MiB", value as f64 / 1_048_576.0),
    }
}

/// `1 site`, `2 sites`.
pub(crate) fn plural(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(n), if n == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::{binary, bytes, duration, grouped, percent, plural, rate, rough};
    use std::time::Duration;

    #[test]
    fn numbers_read_well() {
        let groups = [grouped(0), grouped(999), grouped(1000), grouped(1_234_567)];
        assert_eq!(groups, ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([binary(512), binary(1024), binary(1 << 21), binary(1500)], ["512", "1K", "2M", "1500"]);
        assert_eq!([rate(0.0), rate(2.34), rate(1234.5)], ["0", "2.3", "1,235"]);
        assert_eq!(
            [percent(0.00001), percent(0.0004), percent(0.031), percent(0.5)],
            ["less than 0.01 %", "0.04 %", "3.1 %", "50 %"]
        );
        assert_eq!([duration(7), duration(1500), duration(2_000_000_000)], ["7 ns", "1.500 us", "2.000 s"]);
        let all = [0, 999, 1000, 9994, 9996, 99_940, 99_960, 999_400, 999_600, 1_073_000_000, 64_000_000_000];
        assert_eq!(
            all.map(|ns| rough(Duration::from_nanos(ns))),
            [
                "0 ns", "999 ns", "1.00 us", "9.99 us", "10.0 us", "99.9 us", "100 us", "999 us", "1.00 ms",
                "1.07 s", "64.0 s"
            ]
        );
        assert_eq!([bytes(12), bytes(4097), bytes(3 << 20)], ["12 B", "5 KiB", "3.0 MiB"]);
        assert_eq!([plural(1, "site", "sites"), plural(2000, "site", "sites")], ["1 site", "2,000 sites"]);
    }
}
