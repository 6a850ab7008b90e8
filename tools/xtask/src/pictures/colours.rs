//! The colours of a terminal in a picture.
//!
//! In: a cell of a terminal's screen. Out: its style, as SVG's attributes have it. Does not: draw.

use std::fmt::Write as _;

/// What is neither coloured by the program nor reversed.
pub(super) const INK: &str = "#adbac7";
pub(super) const PAPER: &str = "#1c2128";
/// Text that is to be fainter than the rest.
const FAINT: &str = "#768390";
/// The sixteen colours that have names.
const NAMED: [&str; 16] = [
    "#545d68", "#f47067", "#57ab5a", "#c69026", "#539bf5", "#b083f0", "#39c5cf", "#909dab", "#636e7b",
    "#ff938a", "#6bc46d", "#daaa3f", "#6cb6ff", "#dcbdfb", "#56d4dd", "#cdd9e5",
];

/// How characters look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Style {
    ink: vt100::Color,
    paper: vt100::Color,
    bold: bool,
    faint: bool,
    underlined: bool,
    reversed: bool,
}

impl Style {
    pub(super) fn of(cell: &vt100::Cell) -> Self {
        Self {
            ink: cell.fgcolor(),
            paper: cell.bgcolor(),
            bold: cell.bold(),
            faint: cell.dim(),
            underlined: cell.underline(),
            reversed: cell.inverse(),
        }
    }

    /// The colour behind the characters, unless it is the picture's own.
    pub(super) fn paper(self) -> Option<String> {
        match (self.reversed, self.ink, self.paper) {
            (true, vt100::Color::Default, _) => Some(INK.to_owned()),
            (true, ink, _) => Some(colour(ink)),
            (false, _, vt100::Color::Default) => None,
            (false, _, paper) => Some(colour(paper)),
        }
    }

    /// The attributes of the text, each with a space before it.
    pub(super) fn attributes(self) -> String {
        let ink = match (self.reversed, self.ink, self.paper) {
            (true, _, vt100::Color::Default) => Some(PAPER.to_owned()),
            (true, _, paper) => Some(colour(paper)),
            (false, vt100::Color::Default, _) => self.faint.then(|| FAINT.to_owned()),
            (false, ink, _) => Some(colour(ink)),
        };
        let mut attributes = String::new();
        if let Some(ink) = ink {
            let _ = write!(attributes, " fill=\"{ink}\"");
        }
        if self.bold {
            attributes += " font-weight=\"bold\"";
        }
        if self.underlined {
            attributes += " text-decoration=\"underline\"";
        }
        attributes
    }
}

/// A colour that the program chose: one with a name, one of a cube of 6 × 6 × 6, a grey, or any.
fn colour(colour: vt100::Color) -> String {
    match colour {
        vt100::Color::Default => INK.to_owned(),
        vt100::Color::Idx(index @ ..=15) => NAMED[usize::from(index)].to_owned(),
        vt100::Color::Idx(index @ 16..=231) => {
            let level = |part: u8| if part == 0 { 0 } else { 55 + 40 * part };
            let at = index - 16;
            let [r, g, b] = [level(at / 36), level(at / 6 % 6), level(at % 6)];
            format!("#{r:02x}{g:02x}{b:02x}")
        }
        vt100::Color::Idx(index) => {
            let grey = 8 + 10 * (index - 232);
            format!("#{grey:02x}{grey:02x}{grey:02x}")
        }
        vt100::Color::Rgb(r, g, b) => format!("#{r:02x}{g:02x}{b:02x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{NAMED, colour};
    use vt100::Color;

    #[test]
    fn numbers_of_colours_are_those_of_xterm() {
        assert_eq!(colour(Color::Idx(9)), NAMED[9]);
        assert_eq!(colour(Color::Idx(16)), "#000000");
        assert_eq!(colour(Color::Idx(208)), "#ff8700");
        assert_eq!(colour(Color::Idx(231)), "#ffffff");
        assert_eq!(colour(Color::Idx(255)), "#eeeeee");
        assert_eq!(colour(Color::Rgb(1, 2, 255)), "#0102ff");
    }
}
