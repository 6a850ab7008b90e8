//! Moments: wall time as dates and clocks show it.
//!
//! In: seconds since 1970, and how far local time is ahead. Out: text, by `strftime`'s conversions. Does not: read a
//! clock or know time zones.

/// A moment of local time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment {
    /// Seconds since 1970, in universal time.
    pub(crate) seconds: i64,
    /// Nanoseconds of the second.
    pub(crate) nanos: u32,
    /// Seconds by which local time is ahead.
    pub(crate) ahead: i32,
}

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A date and a time of day.
#[derive(Debug, Clone, Copy)]
struct Parts {
    year: i64,
    /// From 1.
    month: usize,
    day: i64,
    /// From 0, Sunday.
    weekday: i64,
    /// From 0.
    yearday: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

impl Moment {
    fn parts(self) -> Parts {
        let local = self.seconds.saturating_add(i64::from(self.ahead));
        let (days, of_day) = (local.div_euclid(86_400), local.rem_euclid(86_400));
        // Years begin in March here, so the leap day is the last of one. Eras of 400 years are all alike.
        let shifted = days.saturating_add(719_468);
        let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let march = (5 * of_year + 2) / 153;
        let day = of_year - (153 * march + 2) / 5 + 1;
        let month = if march < 10 { march + 3 } else { march - 9 };
        let year = era * 400 + year + i64::from(month <= 2);
        let leap = i64::from(year % 4 == 0 && year % 100 != 0 || year % 400 == 0);
        let yearday = if march < 10 { of_year + 59 + leap } else { of_year - 306 };
        Parts {
            year,
            month: month as usize,
            day,
            weekday: (days + 4).rem_euclid(7),
            yearday,
            hour: of_day / 3600,
            minute: of_day / 60 % 60,
            second: of_day % 60,
        }
    }
    /// `hh:mm:ss`.
    pub(crate) fn clock(self) -> String {
        self.format("%H:%M:%S")
    }
    /// `2026-01-31 12:30:00.000000000`, as series in JSON have it.
    pub(crate) fn long(self) -> String {
        format!("{}.{:09}", self.format("%Y-%m-%d %H:%M:%S"), self.nanos)
    }
    /// The moment by `strftime`'s conversions, and `%f` for microseconds.
    pub(crate) fn format(self, format: &str) -> String {
        let (parts, mut out) = (self.parts(), String::new());
        let mut letters = format.chars();
        while let Some(letter) = letters.next() {
            if letter != '%' {
                out.push(letter);
                continue;
            }
            let mut conversion = letters.next();
            while matches!(conversion, Some('E' | 'O' | '-' | '_' | '0')) {
                conversion = letters.next();
            }
            match conversion {
                Some(conversion) => out.push_str(&self.conversion(conversion, parts)),
                None => out.push('%'),
            }
        }
        out
    }
    fn conversion(self, conversion: char, parts: Parts) -> String {
        let Parts { year, month, day, weekday, yearday, hour, minute, second } = parts;
        let (weekday_name, month_name) = (DAYS[weekday as usize], MONTHS[month - 1]);
        let twelve = (hour + 11) % 12 + 1;
        let (sign, ahead) = (if self.ahead < 0 { '-' } else { '+' }, self.ahead.unsigned_abs() / 60);
        match conversion {
            'Y' => year.to_string(),
            'C' => format!("{:02}", year.div_euclid(100)),
            'y' | 'g' => format!("{:02}", year.rem_euclid(100)),
            'm' => format!("{month:02}"),
            'd' => format!("{day:02}"),
            'e' => format!("{day:2}"),
            'j' => format!("{:03}", yearday + 1),
            'H' => format!("{hour:02}"),
            'I' => format!("{twelve:02}"),
            'k' => format!("{hour:2}"),
            'l' => format!("{twelve:2}"),
            'M' => format!("{minute:02}"),
            'S' => format!("{second:02}"),
            'f' => format!("{:06}", self.nanos / 1000),
            'p' => (if hour < 12 { "AM" } else { "PM" }).to_owned(),
            'P' => (if hour < 12 { "am" } else { "pm" }).to_owned(),
            'a' => weekday_name[..3].to_owned(),
            'A' => weekday_name.to_owned(),
            'b' | 'h' => month_name[..3].to_owned(),
            'B' => month_name.to_owned(),
            'u' => (if weekday == 0 { 7 } else { weekday }).to_string(),
            'w' => weekday.to_string(),
            'U' => format!("{:02}", (yearday + 7 - weekday) / 7),
            'W' => format!("{:02}", (yearday + 7 - (weekday + 6) % 7) / 7),
            's' => self.seconds.to_string(),
            'z' => format!("{sign}{:02}{:02}", ahead / 60, ahead % 60),
            'Z' => {
                if self.ahead == 0 {
                    "UTC".to_owned()
                } else {
                    format!("{sign}{:02}", ahead / 60)
                }
            }
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            '%' => "%".to_owned(),
            'D' | 'x' => self.format("%m/%d/%y"),
            'F' => self.format("%Y-%m-%d"),
            'T' | 'X' => self.format("%H:%M:%S"),
            'R' => self.format("%H:%M"),
            'r' => self.format("%I:%M:%S %p"),
            'c' => self.format("%a %b %e %H:%M:%S %Y"),
            other => format!("%{other}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Moment;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let moment = |seconds, ahead| Moment { seconds, nanos: 123_456_789, ahead };
        let all = "%Y-%m-%d %H:%M:%S.%f %a %j %U %W %p %I %s";
        for (seconds, ahead, text) in [
            (0, 0, "1970-01-01 00:00:00.123456 Thu 001 00 00 AM 12 0"),
            (951_782_400, 3600, "2000-02-29 01:00:00.123456 Tue 060 09 09 AM 01 951782400"),
            (1_798_761_599, 0, "2026-12-31 23:59:59.123456 Thu 365 52 52 PM 11 1798761599"),
            (-1, 0, "1969-12-31 23:59:59.123456 Wed 365 52 52 PM 11 -1"),
        ] {
            assert_eq!(moment(seconds, ahead).format(all), text);
        }
        assert_eq!(moment(0, -5400).format("%z %D %%%q%"), "-0130 12/31/69 %%q%");
    }
}
