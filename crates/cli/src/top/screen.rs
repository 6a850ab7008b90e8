//! The terminal: takes it over, draws on it, reads keys, and restores it.
//!
//! Invariants: TOP-1 whatever ends the process except SIGKILL leaves the terminal as it was. Cursor and modes
//! are restored when a [`Screen`] is dropped, and in a panic before its message is printed. The caller waits
//! for signals that end a run, and then drops the screen. Does not: know what is drawn.

use std::io::{self, IsTerminal};
use std::mem::ManuallyDrop;
use std::time::Duration;

use crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use crossterm::execute;
use crossterm::terminal::{EnterAlternateScreen, enable_raw_mode};
use ratatui::backend::CrosstermBackend;
use ratatui::{DefaultTerminal, Frame, Terminal};

/// A terminal that we have taken over.
#[derive(Debug)]
pub(crate) struct Screen {
    terminal: ManuallyDrop<DefaultTerminal>,
}

/// Whether standard output is shown on a terminal, and standard input comes from its keys.
pub(crate) fn is_there() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal() && !is_dumb()
}

/// Whether the terminal can neither move its cursor nor show colours.
pub(crate) fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|name| name.is_empty() || name == "dumb")
}

/// Whether the locale has only ASCII.
pub(crate) fn is_ascii() -> bool {
    let set = |name: &&str| std::env::var(name).is_ok_and(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .find(|name| set(name))
        .and_then(|name| std::env::var(name).ok());
    !locale.is_some_and(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}

impl Screen {
    /// Switches to raw mode and to the alternate screen.
    pub(crate) fn open() -> io::Result<Self> {
        // Not `ratatui::init`: its hook, and the drop of its terminal, print what failed, and panic if the
        // terminal is gone.
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            drop(ratatui::try_restore());
            hook(info);
        }));
        let take = || {
            enable_raw_mode()?;
            execute!(io::stdout(), EnterAlternateScreen)?;
            Terminal::new(CrosstermBackend::new(io::stdout()))
        };
        match take() {
            Ok(terminal) => Ok(Self { terminal: ManuallyDrop::new(terminal) }),
            Err(error) => {
                drop(ratatui::try_restore());
                Err(error)
            }
        }
    }
    /// Draws; only cells that changed are sent.
    pub(crate) fn draw(&mut self, what: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(what).map(drop)
    }
    /// The height of the terminal in lines.
    pub(crate) fn height(&self) -> u16 {
        self.terminal.size().map_or(24, |size| size.height)
    }
    /// Waits at most `at_most` for a key or a change of size, and takes all that came; `None` stands for a
    /// change of size alone.
    pub(crate) fn events(&self, at_most: Duration) -> io::Result<Vec<Option<KeyEvent>>> {
        let mut events = Vec::new();
        let mut wait = at_most;
        while event::poll(wait)? {
            wait = Duration::ZERO;
            match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => events.push(Some(key)),
                Event::Resize(..) => events.push(None),
                _ => {}
            }
        }
        Ok(events)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs no restoring.
        drop(self.terminal.show_cursor());
        // In a panic the hook has run already. Restoring once more would put the cursor back to where it was
        // before the message.
        if !std::thread::panicking() {
            drop(ratatui::try_restore());
        }
    }
}
