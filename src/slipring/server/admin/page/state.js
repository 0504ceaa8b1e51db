// SPDX-License-Identifier: Apache-2.0
/**
 * What the server has sent so far: processes, connections with their lanes, turns, and counters. Everything
 * is bounded: turns for each lane and in all, closed connections, and the history of the counters.
 */

import { History } from "./rates.js";
import { roundedKey, turnOf } from "./turns.js";

const MOST_IN_A_LANE = 240;
const MOST_TURNS = 20_000;
const KEPT_MS = 11 * 60_000;
const CLOSED_KEPT_MS = 20_000;
const MOST_CLOSED = 200;
const MOST_LANES = 8;
const LAGS = 120;
const KINDS = ["rendered", "input", "cached", "output", "reasoning"];

/** One line of turns. */
function newLane(name) {
  return { name, ended: [], running: [], turns: [] };
}

/** A row of the page: a connection, or the HTTP requests, or the background runs. */
function newRow(key, kind, process) {
  return { key, kind, process, connection: null, lanes: [], isClosed: false, closedAt: 0 };
}

export class LiveState {
  constructor() {
    this.reset();
  }

  reset() {
    this.greeting = null;
    this.processes = new Map();
    this.rows = new Map();
    this.structure = 0;
    this.missed = 0;
    this.history = new History();
    this.departed = emptyTotals();
    this.highest = emptyTotals();
    this.offset = null;
    this.turnCount = 0;
    this.hasSeenTurns = false;
  }

  /** Milliseconds of the server's clock now. */
  now() {
    return this.offset === null ? Date.now() : performance.now() + this.offset;
  }

  apply(message) {
    if (message.type === "greeting") this.greet(message);
    else if (message.type === "update") this.update(message);
    else if (message.type === "process_gone") this.forget(message);
  }

  greet(greeting) {
    if (this.greeting !== null && this.greeting.started_at !== greeting.started_at) this.reset();
    this.greeting = greeting;
    this.departed = totalsOf(greeting.departed);
    // A process that is known from an earlier stream may have departed since.
    for (const process of this.processes.values()) process.totals = emptyTotals();
    this.offset = greeting.now * 1000 - performance.now();
  }

  forget({ process, departed }) {
    this.departed = totalsOf(departed);
    this.processes.delete(process);
    for (const row of [...this.rows.values()]) if (row.process === process) this.remove(row);
  }

  update(update) {
    const offset = update.now * 1000 - performance.now();
    this.offset = this.offset === null || Math.abs(offset - this.offset) > 2000 ? offset : this.offset * 0.9 + offset * 0.1;
    const last = this.processes.get(update.process);
    const known = last?.pid === update.pid ? last : undefined;
    const totals = totalsOf(update.totals);
    if (update.is_complete) this.replace(update.process, update.connections);
    const cpu = known === undefined ? null : cpuShare(known, update);
    const lags = [...(known?.lags ?? []), update.loop_lag_ms].slice(-LAGS);
    this.processes.set(update.process, { ...update, totals, cpu, lags, connections: null, turns: null });
    this.missed += update.turns_missed;
    for (const connection of update.connections) this.connect(update.process, connection);
    for (const number of update.closed) this.close(update.process, number);
    for (const turn of update.turns) this.end(turnOf(turn, update.process, false));
    this.runHttp(update);
    this.prune();
    const { turns, input, output } = totals;
    this.history.count(update.process, update.pid, update.now * 1000, { turns, input, output });
    this.history.gauge(this.gauges());
  }

  /** Those that serve clients, by number. */
  get workers() {
    return [...this.processes.values()].sort((a, b) => a.process - b.process);
  }

  /** The levels of all processes together. */
  gauges() {
    const sums = { inFlight: 0, waiting: 0, sockets: 0 };
    for (const { in_flight, waiting, sockets } of this.processes.values()) {
      sums.inFlight += in_flight;
      sums.waiting += waiting;
      sums.sockets += sockets;
    }
    return sums;
  }

  /** A complete update lists all connections of a process: others are gone. */
  replace(process, connections) {
    const numbers = new Set(connections.map(({ number }) => number));
    for (const row of [...this.rows.values()]) {
      if (row.process === process && row.kind === "connection" && !numbers.has(row.connection.number)) this.remove(row);
    }
  }

  connect(process, connection) {
    const key = `${process}/${connection.number}`;
    let row = this.rows.get(key);
    if (row === undefined) {
      row = newRow(key, "connection", process);
      this.rows.set(key, row);
      this.structure += 1;
    }
    const { recent, running, ...rest } = connection;
    row.connection = rest;
    if (recent !== undefined) {
      const newest = row.lanes.flatMap((lane) => lane.ended).reduce((most, turn) => Math.max(most, turn.end), 0);
      for (const turn of recent) {
        const made = turnOf(turn, process, false);
        if (made.end > newest) this.append(row, made);
      }
    }
    for (const lane of row.lanes) lane.running = [];
    for (const turn of running) {
      const made = turnOf(turn, process, true);
      this.laneOf(row, made.lane).running.push(made);
      this.hasSeenTurns = true;
    }
    for (const lane of row.lanes) join(lane);
  }

  close(process, number) {
    const row = this.rows.get(`${process}/${number}`);
    if (row === undefined || row.isClosed) return;
    row.isClosed = true;
    row.closedAt = this.now();
    for (const lane of row.lanes) {
      lane.running = [];
      join(lane);
    }
  }

