// SPDX-License-Identifier: Apache-2.0
/** What is shown of the selected turn, or of the selected connection. */

import { copyButton, h } from "./dom.js";
import { patch12, stackedBars } from "./drawings.js";
import { memoryMeter } from "./panels.js";
import { allTakers, stageInPhase, stageOf } from "./stages.js";
import { MARKS, bytesOf, firstTokenOf, longestStage, outcomeOf, statusBadge, tokensOf } from "./turns.js";
import { count, counted, duration, lasting, percent, rate, shortId, size } from "./units.js";
import { waterfall } from "./waterfall.js";

const CACHED = { colour: "var(--cached)", pattern: "plain" };
const FRESH = { colour: "var(--fresh)", pattern: "falling" };
const OUTPUT = { colour: "var(--output)", pattern: "plain" };
const THOUGHT = { colour: "var(--thought)", pattern: "rising" };
const SENT = { colour: "var(--sent)", pattern: "plain" };
const SPARED = { colour: null, pattern: "open" };
const MOST_STEPS = 40;
const MOST_CHILDREN = 6;
const API_NAMES = { chat_completions: "Chat Completions", messages: "Messages" };

/**
 * The selected turn. `width`: of the panel; `before` and `after`: its neighbours in its lane, or null; `children`: turns of its
 * connection that continue it.
 */
export function turnDetail(turn, row, { now, width, before, after, children, onStep, onResponse, onRow }) {
  const { report } = turn;
  const total = turn.end === null ? Math.max(0, now - turn.start) : report.total_ms;
  const running = turn.end === null ? stageInPhase(turn.phase, turn.stages) : null;
  return [
    h("h2", { id: "detail-title", tabindex: "-1" }, "Turn ", statusBadge(turn)),
    h("p", { class: "lead" }, h("strong", null, duration(total), turn.end === null && h("small", null, " so far")), mostly(turn)),
    neighbours(before, after, onStep),
    notices(turn),
    tiles(turn),
    takers(turn, total, running),
    waterfall({ id: "waterfall", title: "Stages of the turn", stages: turn.stages, total_ms: total, running, width }),
    h("h3", null, "Tokens"),
    tokenBars(turn, width),
    h("h3", null, "Bytes of the request"),
    byteBars(turn, width),
    h("dl", { class: "facts" }, facts(turn, row, children, onResponse, onRow)),
    stageTable(turn, total, running),
  ];
}

/** Buttons that lead to the turns before and after it in its lane. */
function neighbours(before, after, onStep) {
  const button = (key, words, turn) => h("button", { key, type: "button", disabled: turn === null, onclick: () => onStep(turn) }, words);
  return h("div", { class: "neighbours", role: "group", "aria-label": "Other turns of this lane" },
    button("before", "← Turn before", before), button("after", "Turn after →", after));
}

/** The figures that are looked for first. */
function tiles(turn) {
  const tokens = tokensOf(turn);
  const first = firstTokenOf(turn);
  const { sent, full } = bytesOf(turn);
  const spent = turn.stages.reduce((sum, { name, duration_ms }) => sum + (name === "generate" ? duration_ms : 0), 0);
  const shown = [
    first !== null && ["First token", duration(first)],
    tokens?.output > 1 && spent > 0 && ["Tokens/s", rate(tokens.output / spent * 1000)],
    tokens?.input > 0 && ["Cached", percent(tokens.cached / tokens.input)],
    full > sent && ["Saved", percent(1 - sent / full)],
  ].filter(Boolean);
  return shown.length > 0 && h("dl", { class: "tiles" }, shown.map(([name, value]) => h("div", { key: name }, h("dt", null, name), h("dd", null, value))));
}

/** Whose time it was: one bar, and the share of each. */
function takers(turn, total, running) {
  const spent = new Map();
  const add = (name, ms) => spent.set(stageOf(name).taker, (spent.get(stageOf(name).taker) ?? 0) + ms);
  for (const { name, duration_ms } of turn.stages) add(name, duration_ms);
  if (running) add(running, Math.max(0, total - Math.max(0, ...turn.stages.map((one) => one.start_ms + one.duration_ms))));
  const all = allTakers().filter(({ name }) => spent.get(name) > 0).map((taker) => ({ ...taker, ms: spent.get(taker.name) }));
  const sum = all.reduce((most, { ms }) => most + ms, 0);
  if (!sum) return null;
  return h("figure", { class: "takers" },
    h("figcaption", null, "Whose time it was"),
    h("div", { class: "flow", "aria-hidden": "true" }, all.map(({ name, stage, ms }) => h("span", {
      key: name, class: stage.colour === null ? "part open" : "part",
      style: { "flex-grow": String(ms / sum), ...(stage.colour === null ? {} : { background: stage.colour }) },
    }))),
    h("ul", null, all.map(({ name, stage, ms, meaning }) => h("li", { key: name, title: meaning },
      patch12(`taker-${name}`, { ...stage, pattern: stage.colour === null ? "open" : "plain" }), h("strong", null, name), ` ${duration(ms)} `, h("small", null, percent(ms / sum))))));
}

