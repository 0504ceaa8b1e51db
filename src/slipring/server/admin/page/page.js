// SPDX-License-Identifier: Apache-2.0
/** The live page: joins stream, state, timelines and panels, and draws when something has changed. */

import { connectionDetail, sharedDetail, turnDetail } from "./detail.js";
import { h, patch } from "./dom.js";
import { patch12 } from "./drawings.js";
import { enginesPanel, firstRequest, memoryPanel, parkedPanel, processesPanel, totalsStrip, turnsPanel } from "./panels.js";
import { Rows } from "./rows.js";
import { allStages, allTakers } from "./stages.js";
import { LiveState } from "./state.js";
import { Stream, UnreadableRecording, readRecording, rememberKey, request } from "./stream.js";
import { MARKS, markedOutcomes, roundedKey, signOf } from "./turns.js";
import { lasting } from "./units.js";

const STEP_MS = 50;
const LEAST_REST = 8;
const PANELS_MS = 450;
const DETAIL_MS = 2000;
const STALE_MS = 3000;
const STATES = { connecting: "connecting", live: "live", lost: "stream lost", locked: "needs the admin key", hidden: "paused while hidden" };

const at = (id) => document.getElementById(id);
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const dark = matchMedia("(prefers-color-scheme: dark)");

class Page {
  constructor() {
    this.state = new LiveState();
    this.recording = null;
    this.status = { state: "connecting" };
    this.receivedAt = null;
    this.span = 30;
    this.moment = 1;
    this.selected = { row: null, turn: null };
    this.detail = null;
    this.detailAt = 0;
    this.isChanged = true;
    this.frame = null;
    this.panelsAt = -Infinity;
    this.usual_ms = 0;
    this.rows = new Rows(at("rows"), at("axis"), {
      onTurn: (row, turn) => this.select(row, turn),
      onRow: (row) => this.select(row, null),
    });
    this.stream = new Stream((message) => this.receive(message), (status) => this.turnTo(status));
    this.costs = { updates: 0, apply_ms: 0, frames: 0, draw_ms: 0 };
  }

  start() {
    this.legend();
    this.listen();
    this.see();
    setInterval(() => this.change(), 1000);
  }

