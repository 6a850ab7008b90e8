//! The name that was probably meant.
//!
//! In: a word, and the names that exist. Out: the nearest one, if it is near. Does not: know what the names are for.

/// The nearest of `names`, if at most a third of its letters differ.
pub(crate) fn nearest<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = word.len().div_ceil(3).min(3);
    let near = names.map(|name| (distance(word, name), name)).min();
    near.filter(|(distance, _)| *distance <= allowed).map(|(_, name)| name)
}

/// How many letters must be put in, taken out, changed, or swapped with their neighbour.
fn distance(from: &str, to: &str) -> usize {
    let (from, to) = (from.as_bytes(), to.as_bytes());
    let from = &from[..from.len().min(64)];
    let mut rows: Vec<Vec<usize>> = vec![(0..=to.len()).collect()];
    for i in 1..=from.len() {
        let mut row = vec![i];
        for j in 1..=to.len() {
            let last = &rows[i - 1];
            let changed = last[j - 1] + usize::from(from[i - 1] != to[j - 1]);
            let mut least = changed.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn a_near_name_is_suggested_and_a_far_one_is_not() {
        let names = ["printf", "print", "strftime"];
        assert_eq!(nearest("pritnf", names.into_iter()), Some("printf"));
        assert_eq!(nearest("prin", names.into_iter()), Some("print"));
        assert_eq!(nearest("open", names.into_iter()), None);
    }
}
