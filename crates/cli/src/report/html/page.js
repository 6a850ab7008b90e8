"use strict";
// Draws the page from the objects that --json prints (docs/guide/json.md) and what they were at each sample. Text from the traced program goes
// into the page as text only.
window.addEventListener("error", (event) => { document.body.dataset.error = event.message; });

const data = JSON.parse(document.getElementById("data").textContent);
const timed = data.timed;
const fields = timed
  ? ["calls", "p50_ns", "p90_ns", "p99_ns", "max_ns", "total_ns"]
  : ["hits"];
const state = { process: 0, sort: fields[0], up: false, filter: "", chosen: null, root: null, zoomed: null, find: "" };

const $ = (id) => document.getElementById(id);
const grouped = (n) => n.toLocaleString("en-US");
// FILE:FUNCTION, with the file's own name, and what kind of probe it is where that is not the usual one.
function label(probe) {
  const [kind, ...rest] = probe.probe.split(":");
  const text = rest.join(":");
  const short = text.startsWith(probe.file) ? probe.file.split("/").pop() + text.slice(probe.file.length) : text;
  return kind === "uprobe" ? short : `${kind}:${short}`;
}
function element(tag, attributes = {}, text = null) {
  const one = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) one.setAttribute(name, value);
  if (text !== null) one.textContent = text;
  return one;
}
function drawn(tag, attributes, title = null) {
  const one = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) one.setAttribute(name, value);
  if (title !== null) one.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "title")).textContent = title;
  return one;
}
function duration(ns) {
  for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["us", 1e3]]) if (ns >= size) return `${(ns / size).toFixed(3)} ${unit}`;
  return `${ns} ns`;
}
const shown = (field, value) => (field.endsWith("_ns") ? duration(value) : grouped(value));

// What a function's value was at each sample, the last one carried on where it did not change.
function history(process, index) {
  let value = timed ? [] : 0;
  return process.samples.map((sample) => {
    const found = sample.set.find((entry) => entry[0] === index);
    if (found) value = found[1];
    return { t: sample.t, value };
  });
}

function table() {
  const process = data.processes[state.process];
  const head = $("functions").tHead.rows[0];
  head.replaceChildren();
  for (const field of [...fields, "probe"]) {
    const cell = element("th", { class: field === "probe" ? "" : "number", "aria-sort": field !== state.sort ? "none" : state.up ? "ascending" : "descending" });
    const name = field === "probe" ? "function" : field.replace("_ns", "");
    const button = element("button", {}, name + (field === state.sort ? (state.up ? " ▲" : " ▼") : ""));
    button.addEventListener("click", () => {
      state.up = field === state.sort ? !state.up : field === "probe";
      state.sort = field;
      table();
    });
    cell.append(button);
    head.append(cell);
  }
  const key = (row) => (state.sort === "probe" ? label(row.probe) : row.probe[state.sort]);
  const rows = process.last.probes
    .map((probe, index) => ({ probe, index }))
    .filter((row) => [row.probe.probe, ...row.probe.aliases].some((name) => name.toLowerCase().includes(state.filter)));
  rows.sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) * (state.up ? 1 : -1));
  const body = $("functions").tBodies[0];
  body.replaceChildren();
  for (const row of rows) {
    const line = element("tr", { tabindex: "0", "data-probe": row.probe.probe, "data-offset": row.probe.offset });
    if (row.index === state.chosen) line.className = "chosen";
    for (const field of fields) line.append(element("td", { class: "number", "data-field": field, "data-value": row.probe[field] }, shown(field, row.probe[field])));
    line.append(element("td", { title: [row.probe.probe, ...row.probe.aliases].join("\n") }, label(row.probe)));
    const choose = () => { state.chosen = row.index; show(); };
    line.addEventListener("click", choose);
    line.addEventListener("keydown", (event) => { if (event.key === "Enter") choose(); });
    body.append(line);
  }
  const sum = process.last.probes.reduce((all, probe) => all + probe[fields[0]], 0);
  $("total").textContent = `${grouped(sum)} ${fields[0]} in ${grouped(process.last.probes.length)} functions, ${process.last.seconds.toFixed(2)} s; ` +
    `${grouped(process.last.missed)} missed, ${grouped(process.last.refused.length)} not probed`;
  $("total").dataset.value = sum;
}

