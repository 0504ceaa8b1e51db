// SPDX-License-Identifier: Apache-2.0
/** The panels about the server: totals, engines with their slots and loops, memory, parked sessions, processes. */

import { copyButton, h } from "./dom.js";
import { MOST_VALUES } from "./rates.js";
import { outcomeOf, statusBadge } from "./turns.js";
import { count, counted, duration, lasting, percent, rate, shortId, size } from "./units.js";

const MEMORY = {
  states: "earlier responses",
  parked: "parked sessions",
  recognised: "recognised histories",
  requests: "requests in flight",
  unread: "not yet read by clients",
  compiled: "compiled grammars",
  documents: "documents that were read",
  verdicts: "verdicts of safety checks",
};
const MOST_SAVED = 12;

/**
 * The figures of the header: [{name, value, about, alarm, tone, series, share}]. A figure has a line of its last minute, or the
 * share that it is of something.
 */
function totalsOf(state) {
  if (state.processes.size === 0) return [];
  const { history } = state;
  const totals = state.totals();
  const gauges = state.gauges();
  const full = totals.request_bytes + totals.history_bytes;
  const perSecond = (name) => (history.perSecond(name) === null ? "–" : rate(history.perSecond(name)));
  const failed = Object.entries(totals.statuses).reduce((sum, [status, number]) => sum + (outcomeOf(status).isFailure ? number : 0), 0);
  return [
    { name: "turns/s", tone: "turns", value: perSecond("turns"), series: history.rates("turns"),
      about: `${counted(totals.turns, "turn")} so far`, alarm: failed ? ["✕ ", count(failed), h("span", { class: "word" }, " failed")] : null },
    { name: "tokens/s in", tone: "in", value: perSecond("input"), about: `${count(totals.input)} so far`, series: history.rates("input") },
    { name: "tokens/s out", tone: "out", value: perSecond("output"), about: `${count(totals.output)} so far`, series: history.rates("output") },
    { name: "cached", tone: "cached", value: totals.input ? percent(totals.cached / totals.input) : "–", about: `of ${count(totals.input)} tokens`,
      share: totals.input ? totals.cached / totals.input : 0 },
    { name: "bytes saved", tone: "saved", value: size(totals.history_bytes), about: full ? `${percent(totals.history_bytes / full)} less sent` : "nothing sent yet",
      share: full ? totals.history_bytes / full : 0 },
    { name: "connections", tone: "sockets", value: count(gauges.sockets), about: "WebSockets", series: history.levels("sockets") },
    { name: "in flight", tone: "flight", value: count(gauges.inFlight), about: "turns that run", series: history.levels("inFlight") },
    { name: "waiting", tone: "waiting", value: count(gauges.waiting), about: "in their lanes", series: history.levels("waiting") },
  ];
}

export function totalsStrip(state) {
  return totalsOf(state).map(({ name, tone, value, about, alarm, series, share }) => h("div", { class: `total of-${tone}`, key: name },
    h("dt", null, name),
    h("dd", null, h("span", { class: "value" }, value), h("small", null, about), alarm && h("strong", { class: "failed" }, alarm)),
    series === undefined ? shareBar(share) : sparkline(series)));
}

function shareBar(share) {
  return h("div", { class: "share", "aria-hidden": "true" }, h("div", { class: "fill", style: { width: `${(share * 100).toFixed(1)}%` } }));
}

