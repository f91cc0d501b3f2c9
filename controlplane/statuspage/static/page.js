// The status page: reads the stream of rows and shows those that can be seen.
//
// Text from the stream is only ever made textContent. Of the table there are as many
// rows as fit on the screen, and some more.

import { ago, clock, count, digits, evictions, fate, said, samples, state, trip, tripOf, verdict, well } from "./texts.js";

const byId = (id) => document.getElementById(id);
const maxSites = 24; // site cards that are shown, the worst
const maxLines = 200; // lines of the audit log
const overscan = 8; // rows above and below those on the screen
const silence = 45_000; // after which the stream counts as lost
const loadingPause = 300; // milliseconds between two drawings while rows come

// Sorting: what each column is compared by, and which have the highest first.

const rank = { False: 0, Unknown: 1, True: 2 };
const of = (h) => (h ? rank[h.is] : 3);
const keys = {
  worst: (r) => of(r.ready) * 16 + of(r.tunnel) * 4 + of(r.path),
  node: (r) => r.node,
  site: (r) => r.site || "\uffff",
  ready: (r) => of(r.ready),
  tunnel: (r) => of(r.tunnel),
  path: (r) => of(r.path),
  rtt: (r) => r.rtts[samples - 1],
  streams: (r) => r.streams,
  cut: (r) => r.cut?.at ?? 0,
  evictions: (r) => (r.evicting ? 0 : r.frozen ? 1 : 2),
};
const highestFirst = ["rtt", "streams", "cut"];

// textOf is what the filter looks in, made when it is first used.
function textOf(r) {
  r.text ??= [r.node, r.site, r.ready.why, r.tunnel?.why, r.path?.why, r.cut?.why, r.frozen?.reason].join(" ").toLowerCase();
  return r.text;
}

function sortRows() {
  const want = byId("filter").value.trim().toLowerCase();
  const broken = byId("broken").checked;
  const key = keys[state.sort.key];
  const sign = state.sort.up ? 1 : -1;
  state.order = [];
  for (const r of state.rows.values()) {
    if (state.site !== null && (r.site ?? "") !== state.site) continue;
    if (broken && well(r)) continue;
    if (want && !textOf(r).includes(want)) continue;
    r.key = key(r);
    state.order.push(r);
  }
  state.order.sort((a, b) => (a.key < b.key ? -sign : a.key > b.key ? sign : a.node < b.node ? -1 : 1));
  state.stale = false;
}

// The table. Element i of the pool shows the row i, i + pool, i + 2 pool, … of the order.

const pool = [];
const spaceAbove = space();
const spaceBelow = space();
const columns = ["node", "site", "is", "is tunnel", "is path", "rtt", "streams", "cut", "evictions"];

function space() {
  const tr = document.createElement("tr");
  tr.className = "space";
  tr.setAttribute("aria-hidden", "true");
  tr.append(document.createElement("td"));
  return tr;
}

function makeRow() {
  const tr = document.createElement("tr");
  for (const c of columns) tr.append(Object.assign(document.createElement("td"), { className: c }));
  const button = document.createElement("button");
  button.addEventListener("click", () => showDetails(tr.row));
  tr.cells[0].append(button);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 84 20");
  svg.setAttribute("aria-hidden", "true");
  svg.append(document.createElementNS("http://www.w3.org/2000/svg", "path"));
  tr.cells[5].append(document.createElement("span"), svg);
  return tr;
}

function put(el, text, title) {
  if (el.textContent !== text) el.textContent = text;
  if (title !== undefined && el.title !== title) el.title = title;
}

function fill(tr, r, index) {
  tr.row = r;
  tr.setAttribute("aria-rowindex", String(index + 2));
  const c = tr.cells;
  put(c[0].firstChild, r.node, r.node);
  put(c[1], r.site ?? "", r.site ?? "");
  [r.ready, r.tunnel, r.path].forEach((h, i) => {
    const cell = c[2 + i];
    cell.className = `${columns[2 + i]} ${h?.is ?? ""}`;
    put(cell, verdict(h), h?.why ?? "");
  });
  put(c[5].firstChild, trip(r.rtts[samples - 1]));
  c[5].lastChild.firstChild.setAttribute("d", spark(r.rtts));
  put(c[6], r.streams < 0 ? "" : String(r.streams));
  put(c[7], r.cut ? `${ago(r.cut.at)}: ${r.cut.why}` : "", r.cut?.why ?? "");
  put(c[8], [r.cordoned ? "cordoned" : "", evictions(r)].filter(Boolean).join("; "), r.frozen?.message ?? "");
}