function mostly(turn) {
  const longest = longestStage(turn);
  if (longest === null || !longest.duration_ms) return "";
  const { meaning } = stageOf(longest.name);
  return `Longest: ${longest.name}, ${duration(longest.duration_ms)}${meaning ? ` (${meaning})` : ""}.`;
}

function notices(turn) {
  const { report } = turn;
  const outcome = turn.end === null ? null : outcomeOf(turn.status);
  const isPlain = outcome === null || turn.status === "completed" || !outcome.meaning;
  return [
    !isPlain && h("p", { key: "outcome", class: `notice ${outcome.isFailure ? "wrong" : turn.status}` },
      h("strong", null, `${turn.status}: `), outcome.meaning, ".", report.error_code ? [" Error: ", h("code", null, report.error_code)] : null),
    report.flagged_by?.length ? h("p", { key: "flagged", class: "notice" }, h("strong", null, "Flagged by "), report.flagged_by.join(", "), ".") : null,
    report.fallback && h("p", { key: "fallback", class: "notice" }, h("strong", null, "Rendered in full: "), report.fallback, "."),
    report.dropped_items ? h("p", { key: "dropped", class: "notice" }, `${counted(report.dropped_items, "oldest item")} left out, so that the rest fits.`) : null,
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
    isExplained: true,
    bars: [
      { name: "Context the engine had to have", label: counted(tokens.input, "token"),
        segments: shown(part("cached", tokens.cached, CACHED), part("new", tokens.fresh, FRESH)) },
      { name: "Rendered for this turn", label: counted(tokens.rendered, "token"),
        segments: shown(part("rendered", tokens.rendered, { ...stageOf("render") })) },
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
    isExplained: true,
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

/** How an HTTP request came: its transport, and its API if that is not Responses. */
function asked(turn) {
  return turn.api === "responses" ? turn.transport : `${turn.transport} · ${API_NAMES[turn.api] ?? turn.api}`;
}

function facts(turn, row, children, onResponse, onRow) {
  const { report } = turn;
  const link = (id) => h("button", { type: "button", class: "link", onclick: () => onResponse(id), title: id }, h("code", null, shortId(id)));
  const lane = turn.lane === null ? "" : `, lane ${turn.lane}`;
  const all = [
    ["Response", turn.id === null ? (turn.end === null ? "none yet" : "none") : [h("code", null, turn.id), " ", copyButton(turn.id, "the id of the response")]],
    turn.previous !== null && ["Continues", link(turn.previous)],
    children.length > 0 && ["Continued by", [children.slice(0, MOST_CHILDREN).map(({ id }) => [link(id), " "]), children.length > MOST_CHILDREN && "…"]],
    ["Where", row.kind === "connection" ? [h("button", { type: "button", class: "link", onclick: () => onRow(row) }, `connection #${turn.connection}`), lane] : turn.transport],
    turn.api !== "responses" && ["API", API_NAMES[turn.api] ?? turn.api],
    ["Tenant", turn.tenant],
    report.model && ["Model", report.model],
    ["Began", new Date(turn.start).toLocaleTimeString()],
    report.input_items !== undefined && ["New items", report.recognised_items ? `${report.input_items}, of which ${report.recognised_items} were recognised` : String(report.input_items)],
    report.departed ? ["Not recognised", departureInWords(report.departed)] : null,
    report.hosted_calls ? ["Calls of hosted tools", count(report.hosted_calls)] : null,
    report.steps ? ["Steps", stepsInWords(report.steps)] : null,
    report.send_ms ? ["Waited for the client to read", duration(report.send_ms)] : null,
    report.input_check_ms ? ["Checks of the input", `${duration(report.input_check_ms)}, beside the stages`] : null,
    report.withheld ? ["Withheld items", Object.entries(report.withheld).map(([check, number]) => `${count(number)} by ${check}`).join(", ")] : null,
    turn.marks?.length ? ["Marks", turn.marks.map((mark) => MARKS[mark] ?? mark).join("; ")] : null,
  ];
  return all.filter(Boolean).map(([name, value]) => [h("dt", null, name), h("dd", null, value)]);
}

/** Where a history departs from the one before: the server names the place, and never the content. */
function departureInWords({ field, item, type }) {
  if (field === "memory") return "the history is the one before, but its context is not kept any more";
  if (item === undefined) return `other ${field} than in the history before`;
  return `from item ${item} on, a ${type}: its ${field} is not that of the history before`;
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
    h("h2", { id: "detail-title", tabindex: "-1" }, `Connection #${connection.number}`),
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
        statusBadge(turn),
        h("span", { class: "facts" }, `${asked(turn)} · ${turn.tenant} · ${duration((turn.end ?? now) - turn.start)}`))))),
  ];
}

