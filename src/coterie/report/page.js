(() => {
"use strict";
const D = JSON.parse(document.querySelector("script#run").textContent);
const $ = (s) => document.querySelector(s), $$ = (s) => [...document.querySelectorAll(s)];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const SYMBOLS = [0, 0, 1, 2, 3, 4, 5, 6, 7].map((k) => [
  "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0z", "M-4-4h8v8h-8z", "M0-5.5L5.5 0L0 5.5L-5.5 0z", "M0-5L5 4H-5z", "M0 5L5-4H-5z",
  "M-1.6-5h3.2v3.4h3.4v3.2h-3.4v3.4h-3.2v-3.4h-3.4v-3.2h3.4z", "M-4-5L0-1L4-5L5-4L1 0L5 4L4 5L0 1L-4 5L-5 4L-1 0L-5-4z",
  "M0-6L1.5-2L6-2L2.4 .8L3.7 5L0 2.4L-3.7 5L-2.4 .8L-6-2L-1.5-2z"][k]);
const SIGNS = ["●", "●", "■", "◆", "▲", "▼", "✚", "✖", "★"];
/* Lines that lie on each other are told apart: the first ones are wide and whole, the later ones narrow and broken. */
const DASHES = ["", "2 3", "", "7 4", "7 3 2 3", "10 4", "10 3 2 3", "6 3 1 3", "2 4"];
const wide = (j) => Math.max(1.6, 4 - 0.6 * j);
const style = (m) => m.colour < 2 ? m.colour : 2 + (m.colour - 2) % 7;
const colour = (m) => `var(--m${style(m)})`;
/* Long names lose their middle: many differ at their end. */
const cut = (s, n) => { const c = [...String(s)], end = (n >> 1) - 1; return c.length > n ? c.slice(0, n - 1 - end).join("") + "…" + c.slice(-end).join("") : String(s); };
const fmt = (v) => { if (v === null || v === undefined) return "-"; const a = Math.abs(v); const t = a < 9.9995 ? v.toFixed(3) : a < 1e4 ? v.toPrecision(4) : a < 1e12 ? (+v.toPrecision(3)).toLocaleString("en") : v.toExponential(2); return t.replace(/^(-?)0\./, "$1.").replace("-", "−"); };
const plus = (v) => { const t = fmt(v).replace("−", ""); return (+t === 0 ? "" : v > 0 ? "+" : "−") + t; };
const pct = (v) => (v * 100 >= 9.95 ? (v * 100).toFixed(0) : (v * 100).toFixed(1)) + " %";
const cap = (s) => s.charAt(0).toUpperCase() + s.slice(1);
const narrow = () => window.innerWidth < 520;
const state = { metric: D.decides, curve: null, method: 0, target: 0, round: 0, time: "late" };
const metric = (key) => D.metrics.find((m) => m.key === key);

/* A figure: what `traces` say, in SVG whose colours are the page's own, so that it follows light and dark. A trace has x, y and text,
   and one or more of: symbol and fill; line (a width) and dash; low and high, as a bar along x or, if it is `upright`, along y; or as a band. */
const NS = "http://www.w3.org/2000/svg";
function add(parent, tag, attributes, text) {
  const element = document.createElementNS(NS, tag);
  for (const [key, value] of Object.entries(attributes)) if (value !== "" && value !== undefined) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}
function ticks(low, high, most) {
  const raw = (high - low) / most || 1, power = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= raw * 0.999);
  const list = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step) list.push(+v.toPrecision(10));
  return list;
}
const known = (list) => list.filter((v) => v !== null && v !== undefined);
function span(axis, values) {
  if (axis.range) return axis.range;
  const all = known(values), low = Math.min(...all, ...(axis.zero ? [0] : [])), high = Math.max(...all, ...(axis.zero ? [0] : [])), room = (high - low || Math.abs(high) || 1) * 0.05;
  return [axis.zero && low === 0 ? 0 : low - room, high + room];
}
const scale = ([low, high], from, to) => (v) => from + (v - low) / (high - low || 1) * (to - from);
const show = (axis, v) => axis.percent ? `${+(v * 100).toPrecision(6)} %` : Math.abs(v) >= 1e4 ? v.toLocaleString("en") : String(+v.toPrecision(6)).replace("-", "−");
const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

