// SPDX-License-Identifier: Apache-2.0
/**
 * The chains of a connection as a tree: one line for each response, the newest above, a column for each
 * branch. Made from what the server keeps in memory and from the turns that were seen; of the latter
 * those that are no longer in memory are drawn hollow.
 */

import { h } from "./dom.js";
import { statusBadge } from "./outcomes.js";
import { count, counted, duration, shortId, size } from "./units.js";

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