// spark draws round trips from zero to the highest; what is unknown leaves a gap.
function spark(rtts) {
  const most = Math.max(...rtts, 1);
  let path = "";
  let pen = "M";
  rtts.forEach((v, i) => {
    if (v) path += `${pen}${((i * 84) / (samples - 1)).toFixed(1)} ${(19 - (v * 18) / most).toFixed(1)}`;
    pen = v ? "L" : "M";
  });
  return path;
}

const rowHeight = () => Number.parseFloat(getComputedStyle(document.documentElement).fontSize) * 2;

function showRows() {
  const scroll = byId("scroll");
  const focused = document.activeElement?.closest?.("#rows tr")?.row.node;
  const body = byId("rows");
  if (pool.length === 0) {
    body.append(spaceAbove, spaceBelow);
  }
  const height = rowHeight();
  const fit = Math.ceil(Number.parseFloat(getComputedStyle(scroll).maxHeight) / height) + 2 * overscan;
  while (pool.length < fit) pool.push(makeRow());
  const total = state.order.length;
  const first = Math.max(0, Math.min(Math.floor(scroll.scrollTop / height) - overscan, total - fit));
  const last = Math.min(total, first + fit);
  const shown = [];
  for (let i = first; i < last; i++) {
    const tr = pool[i % pool.length];
    fill(tr, state.order[i], i);
    shown.push(tr);
  }
  if (body.children.length !== shown.length + 2 || shown.some((tr, i) => body.children[i + 1] !== tr)) {
    body.replaceChildren(spaceAbove, ...shown, spaceBelow);
  }
  spaceAbove.firstChild.style.height = `${first * height}px`;
  spaceBelow.firstChild.style.height = `${(total - last) * height}px`;
  spaceAbove.hidden = first === 0;
  spaceBelow.hidden = last === total;
  byId("nodes").setAttribute("aria-rowcount", String(total + 1));
  put(byId("shown"), `${digits(total)} of ${count(state.rows.size, "node")}`);
  if (focused !== undefined) { // stays with its node, or with the table
    const tr = shown.find((s) => s.row.node === focused);
    (tr ? tr.cells[0].firstChild : scroll).focus({ preventScroll: true });
  }
}

// Sites and the summary.

function showSites() {
  const sites = new Map();
  const sum = { True: 0, False: 0, Unknown: 0, frozen: 0, evicting: 0, cut: 0 };
  const siteOf = (name) => {
    if (!sites.has(name)) sites.set(name, { name, True: 0, False: 0, Unknown: 0, cut: 0, frozen: 0 });
    return sites.get(name);
  };
  if (state.site !== null) siteOf(state.site); // it may have no node
  for (const r of state.rows.values()) {
    for (const n of [siteOf(r.site ?? ""), sum]) {
      n[r.ready.is]++;
      if (r.tunnel && r.tunnel.is !== "True") n.cut++;
      if (r.frozen) n.frozen++;
      if (r.evicting) n.evicting++;
    }
  }
  const parts = [`${count(state.rows.size, "node")}: ${digits(sum.True)} Ready`];
  for (const [n, text] of [[sum.False, "not Ready"], [sum.Unknown, "Unknown"], [sum.cut, "without a tunnel connection"],
    [sum.frozen, "with evictions frozen"], [sum.evicting, "evicted from"]]) {
    if (n) parts.push(`${digits(n)} ${text}`);
  }
  put(byId("summary"), `${parts.join(", ")}.`);
  const bad = (s) => s.False + s.Unknown;
  const all = [...sites.values()].sort((a, b) => bad(b) - bad(a) || b.cut - a.cut || (a.name < b.name ? -1 : 1));
  const shown = all.filter((s, i) => i < maxSites || s.name === state.site);
  placeSites(shown);
  const more = all.length - shown.length;
  put(byId("more-sites"), more > 0 ? `and ${count(more, "site")} more, none of them worse; the filter finds them` : "");
}

// placeSites shows the cards of sites in their order. The focus stays with its site, or with the list.
function placeSites(shown) {
  const list = byId("sites");
  const focused = document.activeElement?.closest?.("#sites button");
  const cards = new Map([...list.children].map((li) => [li.firstChild.site, li]));
  const kept = new Set(shown.map((s) => s.name));
  for (const [name, li] of cards) if (!kept.has(name)) li.remove();
  shown.forEach((s, i) => {
    const li = cards.get(s.name) ?? makeSite(s.name);
    if (list.children[i] !== li) list.insertBefore(li, list.children[i] ?? null);
    fillSite(li.firstChild, s);
  });
  if (focused && document.activeElement !== focused) (focused.isConnected ? focused : list).focus({ preventScroll: true });
}

