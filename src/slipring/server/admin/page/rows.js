// SPDX-License-Identifier: Apache-2.0
/**
 * The timelines: one row for each connection. Only the rows in view exist as elements; what happens in time
 * is drawn on one canvas behind them. One stop of the tab key: arrow keys move between rows and turns.
 */

import { h, made, patch } from "./dom.js";
import { BAR, drawLane, drawTimes, endOf, fitCanvas, inks, timeScale, turnAt } from "./timeline.js";
import { inWords, roundedKey } from "./turns.js";
import { counted, size } from "./units.js";

const PITCH = 20;
const PACKED_LINES = 6;
const NARROW = 640;
const LABELS = { wide: 204, narrow: 0 };
const HEADS = { wide: 0, narrow: 22 };
const BEYOND = 3;
const AXIS = 24;

const KINDS = { http: "HTTP requests", background: "Background" };
const ORDERS = {
  newest: (a, b) => b.opened - a.opened,
  oldest: (a, b) => a.opened - b.opened,
  turns: (a, b) => b.turns - a.turns,
  memory: (a, b) => b.memory - a.memory,
};

export class Rows {
  constructor(region, axis, { onTurn, onRow }) {
    this.region = region;
    this.axis = axis;
    this.onTurn = onTurn;
    this.onRow = onRow;
    this.canvas = made(h("canvas", { class: "lanes", "aria-hidden": "true" }));
    this.sizer = made(h("div", { class: "sizer", role: "presentation" }));
    this.tip = made(h("div", { class: "tip", "aria-hidden": "true", hidden: true }));
    this.region.append(this.sizer);
    this.sizer.append(this.canvas);
    document.body.append(this.tip);
    this.elements = new Map();
    this.placed = [];
    this.width = 0;
    this.hasTurns = false;
    this.order = "newest";
    this.filter = "";
    this.active = { key: null, turn: null };
    this.selected = { row: null, turn: null };
    this.colours = inks(document.documentElement);
    this.region.addEventListener("keydown", (event) => this.press(event));
    this.region.addEventListener("click", (event) => this.click(event));
    this.region.addEventListener("pointermove", (event) => this.hover(event));
    this.region.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    this.region.addEventListener("focusin", (event) => this.focused(event));
  }

  /** After the colour scheme has changed. */
  recolour() {
    this.colours = inks(document.documentElement);
  }

  /** Choose and place the rows. */
  arrange(state) {
    this.isNarrow = this.region.clientWidth < NARROW;
    const shown = [...state.rows.values()].filter((row) => this.matches(row));
    const by = ORDERS[this.order];
    const keyed = shown.map((row) => ({ row, rank: row.kind === "connection" ? 1 : 0, ...orderOf(row) }));
    keyed.sort((a, b) => a.rank - b.rank || by(a, b) || (a.row.key < b.row.key ? -1 : 1));
    let top = 0;
    this.placed = keyed.map(({ row }, index) => {
      const lines = linesOf(row, state);
      const height = this.heightOf(lines.length);
      const place = { row, lines, index, top, height };
      top += height;
      return place;
    });
    this.byKey = new Map(this.placed.map((place) => [place.row.key, place]));
    this.total = top;
    this.hasWorkers = state.processes.size > 1;
    this.sizer.style.height = `${top}px`;
    this.region.setAttribute("aria-rowcount", String(this.placed.length));
    if (this.active.key === null || !this.byKey.has(this.active.key)) {
      this.active = { key: this.placed[0]?.row.key ?? null, turn: null };
    }
  }

  heightOf(lines) {
    const lanes = Math.max(1, lines) * PITCH;
    return this.isNarrow ? HEADS.narrow + lanes + 8 : Math.max(44, lanes + 12);
  }

  matches(row) {
    if (this.filter === "") return true;
    const texts = row.kind === "connection"
      ? [`#${row.connection.number}`, row.connection.tenant, ...row.lanes.map(({ name }) => name ?? "")]
      : [KINDS[row.kind]];
    return texts.some((text) => text.toLowerCase().includes(this.filter));
  }