  end(turn) {
    this.hasSeenTurns = true;
    if (turn.connection === 0) {
      this.append(this.shared(turn.transport === "background" ? "background" : "http"), turn);
      return;
    }
    const row = this.rows.get(`${turn.process}/${turn.connection}`);
    if (row !== undefined) this.append(row, turn);
  }

  append(row, turn) {
    this.hasSeenTurns = true;
    const lane = this.laneOf(row, row.kind === "connection" ? turn.lane : null);
    lane.running = lane.running.filter((each) => roundedKey(each) !== roundedKey(turn));
    lane.ended.push(turn);
    this.turnCount += 1;
    if (lane.ended.length > MOST_IN_A_LANE) this.turnCount -= lane.ended.splice(0, lane.ended.length - MOST_IN_A_LANE).length;
    join(lane);
  }

  laneOf(row, name) {
    const found = row.lanes.find((lane) => lane.name === name);
    if (found !== undefined) return found;
    if (row.lanes.length >= MOST_LANES) return row.lanes[MOST_LANES - 1];
    const lane = newLane(name);
    row.lanes.push(lane);
    row.lanes.sort((a, b) => (a.name !== null) - (b.name !== null) || (a.name < b.name ? -1 : 1));
    this.structure += 1;
    return lane;
  }

  /** The row of all HTTP requests, or of all background runs. */
  shared(kind) {
    let row = this.rows.get(kind);
    if (row === undefined) {
      row = newRow(kind, kind, null);
      this.rows.set(kind, row);
      this.structure += 1;
    }
    return row;
  }

  runHttp(update) {
    for (const kind of ["http", "background"]) {
      const turns = update.http.filter(({ transport }) => (transport === "background") === (kind === "background"));
      const row = this.rows.get(kind);
      if (row === undefined && turns.length === 0) continue;
      const lane = this.laneOf(row ?? this.shared(kind), null);
      const others = lane.running.filter((turn) => turn.process !== update.process);
      const own = turns.map((turn) => turnOf(turn, update.process, true));
      lane.running = [...others, ...own].sort((a, b) => a.start - b.start);
      if (own.length) this.hasSeenTurns = true;
      join(lane);
    }
  }

  remove(row) {
    this.rows.delete(row.key);
    this.structure += 1;
    for (const lane of row.lanes) this.turnCount -= lane.ended.length;
  }

  prune() {
    const now = this.now();
    const closed = [...this.rows.values()].filter((row) => row.isClosed);
    closed.sort((a, b) => a.closedAt - b.closedAt);
    closed.forEach((row, index) => {
      if (now - row.closedAt > CLOSED_KEPT_MS || index < closed.length - MOST_CLOSED) this.remove(row);
    });
    const isFull = this.turnCount > MOST_TURNS;
    const kept = isFull ? Math.max(20, Math.floor(MOST_TURNS / Math.max(1, this.rows.size) / 2)) : Infinity;
    if (!isFull && now - (this.prunedAt ?? 0) < 10_000) return;
    this.prunedAt = now;
    for (const row of this.rows.values()) {
      for (const lane of row.lanes) this.shorten(lane, now - KEPT_MS, kept);
    }
  }

  shorten(lane, oldest, most) {
    let first = Math.max(0, lane.ended.length - most);
    while (first < lane.ended.length - 1 && lane.ended[first].end < oldest) first += 1;
    if (first === 0) return;
    lane.ended.splice(0, first);
    this.turnCount -= first;
    join(lane);
  }

  /**
   * Counters since the server started; they never fall, also when a process ends. Until all processes have
   * reported in a new stream, they stay as they were.
   */
  totals() {
    const sum = emptyTotals();
    for (const totals of [this.departed, ...[...this.processes.values()].map((process) => process.totals)]) {
      merge(sum, totals, (one, other) => one + other);
    }
    merge(this.highest, sum, Math.max);
    return structuredClone(this.highest);
  }

  /** The turn whose response this is, and its row; null if it is not remembered. */
  findResponse(id) {
    for (const row of this.rows.values()) {
      for (const lane of row.lanes) {
        const turn = lane.turns.findLast((each) => each.id === id);
        if (turn !== undefined) return { row, turn };
      }
    }
    return null;
  }
}

function join(lane) {
  lane.turns = lane.running.length ? [...lane.ended, ...lane.running] : lane.ended;
}

function cpuShare(before, update) {
  const passed = update.now - before.now;
  return passed > 0.05 ? Math.max(0, (update.cpu_s - before.cpu_s) / passed) : before.cpu;
}

function emptyTotals() {
  return {
    turns: 0, statuses: {}, fallbacks: {}, request_bytes: 0, history_bytes: 0,
    ...Object.fromEntries(KINDS.map((kind) => [kind, 0])),
  };
}

function totalsOf(totals) {
  const made = emptyTotals();
  made.statuses = totals.turns;
  made.fallbacks = totals.fallbacks;
  made.turns = Object.values(totals.turns).reduce((sum, number) => sum + number, 0);
  made.request_bytes = totals.request_bytes;
  made.history_bytes = totals.history_bytes;
  for (const kind of KINDS) made[kind] = totals.tokens[kind] ?? 0;
  return made;
}

/** Replace each counter by what is made of it and of the other one of its name. */
function merge(counters, others, made) {
  for (const [name, other] of Object.entries(others)) {
    if (typeof other === "object") merge(counters[name], other, made);
    else counters[name] = made(counters[name] ?? 0, other);
  }
}