function makeSite(name) {
  const li = document.createElement("li");
  const button = Object.assign(document.createElement("button"), { site: name });
  const bar = Object.assign(document.createElement("span"), { className: "bar" });
  bar.setAttribute("aria-hidden", "true");
  for (const is of ["False", "Unknown", "True"]) bar.append(Object.assign(document.createElement("i"), { className: is }));
  button.append(document.createElement("b"), bar, document.createElement("small"));
  button.addEventListener("click", () => {
    state.site = state.site === name ? null : name;
    change();
  });
  li.append(button);
  return li;
}

function fillSite(button, s) {
  button.setAttribute("aria-pressed", String(state.site === s.name));
  put(button.children[0], s.name || "no site", s.name);
  for (const i of button.children[1].children) {
    i.style.flexGrow = String(s[i.className]);
    i.hidden = s[i.className] === 0;
  }
  const parts = [];
  for (const is of ["True", "False", "Unknown"]) if (s[is]) parts.push(`${digits(s[is])} ${is}`);
  if (s.frozen) parts.push(`${digits(s.frozen)} frozen`);
  put(button.children[2], parts.length ? `Ready: ${parts.join(", ")}` : "0 nodes");
}

// Details of one node.

let chosen = null; // name of the node: another server counts IDs otherwise

function showDetails(r) {
  chosen = r.node;
  fillDetails();
  byId("details").showModal();
}

// The browser puts the focus where it was before, which by then may be the row of another node.
function leaveDetails() {
  const scroll = byId("scroll");
  const i = state.order.findIndex((r) => r.node === chosen);
  if (i >= 0) { // below the heading, which has the height of a row
    const height = rowHeight();
    scroll.scrollTop = Math.max(Math.min(scroll.scrollTop, i * height), (i + 2) * height - scroll.clientHeight);
    showRows();
  }
  const tr = pool.find((one) => one.isConnected && one.row.node === chosen);
  (tr ? tr.cells[0].firstChild : scroll).focus({ preventScroll: true });
}

function fillDetails() {
  const r = [...state.rows.values()].find((one) => one.node === chosen);
  byId("gone").hidden = Boolean(r);
  put(byId("details-title"), chosen);
  if (!r) return; // the facts stay
  const facts = [
    ["Site", r.site ?? "none"], ["Ready", said(r.ready)], ["Tunnel", said(r.tunnel)], ["Data path", said(r.path)],
    ["Round trip", tripOf(r)], ["Streams", r.streams < 0 ? "–" : String(r.streams)],
    ["Last cut", r.cut ? `${clock(r.cut.at)}: ${r.cut.why}` : "none that this server knows"],
    ["Scheduling", r.cordoned ? "cordoned" : "allowed"],
    ["Evictions", (evictions(r) || "none") + (r.frozen?.message ? `. ${r.frozen.message}` : "")],
  ];
  const list = byId("facts");
  while (list.children.length < 2 * facts.length) list.append(document.createElement(list.children.length % 2 ? "dd" : "dt"));
  facts.flat().forEach((text, i) => put(list.children[i], text));
}

// The audit log.

function showLines() {
  const list = byId("lines");
  list.replaceChildren(...state.lines.map((l) => {
    const tr = document.createElement("tr");
    for (const text of [clock(l.at), l.user, l.verb, l.what, String(l.code)]) {
      tr.append(Object.assign(document.createElement("td"), { textContent: text }));
    }
    return tr;
  }));
}

// Drawing: once a frame at most, and as often as times must be said anew. While the first rows
// come it is seldom: sorting takes long.

let frame = 0;
let timer = 0;

function change(sorted) {
  if (!sorted) state.stale = true;
  if (!state.told) return; // or there would be "0 nodes"
  if (!state.loading) draw();
  else if (!timer) timer = setTimeout(draw, loadingPause);
}

function draw() {
  clearTimeout(timer);
  timer = 0;
  if (frame) return;
  frame = requestAnimationFrame(() => {
    frame = 0;
    if (state.stale) {
      sortRows();
      showSites();
    }
    showRows();
    if (byId("details").open) fillDetails();
  });
}

// painted waits for the next frame. A page that nobody sees has none.
function painted() {
  return new Promise((done) => {
    requestAnimationFrame(() => setTimeout(done));
    setTimeout(done, 100);
  });
}

// The stream.