  listen() {
    document.addEventListener("visibilitychange", () => this.see());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !at("detail").hidden && !at("lock").open) this.unselect();
    });
    for (const input of document.querySelectorAll("input[name=span]")) {
      input.addEventListener("change", () => this.look(Number(input.value)));
    }
    at("filter").addEventListener("input", (event) => {
      this.rows.filter = event.target.value.trim().toLowerCase();
      this.change();
    });
    at("order").addEventListener("change", (event) => {
      this.rows.order = event.target.value;
      this.change();
    });
    at("rows").addEventListener("scroll", () => this.change(), { passive: true });
    at("close").addEventListener("click", () => this.unselect());
    at("unlock").addEventListener("submit", () => {
      rememberKey(at("key").value);
      at("key").value = "";
      this.stream.open();
    });
    at("file").addEventListener("change", (event) => this.open(event.target));
    at("back").addEventListener("click", () => this.close());
    at("moment").querySelector("input").addEventListener("input", (event) => {
      this.moment = Number(event.target.value) / 1000;
      this.change();
    });
    new ResizeObserver(() => this.change()).observe(at("rows"));
    dark.addEventListener("change", () => {
      this.rows.recolour();
      this.change();
    });
  }

  legend() {
    patch(at("takers"), [
      allTakers().map(({ name, stage, meaning }) => h("span", { title: meaning }, patch12(`taker-of-all-${name}`, stage), name)),
      markedOutcomes(true).map((outcome) => h("span", { title: outcome.meaning }, signOf(outcome), outcome.name)),
    ]);
    patch(at("stages"), allStages().map((stage) => h("li", null, patch12(`legend-${stage.name}`, stage), h("strong", null, stage.name), `: ${stage.meaning}`)));
    patch(at("outcomes"), markedOutcomes(false).map((outcome) => h("li", null, signOf(outcome), h("strong", null, outcome.name), `: ${outcome.meaning}`)));
    const letters = Object.values(MARKS).map((text) => `${text[0].toUpperCase()} ${text}`);
    patch(at("marks"), `Letters on bars: ${letters.join("; ")}. A thin line below a bar: the turn waits for its lane. Between bars lies the client's time; dashes: its tools.`);
  }

  /** The stream is open only while the page is visible and no recording is shown. */
  see() {
    if (document.hidden) this.stream.close("hidden");
    else if (this.recording === null) this.stream.open();
    this.change();
  }

  turnTo(status) {
    this.status = status;
    this.panelsAt = -Infinity; // A stream that is lost may be open again before the panels are due.
    const lock = at("lock");
    if (status.state === "locked" && !lock.open) {
      patch(at("lock-reason"), status.wasRefused ? "The key that was given is not accepted." : "");
      lock.showModal();
    }
    this.change();
  }

  receive(message) {
    const begin = performance.now();
    this.state.apply(message);
    this.receivedAt = begin;
    this.costs.updates += message.type === "update" ? 1 : 0;
    this.costs.apply_ms += performance.now() - begin;
    this.change();
  }

  change() {
    this.isChanged = true;
    this.schedule();
  }

  schedule() {
    if (this.frame === null && !document.hidden) this.frame = requestAnimationFrame(() => this.draw());
  }

  /** State that is shown: the live one, or that of a recording. */
  get shown() {
    return this.recording?.state ?? this.state;
  }

  view() {
    if (this.recording === null) {
      const now = this.state.now();
      return { from: now - this.span * 1000, to: now, now, origin: null };
    }
    const { from, to } = this.recording;
    const span = this.span === 0 ? to - from : Math.min(this.span * 1000, to - from);
    const end = from + span + (to - from - span) * this.moment;
    return { from: end - span, to: end, now: to, origin: from };
  }

  draw() {
    this.frame = null;
    const begin = performance.now();
    const shown = this.shown;
    if (this.isChanged) this.rows.arrange(shown);
    const hadChanged = this.isChanged;
    this.isChanged = false;
    this.rows.selected = { row: this.selected.row?.key ?? null, turn: this.current() };
    this.rows.draw(this.view(), shown);
    if (hadChanged && begin - this.panelsAt >= PANELS_MS) {
      this.panelsAt = begin;
      this.panels(shown);
    }
    this.drawDetail(hadChanged);
    this.costs.frames += 1;
    const spent = performance.now() - begin;
    this.costs.draw_ms += spent;
    this.usual_ms = this.usual_ms * 0.9 + spent * 0.1;
    if (this.moves()) this.timer ??= setTimeout(() => { this.timer = null; this.schedule(); }, this.step());
  }

  /** Whether the picture changes by time alone. */
  moves() {
    return this.recording === null && this.status.state === "live" && !calm.matches && this.rows.hasTurns;
  }

  /** The time in which the picture moves by a pixel; longer where drawing is slow. */
  step() {
    return Math.max(STEP_MS, this.usual_ms * LEAST_REST, (this.span * 1000) / Math.max(200, this.rows.width));
  }

  panels(state) {
    const isEmpty = this.recording === null && state.rows.size === 0 && !state.hasSeenTurns && state.processes.size > 0;
    at("empty").hidden = !isEmpty;
    at("board").hidden = isEmpty;
    if (isEmpty) patch(at("empty"), firstRequest(state));
    this.drawStatus(state);
    patch(at("totals"), totalsStrip(state));
    const open = (id) => this.follow(id);
    const contents = {
      engines: () => enginesPanel(state, open),
      memory: () => memoryPanel(state, this.selected.row),
      parked: () => parkedPanel(state),
      processes: () => processesPanel(state),
      turns: () => turnsPanel(state),
    };
    for (const panel of document.querySelectorAll("[data-panel]")) {
      panel.hidden = this.recording !== null;
      if (this.recording === null) patch(panel.lastElementChild, contents[panel.dataset.panel]());
    }
  }

  drawStatus(state) {
    const element = at("status");
    const age = this.receivedAt === null ? null : performance.now() - this.receivedAt;
    const { state: name, retryAt, reason } = this.status;
    let text = STATES[name];
    if (this.recording !== null) text = "recording";
    else if (name === "lost") {
      const wait = Math.max(0, Math.ceil((retryAt - performance.now()) / 1000));
      text = `${text}: ${reason}; again in ${wait} s${age === null ? "" : `; data is ${lasting(age / 1000)} old`}`;
    } else if (age !== null && (name !== "live" || age > STALE_MS)) text = `${text}; data is ${lasting(age / 1000)} old`;
    if (element.textContent !== text) element.textContent = text;
    element.className = `status ${this.recording === null ? name : "recording"}`;
    document.body.classList.toggle("stale", this.recording === null && name !== "live");
    const { greeting } = state;
    at("version").textContent = greeting === null ? "" : greeting.version;
    at("uptime").textContent = greeting === null ? "" : `up for ${lasting(state.now() / 1000 - greeting.started_at)}`;
  }

  look(span) {
    this.span = span;
    this.change();
  }

  /** The selected turn as it is now: it may have ended since it was selected. */
  current() {
    const { row, turn } = this.selected;
    if (row === null || turn === null) return null;
    const key = roundedKey(turn);
    for (const lane of row.lanes) {
      const found = lane.turns.findLast((each) => roundedKey(each) === key);
      if (found !== undefined) return found;
    }
    return turn;
  }

  /** The turns before and after a turn in its lane. */
  neighbours(row, turn) {
    const lane = row.lanes.find(({ turns }) => turns.includes(turn));
    if (lane === undefined) return [null, null];
    const index = lane.turns.indexOf(turn);
    return [lane.turns[index - 1] ?? null, lane.turns[index + 1] ?? null];
  }

  select(row, turn) {
    this.selected = { row, turn };
    if (row.key !== this.detailKey) [this.detail, this.detailAt, this.detailKey] = [null, 0, row.key];
    at("detail").hidden = false;
    this.drawnDetail = null;
    this.change();
    this.drawDetail(true);
    at("side").scrollTop = 0;
    at("detail-title")?.focus({ preventScroll: true });
  }

  /** Select a neighbour of the selected turn; the focus stays on the button, as long as it leads further. */
  stepTo(row, turn) {
    const button = document.activeElement;
    const scrolled = at("side").scrollTop;
    this.select(row, turn);
    at("side").scrollTop = scrolled;
    if (button.isConnected && !button.disabled) button.focus({ preventScroll: true });
  }

  unselect() {
    const { row, turn } = this.selected;
    this.selected = { row: null, turn: null };
    at("detail").hidden = true;
    this.change();
    if (row !== null) this.rows.focus(row.key, turn);
  }

  /** Select the turn of a response, if it is remembered. */
  follow(id) {
    const found = this.shown.findResponse(id);
    if (found !== null) this.select(found.row, found.turn);
  }

  drawDetail(hasChanged) {
    const { row } = this.selected;
    if (row === null) return;
    const turn = this.current();
    const isRunning = turn !== null && turn.end === null;
    if (!hasChanged && !isRunning) return;
    const width = Math.max(240, at("selected").clientWidth);
    const [before, after] = this.neighbours(row, turn);
    const children = turn === null || turn.id === null ? [] : row.lanes.flatMap((lane) => lane.turns).filter(({ id, previous }) => id !== null && previous === turn.id);
    const drawn = [turn, before, after, width, children.length];
    if (turn !== null && turn.end !== null && this.drawnDetail?.every((each, index) => each === drawn[index])) return;
    this.drawnDetail = drawn;
    const now = this.recording === null ? this.state.now() : this.recording.to;
    const onTurn = (chosen) => chosen !== null && this.select(row, chosen);
    const onStep = (chosen) => this.stepTo(row, chosen);
    const options = { now, width, before, after, children, onStep, detail: this.detail, selected: null, onTurn, onResponse: (id) => this.follow(id), onRow: (chosen) => this.select(chosen, null) };
    if (turn !== null) patch(at("selected"), h("div", { key: "turn" }, turnDetail(turn, row, options)));
    else if (row.kind !== "connection") patch(at("selected"), h("div", { key: row.key }, sharedDetail(row, options)));
    else {
      patch(at("selected"), h("div", { key: row.key }, connectionDetail(row, options)));
      this.ask(row);
    }
  }

  /** Ask the server for the chains of the selected connection, now and then. */
  async ask(row) {
    const now = performance.now();
    if (this.recording !== null || row.isClosed || now - this.detailAt < DETAIL_MS) return;
    this.detailAt = now;
    try {
      const answer = await request(`live/connections/${row.process}/${row.connection.number}`);
      if (!answer.ok || this.detailKey !== row.key) return;
      this.detail = await answer.json();
      this.change();
    } catch {
      return; // The stream shows that the server does not answer.
    }
  }

  async open(input) {
    const file = input.files[0];
    input.value = "";
    if (file === undefined) return;
    try {
      this.recording = await readRecording(file);
    } catch (error) {
      if (!(error instanceof UnreadableRecording)) throw error;
      patch(at("recorded"), `${file.name} cannot be shown: ${error.message}.`);
      at("recorded").hidden = false;
      return;
    }
    this.stream.close("hidden");
    patch(at("recorded"), `${file.name}: ${this.recording.words}`);
    this.turnPage(true);
  }

  close() {
    this.recording = null;
    this.turnPage(false);
    this.stream.open();
  }

  turnPage(isRecording) {
    for (const id of ["recorded", "moment", "back", "whole"]) at(id).hidden = !isRecording;
    for (const id of ["totals", "uptime"]) at(id).hidden = isRecording;
    this.selected = { row: null, turn: null };
    at("detail").hidden = true;
    const span = isRecording ? 0 : 30;
    document.querySelector(`input[name=span][value="${span}"]`).checked = true;
    this.panelsAt = -Infinity;
    this.look(span);
  }
}

const page = new Page();
page.start();
globalThis.slipringPage = page; // For a console, and for tests: what drawing costs.
