//! Names similar to one that does not exist, for hints in messages.
//!
//! In: the wanted name, and those that exist. Out: a few of them, nearest first.
//! Does not: know what the names are of.

/// Number of similar names that are suggested.
const NEAREST: usize = 5;

/// A few names similar to `wanted`, the nearest first.
pub(crate) fn nearest_of(wanted: &str, names: impl Iterator<Item = String>) -> Vec<String> {
    let limit = (wanted.chars().count() / 3).max(1);
    let mut near: Vec<(usize, String)> =
        names.filter_map(|text| distance(wanted, &text, limit).map(|distance| (distance, text))).collect();
    near.sort();
    near.dedup();
    near.truncate(NEAREST);
    near.into_iter().map(|(_, text)| text).collect()
}

/// Edit distance between two names, ignoring case; `None` above `limit`. A name that contains the whole
/// wanted one is at the limit.
fn distance(wanted: &str, name: &str, limit: usize) -> Option<usize> {
    let (a, b): (Vec<u8>, Vec<u8>) = (
        wanted.bytes().map(|c| c.to_ascii_lowercase()).collect(),
        name.bytes().map(|c| c.to_ascii_lowercase()).collect(),
    );
    let contains = a.len() >= 3 && b.len() <= 4 * a.len() && b.windows(a.len()).any(|part| part == a);
    let otherwise = contains.then_some(limit);
    if a.len().abs_diff(b.len()) > limit || a.len() > 256 {
        return otherwise;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, &x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &y) in b.iter().enumerate() {
            let cost = (diagonal + usize::from(x != y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], cost);
        }
    }
    row.last().copied().filter(|&distance| distance <= limit).or(otherwise)
}
