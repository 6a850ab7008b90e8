//! A browser without a window.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::scratch::Scratch;
use super::text;

/// A folder that the browser writes to; removed with the test.
struct Profile(PathBuf);

impl Drop for Profile {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// A page or picture as text, after its scripts ran. `None`, with a printed line, if there is no browser.
/// Fails if the console shows a message.
pub(crate) fn look(page: &Scratch) -> Option<String> {
    let browser =
        ["/usr/bin/chromium", "/usr/bin/google-chrome"].into_iter().find(|path| Path::new(path).exists());
    let Some(browser) = browser else {
        println!("SKIP: no browser (package chromium)");
        return None;
    };
    let profile = Profile(page.0.with_extension("profile"));
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .args(["--window-size=1280,1024", "--enable-logging=stderr"])
        .arg(format!("--user-data-dir={}", profile.0.display()))
        .args(["--dump-dom", &format!("file://{}", page.name())])
        .output()
        .expect("it starts");
    let output_text = text(&output.stderr);
    let console: Vec<&str> = output_text.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert!(console.is_empty(), "the page complains: {console:#?}");
    let dom = text(&output.stdout);
    assert!(!dom.is_empty(), "nothing is shown: {output_text}");
    Some(dom)
}

/// Does the same with a copy into which a script is inserted before `end`. Returns what that script left in
/// `data-seen` of the outermost element.
pub(crate) fn act(page: &Scratch, end: &str, script: &str) -> Option<serde_json::Value> {
    let whole = std::fs::read_to_string(&page.0).expect("written");
    let (before, after) = whole.rsplit_once(end).expect("its end");
    let suffix = page.0.extension().expect("a suffix").to_string_lossy().into_owned();
    let copy = Scratch(page.0.with_extension(format!("acted.{suffix}")));
    std::fs::write(&copy.0, format!("{before}<script>{script}</script>{end}{after}")).expect("written");
    let dom = look(&copy)?;
    let seen = dom.split("data-seen=\"").nth(1).unwrap_or_else(|| panic!("the script failed: {dom}"));
    let seen = seen.split('"').next().unwrap_or_default().replace("&quot;", "\"").replace("&amp;", "&");
    Some(serde_json::from_str(&seen).unwrap_or_else(|error| panic!("{error}: {seen}")))
}

/// The value of an attribute in each element that starts like this, within a part of the page.
pub(crate) fn numbers(dom: &str, part: &str, element: &str, attribute: &str) -> Vec<u64> {
    let part = dom.split(&format!("id=\"{part}\"")).nth(1).expect(part);
    let part = part.split("</table>").next().and_then(|part| part.split("</svg>").next()).expect("an end");
    let (element, attribute) = (format!("<{element} "), format!("{attribute}=\""));
    let starts = part.split(&element).skip(1).map(|rest| rest.split('>').next().unwrap_or_default());
    let value = |start: &str| start.split(&attribute).nth(1)?.split('"').next()?.parse().ok();
    starts.filter_map(value).collect()
}
