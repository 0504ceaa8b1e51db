// SPDX-License-Identifier: Apache-2.0
/**
 * Reads the live stream, one JSON message a line. Reconnects with growing pauses, asks for the key when the
 * server wants one, and is closed while the page is hidden.
 */

import { LiveState } from "./state.js";
import { turnOf } from "./turns.js";
import { counted, duration } from "./units.js";

const KEY = "slipring-admin-key";
const LONGEST_PAUSE_MS = 15_000;
const PATIENCE_MS = 6_000;

export function rememberKey(key) {
  sessionStorage.setItem(KEY, key);
}

/** GET with the key, if there is one. */
export function request(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  return fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
}

/** `onMessage(message)`; `onStatus({state, retryAt, reason})` with state connecting, live, lost, locked or hidden. */
export class Stream {
  constructor(onMessage, onStatus) {
    this.onMessage = onMessage;
    this.onStatus = onStatus;
    this.abort = null;
    this.timer = null;
    this.failures = 0;
    this.isLive = false;
  }

  open() {
    this.stop();
    this.read();
  }

  /** Close it until `open`. */
  close(state = "hidden") {
    this.stop();
    this.failures = 0;
    this.onStatus({ state });
  }

  stop() {
    clearTimeout(this.timer);
    clearTimeout(this.silence);
    this.abort?.abort();
    this.abort = null;
    this.isLive = false;
  }

  async read() {
    const abort = new AbortController();
    this.abort = abort;
    this.onStatus({ state: "connecting" });
    let reason = "the server ended the stream";
    try {
      this.watch(abort);
      const answer = await request("live", { signal: abort.signal });
      if (answer.status === 401) {
        this.stop();
        this.onStatus({ state: "locked", wasRefused: sessionStorage.getItem(KEY) !== null });
        return;
      }
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      await this.lines(answer.body, abort);
    } catch (error) {
      reason = error.name === "TypeError" || error.name === "AbortError" ? "the server does not answer" : error.message;
    }
    if (this.abort !== abort) return;
    this.stop();
    this.failures += 1;
    const pause = Math.min(LONGEST_PAUSE_MS, 500 * 2 ** Math.min(this.failures, 6)) * (0.75 + Math.random() / 4);
    this.onStatus({ state: "lost", retryAt: performance.now() + pause, reason });
    this.timer = setTimeout(() => this.read(), pause);
  }

  /** A stream that is silent for long is dead. */
  watch(abort) {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => abort.abort(), PATIENCE_MS);
  }

  async lines(body, abort) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = [];
    for (;;) {
      const { done, value } = await reader.read();
      if (done || this.abort !== abort) return;
      this.watch(abort);
      const parts = value.split("\n");
      rest.push(parts[0]);
      for (let index = 1; index < parts.length; index += 1) {
        this.receive(rest.join(""));
        rest = [parts[index]];
      }
    }
  }

  receive(text) {
    if (text === "") return;
    this.onMessage(JSON.parse(text));
    this.failures = 0;
    if (!this.isLive) this.onStatus({ state: "live" });
    this.isLive = true;
  }
}

/**
 * Recordings that `slipring serve --record` wrote, read from a file that the reader
 * chooses. Nothing of it leaves the browser, and of its content nothing is shown but ids, sizes and times.
 */

const FORMAT = 1;
const MOST_BYTES = 500e6;
const MOST_TURNS = 20_000;
const TRANSPORTS = { post: "http" };

/** The file is not a recording. The message says why. */
export class UnreadableRecording extends Error {}

/** Returns {state, from, to, words}: rows as of the live page, and the time that they span. */
export async function readRecording(file) {
  if (file.size > MOST_BYTES) throw new UnreadableRecording("it is larger than 500 MB");
  return recordingOf(await file.text());
}