function histogram(probe) {
  $("spread").hidden = !timed;
  if (!timed) return;
  const most = Math.max(1, ...probe.log2_ns.map((row) => row[2]));
  const body = $("histogram").tBodies[0];
  body.replaceChildren();
  for (const [low, high, calls] of probe.log2_ns) {
    const line = element("tr", { "data-low": low, "data-high": high, "data-calls": calls });
    line.append(element("td", { class: "number" }, `${duration(low)} – ${duration(high)}`), element("td", { class: "number" }, grouped(calls)));
    const bar = element("div", { class: "bar" });
    bar.style.width = `${(100 * calls) / most}%`;
    const cell = element("td");
    cell.append(bar);
    line.append(cell);
    body.append(line);
  }
}

const WIDE = 1000, LEFT = 84, BOTTOM = 22;
function frame(high, from, to) {
  const svg = drawn("svg", { viewBox: `0 0 ${WIDE} ${high + BOTTOM}`, role: "img" });
  const x = (t) => LEFT + ((WIDE - LEFT - 4) * (t - from)) / Math.max(to - from, 1e-9);
  for (let tick = 0; tick <= 5; tick += 1) {
    const t = from + ((to - from) * tick) / 5;
    const text = drawn("text", { x: x(t), y: high + 15, "text-anchor": tick === 5 ? "end" : tick === 0 ? "start" : "middle" });
    text.textContent = `${t.toFixed(2)} s`;
    svg.append(text, drawn("line", { class: "axis", x1: x(t), x2: x(t), y1: 0, y2: high }));
  }
  return { svg, x };
}

// Columns are samples, rows powers of two; a cell is as dark as calls that ended there and then were many.
function heatmap(points) {
  const cells = [];
  let before = { t: 0, value: [] };
  for (const point of points) {
    const old = new Map(before.value.map((row) => [row[0], row[2]]));
    for (const [low, high, calls] of point.value) {
      const more = calls - (old.get(low) ?? 0);
      if (more > 0) cells.push({ from: before.t, to: point.t, low, high, calls: more });
    }
    before = point;
  }
  const edges = cells.flatMap((cell) => [Math.log2(Math.max(cell.low, 1)), Math.log2(cell.high)]);
  const [bottom, top] = [Math.min(...edges), Math.max(...edges)];
  const each = 16, high = Math.max(1, Math.round(top - bottom)) * each;
  const { svg, x } = frame(high, 0, before.t);
  const most = Math.max(...cells.map((cell) => cell.calls));
  for (const cell of cells) {
    const [low, end] = [Math.log2(Math.max(cell.low, 1)), Math.log2(cell.high)];
    svg.append(drawn("rect", {
      class: "cell", x: x(cell.from), width: Math.max(1, x(cell.to) - x(cell.from)), y: (top - end) * each, height: (end - low) * each - 1,
      "fill-opacity": 0.15 + 0.85 * Math.sqrt(cell.calls / most), "data-calls": cell.calls,
    }, `${cell.from.toFixed(2)} – ${cell.to.toFixed(2)} s, ${duration(cell.low)} – ${duration(cell.high)}: ${grouped(cell.calls)} calls`));
  }
  for (let power = Math.ceil(bottom); power <= top; power += Math.ceil((top - bottom) / 12) || 1) {
    const text = drawn("text", { x: LEFT - 6, y: (top - power) * each + 4, "text-anchor": "end" });
    text.textContent = duration(2 ** power);
    svg.append(text);
  }
  $("hint").textContent = `Darker: more calls that ended in that time; at most ${grouped(most)}.`;
  return svg;
}