/**
 * The chains of a connection as a tree: one line for each response, the newest above, a column for each
 * branch. Made from what the server keeps in memory and from the turns that were seen; of the latter
 * those that are no longer in memory are drawn hollow.
 */

const PITCH = 26;
const STEP = 14;
const MOST_COLUMNS = 8;
const MOST_NODES = 400;

/** Nodes of the connection's detail, completed by turns: [{id, parent, lane, marks, turn, node}] in order. */
export function chainNodes(nodes, turns) {
  const found = new Map();
  for (const turn of turns) {
    if (turn.id === null) continue;
    found.set(turn.id, { id: turn.id, parent: turn.previous, lane: turn.lane, marks: turn.marks ?? [], at: turn.start, turn, node: null });
  }
  for (const node of nodes) {
    const seen = found.get(node.id);
    const marks = [...new Set([...(node.marks ?? []), ...(seen?.marks ?? [])])];
    found.set(node.id, {
      id: node.id, parent: node.parent ?? seen?.parent ?? null, lane: node.lane ?? null, marks,
      at: seen?.at ?? node.created_at * 1000, turn: seen?.turn ?? null, node,
    });
  }
  const newest = [...found.values()].sort((a, b) => a.at - b.at);
  return { shown: newest.slice(-MOST_NODES), left: Math.max(0, newest.length - MOST_NODES) };
}

/** Give each node a column: the first child continues its parent's, others open one. */
export function columnsOf(nodes) {
  const present = new Map(nodes.map((each) => [each.id, each]));
  const children = new Map();
  const roots = [];
  for (const each of nodes) {
    if (each.parent !== null && present.has(each.parent)) {
      if (!children.has(each.parent)) children.set(each.parent, []);
      children.get(each.parent).push(each);
    } else roots.push(each);
  }
  const rows = [];
  const stack = roots.reverse().map((root) => ({ each: root, column: null, depth: 0, from: null }));
  while (stack.length) {
    const { each, column, depth, from } = stack.pop();
    const own = column ?? freeColumn(stack);
    const row = { ...each, column: own, depth, from, index: rows.length, branches: 0 };
    rows.push(row);
    const [first, ...others] = [...(children.get(each.id) ?? [])].sort((a, b) => (a.lane !== each.lane) - (b.lane !== each.lane));
    row.branches = others.length;
    if (first !== undefined) stack.push({ each: first, column: own, depth, from: row });
    for (const other of others) stack.push({ each: other, column: null, depth: depth + 1, from: row });
  }
  return rows;
}

/** The first column in which no line leads further down. */
function freeColumn(stack) {
  const taken = new Set(stack.map(({ column }) => column));
  let free = 0;
  while (taken.has(free)) free += 1;
  return free;
}

export function chainTree({ nodes, left, isComplete, selected, onTurn }) {
  const rows = columnsOf(nodes);
  const columns = Math.min(MOST_COLUMNS, Math.max(1, ...rows.map(({ column }) => column + 1)));
  const width = columns * STEP + 6;
  return [
    h("ol", { class: "tree", role: "tree", "aria-label": "Responses of this connection, each above its parent", onkeydown: pressed },
      rows.toReversed().map((row) => treeItem(row, rows, width, selected, onTurn))),
    (left > 0 || !isComplete) && h("p", { class: "note" }, "Older responses are not shown."),
  ];
}