function recordingOf(text) {
  const lines = text.split("\n").filter((line) => line.trim() !== "");
  const header = parsed(lines[0] ?? "", 1);
  if (header.slipring_recording !== FORMAT) throw new UnreadableRecording(`it is no recording of format ${FORMAT}`);
  const begun = Date.parse(header.begun_at) || 0;
  const state = new LiveState();
  const turns = lines.slice(1, MOST_TURNS + 1).map((line, index) => recordedTurn(parsed(line, index + 2), begun, header));
  if (!turns.length) throw new UnreadableRecording("it has no turns");
  nameResponses(turns);
  for (const { turn } of [...turns].sort((a, b) => a.turn.start - b.turn.start)) append(state, turn);
  const from = turns.reduce((least, { turn }) => Math.min(least, turn.start), Infinity);
  const to = Math.max(from + 1000, turns.reduce((most, { turn }) => Math.max(most, turn.end), 0));
  const left = lines.length - 1 - turns.length;
  const words = `${counted(turns.length, "turn")} of ${header.tenant} in ${duration(to - from)}, begun ${new Date(begun).toLocaleString()}`
    + `, ${header.server}.${left > 0 ? ` ${counted(left, "later turn")} left out.` : ""}`;
  return { state, from, to, words };
}

function parsed(line, number) {
  try {
    const value = JSON.parse(line);
    if (value !== null && typeof value === "object") return value;
  } catch {
    // Answered below, as any other line that is no object.
  }
  throw new UnreadableRecording(`line ${number} is no JSON object`);
}

function recordedTurn(line, begun, header) {
  const report = line.timing ?? reportOf(line);
  if (typeof line.at_ms !== "number" || !Array.isArray(report?.stages)) throw new UnreadableRecording(`turn ${line.turn} has no times`);
  const isConnection = line.transport === "websocket";
  const turn = turnOf({
    started_at: (begun + line.at_ms) / 1000,
    report: { ...report, model: report.model ?? line.model ?? undefined },
    transport: TRANSPORTS[line.transport] ?? line.transport,
    tenant: header.tenant,
    connection: isConnection ? line.connection : 0,
    lane: line.lane,
    api: line.api,
  }, 0, false);
  return { line, turn };
}

/** What can be said without the server's report: the time to the first token, and that after it. */
function reportOf({ answer, request }) {
  const total_ms = answer?.total_ms ?? 0;
  const first = answer?.first_token_ms ?? total_ms;
  const stages = [{ name: "prefill", start_ms: 0, duration_ms: first }, { name: "generate", start_ms: first, duration_ms: total_ms - first }];
  const usage = answer?.usage;
  const tokens = usage && { input: usage.input_tokens, output: usage.output_tokens, rendered: 0, cached: usage.input_tokens_details?.cached_tokens ?? 0 };
  return { status: answer?.status ?? "unknown", request_bytes: JSON.stringify(request ?? {}).length, total_ms, stages, tokens };
}

/** Turns continue others by number; the page follows ids. */
function nameResponses(turns) {
  const byNumber = new Map(turns.map(({ line, turn }) => [line.turn, turn]));
  for (const { line, turn } of turns) turn.id ??= `turn ${line.turn}`;
  for (const { line, turn } of turns) {
    const parent = byNumber.get(line.continues);
    if (parent !== undefined) turn.previous = parent.id;
  }
}

function append(state, turn) {
  if (turn.connection === 0) {
    state.end(turn);
    return;
  }
  const key = `0/${turn.connection}`;
  if (!state.rows.has(key)) {
    state.connect(0, {
      number: turn.connection, tenant: turn.tenant, opened_at: turn.start / 1000, cache: { used_bytes: 0, limit_bytes: 0 },
      responses: 0, lanes: 0, turns_ended: 0, unsent_bytes: 0, running: [],
    });
  }
  const row = state.rows.get(key);
  state.append(row, turn);
  row.connection.turns_ended += 1;
  row.connection.lanes = row.lanes.length;
}
