// SPDX-License-Identifier: Apache-2.0
/** What is shown of the selected turn, or of the selected connection. */

import { stackedBars } from "./bars.js";
import { h } from "./dom.js";
import { memoryMeter } from "./panels.js";
import { stageInPhase, stageOf } from "./stages.js";
import { chainNodes, chainTree, chainWords } from "./tree.js";
import { MARKS, bytesOf, tokensOf } from "./turns.js";
import { count, counted, duration, lasting, percent, shortId, size } from "./units.js";
import { waterfall } from "./waterfall.js";

const CACHED = { colour: "#88ccee", pattern: "plain" };
const FRESH = { colour: "#aa4499", pattern: "falling" };
const OUTPUT = { colour: "#b8bec6", pattern: "plain" };
const THOUGHT = { colour: "#999933", pattern: "rising" };
const SENT = { colour: "#117733", pattern: "plain" };
const MOST_STEPS = 40;
const SPARED = { colour: null, pattern: "open" };

/** The selected turn. `width`: of the panel. */
export function turnDetail(turn, row, { now, width, onResponse, onRow }) {
  const { report } = turn;
  const total = turn.end === null ? Math.max(0, now - turn.start) : report.total_ms;
  const running = turn.end === null ? stageInPhase(turn.phase, turn.stages) : null;
  return [
    h("h2", { id: "detail-title", tabindex: "-1" }, turn.end === null ? `A turn, ${turn.phase}` : `A turn, ${turn.status}`),
    h("p", { class: "lead" }, h("strong", null, duration(total)), turn.end === null ? " so far. " : ". ", mostly(turn)),
    notices(turn),
    waterfall({ id: "waterfall", title: "Stages of the turn", stages: turn.stages, total_ms: total, running, width }),
    tokenBars(turn, width),
    byteBars(turn, width),
    h("dl", { class: "facts" }, facts(turn, row, onResponse, onRow)),
    stageTable(turn, total, running),
  ];
}

function mostly(turn) {
  const spent = new Map();
  for (const { name, duration_ms } of turn.stages) spent.set(name, (spent.get(name) ?? 0) + duration_ms);
  const [name, ms] = [...spent].reduce((most, each) => (each[1] > most[1] ? each : most), ["", 0]);
  if (!ms) return "";
  const meaning = stageOf(name).meaning;
  return `Longest: ${name}, ${duration(ms)}${meaning ? ` (${meaning})` : ""}.`;
}

function notices({ report }) {
  return [
    report.error_code && h("p", { class: "notice wrong" }, h("strong", null, "Error: "), report.error_code),
    report.fallback && h("p", { class: "notice" }, h("strong", null, "Rendered in full: "), report.fallback, "."),
    report.dropped_items ? h("p", { class: "notice" }, `${counted(report.dropped_items, "oldest item")} left out, so that the rest fits.`) : null,
  ];
}

function tokenBars(turn, width) {
  const tokens = tokensOf(turn);
  if (tokens === null) return turn.end === null ? h("p", { class: "note" }, "Tokens are counted when the turn has ended.") : null;
  const part = (name, value, look) => ({ ...look, name, value, label: count(value) });
  const shown = (...parts) => parts.filter(({ value }) => value > 0);
  return stackedBars({
    id: "tokens",
    title: "Tokens of the turn",
    width,
    bars: [
      { name: "Context the engine had to have", label: counted(tokens.input, "token"),
        segments: shown(part("cached", tokens.cached, CACHED), part("new", tokens.fresh, FRESH)) },
      { name: "Rendered for this turn", label: counted(tokens.rendered, "token"),
        segments: shown(part("rendered", tokens.rendered, stageOf("render"))) },
      { name: "Generated", label: counted(tokens.output, "token"),
        segments: shown(part("reasoning", tokens.reasoning, THOUGHT), part("output", tokens.output - tokens.reasoning, OUTPUT)) },
    ],
  });
}

function byteBars(turn, width) {
  const { sent, full } = bytesOf(turn);
  const saved = full > sent ? `, ${percent(1 - sent / full)} less` : "";
  return stackedBars({
    id: "bytes",
    title: "Bytes of the request",
    width,
    bars: [
      { name: "Sent by the client", label: `${size(sent)}${saved}`, segments: [{ name: "sent", value: sent, label: size(sent), ...SENT }] },
      full > sent && { name: "With the full history", label: size(full),
        segments: [
          { name: "sent", value: sent, label: size(sent), ...SENT },
          { name: "history, not sent", value: full - sent, label: size(full - sent), ...SPARED },
        ] },
    ].filter(Boolean),
  });
}

