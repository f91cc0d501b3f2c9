// What the status page knows, and how it says that.

export const samples = 30; // round trips of a node

export const state = {
  rows: new Map(), // by ID
  coming: new Map(), // the rows of this connection, which become those above once all are there
  loading: false, // they are not
  order: [], // rows that pass the filter, sorted
  lines: [],
  site: null, // the one that is chosen
  sort: { key: "worst", up: true },
  decides: false, // freezes are known
  decider: "", // the other server that decides about evictions
  decided: 0, // when it said so
  skew: 0, // of the server's clock, in milliseconds
  stale: true, // order is not what it should be
  told: false, // the server has said something
  started: 0, // when it was
  heard: 0, // when it last said something, by its clock
};

// Texts.

const now = () => (Date.now() + state.skew) / 1000;

export function ago(at) {
  const s = Math.max(0, now() - at);
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (s >= size) return `${Math.floor(s / size)} ${unit} ago`;
  }
  return `${Math.floor(s)} s ago`;
}

// Made once: toLocaleString makes one each time.
const clocks = new Intl.DateTimeFormat(undefined, { dateStyle: "short", timeStyle: "medium" });
const hours = new Intl.DateTimeFormat(undefined, { timeStyle: "short" });
const days = new Intl.DateTimeFormat(undefined, { dateStyle: "short" });
const numbers = new Intl.NumberFormat();
export const clock = (at) => clocks.format(at * 1000);
const day = (at) => days.format(at * 1000);
const hour = (at) => (day(at) === day(now()) ? "" : `${day(at)}, `) + hours.format(at * 1000);
export const digits = (n) => numbers.format(n);
export const count = (n, what) => `${digits(n)} ${what}${n === 1 ? "" : "s"}`;

export function trip(us) {
  if (!us) return "";
  if (us < 10_000) return `${(us / 1000).toFixed(1)} ms`;
  if (us < 1_000_000) return `${Math.round(us / 1000)} ms`;
  return `${(us / 1_000_000).toFixed(1)} s`;
}

const signs = { True: "✓", False: "✕", Unknown: "?" };
export const verdict = (h) => (h ? `${signs[h.is]} ${h.away ? "not back yet" : h.is}` : "–");
export const well = (r) => [r.ready, r.tunnel, r.path].every((h) => !h || h.is === "True");

export function evictions(r) {
  if (r.evicting) return `under way, ${ago(r.evicting)}`;
  if (r.frozen) {
    const by = state.decider ? ` (${state.decider}, ${ago(state.decided)})` : "";
    return `frozen${r.frozen.until ? ` until ${hour(r.frozen.until)}` : ""}: ${r.frozen.reason}${by}`;
  }
  if (r.ready.is === "Unknown" && !state.decides) return "not known at this server";
  return "";
}

// A node is away if its conditions are of before: no server has had a session of it since.
export function fate(r) {
  if (!r.away) return;
  const why = `NotBack: no server has a session of this node. This server was started at ${clock(state.started)}`;
  r.tunnel = { is: "Unknown", away: true, why };
  if (r.path?.is === "True") r.path = { is: "Unknown", away: true, why };
}

// said is all of a health.
export const said = (h) => (h ? `${verdict(h)}${h.since ? `, since ${clock(h.since)}` : ""}${h.why ? `. ${h.why}` : ""}` : "this node never had a tunnel");

// tripOf is the latest round trip, or why there is none.
export function tripOf(r) {
  if (r.streams < 0) return "no session";
  return trip(r.rtts[samples - 1]) || (r.tunnel?.is === "False" ? "none while the session waits for another connection" : "not known");
}