  /** Draw what is in view. `view`: {from, to, now, origin}. */
  draw(view, state) {
    const [width, height] = [this.region.clientWidth, this.region.clientHeight];
    const left = this.isNarrow ? 8 : LABELS.wide;
    const scale = timeScale(view.from, view.to, left, width - 8);
    [this.scale, this.view, this.width] = [scale, view, width];
    const pen = fitCanvas(this.axis, width, AXIS);
    if (pen !== null) drawTimes(pen, scale, this.colours, { origin: view.origin, labelY: 11, top: 19, bottom: AXIS });
    const shownHeight = Math.max(0, Math.min(height, this.total));
    const lanes = fitCanvas(this.canvas, width, shownHeight);
    const scroll = this.region.scrollTop;
    const shown = this.inView(scroll, height);
    if (lanes !== null) this.drawLanes(lanes, shown, scroll, scale, view, shownHeight, width);
    this.place(shown, state, width);
  }

  inView(scroll, height) {
    let [low, high] = [0, this.placed.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.placed[middle].top + this.placed[middle].height <= scroll) low = middle + 1;
      else high = middle;
    }
    let end = low;
    while (end < this.placed.length && this.placed[end].top < scroll + height) end += 1;
    return this.placed.slice(low, end);
  }

  drawLanes(pen, shown, scroll, scale, view, height, width) {
    drawTimes(pen, scale, this.colours, { origin: view.origin, labelY: null, top: 0, bottom: height });
    this.hasTurns = false;
    for (const { row, lines, top, height: tall } of shown) {
      const y = top - scroll;
      pen.fillStyle = this.colours.rule;
      pen.fillRect(0, Math.round(y + tall) - 1, width, 1);
      lines.forEach((line, index) => {
        const at = this.lineTop(index, lines.length, tall) + y;
        const last = line.turns[line.turns.length - 1];
        if (last !== undefined && endOf(last, view.now) >= view.from) this.hasTurns = true;
        if (line.name !== null && !this.isNarrow) {
          pen.fillStyle = this.colours.soft;
          pen.textAlign = "right";
          pen.fillText(shortened(line.name, 10), LABELS.wide - 8, at + BAR / 2);
        }
        const options = {
          now: view.now,
          hasWaits: row.kind === "connection",
          isOpen: line.isOpen && view.origin === null,
          selected: this.selected.turn,
        };
        drawLane(pen, line.turns, scale, at, this.colours, options);
      });
    }
  }

  lineTop(index, lines, height) {
    const head = this.isNarrow ? HEADS.narrow : (height - Math.max(1, lines) * PITCH) / 2;
    return head + index * PITCH + (PITCH - BAR) / 2;
  }

  /** Make elements for the rows in view, and for the one that has the focus. */
  place(shown, state, width) {
    const first = shown[0]?.index ?? 0;
    const last = shown[shown.length - 1]?.index ?? -1;
    const wanted = this.placed.slice(Math.max(0, first - BEYOND), last + 1 + BEYOND);
    const active = this.byKey?.get(this.active.key);
    if (active !== undefined && !wanted.includes(active)) wanted.push(active);
    const kept = new Set(wanted.map(({ row }) => row.key));
    for (const [key, element] of this.elements) {
      if (kept.has(key)) continue;
      element.remove();
      this.elements.delete(key);
    }
    for (const place of wanted) this.placeRow(place, state, width);
  }

  placeRow(place, state, width) {
    const { row, index, top, height } = place;
    let element = this.elements.get(row.key);
    if (element === undefined) {
      element = made(h("div", { role: "row" }));
      element.rowKey = row.key;
      this.elements.set(row.key, element);
      this.sizer.append(element);
    }
    const isSelected = this.selected.row === row.key && this.selected.turn === null;
    const signature = [index, top, height, this.hasWorkers, subtitleOf(row), row.isClosed, isSelected,
      this.active.key === row.key, this.isNarrow].join("|");
    if (element.signature !== signature) {
      element.signature = signature;
      element.className = `row${row.isClosed ? " closed" : ""}${isSelected ? " selected" : ""}`;
      element.setAttribute("aria-rowindex", String(index + 1));
      element.style.transform = `translateY(${top}px)`;
      element.style.height = `${height}px`;
      this.label(element, row);
    }
    const isActive = this.active.key === row.key;
    if (isActive || element.hasTurn) this.placeTurn(element, place, isActive, width);
  }

  label(element, row) {
    const isStop = this.active.key === row.key && this.active.turn === null;
    patch(
      element,
      h("div", { key: "who", role: "gridcell", class: "who" },
        h("button", { class: "label", type: "button", tabindex: isStop ? "0" : "-1" },
          h("span", { class: "title" }, titleParts(row, this.hasWorkers)),
          h("span", { class: "subtitle" }, subtitleOf(row)))),
      h("div", { key: "when", role: "gridcell", class: "when" },
        element.hasTurn ? this.turnButton(row) : null),
    );
  }

  turnButton(row) {
    const turn = this.activeTurn(row);
    return h("button", {
      key: "turn", class: "turn", type: "button",
      tabindex: turn !== null && this.active.key === row.key ? "0" : "-1",
      "aria-label": turn === null ? "no turn" : inWords(turn, this.view?.now ?? 0),
    });
  }

  /** Keep the button that has the focus on the bar of its turn. */
  placeTurn(element, { row, lines, height }, isActive, width) {
    const turn = isActive ? this.activeTurn(row) : null;
    const hadTurn = element.hasTurn === true;
    element.hasTurn = turn !== null;
    if (turn !== null || hadTurn) this.label(element, row);
    if (turn === null) return;
    const button = element.querySelector(".turn");
    const line = lines.findIndex(({ turns }) => turns.includes(turn));
    const left = Math.min(Math.max(this.scale.x(turn.start), this.scale.left), width - 10);
    const right = Math.max(Math.min(this.scale.x(endOf(turn, this.view.now)), width - 4), left + 4);
    button.style.left = `${left - 3}px`;
    button.style.width = `${right - left + 6}px`;
    button.style.top = `${this.lineTop(Math.max(0, line), lines.length, height) - 3}px`;
    button.style.height = `${BAR + 6}px`;
  }

  activeTurn(row) {
    if (this.active.turn === null) return null;
    return turnsOf(row).findLast((turn) => roundedKey(turn) === this.active.turn) ?? null;
  }

  /** Move the focus to a row, and to one of its turns or its name. */
  focus(key, turn) {
    const place = this.byKey.get(key);
    if (place === undefined) return;
    this.active = { key, turn: turn === null ? null : roundedKey(turn) };
    const { scrollTop, clientHeight } = this.region;
    if (place.top < scrollTop) this.region.scrollTop = place.top;
    else if (place.top + place.height > scrollTop + clientHeight) this.region.scrollTop = place.top + place.height - clientHeight;
    this.draw(this.view, null);
    const element = this.elements.get(key);
    element?.querySelector(turn === null ? ".label" : ".turn")?.focus({ preventScroll: true });
  }

  focused(event) {
    const element = event.target.closest(".row");
    if (element === null || event.target.classList.contains("turn")) return;
    if (this.active.key !== element.rowKey || this.active.turn !== null) {
      this.active = { key: element.rowKey, turn: null };
    }
  }

  press(event) {
    const place = this.byKey.get(this.active.key);
    if (place === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    const turns = turnsOf(place.row).filter((turn) => endOf(turn, this.view.now) >= this.view.from && turn.start <= this.view.to);
    const at = turns.findIndex((turn) => roundedKey(turn) === this.active.turn);
    const page = Math.max(1, Math.floor(this.region.clientHeight / 44) - 1);
    const rows = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page };
    if (event.key in rows) this.moveRow(place.index + rows[event.key], turns[at]);
    else if (event.key === "ArrowRight") this.moveTurn(place, turns, at + 1);
    else if (event.key === "ArrowLeft") this.moveTurn(place, turns, at === -1 ? -1 : at - 1);
    else if (event.key === "Home") this.focus(place.row.key, null);
    else if (event.key === "End") this.moveTurn(place, turns, turns.length - 1);
    else return;
    event.preventDefault();
  }

  moveRow(index, turn) {
    const place = this.placed[Math.min(Math.max(index, 0), this.placed.length - 1)];
    if (place === undefined) return;
    const near = turn === undefined ? null : nearest(turnsOf(place.row), turn.start, this.view);
    this.focus(place.row.key, near);
  }

  moveTurn(place, turns, at) {
    this.focus(place.row.key, at < 0 ? null : turns[Math.min(at, turns.length - 1)] ?? null);
  }

  click(event) {
    const element = event.target.closest(".row");
    if (element === null) return;
    const place = this.byKey.get(element.rowKey);
    if (place === undefined) return;
    const isLabel = event.target.closest(".label") !== null;
    const turn = event.target.classList.contains("turn") ? this.activeTurn(place.row) : isLabel ? null : this.turnUnder(place, event);
    this.active = { key: place.row.key, turn: turn === null ? null : roundedKey(turn) };
    if (turn !== null) this.onTurn(place.row, turn);
    else if (isLabel) this.onRow(place.row);
  }

  turnUnder(place, event) {
    const box = this.region.getBoundingClientRect();
    const y = event.clientY - box.top + this.region.scrollTop - place.top;
    const first = this.lineTop(0, place.lines.length, place.height) - (PITCH - BAR) / 2;
    const line = place.lines[Math.min(Math.max(0, Math.floor((y - first) / PITCH)), place.lines.length - 1)];
    return line === undefined ? null : turnAt(line.turns, event.clientX - box.left, this.scale, this.view.now);
  }

  hover(event) {
    const element = event.target.closest(".row");
    const place = element === null ? undefined : this.byKey.get(element.rowKey);
    const turn = place === undefined || event.pointerType === "touch" ? null : this.turnUnder(place, event);
    this.region.classList.toggle("over", turn !== null);
    this.tip.hidden = turn === null;
    if (turn === null) return;
    const text = inWords(turn, this.view.now);
    if (this.tip.textContent !== text) this.tip.textContent = text;
    this.tip.style.left = `${Math.max(8, Math.min(event.clientX + 12, window.innerWidth - 300))}px`;
    this.tip.style.top = `${event.clientY + 16}px`;
  }
}