function facts(turn, row, onResponse, onRow) {
  const { report } = turn;
  const link = (id) => h("button", { type: "button", class: "link", onclick: () => onResponse(id), title: id }, h("code", null, shortId(id)));
  const lane = turn.lane === null ? "" : `, lane ${turn.lane}`;
  const all = [
    ["Response", turn.id === null ? "none yet" : h("code", null, turn.id)],
    turn.previous !== null && ["Continues", link(turn.previous)],
    ["Where", row.kind === "connection" ? [h("button", { type: "button", class: "link", onclick: () => onRow(row) }, `connection #${turn.connection}`), lane] : turn.transport],
    ["Tenant", turn.tenant],
    report.model && ["Model", report.model],
    ["Began", new Date(turn.start).toLocaleTimeString()],
    report.input_items !== undefined && ["New items", report.recognised_items ? `${report.input_items}, of which ${report.recognised_items} were recognised` : String(report.input_items)],
    report.hosted_calls ? ["Calls of hosted tools", count(report.hosted_calls)] : null,
    report.steps ? ["Steps", stepsInWords(report.steps)] : null,
    report.send_ms ? ["Waited for the client to read", duration(report.send_ms)] : null,
    turn.marks?.length ? ["Marks", turn.marks.map((mark) => MARKS[mark] ?? mark).join("; ")] : null,
  ];
  return all.filter(Boolean).map(([name, value]) => [h("dt", null, name), h("dd", null, value)]);
}

/** The tokens of each step: those that the engine had to read, and those that it generated. */
function stepsInWords(steps) {
  const each = steps.slice(0, MOST_STEPS).map(({ prefilled, output }) => `${count(prefilled)} → ${count(output)}`);
  return `${steps.length}; tokens read → generated: ${each.join(", ")}${steps.length > MOST_STEPS ? ", …" : ""}`;
}

function stageTable(turn, total, running) {
  const rows = turn.stages.map(({ name, start_ms, duration_ms }) => h("tr", null,
    h("th", { scope: "row" }, name, h("small", null, stageOf(name).meaning)),
    h("td", null, duration(start_ms)),
    h("td", null, duration(duration_ms)),
    h("td", null, total > 0 ? percent(duration_ms / total) : "–")));
  if (running) rows.push(h("tr", null, h("th", { scope: "row" }, running, h("small", null, stageOf(running).meaning)), h("td", { colspan: "3" }, "goes on")));
  return h("details", { class: "table" },
    h("summary", null, "The stages as a table"),
    h("table", null,
      h("thead", null, h("tr", null, ["Stage", "From", "For", "Share"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", null, rows)));
}

/** The selected connection. `detail`: the server's answer about it, or null until it is there. */
export function connectionDetail(row, { now, detail, selected, onTurn }) {
  const { connection } = row;
  const turns = row.lanes.flatMap((lane) => lane.turns);
  const { shown, left } = chainNodes(detail?.nodes ?? [], turns);
  const facts_ = [
    ["Tenant", connection.tenant],
    connection.opened_at ? ["Open for", lasting(now / 1000 - connection.opened_at)] : null,
    ["Turns ended", String(connection.turns_ended)],
    ["Lanes", String(connection.lanes)],
    ["Not yet read by the client", size(connection.unsent_bytes)],
  ].filter(Boolean);
  return [
    h("h2", { id: "detail-title", tabindex: "-1" }, connection.title ?? `Connection #${connection.number}`),
    row.isClosed && h("p", { class: "notice" }, "This connection is closed."),
    h("dl", { class: "facts" }, facts_.map(([name, value]) => [h("dt", null, name), h("dd", null, value)])),
    connection.cache.limit_bytes > 0 && memoryMeter(`${counted(connection.responses, "response")} in memory`, connection.cache),
    h("h3", null, "Chains"),
    shown.length ? [
      h("p", { class: "note" }, chainWords(shown)),
      chainTree({ nodes: shown, left, isComplete: detail?.is_complete ?? true, selected, onTurn }),
    ] : h("p", { class: "note" }, "No response yet."),
  ];
}

/** What is shown of the HTTP requests or the background runs. */
export function sharedDetail(row, { onTurn, now }) {
  const turns = row.lanes.flatMap((lane) => lane.turns).slice(-40).reverse();
  return [
    h("h2", { id: "detail-title", tabindex: "-1" }, row.kind === "http" ? "HTTP requests" : "Background runs"),
    h("p", { class: "note" }, "The latest, newest first."),
    h("ol", { class: "tree" }, turns.map((turn) => h("li", { key: `${turn.start}/${turn.id}` },
      h("button", { type: "button", onclick: () => onTurn(turn) },
        h("code", null, turn.id === null ? "no response" : shortId(turn.id)),
        h("span", { class: "badge state" }, turn.end === null ? turn.phase : turn.status),
        h("span", { class: "facts" }, `${turn.transport} · ${turn.tenant} · ${duration((turn.end ?? now) - turn.start)}`))))),
  ];
}
