// SPDX-License-Identifier: Apache-2.0
/** The panels about the server: totals, engines with their slots, memory, parked sessions, processes. */

import { h } from "./dom.js";
import { count, counted, duration, lasting, percent, rate, shortId, size } from "./units.js";

const RATE_MS = 10_000;
const MEMORY = {
  states: "states of earlier responses",
  parked: "parked sessions",
  recognised: "recognised histories",
  requests: "requests in flight",
  unread: "not yet read by clients",
  compiled: "compiled grammars",
};
const MOST_SAVED = 12;

/** The figures of the header: [{name, value, unit, about, series}]. */
export function totalsOf(state) {
  const { samples } = state;
  const last = samples[samples.length - 1];
  if (last === undefined) return [];
  const totals = last.totals;
  const first = samples.find(({ at }) => last.at - at <= RATE_MS) ?? last;
  const seconds = Math.max(0.001, (last.at - first.at) / 1000);
  const perSecond = (name) => (last === first ? 0 : (totals[name] - first.totals[name]) / seconds);
  const full = totals.request_bytes + totals.history_bytes;
  const read = totals.input;
  return [
    { name: "turns/s", value: rate(perSecond("turns")), about: `${counted(totals.turns, "turn")} so far`, series: rates(samples, "turns") },
    { name: "tokens/s in", value: rate(perSecond("input")), about: `${count(totals.input)} so far`, series: rates(samples, "input") },
    { name: "tokens/s out", value: rate(perSecond("output")), about: `${count(totals.output)} so far`, series: rates(samples, "output") },
    { name: "cached", value: read ? percent(totals.cached / read) : "–", about: `${count(totals.cached)} of ${count(read)} tokens` },
    { name: "bytes saved", value: size(totals.history_bytes), about: full ? `${percent(totals.history_bytes / full)} of full histories` : "nothing sent yet" },
    { name: "connections", value: count(last.sockets), about: "open WebSockets", series: samples.map(({ sockets }) => sockets) },
    { name: "in flight", value: count(last.inFlight), about: "turns that run", series: samples.map(({ inFlight }) => inFlight) },
    { name: "waiting", value: count(last.waiting), about: "for a place", series: samples.map(({ waiting }) => waiting) },
  ];
}

function rates(samples, name) {
  const found = [];
  for (let index = 4; index < samples.length; index += 1) {
    const [before, after] = [samples[index - 4], samples[index]];
    found.push((after.totals[name] - before.totals[name]) / Math.max(0.001, (after.at - before.at) / 1000));
  }
  return found;
}

export function totalsStrip(state) {
  return totalsOf(state).map(({ name, value, about, series }) => h("div", { class: "total", key: name },
    h("dt", null, name),
    h("dd", null, h("span", { class: "value" }, value), h("small", null, about)),
    series !== undefined && sparkline(series)));
}

/** A line of the last values, from zero to the highest. */
export function sparkline(values) {
  const [width, height, most] = [100, 22, 120];
  const shown = values.slice(-most);
  const highest = Math.max(...shown, 1e-9);
  const points = shown.map((value, index) => `${((index + most - shown.length) / (most - 1) * width).toFixed(1)},${(height - 2 - (value / highest) * (height - 4)).toFixed(1)}`);
  return h("svg", { class: "sparkline", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    h("polyline", { points: points.join(" ") }));
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

export function enginesPanel(state, onResponse) {
  const processes = [...state.processes.values()];
  const many = processes.length > 1;
  return processes.flatMap(({ process, engines }) => engines.map((engine) => h("article", { class: "engine", key: `${process}/${engine.name}` },
    h("h3", null, many ? `worker ${process}: ` : "", engine.name, " ", health(engine)),
    engine.trouble && h("p", { class: "notice wrong" }, engine.trouble),
    h("p", { class: "note" }, engine.models.join(", ") || "no model"),
    h("p", null, h("strong", null, engine.running), " running, ", h("strong", null, engine.waiting), " waiting",
      engine.breaker === "none" ? "" : `; breaker ${engine.breaker}${engine.breaker === "open" ? ", it is not asked for a while" : ""}`),
    engine.slots.length ? slots(engine, onResponse) : null,
    savedContexts(engine, onResponse))));
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
  const processes = [...state.processes.values()];
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
  const processes = [...state.processes.values()];
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
  const all = [...state.processes.values()].sort((a, b) => a.process - b.process);
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
    h("dl", { class: "facts" }, Object.entries(totals.statuses).sort(([, a], [, b]) => b - a).map(([status, number]) => pair(status, count(number)))),
    h("h3", null, "Rendered in full although the parent was in memory"),
    reasons.length ? h("dl", { class: "facts" }, reasons.map(([reason, number]) => pair(reason, count(number)))) : h("p", { class: "note" }, "Never."),
    state.missed > 0 ? h("p", { class: "note" }, `${counted(state.missed, "turn")} left out of the stream, because there were too many.`) : null,
  ];
}
