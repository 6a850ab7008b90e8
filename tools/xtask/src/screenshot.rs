//! The picture in README.md: text of a terminal, drawn.
//!
//! In: what `trapline demo` printed (docs/demo.txt). Out: docs/demo.svg: text alone, in colours of its own, so that it is
//! legible on light and dark pages.
//! Does not: run anything, or know colours that the terminal showed.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result, ensure};

use crate::outcome::Outcome;
use crate::tree;

const TEXT: &str = "docs/demo.txt";
const PICTURE: &str = "docs/demo.svg";

/// Sizes in pixels: of a character, of a line, of the space around the text, of the bar above it.
const CHARACTER: f64 = 7.83;
const LINE: usize = 18;
const MARGIN: usize = 16;
const BAR: usize = 28;

/// Draws the text again.
pub(crate) fn run() -> Result<Outcome> {
    let root = tree::root();
    let text = fs::read_to_string(root.join(TEXT)).context(TEXT)?;
    ensure!(text.lines().count() > 1, "{TEXT} has no lines");
    fs::write(root.join(PICTURE), draw(&text)).context(PICTURE)?;
    println!("{PICTURE} shows {TEXT}");
    Ok(Outcome::single(true))
}

/// The picture of these lines.
fn draw(text: &str) -> String {
    let columns = text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    let width = (columns as f64 * CHARACTER).ceil() as usize + 2 * MARGIN;
    let height = text.lines().count() * LINE + 2 * MARGIN + BAR;
    let mut picture = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"trapline demo in a terminal\">\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#1c2128\" stroke=\"#57606a\"/>\n"
    );
    for (dot, colour) in ["#e5534b", "#c69026", "#57ab5a"].iter().enumerate() {
        let (x, y) = (MARGIN + 6 + 20 * dot, BAR / 2 + 4);
        let _ = writeln!(picture, "<circle cx=\"{x}\" cy=\"{y}\" r=\"6\" fill=\"{colour}\"/>");
    }
    picture += "<g font-family=\"ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace\" font-size=\"13\" fill=\"#adbac7\">\n";
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let y = BAR + MARGIN + LINE * number + LINE * 2 / 3;
        let length = line.chars().count() as f64 * CHARACTER;
        let colour = if line.starts_with('$') { " fill=\"#6cb6ff\" font-weight=\"bold\"" } else { "" };
        let line = line.replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(
            picture,
            "<text x=\"{MARGIN}\" y=\"{y}\" textLength=\"{length:.1}\" xml:space=\"preserve\"{colour}>{line}</text>"
        );
    }
    picture + "</g>\n</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::draw;

    #[test]
    fn every_line_is_text_of_its_own() {
        let picture = draw("$ a <b> & c\n\n  two\n");
        assert!(picture.contains(">$ a &lt;b> &amp; c</text>"), "{picture}");
        assert!(picture.contains("xml:space=\"preserve\">  two</text>"), "{picture}");
        assert_eq!(picture.matches("<text ").count(), 2);
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n") && !picture.contains("script"));
    }
}