function orderOf({ connection }) {
  return {
    opened: connection?.opened_at ?? 0,
    turns: connection?.turns_ended ?? 0,
    memory: connection?.cache.used_bytes ?? 0,
  };
}

/** All turns of a row in the order of their beginnings. */
function turnsOf(row) {
  if (row.lanes.length === 1) return row.lanes[0].turns;
  return row.lanes.flatMap((lane) => lane.turns).sort((a, b) => a.start - b.start);
}

function nearest(turns, start, view) {
  let found = null;
  for (const turn of turns) {
    if (endOf(turn, view.now) < view.from || turn.start > view.to) continue;
    if (found === null || Math.abs(turn.start - start) < Math.abs(found.start - start)) found = turn;
  }
  return found;
}

/** A connection has a line for each lane; requests without one are packed into as few as they need. */
function linesOf(row, state) {
  if (row.kind === "connection") {
    return row.lanes.map((lane) => ({ name: row.lanes.length > 1 ? lane.name ?? "main" : null, isOpen: !row.isClosed, turns: lane.turns }));
  }
  const now = state.now();
  const lines = [];
  const turns = row.lanes.flatMap((lane) => lane.turns).sort((a, b) => a.start - b.start);
  for (const turn of turns) {
    let line = lines.find((each) => each.end <= turn.start);
    if (line === undefined && lines.length < PACKED_LINES) {
      line = { name: null, isOpen: false, turns: [], end: 0 };
      lines.push(line);
    }
    line ??= lines[PACKED_LINES - 1];
    line.turns.push(turn);
    line.end = endOf(turn, now);
  }
  return lines;
}

/** Worker, number and tenant of a connection; the name of any other row. */
function titleParts(row, hasWorkers) {
  if (row.kind !== "connection") return [KINDS[row.kind]];
  const { number, tenant } = row.connection;
  return [hasWorkers && h("span", { class: "worker" }, `w${row.process}`), `#${number}`, h("span", { class: "tenant" }, tenant)];
}

function subtitleOf(row) {
  if (row.kind !== "connection") {
    const running = row.lanes.reduce((sum, lane) => sum + lane.running.length, 0);
    return running ? `${running} running` : "";
  }
  if (row.isClosed) return "closed";
  return `${counted(row.connection.turns_ended, "turn")} · ${size(row.connection.cache.used_bytes)}`;
}

function shortened(text, most) {
  return text.length <= most ? text : `${text.slice(0, most - 1)}…`;
}