/** A line of the last minute's values, from zero to the highest, with the newest on the right. */
function sparkline(values) {
  const [width, height] = [100, 24];
  const shown = values.slice(-MOST_VALUES);
  const highest = Math.max(...shown, 1e-9);
  const x = (index) => ((index + MOST_VALUES - shown.length) / (MOST_VALUES - 1) * width).toFixed(1);
  const points = shown.map((value, index) => `${x(index)} ${(height - 1.5 - (value / highest) * (height - 4)).toFixed(1)}`);
  const line = points.length > 1 ? `M${points.join("L")}` : "";
  return h("svg", { class: "sparkline", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    h("path", { class: "area", d: line && `${line}V${height}H${x(0)}Z` }),
    h("path", { class: "line", d: line }));
}

/** A bar of what is used, against its bound, in words too. */
export function memoryMeter(name, { used_bytes: used, limit_bytes: limit }) {
  const share = limit > 0 ? used / limit : 0;
  const words = limit > 0 ? `${size(used)} of ${size(limit)}` : size(used);
  return meter(name, words, share, limit > 0 ? percent(share) : "no bound");
}

function meter(name, words, share, aside) {
  const level = share >= 0.9 ? "high" : share >= 0.7 ? "raised" : "low";
  return h("div", { class: "meter", key: name },
    h("div", { class: "words" }, h("span", null, name), h("span", { class: "amount" }, words, h("small", null, aside))),
    h("div", { class: `track ${level}`, role: "meter", "aria-label": name, "aria-valuemin": "0", "aria-valuemax": "100",
      "aria-valuenow": Math.round(share * 100), "aria-valuetext": `${words}, ${aside}` },
    h("div", { class: "fill", style: { width: `${Math.min(100, share * 100).toFixed(1)}%` } })));
}

/** Engines by name, each with a line for every worker that uses it. */
export function enginesPanel(state, onResponse) {
  const { workers } = state;
  const byName = new Map();
  for (const { process, engines } of workers) {
    for (const engine of engines) byName.set(engine.name, [...(byName.get(engine.name) ?? []), { process, engine }]);
  }
  return [...byName].map(([name, users]) => h("article", { class: "engine", key: name },
    h("h3", null, name, " ", h("small", null, [...new Set(users.flatMap(({ engine }) => engine.models))].join(", ") || "no model"),
      users.length === 1 && health(users[0].engine)),
    users.map(({ process, engine }) => h("div", { class: "user", key: `${name}/${process}` },
      h("p", { class: "load" },
        workers.length > 1 && h("span", { class: "worker" }, `worker ${process}`),
        h("span", null, h("strong", null, engine.running), " running"),
        h("span", { class: engine.waiting ? "waits" : null }, h("strong", null, engine.waiting), " waiting"),
        engine.breaker !== "none" && h("span", null, `breaker ${engine.breaker}${engine.breaker === "open" ? ", not asked for a while" : ""}`),
        users.length > 1 && health(engine)),
      engine.trouble && h("p", { class: "notice wrong" }, engine.trouble),
      engine.slots.length ? slots(engine, onResponse) : null,
      loops(engine),
      savedContexts(engine, onResponse)))));
}

/** How the engine's KV cache is divided among the loops of agents, and who waits for room in it. */
function loops({ loops: all }) {
  if (all === null || all === undefined) return null;
  const share = all.held_tokens / Math.max(1, all.capacity_tokens);
  const words = (loop) => {
    const since = loop.seconds ? ` for ${duration(1000 * loop.seconds)}` : "";
    if (loop.state === "running") return "runs";
    if (loop.state === "waiting") return `waits${since}: ${loop.why}`;
    return `${loop.tools || "its user"}${since}, usually ${duration(1000 * loop.usually_s)}`;
  };
  return [
    meter("KV cache held by loops", `${count(all.held_tokens)} of ${counted(all.capacity_tokens, "token")}`, share,
      `${all.running} running, ${all.paused} paused, ${all.waiting} waiting`),
    all.replicas.length > 1 ? all.replicas.map(({ name, held_tokens: held, capacity_tokens: most }, at) =>
      meter(`replica ${name || at + 1}`, `${count(held)} of ${counted(most, "token")}`, held / Math.max(1, most),
        name ? "held by loops" : "not heard of yet")) : null,
    all.listed.length ? h("ul", { class: "slots", "aria-label": "Loops" }, all.listed.map((loop, at) =>
      h("li", { key: `loop${at}`, class: loop.state === "running" ? "busy" : "idle" },
        h("span", { class: loop.state === "waiting" ? "badge wrong" : "badge state" }, loop.state), " ",
        h("span", { class: "holds" }, `${counted(loop.tokens, "token")} of ${loop.tenant}${loop.replica ? ` on ${loop.replica}` : ""}, ${counted(loop.turns, "turn")}, ${words(loop)}`),
        h("div", { class: "fill", "aria-hidden": "true", style: { width: `${(loop.tokens / Math.max(1, all.capacity_tokens) * 100).toFixed(1)}%` } })))) : null,
  ];
}

function health({ trouble, breaker }) {
  if (trouble) return h("span", { class: "badge wrong" }, "cannot generate");
  return breaker === "open" ? h("span", { class: "badge wrong" }, "breaker open") : h("span", { class: "badge good" }, "healthy");
}

function slots({ slots: all }, onResponse) {
  const longest = Math.max(1, ...all.map(({ tokens }) => tokens));
  return h("ul", { class: "slots", "aria-label": "Slots" }, all.map((slot) => h("li", { key: `slot${slot.number}`, class: slot.state },
    h("span", { class: "slot-name" }, `slot ${slot.number}`), " ",
    h("span", { class: "badge state" }, slot.state), " ",
    h("span", { class: "holds" }, slot.tokens || slot.response_id ? [
      slot.tokens ? counted(slot.tokens, "token") : "a context",
      slot.tenant ? ` of ${slot.tenant} ` : " ",
      slot.response_id ? responseLink(slot.response_id, onResponse) : "",
    ] : "empty"),
    h("div", { class: "fill", "aria-hidden": "true", style: { width: `${(slot.tokens / longest * 100).toFixed(1)}%` } }))));
}

function savedContexts({ saved, saved_memory: memory }, onResponse) {
  if (memory === null || memory === undefined) return null;
  return [
    memoryMeter(`${counted(saved.length, "context")} saved beside the slots`, memory),
    saved.length ? h("ul", { class: "saved" }, saved.slice(0, MOST_SAVED).map((each) => h("li", null,
      `${counted(each.tokens, "token")} of ${each.tenant}, ${size(each.size_bytes)} `, each.response_id ? responseLink(each.response_id, onResponse) : ""))) : null,
    saved.length > MOST_SAVED ? h("p", { class: "note" }, `and ${saved.length - MOST_SAVED} more`) : null,
  ];
}

function responseLink(id, onResponse) {
  return h("button", { type: "button", class: "link", title: id, onclick: () => onResponse(id) }, h("code", null, shortId(id)));
}

export function memoryPanel(state, row) {
  const processes = state.workers;
  const kinds = new Map();
  const tenants = new Map();
  for (const process of processes) {
    for (const [kind, memory] of Object.entries(process.memory)) add(kinds, kind, memory);
    for (const { tenant, ...memory } of process.tenants) add(tenants, tenant, memory);
  }
  const most = [...tenants].sort(([, a], [, b]) => b.used_bytes - a.used_bytes).slice(0, 6);
  const connection = row?.kind === "connection" ? row.connection : null;
  return [
    connection !== null && connection.cache.limit_bytes > 0 && [h("h3", null, "Selected connection"), memoryMeter(`#${connection.number}, ${counted(connection.responses, "response")}`, connection.cache)],
    h("h3", null, processes.length > 1 ? "All processes" : "Process"),
    [...kinds].map(([kind, memory]) => memoryMeter(MEMORY[kind] ?? kind, memory)),
    most.length ? [h("h3", null, "Tenants"), most.map(([tenant, memory]) => memoryMeter(tenant, memory))] : null,
  ];
}

function add(sums, name, { used_bytes, limit_bytes }) {
  const sum = sums.get(name) ?? { used_bytes: 0, limit_bytes: 0 };
  sums.set(name, { used_bytes: sum.used_bytes + used_bytes, limit_bytes: sum.limit_bytes + limit_bytes });
}

/** Sessions of dropped connections; the time left counts down between updates. */
export function parkedPanel(state) {
  const now = state.now() / 1000;
  const processes = state.workers;
  const all = processes.flatMap(({ parked, now: at, process }) => parked.map((each, index) => ({ ...each, left: each.seconds_left - (now - at), key: `${process}/${index}` })));
  const total = processes.reduce((sum, { parked_sessions: number }) => sum + number, 0);
  const shown = all.filter(({ left }) => left > 0).sort((a, b) => a.left - b.left).slice(0, 20);
  if (!total) return h("p", { class: "note" }, "None. The states of a dropped connection are kept here for a while, for a client that reconnects.");
  const longest = Math.max(60, ...shown.map(({ left }) => left));
  return [
    shown.map(({ tenant, responses, size_bytes, left, key }) => h("div", { class: "meter", key },
      h("div", { class: "words" }, h("span", null, tenant), h("span", { class: "amount" }, `${lasting(left)} left`, h("small", null, `${counted(responses, "response")}, ${size(size_bytes)}`))),
      h("div", { class: "track low", "aria-hidden": "true" }, h("div", { class: "fill", style: { width: `${(left / longest * 100).toFixed(1)}%` } })))),
    total > shown.length ? h("p", { class: "note" }, `and ${total - shown.length} more, with more time left`) : null,
  ];
}

export function processesPanel(state) {
  const all = state.workers;
  const missing = (state.greeting?.workers ?? 0) - all.length;
  return [
    h("div", { class: "cards" }, all.map((each) => h("article", { key: `process${each.process}` },
      h("h3", null, all.length > 1 ? `worker ${each.process}` : "process", " ", h("small", null, `pid ${each.pid}`), each.is_draining ? h("span", { class: "badge wrong" }, "draining") : null),
      h("dl", { class: "facts" },
        pair("Connections", String(each.sockets)),
        pair("In flight", `${each.in_flight}, ${each.waiting} waiting`),
        pair("CPU", each.cpu === null ? "–" : `${percent(each.cpu)} of a core`),
        pair("Resident memory", size(each.resident_bytes)),
        pair("Event loop late by", `${duration(each.loop_lag_ms)}, at most ${duration(Math.max(...each.lags))} in the last minute`)),
      sparkline(each.lags)))),
    missing > 0 ? h("p", { class: "notice" }, `${counted(missing, "worker")} of ${state.greeting.workers} not heard of yet.`) : null,
  ];
}

function pair(name, value) {
  return [h("dt", null, name), h("dd", null, value)];
}

export function turnsPanel(state) {
  const totals = state.totals();
  const reasons = Object.entries(totals.fallbacks).sort(([, a], [, b]) => b - a);
  return [
    h("ul", { class: "outcomes" }, Object.entries(totals.statuses).sort(([, a], [, b]) => b - a).map(([status, number]) => h("li", { key: status },
      statusBadge({ status }), h("strong", null, count(number)), h("small", null, outcomeOf(status).meaning)))),
    h("h3", null, "Rendered in full although the parent was in memory"),
    reasons.length ? h("dl", { class: "facts" }, reasons.map(([reason, number]) => pair(reason, count(number)))) : h("p", { class: "note" }, "Never."),
    state.missed > 0 ? h("p", { class: "note" }, `${counted(state.missed, "turn")} left out of the stream, because there were too many.`) : null,
  ];
}

/** What an empty server shows: how to make the first request. */

export function firstRequest(state) {
  const url = state.greeting?.api_url ?? "http://127.0.0.1:8000/v1";
  const models = state.workers.flatMap(({ engines }) => engines.flatMap((engine) => engine.models));
  const model = models[0] ?? "MODEL";
  const needsKey = state.workers.some(({ needs_key }) => needs_key);
  const key = needsKey ? "YOUR_KEY" : "any";
  return [
    h("h2", null, "No client has connected yet"),
    h("p", null, "The server is ready. Make a first request, and it appears here:"),
    sample("With curl, over HTTP", curl(url, model, key)),
    sample("With Python, over one WebSocket", python(url, model, key), "pip install 'openai[realtime]'"),
    h("p", { class: "note" }, needsKey
      ? ["This server needs an API key: put yours in place of ", h("code", null, "YOUR_KEY"), "."]
      : "This server has no API keys: it accepts any."),
  ];
}

function sample(title, text, note) {
  return h("figure", { key: title },
    h("figcaption", null, h("span", null, title, note && h("small", null, ` (${note})`)),
      copyButton(text, title)),
    h("pre", { tabindex: "0", "aria-label": title }, h("code", null, text)));
}

function curl(url, model, key) {
  const body = JSON.stringify({ model, input: "Hello!", max_output_tokens: 40 });
  return [`curl ${shellQuoted(`${url}/responses`)} \\`, `  -H 'Authorization: Bearer ${key}' \\`, "  -H 'Content-Type: application/json' \\",
    `  -d ${shellQuoted(body)}`].join("\n");
}

function shellQuoted(text) {
  return /^[\w:/.-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

function python(url, model, key) {
  return [
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${JSON.stringify(url)}, api_key="${key}")`,
    "with client.responses.connect() as connection:",
    "",
    "    def answer(**create):",
    `        connection.response.create(model=${JSON.stringify(model)}, max_output_tokens=40, **create)`,
    "        for event in connection:",
    '            if event.type in ("response.completed", "response.incomplete"):',
    "                return event.response",
    '            if event.type in ("response.failed", "error"):',
    "                raise SystemExit(event)",
    "",
    '    first = answer(input="Hello!")',
    '    print(answer(input="Go on.", previous_response_id=first.id).output_text)',
  ].join("\n");
}
