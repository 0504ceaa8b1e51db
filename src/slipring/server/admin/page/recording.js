// SPDX-License-Identifier: Apache-2.0
/**
 * Recordings that `slipring record` or `slipring serve --record` wrote, read from a file that the reader
 * chooses. Nothing of it leaves the browser, and of its content nothing is shown but ids, sizes and times.
 */

import { LiveState } from "./state.js";
import { turnOf } from "./turns.js";
import { counted, duration } from "./units.js";

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