function figure(box, traces, { height, x = {}, y = {}, lines = [], corner = false }) {
  const width = Math.max(120, box.clientWidth), ends = (t) => t.low ? [...t.low, ...t.high] : [];
  const spanX = span(x, traces.flatMap((t) => [...t.x, ...(t.low && !t.upright && !t.band ? ends(t) : [])]));
  const spanY = span(y, traces.flatMap((t) => [...t.y, ...(t.upright || t.band ? ends(t) : [])]));
  const labels = y.labels || ticks(...spanY, y.ticks || 5).map((v) => [v, show(y, v)]);
  const left = 12 + 6.6 * Math.max(...labels.map(([, text]) => text.length)) + (y.title ? 16 : 0), right = width - 14, bottom = height - (x.title ? 40 : 22);
  const sx = scale(spanX, left, right), sy = scale(spanY, bottom, 8), hits = [];
  const svg = document.createElementNS(NS, "svg");
  for (const [key, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" })) svg.setAttribute(key, value);
  const shown = x.dtick ? ticks(...spanX, Math.round((spanX[1] - spanX[0]) / x.dtick)) : ticks(...spanX, Math.max(2, Math.min(8, Math.floor((right - left) / 60))));
  for (const v of shown) {
    if (!x.bare) add(svg, "path", { d: `M${sx(v)} 8V${bottom}`, stroke: "var(--hair)" });
    add(svg, "text", { x: sx(v), y: bottom + 15, "text-anchor": "middle" }, show(x, v));
  }
  for (const [v, text] of labels) {
    if (!y.labels) add(svg, "path", { d: `M${left} ${sy(v)}H${right}`, stroke: "var(--hair)" });
    add(svg, "text", { x: left - 7, y: sy(v) + 4, "text-anchor": "end", ...(y.labels ? { fill: "var(--ink)", "font-size": 13 } : {}) }, text);
  }
  if (x.title) add(svg, "text", { x: (left + right) / 2, y: height - 6, "text-anchor": "middle" }, x.title);
  if (y.title) add(svg, "text", { transform: `translate(11 ${(8 + bottom) / 2})rotate(-90)`, "text-anchor": "middle" }, y.title);
  for (const v of lines) add(svg, "path", { d: `M0 ${sy(v)}H${width}`, stroke: "var(--hair)" });
  if (x.mark !== undefined) add(svg, "path", { d: `M${sx(x.mark)} 8V${bottom}`, stroke: "var(--soft)", "stroke-width": 1.2 });
  if (corner) add(svg, "path", { d: `M${sx(0)} ${sy(0)}L${sx(1)} ${sy(1)}`, stroke: "var(--faint)", "stroke-dasharray": "2 3" });
  for (const t of traces) {
    const at = t.x.map((_, i) => i).filter((i) => t.x[i] !== null && t.y[i] !== null), place = (i) => [sx(t.x[i]), sy(t.y[i])];
    if (t.band) {
      const both = at.filter((i) => t.low[i] !== null && t.high[i] !== null);
      add(svg, "path", { d: path([...both.map((i) => [sx(t.x[i]), sy(t.high[i])]), ...both.reverse().map((i) => [sx(t.x[i]), sy(t.low[i])])]) + "z", fill: t.colour, "fill-opacity": 0.14 });
      continue;
    }
    if (t.line && at.length > 1) add(svg, "path", { d: path(at.map(place)), fill: "none", stroke: t.colour, "stroke-width": t.line, "stroke-dasharray": t.dash });
    for (const i of at) {
      const [px, py] = place(i);
      if (t.low && t.low[i] !== null && t.high[i] !== null) add(svg, "path", { d: t.upright ? `M${px} ${sy(t.low[i])}V${sy(t.high[i])}` : `M${sx(t.low[i])} ${py}H${sx(t.high[i])}`, stroke: t.colour, "stroke-width": 1.4 });
      if (t.symbol || at.length === 1) add(svg, "path", { class: "point", d: t.symbol || SYMBOLS[0], transform: `translate(${px.toFixed(1)} ${py.toFixed(1)})`, fill: t.fill ? t.fill[i] : t.colour, stroke: t.colour, "stroke-width": t.stroke || 1.6 });
      if (t.text) hits.push([px, py, t.text[i]]);
    }
  }
  return [svg, hits];
}
/* A table of shares, as dark as they are large. */
function cells(box, { rows, columns, values, text, top, fine }) {
  const width = Math.max(120, box.clientWidth), left = 12 + 6.6 * Math.max(...rows.map((r) => r.length)), tall = fine ? 46 : 14, wide = (width - left - 4) / columns.length, hits = [];
  const height = 30 + (fine ? 0 : 60) + tall * rows.length, upper = height - tall * rows.length - 4, svg = document.createElementNS(NS, "svg");
  for (const [key, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" })) svg.setAttribute(key, value);
  const some = (count, most) => (_, i) => i % Math.ceil(count / most) === 0;
  columns.map((c, i) => [c, i]).filter(some(columns.length, Math.max(2, Math.floor((width - left) / (fine ? 1 : 18))))).forEach(([c, i]) => {
    const middle = left + wide * (i + 0.5);
    add(svg, "text", fine ? { x: middle, y: upper - 8, "text-anchor": "middle", fill: "var(--ink)" } : { transform: `translate(${middle} ${upper - 6})rotate(-60)`, "font-size": 9, fill: "var(--ink)" }, c);
  });
  rows.map((r, i) => [r, i]).filter(some(rows.length, 60)).forEach(([r, i]) => add(svg, "text", { x: left - 7, y: upper + tall * (i + 0.5) + 4, "text-anchor": "end", "font-size": fine ? 12 : 9, fill: "var(--ink)" }, r));
  values.forEach((row, i) => row.forEach((v, j) => {
    const gap = fine ? 1 : 0, x = left + wide * j, y = upper + tall * i;
    add(svg, "rect", { class: "cell", x: x + gap, y: y + gap, width: Math.max(1, wide - 2 * gap), height: tall - 2 * gap, fill: "var(--heat2)", "fill-opacity": (0.04 + 0.96 * Math.min(1, v / top)).toFixed(3) });
    if (fine) add(svg, "text", { x: x + wide / 2, y: y + tall / 2 + 4, "text-anchor": "middle", fill: v > 0.72 * top ? "var(--panel)" : "var(--ink)" }, narrow() ? (v * 100).toFixed(0) : pct(v));
    hits.push([x + wide / 2, y + tall / 2, text[i][j]]);
  }));
  return [svg, hits];
}

/* What a pointer finds stands in a list too, for touch and keyboard. */
const texts = new Map(), again = new Map(), seen = new Map();
const tip = document.createElement("div");
tip.className = "tip"; tip.hidden = true; document.body.append(tip);
function point(event, box) {
  const { left, top } = box.getBoundingClientRect(), x = event.clientX - left, y = event.clientY - top;
  const [far, text] = texts.get(box).reduce((best, [px, py, words]) => { const d = Math.hypot(px - x, py - y); return d < best[0] ? [d, words] : best; }, [28, ""]);
  tip.hidden = far === 28;
  if (tip.hidden) return;
  tip.textContent = text;
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${event.clientY + 18}px`;
}
const observer = new ResizeObserver((all) => all.forEach(({ target, contentRect: { width } }) => { if (width > 0 && Math.abs(width - seen.get(target)) > 1) again.get(target)(); }));
function list(box, items) {
  if (items.parentNode.open) items.replaceChildren(...texts.get(box).map(([, , words]) => { const item = document.createElement("li"); item.textContent = words; return item; }));
}
function save(box) {
  const copy = box.firstChild.cloneNode(true), style = getComputedStyle(document.body);
  copy.setAttribute("xmlns", NS); copy.setAttribute("font-family", style.fontFamily); copy.setAttribute("font-size", 12); copy.setAttribute("fill", css("--soft"));
  copy.prepend(Object.assign(document.createElementNS(NS, "title"), { textContent: box.dataset.saved }));
  add(copy, "rect", { width: "100%", height: "100%", fill: css("--panel") }); copy.insertBefore(copy.lastChild, copy.children[1]);
  const link = document.createElement("a");
  link.download = `${box.dataset.saved}.svg`;
  link.href = `data:image/svg+xml,${encodeURIComponent(copy.outerHTML.replace(/var\((--\w+)\)/g, (_, name) => css(name)))}`;
  link.click();
}
function draw(id, names, make) {
  const box = typeof id === "string" ? document.getElementById(id) : id;
  const title = box.dataset.title || box.closest(".panel")?.querySelector("h3")?.textContent.trim() || "Figure";
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", `${title}: ${names.join(", ")}`);
  box.dataset.saved = title;
  if (!box.nextElementSibling?.classList.contains("save")) {
    const button = document.createElement("button"); button.type = "button"; button.className = "save"; button.textContent = "Save figure";
    button.addEventListener("click", () => save(box));
    const numbers = document.createElement("details"), head = document.createElement("summary"), items = document.createElement("ul");
    numbers.className = "numbers"; head.textContent = "Numbers"; items.tabIndex = 0; numbers.append(head, items);
    numbers.addEventListener("toggle", () => list(box, items));
    box.after(button, numbers);
    box.addEventListener("pointermove", (event) => point(event, box));
    box.addEventListener("pointerleave", () => { tip.hidden = true; });
  }
  box.nextElementSibling.setAttribute("aria-label", `Save figure: ${title}`);
  box.nextElementSibling.nextElementSibling.firstChild.setAttribute("aria-label", `Numbers: ${title}`);
  const render = () => { const [svg, hits] = make(box); seen.set(box, box.clientWidth); texts.set(box, hits); box.replaceChildren(svg); };
  again.set(box, render);
  render();
  list(box, box.nextElementSibling.nextElementSibling.lastChild);
  observer.observe(box);
}
const chart = (id, traces, axes) => draw(id, traces.map((t) => t.name).filter(Boolean), (box) => figure(box, traces, axes));

/* Dots of several methods beside each other, one band per client. */
function bands(clients) {
  const n = clients.length, tall = Math.max(34, 13 * D.methods.length + 12);
  return { height: 74 + n * tall, place: (i, j, of) => n - 1 - i + (of > 1 ? (0.5 - j / (of - 1)) * 0.56 : 0),
    y: { labels: clients.map((c, i) => [n - 1 - i, cut(c, narrow() ? 13 : 22)]), range: [-0.6, n - 0.4] }, lines: clients.slice(1).map((_, i) => n - i - 1.5) };
}
const within = (mean, std, sign) => mean.map((v, i) => v === null || std[i] === null ? v : v + sign * std[i]);
function points() {
  const m = metric(state.metric), P = D.points[m.key], { height, place, y, lines } = bands(P.clients), of = D.methods.length;
  const traces = D.methods.map((method, j) => { const r = P.rows[j]; return {
    name: method.label, x: r.mean, y: P.clients.map((_, i) => place(i, j, of)), low: within(r.mean, r.std, -1), high: within(r.mean, r.std, 1), colour: colour(method), symbol: SYMBOLS[style(method)],
    text: P.clients.map((n, i) => `${n} · ${method.label}: ${fmt(r.mean[i])}${r.std[i] === null ? "" : " ± " + fmt(r.std[i])}`) }; });
  if (P.constant) traces.unshift({ x: P.constant.values, y: P.clients.map((_, i) => place(i, 0, 1)), symbol: `M0-${of * 6}V${of * 6}`, stroke: 2, colour: "var(--faint)",
    text: P.clients.map((n, i) => `${n} · ${P.constant.name}: ${fmt(P.constant.values[i])}`) });
  const note = document.createElement("span"); note.className = "small"; note.textContent = P.constant ? `  grey line: ${P.constant.name}` : "";
  $("#points-title").replaceChildren(cap(m.title), note);
  chart("points", traces, { height, y, lines, x: { title: m.sign > 0 ? "better →" : "← better" } });
}
function gaps() {
  const m = metric(state.metric), G = D.gaps[m.key];
  $("#gaps-panel").style.display = G ? "" : "none";
  if (!G) return;
  const { height, place, y, lines } = bands(G.clients), of = D.methods.length;
  const traces = D.methods.map((method, j) => [method, j, G.rows[j]]).filter((x) => x[2]).map(([method, j, r]) => ({
    name: method.label, x: r.mean, y: G.clients.map((_, i) => place(i, j, of)), low: r.low, high: r.high, colour: colour(method), symbol: SYMBOLS[style(method)], fill: r.shown.map((k) => k ? colour(method) : "var(--panel)"),
    text: G.clients.map((n, i) => `${n} · ${method.label}: ${r.mean[i] === null ? "-" : plus(r.mean[i])}${r.low[i] === null ? "" : ` · 95 % interval ${plus(r.low[i])} to ${plus(r.high[i])}`}${r.verdict[i] ? ` · ${r.verdict[i]}` : ""}`) }));
  $("#gaps-title").textContent = `${cap(m.title)} minus that of ${D.other}`;
  chart("gaps", traces, { height, y, lines, x: { mark: 0, zero: true, title: m.sign > 0 ? "← worse · better →" : "← better · worse →" } });
}

function curves() {
  const panels = D.curves[state.curve];
  if (!panels) return;
  const box = $("#curve-panels");
  if (box.children.length !== panels.length) {
    box.replaceChildren(...panels.map(() => { const a = document.createElement("div"), h = document.createElement("h3"), f = document.createElement("div"); a.className = "panel"; f.className = "plot"; a.append(h, f); return a; }));
  }
  panels.forEach((p, k) => {
    const traces = [], panel = box.children[k];
    panel.firstChild.textContent = p.client;  // another metric may show other clients
    p.rows.forEach((r, j) => { if (!r) return; const method = D.methods[j], c = colour(method);
      if (r.std.some((s) => s !== null)) traces.push({ band: true, x: r.rounds, y: r.mean, low: within(r.mean, r.std, -1), high: within(r.mean, r.std, 1), colour: c });
      traces.push({ x: r.rounds, y: r.mean, name: method.label, colour: c, line: wide(j), dash: DASHES[style(method)], text: r.mean.map((v, i) => `${method.label}, round ${r.rounds[i]}: ${fmt(v)}${r.std[i] === null ? "" : " ± " + fmt(r.std[i])}`) }); });
    chart(panel.querySelector(".plot"), traces, { height: 210, x: { title: "round", bare: true }, y: {} });
  });
}

/* One client's test rows of two classes: training alone, and the chosen method over it. */
function tests() {
  const T = D.tests, alone = D.methods.findIndex((m) => m.label === D.baseline), shown = [...new Set([alone, state.tested])].filter((j) => j >= 0);
  $("#tests-legend").replaceChildren(...shown.map((j) => sample("━", colour(D.methods[j]), D.methods[j].label)));
  const axes = (x, y) => ({ height: 240, corner: true, x: { range: [-0.02, 1.02], dtick: 0.5, title: x }, y: { range: [-0.02, 1.02], ticks: 2, title: y } });
  T.clients.forEach((one, k) => {
    const boxes = $$("#tests .panel")[k].querySelectorAll(".plot"), curves = [], dots = [], benefits = [];
    shown.forEach((j, n) => { const method = D.methods[j], c = colour(method), name = method.label, R = one.roc[j], B = one.bins[j], dash = n ? "6 4" : "";
      if (R) {
        if (R.low) curves.push({ band: true, x: T.grid, y: R.mean, low: R.low, high: R.high, colour: c });
        curves.push({ x: T.grid, y: R.mean, name, colour: c, line: n ? 1.8 : 3, dash, text: R.mean.map((v, i) => `${name}: finds ${fmt(v)}${R.low ? ` (${fmt(R.low[i])} to ${fmt(R.high[i])})` : ""} at ${fmt(T.grid[i])} false alarms`) });
      }
      if (B) dots.push({ x: B.risk, y: B.share, low: B.low, high: B.high, upright: true, name, colour: c, symbol: SYMBOLS[style(method)], line: 1, dash,
        text: B.risk.map((v, i) => `${name}: predicted ${fmt(v)}, came true ${fmt(B.share[i])} (${fmt(B.low[i])} to ${fmt(B.high[i])}), ${B.patients[i]} patients`) });
      const N = one.benefit[j];
      if (N) benefits.push({ x: T.risks, y: N, name, colour: c, line: n ? 1.8 : 3, dash, text: N.map((v, i) => `${name}: net benefit ${fmt(v)} per 100 at a risk of ${fmt(T.risks[i])}`) }); });
    const best = Math.max(...one.all, ...benefits.flatMap((b) => b.y)), worst = -best / 4, shownAll = one.all.map((v) => (v < worst ? null : v));
    for (const b of benefits) b.y = b.y.map((v) => (v < worst ? null : v));
    benefits.push({ x: T.risks, y: shownAll, name: "treat all", colour: "var(--soft)", line: 1, dash: "2 3", text: one.all.map((v, i) => `treat all: net benefit ${fmt(v)} per 100 at a risk of ${fmt(T.risks[i])}`) });
    chart(boxes[0], curves, axes("false alarms", "found"));
    chart(boxes[1], dots, axes("predicted risk", "came true"));
    chart(boxes[2], benefits, { height: 240, x: { range: [-0.02, 1.02], dtick: 0.5, title: "threshold" }, y: { range: [worst, best * 1.08], title: "net benefit per 100" } });
  });
}

function heat() {
  const W = D.weights[state.method], late = state.time === "late", values = late ? W.late : W.frames[state.round];
  const top = Math.max(0.01, ...W.late.flat(), ...W.frames.flat(2)), fine = W.clients.length <= 10;
  $("#heat-title").textContent = late ? `${W.method}: mean of the second half of the rounds` : `${W.method}: round ${W.rounds[state.round]}`;
  $("#weights-label").textContent = late ? "" : W.rounds[state.round];
  $("#heat-note").textContent = "Mean over seeds." + (W.omitted ? ` ${W.omitted} clients are left out. Those shown have the largest gains and harms, or are among the few that a method serves.` : "");
  $("#weights-two").style.gridTemplateColumns = fine ? "" : "minmax(0, 1fr)";
  const text = values.map((row, t) => row.map((v, c) => `${W.targets[t]} takes ${pct(v)} from ${W.clients[c]}`)), most = narrow() ? 9 : 16;
  draw("heat", ["weights"], (box) => cells(box, { rows: W.targets.map((t) => cut(t, most + 3)), columns: W.clients.map((c) => cut(c, fine ? most : 12)), values, text, top, fine }));
}
function lines() {
  const W = D.weights[state.method], t = state.target, row = W.late[t];
  const order = row.map((_, i) => i).sort((a, b) => row[b] - row[a]), shown = order.slice(0, 7), rest = order.slice(7), series = (f) => W.frames.map((frame) => f(frame[t]));
  const traces = shown.map((c, k) => ({ name: W.clients[c], y: series((w) => w[c]), colour: `var(--m${2 + k % 7})`, dash: DASHES[2 + k % 7] }));
  if (rest.length) traces.push({ name: `${rest.length} others together`, y: series((w) => rest.reduce((s, c) => s + w[c], 0)), colour: "var(--m1)", dash: "2 3" });
  $("#lines-legend").replaceChildren(...traces.map((x) => sample("━", x.colour, x.name)));
  chart("lines", traces.map((x) => ({ ...x, x: W.rounds, line: 2, text: x.y.map((v, i) => `${x.name}, round ${W.rounds[i]}: ${pct(v)}`) })), { height: 250, x: { title: "round", bare: true }, y: { percent: true, zero: true } });
}

/* Controls */
function buttons(box, options, key, then) {
  if (options.length < 2) box.style.display = "none";
  box.replaceChildren(...options.map(([value, label]) => { const b = document.createElement("button"); b.type = "button"; b.textContent = label; b.dataset.value = value;
    b.addEventListener("click", () => { state[key] = value; press(); then(); }); return b; }));
  const press = () => [...box.children].forEach((b) => b.setAttribute("aria-pressed", b.dataset.value === state[key]));
  press();
  return press;
}
const sample = (sign, tint, words) => { const s = document.createElement("span"), i = document.createElement("i"); i.textContent = sign; i.style.color = tint; s.append(i, ` ${words}`); return s; };
function legends() {
  $$(".controls .legend").forEach((box) => box.replaceChildren(...D.methods.map((m) => sample(SIGNS[style(m)], colour(m), m.label))));
}
function options(select, names) { select.replaceChildren(...names.map((n, i) => new Option(n, i))); }
function weights() { heat(); lines(); }
function chooseMethod() {
  const W = D.weights[state.method];
  options($("#weights-target"), W.targets); state.target = 0;
  $("#weights-round").max = W.rounds.length - 1; state.round = W.rounds.length - 1; $("#weights-round").value = state.round;
  weights();
}
function all() {
  if (state.metric) { points(); gaps(); }
  if (state.curve) curves();
  if (D.tests.clients.length) tests();
  if (D.weights.length) weights();
}
legends();
$$(".against").forEach((s) => { s.textContent = D.other ? `to ${D.other}${D.other === D.baseline ? ", each client alone" : ""}` : ""; });
buttons($("[data-switch=metric]"), D.metrics.map((m) => [m.key, m.name]), "metric", () => { points(); gaps(); });
const curved = D.metrics.filter((m) => D.curves[m.key]);
if (curved.length) { state.curve = (curved.find((m) => m.key === "loss") || curved[0]).key; buttons($("[data-switch=curve]"), curved.map((m) => [m.key, m.name]), "curve", curves); }
else $$(".needs-curves").forEach((e) => e.remove());
if (D.tests.clients.length) {
  const select = $("#tests-method");
  select.replaceChildren(...D.methods.map((m, j) => new Option(m.label, j)).filter((o) => D.methods[o.value].label !== D.baseline));
  if (!select.options.length) select.parentNode.style.display = "none";
  state.tested = D.tests.first; select.value = state.tested;
  select.addEventListener("change", () => { state.tested = +select.value; tests(); });
}
if (D.weights.length) {
  const press = buttons($("[data-switch=time]"), [["late", "second half, mean"], ["round", "one round"]], "time", heat);
  options($("#weights-method"), D.weights.map((w) => w.method));
  if (D.weights.length < 2) $("#weights-method-field").style.display = "none";
  state.method = Math.max(0, D.weights.findIndex((w) => w.targets.length > 1)); $("#weights-method").value = state.method;
  $("#weights-method").addEventListener("change", (e) => { state.method = +e.target.value; chooseMethod(); });
  $("#weights-target").addEventListener("change", (e) => { state.target = +e.target.value; lines(); });
  $("#weights-round").addEventListener("input", (e) => { state.round = +e.target.value; state.time = "round"; press(); heat(); });
  chooseMethod();
} else $$(".needs-weights").forEach((e) => e.remove());
all();
let slim = narrow();
addEventListener("resize", () => { if (narrow() !== slim) { slim = narrow(); all(); } });
addEventListener("beforeprint", () => { $$("details").forEach((d) => { d.open = true; }); document.body.style.width = "720px"; all(); });
addEventListener("afterprint", () => { document.body.style.width = ""; all(); });
document.documentElement.dataset.drawn = "yes";
})();