function rates(points) {
  const high = 180;
  let before = { t: 0, value: 0 };
  const steps = points.map((point) => {
    const step = { from: before.t, to: point.t, hits: point.value - before.value };
    before = point;
    return { ...step, rate: step.hits / Math.max(step.to - step.from, 1e-9) };
  });
  const { svg, x } = frame(high, 0, before.t);
  const most = Math.max(1e-9, ...steps.map((step) => step.rate));
  for (const step of steps) {
    const tall = (high * step.rate) / most;
    svg.append(drawn("rect", { class: "area", x: x(step.from), width: Math.max(1, x(step.to) - x(step.from)), y: high - tall, height: tall, "data-hits": step.hits },
      `${step.from.toFixed(2)} – ${step.to.toFixed(2)} s: ${grouped(step.hits)} hits`));
  }
  for (const [share, y] of [[1, 10], [0.5, high / 2], [0, high]]) {
    const text = drawn("text", { x: LEFT - 6, y, "text-anchor": "end" });
    text.textContent = grouped(Math.round(most * share));
    svg.append(text);
  }
  $("hint").textContent = "Hits per second.";
  return svg;
}

// The callers: the process, then functions from the outermost on, each with what was counted in it.
function tree(process, probe) {
  const root = { name: process.name, value: 0, inside: new Map(), depth: 0, above: null };
  for (const stack of data.stacks) {
    if (stack.pid !== process.pid || stack.probe !== probe.probe || stack.offset !== probe.offset) continue;
    let box = root;
    box.value += stack.value;
    for (const number of stack.cut ? [-1, ...stack.frames] : stack.frames) {
      let next = box.inside.get(number);
      if (!next) {
        const named = number < 0 ? { name: "[...]", place: "more callers, which are not known" } : data.functions[number];
        next = { ...named, value: 0, inside: new Map(), depth: box.depth + 1, above: box };
        box.inside.set(number, next);
      }
      box = next;
      box.value += stack.value;
    }
  }
  return root;
}
function tallest(box) {
  let most = 0;
  const todo = [box];
  while (todo.length) {
    const one = todo.pop();
    most = Math.max(most, one.depth);
    todo.push(...one.inside.values());
  }
  return most;
}

// The same name has the same colour everywhere.
function colour(name) {
  let hash = 0;
  for (const letter of name) hash = (hash * 31 + letter.codePointAt(0)) >>> 0;
  return `hsl(${20 + (hash % 40)} ${70 + ((hash >>> 8) % 20)}% ${62 + ((hash >>> 16) % 14)}%)`;
}

