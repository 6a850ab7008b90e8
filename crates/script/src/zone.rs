//! Time zones: how far local time is ahead of universal time at a moment.
//!
//! In: a file of the system's zone database (TZif). Out: seconds. A file that cannot be read is universal time. Rules for
//! moments behind the last change of the file are not evaluated: the last change stays. Does not: find the file.

/// A time zone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Zone {
    /// When local time changes, and what it is ahead from then on.
    changes: Vec<(i64, i32)>,
    /// Before the first change.
    first: i32,
}

/// Bytes before the tables.
const HEAD: usize = 44;

/// How many entries each table has.
struct Counts {
    isut: usize,
    isstd: usize,
    leap: usize,
    times: usize,
    types: usize,
    letters: usize,
}

impl Counts {
    fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.get(..4)? != b"TZif" {
            return None;
        }
        let count = |index: usize| number(bytes, 20 + 4 * index, 4).map(|count| count as usize);
        Some(Self {
            isut: count(0)?,
            isstd: count(1)?,
            leap: count(2)?,
            times: count(3)?,
            types: count(4)?,
            letters: count(5)?,
        })
    }
    /// Bytes of all tables, with times of so many bytes.
    const fn length(&self, time: usize) -> usize {
        self.times * (time + 1)
            + self.types * 6
            + self.letters
            + self.leap * (time + 4)
            + self.isstd
            + self.isut
    }
}

/// A signed number in big endian.
fn number(bytes: &[u8], at: usize, size: usize) -> Option<i64> {
    let bytes = bytes.get(at..at.checked_add(size)?)?;
    let unsigned = bytes.iter().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
    let unused = 64 - 8 * size as u32;
    Some((unsigned as i64) << unused >> unused)
}

impl Zone {
    /// Reads a zone's file.
    pub fn parse(bytes: &[u8]) -> Self {
        Self::read(bytes).unwrap_or_default()
    }
    /// The second tables of a file have times of eight bytes; an old file has the first alone.
    fn read(bytes: &[u8]) -> Option<Self> {
        let first = Counts::read(bytes)?;
        if *bytes.get(4)? < b'2' {
            return Self::tables(bytes, &first, 4);
        }
        let second = bytes.get(HEAD.checked_add(first.length(4))?..)?;
        Self::tables(second, &Counts::read(second)?, 8)
    }
    fn tables(bytes: &[u8], counts: &Counts, size: usize) -> Option<Self> {
        let kinds = HEAD + counts.times * size;
        let types = kinds + counts.times;
        let ahead = |kind: usize| number(bytes, types + 6 * kind, 4).map(|ahead| ahead as i32);
        let change = |index: usize| {
            let kind = usize::from(*bytes.get(kinds + index)?);
            (kind < counts.types).then_some(())?;
            Some((number(bytes, HEAD + index * size, size)?, ahead(kind)?))
        };
        let changes: Option<Vec<_>> = (0..counts.times.min(bytes.len())).map(change).collect();
        Some(Self { changes: changes?, first: ahead(0)? })
    }
    /// Seconds by which local time is ahead at a moment.
    pub fn ahead(&self, seconds: i64) -> i32 {
        match self.changes.partition_point(|(from, _)| *from <= seconds) {
            0 => self.first,
            index => self.changes[index - 1].1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Zone;

    /// A file of version 1 with one change.
    fn file() -> Vec<u8> {
        let mut out = b"TZif\0".to_vec();
        out.resize(20, 0);
        for count in [0u32, 0, 0, 1, 2, 4] {
            out.extend(count.to_be_bytes());
        }
        out.extend(1000i32.to_be_bytes());
        out.push(1);
        for ahead in [-3600i32, 7200] {
            out.extend(ahead.to_be_bytes());
            out.extend([0, 0]);
        }
        out.extend(b"XYZ\0");
        out
    }

    #[test]
    fn a_change_counts_from_its_moment_on() {
        let zone = Zone::parse(&file());
        assert_eq!([zone.ahead(999), zone.ahead(1000), zone.ahead(i64::MAX)], [-3600, 7200, 7200]);
    }

    #[test]
    fn what_is_no_zone_is_universal_time() {
        // What follows the last type are names, which are not read.
        for length in 0..file().len() - 6 {
            assert_eq!(Zone::parse(&file()[..length]).ahead(0), 0, "{length}");
        }
        assert_eq!(Zone::parse(b"TZif2").ahead(0), 0);
    }
}
