//! Pages and flame graphs in a browser: they show the numbers of the file, which are the victim's own, and
//! they react to clicks.

mod common;

use std::collections::BTreeMap;

use common::browser::{act, look, numbers};
use common::scratch::Scratch;
use common::{field, framed, program, run, text, trapline};
use serde_json::Value;

/// Traces a victim that makes `rounds` rounds, with the words in `more`, into a page. Returns the page.
fn page_of(verb: &str, more: &[&str], file: &Scratch, rounds: &str) -> String {
    let victim = program().display().to_string();
    let before = [verb, "-i", "1ms", "-o", file.name()];
    let output = run(&[&before, more, &["plain", "--", &victim, rounds]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    alone(file)
}

/// Few enough for all records to fit into one ring.
const ROUNDS: u64 = 5_000;

/// Traces a victim with frame pointers into a file. It calls `plain` twice in each round, through `nested`.
/// Returns the number of its calls of `plain`.
fn stacks_of(more: &[&str], file: &Scratch) -> u64 {
    let input = Scratch::new(&format!("{}.input", file.0.file_name().expect("a name").to_string_lossy()));
    std::fs::write(&input.0, format!("{ROUNDS}\n")).expect("written");
    let victim = framed().display().to_string();
    let before = ["stack", "-i", "1ms", "-o", file.name()];
    let mut command = trapline();
    command.args([&before, more, &["plain", "recursive", "--", &victim]].concat());
    let output = command.stdin(std::fs::File::open(&input.0).expect("ours")).output().expect("trapline runs");
    let output_text = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{output_text}");
    assert!(output_text.contains(" recorded, 0 missed"), "{output_text}");
    let reported = text(&output.stdout);
    assert_eq!(reported, format!("ready\n{} {ROUNDS} 0\n", 2 * ROUNDS));
    2 * ROUNDS
}

/// A page, checked to load nothing.
fn alone(file: &Scratch) -> String {
    let page = std::fs::read_to_string(&file.0).expect("written");
    for outside in ["src=", "href=", "@import", "url("] {
        assert!(!page.contains(outside), "the page loads something: {outside}");
    }
    page
}

/// The page after its script ran.
fn shown(page: &Scratch) -> Option<String> {
    let dom = look(page)?;
    assert!(dom.contains("data-ready=\"yes\"") && !dom.contains("data-error"), "its script failed:\n{dom}");
    Some(dom)
}

/// The objects that a page contains.
fn embedded(page: &str) -> Value {
    let data = page.split("id=\"data\">").nth(1).expect("data").split("</script>").next().expect("an end");
    serde_json::from_str(data).expect("JSON")
}

/// How often a row of a function's durations grew from one sample to the next.
fn more(samples: &[Value], place: usize) -> usize {
    let mut before: BTreeMap<u64, u64> = BTreeMap::new();
    let mut grown = 0;
    let sets = samples.iter().flat_map(|sample| sample["set"].as_array().expect("a set"));
    for row in sets.filter(|entry| entry[0] == place).flat_map(|entry| entry[1].as_array().expect("rows")) {
        let (low, calls) = (row[0].as_u64().expect("ns"), row[2].as_u64().expect("calls"));
        grown += usize::from(before.insert(low, calls).unwrap_or(0) < calls);
    }
    grown
}

#[test]
fn a_page_shows_durations_as_the_json_has_them() {
    let file = Scratch::new("lat.html");
    let page = page_of("lat", &["main", "nested"], &file, "300000");
    let data = embedded(&page);
    let last = &data["processes"][0]["last"];
    assert_eq!(field(last, ":plain", "calls"), 300_000);
    let Some(dom) = shown(&file) else { return };
    for field in ["calls", "p50_ns", "p90_ns", "p99_ns", "max_ns", "total_ns"] {
        let mut expected: Vec<u64> = last["probes"]
            .as_array()
            .expect("probes")
            .iter()
            .map(|probe| probe[field].as_u64().expect(field))
            .collect();
        let mut shown =
            numbers(&dom, "functions", &format!("td class=\"number\" data-field=\"{field}\""), "data-value");
        expected.sort_unstable();
        shown.sort_unstable();
        assert_eq!(shown, expected, "{field}");
    }
    let plain = last["probes"].as_array().expect("probes").iter().find(|probe| probe["calls"] == 300_000);
    let rows = plain.expect("plain")["log2_ns"].as_array().expect("rows");
    let expected: Vec<u64> = rows.iter().map(|row| row[2].as_u64().expect("calls")).collect();
    assert_eq!(numbers(&dom, "histogram", "tr", "data-calls"), expected);
    let cells = numbers(&dom, "chart", "rect", "data-calls");
    assert_eq!(cells.iter().sum::<u64>(), 300_000, "the heatmap has all calls");
    let place = last["probes"].as_array().expect("probes").iter().position(|probe| probe["calls"] == 300_000);
    let samples = data["processes"][0]["samples"].as_array().expect("samples");
    assert_eq!(cells.len(), more(samples, place.expect("plain")), "a cell for each row that grew");
}

#[test]
fn a_page_shows_hits_as_the_json_has_them() {
    let file = Scratch::new("count.html");
    let page = page_of("count", &["main"], &file, "200000");
    let last = &embedded(&page)["processes"][0]["last"];
    assert_eq!((field(last, ":plain", "hits"), field(last, ":main", "hits")), (200_000, 1));
    let Some(dom) = shown(&file) else { return };
    assert_eq!(
        numbers(&dom, "functions", "td class=\"number\" data-field=\"hits\"", "data-value"),
        [200_000, 1]
    );
    assert_eq!(numbers(&dom, "chart", "rect", "data-hits").iter().sum::<u64>(), 200_000);
    assert!(dom.contains("<option value=\"0\">trapline-victim ("), "{dom}");
}

/// The names of a flame graph's boxes, and the sum of what is counted under each name.
fn boxes(dom: &str) -> BTreeMap<String, u64> {
    let graph = dom.split("id=\"flame\"").nth(1).expect("a graph").split("</svg>").next().expect("an end");
    let mut all = BTreeMap::new();
    for group in graph.split("<g ").skip(1) {
        let of = |name: &str| {
            let value = group.split(&format!("{name}=\"")).nth(1).expect(name);
            value.split('"').next().expect(name).to_owned()
        };
        *all.entry(of("data-name")).or_default() += of("data-value").parse::<u64>().expect("a number");
    }
    all
}

/// What the flame graph in the page of `plain` shows: once it is drawn, after a zoom into `nested`, and after
/// a search for `plain`.
const HAND: &str = r##"
const seen = {}, $$ = (what) => [...document.querySelectorAll(what)];
const wide = (name) => $$("#flame .frame").filter((one) => one.dataset.name === name)
    .reduce((sum, one) => sum + Number(one.querySelector("rect").getAttribute("width")), 0);
seen.before = [wide("main"), wide("nested")];
$$("#flame .frame").find((one) => one.dataset.name === "nested").dispatchEvent(new MouseEvent("click", { bubbles: true }));
seen.zoomed = [wide("nested"), $$("#flame .below").length, document.getElementById("whole").hidden];
document.getElementById("whole").click();
seen.whole = [wide("main"), wide("nested")];
const search = document.getElementById("search");
search.value = "PLAIN";
search.dispatchEvent(new Event("input"));
seen.found = [$$("#flame .found").map((one) => one.dataset.name), Number(document.getElementById("found").dataset.value)];
const rows = $$("#functions tbody tr");
rows.find((row) => row.dataset.probe.endsWith(":recursive")).click();
seen.other = $$("#flame .frame").map((one) => one.dataset.name).filter((name) => name === "recursive").length;
document.documentElement.dataset.seen = JSON.stringify(seen);
"##;

#[test]
fn a_page_of_stacks_has_all_four_pictures() {
    let file = Scratch::new("stack.html");
    let plain = stacks_of(&["--time"], &file);
    let data = embedded(&alone(&file));
    let last = &data["processes"][0]["last"];
    assert_eq!((field(last, ":plain", "calls"), field(last, ":plain", "in_flight")), (plain, 0), "{last}");
    let time: u64 = {
        let stacks = data["stacks"].as_array().expect("stacks").iter();
        let of =
            stacks.filter(|stack| stack["probe"].as_str().is_some_and(|probe| probe.ends_with(":plain")));
        of.map(|stack| stack["value"].as_u64().expect("ns")).sum()
    };
    // Each stack's time is rounded by itself.
    assert!(time.abs_diff(field(last, ":plain", "total_ns")) < 100, "{time}: {last}");
    let Some(dom) = shown(&file) else { return };
    let calls = numbers(&dom, "functions", "td class=\"number\" data-field=\"calls\"", "data-value");
    assert!(calls.contains(&plain), "{calls:?}");
    assert_eq!(numbers(&dom, "histogram", "tr", "data-calls").iter().sum::<u64>(), plain);
    assert_eq!(numbers(&dom, "chart", "rect", "data-calls").iter().sum::<u64>(), plain);
    let boxes = boxes(&dom);
    for name in ["trapline-framed", "main", "nested", "plain"] {
        assert_eq!(boxes.get(name), Some(&time), "{name}: {boxes:?}");
    }
}

#[test]
fn a_flame_graph_in_a_page_is_zoomed_and_searched() {
    let file = Scratch::new("zoomed.html");
    let plain = stacks_of(&[], &file);
    let Some(dom) = shown(&file) else { return };
    assert_eq!(boxes(&dom).get("plain"), Some(&plain));
    let Some(seen) = act(&file, "</body>", HAND) else { return };
    // There are two calls in `nested`, so `nested` occurs once below `plain`, and is as wide as `main`.
    assert_eq!((&seen["before"], &seen["whole"]), (&seen["before"], &seen["before"]), "{seen}");
    let [main, nested] = [0, 1].map(|nth| seen["before"][nth].as_f64().expect("a width"));
    assert!(main > 999.0 && nested > 999.0, "{seen}");
    assert!(seen["zoomed"][0].as_f64() > Some(999.0) && seen["zoomed"][2] == false, "{seen}");
    assert!(seen["zoomed"][1].as_u64() > Some(1), "what is below stays to be seen: {seen}");
    assert_eq!(seen["found"][1].as_u64(), Some(plain), "{seen}");
    assert!(seen["found"][0].as_array().is_some_and(|names| names.contains(&"plain".into())), "{seen}");
    assert!(seen["other"].as_u64() > Some(0), "a row chooses the callers that are shown: {seen}");
}

/// The same steps for the picture in a file of its own.
const SVG_HAND: &str = r##"<![CDATA[
window.addEventListener("load", () => {
  const seen = {}, named = (name) => [...document.querySelectorAll("#frames > g")].filter((one) => one.querySelector("title").textContent.startsWith(name + " ("));
  const wide = (name) => named(name).reduce((sum, one) => sum + one.querySelector("rect").getBoundingClientRect().width, 0);
  seen.all = wide("all");
  seen.before = [wide("nested"), wide("recursive")];
  named("nested")[0].querySelector("rect").dispatchEvent(new MouseEvent("click", { bubbles: true }));
  seen.zoomed = [wide("nested"), wide("recursive")];
  unzoom();
  seen.whole = [wide("nested"), wide("recursive")];
  search("plain");
  seen.found = document.getElementById("matched").textContent;
  document.documentElement.setAttribute("data-seen", JSON.stringify(seen));
});
]]>"##;

#[test]
fn a_flame_graph_by_itself_is_zoomed_and_searched() {
    let file = Scratch::new("stack.svg");
    let plain = stacks_of(&[], &file);
    let Some(seen) = act(&file, "</svg>", SVG_HAND) else { return };
    let wide = |name: &str, nth: usize| seen[name][nth].as_f64().unwrap_or_else(|| panic!("{seen}"));
    // `recursive` makes five calls in each tenth round.
    let all = plain + ROUNDS / 10 * 5;
    let share = wide("before", 0) / seen["all"].as_f64().expect("a width");
    assert!((share - plain as f64 / all as f64).abs() < 0.01, "{share}: {seen}");
    assert!(wide("zoomed", 0) > wide("before", 0) * 1.1 && wide("zoomed", 1) < 1.0, "{seen}");
    assert_eq!(seen["whole"], seen["before"], "{seen}");
    let found = format!("Matched: {:.1}%", 100.0 * plain as f64 / all as f64);
    assert_eq!(seen["found"].as_str(), Some(found.as_str()), "{seen}");
}