const TALL = 18, LETTER = 6.7, THIN = 0.4;
const counted = (value) => (timed ? duration(value) : `${grouped(value)} hits`);
const part = (value, of) => `${((100 * value) / Math.max(of, 1)).toFixed(2)} %`;
function caption(box) {
  const place = box.place ? `, ${box.place}` : "";
  return `${box.name}${box.inlined ? " (inlined)" : ""}: ${counted(box.value)}, ${part(box.value, state.root.value)}${place}`;
}
function box(one, from, wide, high) {
  const words = state.find;
  const found = words && one.name.toLowerCase().includes(words);
  const below = one !== state.zoomed && one.depth < state.zoomed.depth;
  const kinds = ["frame", ...(one.inlined ? ["inlined"] : []), ...(below ? ["below"] : []), ...(found ? ["found"] : [])];
  const group = drawn("g", { class: kinds.join(" "), tabindex: "0", "data-name": one.name, "data-value": one.value, "data-depth": one.depth }, caption(one));
  const y = high - (one.depth + 1) * TALL;
  group.append(drawn("rect", { x: from, y, width: wide, height: TALL - 1, fill: colour(one.name), rx: 1 }));
  const letters = Math.floor((wide - 4) / LETTER);
  if (letters >= 3) {
    const text = drawn("text", { x: from + 3, y: y + TALL - 6 });
    text.textContent = one.name.length <= letters ? one.name : `${one.name.slice(0, letters - 2)}..`;
    group.append(text);
  }
  const zoom = () => { state.zoomed = one; flame(); };
  group.addEventListener("click", zoom);
  group.addEventListener("keydown", (event) => { if (event.key === "Enter") zoom(); });
  for (const when of ["mouseenter", "focus"]) group.addEventListener(when, () => { $("box").textContent = caption(one); });
  return group;
}
function flame() {
  const high = (tallest(state.zoomed) + 1) * TALL;
  const svg = drawn("svg", { viewBox: `0 0 ${WIDE} ${high}`, role: "group", "aria-label": "Flame graph" });
  for (let one = state.zoomed.above; one; one = one.above) svg.append(box(one, 0, WIDE, high));
  const todo = [[state.zoomed, 0]];
  const scale = WIDE / Math.max(state.zoomed.value, 1);
  let found = 0;
  while (todo.length) {
    const [one, from] = todo.pop();
    if (one.value * scale < THIN) continue;
    const group = box(one, from, one.value * scale, high);
    svg.append(group);
    // What stands above a box that was found is a part of it.
    let above = one.above;
    while (above && !(state.find && above.name.toLowerCase().includes(state.find))) above = above.above;
    if (group.classList.contains("found") && !above) found += one.value;
    let next = from;
    for (const inside of [...one.inside.values()].sort((a, b) => (a.name < b.name ? -1 : 1))) {
      todo.push([inside, next]);
      next += inside.value * scale;
    }
  }
  $("flame").replaceChildren(svg);
  $("boxes").scrollTop = $("boxes").scrollHeight;
  $("whole").hidden = state.zoomed === state.root;
  $("found").textContent = state.find ? `${part(found, state.zoomed.value)} in functions with that name` : `${counted(state.root.value)} in all`;
  $("found").dataset.value = state.find ? found : state.root.value;
  $("box").textContent = caption(state.zoomed);
}
function callers(process, probe) {
  $("callers").hidden = !data.stacks;
  if (!data.stacks) return;
  state.root = state.zoomed = tree(process, probe);
  flame();
}

function show() {
  const process = data.processes[state.process];
  table();
  const probe = process.last.probes[state.chosen];
  $("time").hidden = !probe;
  if (!probe) { $("spread").hidden = $("callers").hidden = true; return; }
  for (const place of document.querySelectorAll(".of")) place.textContent = label(probe);
  histogram(probe);
  const points = history(process, state.chosen);
  const any = points.some((point) => (timed ? point.value.length : point.value) > 0);
  $("chart").replaceChildren(any ? (timed ? heatmap(points) : rates(points)) : element("p", {}, "nothing happened"));
  if (!any) $("hint").textContent = "";
  callers(process, probe);
}

function start() {
  $("title").textContent = `trapline ${data.verb}`;
  document.title = `trapline ${data.verb}: ${data.processes.map((process) => process.name).join(", ")}`;
  $("command").textContent = data.command;
  $("summary").textContent = data.summary;
  data.processes.forEach((process, index) => $("process").append(element("option", { value: index }, `${process.name} (${process.pid})`)));
  const choose = () => {
    const probes = data.processes[state.process]?.last.probes ?? [];
    state.chosen = probes.length ? probes.reduce((best, probe, index) => (probe[fields[0]] > probes[best][fields[0]] ? index : best), 0) : null;
    if (data.processes.length) show();
  };
  $("process").addEventListener("change", () => { state.process = Number($("process").value); choose(); });
  $("filter").addEventListener("input", () => { state.filter = $("filter").value.toLowerCase(); table(); });
  $("search").addEventListener("input", () => { state.find = $("search").value.toLowerCase(); flame(); });
  $("whole").addEventListener("click", () => { state.zoomed = state.root; flame(); });
  choose();
  document.body.dataset.ready = "yes";
}
start();
