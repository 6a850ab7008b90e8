//! A flame graph (Gregg, "The Flame Graph", Communications of the ACM 59:6, 2016): a box for each function,
//! as wide as what was counted in it.
//!
//! In: stacks. Out: an SVG file by inferno, which a viewer shows without any other file. If there are no
//! stacks, the picture states that.

use inferno::flamegraph::{Options, from_lines};

use super::Shown;

/// Draws the graph; `of` is its title.
pub(crate) fn draw(shown: &mut Shown<'_>, of: &str) -> Vec<u8> {
    let unit = if shown.time { "ns" } else { "calls" };
    picture(&shown.folded(), of, unit)
}

/// Draws folded stacks; `unit` is what their numbers are.
pub(crate) fn picture(folded: &str, title: &str, unit: &str) -> Vec<u8> {
    let mut options = Options::default();
    options.title = title.to_owned();
    options.count_name = unit.to_owned();
    options.deterministic = true;
    let mut out = Vec::new();
    // Without a line there is nothing to draw, and inferno has written a picture that states so. Writing to
    // memory does not fail.
    from_lines(&mut options, folded.lines(), &mut out).ok();
    out
}

#[cfg(test)]
mod tests {
    use super::super::Shown;
    use super::super::tests::sample;

    #[test]
    fn each_function_has_a_box() {
        let stacks = sample();
        let svg = String::from_utf8(super::draw(&mut Shown::new(&stacks, false), "a <b> & c")).expect("text");
        assert!(svg.contains("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
        for box_of in ["[0x30] (3 calls, 75.00%)", "f (1 calls, 25.00%)", "a &lt;b&gt; &amp; c"] {
            assert!(svg.contains(box_of), "{box_of}: {svg}");
        }
        assert!(!svg.contains("http-equiv") && !svg.contains("src="), "it loads nothing");
        let none = super::draw(&mut Shown::new(&[], false), "nothing");
        assert!(String::from_utf8_lossy(&none).contains("ERROR"), "it says so");
    }
}
