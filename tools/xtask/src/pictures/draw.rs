//! A terminal's lines as a picture.
//!
//! In: a terminal's screen. Out: its lines, as stretches of one style; SVG of such lines, under a bar with three dots and
//! perhaps a title. It holds text alone, in colours of its own, so it is legible on light and dark pages.
//! Invariant: no character of the screen is lost but spaces at a line's end.
//! Does not: run anything, or write files.

use std::fmt::Write as _;

use super::colours::{self, Style};

/// Sizes in pixels: of a character, of a line, of the space around the text, of the bar above it.
const CHARACTER: f64 = 7.83;
const LINE: usize = 18;
const MARGIN: usize = 16;
const BAR: usize = 28;
/// Browsers have one of these; the width of each stretch is given besides.
const FONT: &str = "ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace";

/// Characters of one style.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) column: usize,
    pub(super) text: String,
    pub(super) style: Style,
}

/// What stands in one line, from left to right.
pub(super) type Line = Vec<Stretch>;

/// A line of one style.
pub(super) fn plain(text: &str) -> Line {
    vec![Stretch { column: 0, text: text.to_owned(), style: Style::default() }]
}

/// The text of a line.
pub(super) fn text(line: &Line) -> String {
    line.iter().map(|stretch| stretch.text.as_str()).collect()
}

/// The lines of a screen, without empty ones at both ends.
pub(super) fn lines(screen: &vt100::Screen) -> Vec<Line> {
    let (rows, columns) = screen.size();
    let all = (0..rows.get()).map(|row| line(screen, row, columns.get()));
    let mut lines: Vec<Line> = all.skip_while(Vec::is_empty).collect();
    lines.truncate(lines.iter().rposition(|line| !line.is_empty()).map_or(0, |last| last + 1));
    lines
}

fn line(screen: &vt100::Screen, row: u16, columns: u16) -> Line {
    let mut line = Line::new();
    let cells = (0..columns).filter_map(|column| screen.cell(row, column).map(|cell| (column, cell)));
    for (column, cell) in cells.filter(|(_, cell)| !cell.is_wide_continuation()) {
        let text = if cell.has_contents() { cell.contents() } else { " " };
        let style = Style::of(cell);
        match line.last_mut().filter(|last| last.style == style) {
            Some(last) => last.text += text,
            None => line.push(Stretch { column: column.into(), text: text.to_owned(), style }),
        }
    }
    // What is seen of spaces is their background.
    while line.last().is_some_and(|last| last.style.paper().is_none() && last.text.trim().is_empty()) {
        line.pop();
    }
    if let Some(last) = line.last_mut().filter(|last| last.style.paper().is_none()) {
        last.text.truncate(last.text.trim_end().len());
    }
    line
}

/// The picture of these lines. The title stands in the bar; `label` says what is to be seen.
pub(super) fn draw(title: &str, label: &str, lines: &[Line]) -> String {
    let columns = lines.iter().filter_map(|line| line.last()).map(|last| last.column + length(&last.text));
    let width = pixels(columns.max().unwrap_or(0)).ceil() as usize + 2 * MARGIN;
    let height = lines.len() * LINE + 2 * MARGIN + BAR;
    let mut picture = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{}\">\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"{}\" stroke=\"#57606a\"/>\n",
        escaped(label),
        colours::PAPER
    );
    for (dot, colour) in ["#e5534b", "#c69026", "#57ab5a"].iter().enumerate() {
        let (x, y) = (MARGIN + 6 + 20 * dot, BAR / 2 + 4);
        let _ = writeln!(picture, "<circle cx=\"{x}\" cy=\"{y}\" r=\"6\" fill=\"{colour}\"/>");
    }
    let _ = writeln!(picture, "<g font-family=\"{FONT}\" font-size=\"13\" fill=\"{}\">", colours::INK);
    if !title.is_empty() {
        let (x, y) = (MARGIN + 70, BAR / 2 + 8);
        let _ = writeln!(picture, "<text x=\"{x}\" y=\"{y}\" fill=\"#768390\">{}</text>", escaped(title));
    }
    for (number, line) in lines.iter().enumerate() {
        for stretch in line {
            picture += &drawn(stretch, BAR + MARGIN + LINE * number);
        }
    }
    picture + "</g>\n</svg>\n"
}

/// A stretch of a line whose upper end is at `top`.
fn drawn(stretch: &Stretch, top: usize) -> String {
    let (x, length) = (MARGIN as f64 + pixels(stretch.column), pixels(length(&stretch.text)));
    let (mut drawn, style) = (String::new(), stretch.style);
    if let Some(paper) = style.paper() {
        let y = top as f64 - 2.5;
        let _ = writeln!(
            drawn,
            "<rect x=\"{x:.1}\" y=\"{y}\" width=\"{length:.1}\" height=\"{LINE}\" fill=\"{paper}\"/>"
        );
    }
    if stretch.text.trim().is_empty() {
        return drawn;
    }
    let is_prompt = stretch.column == 0 && stretch.text.starts_with("$ ");
    let style =
        if is_prompt { " fill=\"#6cb6ff\" font-weight=\"bold\"".to_owned() } else { style.attributes() };
    let (y, text) = (top + LINE * 2 / 3, escaped(&stretch.text));
    let _ = writeln!(
        drawn,
        "<text x=\"{x:.1}\" y=\"{y}\" textLength=\"{length:.1}\" xml:space=\"preserve\"{style}>{text}</text>"
    );
    drawn
}

fn pixels(characters: usize) -> f64 {
    characters as f64 * CHARACTER
}

fn length(text: &str) -> usize {
    text.chars().count()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::{draw, lines, plain, text};
    use std::num::NonZeroU16;

    /// The picture of what a terminal of 5 rows and 20 columns shows of these bytes.
    fn shown(bytes: &str) -> String {
        let size = |n| NonZeroU16::new(n).expect("some");
        let mut parser = vt100::Parser::new(size(5), size(20), 0);
        parser.process(bytes.as_bytes());
        draw("", "l", &lines(parser.screen()))
    }

    #[test]
    fn every_line_is_text_of_its_own() {
        let picture = shown("\r\n$ a <b> & c\r\n\r\n  two  \r\n");
        assert!(picture.contains(">$ a &lt;b> &amp; c</text>"), "{picture}");
        assert!(picture.contains("xml:space=\"preserve\">  two</text>"), "{picture}");
        assert_eq!(picture.matches("<text ").count(), 2);
        assert!(picture.contains("height=\"114\""), "three lines: {picture}");
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n") && !picture.contains("script"));
    }

    #[test]
    fn colours_and_bold_are_as_on_the_screen() {
        let picture = shown("a\x1b[1mb\x1b[0;32mc\x1b[7md \x1b[m e");
        assert!(picture.contains(" font-weight=\"bold\">b</text>"), "{picture}");
        assert!(picture.contains(" fill=\"#57ab5a\">c</text>"), "{picture}");
        let reversed = "width=\"15.7\" height=\"18\" fill=\"#57ab5a\"/>";
        assert!(picture.contains(reversed) && picture.contains(" fill=\"#1c2128\">d </text>"), "{picture}");
        assert!(picture.contains("x=\"55.1\"") && picture.contains("> e</text>"), "{picture}");
    }

    #[test]
    fn a_title_and_a_label_are_escaped() {
        let picture = draw("a < b", "\"&\"", &[plain("x")]);
        assert!(picture.contains(">a &lt; b</text>") && picture.contains("aria-label=\"&quot;&amp;&quot;\""));
        assert_eq!(text(&plain("x")), "x");
    }
}