function apply(m) {
  state.told = true;
  state.skew = m.time - Date.now();
  state.heard = m.time / 1000;
  state.started = m.started ?? state.started;
  if (m.reset) state.coming = new Map();
  const rows = state.coming;
  for (const id of m.gone ?? []) rows.delete(id);
  for (const r of m.rows ?? []) {
    const before = rows.get(r.id);
    const known = r.rtts ?? before?.rtts ?? [];
    r.rtts = known.length === samples ? known : [...new Array(samples - known.length).fill(0), ...known];
    fate(r);
    rows.set(r.id, r);
  }
  // Rows of a connection before stay until then, and so does the place in the table.
  const all = rows.size === m.nodes;
  if (all || state.rows.size === 0) state.rows = rows;
  if (m.live) live(m.live);
  if (m.audit) {
    state.lines = [...m.audit.reverse(), ...state.lines].slice(0, maxLines);
    showLines();
  }
  byId("log").hidden = state.lines.length === 0;
  put(byId("audit-note"), m.audited ? "The latest requests first, without those of nodes and of the control plane."
    : "This server keeps no audit log: see --audit-policy-file and --audit-log-path of the API server.");
  const unsorted = m.reset || m.rows || m.gone || m.live || m.decides !== state.decides;
  state.decides = m.decides;
  state.decider = m.decider ?? "";
  state.decided = m.decided ?? 0;
  state.loading = !all && !m.reset; // the first are drawn at once
  change(!unsorted);
  if (m.rows && !performance.getEntriesByName("rows").length) afterPaint("rows");
  if (all && !performance.getEntriesByName("fleet").length) afterPaint("fleet");
}

function afterPaint(mark) {
  requestAnimationFrame(() => setTimeout(() => performance.mark(mark)));
}

function live(all) {
  for (const r of state.rows.values()) r.streams = -1;
  const seen = new Set();
  for (let i = 0; i < all.length; i += 3) {
    const r = state.rows.get(all[i]);
    if (!r) continue;
    seen.add(r);
    r.streams = all[i + 2];
    r.rtts.shift();
    r.rtts.push(all[i + 1]);
  }
  for (const r of state.rows.values()) {
    if (seen.has(r)) continue;
    r.rtts.shift();
    r.rtts.push(0);
  }
}

function say(text, lost) {
  put(byId("link"), text);
  byId("link").classList.toggle("lost", lost);
}

async function read(connected) {
  const stop = new AbortController();
  let timer;
  const heard = () => {
    clearTimeout(timer);
    timer = setTimeout(() => stop.abort(new Error("nothing was heard")), silence);
  };
  heard();
  try {
    const answer = await fetch("fleet", { cache: "no-store", signal: stop.signal });
    if (!answer.ok) throw new Error(refusals[answer.status] ?? `the server, or a proxy before it, answers ${answer.status}`);
    connected();
    say("Live", false);
    state.lines = [];
    const chunks = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    let told = false;
    await painted();
    for (;;) {
      const { done, value } = await chunks.read();
      if (done) return;
      heard();
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const l of lines) apply(JSON.parse(l));
      if (lines.length && !told) {
        told = true;
        await painted(); // of the first rows, before the others take the time
      }
    }
  } finally {
    clearTimeout(timer);
  }
}

const refusals = {
  401: "the server does not know you",
  403: "you may not see the fleet: an administrator can bind you to the ClusterRole system:status-viewer",
  429: "too many look at this page already",
};

async function follow() {
  let wait = 1;
  const connected = () => {
    wait = 1;
  };
  for (;;) {
    try {
      await read(connected); // which ends by itself after some minutes
    } catch (err) {
      const last = state.heard ? ` since ${clock(state.heard)}, when the server was last heard` : "";
      say(`Not connected${last}: ${err.message}. What is shown may be old.`, true);
    }
    await new Promise((done) => setTimeout(done, wait * 1000));
    wait = Math.min(2 * wait, 30);
  }
}

byId("filter").addEventListener("input", () => change());
byId("broken").addEventListener("change", () => change());
byId("details").addEventListener("close", leaveDetails);
byId("scroll").addEventListener("scroll", () => change(true), { passive: true });
addEventListener("resize", () => change(true));
setInterval(() => change(true), 10_000);
for (const b of document.querySelectorAll("[data-sort]")) {
  b.addEventListener("click", () => {
    const key = b.dataset.sort;
    state.sort = { key, up: state.sort.key === key ? !state.sort.up : !highestFirst.includes(key) };
    for (const th of document.querySelectorAll("th[aria-sort]")) th.removeAttribute("aria-sort");
    b.parentElement.setAttribute("aria-sort", state.sort.up ? "ascending" : "descending");
    change();
  });
}
follow();