function treeItem(row, rows, width, selected, onTurn) {
  const { node, turn } = row;
  const facts = [
    row.lane !== null && `lane ${row.lane}`,
    node?.tokens ? counted(node.tokens, "token") : null,
    node !== null && size(node.size_bytes),
    turn !== null && turn.end !== null && duration(turn.end - turn.start),
  ].filter(Boolean);
  const states = [
    node === null ? "not in memory" : !node.is_cached ? "kept for its descendants" : null,
    node?.is_latest ? "latest of its lane" : null,
    node?.is_stored ? "stored" : null,
  ].filter(Boolean);
  const isCurrent = selected !== null && selected === row.id;
  return h(
    "li",
    { key: row.id, role: "treeitem", "aria-level": String(row.depth + 1), class: isCurrent ? "selected" : null, "aria-selected": String(isCurrent) },
    branchLines(row, rows, width),
    h("button", { type: "button", tabindex: row.index === rows.length - 1 ? "0" : "-1", "aria-disabled": String(turn === null), title: row.id, onclick: () => onTurn(turn) },
      h("code", null, shortId(row.id)),
      row.marks.map((mark) => h("span", { class: `badge ${mark}` }, mark)),
      states.map((state) => h("span", { class: "badge state" }, state)),
      turn !== null && turn.status !== "completed" && statusBadge(turn),
      h("span", { class: "facts" }, facts.join(" · "))),
  );
}

/** The lines that lead through, to and from a node; drawn downwards, and turned over, as children are above. */
function branchLines(row, rows, width) {
  const x = (column) => 7 + Math.min(column, MOST_COLUMNS - 1) * STEP;
  const middle = PITCH / 2;
  const paths = [];
  const passing = new Set();
  for (const other of rows) {
    if (other.from === null || other.index <= row.index || other.from.index >= row.index) continue;
    passing.add(other.column);
  }
  for (const column of passing) if (column !== row.column) paths.push(`M${x(column)} 0V${PITCH}`);
  if (row.from !== null) {
    paths.push(row.from.column === row.column || row.from.index !== row.index - 1
      ? `M${x(row.column)} 0V${middle}`
      : `M${x(row.from.column)} 0C${x(row.from.column)} ${middle} ${x(row.column)} 0 ${x(row.column)} ${middle}`);
  }
  const below = rows.filter((other) => other.from === row);
  for (const child of below) {
    if (child.column === row.column) paths.push(`M${x(row.column)} ${middle}V${PITCH}`);
    else if (child.index !== row.index + 1) paths.push(`M${x(row.column)} ${middle}C${x(row.column)} ${PITCH} ${x(child.column)} ${middle} ${x(child.column)} ${PITCH}`);
    else paths.push(`M${x(row.column)} ${middle}V${PITCH}`);
  }
  const isHollow = row.node === null || !row.node.is_cached;
  return h(
    "svg",
    { class: "branches", viewBox: `0 0 ${width} ${PITCH}`, width, height: PITCH, "aria-hidden": "true" },
    h("path", { d: paths.join(""), class: "branch", transform: `translate(0 ${PITCH}) scale(1 -1)` }),
    row.node?.is_latest && h("circle", { cx: x(row.column), cy: middle, r: 6.5, class: "ring" }),
    h("circle", { cx: x(row.column), cy: middle, r: 4, class: isHollow ? "hollow" : "solid" }),
  );
}

function pressed(event) {
  const buttons = [...event.currentTarget.querySelectorAll("button")];
  const at = buttons.indexOf(document.activeElement);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
  if (to === undefined || at === -1) return;
  const target = buttons[Math.min(Math.max(to, 0), buttons.length - 1)];
  buttons.forEach((button) => { button.tabIndex = button === target ? 0 : -1; });
  target.focus();
  event.preventDefault();
}

/** The tree in one sentence. */
export function chainWords(nodes) {
  const marked = (mark) => nodes.filter(({ marks }) => marks.includes(mark)).length;
  const parts = [["fork", "forks"], ["warmup", "warmups"], ["steered", "steers"], ["compaction", "compactions"]]
    .map(([mark, plural]) => [marked(mark), mark === "steered" ? "steer" : mark, plural])
    .filter(([number]) => number > 0)
    .map(([number, noun, plural]) => counted(number, noun, plural));
  return `${counted(nodes.length, "response")}${parts.length ? `, with ${parts.join(", ")}` : ""}; ${count(nodes.filter(({ node }) => node?.is_cached).length)} in memory.`;
}
